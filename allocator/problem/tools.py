"""Time of tool calls: the mean of one, and its law where it varies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator.physics.length_tables import empirical_from_samples
from allocator.physics.lengths import (
    Lengths,
    UnreachableLengthsError,
    capped_lognormal_from_mean_cv,
    capped_lognormal_from_p50_p99,
)
from allocator.scenario.latency import LatencyByMean, LatencyByPercentiles
from allocator.scenario.quantity import Quantity
from allocator.scenario.references import read_latency_file

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.schema import Scenario

TOOLS = "workload.tool_s"


def tool_times(scenario: Scenario, ledger: Ledger) -> tuple[float, Lengths | None]:
    """Return the mean seconds of one tool call, and the law of one where it varies.

    One call ends each turn; calls are independent. Laws of lengths serve for seconds.

    Raises
    ------
    ScenarioError
        When no distribution has the observed seconds and limit.
    """
    said = scenario.workload.tool_s
    if isinstance(said, Quantity):
        return ledger.quantity(TOOLS, said, "s"), None
    if isinstance(said, (LatencyByMean, LatencyByPercentiles)):
        call = _stated(scenario, said, ledger)
    else:
        file = scenario.latency_file
        assert file is not None
        call = empirical_from_samples(read_latency_file(file))
    return call.mean, call if call.cv > 0.0 else None


def _stated(
    scenario: Scenario, said: LatencyByMean | LatencyByPercentiles, ledger: Ledger
) -> Lengths:
    def use(key: str, quantity: Quantity, unit: str = "s") -> float:
        return ledger.quantity(f"{TOOLS}.{key}", quantity, unit)

    limit = None if said.max is None else use("max", said.max)
    try:
        if isinstance(said, LatencyByMean):
            mean, cv = use("mean", said.mean), use("cv", said.cv, "1")
            return capped_lognormal_from_mean_cv(mean, cv, limit)
        return capped_lognormal_from_p50_p99(use("p50", said.p50), use("p99", said.p99), limit)
    except UnreachableLengthsError as error:
        raise scenario.error(
            TOOLS,
            "observed seconds that a distribution with this limit can have",
            # The law is one of lengths, and says so.
            str(error).replace(" tokens", " s"),
        ) from error
