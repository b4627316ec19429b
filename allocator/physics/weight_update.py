"""New weights in an asynchronous generator: what they cost beyond the pause of their transfer.

Four ways to meet the rollouts in flight. `in_flight`: they go on with new weights, at no cost.
`retract`: their KV is dropped and read again (`retract_s`). `drain`: nothing starts until all have
ended (`drain_lost_s`). `abort`: they are thrown away and start anew (`abort_table`).

A life is the residence of one rollout in its slot, in units of its mean. It is taken to be
proportional to the response length; a constant part (tools, prefill) makes lives more equal.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from allocator.physics.decode import DecodeLaw
from allocator.physics.lengths import Lengths
from allocator.physics.moments import FloatArray, plain
from allocator.physics.renewal import (
    RenewalTable,
    lattice_masses,
    renewal_masses,
    renewal_table,
    residual_survival,
)

#: Mean lives between two syncs that stand for any longer time: shares are then 1 to 1e-6.
_FOR_EVER = 1e7


def retract_s(sequences: Any, reread_s: Any) -> Any:
    """Engine-seconds to read again, one after the other, what was in flight when weights came.

    Parameters
    ----------
    sequences : sequences of one engine whose KV is dropped (>= 0): decoding, and held in tools.
    reread_s : mean seconds of prefill of their contexts; E[prefill(context)] is above prefill of
        the mean context by p2 Var[context].

    Examples
    --------
    >>> retract_s(10.0, 0.5)
    5.0
    """
    return sequences * reread_s


@dataclass(frozen=True)
class Drain:
    """Emptying of an engine of n slots, in mean lives, arrays of the arguments' shape."""

    longest: FloatArray
    """E[max of n lives left], from the last start to the last end."""
    mean: FloatArray
    """E[life left], what a slot still works on average; 0 for slots found between two lives."""
    touched: FloatArray
    """Lives times the share of experts that a step reads, 1 - miss^(still decoding)."""


def drain(
    lengths: Lengths, slots: ArrayLike, interval: ArrayLike = math.inf, expert_miss: ArrayLike = 0.0
) -> Drain:
    """Return how long n slots still work after nothing starts any more.

    Parameters
    ----------
    lengths : law of the response length L.
    slots : n > 0, sequences of one engine (real); below 1 counts as 1.
    interval : mean lives from the common start after one drain to the beginning of the next
        (> 0). Infinite: slots long out of step, each left with a residual life, P(left > r) =
        1 - E[min(L, r)]/E[L].
    expert_miss : 1 - experts per token / experts; 0 for a dense model. All broadcast.

    Notes
    -----
    Slots are independent: with B(r) = P(life left > r), of the process that began `interval` ago::

        longest = int 1 - (1 - B)^n dr         mean = int B dr
        touched = int 1 - (1 - (1 - miss) B)^n dr

    A drain puts all slots in step again, so that for a short interval the process matters: slots
    of equal lengths then end together and lose nothing, where out of step they lose
    n/(n + 1) - 1/2 of a life. A finite interval is rounded down to 1/64 of a life.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> equal = capped_lognormal_from_mean_cv(900.0, 0.0)
    >>> got = drain(equal, 3.0)
    >>> round(float(got.longest), 9), round(float(got.mean), 9)
    (0.75, 0.5)
    >>> got = drain(equal, 3.0, 2.75)
    >>> float(got.longest), float(got.mean)
    (0.25, 0.25)
    """
    n, since, miss = np.broadcast_arrays(
        *(np.asarray(a, dtype=np.float64) for a in (slots, interval, expert_miss))
    )
    if not (np.all(n > 0) and np.all(since > 0)):
        raise ValueError("a drain needs slots and an interval above 0")
    shape = n.shape
    n, since, miss = np.maximum(n.ravel(), 1.0), since.ravel(), miss.ravel()
    out = np.zeros((3, n.size))
    settled = np.isinf(since)
    if np.any(settled):
        left, weights = residual_survival(lengths)
        out[:, settled] = _emptying(left, weights, n[settled], miss[settled])
    if not np.all(settled):
        table = renewal_table(lengths)
        step, most = RenewalTable.NODES_PER_LIFE, RenewalTable.LIVES - 1
        begun = since[~settled]
        begun = begun - np.maximum(np.ceil(begun - most), 0.0)  # forgotten, or in step for ever
        left = table.still(table.starts(np.floor(begun * step * (1.0 + 1e-12)), 1.0))
        out[:, ~settled] = _emptying(
            np.minimum(left, 1.0), table.weights, n[~settled], miss[~settled]
        )
    return Drain(*(plain(values.reshape(shape)) for values in out))


def drain_lost_s(
    law: DecodeLaw, lengths: Lengths, slots: ArrayLike, interval: ArrayLike = math.inf
) -> FloatArray:
    """Engine-seconds that one drain costs, the step getting shorter as the engine empties.

    The tokens left are decoded in any case, and beta and gamma cost the same per sequence and per
    token of context whenever that is. What the drain adds are steps with fewer sequences to share
    alpha and the experts::

        lost = E[L] (alpha (longest - mean) + expert (touched - mean (1 - miss^n)))

    With `drain` for the three, and its arguments; each engine starts again once it is empty. At a
    constant time t per token the loss would be E[L] t (longest - mean), which is more.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> equal = capped_lognormal_from_mean_cv(1000.0, 0.0)
    >>> law = DecodeLaw(0.007, 0.0, 1e-4, 1e-8, 0.0)
    >>> round(float(drain_lost_s(law, equal, 4.0)), 9)
    2.1
    """
    got = drain(lengths, slots, interval, law.expert_miss)
    shared = 1.0 - np.power(law.expert_miss, np.maximum(slots, 1.0))
    lost = law.alpha_s * (got.longest - got.mean)
    return plain(lengths.mean * (lost + law.expert_s * (got.touched - got.mean * shared)))


