"""Run the benchmarks and print the results. Exit with status 1 if a limit is exceeded."""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench import (
    accuracy,
    blocked,
    gdb,
    memos,
    merges,
    operations,
    record,
    scale,
    screen,
    simulated,
    start,
    storm,
    switch,
    ui,
    unwind,
    wakers,
    walk,
    workload,
)
from bench.answer import Answer, UnanswerableError
from bench.machine import described, wait_for_quiet

_QUESTIONS: dict[str, Callable[[Path], Answer]] = {
    "switch": switch.ask,
    "wakers": wakers.ask,
    "accuracy": accuracy.ask,
    "operations": operations.ask,
    "operation-cost": operations.ask_cost,
    "blocked": blocked.ask,
    "start": start.ask,
    "ui": ui.ask,
    "screen": screen.ask,
    "record": record.ask,
    "walk": walk.ask,
    "scale": scale.ask,
    "idle": scale.ask_mostly_idle,
    "reading": scale.ask_reading,
    "short": scale.ask_short,
    "simulated": simulated.ask,
    "storm": storm.ask,
    "unwind": unwind.ask,
    "stacks": gdb.ask,
    "merges": merges.ask,
    "memos": memos.ask,
    "kernel-memos": memos.ask_kernel,
}
"""Benchmarks by name. Each is called with the path of the compiled bench/waits.c."""
_QUIET_SECONDS = 60.0
"""Longest total time to wait for the machine to become quiet."""
_MOST_SECONDS = 60 * 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="what offtop costs, next to other tools")
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(_QUESTIONS)} (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    args = parser.parse_args()
    if unknown := set(args.questions) - set(_QUESTIONS):
        parser.error(f"no such question: {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        parser.error("this needs root: sudo .venv/bin/python -m bench")

    signal.signal(signal.SIGALRM, _on_timeout)
    signal.alarm(_MOST_SECONDS)
    figures: dict[str, object] = {"machine": described()}
    missed: list[str] = []
    began = time.monotonic()
    print(f"offtop's bench on {described()}")
    patience = _QUIET_SECONDS
    with tempfile.TemporaryDirectory(prefix="offtop-bench-") as directory:
        try:
            waits = workload.build(Path(directory))
        except UnanswerableError as error:
            parser.error(str(error))
        for name in args.questions or _QUESTIONS:
            noise, waited = wait_for_quiet(patience)
            patience -= waited
            print(f"\n== {name} ({noise})", flush=True)
            try:
                answer = _QUESTIONS[name](waits)
            except UnanswerableError as error:
                missed.append(f"{name}: not measured, {error}")
                print(missed[-1], flush=True)
                continue
            print("\n".join([answer.title, "", *answer.lines, *map(str, answer.bars)]), flush=True)
            missed += [f"{name}: {bar}" for bar in answer.bars if not bar.holds]
            bars = [
                {"promise": b.promise, "measured": b.measured, "most": b.most, "holds": b.holds} for b in answer.bars
            ]
            figures[name] = {**answer.figures, "bars": bars, "noise": noise}
    print(f"\n{time.monotonic() - began:.0f} s. " + ("All bars hold." if not missed else "Missed:"))
    print("".join(f"  {line}\n" for line in missed), end="")
    if args.json:
        args.json.write_text(json.dumps({**figures, "missed": missed}, indent=2) + "\n")
    return 1 if missed else 0


def _on_timeout(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(f"bench: not done after {_MOST_SECONDS} s, so something hangs; stopped everything it had started")


sys.exit(main())
