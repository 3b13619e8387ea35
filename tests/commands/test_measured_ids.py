"""`-p` and `-t` take several ids, in one list or in several options."""

import argparse

import pytest

from offtop.commands.option_groups import add_measuring_options


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_measuring_options(parser)
    return parser.parse_args(words)


def test_options_given_twice_add_up() -> None:
    args = parsed("-p", "7,5", "-t", "9", "-p", "5", "-p", "web:1", "-t", "8")
    assert (args.pid, args.tid) == ((5, 7, ("web", 1)), (9, 8))
    assert parsed().pid == ()


def test_too_many_ids_in_all_are_refused() -> None:
    with pytest.raises(argparse.ArgumentError, match=r"2,000 ids are too many \(at most 1024\)"):
        parsed("-t", ",".join(map(str, range(1, 1001))), "-t", ",".join(map(str, range(1001, 2001))))
