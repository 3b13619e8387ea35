"""A flame graph as one self-contained SVG: click to zoom, Ctrl-F or the field to search, Esc to go back.

The width of a box is time waited. The process and thread are at the bottom, then the program's functions, then the
kernel's, and in waking modes the waker on top. Compared with a baseline, red boxes grew and blue ones shrank.

In modes file and disk the width is the time of calls or requests. What was done on which file or disk is between the
program's functions and the kernel's.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from offtop.export.profile import Profile, Sample
from offtop.model.aggregate import steps
from offtop.model.aggregate.steps import Step
from offtop.model.values.disks import DISK, LIST_NOUNS
from offtop.model.values.files import FILE
from offtop.model.values.wake import CHAIN, OFFCPU, OFFWAKE, WAKEUP
from offtop.printable import printable
from offtop.units import duration, threads

_WIDTH, _LINE, _TOP, _MARGIN = 1200, 16, 56, 10
"""Width of the picture, height of a box, space above the boxes and beside them, in px."""
_LEAST_WIDTH = 0.1
"""Boxes narrower than this, in px, are left out and counted."""
_LETTER_WIDTH = 7
"""Width of a letter, in px."""
_PALETTES = {
    OFFCPU: ("#8fc1ea", "#4f8fcd"),
    WAKEUP: ("#8fdcdc", "#3fa9a9"),
    OFFWAKE: ("#a9c8ef", "#5b86c9"),
    CHAIN: ("#b9bff0", "#6f74cf"),
    FILE: ("#a3a3f5", "#7d7ddc"),  # as flamegraph.pl --colors=io
    DISK: ("#a3a3f5", "#7d7ddc"),
}
"""Colours by mode: user functions, kernel functions. Wakers' functions have those of wakeup mode."""
_WAKER, _TURN, _NAME, _OBJECT = "#f0b47c", "#c9c9c9", "#dfe6ee", "#93d8a4"
"""Colours of the waker's name, of separators between stacks, of processes and threads, of an operation and its file."""
_TITLES = {
    OFFCPU: "off-CPU time",
    WAKEUP: "wakeups",
    OFFWAKE: "off-CPU time and wakers",
    CHAIN: "chains of wakers",
    **LIST_NOUNS,
}
_UNITS = {FILE: ("in calls", "calls", "calls"), DISK: ("in requests", "requests", "requests")}
"""What the width is time of, what is counted on average, and what a tooltip counts."""
_WAITS = ("waited", "threads", "waits")
"""The same in other modes."""


class _Node:
    __slots__ = ("before_ns", "children", "ns", "step", "waits")

    def __init__(self, step: Step) -> None:
        self.step = step
        self.ns = self.before_ns = self.waits = 0
        self.children: dict[Step, _Node] = {}


class _Box(NamedTuple):
    node: _Node
    depth: int
    x: float
    """px from the left edge of the boxes."""
    width: float
    is_wakers: bool = False
    """Whether it belongs to the waker's stack."""


def svg(profile: Profile, title: str = "", baseline: Profile | None = None) -> str:
    """Draw a flame graph.

    `baseline`: colours show the difference from it, in time per second. Stacks of the baseline alone have no width;
    the line below the title says how much time they are.
    """
    root = _tree(profile.samples, baseline.samples if baseline else ())
    scale = profile.span_ns / baseline.span_ns if baseline and baseline.span_ns else 1.0
    boxes, narrow = _boxes(root)
    depth = max((box.depth for box in boxes), default=0) + 1
    height = _TOP + depth * _LINE + 2 * _MARGIN
    heading = escape(printable(title or _TITLES[profile.mode]))
    subtitle = _subtitle(profile, root, narrow, baseline, scale)
    drawn = "\n".join(_box_svg(box, profile, root, height, scale if baseline else 0.0) for box in boxes)
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="monospace" font-size="11">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="{_WIDTH / 2}" y="20" text-anchor="middle" font-size="15">{heading}</text>\n'
        f'<text x="{_WIDTH / 2}" y="36" text-anchor="middle" fill="#555555">{escape(subtitle)}</text>\n'
        f'<text id="back" class="key" x="{_MARGIN}" y="20">&#8592; all</text>\n'
        f'<text id="search" class="key" x="{_WIDTH - _MARGIN}" y="20" text-anchor="end">search</text>\n'
        f'<text id="found" x="{_WIDTH - _MARGIN}" y="36" text-anchor="end"></text>\n'
        f'<text id="says" x="{_MARGIN}" y="50"></text>\n'
        f'<g id="boxes">\n{drawn}\n</g>\n'
        f"<script><![CDATA[{_SCRIPT}]]></script>\n</svg>\n"
    )


