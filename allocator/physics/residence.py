"""How long a group of samples stays in the generator, and how evenly groups come out of it.

A group of S samples is finished when its last sample is: its residence time is set by the largest
of S lengths.  Everything here is in units of the mean length, belongs to the scenario (lengths,
group size, cut) and never to a plan, so one table serves every plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from allocator.physics.completions import LEAST_SLOT_CV, completion_variance_slope

Array = NDArray[np.float64]

NODES = 4096
"""Spacings between 0 and the largest length of a table (assumed: part of the stated law)."""

NODE_VALUES = NODES + 2
"""Values of each function of time in one table: the nodes, and one further on."""

TRANSFORM_VALUES = 8 * NODES + 2
"""Values of each transform in one table."""

TAIL_PROBABILITY = 1e-7
"""Chance that a group has a length beyond the table (assumed: part of the stated law)."""


@dataclass(frozen=True)
class ResidenceTable:
    r"""Law of the group maximum and of the stream of finished groups, on equidistant nodes.

    Lengths are rounded to the nearest node ``i h``, i = 0..N, N = 4096, h = top / N, so that
    ``H_i = F((i + 1/2) h)``, ``H_N = 1`` and the group maximum has the cdf ``H_i^S``.  The largest
    node ``top`` is the smaller of the longest possible length and the length exceeded with
    probability 1e-7 / S.  All times are in units of the mean length.

    Attributes
    ----------
    group_size : int
        S, samples per group (>= 1).
    length_mean_tokens : float
        Mean length (tokens), after cap and cut.
    length_cv : float
        Coefficient of variation of one length.
    tailness : float
        M = E[max of S] / E[L] (1).
    sd : float
        Standard deviation of the group maximum (mean lengths).
    mean_difference : float
        Mean absolute difference of two group maxima, ``2 h sum H^S (1 - H^S)`` (mean lengths).
    spacing : float
        h, distance of the nodes (mean lengths).
    integrated : numpy.ndarray
        J at the nodes, ``J_n = h sum_{i < n} H_i^S``; J(c) = E[(c - max)^+] (mean lengths).  This
        and the next two have one node more, which carries the slope above the table.
    variance : numpy.ndarray
        V at the nodes, see `completion_variance` (mean lengths).
    variance_slope : numpy.ndarray
        dV/dtau to the right of each node (1).
    transform_cos, transform_sin : numpy.ndarray
        E[cos w (max - M)] and E[sin w (max - M)] at ``w_n = 2 pi n / (16 N h)``, n = 0..8 N, then
        0.
    row : array_like
        Which of several stacked tables each plan reads (see `ResidenceTables`); 0 for one table.
    """

    group_size: Any
    length_mean_tokens: Any
    length_cv: Any
    tailness: Any
    sd: Any
    mean_difference: Any
    spacing: Any
    integrated: Array
    variance: Array
    variance_slope: Array
    transform_cos: Array
    transform_sin: Array
    row: Any = 0

    def rows(self, row: Any) -> ResidenceTable:
        """Return this table: it serves every plan."""
        return self

    def cdf(self, residence: ArrayLike) -> Array:
        """Probability that the group maximum is at most `residence` (mean lengths), 0 below 0.

        The law is discrete on the nodes: ``cdf(c) = (J_{n+1} - J_n) / h``, n = floor(c / h).
        """
        c = np.asarray(residence, dtype=np.float64)
        node, _ = self._cell(c)
        below = (self.integrated[node + 1] - self.integrated[node]) / self.spacing
        return np.where(c < 0.0, 0.0, below)

    def integrated_cdf(self, residence: ArrayLike) -> Array:
        """J(c) = E[(c - max)^+] in mean lengths: linear between nodes, 0 below 0, slope 1 above."""
        return _interpolate(self.integrated, *self._cell(residence))

    def completion_variance(self, window: ArrayLike) -> Array:
        """V(tau): the number of groups finished in a window tau has the variance ``rate V(tau)``.

        tau in mean lengths, >= 0.  Made of the slopes `completion_variance_slope` gives:
        ``V_n = h sum_{i<n} V'_i``, linear between nodes, slope ``cv^2/S`` above them (cv at least
        0.15).  V(tau)/tau is the index of dispersion: 1 for short windows, cv^2/S for long ones.
        """
        return _interpolate(self.variance, *self._cell(window))

    def completion_noise(self, window: ArrayLike) -> tuple[Array, Array]:
        """V and its slope dV/dtau: dispersion of what comes at the end of a window (1).

        The slope is linear between nodes and constant above them.
        """
        cell = self._cell(window)
        return _interpolate(self.variance, *cell), _interpolate(self.variance_slope, *cell)

    def transform(self, frequency: ArrayLike) -> tuple[Array, Array]:
        """E[cos w (max - M)] and E[sin w (max - M)] at w >= 0 (radians per mean length).

        Linear between the stated frequencies; 0 above them.
        """
        position = np.asarray(frequency, dtype=np.float64) * (8.0 * NODES * self.spacing / np.pi)
        node = np.minimum(position, 8.0 * NODES).astype(np.intp)
        inside = np.minimum(position - node, 1.0)
        node = node + self.row * TRANSFORM_VALUES
        return (
            _interpolate(self.transform_cos, node, inside),
            _interpolate(self.transform_sin, node, inside),
        )

    def _cell(self, at: ArrayLike) -> tuple[NDArray[np.intp], Array]:
        """Cell of the nodes (the last reaches to infinity) and the distance into it, in cells."""
        position = np.maximum(np.asarray(at, dtype=np.float64) * (1.0 / self.spacing), 0.0)
        node = np.minimum(position, float(NODES)).astype(np.intp)
        return node + self.row * NODE_VALUES, position - node


@dataclass(frozen=True)
class ResidenceTables:
    """Tables of several kinds of group, stacked, so that one call serves plans of all kinds."""

    tables: tuple[ResidenceTable, ...]

    def rows(self, row: Any) -> ResidenceTable:
        """Return a table that reads, for each plan, the table numbered `row`."""
        if len(self.tables) == 1:
            return self.tables[0]
        index = np.asarray(row).astype(np.intp)
        stacked = self._stacked
        return ResidenceTable(
            **{name: values[index] for name, values in stacked[0].items()}, **stacked[1], row=index
        )

    @cached_property
    def _stacked(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return single numbers as arrays over the tables, and all node values end to end."""
        numbers, values = {}, {}
        for field in fields(ResidenceTable):
            parts = [getattr(table, field.name) for table in self.tables]
            if field.name == "row":
                continue
            if np.ndim(parts[0]) == 0:
                numbers[field.name] = np.asarray(parts, dtype=np.float64)
            else:
                values[field.name] = np.concatenate(parts)
        return numbers, values


