"""Draw the content tree as Markdown, for tickets, notes and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from allocator.plan import Plan
from allocator.report.content import plan_content
from allocator.report.numbers import shares_in
from allocator.report.tree import (
    Bars,
    Block,
    Fact,
    Facts,
    Histogram,
    Notices,
    Report,
    Section,
    Sentence,
    Stack,
    Table,
    Waterfall,
)

#: Characters that would start markup inside a line.
_MARKUP = re.compile(r"([\\`*_\[\]<>|~#&])")


def plan_markdown(plan: Plan) -> str:
    """Return a plan as Markdown (CommonMark with tables), ending in a newline."""
    return report_markdown(plan_content(plan))


def report_markdown(report: Report) -> str:
    """Return a content tree as Markdown, ending in a newline."""
    status = f" ({escaped(report.status)})" if report.status else ""
    head = [f"## {escaped(report.title)}{status}", f"**{escaped(report.headline)}**"]
    head += [escaped(report.note)] if report.note else []
    return "\n\n".join([*head, *(_section(section) for section in report.sections)]) + "\n"


def escaped(text: str) -> str:
    """Return `text` on one line with Markdown's own characters escaped."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _section(section: Section) -> str:
    return "\n\n".join([f"### {escaped(section.name)}", *(_block(b) for b in section.blocks)])


def _block(block: Block) -> str:
    match block:
        case Facts() | Notices():
            return "\n".join(_fact(fact, isinstance(block, Notices)) for fact in block.items)
        case Stack():
            return _stack(block)
        case Bars() | Waterfall():
            return _amounts(block)
        case Histogram():
            return _histogram(block)
        case Sentence():
            return escaped(block.text)
        case Table():
            return _table(block)


def _fact(fact: Fact, notice: bool) -> str:
    value = escaped(fact.value) if notice else f"**{escaped(fact.value)}**"
    label = f"{escaped(fact.label)}: " if fact.label else ""
    unit = f" {escaped(fact.unit)}" if fact.unit else ""
    note = f" ({escaped(fact.note)})" if fact.note else ""
    return f"- {label}{value}{unit}{note}"


def _stack(stack: Stack) -> str:
    header = [stack.note or "of the whole", "amount", "share"]
    tenths = shares_in(1000, [part.amount for part in stack.parts])
    rows = [
        [part.label, part.text, f"{tenth / 10:.1f}%"]
        for part, tenth in zip(stack.parts, tenths, strict=True)
    ]
    if all(part.text.endswith("%") for part in stack.parts):
        del header[2]
        rows = [row[:2] for row in rows]
    return _grid(header, rows, (1, 2))


def _amounts(block: Bars | Waterfall) -> str:
    bars = isinstance(block, Bars)
    rows = block.parts if isinstance(block, Bars) else block.steps
    return _grid(
        ("rate" if bars else "", block.unit), [(row.label, row.text) for row in rows], (1,)
    )


def _histogram(chart: Histogram) -> str:
    rows = [
        (label, f"{100 * share:.1f}%")
        for label, share in zip(chart.labels, chart.shares, strict=True)
    ]
    note = "; ".join(text for text in (chart.mean_text, chart.limit_text) if text)
    return f"{_grid((chart.unit, 'share'), rows, (0, 1))}\n\n{escaped(note)}"


def _table(table: Table) -> str:
    columns = [i for i in range(len(table.header)) if any(row[i] for row in table.rows)]
    return _grid(
        [table.header[i] for i in columns],
        [[row[i] for i in columns] for row in table.rows],
        [place for place, i in enumerate(columns) if i in table.numeric],
    )


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    rule = ["---:" if i in numeric else "---" for i in range(len(header))]
    lines = [[escaped(text) for text in header], rule]
    lines += [[escaped(text) for text in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
