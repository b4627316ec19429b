"""Draw the content tree as a self-contained HTML fragment: inline CSS, no script, no network."""

from __future__ import annotations

from html import escape

from allocator.plan import Plan
from allocator.report.content import plan_content
from allocator.report.palette import LOOKS, Role
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

#: Everything is scoped under one class, so that a notebook or a page around it is left alone.
STYLE = """
.rl-plan{--ink:#1c1f23;--soft:#5b6470;--line:#d9dee4;--paper:#fff;--warn:#8a5a00;--bad:#b3261e;
--good:#00694b;box-sizing:border-box;max-width:62rem;padding:1rem;border:1px solid var(--line);
border-radius:8px;background:var(--paper);color:var(--ink);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif;font-variant-numeric:tabular-nums}
.rl-plan *{box-sizing:border-box}
.rl-plan h2{margin:0;font-size:1.15rem;overflow-wrap:anywhere}
.rl-plan h3{margin:0;font-size:.85rem;color:var(--soft);font-weight:600}
.rl-plan p{margin:.1rem 0;overflow-wrap:anywhere}
.rl-plan .headline{font-size:1.3rem;font-weight:650;margin:.3rem 0 0}
.rl-plan .soft,.rl-plan .muted{color:var(--soft)}
.rl-plan .warn{color:var(--warn)}.rl-plan .bad{color:var(--bad);font-weight:650}
.rl-plan .good{color:var(--good)}
.rl-plan section{display:grid;grid-template-columns:6.5rem minmax(0,1fr);gap:.2rem 1rem;
padding:.6rem 0 0;margin:.6rem 0 0;border-top:1px solid var(--line)}
.rl-plan .bar{display:flex;height:1.4rem;margin:.15rem 0;background:var(--line);border-radius:3px;
overflow:hidden}
.rl-plan .bar>i{display:block;height:100%;min-width:2px;border-right:1px solid var(--paper)}
.rl-plan .legend,.rl-plan dl{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;margin:.1rem 0;
padding:0;list-style:none}
.rl-plan dl>div{display:flex;flex-wrap:wrap;gap:0 .4rem}
.rl-plan dl.rows{flex-direction:column}
.rl-plan dl.rows>div{display:grid;grid-template-columns:4.5rem minmax(0,1fr)}
.rl-plan dt{color:var(--soft)}.rl-plan dd{margin:0;overflow-wrap:anywhere}
.rl-plan .key{display:inline-block;width:.75em;height:.75em;margin-right:.35em;border-radius:2px}
.rl-plan .rate{display:grid;grid-template-columns:10rem minmax(0,1fr) 14rem;gap:.6rem;
align-items:center}
.rl-plan .rate .bar{background:none;height:1.1rem}
.rl-plan .hist{position:relative;display:flex;align-items:flex-end;gap:2px;height:5.5rem;
margin:.4rem 0 0}
.rl-plan .hist>div{flex:1 1 0;min-width:0;display:flex;flex-direction:column;
justify-content:flex-end;height:100%;text-align:center;font-size:.72rem;color:var(--soft)}
.rl-plan .hist i{display:block;border-radius:2px 2px 0 0}
.rl-plan .hist>b{position:absolute;top:0;bottom:1.1rem;width:0;border-left:2px solid var(--ink)}
.rl-plan .hist>b.limit{border-left:3px dashed var(--bad)}
.rl-plan .wide{overflow-x:auto}
.rl-plan table{border-collapse:collapse;font-size:.9rem;margin:.2rem 0;background:none}
.rl-plan th,.rl-plan td{padding:.15rem .8rem .15rem 0;text-align:left;vertical-align:top;
white-space:nowrap;background:none;color:inherit;border:0}
.rl-plan td:last-child{white-space:normal;min-width:11rem}.rl-plan td.n:last-child{min-width:0}
.rl-plan th{color:var(--soft);font-weight:600}
.rl-plan .n{text-align:right}
@media (max-width:640px){.rl-plan{padding:.7rem}
.rl-plan section{grid-template-columns:minmax(0,1fr)}
.rl-plan .rate{grid-template-columns:minmax(0,1fr) auto;gap:0 .6rem}
.rl-plan .rate .bar{grid-column:1/-1;grid-row:2}}
@media (prefers-color-scheme:dark){.rl-plan{--ink:#e6e9ed;--soft:#9aa4b0;--line:#343b44;
--paper:#15181c;--warn:#f0b454;--bad:#ff8a80;--good:#5fd3a8}}
"""


def plan_html(plan: Plan) -> str:
    """Return a plan as an HTML fragment that needs nothing else; every text is escaped."""
    return report_html(plan_content(plan))


def report_html(report: Report) -> str:
    """Return a content tree as an HTML fragment."""
    note = f'<p class="soft">{escape(report.note)}</p>' if report.note else ""
    status = f'<span class="{report.tone}">{escape(report.status)}</span>' if report.status else ""
    return (
        f'<div class="rl-plan"><style>{STYLE}</style>'
        f"<h2>{escape(report.title)} {status}</h2>"
        f'<p class="headline">{escape(report.headline)}</p>{note}'
        f"{''.join(_section(section) for section in report.sections)}</div>"
    )


