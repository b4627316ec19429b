"""Draw the content tree in a terminal: names in a gutter, everything else to the right of it.

At most 80 columns, so that the view looks the same on a screen, in a pipe and in a ticket.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from allocator.plan import Plan
from allocator.report.content import plan_content
from allocator.report.numbers import shares_in
from allocator.report.palette import LOOKS, TONE_STYLES, Role, Tone
from allocator.report.side_by_side import side_by_side
from allocator.report.tree import (
    Bars,
    Block,
    Fact,
    Facts,
    Histogram,
    Notices,
    Part,
    Report,
    Section,
    Sentence,
    Stack,
    Table,
    Waterfall,
)

WIDEST = 80
GUTTER = 10
#: Short sections that stand right below the one before, without a blank line.
CLOSE = ("cost", "compute", "numbers")
#: Longest lists in the ten-second view; JSON, HTML and Markdown always have all of them.
MOST_ROWS = 3
NOTICE_LINES = 3
#: Lines that the view stays below while there are warnings that can be left to the JSON.
MOST_LINES = 46
#: Least width of a column that text is wrapped in.
NARROWEST = 16
LEVELS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
ASCII_LEVELS = " .:-=+*%#"


def plan_view(plan: Plan) -> ReportView:
    """Return a rich renderable of a plan: the view that is read in ten seconds."""
    return ReportView(plan_content(plan))


def compare_view(plan_a: Plan, plan_b: Plan, names: tuple[str, str]) -> ReportView:
    """Return a rich renderable of two plans side by side, named `names`, line by line."""
    return ReportView(side_by_side(plan_a, plan_b, names))


@dataclass(frozen=True, slots=True)
class ReportView:
    """A content tree that rich can print."""

    report: Report
    widest: int = WIDEST

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the view's lines (rich protocol)."""
        width = min(options.max_width, self.widest)
        yield from _head(self.report, min(width, WIDEST))
        brief = [section for section in self.report.sections if section.brief]
        gutter = GUTTER if any(section.name for section in brief) else 0
        painter = Painter(max(20, width - gutter), options.ascii_only)
        drawn = {section.name: list(_guttered(section, painter, gutter)) for section in brief}
        spare = MOST_LINES - sum(1 + len(lines) for lines in drawn.values())
        roomy = replace(painter, notice_lines=painter.notice_lines + max(0, spare))
        for section in brief:
            if section.name not in CLOSE:
                yield Text("")
            yield from _guttered(section, roomy, gutter)


def _head(report: Report, width: int) -> Iterable[Text]:
    title = safe(report.title)
    if report.status:
        room = width - len(title) - len(report.status)
        space = " " * room if room >= 2 else "\n"
        yield Text.assemble((title, "bold"), space, (report.status, _strong(report.tone)))
    else:
        yield Text(title, "bold")
    for text, style in ((report.headline, "bold"), (report.note, "dim")):
        if text:
            yield from (Text(line, style) for line in textwrap.wrap(safe(text), width))


def _guttered(section: Section, painter: Painter, gutter: int) -> Iterable[Text]:
    lines = [line for block in section.blocks for line in painter.draw(block)]
    for index, line in enumerate(lines):
        name = section.name if index == 0 else ""
        style = _strong(section.tone) if section.tone != "plain" else "bold"
        name = name.upper() if section.tone == "bad" else name
        row = Text.assemble((f"{name:<{gutter}}", style), line)
        row.rstrip()
        yield row


def _strong(tone: Tone) -> str:
    return f"bold {TONE_STYLES[tone]}".replace("bold bold", "bold").strip()


