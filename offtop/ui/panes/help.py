"""Help screen: keys, filters, numbers, category rules, and facts about this session."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from offtop.model.classify.categories import Categories
from offtop.printable import printable
from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.keys import Group, grouped
from offtop.ui.kit.lines import NO_LINE, Line, Panel, marked, plain
from offtop.ui.kit.pane_keys import PANES
from offtop.ui.kit.prompt import Prompt

NUMBERS = """
WAITING      average number of threads waiting here: 1.00 is one thread that waits all the time. The row run-queue \
counts threads that are ready but have no CPU; all other rows are blocked. Waits in progress count; one that began \
before offtop counts from offtop's start.
%            share of the WAITING shown; the header counts what is hidden.
other        in the header: share of WAITING that no category rule matched, or without a stack. Waits in progress have \
none before they are read, which is not in each tick if the line below says `waits scanned every 2 ticks`.
EV/S         waits that ended, per second. The row `all` and the lists include short waits; percentiles and MAX do not.
p50<= p99<=  half, or 99 %, of the waits took at most this long. These come from power-of-two histograms, so they are \
upper bounds: up to twice the true value.
MAX          the longest wait that ended, in full, even if it began before the window. One from before offtop counts \
from when its thread last ran: it may have been shorter. If the kernel does not tell, only what offtop saw counts.
NOW          age of the oldest wait in progress, from 100 ms up. <= means that it began before offtop: the thread last \
ran that long ago. 5 lists all of them.
whole waits  EV/S, p50, p99, MAX and the latency pane measure from switch-out to switch-in, run queue included. Only \
WAITING separates blocked time from the run queue.
RUNNING READY BLOCKED  with A, and above the list you drilled into: where each second of a thread went. READY is its \
run queue. RUNNING is the kernel's own counter, so the parts add up only if all of them are right.
REST         with A: what is in none of these parts. Stolen and interrupt time are estimated from the machine's \
shares; the remainder is an error, and the cost line reports it from 2 % up.
VOL/S INV/S  with A: voluntary waits and preemptions, per second.
AVG WORST    with A: blocked time of the threads of a program, process or pool: on average, and of the worst thread.
THR          threads of the program or process.
x18          before a name: a program of 18 processes, or a pool of 18 threads, summed up in one row. Enter lists \
them, + lists all one by one, - folds them again. A program has the processes of one name that exist or waited in the \
window. One that is pinned has a row of its own.
last 60s     WAITING over the last minute, scaled to each row's own maximum. The line above shows the category under \
the cursor over the whole history.
N more       rows that do not fit, summed up.
WHERE        the cause, then the innermost kernel function and the callers in the program. If a row waits in several \
locations: the largest, `11 the WAL flush · 5 a row lock`, each with its average waiting threads: in the window, or \
for threads and pools in the last second in which they waited. Locations below 10 % of the row, except the largest, \
are left out.
cause:       what the thread waits for, named by the cause rules, before the kernel function. L lists all causes; the \
line above the keys explains the largest one. Your own rules go into rules.toml next to the config file: \
~/.config/offtop/rules.toml, unless you name another.
11/12        before a location: 11 of the 12 threads of that process or pool wait there now, and hardly elsewhere (a \
convoy). `one futex`: all of them on the same lock.
short        waits below the minimum (m): counted, but without a stack. Their run-queue part is under run-queue.
min          the shortest wait that gets a stack (m). p50, p99 and MAX count waits from this length up.
idle ~       before a category or a name: an idle wait, of a server or worker with nothing to do. Hidden until i, and \
counted in the header.
standing     a wait for a pipe, socket, child, signal or terminal, a sleep or a poll, that has gone on for a minute or \
began before offtop, of a thread that no other waits for. It counts as idle from the tick in which offtop notices that.
muted        what you muted with X; counted in the header.
exact        in the header: nothing was lost or left out. Otherwise it says what is missing.
lost         what the BPF programs could not record, by kind. If it is 0, all sums are exact. seconds: how long there \
was no connection to the host; no average includes that time.
verified     a user stack that is the thread's last one, because all that unwinding would read is the same. One in 64 \
is unwound as well: if that finds another stack, `lost` counts it as `memos`. About this session has the numbers. \
Kernel stacks are verified only with --verify-kernel-stacks: the header says so then, instead of `exact`.
DISCONNECTED  in the header, with --host: nothing arrives. The picture stays, and offtop connects again.
stacks from 4ms up  there are so many waits that stacks would cost more than --cpu-budget allows: shorter waits count \
as short. Sums stay exact, and waits of 64ms always have stacks. --exact-stacks takes all.
over budget  offtop uses more than --cpu-budget although it leaves out what it can: watch less, with -p.
Cost         CPU used by offtop: its BPF programs and its processes, in percent of one CPU.
SAMPLED      in the header: no BPF here, so offtop samples /proc, this often. Run and ready time and the number of \
waits are the kernel's own counters. Where threads waited, and for how long, are estimates.
CHANGE       with D: average waiting threads more or less than in the baseline. ! marks a change larger than the \
baseline's own variation (its largest sixth minus its smallest).
p99 x        with D: p99 as a multiple of the baseline's; new: not in the baseline; gone: only in the baseline.
x3 of the baseline  with D, before a suspect: three times as many threads wait behind it as then. new since 02:01:00: \
the baseline has none of that kind and these names. 6 lists those that are gone. Usual waits are no suspects.
~ in stacks  callers that were guessed: from frame pointers, or from what looks like a return address. Brackets, as in \
(no unwind information: libfoo.so), stand for missing callers. V shows why, and the fix.
[not read]   in stacks: the process or its file system did not answer in time. `lost` counts these stacks as `unread`; \
About this session names what hangs.
[ended, not named]  threads that exited when there was no room for their record: `lost` counts them, and their time \
is in this row.
wakers       2 lists who woke the waiting threads, with the blocked time that each ended. The waker need not be the \
cause: the thread that released a lock woke only the next waiter.
RUNQ         with 2: how long the woken threads then waited for a CPU; not part of WAITING.
irq softirq  woken by an interrupt handler, named in brackets: irq (nvme_irq) is a disk that completed a request. The \
thread that the interrupt hit is not the waker.
timer timeout  woken by a timer; timeout: by the wait's own timer, so it slept as long as it asked for, or nothing \
arrived in time.
signal exit  woken by a signal (in brackets: its sender), or by the exit of a thread or process.
(still waiting)  a wait in progress: it has no waker yet.
(waited only for a CPU)  the thread was preempted and never blocked, so it has no waker.
(woken before the minimum)  it was woken too early for offtop to record the waker, then waited for a CPU. A lower \
minimum (m) records it.
(wakeup not recorded) (waker lost)  the wakeup came before offtop started to record wakers, or there was no room to \
store it (counted as lost).
(exited)     threads that exited: their time remains, but not their wakers.
storm        one waker that woke many threads, most of which slept again within 1 ms: two wasted context switches each.
-- woken by --  in stacks of modes 3 and 4: the waiting thread before it, its waker's stack after it.
-- its last wait --  in chains (4): where that waker had waited before, and then who ended that wait.
-> name      in stacks of mode 2: the thread that was woken.
OP FILE WHO  with 7: what one process did with one file, by one system call, whether or not it left the CPU. They are \
counted only while the list is open. Sockets, pipes and terminals do not count.
TIME         with 7: time in these calls; a call in progress counts as it goes. CALLS/S, MB/S, p50, p99 and MAX are of \
calls that returned.
OP DISK WHO  with 8: requests of one operation that one process had done on one disk; H lists threads. [flush-8:0] is \
a kernel worker, here the one that writes back to disk 8:0. They are counted only while the list is open.
QUEUE<= DISK<=  with 8: the 99th percentile of the time in the queue, until the disk got the request, and in the disk. \
TIME is both together; a request in progress counts as it goes. The lines of the disks count everybody's requests. \
1.0/s of 3.1/s, in the title: the rows below have 1.0/s; the others are offtop's, or those that a filter leaves out.
QUEUED IN-DISK %UTIL  with 8: requests in the queue and in the disk now; share of the time with any request. These \
and TIME include discards and flushes, which r/s and w/s do not.
%OFF-CPU     with 7: the part of TIME that was off CPU. Data that was in memory needs hardly any.
WAITED ON    with G: the lock, pipe, socket or file. (unknown): a wait in progress, or one without an object.
"""
"""One term and its meaning per line, for help and manual."""
FILTERS = """
word !word  has the word, or does not, in a name: thread, process, category, user, function, waker, object, cause; or \
in the command line. Filters ignore case
comm= thread= proc=  name of the thread or process, of the thread, of the process. Patterns as in a shell (mysql*), \
commas between alternatives; != excludes
pid= tid= user=  ids with commas between them; a user's name or id
cat=  category, or a group of them: net, disk
stack= leaf=  any function of the stack; the innermost kernel function
why=  cause: its name (why="*lock") or the id of its rule (why=gil)
object=  what the thread waits on: kind (futex, pipe, tcp, unix, epoll, file, child), name (pipe:[77]), address \
(*:5432), state (listen), or the process at its other end (gzip)
waker= wakerpid= wakertid=  who ended the wait, in modes 2, 3 and 4: name of thread or process, or irq, softirq, \
timer, timeout, signal, exit; its ids
container= cgroup=  container or unit name (docker*, mysql.service) or kind (docker, unit); cgroup path
cmd=  command line
file= op= bytes>1M  file operations (7): path or name of the file, system call, bytes in the window. In other modes \
file= chooses waits on that file, and op= chooses nothing
dev= op= bytes>1M  requests to disks (8): name of the disk (sd*), operation (read, sync-write, flush), bytes
max>10ms p99>=1s  rows of the list, by max, now, p50, p99 (a bare number is ms); also waiting>0.5, evs>1k, threads>10
"""
"""One kind of filter and its meaning per line, for help and manual."""


def help_lines(
    pane: str,
    categories: Categories,
    chosen: Mapping[str, str],
    about: Sequence[tuple[str, str]],
    width: int,
    glyphs: Glyphs,
) -> list[Line]:
    """`pane`: View.focus, whose keys come first. `chosen`: action → keys, if remapped."""
    text_width = max(20, width - 2)
    lines: list[Line] = [plain("offtop shows where every thread waits, and for how long.", "title"), NO_LINE]
    own = PANES[pane]
    groups = [Group(f"Keys in this pane: {own.title}", own.rows(chosen))]
    groups += [Group(f"Keys: {group.title}", group.rows) for group in grouped(chosen)]
    for group in groups:
        lines += [plain(group.title, "title"), *_table(group.rows, 20, text_width), NO_LINE]
    lines += [plain("Filters (\\): all words must match", "title"), *_table(words(FILTERS), 20, text_width)]
    lines += [NO_LINE, plain("What the numbers mean", "title"), *_table(words(NUMBERS), 13, text_width)]
    lines += [NO_LINE, plain("Categories, and the rules that choose them, in this order", "title")]
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


def words(text: str) -> list[tuple[str, str]]:
    """Split each line at the first two blanks: (term, meaning)."""
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
        Binding("escape,q,question_mark,h,f1,f10,enter,space,ctrl+c,ctrl+q", "close", show=False, priority=True),
        Binding("n", "next_hit(1)", show=False),
        Binding("N", "next_hit(-1)", show=False),
        Binding("down,j", "scroll_by(1)", show=False),
        Binding("up,k", "scroll_by(-1)", show=False),
        Binding("pagedown", "scroll_page(1)", show=False),
        Binding("pageup", "scroll_page(-1)", show=False),
        Binding("home", "scroll_by(-9999)", show=False),
        Binding("end", "scroll_by(9999)", show=False),
    ]

    def __init__(
        self,
        pane: str,
        categories: Categories,
        chosen: Mapping[str, str],
        about: Sequence[tuple[str, str]],
        glyphs: Glyphs,
    ) -> None:
        super().__init__()
        self._pane, self._categories, self._chosen, self._about, self._glyphs = pane, categories, chosen, about, glyphs
        self._top = 0
        self._word = ""
        self._prompt = Prompt(glyphs)

    def compose(self) -> ComposeResult:
        yield Panel("help")
        yield Panel("help-keys")
        yield self._prompt

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    async def take(self, event: events.Key) -> bool:
        """Handle a key of the search at once; return whether it was one.

        Handling it later would lose keys of a burst.
        """
        if self._prompt.is_open:
            return await self._prompt.take(event)
        if event.key in ("slash", "f3"):
            self._prompt.ask("search: ", self._searched)
            return True
        return False

    def paste(self, text: str) -> None:
        if self._prompt.is_open:
            self._prompt.paste(text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a word is typed, no key but those of the search line does anything."""
        return not self._prompt.is_open or action == "close"

    def _lines(self) -> list[Line]:
        return help_lines(self._pane, self._categories, self._chosen, self._about, self.size.width, self._glyphs)

    def _draw(self) -> None:
        _, height = self.size
        panel, bar = self.query_one("#help", Panel), self.query_one("#help-keys", Panel)
        lines = self._lines()
        room = max(1, height - 1)
        self._top = max(0, min(self._top, len(lines) - room))
        panel.styles.height, bar.styles.height = room, 1
        self._prompt.styles.offset = 0, height - 1
        panel.show([marked(line, self._word) for line in lines[self._top : self._top + room]])
        shown = min(len(lines), self._top + room)
        found = f"   n N next {self._word!r}" if self._word else "   / search"
        keys = plain(
            f" lines {self._top + 1}-{shown} of {len(lines)}   arrows PgUp PgDn move{found}   ESC q back", "dim"
        )
        is_recorded = any(what == "recorded" for what, _ in self._about)
        bar.show([Line((("RECORDED", "paused"), *keys.spans)) if is_recorded else keys])

    def action_close(self) -> None:
        if self._prompt.is_open:
            self._prompt.drop()
        else:
            self.dismiss()

    def _searched(self, word: str) -> str | None:
        """Go to the first line with the word, starting at the top of the screen; without a word, to the next match."""
        if not word.strip():
            self.action_next_hit(1)
            return None
        self._word = word.strip()
        if self._word and not self._hits():
            self._word = ""
            return f"no line has {word.strip()!r}; search"
        if self._word:
            self._top -= 1
            self.action_next_hit(1)
        self._draw()
        return None

    def action_next_hit(self, step: int) -> None:
        hits = self._hits()
        if not hits:
            return
        after = [line for line in hits if (line > self._top if step > 0 else line < self._top)]
        around = hits[0] if step > 0 else hits[-1]
        self._top = (after[0] if step > 0 else after[-1]) if after else around
        self._draw()

    def _hits(self) -> list[int]:
        """Numbers of the lines that have the word."""
        word = self._word.casefold()
        lines = self._lines()
        return [
            at for at, line in enumerate(lines) if word and word in "".join(text for text, _ in line.spans).casefold()
        ]

    def action_scroll_by(self, lines: int) -> None:
        self._top += lines
        self._draw()

    def action_scroll_page(self, pages: int) -> None:
        self._top += pages * max(1, self.size.height - 2)
        self._draw()
