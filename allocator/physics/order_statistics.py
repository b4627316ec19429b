"""Ranks of order statistics: the k-th smallest of n has rank U = F(Y) ~ Beta(k, n - k + 1).

This defines it for real 1 <= k <= n too, and breaks ties at an atom at random. What a law of
lengths adds is its quantile function alone.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from allocator.physics.moments import FloatArray, plain

#: Nodes of each of the two panels, and the probability left outside them on either side.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)
_TAIL = 1e-18


def check_levels(p: ArrayLike) -> FloatArray:
    """Return probability levels as an array; ValueError outside [0, 1]."""
    levels = np.asarray(p, dtype=np.float64)
    if not np.all((levels >= 0) & (levels <= 1)):
        raise ValueError("a quantile needs a probability between 0 and 1")
    return levels


def check_ranks(k: ArrayLike, n: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return k and n broadcast against each other; ValueError unless 1 <= k <= n, finite."""
    ranks, count = np.broadcast_arrays(
        np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64)
    )
    if not np.all((ranks >= 1) & (ranks <= count) & np.isfinite(count)):
        raise ValueError("order statistics need 1 <= k <= n, finite")
    return ranks, count


def beta_moment(a: FloatArray, b: FloatArray, order: int) -> FloatArray:
    """Return E[U^order] for U ~ Beta(a, b), order >= 0; a and b broadcast.

    Examples
    --------
    >>> float(beta_moment(np.float64(3.0), np.float64(1.0), 1))  # the largest of three uniforms
    0.75
    """
    moment = np.ones_like(a * b)
    for i in range(order):
        moment = moment * (a + i) / (a + b + i)
    return moment


def normal_scale_expectations(
    k: FloatArray,
    n: FloatArray,
    law: Callable[[FloatArray], FloatArray],
    kink: ArrayLike,
    growth: float,
) -> FloatArray:
    """Return E[law(z)] with Phi(z) ~ Beta(k, n - k + 1), by Gauss-Legendre on the normal scale.

    Parameters
    ----------
    k, n : checked ranks of one shape (see `check_ranks`).
    law : values for z of shape (..., 192), smooth but for the kink; may stack on first axes,
        which the result then has too.
    kink : z at which the law bends, where the two panels of 96 nodes meet; infinite for none.
    growth : g >= 0; the law grows no faster than exp(g z), and stays bounded above the kink.

    Examples
    --------
    >>> three = np.float64(3.0)  # the expected largest of three standard normals: 3/(2 sqrt(pi))
    >>> largest = normal_scale_expectations(three, three, lambda z: z, np.inf, 1.0)
    >>> round(float(largest), 9)
    0.846284375
    """
    a, b = k[..., None], (n - k)[..., None] + 1.0
    low = special.ndtri(special.betaincinv(a, b, _TAIL))
    high = -special.ndtri(special.betaincinv(b, a, _TAIL))
    middle = np.clip(kink, low, high)
    # The density is log-concave, at least as much as the normal's: a factor exp(growth z) moves
    # its tail by `growth` at most, and only up to the kink.
    high = np.maximum(high, np.minimum(high + growth, kink))
    unit = (_NODES + 1.0) / 2.0
    z = np.concatenate([low + (middle - low) * unit, middle + (high - middle) * unit], axis=-1)
    width = np.concatenate([(middle - low) * _WEIGHTS, (high - middle) * _WEIGHTS], axis=-1)
    log_density = (a - 1.0) * special.log_ndtr(z) + (b - 1.0) * special.log_ndtr(-z) - z**2 / 2
    mass = width * np.exp(log_density - log_density.max(axis=-1, keepdims=True))
    return plain(np.sum(mass * law(z), axis=-1) / np.sum(mass, axis=-1))
