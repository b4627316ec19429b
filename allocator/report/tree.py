"""The content tree: what a report says, without how it is drawn.

`allocator.report.content` fills it from a plan; `terminal`, `html`, `markdown` and `figures` draw
it. No renderer writes a sentence of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocator.report.palette import Role, Tone


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement: a label, its value with unit, and what to know about it."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts in reading order; `inline` ones may share a line, others take one each."""

    items: tuple[Fact, ...]
    inline: bool = True


@dataclass(frozen=True, slots=True)
class Notices:
    """Statements in full sentences, each under its code (the fact's label), one below another."""

    items: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar: what it is, how long it is drawn, and the number printed beside it."""

    label: str
    amount: float
    text: str
    role: Role
    note: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """Parts of one whole, drawn to scale as one bar; `note` says what the whole is."""

    parts: tuple[Part, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars below each other on one scale that starts at 0."""

    parts: tuple[Part, ...]
    unit: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a waterfall: where it starts and ends, and the number printed beside it."""

    label: str
    start: float
    end: float
    text: str
    role: Role


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Steps from one amount to another, on one scale that starts at 0; no amount is below 0."""

    steps: tuple[Step, ...]
    unit: str

    def span(self, step: Step) -> tuple[float, float]:
        """Return where a step lies, lower end first, as shares of the scale's length."""
        top = max(max(step.start, step.end) for step in self.steps) or 1.0
        return min(step.start, step.end) / top, max(step.start, step.end) / top


@dataclass(frozen=True, slots=True)
class Histogram:
    """Shares of the values first, first + 1, ... ; the last bin holds the rest when open-ended.

    Mean and limit are marked on the axis; their texts say what they are (the limit may be on the
    mean or on a percentile, so bins beyond it need not break it).
    """

    shares: tuple[float, ...]
    first: int
    open_ended: bool
    unit: str
    mean: float
    mean_text: str
    limit: float | None
    limit_text: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Value of each bin; the last one ends in ``+`` when it holds everything beyond."""
        names = [str(self.first + i) for i in range(len(self.shares))]
        if self.open_ended:
            names[-1] += "+"
        return tuple(names)

    def place(self, value: float) -> float | None:
        """Return where `value` lies from 0 (left end) to 1 (right end), None if outside.

        A whole value lies in the middle of its bin.
        """
        share = (value - self.first + 0.5) / len(self.shares)
        return share if 0 <= share <= 1 else None


@dataclass(frozen=True, slots=True)
class Sentence:
    """Plain text."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; numbers stand in the columns named in `numeric` (right-aligned).

    A `compact` table explains itself: a narrow view may leave out its header and its last rows.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()
    tones: tuple[Tone, ...] = ()
    compact: bool = False

    def tone(self, row: int) -> Tone:
        """Tone of one row."""
        return self.tones[row] if row < len(self.tones) else "plain"


Block = Facts | Notices | Stack | Bars | Waterfall | Histogram | Sentence | Table


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under one short name; `brief` sections belong in the ten-second view too."""

    name: str
    blocks: tuple[Block, ...]
    brief: bool = True
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report: title, status in words, headline figure, what it means, and sections."""

    title: str
    status: str
    tone: Tone
    headline: str
    note: str
    sections: tuple[Section, ...]

    def section(self, name: str) -> Section | None:
        """Return the section of that name, if the report has one."""
        return next((section for section in self.sections if section.name == name), None)
