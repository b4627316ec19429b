"""The end of a batch that runs in waves: samples left unfinished, and lengths of the others."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from allocator.physics.lengths import Lengths
from allocator.physics.moments import ORDERS, FloatArray
from allocator.physics.renewal import RenewalTable, renewal_table

_WHOLE_WAVES_FROM = RenewalTable.LIVES - 4
_STEP = 1.0 / RenewalTable.NODES_PER_LIFE


def unfinished_of_groups(
    lengths: Lengths,
    samples: ArrayLike,
    slots: ArrayLike,
    oversampling: ArrayLike,
    group_size: ArrayLike,
) -> FloatArray:
    """Return samples per engine that run or wait when the share 1/o of the groups is complete.

    Groups start in order, the samples of one together, so one begun v ago is complete with
    probability F(v)^S. With w starts per slot, of which all N slots make m, the batch ends at the
    time t of (N/m) sum w F(t - u)^S = 1/o, and leaves m - N sum w F(t - u). Expected values
    throughout; for one wave it is the number above the level at which the groups are cut.

    Parameters
    ----------
    lengths : law of the response length L.
    samples : m, samples per engine, one-dimensional, as all that follow, of one length.
    slots : N <= m, slots per engine.
    oversampling : o > 1.
    group_size : S >= 1; for S = 1 it gives m (1 - 1/o).

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> law = capped_lognormal_from_mean_cv(900.0, 0.6)
    >>> unfinished_of_groups(law, [100.0] * 3, [100.0, 50.0, 10.0], [1.25] * 3, [8.0] * 3).round(1)
    array([ 2.8,  3. , 10. ])
    """
    table = renewal_table(lengths)
    m, n, factor, size = (
        np.asarray(a, dtype=np.float64) for a in (samples, slots, oversampling, group_size)
    )
    unfinished = np.zeros(m.size)
    for value in np.unique(size):
        rows = size == value
        unfinished[rows] = _unfinished(table, lengths, float(value), m[rows], n[rows], factor[rows])
    return unfinished


def _unfinished(
    table: RenewalTable,
    lengths: Lengths,
    size: float,
    m: FloatArray,
    n: FloatArray,
    factor: FloatArray,
) -> FloatArray:
    together, after = _complete(lengths, size)
    begun, wanted = (m - n) / n, m / (factor * n)
    whole = np.maximum(np.ceil(np.minimum(begun, wanted) - _WHOLE_WAVES_FROM), 0.0)
    begun, wanted = begun - whole, wanted - whole
    end = table.completions.size - 1
    last = np.minimum(np.searchsorted(table.completions, begun * (1.0 - 1e-12)), end)
    before = np.where(last > 0, table.completions[last - 1], 0.0)
    share = np.divide(
        begun - before, table.ends[last], out=np.ones_like(begun), where=begun > before
    )
    starts = table.starts(last, np.minimum(share, 1.0))

    # Before the last start: all slots are busy, and what has not ended runs or waits.
    early = np.minimum(np.searchsorted(together, wanted), end)
    waiting = m - n * (whole + table.completions[early])
    # After it: the first node at which enough groups are complete, and, between it and the one
    # before, on a line in the level of single samples (one atom of lengths may hold both nodes).
    done, still = starts @ after[: starts.shape[1]], table.still(starts)
    node = np.argmax(done >= wanted[:, None], axis=1)
    row, ahead = np.arange(m.size), np.maximum(node - 1, 0)
    low, level, high = (
        np.power(x, 1.0 / size) for x in (done[row, ahead], wanted, done[row, node])
    )
    part = np.where(high > low, np.clip(share_of(level - low, high - low), 0.0, 1.0), 1.0)
    running = n * (still[row, ahead] * (1.0 - part) + still[row, node] * part)
    left: FloatArray = np.where(early <= last, waiting, running)
    return left


@lru_cache(maxsize=64)
def _complete(lengths: Lengths, size: float) -> tuple[FloatArray, FloatArray]:
    """Samples in complete groups per slot by each node, and P(group complete) after the last start.

    The second has starts v nodes before the last one in rows, and the table's nodes in columns.
    """
    table = renewal_table(lengths)
    starts = table.ends.copy()
    starts[0] += 1.0
    group = np.power(1.0 - table.survival[:, 0], size)
    together = np.convolve(starts, group)[: starts.size]
    return together, np.power(1.0 - table.survival, size)


class LengthsAtEnd(NamedTuple):
    """Tokens^j at the end of a batch, j = 1, 2, 3 in rows; sums over the starts of a slot."""

    of_starts: FloatArray
    of_complete: FloatArray
    complete: FloatArray
    of_stopped: FloatArray  # means, of those that run at the end


def lengths_at_end(
    lengths: Lengths, starts: FloatArray, tail: FloatArray, running: FloatArray, size: FloatArray
) -> LengthsAtEnd:
    """Tokens of the starts at the end of the batch, when `running` of them per slot still run.

    Where fewer are beyond the end, the others are among those that end with it (an atom).
    """
    entire = np.array([float(lengths.limited_moment(j, np.inf)) for j in ORDERS])
    complete = starts.sum(axis=1)
    of_starts = entire[:, None] * complete
    of_complete, of_stopped = of_starts.copy(), np.zeros_like(of_starts)
    cut = running > 0  # elsewhere all run to their end
    if np.any(cut):
        begun, tokens = starts[cut], np.arange(starts.shape[1]) * _STEP
        tokens = (tail[cut, None] + tokens) * lengths.mean
        above = np.asarray(lengths.survival(tokens))
        limited = [lengths.limited_moment(j, tokens) for j in ORDERS]
        beyond = begun * above
        ending = begun * lengths.survival(tokens * (1.0 - 1e-9)) - beyond
        lack = np.clip(share_of(running[cut] - beyond.sum(axis=1), ending.sum(axis=1)), 0.0, 1.0)
        stopped = beyond + lack[:, None] * ending
        others = begun * np.power(1.0 - above, size[cut, None] - 1.0)
        complete[cut] = np.sum(others * (1.0 - above), axis=1)
        for j, moment in zip(ORDERS, limited, strict=True):
            power = np.where(begun > 0, tokens, 0.0) ** j
            of_starts[j - 1, cut] = np.sum(begun * moment, axis=1)
            of_complete[j - 1, cut] = np.sum(others * (moment - power * above), axis=1)
            of_stopped[j - 1, cut] = share_of(np.sum(stopped * power, axis=1), stopped.sum(axis=1))
    return LengthsAtEnd(of_starts, of_complete, complete, of_stopped)


def share_of(above: FloatArray, below: FloatArray) -> FloatArray:
    """Return above / below, 0 where nothing is below."""
    some = below > 1e-12
    ratio: FloatArray = np.where(some, above / np.where(some, below, 1.0), 0.0)
    return ratio
