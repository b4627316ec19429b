"""Oversampling: starting more rollouts than are kept, and what cancelling the slowest does.

The kept are shorter than the law of lengths says, the cancelled cost tokens up to the cut. All
lengths are in tokens.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from allocator.physics.lengths import (
    CappedLogNormal,
    Lengths,
    UnreachableLengthsError,
    capped_lognormal_from_mean_cv,
)
from allocator.physics.moments import ORDERS, FloatArray, plain


@dataclass(frozen=True)
class Oversampling:
    """What cancelling the slowest rollouts does to lengths; arrays of the factors' shape.

    A rollout is *dispatched* when it starts, *kept* when it ends before its group's cut; the
    others stop at the cut. Without oversampling all are kept and the cut is infinite.
    """

    cut_tokens: FloatArray
    """Expected length at which a rollout is cancelled; inf where nothing is."""
    kept_mean_tokens: FloatArray
    """E[L | kept]."""
    kept_second_moment_tokens2: FloatArray
    """E[L^2 | kept], for the trainer's attention."""
    dispatched_mean_tokens: FloatArray
    """E[min(L, cut)] over all dispatched."""
    dispatched_second_moment_tokens2: FloatArray
    """E[min(L, cut)^2] over all dispatched, for the in-flight context E[R^2] / 2 E[R]."""
    dispatched_third_moment_tokens3: FloatArray
    """E[min(L, cut)^3] over all dispatched, for the spread of the in-flight context."""
    tokens_per_kept: FloatArray
    """Tokens generated per kept rollout, oversampling x E[min(L, cut)]."""
    discarded_token_fraction: FloatArray
    """Share of generated tokens in cancelled rollouts, 1 - kept mean / tokens per kept."""
    discarded_rollout_fraction: FloatArray
    """Share of dispatched rollouts that are cancelled, 1 - 1/oversampling."""
    length_bias: FloatArray
    """E[L | kept] / E[L] <= 1."""


def oversampling_cut(
    lengths: Lengths,
    oversampling: ArrayLike,
    group_size: ArrayLike,
    by: Literal["sample", "group"],
) -> Oversampling:
    """Return lengths kept and discarded when `oversampling` rollouts start per rollout kept.

    Parameters
    ----------
    lengths : law of the response length L.
    oversampling : o >= 1, rollouts dispatched per rollout kept.
    group_size : S >= 1, rollouts kept in a group; broadcasts with `oversampling`.
    by : "sample": each group starts o S rollouts together, keeps the first S to end and cancels
        the rest at that moment. "group": of a long stream of groups of S the share 1/o with the
        smallest maximum is kept; the others stop at the cut.

    Notes
    -----
    By sample, with L_(k) the k-th smallest of n = o S (real n by Beta ranks, see
    `Lengths.order_statistic_moments`)::

        cut = E[L_(S)]    kept = (1/S) sum_{k <= S} E[L_(k)^m]
        dispatched = kept/o + (1 - 1/o) E[L_(S)^m]

    This is exact for rollouts of one speed that start together. The short form with one fixed
    cut, E[L | L <= E[L_(S)]] and E[min(L, E[L_(S)])] (design section 2), is its limit for large S
    when the cut is clear of the cap; the share of rollouts below a fixed cut is not 1/o. At
    S = 8, o = 1.25 its kept mean is 7% low at cv .5, and under a cap of 27,000 with mean 12,704
    27% low at cv .8 (25% truncated), so it is not used.

    By group, F(q)^S = 1/o: q = Q(v) with v = o^(-1/S), and a kept rollout has a uniform rank
    below v::

        kept = (1/v) int_0^v Q(u)^m du = (E[min(L, q)^m] - q^m (1 - v)) / v
        dispatched = E[min(L, q)^m]

    Ranks also order rollouts of equal length (the atom at the cap), at random. Where q is the
    cap, cancelled rollouts are full-length and kept ones include a part of the truncated: all
    quantities are continuous in o, down to o = 1 where everything is kept.

    Raises
    ------
    ValueError
        oversampling < 1 or group_size < 1.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> law = capped_lognormal_from_mean_cv(12_704.0, 0.5, 27_000.0)
    >>> got = oversampling_cut(law, 1.25, 8, "sample")
    >>> round(float(got.cut_tokens)), round(float(got.kept_mean_tokens))
    (16607, 10430)
    >>> round(float(got.discarded_token_fraction), 3), round(float(got.length_bias), 3)
    (0.285, 0.821)
    """
    factor, size = np.broadcast_arrays(
        np.asarray(oversampling, dtype=np.float64), np.asarray(group_size, dtype=np.float64)
    )
    if not (np.all(factor >= 1) and np.all(size >= 1) and np.all(np.isfinite(factor * size))):
        raise ValueError("oversampling and group_size must be finite and at least 1")
    idle = factor == 1.0
    discarded = 1.0 - 1.0 / factor
    if by == "sample":
        count = factor * size
        kept = lengths.first_finished_moments(size, count)
        last = lengths.order_statistic_moments(size, count)
        cut = last[0]
        dispatched = kept * (1 - discarded) + last * discarded
    else:
        # A factor so near 1 that no level lies below certainty cancels nothing.
        idle = np.exp(-np.log(factor) / size) == 1.0
        log_level = np.where(idle, -1.0, -np.log(factor) / size)  # any level will do where idle
        level, above = np.exp(log_level), -np.expm1(log_level)
        cut = lengths.quantile(level)
        limited = np.stack([lengths.limited_moment(m, cut) for m in ORDERS])
        whole = np.stack([lengths.limited_moment(m, np.full(idle.shape, math.inf)) for m in ORDERS])
        below = np.stack([limited[m - 1] - cut**m * above for m in ORDERS]) / level
        kept = np.where(idle, whole, below)
        dispatched = np.where(idle, whole, limited)
    tokens_per_kept = factor * dispatched[0]
    return Oversampling(
        cut_tokens=plain(np.where(idle, math.inf, cut)),
        kept_mean_tokens=plain(kept[0]),
        kept_second_moment_tokens2=plain(kept[1]),
        dispatched_mean_tokens=plain(dispatched[0]),
        dispatched_second_moment_tokens2=plain(dispatched[1]),
        dispatched_third_moment_tokens3=plain(dispatched[2]),
        tokens_per_kept=plain(tokens_per_kept),
        discarded_token_fraction=plain(np.where(idle, 0.0, 1.0 - kept[0] / tokens_per_kept)),
        discarded_rollout_fraction=plain(discarded),
        length_bias=plain(kept[0] / lengths.mean),
    )


