"""Staleness: weight versions between the start of a group and the training step that uses it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocator.physics.pipeline import (
    Pipeline,
    StalenessLaw,
    Tables,
    arguments_of,
    in_blocks,
    law_of_block,
    staleness_law,
)
from allocator.physics.residence import NODE_VALUES, ResidenceTable

__all__ = [
    "Pipeline",
    "StalenessLaw",
    "accepted_fraction",
    "accepted_staleness_mean",
    "admission_rate_per_s",
    "after_rejection",
    "staleness_cdf",
    "staleness_law",
    "staleness_mean",
    "staleness_quantile",
]

Array = NDArray[np.float64]

ROOT_BLOCK = 65536
"""Plans whose reject roots are sought together; finished ones drop out."""

CHORDS = 7
"""Evaluations by chords alone; later every second one halves the bracket."""

ROOT_EVALUATIONS = 100
"""Most evaluations of the reject root; 5 suffice on average."""

NOTHING_OLDER = 1.0 - 1e-9
"""P(L) above which a limit of L versions leaves the mean as it is."""

LEAST_ACCEPTED = 1e-6
"""Share returned when no group is fresh enough."""

ROOT_TOLERANCE = 1e-7
"""Misfit below which one more chord, not evaluated, ends the search (error below 1e-9)."""


def staleness_mean(law: StalenessLaw) -> Array:
    """Mean staleness in weight versions: ``m batches + (m - 1)/2``, m optimiser steps per batch."""
    steps = law.optimizer_steps
    return np.asarray(steps * law.batches + 0.5 * (steps - 1.0))


def staleness_cdf(versions: Any, law: StalenessLaw, table: Tables) -> Array:
    r"""Probability that the staleness is at most `versions`.

    ``P(n batches) = [J(M + g (n + 1/2 - mu + h)) - J(M + g (n + 1/2 - mu - h))] / (2 g h)``, J the
    integrated cdf of the group maximum; with m versions per batch and ``k = m b + r``,
    ``P(k) = [(r + 1) P(b) + (m - 1 - r) P(b - 1)] / m``.

    Parameters
    ----------
    versions : array_like
        k, whole numbers; below 0 the probability is 0.
    law : StalenessLaw
        From `staleness_law`; broadcasts against `versions`.
    table : ResidenceTable
        The table the law was made with.

    Returns
    -------
    numpy.ndarray
        Probability (0..1).
    """
    count = np.asarray(versions, dtype=np.float64)
    arrays = (
        count,
        law.centre,
        law.half_width,
        law.lengths_per_batch,
        law.optimizer_steps,
        law.group_kind,
    )

    def block(count: Any, mean: Any, half: Any, lengths: Any, steps: Any, kind: Any) -> Any:
        return (_cdf(count, mean, half, lengths, steps, table.rows(kind)),)

    return in_blocks(block, *arrays)[0]


def staleness_quantile(probability: Any, law: StalenessLaw, table: Tables) -> Array:
    """Smallest number of versions k with P(staleness <= k) >= `probability` (0..1).

    A probability of 1 gives the largest staleness the table knows (lengths exceeded once in 1e7
    groups are outside it).  By halving, so exact.
    """
    wanted = np.minimum(np.asarray(probability, dtype=np.float64), 1.0 - 1e-12)
    each = table.rows(law.group_kind)
    longest = NODE_VALUES * each.spacing - each.tailness
    reach = law.centre + law.half_width + longest / law.lengths_per_batch + 2.0
    high: Array = np.ceil(law.optimizer_steps * reach) + np.zeros(np.shape(wanted))
    low = np.full(np.shape(high), -1.0)
    while np.any(high - low > 1.0):
        middle = np.floor(0.5 * (low + high))
        enough = staleness_cdf(middle, law, table) >= wanted
        high = np.where(enough & (high - low > 1.0), middle, high)
        low = np.where(enough, low, middle)
    return high


def accepted_fraction(limit_versions: Any, pipeline: Pipeline, table: Tables) -> Array:
    """Share of finished groups trained when staler ones are rejected at consumption.

    The root of ``a = P(staleness <= limit)`` for the pipeline `after_rejection`.  ``P - a`` falls
    in a, so there is one root; found by chords kept inside a bracket (halving when a chord leaves
    it or is slow), each plan on its own, to 1e-9.

    Parameters
    ----------
    limit_versions : array_like
        L, greatest staleness that is trained (versions, >= 0).
    pipeline : Pipeline
        With `load` and `kept_share` as they are without rejection.
    table : ResidenceTable
        Law of the group maximum.

    Returns
    -------
    numpy.ndarray
        a (0..1); `after_rejection` gives the pipeline it leads to.

    Examples
    --------
    >>> from allocator.physics.residence import residence_table
    >>> table = residence_table(lambda t: 1 - np.exp(-t), 40.0, 8)
    >>> pipeline = Pipeline(0.5, 32, 2, 10.0, 0.1, 20.0)
    >>> [round(float(accepted_fraction(limit, pipeline, table)), 2) for limit in (2, 4, 8)]
    [0.69, 0.91, 1.0]
    """
    return in_blocks(
        lambda limit, *row: (_accepted(limit, Pipeline(*row), table),),
        limit_versions,
        *arguments_of(pipeline),
        block=ROOT_BLOCK,
    )[0]


def after_rejection(pipeline: Pipeline, accepted: Any) -> Pipeline:
    """Pipeline of the accepted share a: load u a, kept share K a, and q a batches in the queue.

    A stale group takes its place in the queue until it is looked at.
    """
    return replace(
        pipeline,
        load=np.asarray(pipeline.load) * accepted,
        queue_batches=np.asarray(pipeline.queue_batches) * accepted,
        kept_share=np.asarray(pipeline.kept_share) * accepted,
    )


def accepted_staleness_mean(limit: int, law: StalenessLaw, table: Tables) -> Array:
    """Mean staleness of what a limit of L versions lets pass: ``L - sum_{k<L} P(k) / P(L)``.

    Where practically nothing is older (P(L) above 1 - 1e-9) that is the mean of the law.
    """
    passed = staleness_cdf(limit, law, table)
    mean = staleness_mean(law)
    chosen = np.flatnonzero(passed < NOTHING_OLDER)
    if chosen.size:
        part = StalenessLaw(*(np.ravel(getattr(law, f.name))[chosen] for f in fields(law)))
        below = sum((staleness_cdf(k, part, table) for k in range(limit)), np.zeros(()))
        flat = np.array(mean, dtype=np.float64).reshape(-1)
        flat[chosen] = limit - below / np.maximum(np.ravel(passed)[chosen], 1e-12)
        mean = flat.reshape(np.shape(mean))
    return np.asarray(np.minimum(mean, limit))


def admission_rate_per_s(
    limit_versions: Any, batch_samples: Any, residence_s: Any, longest_s: Any, train_s: Any
) -> Array:
    """Highest rate (samples/s) with at most (L + 1) B samples in flight, queued and in training.

    ``(L + 1/2) B / (E[W] + train)`` for L >= 1, ``B / (E[max of B] + train)`` for L = 0.  When it
    binds the mean staleness is L; it bounds no maximum.

    Limit in versions, batch in samples; `residence_s` is E[W] of a group, `longest_s` that of the
    longest sample of a batch (s).  Source: design section 6, found by simulation.

    Examples
    --------
    >>> float(admission_rate_per_s(1, 64, 20.0, 40.0, 12.0))
    3.0
    """
    limit = np.asarray(limit_versions, dtype=np.float64)
    samples = np.where(limit >= 1.0, (limit + 0.5) * batch_samples, batch_samples)
    held = np.where(limit >= 1.0, residence_s, longest_s) + np.asarray(train_s)
    return np.asarray(samples / held)


def _cdf(
    count: Any, mean: Any, half: Any, lengths: Any, steps: Any, table: ResidenceTable
) -> Array:
    """See `staleness_cdf`."""
    batch = np.floor(count / steps)
    value = _batch_cdf(batch, mean, half, lengths, table)
    if np.any(steps != 1.0):
        rest = count - steps * batch
        before = _batch_cdf(batch - 1.0, mean, half, lengths, table)
        value = ((rest + 1.0) * value + (steps - 1.0 - rest) * before) / steps
    return value


def _batch_cdf(batch: Any, mean: Any, half: Any, lengths: Any, table: ResidenceTable) -> Array:
    """Distribution function in batches (see `staleness_cdf`)."""
    centre = batch + 0.5 - mean
    upper = table.integrated_cdf(table.tailness + lengths * (centre + half))
    lower = table.integrated_cdf(table.tailness + lengths * (centre - half))
    value = (upper - lower) / (2.0 * lengths * half)
    return np.where(batch < 0.0, 0.0, np.minimum(value, 1.0))


def _accepted(limit: Any, line: Pipeline, table: Tables) -> Array:
    """Root of the reject equation for many plans at once (see `accepted_fraction`)."""

    def excess_of_block(accepted: Array, limits: Any, *row: Any) -> tuple[Array]:
        line = after_rejection(Pipeline(*row), accepted)
        mean, half, lengths, _, _, steps, _ = law_of_block(line, table)
        each = table.rows(line.group_kind)
        return (np.asarray(_cdf(limits, mean, half, lengths, steps, each) - accepted),)

    def excess(accepted: Array) -> Array:
        return in_blocks(excess_of_block, accepted, *_rows(flat, active))[0]

    values = [np.asarray(value, dtype=np.float64) for value in (limit, *arguments_of(line))]
    shape = np.broadcast_shapes(*(value.shape for value in values))
    flat = [
        value if value.ndim == 0 else np.broadcast_to(value, shape).reshape(-1) for value in values
    ]
    root = np.ones(int(np.prod(shape)))
    active = np.arange(root.size)
    before = excess(root)
    active = np.flatnonzero(before < -1e-3 * ROOT_TOLERANCE)
    before = before[active]
    last, trial = np.ones(active.size), 1.0 + 0.5 * before
    low, high = np.full(active.size, LEAST_ACCEPTED), last
    for evaluation in range(ROOT_EVALUATIONS):
        if active.size == 0:
            break
        value = excess(trial)
        low, high = np.where(value > 0.0, trial, low), np.where(value > 0.0, high, trial)
        level = value == before
        guess = trial - value * (trial - last) / np.where(level, 1.0, value - before)
        inside = (guess > low) & (guess < high) & ~level
        found = inside & (np.abs(value) < ROOT_TOLERANCE)
        root[active] = np.where(found, guess, trial)
        going = ~found & (high - low > 1e-3 * ROOT_TOLERANCE)
        inside &= evaluation < CHORDS or evaluation % 2 == 0
        last, before, trial = trial, value, np.where(inside, guess, 0.5 * (low + high))
        active, low, high, last, before, trial = (
            array[going] for array in (active, low, high, last, before, trial)
        )
    return root.reshape(shape)


def _rows(values: list[Array], chosen: NDArray[np.intp]) -> list[Array]:
    """Chosen elements of flat arrays; single values stay single."""
    return [value if value.ndim == 0 else value[chosen] for value in values]
