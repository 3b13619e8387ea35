"""Suspects are listed below the header, and 6 opens their chains, hop by hop."""

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from textual.binding import Binding

from offtop import paths
from offtop.model.classify import causes, suspect_weights
from offtop.model.classify.causes import Fixed
from offtop.model.values.blockers import MUTEX, Blocker
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Snapshot
from offtop.model.viewmodel.cause_picture import CausesPicture
from offtop.model.viewmodel.common import Common
from offtop.ui.kit.glyphs import UNICODE
from offtop.ui.panes.help import Help
from offtop.ui.panes.suspects import NOTHING, HopText, Suspects, SuspectText, lines, without_suspects
from offtop.units import NS_PER_S
from tests.ui.scripted import ScriptedSource, Waits
from tests.ui.shown import CATEGORIES, asynchronous, go_on, pane, screen, shown, top, until

WEIGHTS = replace(suspect_weights.parse(paths.suspects().read_text()), settle_ns=0)
_LOCKED = ("__lll_lock_wait", "pthread_mutex_lock", "work")
TABLE = (
    *(
        Waits("shop", 40, "worker", 41 + n, "lock", "futex_wait", waits_on=True, older_ms=5000, read=_LOCKED)
        for n in range(3)
    ),
    Waits("shop", 40, "holder", 50, "fsync", "do_fsync", waits_on=True, older_ms=5000, read=("fsync", "flush")),
)


class HeldSource(ScriptedSource):
    """Three workers wait for a lock that the holder has."""

    def after(self, seconds: int) -> Snapshot:
        held = {ThreadKey(40, 41 + n): (Blocker(40, 50, MUTEX, True),) for n in range(3)}
        return replace(super().after(seconds), blockers=held)


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (220, 60)])
@asynchronous
async def test_sentence_stands_under_the_head_whole(size: tuple[int, int]) -> None:
    async with shown(HeldSource(TABLE, ticks=4), size, weights=WEIGHTS) as (app, _):
        sentence = "! 3 threads of shop wait for a mutex (9.00s), held by holder(50), which waits for"

        def is_whole() -> bool:
            lines = [line.removesuffix(" (6)") for line in pane(app, "suspects")]
            return " ".join(" ".join(lines).split()).startswith(sentence)

        await until(is_whole)  # a tick can be drawn before its suspects are found
        assert top(app, "suspects") == len(pane(app, "head"))


@asynchronous
async def test_machine_on_which_nobody_waits_for_a_lock_says_so_in_one_line() -> None:
    async with shown(ScriptedSource(ticks=4), weights=WEIGHTS) as (app, pilot):
        assert screen(app).count("nothing stands out") == 1
        await pilot.press("6", "enter")
        assert isinstance(app.screen, Suspects)
        await pilot.press("escape")
        assert not isinstance(app.screen, Suspects)


@asynchronous
async def test_queue_of_short_waits_has_no_suspect_but_is_named() -> None:
    rule = '[[rule]]\nid = "m"\nname = "a mutex"\nsays = "x"\nown = ["work"]\n'
    rules = Fixed(causes.parse(rule, "rules.toml", "Mend it", CATEGORIES.ids))
    short = [Waits("shop", 40, f"w{n}", n, "lock", "futex_do_wait", ("work",), (90,) * 9) for n in range(41, 44)]
    for table, says in (
        (short, "nobody is known to hold up many; 100% wait for a mutex (shop)"),
        (short[:1], "nothing stands out"),
    ):
        async with shown(ScriptedSource(table, ticks=4), weights=WEIGHTS, rules=rules) as (app, pilot):
            assert says in screen(app)
            await pilot.press("6")
            assert any(line.strip() == says for line in screen(app))


@asynchronous
async def test_6_shows_the_whole_sentence_that_has_no_room_above_the_panes() -> None:
    rule = '[[rule]]\nid = "m"\nname = "the lock of the table of all sessions"\nsays = "x"\nown = ["work"]\n'
    rules = Fixed(causes.parse(rule, "rules.toml", "Mend it", CATEGORIES.ids))
    short = [Waits("shop", 40, f"w{n}", n, "lock", "futex_do_wait", ("work",), (90,) * 9) for n in range(41, 44)]
    async with shown(ScriptedSource(short, ticks=4), (80, 24), weights=WEIGHTS, rules=rules) as (app, pilot):
        whole = "nobody is known to hold up many; 100% wait for the lock of the table of all sessions (shop)"
        assert pane(app, "suspects") == [f"{whole[:79]}…"]
        await pilot.press("6")
        assert whole in " ".join(" ".join(screen(app)).split())


