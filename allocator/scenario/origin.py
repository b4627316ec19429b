"""Where each key of a scenario was written, for errors that are only found later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from allocator.scenario.paths import is_inside, parent_of

OVERRIDE = "--set"


@dataclass(frozen=True)
class Note:
    """Kind and source stated for a number that carries no spread (``gpus: {value:, source:}``).

    Attributes
    ----------
    value : float
        The number as it was when the note was taken.
    kind : str
        One of the kinds of a `Quantity`.
    source : str or None
        Where it is from.
    """

    value: int | float
    kind: str = "stated"
    source: str | None = None


@dataclass(frozen=True)
class Origin:
    """The file a scenario was read from, and the line of each of its keys.

    Attributes
    ----------
    file : str or None
        File as the user named it; None for a scenario built in Python.
    directory : Path or None
        Where relative references of the scenario start; None: it may have none.
    lines : mapping of str to int
        Line of each path, counted from 1.
    overridden : tuple of str
        Paths that were set on the command line.
    notes : mapping of str to Note
        Origin of numbers that are not quantities.
    """

    file: str | None = None
    directory: Path | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    overridden: tuple[str, ...] = ()
    notes: Mapping[str, Note] = field(default_factory=dict)

    def line_of(self, path: str) -> int | None:
        """Return the line of `path`, or of the deepest key above it that stands in the file."""
        return self.locate(path)[1]

    def locate(self, path: str) -> tuple[str | None, int | None]:
        """Return file and line of `path`; ``--set`` and no line if it came from an override."""
        if any(is_inside(path, override) for override in self.overridden):
            return OVERRIDE, None
        if path not in self.lines and any(
            is_inside(override, path) for override in self.overridden if path
        ):
            return OVERRIDE, None
        while path and path not in self.lines:
            path = parent_of(path)
        return self.file, self.lines.get(path)