def residence_table(
    length_cdf: Callable[[Array], ArrayLike],
    longest_tokens: float,
    group_size: int,
    *,
    cut_tokens: float | None = None,
) -> ResidenceTable:
    """Tabulate the law of the group maximum for one length distribution.

    Parameters
    ----------
    length_cdf : callable
        F(tokens) -> probability, for arrays of positive lengths (tokens).
    longest_tokens : float
        A length that is never exceeded: the cap, or a generous bound (tokens, > 0).
    group_size : int
        S >= 1, samples of a group that are waited for.
    cut_tokens : float, optional
        Only lengths up to the cut are kept (oversampling): F becomes F / F(cut) below it.

    Returns
    -------
    ResidenceTable
        Table in units of the mean (kept) length.

    Raises
    ------
    ValueError
        If the group size is below 1, or no length can be below the bound.

    Examples
    --------
    >>> table = residence_table(lambda t: 1 - np.exp(-t / 900.0), 40000.0, 8)
    >>> round(table.length_mean_tokens), round(table.tailness, 3)
    (900, 2.718)
    """
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1, given {group_size}")
    bound = longest_tokens if cut_tokens is None else min(longest_tokens, cut_tokens)
    kept = 1.0 if cut_tokens is None else float(np.asarray(length_cdf(np.array([bound])))[0])
    if not (bound > 0 and kept > 0):
        raise ValueError(f"no length lies in (0, {bound}]")

    def cdf(tokens: Array) -> Array:
        values = np.asarray(length_cdf(tokens), dtype=np.float64) / kept
        return np.where(tokens >= bound, 1.0, np.clip(values, 0.0, 1.0))

    low, high = 0.0, float(bound)
    for _ in range(100):
        middle = 0.5 * (low + high)
        if float(cdf(np.full(1, middle))[0]) >= 1.0 - TAIL_PROBABILITY / group_size:
            high = middle
        else:
            low = middle
    step_tokens = high / NODES
    below = cdf(np.arange(0.5, NODES + 1.0) * step_tokens)
    below[-1] = 1.0
    mass: Array = np.diff(below, prepend=0.0)
    nodes = np.arange(NODES + 1, dtype=np.float64)
    mean_nodes = float(mass @ nodes)
    cv = math.sqrt(max(float(mass @ nodes**2) / mean_nodes**2 - 1.0, 0.0))
    spacing = 1.0 / mean_nodes
    group_below = below**group_size
    group_mass = np.diff(group_below, prepend=0.0)
    tailness = float(group_mass @ nodes) * spacing
    second = float(group_mass @ nodes**2) * spacing**2
    points = 16 * NODES
    turned = np.conj(np.fft.rfft(group_mass, points)) * np.exp(
        -2j * np.pi * np.arange(points // 2 + 1) * (tailness / (points * spacing))
    )
    slope = completion_variance_slope(below, group_size, spacing)
    return ResidenceTable(
        group_size=group_size,
        length_mean_tokens=mean_nodes * step_tokens,
        length_cv=cv,
        tailness=tailness,
        sd=math.sqrt(max(second - tailness**2, 0.0)),
        mean_difference=float(2.0 * spacing * np.sum(group_below * (1.0 - group_below))),
        spacing=spacing,
        integrated=_extended(
            np.concatenate([[0.0], np.cumsum(group_below[:-1]) * spacing]), spacing
        ),
        variance=_extended(
            np.concatenate([[0.0], np.cumsum(slope[:-1]) * spacing]),
            spacing * max(cv, LEAST_SLOT_CV) ** 2 / group_size,
        ),
        variance_slope=_extended(slope, 0.0),
        transform_cos=np.append(turned.real, 0.0),
        transform_sin=np.append(turned.imag, 0.0),
    )


def _extended(values: Array, rise: float) -> Array:
    """Values at the nodes and one node further on, `rise` higher."""
    return np.append(values, values[-1] + rise)


def _interpolate(table: Array, node: NDArray[np.intp], inside: Array) -> Array:
    """Linear interpolation in a cell."""
    low = table[node]
    return np.asarray(low + inside * (table[node + 1] - low))