@asynchronous
async def test_6_shows_the_chain_and_enter_goes_to_the_thread_of_a_hop() -> None:
    async with shown(HeldSource(TABLE, ticks=4), weights=WEIGHTS) as (app, pilot):
        await pilot.press("6")
        text = "\n".join(screen(app))
        assert "3.00 waiting: 3 threads of shop wait for a mutex" in text
        assert "9.00s 3 threads of shop: wait for a mutex" in text
        assert "exact: the next one is the owner that stands in the mutex" in text
        assert "9.00s holder(50): waits for data to be durable" in text
        assert any(line.startswith(">  9.00s holder(50)") for line in map(str.strip, screen(app)))
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        await pilot.press("escape", "enter")
        assert (app.view.pid, app.view.thread) == (40, ThreadKey(40, 50)), "the cursor begins at what must act"
        assert not isinstance(app.screen, Suspects)


@pytest.mark.parametrize(
    ("owners", "holders"),
    [((40,), ["it is"]), ((41, 40), ["the next one is", "the first one is"])],
    ids=["of one", "of two"],
)
@asynchronous
async def test_6_says_who_holds_the_locks_of_a_circle(owners: Sequence[int], holders: list[str]) -> None:
    class Circle(ScriptedSource):
        def after(self, seconds: int) -> Snapshot:
            held = {ThreadKey(40, 40 + n): (Blocker(40, owner, MUTEX, True),) for n, owner in enumerate(owners)}
            return replace(super().after(seconds), blockers=held)

    made = [TABLE[0]._replace(comm=f"w{n}", tid=40 + n) for n in range(len(owners))]
    async with shown(Circle(made, ticks=4), weights=WEIGHTS) as (app, pilot):
        await pilot.press("6")
        text = "\n".join(screen(app))
        assert [f"exact: {one} the owner that stands in the mutex" in text for one in holders] == [True] * len(owners)


@pytest.mark.parametrize(("keymap", "key"), [({}, "5"), ({"stuck": "ctrl+g"}, "ctrl+g")])
@asynchronous
async def test_keys_that_hints_name_work_in_the_overlay(keymap: dict[str, str], key: str) -> None:
    async with shown(HeldSource(TABLE, ticks=4), weights=WEIGHTS, keymap=keymap) as (app, pilot):
        assert "stuck" not in app.layout.panels
        await pilot.press("6", key)
        assert not isinstance(app.screen, Suspects)
        assert any("do_fsync" in line for line in pane(app, "stuck"))


def test_every_key_in_a_hint_is_one_that_works_in_the_overlay() -> None:
    rules = causes.parse(paths.rules().read_text(), "rules.toml", "", CATEGORIES.ids).rules
    named = {key for rule in rules for key in re.findall(r"key (\w)\b", rule.next)}
    bound = {key for one in Suspects.BINDINGS if isinstance(one, Binding) for key in one.key.split(",")}
    assert len(named) > 5
    assert named <= bound


@asynchronous
async def test_enter_on_a_hop_that_only_waits_idle_shows_its_waits() -> None:
    idle = Waits("shop", 40, "holder", 50, "poll", "do_epoll_wait", waits_on=True, older_ms=5000)
    async with shown(HeldSource((*TABLE[:-1], idle), ticks=4), weights=WEIGHTS) as (app, pilot):
        await pilot.press("6", "enter")
        assert (app.view.thread, app.view.idle_shown) == (ThreadKey(40, 50), True)
        assert any("do_epoll_wait" in line for line in pane(app, "tree"))
    async with shown(HeldSource(TABLE, ticks=4), weights=WEIGHTS) as (app, pilot):
        await pilot.press("6", "enter")
        assert (app.view.thread, app.view.idle_shown) == (ThreadKey(40, 50), False)


@pytest.mark.parametrize("size", [(80, 14), (40, 8), (30, 5)])
@asynchronous
async def test_small_screens_have_one_line_or_none(size: tuple[int, int]) -> None:
    async with shown(HeldSource(TABLE, ticks=4), size, weights=WEIGHTS) as (app, pilot):
        # On a busy machine an alert that the screen was late may take that line for some seconds.
        await until(lambda: sum(line.startswith("! ") for line in screen(app)) == (size[1] >= 14))
        await pilot.press("6", "end")
        assert all(len(line) <= size[0] for line in screen(app))


