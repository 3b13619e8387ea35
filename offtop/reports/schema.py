"""JSON Schema of `--json`, made from the classes in `objects` and the docstrings below their fields."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pkgutil import iter_modules
from typing import Any

import msgspec

from offtop.reports import objects
from offtop.reports.objects import json_tick

_MODULES = [import_module(f"{objects.__name__}.{one.name}") for one in iter_modules(objects.__path__)]


def schema() -> dict[str, Any]:
    made = msgspec.json.schema(json_tick.Tick)
    by_name = {name: value for module in _MODULES for name, value in vars(module).items() if isinstance(value, type)}
    definitions: dict[str, dict[str, Any]] = made["$defs"]
    texts = dict(_docstrings())
    for name, definition in definitions.items():
        definition["description"] = _on_one_line(definition["description"])
        for key, part in definition["properties"].items():
            classes = (one.__name__ for one in inspect.getmro(by_name[name]))
            text = next((texts[one, key] for one in classes if (one, key) in texts), "")
            if described := f"{text} {part.get('description', '')}".strip():
                part["description"] = described
    tick = definitions.pop("Tick")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", **tick, "title": "offtop --json"}
    return {**head, "$defs": definitions}


def _docstrings() -> Iterator[tuple[tuple[str, str], str]]:
    """Yield (class, field) and the docstring below the field, which Python itself does not keep."""
    parsed = (ast.parse(inspect.getsource(module)) for module in _MODULES)
    for made in (one for module in parsed for one in module.body if isinstance(one, ast.ClassDef)):
        for field, below in pairwise(made.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    yield (made.name, key), _on_one_line(text)
                case _:
                    pass


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
