"""Places in use where whole groups start: a group waits until all of its places are free."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from allocator.physics.lengths import Lengths

Array = NDArray[np.float64]

#: From so many groups of places on, half a group is empty on average.
MANY_GROUPS = 4.0
#: Steps of the constant share of a rollout's stay that are told apart.
SHARES = 64
_HALVINGS = 50
_NODES = 2049
#: Length that an uncapped distribution does not exceed, as a quantile.
_LONGEST = 1.0 - 1e-9


def group_places(
    lengths: Lengths,
    places: Any,
    group_size: Any,
    oversampling: Any,
    by: Literal["group", "sample"],
    fixed_share: Any,
) -> Any:
    r"""Rollouts in flight, time average, where whole groups start on N places.

    With n rollouts started a group and many groups of places, the number free just after a start
    is anything below n, so (n - 1)/2 places are empty on average. With few, starts are regular: one
    every T, and just before one all groups before it hold together what leaves n places free,

        sum over k >= 1 of a(k T) = N - n + h        in flight = int a(t) dt / T

    a(t) the rollouts of a group in flight a time t after its start, and h = E[J^2]/(2 E[J]) = 1/2
    since J = 1 leaves at a moment, not bit by bit; by sample the last j = n - S + 1 leave together,
    h = (S - 1 + j^2)/(2 n), and where N - n < j only they make room, so that the sum is j/2. With
    N = n a group starts when the one before has ended, and the places of its early rollouts stand
    empty.

        a(t) = n (1 - F(t))                               nothing is cancelled, n = S
        a(t) = n (1 - F(t)) P(Binomial(n - 1, F(t)) < S)  by sample, n = o S
        a(t) = S (1 - F(t)) below the cut, 0 above        by group

    Parameters
    ----------
    lengths : law of the response length; F is its law in time, after a constant part.
    places : N >= n, of one engine (or of all, where groups may start anywhere).
    group_size : S >= 1.
    oversampling : o >= 1.
    by : what is cancelled.
    fixed_share : share of a mean rollout's stay that does not depend on its length, 0 to 1; rounded
        to 1/64. All broadcast.

    Notes
    -----
    Source: derived here, not fitted. Against event simulation of one engine (S 4 and 16, N/S from 1
    to 4, cv .2 to 1.5, nothing cancelled): within 3.7%, mostly 1%, but 8% too low at N = S and a cv
    of 1.5; with 1.5 rollouts started by sample (S = 8) within 9%. The rule of half a group is from
    26% too low to 157% too high there at N = S.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> law = capped_lognormal_from_mean_cv(1000.0, 1.0, 12000.0)
    >>> group_places(law, [16.0, 24.0, 160.0], 16.0, 1.0, "group", 0.0).round(1).tolist()
    [4.5, 16.0, 152.5]
    """
    slots, size, factor, share = np.broadcast_arrays(
        *(np.asarray(a, dtype=float) for a in (places, group_size, oversampling, fixed_share))
    )
    started = size * (factor if by == "sample" else 1.0)
    found = np.maximum(slots - (started - 1.0) / 2.0, np.minimum(slots, 1.0))
    few = (slots < MANY_GROUPS * started) & (slots >= started) & (started > 1.0)
    if not np.any(few):
        return found
    found = np.array(found, dtype=float)
    rounded = np.round(np.clip(share[few], 0.0, 1.0) * SHARES) / SHARES
    found[few] = [
        _places(lengths, *row, by)
        for row in zip(
            slots[few].tolist(),
            size[few].tolist(),
            factor[few].tolist(),
            rounded.tolist(),
            strict=True,
        )
    ]
    return found


@lru_cache(maxsize=16_384)
def _places(
    lengths: Lengths,
    places: float,
    size: float,
    oversampling: float,
    share: float,
    by: Literal["group", "sample"],
) -> float:
    """Return the time average for one group size and number of places."""
    started = size * (oversampling if by == "sample" else 1.0)
    longest = math.inf if lengths.cap is None else lengths.cap
    longest = min(longest, float(lengths.quantile(_LONGEST)))
    if by == "group" and oversampling > 1.0:
        longest = min(longest, float(lengths.quantile(oversampling ** (-1.0 / size))))
    # Times in mean stays; the length written by then.
    token = (1.0 - share) / lengths.mean

    def active(at: Array) -> Array:
        tokens = (at - share) / max(token, 1e-12 / lengths.mean)
        done = np.where(tokens > 0.0, lengths.cdf(np.maximum(tokens, 1e-9)), 0.0)
        done = np.where(tokens >= longest, 1.0, done)
        going = started * (1.0 - done)
        if by == "sample" and oversampling > 1.0:
            going = going * special.betainc(started - size, size, 1.0 - done)
        return np.asarray(going)

    end = share + token * longest
    # Rollouts leave one by one, and the last `at_once` of a group together.
    at_once = started - size + 1.0
    held = places - started + (size - 1.0 + at_once * at_once) / (2.0 * started)
    if places - started < at_once:
        held = at_once / 2.0
    low, high = started / places * 0.25, 1.01 * end
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        before = active(middle * np.arange(1.0, math.ceil(end / middle) + 1.0)).sum()
        low, high = (middle, high) if before > held else (low, middle)
    if oversampling == 1.0:
        return min(started / low, places)
    at = np.linspace(0.0, end, _NODES)
    present = active(at)
    stay = float(np.sum(present[1:] + present[:-1]) * 0.5 * (at[1] - at[0]))
    return min(stay / low, places)