def test_lines_are_shared_among_suspects_and_names_are_escaped() -> None:
    hop = HopText(ThreadKey(1, 1), "a(1)", "sleeps", "", 0, "", True)
    long = SuspectText(
        "flock\x1b[2J(10) waits for job.lock (9.00s), held by sleep(31822), which sleeps", "why", 1.0, [hop]
    )
    drawn = lines([long] * 2, 63, 3, UNICODE)
    assert len(drawn) == 3
    text = ["".join(part for part, _ in line.spans).rstrip() for line in drawn]
    assert text[0].startswith("! flock\\x1b[2J(10) waits for job.lock (9.00s), held by")
    assert text[1] == "  sleep(31822), which sleeps. Next: why."
    assert text[2].endswith("…")
    text = ["".join(part for part, _ in line.spans).rstrip() for line in lines([long] * 3, 63, 2, UNICODE)]
    assert text[0].endswith(" +2 (6)")
    assert text[1] == "  sleep(31822), which sleeps. Next: why."
    assert [len(lines([long] * n, 200, 5, UNICODE)) for n in (0, 1, 5)] == [1, 1, 5]
    ends = long._replace(brief="flock(10) waits for job.lock, in the end for a(1)")
    assert "in the end for a(1)" in "".join(part for part, _ in lines([ends], 80, 1, UNICODE)[0].spans)
    assert "in the end" not in "".join(part for part, _ in lines([ends], 200, 1, UNICODE)[0].spans)
    assert lines([long], 80, 0, UNICODE) == []
    slow = long._replace(next=40 * "why ", brief="flock(10) waits for job.lock, in the end for a(1) on this machine")
    text = ["".join(part for part, _ in line.spans).rstrip() for line in lines([slow] * 2, 63, 2, UNICODE)]
    assert text[0].endswith(" +1 (6)")
    assert text[1] == "  sleep(31822), which sleeps"


STOOD = (
    *(Waits("tail", 60 + n, "tail", 60 + n, "pipe", "pipe_read", waits_on=True, older_ms=9000) for n in range(3)),
    Waits("nginx", 700, "nginx", 700, "poll", "do_epoll_wait", waits_on=True),
    Waits("shop", 100, "worker-1", 101, "lock", "futex_do_wait", ("serve", "main"), (200, 200)),
)


@asynchronous
async def test_standing_waits_are_hidden_and_counted_until_i() -> None:
    async with shown(ScriptedSource(STOOD, ticks=4), (160, 50), weights=WEIGHTS) as (app, pilot):
        text = "\n".join(screen(app))
        assert "Waiting 0.40 = 0.40 blocked + 0.00 run queue   +4.00 idle hidden, 3.00 of it standing (i)" in text
        assert "tail" not in text
        assert "pipe" not in text
        await pilot.press("5")
        assert "and 4 idle hidden, 3 of them standing (i)" in "\n".join(screen(app))
        await pilot.press("i")
        text = "\n".join(screen(app))
        assert "~pipe" in text
        assert "standing: normal while there is no work" in text
        await pilot.press("5")
        text = "\n".join(screen(app))
        assert "Waiting 4.40" in text
        assert "~pipe" in text


@asynchronous
async def test_paused_screen_names_a_suspect_that_has_just_gone() -> None:
    ended = [one._replace(ends=3) for one in TABLE]
    async with shown(HeldSource(ended, ticks=5), (160, 50), weights=WEIGHTS) as (app, pilot):
        says = "3 threads of shop wait for a mutex"
        assert says not in "\n".join(screen(app))
        await pilot.press("left_square_bracket", "left_square_bracket")
        lines_of: set[str] = set()
        for _ in range(4):
            lines_of |= {line.strip() for line in screen(app) if says in line}
            await pilot.press("right_square_bracket")
        assert any(line.startswith(f"one tick earlier: {says}") for line in lines_of), lines_of


@asynchronous
async def test_paused_screen_keeps_its_suspects_longer_than_the_history_does() -> None:
    source = HeldSource(TABLE, ticks=8)
    async with shown(source, history_ns=10 * NS_PER_S, weights=WEIGHTS) as (app, pilot):
        await pilot.press("space")
        before = pane(app, "suspects")
        assert before[0].startswith("! 3 threads of shop wait for a mutex (13.0s)")
        await go_on(app, pilot, source, 30)
        assert pane(app, "suspects") == before
        app.controllers.suspect_report._kept = {}  # pyright: ignore[reportPrivateUsage]
        await go_on(app, pilot, source, 31)
        await until(lambda: pane(app, "suspects")[0] == "what held others up at that time is no longer kept")


@asynchronous
async def test_b_says_how_many_suspects_the_baseline_has() -> None:
    async with shown(HeldSource(TABLE, ticks=4), (160, 50), weights=WEIGHTS) as (app, pilot):
        await until(lambda: "3 threads of shop wait for a mutex" in "\n".join(pane(app, "suspects")))
        await pilot.press("B")
        await until(lambda: app.view.baseline is not None)
        assert screen(app)[-2].endswith(", with 1 suspect; D compares with it")


@asynchronous
async def test_without_suspects_nothing_is_known_to_stand() -> None:
    async with shown(ScriptedSource(STOOD, ticks=4), (160, 50)) as (app, _):
        assert "Waiting 3.40 = 3.40 blocked + 0.00 run queue   +1.00 idle hidden (i)" in "\n".join(screen(app))


def test_waits_without_a_stack_that_are_likely_idle_are_told_if_nothing_stands_out() -> None:
    common = SimpleNamespace(span_ns=NS_PER_S)
    for idle, says in (("about 59.0 threads are", "nothing stands out; about 59.0 threads are"), ("", NOTHING)):
        assert without_suspects(CausesPicture({}, [], {}, idle), cast(Common, common)) == says
