"""Encode what offtop prints as JSON."""

import json
import re

import msgspec

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def encode(made: object) -> str:
    """Return one line of JSON in ASCII, which every terminal and locale can take."""
    text = msgspec.json.encode(made).decode()
    return text if text.isascii() else _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