def _tree(samples: Sequence[Sample], before: Sequence[Sample]) -> _Node:
    root = _Node(Step("all", False))
    for some, is_before in ((samples, False), (before, True)):
        for one in some:
            node = root
            names = dict.fromkeys((one.process, one.thread))  # once if they are the same
            path = (*(Step(name, False) for name in names), *one.path)
            for at in range(len(path) + 1):
                if is_before:
                    node.before_ns += one.total_ns
                else:
                    node.ns += one.total_ns
                    node.waits += one.waits
                if at < len(path):
                    node = node.children.setdefault(path[at], _Node(path[at]))
    return root


def _boxes(root: _Node) -> tuple[list[_Box], int]:
    """Return the boxes that are wide enough, and the number of the others."""
    room = _WIDTH - 2 * _MARGIN
    boxes, narrow = [_Box(root, 0, 0.0, room)] if root.ns else [], 0
    for box in boxes:  # the loop appends to boxes
        x = box.x
        for node in sorted(box.node.children.values(), key=lambda one: one.step):
            width = room * node.ns / root.ns
            if width >= _LEAST_WIDTH:
                is_wakers = node.step == steps.WOKEN_BY or (box.is_wakers and node.step != steps.LAST_WAIT)
                boxes.append(_Box(node, box.depth + 1, x, width, is_wakers))
            elif node.ns:
                narrow += 1
            x += width
    return boxes, narrow


def _subtitle(profile: Profile, root: _Node, narrow: int, baseline: Profile | None, scale: float) -> str:
    span = f"{duration(profile.span_ns)} of {printable(profile.host)}" if profile.host else duration(profile.span_ns)
    spent, counted, _ = _units(profile)
    words = [f"{duration(root.ns)} {spent} in {span}: {_waiting(root.ns, profile)} {counted} at a time"]
    if baseline:
        gone_ns = sum(node.before_ns for node in _nodes(root) if not node.children and not node.ns)
        doubt = f" ({', '.join(baseline.caveats)})" if baseline.caveats else ""
        words.append(f"before {_waiting(round(root.before_ns * scale), profile)}{doubt}")
        words.append(f"gone since {_waiting(round(gone_ns * scale), profile)}")
    if narrow:
        words.append(f"{narrow:,} boxes too narrow to be drawn")
    words += profile.caveats
    return "; ".join(words)


def _units(profile: Profile) -> tuple[str, str, str]:
    return _UNITS.get(profile.mode, _WAITS)


def _nodes(root: _Node) -> Iterator[_Node]:
    left = [root]
    while left:
        node = left.pop()
        yield node
        left += node.children.values()


def _waiting(ns: int, profile: Profile) -> str:
    return threads(ns / profile.span_ns) if profile.span_ns else "0"


def _box_svg(box: _Box, profile: Profile, root: _Node, height: int, scale: float) -> str:
    node = box.node
    name = printable(node.step.name)
    y = height - _MARGIN - (box.depth + 1) * _LINE
    share = f"{100 * node.ns / root.ns:.2f}%"
    change = node.ns - node.before_ns * scale if scale else 0.0
    changed = f", {'+' if change >= 0 else '-'}{duration(abs(round(change)))}" if scale else ""
    tooltip = escape(f"{name} ({duration(node.ns)}, {share}{changed}, {node.waits:,} {_units(profile)[2]})")
    fill = _difference(change / root.ns) if scale else _colour(box, profile.mode)
    fits = int((box.width - 4) / _LETTER_WIDTH)
    text = escape(name if len(name) <= fits else f"{name[: fits - 1]}…" if fits >= 3 else "")
    return (
        f'<g><title>{tooltip}</title><rect x="{_MARGIN + box.x:.2f}" y="{y}" width="{max(box.width - 0.3, 0.1):.2f}" '
        f'height="{_LINE - 1}" fill="{fill}" rx="1"/><text x="{_MARGIN + box.x + 3:.2f}" y="{y + 11}">{text}</text></g>'
    )


