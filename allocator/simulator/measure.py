"""Replications: each with random numbers of its own, measured after its warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from allocator.simulator.batches import BatchRun
from allocator.simulator.draws import Draws
from allocator.simulator.kernel import AsyncRun
from allocator.simulator.line import SimulatedLine
from allocator.simulator.result import Estimate, SimulationResult, StalenessSeen
from allocator.simulator.tally import FATES, Tally

#: Share of the steps that is left out at the beginning.
WARM_UP = 0.2
#: Confidence of the intervals.
LEVEL = 0.95
_STALENESS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def simulate(
    line: SimulatedLine, steps: int, seed: int = 0, replications: int = 1
) -> SimulationResult:
    """Simulate a line and measure it after a warm-up of 20% of the steps.

    Parameters
    ----------
    line : what is simulated.
    steps : training steps of each replication (>= 5), warm-up included.
    seed : of all random numbers; the same seed gives the same result.
    replications : independent runs (>= 1); intervals need at least 2.

    Raises
    ------
    ValueError
        On too few steps or replications, or a line in which nothing can ever be trained.
    """
    if steps < 5 or replications < 1:
        raise ValueError(f"at least 5 steps and 1 replication, given {steps} and {replications}")
    seeds = np.random.SeedSequence(seed).spawn(replications)
    return result_of(line, [window(line, steps, child) for child in seeds])


def window(
    line: SimulatedLine,
    steps: int,
    seed: np.random.SeedSequence,
    on_step: Callable[[int], None] | None = None,
) -> Tally:
    """Run one replication and return its totals after the warm-up.

    `on_step` is called with the steps begun so far, whenever one begins.
    """
    draws = Draws(line, seed)
    run = AsyncRun(line, draws) if line.mode == "async" else BatchRun(line, draws)
    run.trainer.on_step = on_step
    return run.run(steps, warm_steps(steps))


def warm_steps(steps: int) -> int:
    """Return how many of the steps are not measured."""
    return math.ceil(WARM_UP * steps)


def result_of(line: SimulatedLine, windows: list[Tally]) -> SimulationResult:
    """Return means over replications, with intervals by Student's t."""
    rows = [_measures(line, tally) for tally in windows]
    longest = max(len(tally.stale) for tally in windows)
    ages = np.zeros((len(windows), longest))
    for row, tally in zip(ages, windows, strict=True):
        row[: len(tally.stale)] = tally.stale
    shares = np.cumsum(ages, axis=1) / np.maximum(ages.sum(axis=1, keepdims=True), 1.0)
    cdf = shares.mean(axis=0)
    fates = np.array([tally.fates for tally in windows])
    fates = fates / np.maximum(fates.sum(axis=1, keepdims=True), 1e-300)
    return SimulationResult(
        **{name: estimate([row[name] for row in rows]) for name in rows[0]},
        staleness=StalenessSeen(
            mean=estimate((ages @ np.arange(longest) / np.maximum(ages.sum(axis=1), 1.0)).tolist()),
            token_mean=estimate([t.token_stale / max(t.tokens, 1e-300) for t in windows]),
            environment_state_fraction=estimate([_per(t.resumed, t.trained) for t in windows]),
            versions_per_rollout=estimate([_per(t.crossed, t.trained) for t in windows]),
            cdf=tuple(cdf.tolist()),
            **{name: _first(cdf, share) for name, share in _STALENESS.items()},
        ),
        token_fate={name: estimate(fates[:, place].tolist()) for place, name in enumerate(FATES)},
        steps=sum(tally.steps for tally in windows),
        events=sum(tally.events for tally in windows),
        replications=len(windows),
    )


def estimate(values: list[float]) -> Estimate:
    """Mean of independent replications and the half-width of its interval.

    Examples
    --------
    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, half_width=2.484, replications=3)
    """
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Estimate(mean, None, count)
    from scipy.special import stdtrit

    t = float(stdtrit(count - 1, 0.5 + LEVEL / 2.0))
    return Estimate(mean, t * float(np.std(values, ddof=1)) / math.sqrt(count), count)


def _measures(line: SimulatedLine, tally: Tally) -> dict[str, float]:
    """Every quantity of one replication that is one number."""
    seconds, batch = tally.now, line.groups.batch
    running = seconds if line.mode == "async" else seconds - tally.held_s
    at = np.asarray(tally.at)
    kept_mean = _per(tally.tokens, tally.trained)
    return {
        "step_s": seconds / tally.steps,
        "train_s": tally.train_s / tally.steps,
        "generation_s": running / tally.steps,
        "generated_samples_per_s": tally.begun / seconds,
        "generated_tokens_per_s": tally.written / seconds,
        "accepted_samples_per_s": tally.accepted / seconds,
        "trained_samples_per_s": tally.trained / seconds,
        "trainer_samples_per_s": batch * tally.steps / tally.busy_s,
        "trainer_wait_fraction": 1.0 - tally.busy_s / seconds,
        "generator_wait_fraction": tally.held_s / seconds,
        "in_flight": float(at @ np.arange(at.size)) / float(at.sum()),
        "in_flight_p99": float(_first(np.cumsum(at) / at.sum(), 0.99)),
        "decoding": tally.decoding_s / float(at.sum()),
        "reading_fraction": tally.reading_s / (line.engines.count * float(at.sum())),
        "residence_s": _per(tally.residence_s, tally.ended + tally.stopped),
        "dropped_fraction": _per(tally.dropped, tally.accepted),
        "rejected_fraction": _per(tally.rejected, tally.accepted),
        "lost_attempts_fraction": _per(tally.lost, tally.begun),
        "given_up_fraction": _per(tally.given_up, tally.started),
        "preempted_per_rollout": _per(tally.preempted, tally.started),
        "length_bias": kept_mean / line.rollouts.lengths.mean,
        "trained_tokens_per_s": tally.tokens / seconds,
        "useful_tokens_per_s": tally.useful_tokens / seconds,
        "useful_sequence_tokens_per_s": tally.useful_sequence_tokens / seconds,
    }


def _per(above: float, below: float) -> float:
    return above / below if below else 0.0


def _first(cdf: NDArray[np.float64], share: float) -> int:
    """First place at which a distribution function reaches a share."""
    return min(int(np.searchsorted(cdf, share * (1.0 - 1e-12))), cdf.size - 1)
