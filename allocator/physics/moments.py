"""Moments of what length laws are built from: a log-normal below a point, a uniform piece.

Orders are 1, 2 or 3. The functions broadcast over numpy arrays and give a numpy scalar for scalar
arguments; lengths are in tokens, so a moment is in tokens^order.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

FloatArray = NDArray[np.float64]
Moment = Literal[1, 2, 3]

#: Every order, in the order in which moments are stacked on a first axis of 3.
ORDERS: tuple[Moment, Moment, Moment] = (1, 2, 3)


def lognormal_partial_moment(order: Moment, mu: float, sigma: float, z: ArrayLike) -> FloatArray:
    """Return E[X^order; Z <= z] for X = exp(mu + sigma Z), Z standard normal, sigma >= 0.

    Examples
    --------
    >>> round(float(lognormal_partial_moment(1, 0.0, 1.0, float("inf"))), 6)  # exp(1/2)
    1.648721
    """
    return plain(np.exp(_log_partial_moment(order, mu, sigma, z)))


def lognormal_location(sigma: float, log_mean: float) -> float:
    """Return mu with E[min(exp(mu + sigma Z), 1)] = exp(log_mean) < 1, sigma > 0.

    ln E is concave and rising in mu, and the uncapped solution lies left of the root, so Newton
    climbs to it without overshooting.

    Examples
    --------
    >>> mu = lognormal_location(1.0, math.log(0.5))
    >>> above = float(special.ndtr(mu))  # capped at 1
    >>> round(float(lognormal_partial_moment(1, mu, 1.0, -mu)) + above, 12)
    0.5
    """
    mu = log_mean - sigma**2 / 2
    for _ in range(200):
        log_below = float(_log_partial_moment(1, mu, sigma, -mu / sigma))
        log_total = float(np.logaddexp(log_below, special.log_ndtr(mu / sigma)))
        step = (log_mean - log_total) * math.exp(log_total - log_below)
        mu += step
        if step <= 1e-15 * (1.0 + abs(mu)):
            break
    return mu


def uniform_moment(order: Moment, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return E[V^order] for V uniform on [low, high]; low^order where the ends are equal.

    Examples
    --------
    >>> float(uniform_moment(2, np.float64(0.0), np.float64(3.0)))
    3.0
    """
    terms = [low**i * high ** (order - i) for i in range(order + 1)]
    return plain(np.sum(terms, axis=0) / (order + 1))


def finite_power(tokens: ArrayLike, order: Moment) -> FloatArray:
    """Return tokens^order, 0 where infinite: it multiplies a probability that is 0 there."""
    values = np.asarray(tokens, dtype=np.float64)
    return np.where(np.isfinite(values), np.maximum(values, 0.0), 0.0) ** order


def plain(values: ArrayLike) -> FloatArray:
    """Return a numpy scalar for a 0-d result, the array otherwise."""
    scalar_or_array: FloatArray = np.asarray(values, dtype=np.float64)[()]
    return scalar_or_array


def _log_partial_moment(order: Moment, mu: float, sigma: float, z: ArrayLike) -> FloatArray:
    """Return ln E[X^m; Z <= z], X = exp(mu + sigma Z): m mu + m^2 sigma^2/2 + ln Phi(z - m sigma).

    Left of m sigma as m (mu + sigma z) - z^2/2 + ln(erfcx(.)/2), which does not cancel for a
    large sigma.
    """
    scores = np.asarray(z, dtype=np.float64)
    gap = order * sigma - scores
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = np.log(special.erfcx(np.maximum(gap, 0.0) / math.sqrt(2.0)) / 2)
        left = order * (mu + sigma * scores) - scores**2 / 2 + scaled
        right = order * mu + (order * sigma) ** 2 / 2 + special.log_ndtr(-gap)
    return np.where(np.isneginf(scores), -math.inf, np.where(gap > 0, left, right))