@lru_cache(maxsize=256)
def lengths_before_cancelling(
    kept_mean: float,
    cv: float,
    cap: float | None,
    *,
    oversampling: float,
    group_size: int,
    by: Literal["sample", "group"],
) -> CappedLogNormal:
    """Lengths of all rollouts, where the mean observed is that of the rollouts kept.

    Oversampling keeps the faster ones, so the mean of all is the one whose kept mean, at the
    factor of the observed run, equals the observed. The cv is taken to be that of all rollouts.

    Parameters
    ----------
    kept_mean : mean length of kept rollouts (tokens, > 0).
    cv, cap : of all rollouts; cap None for none.
    oversampling, group_size, by : of the observed run, as in `oversampling_cut`.

    Raises
    ------
    UnreachableLengthsError
        When no mean that the cap allows leaves so long rollouts.

    Examples
    --------
    >>> lengths = lengths_before_cancelling(
    ...     12704.0, 0.6, 27177.0, oversampling=2.5, group_size=16, by="group")
    >>> cut = oversampling_cut(lengths, 2.5, 16, "group")
    >>> round(lengths.mean), round(float(cut.kept_mean_tokens), 6)
    (13510, 12704.0)
    """

    def misfit(mean: float) -> float:
        lengths = capped_lognormal_from_mean_cv(mean, cv, cap)
        cut = oversampling_cut(lengths, oversampling, group_size, by)
        return float(cut.kept_mean_tokens) - kept_mean

    # A capped length of this cv has a mean below cap / (1 + cv^2); all but the last 0.1% is tried.
    longest = math.inf if cap is None else 0.999 * cap / (1.0 + cv * cv)
    low, high = kept_mean, min(1.25 * kept_mean, 0.5 * (kept_mean + longest))
    below, above = misfit(low), misfit(high)
    while above < 0.0:
        low, below = high, above
        high = min(1.25 * high, 0.5 * (high + longest))
        if high - low < 1e-6 * kept_mean:
            raise UnreachableLengthsError(
                f"no mean below the cap of {cap or math.inf:,.0f} leaves {kept_mean:,.0f} tokens "
                f"in rollouts kept at oversampling {oversampling:g}"
            )
        above = misfit(high)
    # Regula falsi that halves the weight of an end kept twice (Illinois): superlinear, bracketed.
    middle, value, side = low, below, 0
    while abs(value) > 1e-11 * kept_mean and high - low > 1e-14 * high:
        middle = low - below * (high - low) / (above - below)
        value = misfit(middle)
        if value < 0.0:
            low, below = middle, value
            above *= 0.5 if side < 0 else 1.0
            side = -1
        else:
            high, above = middle, value
            below *= 0.5 if side > 0 else 1.0
            side = 1
    return capped_lognormal_from_mean_cv(middle, cv, cap)
