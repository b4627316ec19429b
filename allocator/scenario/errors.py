"""The one error a wrong scenario, profile or command line ends in."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BARE_TEXT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\Z")
_SHOWN_LIMIT = 60
_NEAREST_CUTOFF = 0.6


class ScenarioError(Exception):
    """Something the user wrote cannot be planned; says where, and what would be right.

    ``str(error)`` reads ``FILE:LINE: path: expected ..., given ... (did you mean ...?)``, one line
    for this error and one for each of `others`.

    Parameters
    ----------
    message : str, optional
        A sentence that stands instead of expected/given, or follows them when both are there.
    file : str, optional
        File as the user named it; ``--set`` for an override on the command line.
    line : int, optional
        Line in `file`, counted from 1; None where a line has no meaning.
    path : str, optional
        Dotted path of the key, for example ``hardware.pools[0].gpus``.
    expected, given : str, optional
        What is legal, and what was found (shortened).
    nearest : str, optional
        The legal key, id or value closest to what was given.
    column : int, optional
        Column in `line`, counted from 1, for errors of syntax.
    others : sequence of ScenarioError
        Further errors of the same file, in file order.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        file: str | None = None,
        line: int | None = None,
        path: str | None = None,
        expected: str | None = None,
        given: str | None = None,
        nearest: str | None = None,
        column: int | None = None,
        others: Sequence[ScenarioError] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.path = path
        self.expected = expected
        self.given = given
        self.nearest = nearest
        self.column = column
        self.others = tuple(others)

    def sentence(self) -> str:
        """Return this error alone, on one line, without `others`."""
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        body = self._body()
        return ": ".join(part for part in (place, self.path, body) if part)

    def _body(self) -> str:
        if self.expected is None:
            body = self.message or "not a legal scenario"
            return f"{body}{self._question()}"
        given = "" if self.given is None else f", given {self.given}"
        more = f"; {self.message}" if self.message else ""
        return f"expected {self.expected}{given}{self._question()}{more}"

    def _question(self) -> str:
        return f" (did you mean {self.nearest}?)" if self.nearest else ""

    def __str__(self) -> str:
        """Return one line for this error and one for each of `others`."""
        return "\n".join([self.sentence(), *(other.sentence() for other in self.others)])

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON-ready data, the ``error`` object of ``--json`` output."""
        data: dict[str, Any] = {
            "file": self.file,
            "line": self.line,
            "path": self.path,
            "expected": self.expected,
            "given": self.given,
            "nearest": self.nearest,
            "message": self.sentence(),
        }
        if self.column is not None:
            data["column"] = self.column
        if self.others:
            data["others"] = [other.to_dict() for other in self.others]
        return data

    def at(
        self, *, file: str | None = None, line: int | None = None, path: str | None = None
    ) -> ScenarioError:
        """Return a copy that fills in the place where this error has none.

        A profile look-up does not know which line named the profile; its caller does.
        """
        return ScenarioError(
            self.message,
            file=self.file if self.file is not None else file,
            line=self.line if self.file is not None else line,
            path=self.path if self.path is not None else path,
            expected=self.expected,
            given=self.given,
            nearest=self.nearest,
            column=self.column,
            others=self.others,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with every field, so that an error survives a worker process."""
        return _restore, (self.__dict__.copy(),)


def _restore(fields: dict[str, Any]) -> ScenarioError:
    return ScenarioError(fields.pop("message"), **fields)


def join_errors(errors: Iterable[ScenarioError]) -> ScenarioError:
    """Return the first of `errors` in file order, holding the rest as its ``others``.

    Errors without a line (overrides on the command line) come last. Order among errors on one
    line is kept.

    Raises
    ------
    ValueError
        If `errors` is empty.
    """
    ordered = sorted(errors, key=lambda error: (error.line is None, error.line or 0))
    if not ordered:
        raise ValueError("join_errors needs at least one error")
    first, rest = ordered[0], ordered[1:]
    first.others = tuple(rest)
    return first


def nearest_of(given: object, legal: Iterable[str]) -> str | None:
    """Return the entry of `legal` closest in spelling to `given`, or None if none is close.

    Case and the choice of ``-`` or ``_`` do not count as a difference.
    """
    if not isinstance(given, str):
        return None
    folded = {_fold(entry): entry for entry in legal}
    found = difflib.get_close_matches(_fold(given), list(folded), n=1, cutoff=_NEAREST_CUTOFF)
    return folded[found[0]] if found else None


def _fold(text: str) -> str:
    return text.casefold().replace("-", "_")


def shown(value: object) -> str:
    """Return `value` as it would stand in a scenario file, shortened to one short phrase.

    Text that would read as another type is quoted, so that ``"8"`` and ``8`` differ.

    Examples
    --------
    >>> shown("one_step_off"), shown("8"), shown({"mean": 3, "on": True})
    ('one_step_off', '"8"', '{mean: 3, on: true}')
    """
    text = _flow(value, depth=0)
    return text if len(text) <= _SHOWN_LIMIT else text[: _SHOWN_LIMIT - 3] + "..."


def _flow(value: object, depth: int) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{key}: {_flow(item, depth + 1)}" for key, item in value.items())
        return "{" + _joined(pairs, depth) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + _joined((_flow(item, depth + 1) for item in value), depth) + "]"
    return _scalar(value)


def _scalar(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return _number(value)
    return _text(value) if isinstance(value, str) else type(value).__name__


def _joined(parts: Iterable[str], depth: int) -> str:
    # Nothing past the limit is ever shown, and a hostile file may nest deeply.
    if depth > 3:
        return "..."
    taken: list[str] = []
    length = 0
    for part in parts:
        taken.append(part)
        length += len(part) + 2
        if length > _SHOWN_LIMIT:
            break
    return ", ".join(taken)


def _number(value: int | float) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    try:
        return repr(value)
    except ValueError:  # integers past Python's limit on digits
        return "a very large number"


def _text(value: str) -> str:
    if _BARE_TEXT.match(value) and not _reads_as_other(value):
        return value
    return json.dumps(value[: _SHOWN_LIMIT + 1], ensure_ascii=False)


def _reads_as_other(text: str) -> bool:
    if text in {"true", "false", "null"}:
        return True
    for number in (float, lambda digits: int(digits, 0)):
        try:
            number(text)
        except ValueError:
            continue
        return True
    return False
