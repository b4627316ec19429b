"""Slots of an engine that start the next rollout as soon as one ends: a renewal process.

All times are in mean lengths (lives), on nodes of equal distance. A constant length lies on a
node, so that what is exact for it stays exact.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from allocator.physics.lengths import Lengths
from allocator.physics.moments import FloatArray

#: Lives beyond which a length is cut off, and the chance that it is longer than the last node
#: (assumed: part of the stated law).
_MOST_LIVES = 1000.0
_TAIL = 1e-9

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


def lattice_masses(lengths: Lengths, nodes_per_mean: int) -> FloatArray:
    """Return the probabilities of the nodes 0, h, 2h, ..., h = 1/nodes_per_mean of a mean length.

    A length between two nodes counts for both, in proportion, so the mean is kept: the masses are
    the second differences of E[min(L, x)]. The spread grows by at most h/2.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> lattice_masses(capped_lognormal_from_mean_cv(700.0, 0.0), 4).tolist()
    [0.0, 0.0, 0.0, 0.0, 1.0]
    """
    mean = lengths.mean
    longest = float(lengths.quantile(1.0 - _TAIL)) if lengths.cap is None else lengths.cap
    count = math.ceil(min(longest / mean, _MOST_LIVES) * nodes_per_mean * (1.0 - 1e-12))
    nodes = np.arange(count + 2) / nodes_per_mean
    limited = np.asarray(lengths.limited_mean(nodes * mean)) / mean
    slope = np.diff(limited) * nodes_per_mean  # P(L > x), averaged between two nodes
    slope[-1] = 0.0
    masses = -np.diff(slope, prepend=1.0)
    masses[masses < 1e-12] = 0.0  # rounding, which would stand beside a constant length
    kept: FloatArray = masses / masses.sum()
    return kept


def renewal_masses(masses: FloatArray, count: int) -> FloatArray:
    """Return u_0, ..., u_count: expected lives that end at each node, the first begun at 0.

    u = f + f * u (convolution) with f the masses of one life.

    Examples
    --------
    >>> renewal_masses(np.array([0.0, 0.5, 0.5]), 3).tolist()
    [0.0, 0.5, 0.75, 0.625]
    """
    life = np.zeros(count + 1)
    stored = min(count + 1, masses.size)
    life[:stored] = masses[:stored]
    ends = np.zeros(count + 1)
    reverse = life[::-1].copy()  # reverse[count - j] = f_j
    for i in range(count + 1):
        earlier = ends[:i] @ reverse[count - i : count]
        ends[i] = (life[i] + earlier) / (1.0 - life[0])
    return ends


@dataclass(frozen=True)
class RenewalTable:
    """Slots on 64 nodes a life, followed for 12 lives, and what still runs after they stop.

    Attributes
    ----------
    ends : u_i, expected lives that end at node i, per slot.
    completions : u_0 + ... + u_i, the renewal function.
    variance : variance of the number of lives that ended by node i.
    nodes : r, nodes after the last start, every one up to 4 lives, then 4% apart.
    weights : lives that each of `nodes` stands for in an integral.
    survival : P(L > v + r), for starts v nodes before the last one (rows) and r (columns).
    survival_squared : its squares.
    """

    ends: FloatArray
    completions: FloatArray
    variance: FloatArray
    nodes: FloatArray
    weights: FloatArray
    survival: FloatArray
    survival_squared: FloatArray

    NODES_PER_LIFE = 64
    LIVES = 12

    @property
    def every_fourth(self) -> NDArray[np.intp]:
        """Indices of every fourth node and of the last."""
        return np.append(np.arange(0, self.nodes.size - 1, 4), self.nodes.size - 1)

    def still(self, starts: FloatArray) -> FloatArray:
        """Return how many of the starts per slot (see `starts`) still run at `nodes`."""
        return starts @ self.survival[: starts.shape[1]]

    def starts(self, last: ArrayLike, share: ArrayLike) -> FloatArray:
        """Return expected starts per slot, v = 0, 1, ... nodes before each last node.

        One last node a row, v in columns. Of the lives that end at node `last` only `share` is
        followed by another; the first life of every slot starts at node 0.
        """
        node = np.asarray(last, dtype=np.intp)[:, None]
        back = node - np.arange(node.max() + 1)
        begun = np.where(back >= 0, self.ends[back], 0.0)
        begun[:, 0] *= np.asarray(share)
        rows: FloatArray = begun + (back == 0)
        return rows


@lru_cache(maxsize=64)
def renewal_table(lengths: Lengths) -> RenewalTable:
    """Tabulate the slots of one law of lengths.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> table = renewal_table(capped_lognormal_from_mean_cv(900.0, 0.6))
    >>> round(float(table.completions[-1]), 2)  # about 12 + (cv^2 - 1)/2
    11.69
    """
    step = RenewalTable.NODES_PER_LIFE
    masses = lattice_masses(lengths, step)
    last = step * RenewalTable.LIVES
    ends = renewal_masses(masses, last)
    completions = np.cumsum(ends)
    pairs = np.convolve(ends, completions)[: last + 1]
    top = masses.size - 1
    nodes = [*range(min(4 * step, top))]
    while nodes[-1] < top:
        nodes.append(min(top, max(nodes[-1] + 1, round(1.04 * nodes[-1]))))
    width = np.diff(nodes)
    # Survival is constant from one node to the next; between far nodes it falls along a line.
    weights = np.zeros(len(nodes))
    weights[:-1] += (width + 1) / 2.0
    weights[1:] += (width - 1) / 2.0
    above = np.zeros(last + top + 1)
    above[:top] = np.maximum(1.0 - np.cumsum(masses[:top]), 0.0)
    survival = above[np.arange(last + 1)[:, None] + np.array(nodes)]
    return RenewalTable(
        ends=ends,
        completions=completions,
        variance=np.maximum(completions + 2.0 * pairs - completions**2, 0.0),
        nodes=np.array(nodes, dtype=np.float64),
        weights=weights / step,
        survival=survival,
        survival_squared=survival**2,
    )


def residual_survival(lengths: Lengths) -> tuple[FloatArray, FloatArray]:
    """Return P(life left > r) of a rollout met at a random moment, and weights to integrate it.

    1 - E[min(L, r)]/E[L], r in lives, at Gauss-Legendre nodes: 96 up to one life and in each
    doubling beyond.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> left, weights = residual_survival(capped_lognormal_from_mean_cv(900.0, 1.0))
    >>> round(float(left @ weights), 6)  # E[L^2] / 2 E[L]^2
    1.0
    """
    top = float(lengths.quantile(1.0 - 1e-12)) if lengths.cap is None else lengths.cap
    edges = [0.0, 1.0]
    while edges[-1] * lengths.mean < top * (1.0 - 1e-12):
        edges.append(min(2.0 * edges[-1], top / lengths.mean))
    half = np.diff(edges) / 2.0
    at = (np.array(edges[:-1]) + half)[:, None] + half[:, None] * _NODES
    left = 1.0 - np.asarray(lengths.limited_mean(at.ravel() * lengths.mean)) / lengths.mean
    return left, (half[:, None] * _WEIGHTS).ravel()
