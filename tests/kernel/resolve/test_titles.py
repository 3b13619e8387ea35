"""Test which command lines are titles, and that they are read of processes that wait."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.resolve import titles as module
from offtop.kernel.resolve.titles import TitlesWorker, title_in
from offtop.model.values.blockers import FILE_LOCK, Blocker
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import Waiting
from offtop.model.values.waits import Waits
from tests.kernel import programs
from tests.kernel.hangs import stuck
from tests.kernel.programs import until
from tests.kernel.reads import GUARDED

TITLED = r"""
#include <string.h>

int main(int count, char **words)
{
	size_t room = words[count - 1] + strlen(words[count - 1]) - words[0];

	for (int n = 0;; n++) {
		memset(words[0], 0, room);
		snprintf(words[0], room, "titled: work %d", n);
		next();
	}
}
"""
"""Writes a title over its command line, and another one at each stop."""


def waiting(*pids: int) -> Waits:
    """Return a wait in a system call of each of these processes."""
    of_pids = [Waiting(SiteKey(pid, pid, 3, 0), 1, 1, call=0) for pid in pids]
    return Waits.of({ThreadKey(one.site.pid, one.site.tid): one for one in of_pids})


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Generator[TitlesWorker]:
    monkeypatch.setattr(module, "_ROUND_S", 0.01)
    made = TitlesWorker(Catalog(), GUARDED)
    yield made
    made.close()


@pytest.fixture(scope="module")
def titled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("built") / "titled", TITLED)


@pytest.mark.parametrize(
    ("command", "comm", "title"),
    [
        (
            b"postgres: bench bench [local] UPDATE waiting\0\0\0\0",
            b"postgres",
            "postgres: bench bench [local] UPDATE waiting",
        ),
        (b"nginx: worker process", b"nginx", "nginx: worker process"),
        (b"php-fpm: pool www                 \0\0", b"php-fpm8.2", "php-fpm: pool www"),
        (b"sshd: root@pts/0\0", b"sshd", "sshd: root@pts/0"),
        (b"a-very-long-name-indeed: busy\0", b"a-very-long-nam", "a-very-long-name-indeed: busy"),
        (b"/usr/lib/postgresql/15/bin/postgres\0-D\0/data\0", b"postgres", ""),
        (b"cat\0nginx: worker process\0", b"cat", ""),
        (b"echo: hello\0", b"other", ""),
        (b": hello\0", b"other", ""),
        (b"", b"kthreadd", ""),
    ],
)
def test_title_is_one_text_that_begins_with_the_name_of_the_program(command: bytes, comm: bytes, title: str) -> None:
    assert title_in(command, comm) == title


def test_title_of_a_process_that_waits_is_read_again_and_again(worker: TitlesWorker, titled: Path) -> None:
    def has(title: str) -> bool:
        worker.find(waiting(program.pid, os.getpid()), {})
        return dict(worker.titles) == {program.pid: title}

    with programs.running([titled, "room for a title"]) as program:
        until(lambda: has("titled: work 0"))
        program.go()
        until(lambda: has("titled: work 1"))
    until(lambda: not (worker.find(waiting(program.pid), {}), worker.titles)[1])


def test_title_of_a_process_that_waited_once_is_read_while_it_runs(worker: TitlesWorker, titled: Path) -> None:
    with programs.running([titled, "room for a title"]) as program:
        until(lambda: (worker.find(waiting(program.pid), {}), program.pid in worker.titles)[1])
        program.go()
        until(lambda: (worker.find(waiting(os.getpid()), {}), worker.titles[program.pid])[1] == "titled: work 1")


def test_title_of_a_blocker_is_read_although_it_does_not_wait(worker: TitlesWorker, titled: Path) -> None:
    with programs.running([titled, "room for a title"]) as program:
        holds = {ThreadKey(1, 1): (Blocker(program.pid, 0, FILE_LOCK, True),)}
        until(lambda: (worker.find(Waits.of({}), holds), program.pid in worker.titles)[1])


def test_title_that_was_not_read_in_time_stays(worker: TitlesWorker, titled: Path) -> None:
    def find() -> bool:
        worker.find(waiting(program.pid), {})
        return program.pid in worker.titles

    ask, late = Channel.ask, 0

    def too_late(*_: object) -> None:
        nonlocal late
        late += 1
        raise TimeoutError

    with programs.running([titled, "room for a title"]) as program:
        until(find)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Channel, "ask", too_late)
            until(lambda: find() and late >= 3)
        assert Channel.ask is ask
        program.go()
        until(lambda: find() and worker.titles[program.pid] == "titled: work 1")


@pytest.mark.kernel
def test_process_that_hangs_its_readers_delays_no_other_title(
    worker: TitlesWorker, titled: Path, tmp_path: Path
) -> None:
    with stuck(tmp_path) as hung, programs.running([titled, "room for a title"]) as program:
        until(lambda: (worker.find(waiting(hung.pid, program.pid), {}), program.pid in worker.titles)[1])
        program.go()
        until(
            lambda: (
                (worker.find(waiting(hung.pid, program.pid), {}), worker.titles.get(program.pid))[1] == "titled: work 1"
            )
        )

    assert hung.pid not in worker.titles
