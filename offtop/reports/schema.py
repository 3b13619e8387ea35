"""JSON Schema of `--json`, made from the objects in objects.py and the docstrings below their fields."""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from offtop.reports import objects


def schema() -> dict[str, Any]:
    made = msgspec.json.schema(objects.Tick)
    definitions: dict[str, dict[str, Any]] = made["$defs"]
    texts = dict(_docstrings())
    for name, definition in definitions.items():
        definition["description"] = _on_one_line(definition["description"])
        for key, part in definition["properties"].items():
            classes = (one.__name__ for one in inspect.getmro(getattr(objects, name)))
            text = next((texts[one, key] for one in classes if (one, key) in texts), "")
            if described := f"{text} {part.get('description', '')}".strip():
                part["description"] = described
    tick = definitions.pop("Tick")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", **tick, "title": "offtop --json"}
    return {**head, "$defs": definitions}


def _docstrings() -> Iterator[tuple[tuple[str, str], str]]:
    """Yield (class, field) and the docstring below the field, which Python itself does not keep."""
    classes = (one for one in ast.parse(inspect.getsource(objects)).body if isinstance(one, ast.ClassDef))
    for made in classes:
        for field, below in pairwise(made.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    yield (made.name, key), _on_one_line(text)
                case _:
                    pass


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
