"""Response lengths as observed: a sample, or quantiles with straight lines between them.

Both have a quantile function Q that is linear on pieces of (0, 1], so every law of
`allocator.physics.lengths.Lengths` is a finite sum over the pieces, in closed form but for narrow
steep ones. All lengths are in tokens.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from allocator.physics.lengths import Lengths, UnreachableLengthsError, check_cap
from allocator.physics.moments import ORDERS, FloatArray, Moment, plain, uniform_moment
from allocator.physics.order_statistics import beta_moment, check_levels, check_ranks

#: Pieces of a quantile table narrower than this are integrated by 32 nodes instead of in closed
#: form, which would cancel.
_NARROW = 0.01


class _Pieces(Lengths):
    """A quantile function that is linear on each of a number of pieces of (0, 1].

    Subclasses give `_table`: levels 0 = p_0 < ... < p_m = 1 and the tokens at the lower and the
    upper end of each piece, non-decreasing. A piece with equal ends is an atom.
    """

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        raise NotImplementedError

    @property
    def _levels(self) -> FloatArray:
        return self._table[0]

    @property
    def _lows(self) -> FloatArray:
        return self._table[1]

    @property
    def _highs(self) -> FloatArray:
        return self._table[2]

    @property
    def truncated_fraction(self) -> float:
        """P(L = cap)."""
        at_cap = (self._lows == self._highs) & (self._highs == self.cap)
        return float(np.sum(np.diff(self._levels)[at_cap]))

    @cached_property
    def _slopes(self) -> FloatArray:
        return (self._highs - self._lows) / np.diff(self._levels)

    @cached_property
    def _sums(self) -> FloatArray:
        """E[L^m; first i pieces], one row for each m = 1, 2, 3."""
        mass = np.diff(self._levels)
        rows = [mass * uniform_moment(m, self._lows, self._highs) for m in ORDERS]
        return np.concatenate([np.zeros((3, 1)), np.cumsum(rows, axis=1)], axis=1)

    def _locate(self, x: ArrayLike) -> tuple[FloatArray, NDArray[np.intp], FloatArray]:
        """(x clipped to the support, pieces wholly at or below x, mass of the next one below)."""
        clipped = np.clip(np.asarray(x, dtype=np.float64), 0.0, self._highs[-1])
        whole = np.searchsorted(self._highs, clipped, side="right")
        piece = np.minimum(whole, self._lows.size - 1)
        above = np.maximum(clipped - self._lows[piece], 0.0)
        inside = (whole < self._lows.size) & (above > 0)
        part = np.where(inside, above / np.where(inside, self._slopes[piece], 1.0), 0.0)
        return clipped, whole, part

    def cdf(self, x: ArrayLike) -> FloatArray:
        """Return P(L <= x)."""
        _, whole, part = self._locate(x)
        return np.where(np.asarray(x) < 0.0, 0.0, self._levels[whole] + part) + 0.0

    def quantile(self, p: ArrayLike) -> FloatArray:
        """Return the smallest x with F(x) >= p."""
        levels = check_levels(p)
        piece = np.maximum(np.searchsorted(self._levels, levels, side="left") - 1, 0)
        inside = (levels - self._levels[piece]) * self._slopes[piece]
        return np.minimum(self._lows[piece] + inside, self._highs[piece])

    def _partial(self, order: Moment, x: ArrayLike) -> FloatArray:
        """Return E[L^order; L <= x]."""
        clipped, whole, part = self._locate(x)
        low = self._lows[np.minimum(whole, self._lows.size - 1)]
        return plain(self._sums[order - 1][whole] + part * uniform_moment(order, low, clipped))

    def limited_moment(self, order: Moment, cut: ArrayLike) -> FloatArray:
        """Return E[min(L, cut)^order]."""
        limit = np.clip(cut, 0.0, self._highs[-1])
        return self._partial(order, limit) + limit**order * self.survival(limit)

    def moment_below(self, order: Moment, cut: ArrayLike) -> FloatArray:
        """Return E[L^order | L <= cut]; nan where no mass lies below the cut."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return plain(self._partial(order, cut) / self.cdf(cut))

    def order_statistic_moments(self, k: ArrayLike, n: ArrayLike) -> FloatArray:
        """Return E[(k-th smallest of n)^m], m = 1, 2, 3, from incomplete beta functions."""
        ranks, count = check_ranks(k, n)
        a, b = ranks[..., None], (count - ranks)[..., None] + 1.0

        def partial(j: int, u: FloatArray) -> FloatArray:
            return beta_moment(a, b, j) * special.betainc(a + j, b, u)

        return self._over_pieces(partial)

    def first_finished_moments(self, kept: ArrayLike, dispatched: ArrayLike) -> FloatArray:
        """Return the means of L^m over the `kept` shortest of `dispatched`, m = 1, 2, 3.

        A rank u is kept with probability 1 - I_u(S, n - S), so the rank of a kept rollout has
        density (n/S) (1 - I_u(S, n - S)); its partial moments follow by parts.
        """
        ranks, count = check_ranks(kept, dispatched)
        a, b = ranks[..., None], (count - ranks)[..., None]

        def partial(j: int, u: FloatArray) -> FloatArray:
            lost = beta_moment(a, b, j + 1) * special.betainc(a + j + 1, b, u)
            held = u ** (j + 1) * (1.0 - special.betainc(a, b, u))
            return plain((a + b) / a * (held + lost) / (j + 1))

        return self._over_pieces(partial)

    def _over_pieces(self, partial: Callable[[int, FloatArray], FloatArray]) -> FloatArray:
        """Return E[Q(U)^m], m = 1, 2, 3, from partial(j, u) = E[U^j; U <= u]."""
        levels, width = self._levels, np.diff(self._levels)
        # Q(u) = start + slope u; a narrow piece counts as an atom at its lower end, plus its rise.
        slope = np.where(width < _NARROW, 0.0, self._slopes)
        start = self._lows - slope * levels[:-1]
        masses = [np.diff(partial(j, levels), axis=-1) for j in range(4 if np.any(slope) else 1)]
        moments = np.stack(
            [
                np.sum(
                    [
                        np.sum(math.comb(m, j) * start ** (m - j) * slope**j * mass, axis=-1)
                        for j, mass in enumerate(masses[: m + 1])
                    ],
                    axis=0,
                )
                for m in ORDERS
            ]
        )
        steep = (width < _NARROW) & (self._slopes > 0)
        if np.any(steep):
            # The rise by parts: int_low^high m x^(m-1) P(u(x) < U <= upper level) dx.
            nodes, weights = np.polynomial.legendre.leggauss(32)
            unit = (nodes + 1.0) / 2.0
            u = levels[:-1][steep][:, None] + width[steep][:, None] * unit
            rise = (self._highs - self._lows)[steep][:, None]
            x, dx = self._lows[steep][:, None] + rise * unit, rise * weights / 2.0
            up_to = partial(0, u.ravel())
            above = partial(0, levels[1:][steep])[..., None] - up_to.reshape(
                *up_to.shape[:-1], *u.shape
            )
            moments = moments + np.stack(
                [np.sum(m * x ** (m - 1) * dx * above, axis=(-1, -2)) for m in ORDERS]
            )
        return plain(moments)


