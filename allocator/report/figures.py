"""Pictures of a plan (split, rates, staleness, tokens) and of a comparison (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Any

from allocator.comparison.result import Comparison
from allocator.plan import Plan
from allocator.report.comparison import comparison_content
from allocator.report.content import plan_content
from allocator.report.palette import LOOKS
from allocator.report.tree import (
    Bars,
    Fact,
    Facts,
    Histogram,
    Part,
    Report,
    Section,
    Sentence,
    Stack,
    Waterfall,
)

#: Pixels and dots per inch: 1600 x 900.
SIZE_INCHES = (16.0, 9.0)
DPI = 100
LONGEST_TITLE = 80
INK = "#1c1f23"
SOFT = "#5b6470"
LIMIT = "#D55E00"
#: Widths, as shares of the picture, of the rates' labels and of their longest bar.
LABELS, RATES = 0.135, 0.22
#: Characters of a label that fit into a whole bar.
CHARACTERS = 130


def plan_picture(plan: Plan, path: str | Path) -> None:
    """Write a 1600 x 900 PNG of a plan that has a prediction.

    The split and the fate of tokens are drawn to scale; rates start at zero and share one scale;
    the distribution of staleness shows its mean and the limit.

    Parameters
    ----------
    plan : Plan
        Of any status, as long as it has decisions and a prediction.
    path : str or Path
        File to write, ending in ``.png``.

    Raises
    ------
    ValueError
        If the plan has no prediction.
    ModuleNotFoundError
        If matplotlib is not installed (it is a development dependency).
    """
    if plan.decisions is None or plan.prediction is None or plan.infeasibility is not None:
        raise ValueError("a plan without prediction cannot be drawn")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Dollars are dollars, not formulas, and the look must not depend on the user's settings.
    with rc_context({"text.parse_math": False, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI, facecolor="white")
        _draw(figure, plan_content(plan))
        figure.savefig(path, format="png")


def comparison_picture(comparison: Comparison, path: str | Path) -> None:
    """Write a 1600 x 900 PNG of a comparison: the chain of dollars as a waterfall from A to B.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed (it is a development dependency).
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"text.parse_math": False, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI, facecolor="white")
        report = comparison_content(comparison)
        figure.text(0.035, 0.945, report.title, size=22, weight="bold", color=INK)
        figure.text(0.035, 0.898, report.headline, size=17, color=INK)
        for place, (label, side) in enumerate((("A", comparison.a), ("B", comparison.b))):
            name = shorten(f"{label}: {side.name}", CHARACTERS)
            figure.text(0.035, 0.862 - 0.028 * place, name, size=13, color=SOFT)
        _waterfall(figure.add_axes((0.165, 0.06, 0.76, 0.7)), _section(report, "dollars"))
        figure.savefig(path, format="png")


def _waterfall(axes: Any, section: Section) -> None:
    chart = next(block for block in section.blocks if isinstance(block, Waterfall))
    _bare(axes)
    places = range(len(chart.steps))
    for place, step in zip(places, chart.steps, strict=True):
        low, high = min(step.start, step.end), max(step.start, step.end)
        axes.barh(place, high - low, left=low, height=0.7, color=LOOKS[step.role].colour)
        axes.text(high, place, f"  {step.text}", va="center", size=14, weight="bold",
                  color=INK)  # fmt: skip
        if place + 1 < len(chart.steps):
            axes.plot([step.end] * 2, [place, place + 1], color=SOFT, lw=1, ls=(0, (2, 2)),
                      zorder=0)  # fmt: skip
    axes.set_yticks(list(places), [step.label for step in chart.steps])
    axes.set_xlim(0, 1.1 * max(max(step.start, step.end) for step in chart.steps) or 1.0)
    axes.set_xticks([])
    axes.invert_yaxis()
    _title(axes, chart.unit, above=1.0)


def _draw(figure: Any, report: Report) -> None:
    left, right = 0.035, 0.965
    title = shorten(report.title, LONGEST_TITLE)
    figure.text(left, 0.945, title, size=22, weight="bold", color=INK)
    figure.text(right, 0.945, report.status, size=16, color=SOFT, ha="right")
    figure.text(left, 0.898, report.headline, size=17, color=INK)
    wide = right - left
    _stack(figure.add_axes((left, 0.75, wide, 0.07)), _section(report, "split"),
           "GPUs, drawn to scale")  # fmt: skip
    _rates(figure.add_axes((left + LABELS, 0.345, RATES, 0.21)), _section(report, "rates"))
    _staleness(figure.add_axes((0.585, 0.345, right - 0.585, 0.21)), _section(report, "staleness"))
    _stack(figure.add_axes((left, 0.145, wide, 0.07)), _section(report, "tokens"),
           "Fate of generated tokens")  # fmt: skip
    said = [block.text for block in _section(report, "binds").blocks if isinstance(block, Sentence)]
    figure.text(left, 0.085, " ".join(said), size=14, weight="bold", color=INK)
    facts = [
        fact
        for name in ("cost", "compute")
        for fact in _facts(_section(report, name))
        if fact.label in ("run", "per hour", "MFU busy", "MFU wall", "update fraction")
    ]
    text = "     ".join(f"{fact.label} {fact.value}" for fact in facts)
    figure.text(left, 0.04, text, size=13, color=SOFT)


