"""How evenly groups come out of a generator whose slots are refilled at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST_SLOT_CV = 0.15
"""Slots refilled in turn never keep step better than this cv of their lives (assumed)."""


def completion_variance_slope(below: Array, group_size: int, spacing: float) -> Array:
    r"""Slope V'(tau) of the variance of the number of groups finished in a window tau.

    Many slots, each refilled at once with the next sample of the group in turn, form a closed
    system: starts repeat the ends of earlier samples, so they are regular, and a group ends a
    random time after its start.  To first order in the fluctuations (many slots; checked down to
    four) the finished groups have, per unit rate, the spectrum

        s(w) = |g|^2 S (1 - |phi|^2) + 1 - |psi|^2 + 2 Re[g conj(R - S psi conj(phi))]
        g = psi / (S (1 - phi)),    s(0) = cv^2 / S

    with phi and psi the transforms E[exp(-i w t)] of one length and of the group maximum, and R
    that of the expected number of samples that end a time t before their group.  The first term
    is the regularity of the slots, the second the scatter of the group's own residence, the third
    that both are the same lengths.  For S = 1 it is the spectrum of a renewal process.

    On the nodes 0..N, with ``b_i = H_i - H_{i-1}``, ``a_i = H_i^S - H_{i-1}^S``,
    ``R_0 = S sum b_i H_i^(S-1)`` and ``R_d = S sum_w (H_w^(S-1) - H_{w-1}^(S-1)) b_{w-d}``; phi,
    psi, R by a discrete Fourier transform of P points, P the power of 2 at or above 16 N and 64
    mean lengths.  The inverse transform of s gives the covariances c_k, and

        V'_n = c_0 + 2 (c_1 + ... + c_n).

    Lives of a cv below 0.15 get a normal jitter up to it: factor exp(-w^2 (0.15^2 - cv^2)/2) on
    phi in s and g and on the bracket, 0.15 in s(0).

    Parameters
    ----------
    below : numpy.ndarray
        H_i, probability that a length is at most node i (N + 1 values, the last 1).
    group_size : int
        S (>= 1).
    spacing : float
        Distance of the nodes, in mean lengths.

    Returns
    -------
    numpy.ndarray
        V' at the nodes (1): 1 at 0 (a Poisson stream), towards cv^2/S for long windows.

    Notes
    -----
    Source: derived here.  Within 8% of simulated slots for S from 1 to 32, cv .3 to 1.1.

    Examples
    --------
    >>> below = 1.0 - np.exp(-0.02 * (np.arange(2001) + 0.5))
    >>> [round(float(slope), 2) for slope in completion_variance_slope(below, 1, 0.02)[[1, 400]]]
    [1.0, 1.0]
    >>> [round(float(slope), 2) for slope in completion_variance_slope(below, 8, 0.02)[[1, 400]]]
    [0.98, 0.13]
    """
    nodes, size = len(below) - 1, float(group_size)
    mass: Array = np.diff(below, prepend=0.0)
    at = np.arange(nodes + 1) * spacing
    square = float(mass @ at**2) / float(mass @ at) ** 2 - 1.0
    jitter = max(LEAST_SLOT_CV**2 - square, 0.0)

    double = 1 << (2 * nodes + 1).bit_length()
    others = np.fft.rfft(np.diff(below ** (group_size - 1), prepend=0.0), double)
    ending = np.fft.irfft(others * np.conj(np.fft.rfft(mass, double)), double)[: nodes + 1]
    ending[0] = np.sum(mass * below ** (group_size - 1))

    points = 1 << math.ceil(math.log2(max(16.0 * nodes, 64.0 / spacing)))
    frequency = 2.0 * np.pi * np.arange(points // 2 + 1) / (points * spacing)
    damping = np.exp(-0.5 * jitter * frequency**2)
    phi: Any = np.fft.rfft(mass, points)
    psi: Any = np.fft.rfft(np.diff(below**group_size, prepend=0.0), points)
    cross = (np.fft.rfft(size * ending, points) - size * psi * np.conj(phi)) * damping
    phi = phi * damping
    spectrum = np.empty(points // 2 + 1)
    spectrum[0] = (square + jitter) / size
    gain = psi[1:] / (size * (1.0 - phi[1:]))
    spectrum[1:] = (
        np.abs(gain) ** 2 * size * (1.0 - np.abs(phi[1:]) ** 2)
        + 1.0
        - np.abs(psi[1:]) ** 2
        + 2.0 * np.real(gain * np.conj(cross[1:]))
    )
    covariance = np.fft.irfft(spectrum, points)[: nodes + 1]
    return np.asarray(2.0 * np.cumsum(covariance) - covariance[0])