@dataclass(frozen=True)
class Empirical(_Pieces):
    """The distribution of a sample: each value with equal mass.

    Parameters
    ----------
    values : observed lengths in tokens, sorted, >= 0, none above the cap; at least one positive.
    cap : tokens, or None.
    """

    values: tuple[float, ...]
    cap: float | None = None

    def __post_init__(self) -> None:
        """Refuse an unsorted, empty, negative or over-long sample."""
        _check_tokens(self.values, self.cap)

    def __hash__(self) -> int:
        """Hash the values once: a sample may hold 1e5 of them and serves as a cache key."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.values, self.cap))

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        tokens, counts = np.unique(np.array(self.values, dtype=np.float64), return_counts=True)
        levels = np.concatenate([[0], np.cumsum(counts)]) / len(self.values)
        return levels, tokens, tokens


@dataclass(frozen=True)
class QuantileTable(_Pieces):
    """A quantile function given at some levels and linear between them.

    Parameters
    ----------
    levels : probabilities, strictly increasing from 0 to 1.
    tokens : quantiles at these levels, non-decreasing, >= 0, none above the cap. A flat stretch
        is an atom.
    cap : tokens, or None.
    """

    levels: tuple[float, ...]
    tokens: tuple[float, ...]
    cap: float | None = None

    def __post_init__(self) -> None:
        """Refuse levels that do not run from 0 to 1, or tokens that fall."""
        _check_tokens(self.tokens, self.cap)
        rising = all(p < q for p, q in zip(self.levels, self.levels[1:], strict=False))
        if len(self.levels) != len(self.tokens) or not rising:
            raise ValueError("levels must be strictly increasing, one for each number of tokens")
        if self.levels[0] != 0.0 or self.levels[-1] != 1.0:
            raise ValueError(f"levels must run from 0 to 1, given {self.levels}")

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        tokens = np.array(self.tokens, dtype=np.float64)
        return np.array(self.levels, dtype=np.float64), tokens[:-1], tokens[1:]


def empirical_from_samples(samples: ArrayLike, cap: float | None = None) -> Empirical:
    """Return the distribution of observed lengths (tokens, any order).

    Examples
    --------
    >>> law = empirical_from_samples([10.0, 3.0, 2.0, 3.0], cap=10.0)
    >>> law.mean, law.truncated_fraction, float(law.quantile(0.5))
    (4.5, 0.25, 3.0)
    """
    values = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    return Empirical(tuple(values.tolist()), cap)


def from_quantiles(quantiles: Mapping[float, float], cap: float | None = None) -> QuantileTable:
    """Return the piecewise-linear law through observed quantiles {p: tokens}.

    Above the largest level the curve runs to the cap; without a cap p = 1 must be given. Below
    the smallest level it runs to 0 tokens at p = 0 (assumed: a length cannot be negative), unless
    p = 0 is given.

    Examples
    --------
    >>> law = from_quantiles({0.5: 100, 0.75: 300}, cap=400)
    >>> law.mean, law.cdf([50, 200, 400]).tolist()
    (162.5, [0.25, 0.625, 1.0])
    """
    points = {float(p): float(tokens) for p, tokens in quantiles.items()}
    if not points or not all(0.0 <= p <= 1.0 for p in points):
        raise ValueError(f"quantiles need levels between 0 and 1, given {sorted(points)}")
    if 1.0 not in points and cap is None:
        raise ValueError("quantiles without p = 1 need a cap: nothing says where the tail ends")
    table = {0.0: 0.0} | ({} if cap is None else {1.0: float(cap)}) | points
    levels = tuple(sorted(table))
    return QuantileTable(levels, tuple(table[p] for p in levels), cap)


def _check_tokens(tokens: tuple[float, ...], cap: float | None) -> None:
    check_cap(cap)
    values = np.asarray(tokens, dtype=np.float64)
    if values.size == 0 or not np.all(np.isfinite(values)) or np.any(np.diff(values) < 0):
        raise ValueError("lengths must be finite, at least one, and in increasing order")
    if values[0] < 0 or values[-1] <= 0:
        raise ValueError("lengths must not be negative, and not all 0")
    if cap is not None and values[-1] > cap:
        raise UnreachableLengthsError(f"a length of {values[-1]:g} lies above the cap of {cap:g}")
