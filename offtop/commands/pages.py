"""The commands report, rules and diff: print a page about recordings or this machine."""

import argparse
import contextlib
import sys
from pathlib import Path

from offtop.commands import choices, recordings, sources
from offtop.commands.output import flushed_output

_RULES_TICKS = 5


def report(args: argparse.Namespace) -> int:
    """Print a recording on one page."""
    from offtop.recording.replay import RecordedSource
    from offtop.reports import recording_page

    rules = choices.category_rules()
    loaded, owner = choices.load(args)
    path, weights = recordings.named(args.file), choices.suspect_weights()
    with (
        choices.rule_files(rules, loaded, owner) as files,
        contextlib.closing(RecordedSource(path, categories=rules.ids)) as source,
        flushed_output(),
    ):
        recording_page.write(source, path.name, rules, args.width, sys.stdout, files, weights)
    return 0


def rules(args: argparse.Namespace) -> int:
    """Check the cause rules, and print what each matches."""
    from offtop.reports import rules_page

    known = choices.category_rules()
    loaded, owner = choices.load(args)
    with choices.rule_files(known, loaded, owner) as files, flushed_output():
        print("\n".join(rules_page.checked(files)), flush=True)
        if args.check:
            return 0
        settings = loaded.settings
        if args.file:
            from offtop.recording.replay import RecordedSource
            from offtop.reports.whole import EVER_NS

            file = RecordedSource(recordings.named(args.file), categories=known.ids, keep_ns=EVER_NS)
            with contextlib.closing(file) as recording:
                rules_page.write(recording, known, files, settings.delay_ns, args.iterations, sys.stdout)
            return 0
        filters = sources.filters(args, loaded)
        with sources.live(known, filters, args, loaded) as source:
            rules_page.write(source, known, files, settings.delay_ns, args.iterations or _RULES_TICKS, sys.stdout)
    return 0


def diff(args: argparse.Namespace) -> int:
    """Print what changed between two recordings."""
    from offtop.recording.replay import RecordedSource
    from offtop.reports import diff_page
    from offtop.reports.whole import EVER_NS

    known = choices.category_rules()
    chosen = choices.with_user(args.user or "", choices.wait_filter(args.filter, known))
    loaded, owner = choices.load(args)

    with choices.rule_files(known, loaded, owner) as files, flushed_output():

        def of_file(name: str) -> diff_page.Compared:
            with contextlib.closing(RecordedSource(Path(name), categories=known.ids, keep_ns=EVER_NS)) as source:
                idle, delay_ns = bool(args.idle), loaded.settings.delay_ns
                weights = choices.suspect_weights()
                return diff_page.compared(source, Path(name).name, known, files, chosen, idle, delay_ns, weights)

        before, after = of_file(args.before), of_file(args.after)
        diff_page.write(before, after, sys.stdout, args.json, args.width)
    return 0
