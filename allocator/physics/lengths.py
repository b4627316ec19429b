"""Response-length distributions with an explicit cap: what every law answers, and a log-normal.

L is the observed length, after the cap, so L has an atom at the cap whenever generation is cut
there. Every distribution (also those of `length_tables`) answers the same laws (`Lengths`); they
broadcast over numpy arrays and give a numpy scalar for scalar arguments. All lengths are in tokens.

The log-normal has closed forms, except for order statistics: two Gauss-Legendre panels of 96
nodes on the normal scale. Their relative error is below 1e-10 against adaptive quadrature
(tested for sigma <= 2.7 and n <= 8,192); capped, it stays there up to sigma = 40 and reaches 5e-6
at sigma = 500, which takes a cv within 0.1% of its bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from allocator.physics.moments import (
    ORDERS,
    FloatArray,
    Moment,
    finite_power,
    lognormal_location,
    lognormal_partial_moment,
    plain,
)
from allocator.physics.order_statistics import (
    check_levels,
    check_ranks,
    normal_scale_expectations,
)

#: Relative difference below which two constant lengths count as equal.
_ROUNDING = 1e-12


class UnreachableLengthsError(ValueError):
    """No distribution of the family has the stated figures under the stated cap."""


class Lengths(Protocol):
    """Laws of a response length L >= 0, observed after the cap (frozen, hashable).

    `order` is 1, 2 or 3, the moment's power; `cut`, `x` and `k`, `n` may be arrays. The cap is None
    where nothing truncates.
    """

    @property
    def cap(self) -> float | None:
        """Largest possible length; the rollout is truncated there."""
        ...

    @property
    def truncated_fraction(self) -> float:
        """P(L = cap), the mass of the atom; 0 without a cap."""
        ...

    def __hash__(self) -> int:
        """Return a hash (by value, as frozen dataclasses do): laws are cache keys."""
        return super().__hash__()

    def cdf(self, x: ArrayLike) -> FloatArray:
        """Return F(x) = P(L <= x)."""
        ...

    def quantile(self, p: ArrayLike) -> FloatArray:
        """Return the smallest x with F(x) >= p, for p in [0, 1]."""
        ...

    def limited_moment(self, order: Moment, cut: ArrayLike) -> FloatArray:
        """Return E[min(L, cut)^order]; `cut` may be infinite."""
        ...

    def moment_below(self, order: Moment, cut: ArrayLike) -> FloatArray:
        """Return E[L^order | L <= cut]; nan where P(L <= cut) = 0."""
        ...

    def order_statistic_moments(self, k: ArrayLike, n: ArrayLike) -> FloatArray:
        """Return E[Y], E[Y^2], E[Y^3] of Y the k-th smallest of n, stacked on a first axis of 3.

        Real 1 <= k <= n: the rank of Y is Beta(k, n - k + 1), which also defines it for real k
        and n, and breaks ties at an atom at random.
        """
        ...

    def first_finished_moments(self, kept: ArrayLike, dispatched: ArrayLike) -> FloatArray:
        """Return the means of L, L^2, L^3 over the `kept` shortest of `dispatched` rollouts.

        Stacked on a first axis of 3. Real 1 <= kept <= dispatched; equal counts give E[L^m].
        """
        ...

    @property
    def mean(self) -> float:
        """E[L]."""
        return float(self.limited_moment(1, math.inf))

    @property
    def second_moment(self) -> float:
        """E[L^2]."""
        return float(self.limited_moment(2, math.inf))

    @property
    def cv(self) -> float:
        """Standard deviation over mean."""
        return math.sqrt(max(self.second_moment / self.mean**2 - 1.0, 0.0))

    def survival(self, x: ArrayLike) -> FloatArray:
        """Return P(L > x)."""
        return 1.0 - self.cdf(x)

    def limited_mean(self, cut: ArrayLike) -> FloatArray:
        """Return E[min(L, cut)]."""
        return self.limited_moment(1, cut)

    def limited_second_moment(self, cut: ArrayLike) -> FloatArray:
        """Return E[min(L, cut)^2]."""
        return self.limited_moment(2, cut)

    def mean_below(self, cut: ArrayLike) -> FloatArray:
        """Return E[L | L <= cut]; nan where P(L <= cut) = 0."""
        return self.moment_below(1, cut)

    def second_moment_below(self, cut: ArrayLike) -> FloatArray:
        """Return E[L^2 | L <= cut]; nan where P(L <= cut) = 0."""
        return self.moment_below(2, cut)

    def expected_order_statistic(self, k: ArrayLike, n: ArrayLike) -> FloatArray:
        """Return E[k-th smallest of n], real 1 <= k <= n."""
        return plain(self.order_statistic_moments(k, n)[0])

    def tailness(self, n: ArrayLike) -> FloatArray:
        """Return E[max of n] / E[L] >= 1, real n >= 1."""
        return self.expected_order_statistic(n, n) / self.mean

    def max_cdf(self, x: ArrayLike, n: ArrayLike) -> FloatArray:
        """Return P(max of n <= x) = F(x)^n."""
        return np.power(self.cdf(x), n, dtype=np.float64)


@dataclass(frozen=True)
class CappedLogNormal(Lengths):
    """L = min(X, cap) with ln X normal(mu, sigma); sigma = 0 is a constant length.

    Parameters
    ----------
    mu, sigma : mean and standard deviation of ln X *before* the cap (X in tokens), sigma >= 0.
    cap : tokens, > 0; None for a plain log-normal.

    Examples
    --------
    >>> law = CappedLogNormal(mu=9.0, sigma=1.0, cap=27_000.0)
    >>> round(law.mean), round(law.truncated_fraction, 3), round(float(law.tailness(8)), 2)
    (10846, 0.114, 2.22)
    """

    mu: float
    sigma: float
    cap: float | None = None

    def __post_init__(self) -> None:
        """Refuse parameters outside their range."""
        if not (math.isfinite(self.mu) and math.isfinite(self.sigma) and self.sigma >= 0):
            raise ValueError(f"mu and sigma >= 0 must be finite, given {self.mu}, {self.sigma}")
        check_cap(self.cap)

    @cached_property
    def mean(self) -> float:
        """E[L]."""
        return float(self.limited_moment(1, math.inf))

    @cached_property
    def second_moment(self) -> float:
        """E[L^2]."""
        return float(self.limited_moment(2, math.inf))

    @property
    def truncated_fraction(self) -> float:
        """P(L = cap) = P(X >= cap)."""
        if self.sigma == 0:
            return float(self.mu >= math.log(self._limit_tokens) - _ROUNDING)
        return float(special.ndtr(-self._score(self._limit_tokens)))

    @cached_property
    def _limit_tokens(self) -> float:
        return math.inf if self.cap is None else self.cap

    def _score(self, tokens: ArrayLike) -> FloatArray:
        """Return z with P(X <= tokens) = Phi(z)."""
        with np.errstate(divide="ignore"):
            gap = np.log(np.maximum(np.asarray(tokens, dtype=np.float64), 0.0)) - self.mu
        if self.sigma == 0:  # the tolerance lets exp(ln mean) count as the mean
            return np.where(gap >= -_ROUNDING, math.inf, -math.inf)
        return gap / self.sigma

    def cdf(self, x: ArrayLike) -> FloatArray:
        """Return P(L <= x) = Phi((ln x - mu) / sigma) below the cap, 1 from the cap on."""
        capped = np.asarray(x) >= self._limit_tokens
        return plain(np.where(capped, 1.0, special.ndtr(self._score(x))))

    def survival(self, x: ArrayLike) -> FloatArray:
        """Return P(L > x), accurate in the far tail; 0 from the cap on."""
        capped = np.asarray(x) >= self._limit_tokens
        return plain(np.where(capped, 0.0, special.ndtr(-self._score(x))))

    def quantile(self, p: ArrayLike) -> FloatArray:
        """Return min(exp(mu + sigma Phi^-1(p)), cap); p = 1 without a cap is an error."""
        levels = check_levels(p)
        if self.sigma == 0:
            return plain(np.full(levels.shape, min(math.exp(self.mu), self._limit_tokens)))
        if self.cap is None and np.any(levels == 1.0):
            raise ValueError("quantile(1) is infinite: the lengths have no cap")
        with np.errstate(over="ignore"):
            uncapped = np.exp(self.mu + self.sigma * special.ndtri(levels))
        return np.minimum(uncapped, self._limit_tokens)

    def limited_moment(self, order: Moment, cut: ArrayLike) -> FloatArray:
        """Return E[min(L, cut)^m] = E[X^m; X <= c] + c^m P(X > c), c = min(cut, cap)."""
        limit = np.minimum(cut, self._limit_tokens)
        z = self._score(limit)
        return lognormal_partial_moment(order, self.mu, self.sigma, z) + finite_power(
            limit, order
        ) * special.ndtr(-z)

    def moment_below(self, order: Moment, cut: ArrayLike) -> FloatArray:
        """Return E[L^m | L <= cut]: all of L once the cut reaches the cap, else X truncated."""
        cuts = np.asarray(cut, dtype=np.float64)
        z = self._score(cuts)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Far below the median the ratio of two tiny numbers is one of scaled erfc.
            low = np.minimum(z, 0.0)
            ratio = special.erfcx((order * self.sigma - low) / math.sqrt(2.0)) / special.erfcx(
                -low / math.sqrt(2.0)
            )
            truncated = np.where(
                z < 0.0,
                finite_power(cuts, order) * ratio,
                lognormal_partial_moment(order, self.mu, self.sigma, z) / special.ndtr(z),
            )
        return plain(
            np.where(cuts >= self._limit_tokens, self.limited_moment(order, math.inf), truncated)
        )

    def order_statistic_moments(self, k: ArrayLike, n: ArrayLike) -> FloatArray:
        """Return E[Q(U)^m], m = 1, 2, 3, with U ~ Beta(k, n - k + 1), by quadrature."""
        return self._expectations(*check_ranks(k, n), self._powers)

    def first_finished_moments(self, kept: ArrayLike, dispatched: ArrayLike) -> FloatArray:
        """Return the means of L^m over the `kept` shortest of `dispatched`, by quadrature.

        Given the rank t of the last one kept, the other S - 1 are uniform ranks below t:
        E[Q(t)^m + (S - 1) (1/t) int_0^t Q^m] / S, with the inner integral in closed form.
        """
        ranks, count = check_ranks(kept, dispatched)
        share = 1.0 / ranks[..., None]
        cap_score = self._score(self._limit_tokens)

        def kept_powers(z: FloatArray) -> FloatArray:
            level = special.ndtr(z)
            at_cap = np.maximum(level - special.ndtr(cap_score), 0.0)
            below = [
                lognormal_partial_moment(m, self.mu, self.sigma, np.minimum(z, cap_score))
                + finite_power(self._limit_tokens, m) * at_cap
                for m in ORDERS
            ]
            return share * self._powers(z) + (1.0 - share) * np.stack(below) / level

        return self._expectations(ranks, count, kept_powers)

    def _powers(self, z: FloatArray) -> FloatArray:
        """Return Q(Phi(z))^m for m = 1, 2, 3, stacked."""
        log_tokens = np.minimum(self.mu + self.sigma * z, math.log(self._limit_tokens))
        return np.stack([np.exp(m * log_tokens) for m in ORDERS])

    def _expectations(
        self, k: FloatArray, n: FloatArray, law: Callable[[FloatArray], FloatArray]
    ) -> FloatArray:
        """Return E[law(z)], Phi(z) ~ Beta(k, n - k + 1), split at the kink that the cap makes."""
        kink = self._score(self._limit_tokens)
        return normal_scale_expectations(k, n, law, kink, growth=ORDERS[-1] * self.sigma)


@lru_cache(maxsize=256)
def capped_lognormal_from_mean_cv(
    mean: float, cv: float, cap: float | None = None
) -> CappedLogNormal:
    """Return the capped log-normal whose OBSERVED (after the cap) mean and cv are as given.

    Parameters
    ----------
    mean : tokens, > 0.
    cv : standard deviation over mean, >= 0; 0 gives a constant length (mean <= cap).
    cap : tokens, or None for the closed form of a plain log-normal.

    Raises
    ------
    UnreachableLengthsError
        mean >= cap, or cv >= sqrt(cap/mean - 1), the cv of the two-point law on {0, cap}.

    Notes
    -----
    At a fixed observed mean the quantile functions of two sigmas cross once, so the observed cv
    rises with sigma: one root, found by Newton inside a bracket.

    Examples
    --------
    >>> law = capped_lognormal_from_mean_cv(12_704.0, 0.9, 27_000.0)
    >>> round(law.mean, 6), round(law.cv, 6), round(law.truncated_fraction, 3)
    (12704.0, 0.9, 0.329)
    """
    if not (mean > 0 and math.isfinite(mean) and cv >= 0 and math.isfinite(cv)):
        raise ValueError(f"mean > 0 and cv >= 0 must be finite, given {mean} and {cv}")
    check_cap(cap)
    if cap is not None and (mean > cap or (mean == cap and cv > 0)):
        raise UnreachableLengthsError(f"the mean {mean:g} must lie below the cap of {cap:g} tokens")
    if cv == 0:
        return CappedLogNormal(math.log(mean), 0.0, cap)
    sigma = math.sqrt(math.log1p(cv**2))
    if cap is None:
        return CappedLogNormal(math.log(mean) - sigma**2 / 2, sigma, None)
    bound = math.sqrt(cap / mean - 1.0)
    problem = f"cv {cv:g} must lie below {bound:.6g}, the bound for mean {mean:g} and cap {cap:g}"
    if cv >= bound:
        raise UnreachableLengthsError(problem)
    log_mean, target = math.log(mean / cap), math.log1p(cv**2) + 2 * math.log(mean / cap)
    low, high = sigma, math.inf
    for _ in range(200):
        if sigma > 1e5:  # nearer to the bound than its own rounding
            raise UnreachableLengthsError(problem)
        mu = lognormal_location(sigma, log_mean)
        first, second = (float(lognormal_partial_moment(m, mu, sigma, -mu / sigma)) for m in (1, 2))
        above, at_cap = float(special.ndtr(mu / sigma)), _normal_density(mu / sigma)
        error = math.log(second + above) - target
        low, high = (sigma, high) if error < 0 else (low, sigma)
        mu_slope = (at_cap - sigma * first) / first  # d mu / d sigma at a fixed mean
        slope = 2 * (2 * sigma * second - at_cap + second * mu_slope) / (second + above)
        step = sigma - error / slope if slope > 0 else high
        if not low < step < high:
            step = 2 * sigma if math.isinf(high) else (low + high) / 2
        if abs(step - sigma) <= 4e-16 * sigma or abs(error) <= 2e-16:
            break
        sigma = step
    return CappedLogNormal(math.log(cap) + lognormal_location(sigma, log_mean), sigma, cap)


@lru_cache(maxsize=256)
def capped_lognormal_from_p50_p99(
    p50: float, p99: float, cap: float | None = None
) -> CappedLogNormal:
    """Return the capped log-normal with these observed quantiles (tokens).

    Raises
    ------
    UnreachableLengthsError
        Not 0 < p50 < p99 < cap. A p99 at the cap does not identify sigma.

    Examples
    --------
    >>> law = capped_lognormal_from_p50_p99(4_000.0, 20_000.0, 27_000.0)
    >>> law.quantile([0.5, 0.99]).round(6).tolist()
    [4000.0, 20000.0]
    """
    check_cap(cap)
    if not 0 < p50 < p99 < (math.inf if cap is None else cap):
        raise UnreachableLengthsError(
            f"need 0 < p50 < p99 < cap, given p50 {p50:g}, p99 {p99:g}, cap {cap}: "
            "a p99 at the cap does not identify the spread"
        )
    return CappedLogNormal(math.log(p50), math.log(p99 / p50) / float(special.ndtri(0.99)), cap)


def check_cap(cap: float | None) -> None:
    """Refuse a cap that is neither None nor a positive number of tokens (ValueError)."""
    if cap is not None and not (cap > 0 and math.isfinite(cap)):
        raise ValueError(f"the cap must be a positive number of tokens or None, given {cap}")


def _normal_density(z: float) -> float:
    return math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