def _colour(box: _Box, mode: str) -> str:
    step = box.node.step
    if step in steps.TURNS:
        return _TURN
    if step.is_waker:
        return _WAKER
    if step.is_object:
        return _OBJECT
    if not step.kernel and (box.depth < 2 or not steps.is_function(step)):
        return _NAME
    return _PALETTES[WAKEUP if box.is_wakers else mode][step.kernel]


def _difference(share: float) -> str:
    """Return red for more time than before, blue for less; saturated from a tenth of the total on."""
    pale = round(255 * (1 - min(1.0, abs(share) * 10)))
    return f"#ff{pale:02x}{pale:02x}" if share > 0 else f"#{pale:02x}{pale:02x}ff"


_STYLE = (
    "g rect{cursor:pointer}g:hover>rect{stroke:#000;stroke-width:.6}g>text{pointer-events:none}"
    ".key{cursor:pointer;fill:#2a5db0}.hit>rect{fill:#e64de6}.less>rect{opacity:.45}.out{display:none}"
)
_SCRIPT = r"""
(function () {
  var left = 10, room = 1180, letter = 7;
  var all = Array.from(document.querySelectorAll("#boxes>g")).map(function (g) {
    var rect = g.querySelector("rect"), title = g.querySelector("title").textContent;
    return {g: g, rect: rect, text: g.querySelector("text"), title: title,
      name: title.slice(0, title.lastIndexOf(" (")),
      x: +rect.getAttribute("x") - left, width: +rect.getAttribute("width"), y: +rect.getAttribute("y")};
  });
  var says = document.getElementById("says"), found = document.getElementById("found");
  function place(one, x, width) {
    one.rect.setAttribute("x", left + x); one.rect.setAttribute("width", Math.max(width, 0.1));
    one.text.setAttribute("x", left + x + 3);
    var fits = Math.floor((width - 4) / letter);
    one.text.textContent = one.name.length <= fits ? one.name : fits >= 3 ? one.name.slice(0, fits - 1) + "\u2026" : "";
  }
  function zoom(to) {
    var factor = room / to.width;
    all.forEach(function (one) {
      var below = one.y > to.y && one.x <= to.x + 0.01 && one.x + one.width >= to.x + to.width - 0.5;
      var inside = one.y <= to.y && one.x >= to.x - 0.01 && one.x + one.width <= to.x + to.width + 0.5;
      one.g.classList.toggle("less", below); one.g.classList.toggle("out", !below && !inside);
      if (below) place(one, 0, room);
      if (inside) place(one, (one.x - to.x) * factor, one.width * factor);
    });
  }
  function back() {
    all.forEach(function (one) { one.g.classList.remove("less", "out"); place(one, one.x, one.width); });
  }
  function search(words) {
    var wanted = null, hit = [], width = 0;
    try { wanted = words ? new RegExp(words, "i") : null; }
    catch (wrong) { found.textContent = "no such pattern"; return; }
    all.forEach(function (one) {
      var is = wanted !== null && wanted.test(one.name);
      one.g.classList.toggle("hit", is); if (is) hit.push(one);
    });
    hit.sort(function (a, b) { return a.x - b.x || b.width - a.width; });
    var end = -1;
    hit.forEach(function (one) {
      if (one.x >= end - 0.01) { width += one.width; end = one.x + one.width; }
    });
    found.textContent = wanted ? "matched " + (100 * width / room).toFixed(1) + "%" : "";
  }
  function ask() {
    var words = prompt("search (a regular expression; empty: none)", "");
    if (words !== null) search(words);
  }
  all.forEach(function (one) {
    one.rect.addEventListener("click", function () { zoom(one); });
    one.rect.addEventListener("mouseover", function () { says.textContent = one.title; });
  });
  document.getElementById("back").addEventListener("click", back);
  document.getElementById("search").addEventListener("click", ask);
  window.addEventListener("keydown", function (key) {
    if (key.key === "Escape") back();
    if ((key.ctrlKey || key.metaKey) && key.key === "f") { key.preventDefault(); ask(); }
  });
})();
"""
