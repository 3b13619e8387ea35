"""Help: the keys of this screen, what the numbers mean, what the categories mean, and about this session."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from offtop.model.categories import Categories
from offtop.model.printable import printable
from offtop.ui.glyphs import Glyphs
from offtop.ui.keys import told
from offtop.ui.lines import NO_LINE, Line, Panel, plain

NUMBERS = """
WAITING      average number of threads that waited here: 1.00 is one thread waiting all the time. The row run-queue is \
threads that are ready and have no CPU; all other rows are blocked. A wait in progress counts as it goes on, one that \
began before offtop from offtop's start.
%            share of WAITING as shown; what is hidden stands in the head.
other        in the head: the share of WAITING that no rule knows a category for.
EV/S         waits that ended, each second. In the row `all` and in lists short ones are among them, though \
percentiles and MAX are of those from the minimum up.
p50<= p99<=  half of the waits, and 99 in 100, were at most this long. They come from powers of two of ns, so they are \
upper bounds, up to twice the true value.
SAMPLED      in the head: there is no BPF here, and threads are looked at so often. Their time ready and \
running and the number of waits are the kernel's own from a thread's first look to its last; blocked is the rest, what \
a hypervisor stole included. Where they waited and how long single waits were (at most) are estimates.
CHANGE       with D: average waiting threads more or less than normal (B, --baseline). ! stands behind what is more \
than normal itself strayed: the largest of its six parts less the smallest. Sort by it with < and >.
p99 x        with D: how many times the p99 of normal; new: normal has none of it; gone: there is none of it now. Who \
was started anew is compared with those that had the same name.
MAX          the longest wait that ended. EV/S, p50, p99, MAX and the latency pane are of whole waits, and each of \
those ends in the run queue: where CPUs are short, they tell of that part, too. WAITING parts the two.
NOW          age of the oldest wait in progress, from 100 ms up; <= where it began before offtop did: the thread last \
had a CPU that long ago. 5 lists them all.
RUNNING      with A, and above the list of what you drilled into: where each second of a thread went. READY is its \
run queue. Running time is the kernel's own account, so that the parts add up only if all is right.
REST         what none of these has. What the hypervisor stole and interrupts took is told apart, by the machine's \
shares; the rest is an error, and the cost line tells of it from 2 % on.
VOL/S INV/S  waits a second that a thread began by itself, and those in which it was put aside.
AVG WORST    how long the threads of a process or pool were blocked on average, and the worst of them.
NAME: place  what the wait is for, by rules over the functions of program and kernel, before where it is. The line \
above the keys says what most of it is for, and what to look at next. Your own rules: ~/.config/offtop/rules.toml.
11/12        before a place: 11 of 12 threads of that process or pool wait there now, a convoy. `one futex`: for one \
and the same lock.
who ends waits  2 lists who woke those that waited, with the blocked time of the waits that each ended; WHERE is \
through which code, and whom. It is not always a culprit: who lets go of a lock ends the wait for it.
RUNQ         beside a waker: how long those whom it woke then waited for a CPU, which is no part of its WAITING.
irq softirq  an interrupt, or the work that it leaves behind, ended the wait; whom it hit on the CPU has nothing to \
do with it. In brackets the handler: irq (nvme_irq) is a disk that is done.
timer timeout  a timer; `timeout` is the wait's own: it slept for as long as it wanted to, or nothing came in time.
signal exit  a signal, in brackets who sent it; a process or thread that ended, as a child that was waited for.
(still waiting)  nobody has ended it yet: waits in progress. When one ends, its waker has all of it that is in the \
span.
(it waited for a CPU alone)  nobody woke it: it was put aside for another thread, and then had its turn.
(woken before the minimum)  that was too early to look at who did it; the rest of the wait, to its end, was long \
enough. `(waits below the minimum)` are short altogether, and nobody looks. A lower minimum (m) tells of both.
(nobody saw who woke it) (waker lost)  it was woken before offtop looked, or there was no room to keep who did it: \
then `lost` counts it, unless it was known until others needed the room.
(exited)     of threads that ended, the time stays, but not who woke them.
storm        many woken at once by one waker, most of whom sleep again within 1 ms, often for nothing: two switches \
each. Wake one of them instead of all.
WAITED ON    G: what the waits were for, as a lock (futex), a pipe or a socket. (not known): a wait in progress, or \
one that names nothing.
-- woken by --  in stacks (3 and 4): above it, or before it, where somebody waits; behind it who ended that, from the \
function that did it out to where its program began, and its name last. In a site it stands above.
-- who had waited --  in chains (4): behind it where that waker itself had waited, the last time before; then again \
who ended that. So a chain goes from who waits to who all wait for.
-> name      in stacks of wakers (2): whom it woke.
muted        what X left out of all tables; counted in the head.
name: place  in WHERE: what it waits for, as a rule names it, with whom or what, before the kernel's function and \
the program's. L lists these names; the line above the keys and a site (ENTER in the tree) say what they mean, and \
what to look at next. `a CPU` is the run queue. `offtop rules` tells of the rules.
min          stacks are taken of waits from this length on (m). EV/S, p50, p99 and MAX are of these. Shorter waits are \
counted under `short`, and the part of them that was ready under `run-queue`.
last 60s     WAITING over the last minute, each row scaled to its own highest. The line at the top is the same \
over the last minutes, of the category under the cursor.
N more       rows for which there is no room, summed up: nothing is left out in silence.
~            before a category or a name: looks idle, a server or a worker with nothing to do. Hidden until i, and \
counted in the head.
~ (in stacks)  callers found without the binary's word for it: along frame pointers, or by what looks so. Words in \
brackets, as (no unwind information: libfoo.so), stand for callers that are not known. V tells for each binary how \
much of the time that is, why, and what to do about it; below, About this session tells how each binary is walked.
[not read]   its process, or the file system of its program, did not answer in time: something holds its memory, or \
hangs. `lost` counts such stacks as `unread`; About this session names who hangs. They are back when it goes on.
lost         what the kernel side could not tell, by kind. While it is 0, the sums are exact.
[ended, not named]  threads that ended when there was no room to keep which they were: `lost` counts them, and their \
time is here.
Cost         what offtop takes itself: its BPF programs, and its processes, in percent of one CPU.
"""
"""Words, and what they mean, a line each."""
FILTERS = """
word !word  has it, or has it not, in the name of thread, process, category, user, function, waker or what was waited \
on, or in the command line.
comm= thread= proc=  the name of thread or process, of the thread, of the process. Patterns as in a shell: mysql*; \
commas part alternatives; != excludes.
pid= tid= user=  ids with commas between; a user's name or id.
cat= stack= leaf=  category or group (net, disk); any function of the stack; the kernel's innermost one.
cgroup= container=  the cgroup's path; what the container or unit is called (docker*, mysql.service), or its kind.
cmd=  the command line.
waker= wakerpid= wakertid=  who ended the wait: the name of thread or process, or irq, softirq, timer, timeout, \
signal, exit; its ids. These three find waits in the modes 2, 3 and 4 alone.
why=     what was waited for, as a rule names it (why="*lock"), or the rule's id (why=gil).
object=  what was waited on: its kind (futex, pipe, tcp, unix, epoll, file, child), name (pipe:[77]), address \
(*:5432), state (listen), or who has the other end open on this machine (gzip).
max>10ms p99>=1s  rows of the list by their numbers: max, now, p50, p99; waiting>0.5, evs>1k, threads>10.
"""
"""What a filter may say."""


def help_lines(
    categories: Categories,
    chosen: Mapping[str, str],
    about: Sequence[tuple[str, str]],
    width: int,
    glyphs: Glyphs,
) -> list[Line]:
    """`chosen`: action → keys, where they are remapped."""
    text_width = max(20, width - 2)
    lines: list[Line] = [plain("offtop shows where every thread waits, and for how long.", "title"), NO_LINE]
    lines += [plain("Keys", "title"), *_table([*told(chosen)], 20, text_width)]
    lines += [NO_LINE, plain("Filters (\\), all words must hold", "title"), *_table(_words(FILTERS), 20, text_width)]
    lines += [NO_LINE, plain("What the numbers mean", "title"), *_table(_words(NUMBERS), 13, text_width)]
    lines += [NO_LINE, plain("What the categories mean, and the rules that choose them, tried in order", "title")]
    for category in categories.ids:
        lines += _table([(category, categories.plain.get(category, ""))], 13, text_width)
        lines += [
            Line(((" " * 15, "text"), (part, "dim")))
            for rule in categories.rules_of(category)
            for part in wrap(f"if {rule}", max(10, text_width - 15), subsequent_indent="   ")
        ]
    if about:
        lines += [NO_LINE, plain("About this session", "title")]
        escaped = [(printable(what, glyphs.is_ascii), printable(value, glyphs.is_ascii)) for what, value in about]
        lines += _table(escaped, max(len(what) for what, _ in escaped) + 1, text_width)
    return lines


def _words(text: str) -> list[tuple[str, str]]:
    """What stands before the first two blanks of each line, and after them."""
    lines = [line.partition("  ") for line in text.strip().splitlines()]
    return [(first, rest.strip()) for first, _, rest in lines]


def _table(rows: Sequence[tuple[str, str]], first_width: int, width: int) -> list[Line]:
    lines: list[Line] = []
    for first, text in rows:
        parts = wrap(text, max(10, width - first_width - 1)) or [""]
        if len(first) >= first_width:  # a line of its own
            lines.append(Line(((f" {first}", "key"),)))
            first = ""
        lines.append(Line(((f" {first:<{first_width}}", "key"), (parts[0], "text"))))
        lines += [Line(((" " * (first_width + 1), "text"), (part, "text"))) for part in parts[1:]]
    return lines


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape,q,question_mark,h,f1,f10,enter,space,ctrl+c,ctrl+q", "app.pop_screen", show=False, priority=True
        ),
        Binding("down,j", "scroll_by(1)", show=False),
        Binding("up,k", "scroll_by(-1)", show=False),
        Binding("pagedown", "scroll_page(1)", show=False),
        Binding("pageup", "scroll_page(-1)", show=False),
        Binding("home", "scroll_by(-9999)", show=False),
        Binding("end", "scroll_by(9999)", show=False),
    ]

    def __init__(
        self,
        categories: Categories,
        chosen: Mapping[str, str],
        about: Sequence[tuple[str, str]],
        glyphs: Glyphs,
    ) -> None:
        super().__init__()
        self._categories, self._chosen, self._about, self._glyphs = categories, chosen, about, glyphs
        self._top = 0

    def compose(self):
        yield Panel("help")
        yield Panel("help-keys")

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        width, height = self.size
        panel, bar = self.query_one("#help", Panel), self.query_one("#help-keys", Panel)
        lines = help_lines(self._categories, self._chosen, self._about, width, self._glyphs)
        room = max(1, height - 1)
        self._top = max(0, min(self._top, len(lines) - room))
        panel.styles.height, bar.styles.height = room, 1
        panel.show(lines[self._top : self._top + room])
        shown = min(len(lines), self._top + room)
        keys = plain(f" lines {self._top + 1}-{shown} of {len(lines)}   arrows PgUp PgDn move   ESC q back", "dim")
        is_recorded = any(what == "recorded" for what, _ in self._about)
        bar.show([Line((("RECORDED", "paused"), *keys.spans)) if is_recorded else keys])

    def action_scroll_by(self, lines: int) -> None:
        self._top += lines
        self._draw()

    def action_scroll_page(self, pages: int) -> None:
        self._top += pages * max(1, self.size.height - 2)
        self._draw()
