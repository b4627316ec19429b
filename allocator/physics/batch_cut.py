"""Cancelling in a batch that starts together: what is kept, what it costs, and when it ends.

A batch-synchronous generator starts all rollouts of a batch at once and stops when enough of them
are done. The stream of `allocator.physics.oversampling` has no such end: there each group, or a
fixed level, decides. All lengths are in tokens.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from allocator.physics.length_tables import Empirical, QuantileTable
from allocator.physics.lengths import CappedLogNormal, Lengths
from allocator.physics.moments import ORDERS, FloatArray, plain
from allocator.physics.oversampling import Oversampling, oversampling_cut

#: Gauss-Legendre nodes of a panel, panels between the two ends of the rank's law and above it,
#: and the probability left outside on either side.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_PANELS, _PANELS_ABOVE = 48, 24
_TAIL = 1e-18


@dataclass(frozen=True)
class BatchCut:
    """What the end of a batch does to its lengths; arrays of the arguments' shape.

    The batch ends when the slowest rollout that is kept ends. All rollouts run at one speed and
    start together, so its length is the batch's last iteration.
    """

    oversampling: FloatArray
    """o >= 1, rollouts started per rollout kept."""
    batch: FloatArray
    """B, rollouts kept."""
    group_size: FloatArray
    """S, rollouts that are kept or cancelled together: 1 by sample."""
    lengths: Oversampling
    """Lengths kept and discarded; `cut_tokens` is infinite where o = 1."""
    end_tokens: FloatArray
    """q, expected length at which the batch ends: of the longest kept (also where o = 1)."""
    end_second_moment_tokens2: FloatArray
    """E[q^2]."""
    running_at_end: FloatArray
    """Expected rollouts still running when the batch ends, of all o B; 0 where o = 1."""


def batch_cut(
    lengths: Lengths,
    oversampling: ArrayLike,
    batch: ArrayLike,
    group_size: ArrayLike,
    by: Literal["sample", "group"],
) -> BatchCut:
    """Return lengths kept and discarded, and the end, of a batch that starts together.

    Parameters
    ----------
    lengths : law of the response length L.
    oversampling : o >= 1, rollouts started per rollout kept; broadcasts with the next two.
    batch : B >= group_size, rollouts kept.
    group_size : S >= 1, rollouts in a group; only `by` "group" looks at it.
    by : "sample": the first B of o B rollouts are kept. "group": of o G groups, G = B/S, the first
        G to be complete are kept. The rest stops at the end.

    Notes
    -----
    By sample this is `oversampling_cut` with the whole batch as one group.

    By group, the rank of a group's maximum is v = U^(1/S), U uniform, and the batch ends at the
    G-th smallest of o G: U ~ Beta(G, (o - 1) G + 1), q = Q(v), for real G and o. Given v, one kept
    rollout has rank v, the other B - 1 are uniform below v, and a rollout of a cancelled group is
    above v with probability r = (1 - v)/(1 - v^S), else uniform below::

        below = (1/v) int_0^v Q(u)^m du
        kept = E[Q(v)^m / B + (1 - 1/B) below]
        dispatched = kept/o + (1 - 1/o) E[below + r (Q(v)^m - below)]
        running at the end = (o - 1) B E[r]          ((o - 1) B by sample)

    The expectations over v are Gauss-Legendre sums on the normal scale, with panels that end
    where Q bends or jumps; exact to 1e-9 against closed forms (tested). Ranks also order equal
    lengths (the atom at the cap), at random. In a stream (`oversampling_cut` by group) v is fixed
    at o^(-1/S), the limit of large G.

    Raises
    ------
    ValueError
        oversampling < 1, group_size < 1, batch < group_size, or one of them not finite.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> law = capped_lognormal_from_mean_cv(12_704.0, 0.5, 40_000.0)
    >>> got = batch_cut(law, [1.0, 1.25], 512, 8, "group")
    >>> got.end_tokens.round().tolist(), got.lengths.kept_mean_tokens.round().tolist()
    ([39791.0, 28441.0], [12704.0, 12115.0])
    >>> got.running_at_end.round(1).tolist()
    [0.0, 17.7]
    """
    factor, kept, size = np.broadcast_arrays(
        *(np.asarray(a, dtype=np.float64) for a in (oversampling, batch, group_size))
    )
    sound = (factor >= 1) & (size >= 1) & (kept >= size) & np.isfinite(factor * kept)
    if not np.all(sound):
        raise ValueError("need finite oversampling >= 1 and batch >= group_size >= 1")
    if by == "sample":
        last = lengths.order_statistic_moments(kept, factor * kept)
        return BatchCut(
            oversampling=plain(factor),
            batch=plain(kept),
            group_size=plain(np.ones(kept.shape)),
            lengths=oversampling_cut(lengths, factor, kept, "sample"),
            end_tokens=plain(last[0]),
            end_second_moment_tokens2=plain(last[1]),
            running_at_end=plain((factor - 1.0) * kept),
        )
    cases = np.stack([factor.ravel(), kept.ravel(), size.ravel()], axis=1)
    unique, where = np.unique(cases, axis=0, return_inverse=True)
    rows = np.array([_by_group(lengths, *case) for case in unique.tolist()])
    table = rows[where.ravel()].T.reshape(len(rows[0]), *factor.shape)
    tokens_per_kept = factor * table[3]
    idle = factor == 1.0
    return BatchCut(
        oversampling=plain(factor),
        batch=plain(kept),
        group_size=plain(size),
        lengths=Oversampling(
            cut_tokens=plain(np.where(idle, math.inf, table[6])),
            kept_mean_tokens=plain(table[0]),
            kept_second_moment_tokens2=plain(table[1]),
            dispatched_mean_tokens=plain(table[3]),
            dispatched_second_moment_tokens2=plain(table[4]),
            dispatched_third_moment_tokens3=plain(table[5]),
            tokens_per_kept=plain(tokens_per_kept),
            discarded_token_fraction=plain(np.where(idle, 0.0, 1.0 - table[0] / tokens_per_kept)),
            discarded_rollout_fraction=plain(1.0 - 1.0 / factor),
            length_bias=plain(table[0] / lengths.mean),
        ),
        end_tokens=plain(table[6]),
        end_second_moment_tokens2=plain(table[7]),
        running_at_end=plain(table[8]),
    )


@lru_cache(maxsize=65_536)
def _by_group(lengths: Lengths, factor: float, kept: float, size: float) -> tuple[float, ...]:
    """Moments 1-3 of the kept and of the dispatched, moments 1-2 of the end, and the running."""
    if factor == 1.0:
        whole = [float(lengths.limited_moment(m, math.inf)) for m in ORDERS]
        longest = lengths.order_statistic_moments(kept, kept)
        return (*whole, *whole, float(longest[0]), float(longest[1]), 0.0)
    z, mass = _rank_scores(lengths, size, kept / size, (factor - 1.0) * kept / size + 1.0)
    level, above = special.ndtr(z), special.ndtr(-z)
    cut = lengths.quantile(np.minimum(level, np.nextafter(1.0, 0.0)))
    powers = np.stack([cut**m for m in ORDERS])
    limited = np.stack([lengths.limited_moment(m, cut) for m in ORDERS])
    below = (limited - powers * above) / level
    running = above / -np.expm1(size * special.log_ndtr(z))
    first = (powers / kept + (1.0 - 1.0 / kept) * below) @ mass
    cancelled = (below + running * (powers - below)) @ mass
    dispatched = first / factor + (1.0 - 1.0 / factor) * cancelled
    still = (factor - 1.0) * kept * float(running @ mass)
    ends = powers[:2] @ mass
    return (*first.tolist(), *dispatched.tolist(), *ends.tolist(), still)


def _rank_scores(
    lengths: Lengths, size: float, a: float, b: float
) -> tuple[FloatArray, FloatArray]:
    """Nodes z and their probabilities, where Phi(z)^size ~ Beta(a, b)."""

    def score(log_u: float) -> float:
        above = -math.expm1(log_u / size)
        return float(-special.ndtri(above) if above < 0.5 else special.ndtri(1.0 - above))

    low = score(math.log(special.betaincinv(a, b, _TAIL)))
    high = score(math.log1p(-special.betaincinv(b, a, _TAIL)))
    edges = [np.linspace(low, high, _PANELS + 1)]
    if isinstance(lengths, CappedLogNormal):
        # The third moment moves the upper tail by 3 sigma at most, and only up to the cap.
        kink = special.ndtri(1.0 - lengths.truncated_fraction)
        bends = np.array([kink])
        top = max(high, min(high + ORDERS[-1] * lengths.sigma, kink))
        edges.append(np.linspace(high, top, _PANELS_ABOVE + 1))
    else:
        bends = special.ndtri(_levels(lengths))
    inside = bends[(bends > low) & (bends < high)]
    panels = np.unique(np.concatenate([*edges, inside]))
    half = np.diff(panels) / 2.0
    z = (panels[:-1] + half)[:, None] + half[:, None] * _NODES
    log_level = special.log_ndtr(z)
    log_density = (
        (size * a - 1.0) * log_level + (b - 1.0) * np.log(-np.expm1(size * log_level)) - z**2 / 2
    )
    mass = half[:, None] * _WEIGHTS * np.exp(log_density - log_density.max())
    return z.ravel(), (mass / mass.sum()).ravel()


def _levels(lengths: Lengths) -> FloatArray:
    """Levels at which a tabulated quantile function bends or jumps."""
    if isinstance(lengths, QuantileTable):
        return np.array(lengths.levels)
    if isinstance(lengths, Empirical):
        counts = np.unique(np.array(lengths.values), return_counts=True)[1]
        return np.cumsum(counts) / len(lengths.values)
    return np.array([1.0 - lengths.truncated_fraction])