def _section(section: Section) -> str:
    blocks = "".join(_block(block) for block in section.blocks)
    name = f'<h3 class="{section.tone}">{escape(section.name)}</h3>'
    return f"<section>{name}<div>{blocks}</div></section>"


def _block(block: Block) -> str:
    match block:
        case Facts():
            rows = "" if block.inline else ' class="rows"'
            drawn = f"<dl{rows}>{''.join(_fact(fact) for fact in block.items)}</dl>"
        case Notices():
            drawn = "".join(_notice(fact) for fact in block.items)
        case Stack():
            drawn = _stack(block)
        case Bars():
            drawn = _bars(block)
        case Waterfall():
            drawn = _waterfall(block)
        case Histogram():
            drawn = _histogram(block)
        case Sentence():
            drawn = f'<p class="{block.tone}">{escape(block.text)}</p>'
        case Table():
            drawn = _table(block)
    return drawn


def _fact(fact: Fact) -> str:
    unit = f" {escape(fact.unit)}" if fact.unit else ""
    note = f' <span class="soft">{escape(fact.note)}</span>' if fact.note else ""
    return (
        f"<div><dt>{escape(fact.label)}</dt>"
        f'<dd><b class="{fact.tone}">{escape(fact.value)}</b>{unit}{note}</dd></div>'
    )


def _notice(fact: Fact) -> str:
    note = f' <span class="soft">{escape(fact.note)}</span>' if fact.note else ""
    return f'<p><b class="{fact.tone}">{escape(fact.label)}</b>: {escape(fact.value)}{note}</p>'


def _fill(role: Role, share: float) -> str:
    return f'<i style="width:{100 * share:.3f}%;background:{LOOKS[role].colour}"></i>'


def _key(part: Part) -> str:
    key = f'<span class="key" style="background:{LOOKS[part.role].colour}"></span>'
    return f"<li>{key}{escape(part.label)} <b>{escape(part.text)}</b></li>"


def _stack(stack: Stack) -> str:
    total = sum(part.amount for part in stack.parts) or 1.0
    fills = "".join(_fill(p.role, p.amount / total) for p in stack.parts if p.amount > 0)
    spoken = ", ".join(f"{part.label} {part.text}" for part in stack.parts)
    legend = "".join(_key(part) for part in stack.parts)
    return (
        f'<div class="bar" role="img" aria-label="{escape(spoken)}">{fills}</div>'
        f'<ul class="legend">{legend}<li class="soft">{escape(stack.note)}</li></ul>'
    )


def _bars(bars: Bars) -> str:
    longest = max((part.amount for part in bars.parts), default=0.0) or 1.0
    return "".join(
        f'<div class="rate"><span class="soft">{escape(part.label)}</span>'
        f'<div class="bar" aria-hidden="true">{_fill(part.role, part.amount / longest)}</div>'
        f"<span><b>{escape(part.text)}</b> {escape(bars.unit) if index == 0 else ''}</span></div>"
        for index, part in enumerate(bars.parts)
    )


def _waterfall(chart: Waterfall) -> str:
    drawn = []
    for step in chart.steps:
        first, last = chart.span(step)
        drawn.append(
            f'<div class="rate"><span class="soft">{escape(step.label)}</span>'
            '<div class="bar" aria-hidden="true">'
            f'<i style="margin-left:{100 * first:.3f}%;width:{100 * (last - first):.3f}%;'
            f'background:{LOOKS[step.role].colour}"></i></div>'
            f"<b>{escape(step.text)}</b></div>"
        )
    return f'{"".join(drawn)}<p class="soft">{escape(chart.unit)}</p>'


def _histogram(chart: Histogram) -> str:
    tallest = max(chart.shares) or 1.0
    bins = "".join(
        f'<div title="{100 * share:.1f}%">'
        f'<i style="height:{80 * share / tallest:.1f}%;background:{LOOKS["trained"].colour}"></i>'
        f"{escape(label)}</div>"
        for label, share in zip(chart.labels, chart.shares, strict=True)
    )
    marks = _mark("mean", chart.place(chart.mean))
    texts = [chart.unit, f"{chart.mean_text} (line)"]
    if chart.limit is not None:
        place = chart.place(chart.limit)
        marks += _mark("limit", place)
        texts.append(f"{chart.limit_text} ({'off the scale' if place is None else 'dashed'})")
    return f'<div class="hist">{bins}{marks}</div><p class="soft">{escape("; ".join(texts))}</p>'


def _mark(name: str, place: float | None) -> str:
    return "" if place is None else f'<b class="{name}" style="left:{100 * place:.2f}%"></b>'


def _table(table: Table) -> str:
    columns = [i for i in range(len(table.header)) if any(row[i] for row in table.rows)]

    def cell(tag: str, i: int, text: str) -> str:
        numeric = ' class="n"' if i in table.numeric else ""
        return f"<{tag}{numeric}>{escape(text)}</{tag}>"

    head = "".join(cell("th", i, table.header[i]) for i in columns)
    body = "".join(
        f'<tr class="{table.tone(index)}">{"".join(cell("td", i, row[i]) for i in columns)}</tr>'
        for index, row in enumerate(table.rows)
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