def _facts(section: Section) -> list[Fact]:
    blocks = [block for block in section.blocks if isinstance(block, Facts)]
    return [fact for block in blocks for fact in block.items]


def _section(report: Report, name: str) -> Section:
    section = report.section(name)
    assert section is not None, name
    return section


def _title(axes: Any, text: str, x: float = 0.0, above: float = 1.0) -> None:
    axes.text(x, above, text, transform=axes.transAxes, size=15, weight="bold", color=INK,
              va="bottom")  # fmt: skip


def _bare(axes: Any) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelsize=14, labelcolor=INK)


def _ink_on(colour: str) -> str:
    """Return black or white, whichever stands out more on `colour` (relative luminance)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45 else INK


def _stack(axes: Any, section: Section, title: str) -> None:
    stack = next(block for block in section.blocks if isinstance(block, Stack))
    total = sum(part.amount for part in stack.parts) or 1.0
    _bare(axes)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xticks([])
    axes.set_yticks([])
    start, beside = 0.0, []
    for part in stack.parts:
        share = part.amount / total
        look = LOOKS[part.role]
        axes.barh(0.5, share, left=start, height=1, color=look.colour, edgecolor="white", lw=2)
        text = f"{part.label} {part.text}"
        if share * CHARACTERS >= len(text) + 2:
            axes.text(start + share / 2, 0.5, text, ha="center", va="center", size=15,
                      weight="bold", color=_ink_on(look.colour))  # fmt: skip
        elif part.amount > 0:
            beside.append(part)
        start += share
    _title(axes, title, above=1.12)
    _legend(axes, beside)
    lines = [f"{fact.label}: {fact.value}" for fact in _facts(section)]
    axes.text(0, -0.2, "\n".join(lines), transform=axes.transAxes, size=13, color=SOFT, va="top",
              linespacing=1.45)  # fmt: skip


def _legend(axes: Any, parts: list[Part]) -> None:
    """Name the parts that are too narrow for a label, right above the bar's right end."""
    from matplotlib.patches import Patch

    if parts:
        handles = [
            Patch(color=LOOKS[part.role].colour, label=f"{part.label} {part.text}")
            for part in parts
        ]
        axes.legend(
            handles=handles, ncols=len(handles), loc="lower right", bbox_to_anchor=(1.0, 1.02),
            frameon=False, fontsize=14, handlelength=1, handleheight=1, borderaxespad=0,
        )  # fmt: skip


def _rates(axes: Any, section: Section) -> None:
    bars = next(block for block in section.blocks if isinstance(block, Bars))
    _bare(axes)
    names = [part.label for part in bars.parts]
    amounts = [part.amount for part in bars.parts]
    colours = [LOOKS[part.role].colour for part in bars.parts]
    axes.barh(names, amounts, height=0.62, color=colours)
    axes.invert_yaxis()
    axes.set_xlim(0, max(amounts) or 1.0)
    axes.set_xticks([])
    for place, part in enumerate(bars.parts):
        axes.text(part.amount, place, f"  {part.text}", va="center", size=14, weight="bold",
                  color=INK)  # fmt: skip
    _title(axes, f"Rates, {bars.unit}", x=-LABELS / RATES, above=1.06)
    said = [block.text for block in section.blocks if isinstance(block, Sentence)]
    axes.text(-LABELS / RATES, -0.06, "\n".join(said), transform=axes.transAxes, size=13,
              color=SOFT, va="top", linespacing=1.5)  # fmt: skip


def _staleness(axes: Any, section: Section) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    chart = next((block for block in section.blocks if isinstance(block, Histogram)), None)
    _bare(axes)
    _title(axes, "Staleness when trained on, weight versions", above=1.06)
    if chart is None:
        axes.set_xticks([])
        axes.set_yticks([])
        text = "\n".join(f"{fact.label} {fact.value}" for fact in _facts(section))
        axes.text(0, 0.9, text, transform=axes.transAxes, size=14, color=INK, va="top",
                  linespacing=1.5)  # fmt: skip
        return
    places = range(chart.first, chart.first + len(chart.shares))
    axes.bar(places, chart.shares, width=0.86, color=LOOKS["trained"].colour)
    axes.set_xticks(list(places), chart.labels)
    axes.set_xlim(chart.first - 0.6, chart.first + len(chart.shares) - 0.4)
    top = 1.2 * max(chart.shares)
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(4, prune="lower", steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.tick_params(axis="y", labelcolor=SOFT, labelsize=12)
    axes.grid(axis="y", color="#d9dee4", lw=1)
    axes.set_axisbelow(True)
    if chart.place(chart.mean) is not None:
        axes.plot([chart.mean] * 2, [0, top], color=INK, lw=2)
    texts = [(INK, f"line: {chart.mean_text}")]
    if chart.limit is not None:
        outside = chart.place(chart.limit) is None
        if not outside:
            axes.plot([chart.limit] * 2, [0, top], color=LIMIT, lw=3, ls=(0, (3, 2)))
        texts.append((LIMIT, f"{'off the scale' if outside else 'dashed'}: {chart.limit_text}"))
    for place, (colour, text) in zip((0.0, 0.4), texts, strict=False):
        axes.text(place, -0.25, text, transform=axes.transAxes, va="top", size=14, weight="bold",
                  color=colour)  # fmt: skip
