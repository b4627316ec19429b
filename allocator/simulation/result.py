"""What a simulation of a plan says: each quantity beside the formula's, and what to think of it.

Frozen data with one attribute a JSON key; sentences and drawings are those of `allocator.report`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from allocator.plan import PlanWarning, plain
from allocator.simulator.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, ConsoleOptions, RenderResult

Origin = Literal["solved", "evaluated", "recorded"]
Verdict = Literal["agrees", "differs"]


class Row(NamedTuple):
    """One quantity of the prediction; `low` and `high` are None without an interval."""

    path: str
    predicted: float
    simulated: float
    low: float | None
    high: float | None
    difference: float
    tolerance: float
    outside_noise: bool
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class StalenessBeside:
    """Shares of trained samples of 0, 1, 2, ... versions, as predicted and as simulated.

    Attributes
    ----------
    predicted : what is missing to 1 lies beyond the last entry.
    cdf_distance : largest distance between the two distribution functions.
    predicted_token_mean, simulated_token_mean : mean over tokens, from when each was written.
    """

    predicted: tuple[float, ...]
    simulated: tuple[float, ...]
    cdf_distance: float
    predicted_token_mean: float
    simulated_token_mean: float


@dataclass(frozen=True, slots=True)
class InFlight:
    """Rollouts in flight on all engines.

    Attributes
    ----------
    cap : the plan's. mean, p99 : over the time in which the engines write.
    sandboxes_p99 : sandboxes that p99 rollouts need, which a quota must hold; None without any.
    """

    cap: int
    mean: float
    p99: float
    sandboxes_p99: float | None


@dataclass(frozen=True)
class Simulation:
    """A plan's discrete-event simulation beside its prediction.

    The mappings are keyed by prediction path, such as `step_s` or `staleness.mean`.

    Attributes
    ----------
    origin : whether the plan was `solved` now, `evaluated` as its `plan:` fixes it, or `recorded`.
    simulated, predicted, difference : means over replications, the formula's value, and the first
        less the second, each in the quantity's own unit.
    intervals : of the simulated means at `interval_level`, by Student's t over replications; empty
        with one replication. Percentiles of staleness have none.
    tolerances : distance up to which the product promises agreement of formula and simulation.
    verdicts : `agrees` within the tolerance or the interval, else `differs`.
    outside_noise : what the interval does not explain, small or large.
    steps, warm_up_steps : of each replication, the latter being the first of the former.
    events, wall_s, events_per_s : events after the warm-ups, seconds of computing, and all events
        of the simulation in proportion to the steps, per second.
    trace : what happened during some steps of the first replication, where asked for; not in JSON.
    """

    name: str
    origin: Origin
    scenario: str
    mode: str
    simulated: dict[str, float]
    predicted: dict[str, float]
    difference: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    tolerances: dict[str, float]
    verdicts: dict[str, Verdict]
    outside_noise: tuple[str, ...]
    staleness: StalenessBeside
    in_flight: InFlight
    seed: int
    steps: int
    warm_up_steps: int
    replications: int
    events: int
    interval_level: float = 0.95
    warnings: tuple[PlanWarning, ...] = ()
    wall_s: float = field(default=0.0, compare=False)
    events_per_s: float = field(default=0.0, compare=False)
    trace: Trace | None = field(default=None, repr=False, compare=False)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Everything about each quantity together, in the order of the prediction."""
        return tuple(self._row(path) for path in self.predicted)

    def _row(self, path: str) -> Row:
        low, high = self.intervals.get(path, (None, None))
        return Row(
            path,
            self.predicted[path],
            self.simulated[path],
            low,
            high,
            self.difference[path],
            self.tolerances[path],
            path in self.outside_noise,
            self.verdicts[path],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, one key an attribute, without the trace."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name != "trace"}

    def to_frame(self) -> pd.DataFrame:
        """Return one row a quantity, with the columns of `Row` (pandas DataFrame)."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(Row._fields))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the simulation in a terminal (rich protocol)."""
        from allocator.report.simulation import simulation_content
        from allocator.report.terminal import ReportView

        yield ReportView(simulation_content(self))

    def _repr_html_(self) -> str:
        """Draw the simulation in a notebook (IPython protocol)."""
        from allocator.report.html import report_html
        from allocator.report.simulation import simulation_content

        return report_html(simulation_content(self))
