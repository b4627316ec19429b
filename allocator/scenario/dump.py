"""A scenario as plain data and as a canonical file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from allocator.scenario.paths import parse_path
from allocator.scenario.quantity import Quantity
from allocator.scenario.schema import Scenario
from allocator.scenario.section import Section

_WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.+/-]*\Z")
# Words that YAML 1.1 or 1.2 readers take for something other than text.
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def plain_value(value: Any) -> Any:
    """Return a value of the schema as JSON-ready data.

    Quantities that were stated without spread or source become bare numbers; keys that are not
    set are left out, and pairs become the block they were read from.
    """
    if isinstance(value, Quantity):
        if value.kind == "stated" and not value.has_spread and value.source is None:
            return _short(value.value)
        return _block(value)
    if isinstance(value, Section):
        return _block(value)
    if isinstance(value, tuple) and any(isinstance(item, tuple) for item in value):
        return {_short(where): _short(number) for where, number in value}
    if isinstance(value, tuple):
        return [plain_value(item) for item in value]
    return _short(value)


def _block(section: Section) -> dict[str, Any]:
    stated = ((name, getattr(section, name)) for name in type(section).model_fields)
    return {name: plain_value(item) for name, item in stated if item is not None}


def _short(value: Any) -> Any:
    # 8000.0 and 8000 are one number to the schema; a reader prefers the latter.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


def scenario_to_dict(scenario: Scenario) -> dict[str, Any]:
    """Return every key of the resolved scenario, defaults included, as JSON-ready data.

    Kind and source that the file stated for a number without spread are kept.
    """
    data: dict[str, Any] = _block(scenario)
    for path, note in scenario.origin.notes.items():
        *above, last = parse_path(path) or ("",)
        node: Any = data
        for part in above:
            node = _below(node, part)
        number = _below(node, last)
        if isinstance(number, (int, float)) and number == note.value:
            block = {"value": number, "kind": note.kind, "source": note.source}
            node[last] = {name: item for name, item in block.items() if item is not None}
    return data


def _below(node: Any, part: str | int) -> Any:
    if isinstance(node, dict):
        return node.get(part)
    if isinstance(node, list) and isinstance(part, int) and part < len(node):
        return node[part]
    return None


def dump(scenario: Scenario) -> str:
    """Return the resolved scenario as canonical YAML 1.2; loading it gives an equal scenario."""
    return "\n".join(_block_lines(scenario_to_dict(scenario), indent=0)) + "\n"


def _block_lines(data: Mapping[Any, Any], indent: int) -> Iterator[str]:
    margin = " " * indent
    for name, value in data.items():
        head = f"{margin}{_scalar(name)}:"
        flow = _flow(value)
        nested = isinstance(value, (Mapping, list)) and bool(value)
        if not nested or (_is_flat(value) and len(head) + 1 + len(flow) <= _WIDTH):
            yield f"{head} {flow}"
        elif isinstance(value, Mapping):
            yield head
            yield from _block_lines(value, indent + 2)
        else:
            yield head
            for item in value:
                yield from _item_lines(item, indent + 2)


def _item_lines(item: Any, indent: int) -> Iterator[str]:
    margin = " " * indent
    if not isinstance(item, Mapping) or (_is_flat(item) and indent + len(_flow(item)) < _WIDTH):
        yield f"{margin}- {_flow(item)}"
        return
    first, *rest = _block_lines(item, indent + 2)
    yield f"{margin}- {first.lstrip()}"
    yield from rest


def _is_flat(value: Any) -> bool:
    items = value.values() if isinstance(value, Mapping) else value
    return not any(isinstance(item, (Mapping, list)) for item in items)


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{_scalar(name)}: {_flow(item)}" for name, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        # YAML 1.1 readers take 1e-05 for text; a point makes it a number everywhere.
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    text = str(value)
    if _PLAIN.match(text) and text.casefold() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
