"""YAML 1.2 text to plain data, with the line of every key."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from allocator.scenario.errors import ScenarioError, shown
from allocator.scenario.paths import Part, format_path

_NODES = 100_000
_DEPTH = 60
_STANDARD_TAGS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_DUPLICATE = re.compile(r'found duplicate key "(?P<key>.*?)"')
_VERSION = re.compile(r"^%YAML[ \t]+(?P<version>\S+)", re.MULTILINE)


def parse_yaml(text: str, file: str | None) -> tuple[Any, dict[str, int]]:
    """Return the plain data of a YAML 1.2 document, and the line of each path in it.

    Mappings, lists, text, numbers, booleans and null are accepted; a date counts as text. No tag
    is acted on, nothing is executed.

    Parameters
    ----------
    text : str
        One document.
    file : str or None
        Name for errors.

    Raises
    ------
    ScenarioError
        For a syntax error (with line and column), a key given twice, a tag, or a document too
        deep or too large when its aliases are followed.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    declared = _VERSION.search(text)
    if declared and declared["version"] != "1.2":
        above = text.count("\n", 0, declared.start())
        raise ScenarioError(
            file=file, line=above + 1, expected="YAML 1.2", given=declared["version"]
        )
    yaml = YAML()
    # Naming an anchor again is legal YAML, and a library does not print.
    yaml.composer.warn_double_anchors = False
    try:
        node = yaml.load(text)
    except MarkedYAMLError as wrong:
        raise _marked(wrong, file) from wrong
    except YAMLError as wrong:  # a character YAML does not allow
        place = getattr(wrong, "position", None)
        line = text.count("\n", 0, place) + 1 if isinstance(place, int) else None
        given = f"the character {getattr(wrong, 'character', '')!r}"
        raise ScenarioError(file=file, line=line, expected="YAML text", given=given) from wrong
    except RecursionError as wrong:
        raise ScenarioError(
            file=file, expected=f"at most {_DEPTH} levels", given="deeper nesting"
        ) from wrong
    except ValueError as wrong:  # a number Python cannot hold, such as one of 5,000 digits
        raise ScenarioError(file=file, expected="legal YAML values", given=str(wrong)) from wrong
    reader = _Reader(file)
    return reader.plain(node, ()), reader.lines


def _marked(wrong: Any, file: str | None) -> ScenarioError:
    mark = wrong.problem_mark or wrong.context_mark
    line = mark.line + 1 if mark else None
    column = mark.column + 1 if mark else None
    problem = str(wrong.problem or wrong.context or "a syntax error").strip()
    duplicate = _DUPLICATE.search(problem)
    if duplicate:
        key = duplicate["key"]
        return ScenarioError(
            file=file,
            line=line,
            column=column,
            path=key,
            expected="each key once",
            given=f"{key} twice",
        )
    at = f" at column {column}" if column else ""
    return ScenarioError(
        file=file, line=line, column=column, expected="YAML 1.2", given=f"{problem}{at}"
    )


class _Reader:
    """Turns ruamel's nodes into plain data and notes where each key stood."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.lines: dict[str, int] = {}
        self._nodes = 0

    def plain(self, node: Any, parts: tuple[Part, ...]) -> Any:
        self._nodes += 1
        if self._nodes > _NODES or len(parts) > _DEPTH:
            raise self._wrong(
                parts, f"at most {_NODES:,} values in {_DEPTH} levels, aliases followed", "more"
            )
        self._refuse_tag(node, parts)
        if isinstance(node, Mapping):
            self._note(parts, getattr(node, "lc", None))
            return self._mapping(node, parts)
        if isinstance(node, list):
            self._note(parts, getattr(node, "lc", None))
            return self._sequence(node, parts)
        return self._scalar(node, parts)

    def _mapping(self, node: Mapping[Any, Any], parts: tuple[Part, ...]) -> dict[Any, Any]:
        data: dict[Any, Any] = {}
        for key, item in node.items():
            name = self._scalar(key, parts)
            below = (*parts, str(name))
            place = _place(node, "key", key)
            if place is not None:
                self.lines[format_path(below)] = place
            data[name] = self.plain(item, below)
        return data

    def _sequence(self, node: list[Any], parts: tuple[Part, ...]) -> list[Any]:
        data: list[Any] = []
        for index, item in enumerate(node):
            below = (*parts, index)
            place = _place(node, "item", index)
            if place is not None:
                self.lines[format_path(below)] = place
            data.append(self.plain(item, below))
        return data

    def _note(self, parts: tuple[Part, ...], marks: Any) -> None:
        line = getattr(marks, "line", None)
        if isinstance(line, int):
            self.lines.setdefault(format_path(parts), line + 1)

    def _scalar(self, node: Any, parts: tuple[Part, ...]) -> Any:
        if node is None or isinstance(node, bool):
            return node
        if type(node).__name__ == "ScalarBoolean":  # an int to Python, a boolean to YAML
            return bool(node)
        # Round-trip nodes are subclasses that remember how the number was written.
        for plain in (int, float, str):
            if isinstance(node, plain):
                return plain(node)
        if isinstance(node, datetime.date):
            return node.isoformat()
        raise self._wrong(parts, "a number, text, a block or a list", shown(node))

    def _refuse_tag(self, node: Any, parts: tuple[Part, ...]) -> None:
        tag = getattr(node, "tag", None)
        name = getattr(tag, "value", tag)
        if name is None or str(tag) in _STANDARD_TAGS or str(name) in _STANDARD_TAGS:
            return
        raise self._wrong(parts, "a value without a tag (nothing in a file is executed)", str(tag))

    def _wrong(self, parts: tuple[Part, ...], expected: str, given: str) -> ScenarioError:
        line: int | None = None
        above = parts
        while line is None:
            line = self.lines.get(format_path(above))
            if not above:
                break
            above = above[:-1]
        return ScenarioError(
            file=self.file,
            line=line,
            path=format_path(parts[:_DEPTH]) or None,
            expected=expected,
            given=given,
        )


def _place(node: Any, kind: str, key: Any) -> int | None:
    """Return the line of a key or item; None for one that a merge brought in."""
    data = getattr(getattr(node, "lc", None), "data", None)
    if not data or key not in data:
        return None
    line = getattr(node.lc, kind)(key)[0]
    return int(line) + 1
