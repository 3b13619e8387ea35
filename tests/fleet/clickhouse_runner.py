"""Runs SQL from stdin, a list of statements as JSON, in a ClickHouse inside this process; prints each one's rows.

A process of its own, since ClickHouse needs 500 MB of code and keeps threads.
"""

import json
import sys

from chdb.session import Session  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


def main() -> None:
    session = Session()  # pyright: ignore[reportUnknownVariableType]  # it has no types
    answers: list[object] = []
    for statement in json.load(sys.stdin):
        text = str(session.query(statement, "JSON"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        answers.append(json.loads(text)["data"] if text.strip() else [])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