def _emptying(left: FloatArray, weights: FloatArray, n: FloatArray, miss: FloatArray) -> FloatArray:
    """Longest, mean and touched (rows) of plans, from B at nodes (last axis, common or each)."""
    longest = (1.0 - np.power(1.0 - left, n[:, None])) @ weights
    touched = (1.0 - np.power(1.0 - (1.0 - miss[:, None]) * left, n[:, None])) @ weights
    return np.stack([longest, np.broadcast_to(left @ weights, longest.shape), touched])


@dataclass(frozen=True)
class AbortTable:
    """What slots that all start anew at every sync have completed by the next, T lives later.

    Only rollouts that end within the interval count. With T below the shortest rollout nothing
    ever finishes: completions and shares are 0, the generator delivers nothing at all.
    """

    counts: FloatArray
    """Renewal function at 512 nodes a life: lives completed per slot."""
    work: FloatArray
    """The sum of their lengths, in mean lives."""
    squares: FloatArray
    """The sum of the squares of these."""
    second_moment: float
    """E[L^2] / E[L]^2 of the table's lengths."""

    NODES_PER_LIFE = 512
    LIVES = 12

    def completions(self, interval: ArrayLike) -> FloatArray:
        """Return m(T), rollouts completed per slot and interval; floor(T) for equal lengths."""
        return self._lookup(self.counts, 1.0, interval)

    def completed_share(self, interval: ArrayLike) -> FloatArray:
        """Return (T - E[age at T])/T, the share of the slots' work in completed rollouts."""
        return _over(self._lookup(self.work, 1.0, interval), interval, 0.0)

    def length_ratio(self, interval: ArrayLike) -> FloatArray:
        """Return the mean length of the completed over E[L]; 1 where none is.

        By Wald it is (T - E[age at T]) / m(T) <= 1: the long ones are lost.
        """
        return _over(self._lookup(self.work, 1.0, interval), self.completions(interval), 1.0)

    def second_moment_ratio(self, interval: ArrayLike) -> FloatArray:
        """Return E[L^2 | completed] / E[L]^2; 1 where none is."""
        return _over(
            self._lookup(self.squares, self.second_moment, interval),
            self.completions(interval),
            1.0,
        )

    def _lookup(self, table: FloatArray, per_life: float, interval: ArrayLike) -> FloatArray:
        """Value of a step function that grows by `per_life` in each life beyond the table."""
        lives = np.asarray(interval, dtype=np.float64)
        if not np.all(lives >= 0):
            raise ValueError("the interval between syncs must not be negative")
        whole = np.maximum(np.ceil(np.minimum(lives, _FOR_EVER) - self.LIVES), 0.0)
        inside = np.minimum(lives, _FOR_EVER) - whole
        node = np.floor(inside * self.NODES_PER_LIFE * (1.0 + 1e-12)).astype(np.intp)
        return plain(table[node] + whole * per_life)


def _over(above: ArrayLike, below: ArrayLike, otherwise: float) -> FloatArray:
    """Return above/below, `otherwise` where nothing is below."""
    whole = np.minimum(below, _FOR_EVER)
    some = whole > 0.0
    return plain(np.where(some, above / np.where(some, whole, 1.0), otherwise))


@lru_cache(maxsize=64)
def abort_table(lengths: Lengths) -> AbortTable:
    """Tabulate what is completed between two syncs that abort everything in flight.

    A life begun at v, at the start or at an end, is completed by T with its length l where
    v + l <= T. With f the lattice masses of l, u = f + f * u the ends (convolutions)::

        completions(T) = sum of u up to T        work(T) = sum of (delta + u) * (l f) up to T

    Lengths are rounded to 1/512 of the mean. Beyond 12 lives whole lives are put in front, with
    the long-run rates: exact for equal lengths, and for others when the start is forgotten.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> table = abort_table(capped_lognormal_from_mean_cv(900.0, 0.0))
    >>> table.completions([0.99, 1.0, 2.5]).tolist(), float(table.completed_share(2.5))
    ([0.0, 1.0, 2.0], 0.8)
    >>> wide = abort_table(capped_lognormal_from_mean_cv(900.0, 0.8, 3000.0))
    >>> wide.completed_share([0.5, 1.0, 4.0]).round(2).tolist()
    [0.21, 0.41, 0.8]
    >>> wide.length_ratio([0.5, 1.0, 4.0]).round(2).tolist()
    [0.31, 0.48, 0.83]
    """
    step, last = AbortTable.NODES_PER_LIFE, AbortTable.NODES_PER_LIFE * AbortTable.LIVES
    masses = lattice_masses(lengths, step)
    ends = renewal_masses(masses, last)
    starts = ends.copy()
    starts[0] += 1.0
    lives = np.arange(masses.size) / step
    return AbortTable(
        counts=np.cumsum(ends),
        work=np.cumsum(_convolved(starts, masses * lives)),
        squares=np.cumsum(_convolved(starts, masses * lives**2)),
        second_moment=float(masses @ lives**2),
    )


def _convolved(starts: FloatArray, values: FloatArray) -> FloatArray:
    """Convolution up to the last start; direct, so that zeros stay zeros."""
    count = starts.size
    whole: FloatArray = np.convolve(starts, values[:count])[:count]
    return whole
