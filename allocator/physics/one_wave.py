"""One wave: an engine that decodes all its samples at once, from the first step to the last."""

import numpy as np
from numpy.typing import ArrayLike

from allocator.physics.last_engine import last_engine_delay
from allocator.physics.lengths import Lengths
from allocator.physics.moments import FloatArray
from allocator.physics.renewal import RenewalTable, renewal_table

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def decisive_sum(
    end: FloatArray, mean: FloatArray, samples: FloatArray, total: FloatArray
) -> FloatArray:
    """Return the sum over the m samples of the engine whose sample ends the batch.

    end (1 - w) + w total mean, w = (m - 1)/(total - 1): one is the sample that ends the batch, and
    each of the other m - 1 is one of the other total - 1.

    Parameters
    ----------
    end, mean : E of a power of the length at the end, and over all samples (any unit).
    samples : m >= 1, samples on the engine.
    total : samples in the batch, on all engines (>= m).

    Examples
    --------
    >>> decisive_sum(*(np.array(x) for x in (9.0, 5.0, 8.0, 8.0))).item()  # one engine has it all
    40.0
    """
    share = (samples - 1.0) / np.maximum(total - 1.0, 1.0)
    return end * (1.0 - share) + share * total * mean


def expert_steps(
    lengths: Lengths,
    end: FloatArray,
    samples: FloatArray,
    total: FloatArray,
    running: FloatArray,
    miss: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return steps times the share of experts read in them, and what one sample more adds.

    int_0^end 1 - miss (1 - (1 - miss) f(l))^(m - 1) dl: one of m samples runs to the end, each
    other at step l with probability f. Of all the others in the batch `running` run to the end as
    well, and the rest has ranks below v = 1 - (running + 1)/(total + 1), so that
    f = (running + (total - 1 - running) (1 - F(l)/v)) / (total - 1).

    Parameters
    ----------
    lengths : law of the response length L.
    end : tokens at which the batch ends.
    samples, total : on the engine that ends last, and in the batch.
    running : samples still running at the end, besides the one that ends it.
    miss : 1 - experts per token / experts.

    Notes
    -----
    All arrays have one shape. 64 Gauss-Legendre nodes: to 1e-4 of the end, 1% where the lengths
    are a handful of values.
    """
    at = end[..., None] * (_NODES + 1.0) / 2.0
    level = (1.0 - (running + 1.0) / (total + 1.0))[..., None]
    held = np.minimum(running / np.maximum(total - 1.0, 1.0), 1.0)[..., None]
    share = held + (1.0 - held) * np.maximum(1.0 - lengths.cdf(at) / level, 0.0)
    log_missed = np.log1p(-np.minimum((1.0 - miss[..., None]) * share, 1.0 - 1e-15))
    missed = miss[..., None] * np.exp((samples[..., None] - 1.0) * log_missed)
    read: FloatArray = end * ((1.0 - missed) @ _WEIGHTS) / 2.0
    more: FloatArray = end * ((-missed * log_missed) @ _WEIGHTS) / 2.0
    return read, more


def slowest_engine_delay(
    lengths: Lengths, samples: ArrayLike, engines: ArrayLike, others_sd: ArrayLike
) -> FloatArray:
    """Return how much later the last engine ends because the others' tokens differ, in lives.

    An engine ends at T + Z, T the longest of its m lengths in mean lengths, and Z what the sum of
    its other lengths makes of that, with standard deviation `others_sd` in the same unit.
    Arguments are one-dimensional; see `last_engine_delay`.
    """
    table, m = renewal_table(lengths), np.asarray(samples, dtype=np.float64)
    few = table.every_fourth
    ended = np.power(1.0 - table.survival[0, few], m[:, None])
    return last_engine_delay(
        table.nodes[few] / RenewalTable.NODES_PER_LIFE, ended, others_sd, engines
    )
