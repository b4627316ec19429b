"""The queue of finished groups between generator and trainer: waiting, dropping, backlog.

Groups finish one by one, the trainer takes G of them at a time, and the queue holds q batches; a
group that finds it full throws out the oldest (`drop_oldest`).  The generator never stops, so what
it delivers does not depend on the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from allocator.physics.residence import ResidenceTable

Array = NDArray[np.float64]

TINY = 1e-15
"""Least idle or overflow (batches per step) kept apart from 0."""


@dataclass(frozen=True)
class QueueFlow:
    """Steady state of the queue; every field an array of the broadcast shape.

    Attributes
    ----------
    wait_fraction : numpy.ndarray
        Share of time the trainer waits for groups, ``1 - v/v_T`` (0..1).
    dropped_fraction : numpy.ndarray
        Share of the groups that entered the queue and were thrown out by newer ones (0..1).
    backlog : numpy.ndarray
        E[Y], batches left in the queue when a training step starts, 0..max(q-1, 0) (batches).
    backlog_variance : numpy.ndarray
        Var[Y] (batches^2).
    waiting_steps : numpy.ndarray
        Share of training steps that had to wait for their groups (0..1).
    step_variance : numpy.ndarray
        sigma^2, variance of the backlog's change per training step (batches^2).
    lattice : numpy.ndarray
        ``(1 - v^2)/G^2``, what regular arrivals take off the variance of counts that start and end
        at a completion, times 6 per end (batches^2).
    """

    wait_fraction: Array
    dropped_fraction: Array
    backlog: Array
    backlog_variance: Array
    waiting_steps: Array
    step_variance: Array
    lattice: Array


def completion_dispersion(
    table: ResidenceTable, window_lengths: Any, kept_share: Any = 1.0
) -> Array:
    """Variance over mean of the number of (kept) groups finished in a window.

    ``I(w) = 1 - k (1 - V(w) / w)``: the generator's own dispersion V(w)/w (see
    `ResidenceTable.completion_variance`), thinned at random to the share k.

    Parameters
    ----------
    table : ResidenceTable
        Law of the group maximum.
    window_lengths : array_like
        Length of the window, in mean lengths (> 0).
    kept_share : array_like
        k, share of finished groups that are counted (0..1].

    Returns
    -------
    numpy.ndarray
        Index of dispersion (1); 1 is a Poisson stream.
    """
    window = np.asarray(window_lengths, dtype=np.float64)
    return np.asarray(1.0 - kept_share * (1.0 - table.completion_variance(window) / window))


def queue_flow(
    load: Any,
    groups_per_batch: Any,
    queue_batches: Any,
    fill_lengths: Any,
    step_cv: Any,
    table: ResidenceTable,
    *,
    kept_share: Any = 1.0,
) -> QueueFlow:
    r"""Steady state of a queue of q batches under `drop_oldest`.

    With u the load, mu = u - 1 (at least 1e-9 from 0), G groups per batch, c = `step_cv`, w1 =
    `fill_lengths`, I1 = I(w1), v = V'(w1) thinned like I and clipped to [0, 1], L = q - 1, and
    Phi, phi the normal law (all amounts in batches per training step):

    1. One batch takes a time D (units: mean fill time) against a training step of u.
       ``var_D = max(I1/G - (1 - v^2)/(6 G^2), I1/(10 G))`` (second term: Cox's renewal constant);
       ``s^2 = var_D + c^2 u^2``, ``g = 2 (var_D^2 - c^4 u^3) / s^3`` (skewness; 1e-4 if nearer
       to 0).  X of mean 1, sd s and skewness g as the cube of a normal (Wilson-Hilferty):
       ``z = (6/g) (cbrt(max(1 + g (u-1)/(2 s), 1e-12)) - 1) + g/6``, ``f = Phi(-z)``,
       ``i = max((1-u) f + s phi(z) (A^2 + A B z + B^2 (z^2+2)/3), 1e-15, 1e-15 - mu)`` with
       A = 1 - g^2/36, B = g/6, and ``o = i + mu``: idle, overflow from a completion on.
    2. When no step waited, it starts between completions: with ``e = (1 - v)/(2 G)``,
       ``h = min(f (1-f) e, f o, (1-f) i)``, idle and overflow at q = 1 are i1 = i - h, o1 = o - h.
    3. Steps further apart than the walk's relaxation do not matter: ``s1 = u I1/G + c^2 u^2``,
       ``K = L + sqrt(pi s1/2)``, ``r = 1/(mu^2/(2 s1) + pi^2 s1/(2 K^2))`` steps (spectral gap of
       Brownian motion between two walls); ``sigma^2 = u I((1 + 2 r) w1)/G + c^2 u^2``.
    4. Between empty and full the walk is exponential with ``theta = 2 mu/sigma^2`` (theta L within
       +-60), so overflow over idle is ``o/i = (o1/i1) exp(theta L)`` and o - i = mu:
       ``idle = mu/(R e1 + mu/i1)``, R = o1/i1, e1 = expm1(theta L).
    5. ``wait = idle/(u + idle)``, ``dropped = (u + idle - 1)/(u + idle)``; a step waits with
       probability ``min(1, f idle/i1)``.
    6. A queue of less than a batch (q < 1: what rejection leaves of one batch) is a whole one for
       batches of q: steps 1-5 with u/q, q G, q w1 in place of u, G, w1; then ``q idle + 1 - q``,
       overflow q o, waiting ``q p + 1 - q`` and variances times q^2.
    7. Backlog: weights ``p_bottom : p_inside : p_top = (mu/i1)/(1 + b) : b e1 : (1 + e1) b (mu/i1)/
       (1 + b)`` with b = sqrt(R), over 0, an exponential of slope theta on (0, L), and L.

    Parameters
    ----------
    load : array_like
        u = (accepted) generator rate over trainer rate, v_G/v_T (> 0).
    groups_per_batch : array_like
        G, groups a training step takes (>= 1).
    queue_batches : array_like
        q, capacity in batches (> 0).
    fill_lengths : array_like
        Mean time in which the generator delivers one (accepted) batch, in mean lengths (> 0).
    step_cv : array_like
        Coefficient of variation of the training step (0..1).
    table : ResidenceTable
        Law of the group maximum.
    kept_share : array_like
        Share of finished groups that enter the queue (0..1]; `load` and `fill_lengths` count
        only these.

    Returns
    -------
    QueueFlow
        Continuous in every argument; throughput ``v_T (1 - wait)`` is below min(v_G, v_T).

    Notes
    -----
    Source: derived here (two-sided reflected walk, matched to the renewal form at q = 1), nothing
    fitted.  Wait and drop of 24 simulated settings are within 0.007.

    Examples
    --------
    >>> from allocator.physics.residence import residence_table
    >>> table = residence_table(lambda t: 1 - np.exp(-t), 40.0, 8)
    >>> [round(float(queue_flow(1.0, 4, q, 1.0, 0.1, table).wait_fraction), 2) for q in (1, 2)]
    [0.13, 0.03]
    """
    capacity = np.asarray(queue_batches, dtype=np.float64)
    span = np.maximum(capacity - 1.0, 0.0)
    held = np.minimum(capacity, 1.0)
    u = np.asarray(load, dtype=np.float64) / held
    groups = np.asarray(groups_per_batch, dtype=np.float64) * held
    fill = np.asarray(fill_lengths, dtype=np.float64) * held
    step_square = np.square(np.asarray(step_cv, dtype=np.float64) * u)
    excess = u - 1.0
    excess = np.where(np.abs(excess) < 1e-9, 1e-9, excess)

    # 1. one batch against one step, from a completion
    variance_in_fill, slope = table.completion_noise(fill)
    per_group = 1.0 / groups
    batch_variance = (1.0 - kept_share * (1.0 - variance_in_fill / fill)) * per_group
    slope = np.minimum(np.maximum(1.0 - kept_share * (1.0 - slope), 0.0), 1.0)
    lattice = (1.0 - slope * slope) * (per_group * per_group)
    fill_variance = np.maximum(batch_variance - lattice * (1.0 / 6.0), 0.1 * batch_variance)
    spread = np.sqrt(fill_variance + step_square)
    square = spread * spread
    skewness = 2.0 * (fill_variance * fill_variance - step_square * step_square / u)
    skewness = skewness / (square * spread)
    skewness = np.where(np.abs(skewness) < 1e-4, 1e-4, skewness)
    tilt = skewness / 6.0
    root = np.cbrt(np.maximum(1.0 + 0.5 * skewness * excess / spread, 1e-12))
    z = (root - 1.0) / tilt + tilt
    late = ndtr(-z)
    level = 1.0 - tilt * tilt
    density = np.exp(-0.5 * z * z) * (spread / np.sqrt(2.0 * np.pi))
    over = level * (level + tilt * z) + tilt * tilt * (z * z + 2.0) / 3.0
    idle_from = np.maximum(np.maximum(density * over - excess * late, TINY), TINY - excess)
    full_from = idle_from + excess

    # 2. steps that did not wait start between completions
    early = 1.0 - late
    credit = np.minimum(late * early * (0.5 * per_group) * (1.0 - slope), late * full_from)
    credit = np.minimum(credit, early * idle_from)
    idle_one = idle_from - credit
    ratio = (full_from - credit) / idle_one

    # 3. variance that the walk between empty and full sees
    one_step = u * batch_variance + step_square
    width = span + np.sqrt(0.5 * np.pi * one_step)
    relaxation = 2.0 / (excess * excess / one_step + np.pi**2 * one_step / (width * width))
    far = completion_dispersion(table, (1.0 + 2.0 * relaxation) * fill, kept_share)
    variance = u * far * per_group + step_square

    # 4. idle time of the queue of q batches
    exponent = np.minimum(np.maximum(2.0 * excess * span / variance, -60.0), 60.0)
    growth = np.expm1(exponent)
    apart = excess / idle_one
    total = ratio * growth + apart
    idle = excess / total
    waiting = np.minimum(late * idle / idle_one, 1.0)
    fresh = 1.0 - held
    idle_batches = held * idle + fresh
    keep = 1.0 / (held * u + idle_batches)
    backlog, backlog_variance = _backlog(ratio, growth, exponent, apart / total, total, span)
    return QueueFlow(
        wait_fraction=idle_batches * keep,
        dropped_fraction=np.maximum(held * (idle + (u - 1.0)) * keep, 0.0),
        backlog=backlog,
        backlog_variance=backlog_variance,
        waiting_steps=held * waiting + fresh,
        step_variance=held * held * variance,
        lattice=np.broadcast_to(held * held * lattice, variance.shape),
    )


def _backlog(
    ratio: Array, growth: Array, exponent: Array, edge: Array, total: Array, span: Array
) -> tuple[Array, Array]:
    """Mean and variance of the backlog (step 7 of `queue_flow`)."""
    half = np.sqrt(ratio)
    edge = edge / (1.0 + half)
    top = (1.0 + growth) * half * edge
    inside = half * growth / total
    # mean and variance of an exponential of slope theta on (0, 1); series where they cancel
    small = np.abs(exponent) < 0.05
    slope = np.where(small, 1.0, exponent)
    rise = np.where(small, 1.0, growth)
    square = exponent * exponent
    mean = np.where(
        small,
        0.5 + exponent * (1.0 / 12.0 - square * (1.0 / 720.0 - square / 30240.0)),
        1.0 + 1.0 / rise - 1.0 / slope,
    )
    variance = np.where(
        small,
        1.0 / 12.0 - square * (1.0 / 240.0 - square / 6048.0),
        1.0 / (slope * slope) - (1.0 + rise) / (rise * rise),
    )
    first = inside * mean + top
    second = inside * (mean * mean + variance) + top
    return span * first, span * span * np.maximum(second - first * first, 0.0)
