"""Which quantities of a prediction a simulation measures, how, and how far apart they may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from allocator.recorded import PlanData
from allocator.simulator.line import SimulatedLine
from allocator.simulator.measure import estimate
from allocator.simulator.result import Estimate, SimulationResult
from allocator.simulator.tally import FATES, Tally

#: Distances up to which formula and simulation are held to agree, as fractions or in the unit.
RATE, WAIT, FATE, VERSIONS, VERSIONS_SHARE = 0.03, 0.03, 0.02, 0.15, 0.05
_STALE = ("mean", "token_mean", "versions_per_rollout", "environment_state_fraction")
_PERCENTILES = ("p50", "p95", "p99")


def measured(
    line: SimulatedLine,
    result: SimulationResult,
    windows: Sequence[Tally],
    plan: PlanData,
    sequence_basis: bool,
) -> dict[str, Estimate]:
    """Return what the simulation measured of a prediction, by its path.

    Left out is what only has the prediction's meaning in the other modes: `generation_s` is that
    of a whole batch, `accepted_samples_per_s` and `decoding` those of a stream.

    Parameters
    ----------
    windows : totals of the replications behind `result`.
    plan : whose dollars are spread over the simulated rates.
    sequence_basis : whether tokens per second count prompts and tool outputs too.
    """
    stream = line.mode == "async"
    plain = ("step_s", "train_s", *(() if stream else ("generation_s",)),
             "generated_samples_per_s", "generated_tokens_per_s",
             *(("accepted_samples_per_s",) if stream else ()),
             "trained_samples_per_s", "trainer_samples_per_s",
             "trainer_wait_fraction", "generator_wait_fraction")  # fmt: skip
    found = {name: getattr(result, name) for name in plain}
    stale = result.staleness
    found |= {f"staleness.{name}": getattr(stale, name) for name in _STALE}
    found |= {
        f"staleness.{name}": Estimate(float(getattr(stale, name)), None, result.replications)
        for name in _PERCENTILES
    }
    found["staleness.rejected_fraction"] = result.rejected_fraction
    if stream:
        found["decoding"] = result.decoding
    found["length_bias"] = result.length_bias
    found |= {f"token_fate.{name}": result.token_fate[name] for name in FATES}
    if line.sandboxes is not None:
        found["environment.failed_rollouts_fraction"] = result.lost_attempts_fraction
    kind = line.rollouts
    around = kind.prompt_tokens + (kind.turns - 1) * kind.tool_tokens if sequence_basis else 0.0
    trained = [(t.tokens + around * t.trained) / t.now for t in windows]
    useful = [(t.useful_tokens + around * t.useful) / t.now for t in windows]
    found["trained_tokens_per_s"] = estimate(trained)
    found["useful_tokens_per_s"] = estimate(useful)
    for path, rates, rate in (
        ("usd_per_mtok", trained, "trained_tokens_per_s"),
        ("usd_per_useful_mtok", useful, "useful_tokens_per_s"),
    ):
        usd_by_rate = plan.number(f"prediction.{path}") * plan.number(f"prediction.{rate}")
        found[path] = _priced(usd_by_rate, rates)
    return found


def _priced(usd_by_rate: float, rates: list[float]) -> Estimate:
    """Dollars per million tokens at each replication's rate."""
    if min(rates) <= 0.0:
        return Estimate(math.inf, None, len(rates))
    return estimate([usd_by_rate / rate for rate in rates])


def tolerance(path: str, simulated: float) -> float:
    """Return how far the formula may be from a simulated value, in the quantity's unit.

    Rates, seconds and dollars 3%, waits 0.03, fates of tokens and other shares 0.02, means of
    staleness 0.15 versions or 5%; percentiles of staleness are to be equal.

    Examples
    --------
    >>> tolerance("step_s", 200.0), tolerance("staleness.mean", 1.0)
    (6.0, 0.15)
    """
    return _RULES[_unit(path)](abs(simulated))


def _unit(path: str) -> str:
    last = path.rpartition(".")[2]
    if last in _PERCENTILES:
        return "whole"
    if last.endswith("wait_fraction"):
        return "wait"
    if last.endswith("fraction") or path.startswith("token_fate."):
        return "share"
    return "versions" if path.startswith("staleness.") else "amount"


_RULES: dict[str, Callable[[float], float]] = {
    "whole": lambda _: 0.0,
    "wait": lambda _: WAIT,
    "share": lambda _: FATE,
    "versions": lambda value: max(VERSIONS, VERSIONS_SHARE * value),
    "amount": lambda value: RATE * value,
}


def is_share(path: str) -> bool:
    """Whether a quantity is a fraction of a whole, whose differences are percentage points."""
    return _unit(path) in ("wait", "share")


def is_versions(path: str) -> bool:
    """Whether a quantity counts weight versions, whose differences are versions too."""
    return _unit(path) in ("versions", "whole")