def safe(text: str) -> str:
    """Return `text` on one line without control characters (a scenario's name is anybody's)."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


@dataclass(frozen=True, slots=True)
class Painter:
    """Draws blocks as lines of at most `width` columns, in ASCII where nothing else is shown."""

    width: int
    ascii_only: bool
    notice_lines: int = NOTICE_LINES

    def draw(self, block: Block) -> list[Text]:
        """Return one block's lines."""
        match block:
            case Facts():
                drawn = self._inline(block.items) if block.inline else self._rows(block.items)
            case Notices():
                drawn = self._notices(block.items)
            case Stack():
                drawn = self._stack(block)
            case Bars():
                drawn = self._bars(block)
            case Waterfall():
                drawn = self._waterfall(block)
            case Histogram():
                drawn = self._histogram(block)
            case Sentence():
                drawn = self._wrapped(block.text, TONE_STYLES[block.tone])
            case Table():
                drawn = self._table(block)
        return drawn

    def glyph(self, role: Role) -> str:
        """Return the glyph that fills a role's bar."""
        return LOOKS[role].ascii_glyph if self.ascii_only else LOOKS[role].glyph

    def _wrapped(self, text: str, style: str = "", indent: int = 0) -> list[Text]:
        wrapped = textwrap.wrap(
            safe(text), self.width, subsequent_indent=" " * indent, break_on_hyphens=False
        )
        return [Text(line, style) for line in wrapped]

    def _flow(self, pieces: Sequence[Text], gap: int = 3) -> list[Text]:
        """Set pieces side by side, `gap` columns apart, breaking lines between pieces only."""
        lines: list[Text] = []
        for piece in pieces:
            if lines and lines[-1].cell_len + gap + piece.cell_len <= self.width:
                lines[-1].append(" " * gap).append_text(piece)
            elif piece.cell_len <= self.width:
                lines.append(piece.copy())
            else:
                lines += self._wrapped(piece.plain)
        return lines

    def _inline(self, facts: Sequence[Fact]) -> list[Text]:
        return self._flow([self._fact(fact) for fact in facts])

    def _fact(self, fact: Fact) -> Text:
        piece = Text().append(f"{safe(fact.label)} " if fact.label else "", "dim")
        piece.append(safe(fact.value), _strong(fact.tone))
        if fact.unit:
            piece.append(f" {fact.unit}")
        if fact.note:
            piece.append(f" ({safe(fact.note)})", TONE_STYLES[fact.tone])
        return piece

    def _rows(self, facts: Sequence[Fact]) -> list[Text]:
        wide = max(len(fact.label) for fact in facts) + 1
        if self.width - wide < NARROWEST:
            texts = [f"{fact.label} {fact.value}" for fact in facts]
            return [line for text in texts for line in self._wrapped(text, indent=2)]
        lines = []
        for fact in facts:
            values = textwrap.wrap(safe(fact.value), self.width - wide, break_on_hyphens=False)
            for index, value in enumerate(values):
                label = safe(fact.label) if index == 0 else ""
                lines.append(Text.assemble((f"{label:<{wide}}", "dim"), value))
        return lines

    def _notices(self, facts: Sequence[Fact]) -> list[Text]:
        lines: list[Text] = []
        left = list(facts)
        while left and len(lines) < self.notice_lines:
            fact = left.pop(0)
            code = safe(fact.label)
            where = f" [{fact.note}]" if fact.note else ""
            wrapped = self._wrapped(f"{code}: {fact.value}{where}", indent=2)
            wrapped[0].stylize(TONE_STYLES[fact.tone], 0, len(code) + 1)
            lines += wrapped
        if left:
            more = ", ".join(fact.label for fact in left)
            lines += self._wrapped(f"and {len(left)} more in the JSON: {more}", "dim", 2)
        return lines

    def _cells(self, parts: Sequence[Part]) -> list[int]:
        """Return a stack's cells, to scale, with at least one for whatever is not nothing."""
        cells = shares_in(self.width, [part.amount for part in parts])
        for index, part in enumerate(parts):
            if part.amount > 0 and cells[index] == 0:
                cells[cells.index(max(cells))] -= 1
                cells[index] = 1
        return cells

    def _stack(self, stack: Stack) -> list[Text]:
        bar = Text()
        for part, cells in zip(stack.parts, self._cells(stack.parts), strict=True):
            bar.append(self.glyph(part.role) * cells, LOOKS[part.role].style)
        legend = []
        for part in stack.parts:
            piece = Text().append(self.glyph(part.role), LOOKS[part.role].style)
            piece.append(f" {safe(part.label)} ").append(part.text, "bold")
            legend.append(piece)
        if stack.note:
            legend.append(Text(safe(stack.note), "dim"))
        return [bar, *self._flow(legend, gap=2)]

    def _bars(self, bars: Bars) -> list[Text]:
        label = max(len(part.label) for part in bars.parts)
        text = max(len(part.text) for part in bars.parts)
        room = max(1, self.width - label - text - 2)
        longest = max(part.amount for part in bars.parts)
        lines = []
        for index, part in enumerate(bars.parts):
            cells = round(room * part.amount / longest) if longest > 0 else 0
            line = Text().append(f"{part.label:<{label}} ", "dim")
            line.append(self.glyph(part.role) * cells, LOOKS[part.role].style)
            line.append(f" {part.text}", "bold")
            if index == 0 and line.cell_len + 1 + len(bars.unit) <= self.width:
                line.append(f" {bars.unit}")
            lines.append(line)
        return lines

    def _waterfall(self, chart: Waterfall) -> list[Text]:
        label = max(len(step.label) for step in chart.steps)
        text = max(len(step.text) for step in chart.steps)
        room = max(1, self.width - label - text - 2)
        lines = []
        for step in chart.steps:
            first, last = (round(room * share) for share in chart.span(step))
            line = Text().append(f"{step.label:<{label}} ", "dim")
            line.append(f"{step.text:>{text}} ", "bold")
            line.append(" " * min(first, room - 1))
            line.append(self.glyph(step.role) * max(1, last - first), LOOKS[step.role].style)
            lines.append(line)
        return lines

    def _histogram(self, chart: Histogram) -> list[Text]:
        wide = max(len(label) for label in chart.labels)
        step = min(wide + 1, max(1, self.width // len(chart.shares)))
        levels = ASCII_LEVELS if self.ascii_only else LEVELS
        tallest = max(chart.shares)
        bars, axis = Text(), ""
        for label, share in zip(chart.labels, chart.shares, strict=True):
            level = levels[max(1, round(8 * share / tallest)) if share > 0 and tallest else 0]
            bars.append(f"{level * max(1, step - 1):<{step}}", LOOKS["trained"].style)
            axis += f"{label:<{step}}"
        axis = axis.rstrip()
        lines = [bars, Text(f"{axis} {chart.unit}", "dim")]
        return [*lines, *self._marks(chart, step)]

    def _marks(self, chart: Histogram, step: int) -> list[Text]:
        cells = len(chart.shares) * step
        marks: dict[int, str] = {}
        legend = []
        for mark, value, text in (
            ("^", chart.mean, chart.mean_text),
            ("|", chart.limit, chart.limit_text),
        ):
            place = None if value is None else chart.place(value)
            if place is not None:
                column = int(place * cells - 0.5)
                marks[column + 1 if column in marks else column] = mark
            if value is not None:
                legend.append(f"{mark} {text}" + ("" if place is not None else " (off the scale)"))
        row = "".join(marks.get(column, " ") for column in range(max(marks, default=-1) + 1))
        text = "   ".join(legend)
        if row and len(row) + 3 + len(text) <= self.width:
            return [Text(f"{row}   {text}", "dim")]
        return [*([Text(row, "dim")] if row else []), *self._wrapped(text, "dim")]

    def _table(self, table: Table) -> list[Text]:
        rows = table.rows[:MOST_ROWS] if table.compact else table.rows
        shown = rows if table.compact else (table.header, *rows)
        columns = [i for i in range(len(table.header)) if any(row[i] for row in rows)]
        wide = {i: max(len(safe(row[i])) for row in shown) for i in columns}
        lines = [] if table.compact else [Text(self._row(table, table.header, wide), "dim")]
        for index, row in enumerate(rows):
            style = TONE_STYLES[table.tone(index)]
            lines += [Text(line, style) for line in self._row_lines(table, row, wide)]
        if len(rows) < len(table.rows):
            lines.append(Text(f"and {len(table.rows) - len(rows)} more", "dim"))
        return lines

    def _row_lines(self, table: Table, row: Sequence[str], wide: dict[int, int]) -> list[str]:
        """Return a row, its last column wrapped within itself where the row is too long."""
        text = self._row(table, row, wide)
        if len(text) <= self.width:
            return [text]
        *first, last = wide
        start = sum(wide[i] + 2 for i in first)
        if self.width - start < NARROWEST:
            cells = "  ".join(safe(row[i]) for i in wide if row[i])
            return textwrap.wrap(cells, self.width, subsequent_indent="  ")
        pieces = textwrap.wrap(safe(row[last]), self.width - start)
        head = self._row(table, row, {i: wide[i] for i in first})
        return [f"{head:<{start}}{pieces[0]}", *(" " * start + piece for piece in pieces[1:])]

    @staticmethod
    def _row(table: Table, row: Sequence[str], wide: dict[int, int]) -> str:
        cells = (
            f"{safe(row[i]):>{w}}" if i in table.numeric else f"{safe(row[i]):<{w}}"
            for i, w in wide.items()
        )
        return "  ".join(cells).rstrip()
