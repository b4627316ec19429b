"""What a comparison says: both sides, the chain between them, and what differs in what was given.

Frozen data with one attribute a JSON key; sentences and drawings are those of `allocator.report`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from allocator.plan import PlanWarning, plain

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, ConsoleOptions, RenderResult

Pace = Literal["generator", "trainer"]
Origin = Literal["solved", "evaluated", "recorded"]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two plans.

    Attributes
    ----------
    name : the file, or the scenario's name.
    origin : `solved` now, `evaluated` now as its `plan:` fixes it, or `recorded` in a plan.
    pace : the slower side, which sets the rate; equal rates count as the generator's.
    generator_tokens_per_s, trainer_tokens_per_s : useful tokens/s if the other side never held
        it up and nothing it delivers or trains were lost afterwards.
    broken_limits : names of the limits that the plan does not keep.
    """

    name: str
    origin: Origin
    scenario: str
    status: str
    mode: str
    usd_per_useful_mtok: float
    usd_per_hour: float
    useful_tokens_per_s: float
    pace: Pace
    bottleneck: str
    cause: str
    generator_tokens_per_s: float
    trainer_tokens_per_s: float
    generator_wait_fraction: float
    trainer_wait_fraction: float
    broken_limits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """A number behind a term, on both sides; the unit is in the name. None: there is none."""

    name: str
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True)
class Term:
    """One change on the way from A to B: what it adds to the dollars per million useful tokens."""

    name: str
    usd_per_useful_mtok: float
    measures: tuple[Measure, ...]

    def measure(self, name: str) -> Measure:
        """Return a measure by its name."""
        return next(measure for measure in self.measures if measure.name == name)


@dataclass(frozen=True, slots=True)
class Change:
    """A key that is not the same on both sides; None where a side does not have it."""

    path: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Comparison:
    """Where the difference in dollars per useful token between two plans comes from.

    Attributes
    ----------
    difference_usd : B less A, per million useful tokens; the terms sum to it.
    generator_share : share of the way from A to B on which the generator sets the pace.
    terms : in the order of `allocator.comparison.identity.TERMS`.
    scenario_changes, decision_changes : keys that differ, those of `plan:` left to the decisions.
    """

    a: Side
    b: Side
    difference_usd: float
    generator_share: float
    terms: tuple[Term, ...]
    scenario_changes: tuple[Change, ...]
    decision_changes: tuple[Change, ...]
    warnings: tuple[PlanWarning, ...] = ()

    def term(self, name: str) -> Term:
        """Return a term by its name."""
        return next(term for term in self.terms if term.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, one key an attribute."""
        data = plain(self)
        assert isinstance(data, dict)
        return data

    def to_frame(self) -> pd.DataFrame:
        """Return the chain as a table (pandas DataFrame).

        Columns: `term`, what it adds in `usd_per_useful_mtok`, and `sum_usd`, the dollars after
        it; the first row is A.
        """
        import pandas as pd

        rows = [("A", 0.0, self.a.usd_per_useful_mtok)]
        for term in self.terms:
            added = term.usd_per_useful_mtok
            rows.append((term.name, added, rows[-1][2] + added))
        return pd.DataFrame(rows, columns=["term", "usd_per_useful_mtok", "sum_usd"])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the comparison in a terminal (rich protocol)."""
        from allocator.report.comparison import comparison_content
        from allocator.report.terminal import ReportView

        yield ReportView(comparison_content(self))

    def _repr_html_(self) -> str:
        """Draw the comparison in a notebook (IPython protocol)."""
        from allocator.report.comparison import comparison_content
        from allocator.report.html import report_html

        return report_html(comparison_content(self))
