"""Waves: an engine with fewer slots than samples, each slot starting the next when one ends.

A slot writes one token an iteration, so this is list scheduling of m jobs on N machines, and what
it needs of the lengths is their renewal process. Times are in iterations over the mean length.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from allocator.physics.last_engine import last_engine_delay
from allocator.physics.lengths import Lengths
from allocator.physics.moments import ORDERS, FloatArray
from allocator.physics.renewal import RenewalTable, renewal_table
from allocator.physics.wave_groups import lengths_at_end, share_of

_STEP = 1.0 / RenewalTable.NODES_PER_LIFE
_WHOLE_WAVES_FROM = RenewalTable.LIVES - 2
_ROWS = 256  # plans computed at a time: bounds the memory, not the result


@dataclass(frozen=True)
class Waves:
    """Schedule of an engine with fewer slots than samples, one entry a plan; in mean lengths.

    Only the moments of samples are in tokens.
    """

    full: FloatArray
    """Iterations until the last start, all slots busy; the mean over engines."""
    delay: FloatArray
    """Iterations with all slots busy by which the last engine is later than were all alike."""
    tail: FloatArray
    """Iterations from the last start to the end."""
    tail_second_moment: FloatArray
    """E[tail^2]."""
    deciding: FloatArray
    """Weight of the slowest engine: 1 where all are waited for, 0 where one may be left behind."""
    expert_iterations: FloatArray
    """Iterations times the share of experts read in them."""
    dispatched: FloatArray
    """E[tokens^j] of a sample, 0 if it never started; j = 1, 2, 3 on the first axis."""
    kept: FloatArray
    """E[L^j] of a sample of a complete group, j = 1, 2, 3 likewise."""
    cut_tokens: FloatArray
    """Tokens of a sample that runs when the batch ends; 0 where none does."""


def waves(
    lengths: Lengths,
    samples: ArrayLike,
    slots: ArrayLike,
    engines: ArrayLike,
    unfinished: ArrayLike,
    group_size: ArrayLike,
    expert_miss: ArrayLike,
    token_ratio: ArrayLike,
    last_ratio: ArrayLike,
) -> Waves:
    """Return the schedule of m samples on N < m slots of each of E engines.

    Parameters
    ----------
    lengths : law of the response length L.
    samples : m > N, samples per engine; one-dimensional, as all that follow, of one length.
    slots : N >= 1, slots per engine.
    engines : E >= 1.
    unfinished : 0 <= c < E m, samples that may still run or wait when the batch ends.
    group_size : S >= 1, samples that are kept together.
    expert_miss : 1 - experts per token / experts; 0 for a dense model.
    token_ratio : seconds that one token more costs, in steps of a full engine.
    last_ratio : seconds of a step of an engine with one sequence left, in such steps.

    Notes
    -----
    The last start is at the node s where the renewal function M reaches (m - N)/N, of whose ends
    a share is followed by a start. A sample begun v before s runs beyond s + r with probability
    F_v = P(L > v + r). With w_v starts per slot the number running on E N slots has mean
    E N sum w F and variance E N sum w F (1 - F) (starts at their expected times), hence
    p = sum w F^2 / sum w F and n = E N (sum w F)^2 / sum w F^2, and the batch ends when at most c
    run::

        P(end > s + r) = P(Binomial(n, p) > c) = I_p(c + 1, n - c)        c = 0: 1 - (1 - p)^n

    or, where c >= E N, when M reaches (m - c/E)/N. For equal lengths p = 1 and everything is
    exact, whatever the last wave holds; at m = N it is the order statistic of E N lengths itself.
    Beyond 10 waves, whole ones are put in front: exact for equal lengths, and for others once
    the process has forgotten its start.

    An engine comes to its last start earlier or later than the next one: by the spread sd of the
    time T of the (m - N)-th end, P(T > t) = Phi((m - N - 1/2 - N M(t)) / sqrt(N V(t))), V the
    variance of one slot's count. The N slots then carry the variance (N sd)^2 of the m cv^2 that
    the engine's tokens have; the rest costs `token_ratio` a token. `delay` is how much later the
    last of E engines is for both (`last_engine_delay`), in steps of a full engine. Its weight
    falls to 0 where c reaches N (assumed: a whole engine may then be left behind).

    Source: derived here; errors against list scheduling are stated in `batch_generation`.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> law = capped_lognormal_from_mean_cv(900.0, 0.0)
    >>> got = waves(law, [10.0], [4.0], [3.0], [0.0], [1.0], [0.0], [0.1], [0.7])
    >>> got.full.tolist(), got.delay.tolist(), got.tail.tolist()  # 4, 4 and 2 samples
    ([2.0], [0.0], [1.0])
    """
    arguments = (
        *(samples, slots, engines, unfinished, group_size, expert_miss),
        *(token_ratio, last_ratio),
    )
    table = renewal_table(lengths)
    plans = np.stack([np.asarray(a, dtype=np.float64) for a in arguments])
    parts = [
        _schedule(lengths, table, *plans[:, i : i + _ROWS])
        for i in range(0, max(plans.shape[1], 1), _ROWS)
    ]
    return Waves(
        **{
            f.name: np.concatenate([getattr(part, f.name) for part in parts], axis=-1)
            for f in fields(Waves)
        }
    )


def _schedule(
    lengths: Lengths,
    table: RenewalTable,
    m: FloatArray,
    n: FloatArray,
    engines: FloatArray,
    unfinished: FloatArray,
    size: FloatArray,
    miss: FloatArray,
    token_ratio: FloatArray,
    last_ratio: FloatArray,
) -> Waves:
    ends = np.minimum(m - n, m - unfinished / engines) / n
    whole = np.maximum(np.ceil(ends - _WHOLE_WAVES_FROM), 0.0)
    ends = ends - whole
    last = np.searchsorted(table.completions, ends * (1.0 - 1e-12))
    before = np.where(last > 0, table.completions[last - 1], 0.0)
    starts = table.starts(last, (ends - before) / table.ends[last])
    full = whole + last * _STEP

    running = table.still(starts)
    chance = share_of(starts @ table.survival_squared[: starts.shape[1]], running)
    candidates = share_of(n[:, None] * running, chance)
    waits = (unfinished < engines * n)[:, None]
    left = np.where(waits[:, 0], unfinished, 0.0)
    busy = waits * _more_than(left[:, None], engines[:, None] * candidates, chance)
    tail = busy @ table.weights
    deciding = np.maximum(1.0 - unfinished / n, 0.0)
    spread = _last_start_sd(table, m - n, n, whole)
    one_done = 1.0 - _more_than(np.zeros(1), candidates, chance)
    few = table.every_fourth
    of_sums = np.maximum(m * lengths.cv**2 - (n * spread) ** 2, 0.0) * token_ratio**2
    apart = np.sqrt(spread**2 + of_sums) / last_ratio
    at = table.nodes[few] * _STEP
    delay = deciding * last_ratio * last_engine_delay(at, one_done[:, few], apart, engines)

    # The engine that ends last has the sample that decides instead of one begun last.
    other = (deciding * (1.0 - 1.0 / engines))[:, None] * (busy - table.survival[0])
    decoding = np.clip(share_of(n[:, None] * running + other, busy), 1.0, n[:, None])
    among = np.clip(
        np.maximum(chance, (decoding - 1.0) / np.maximum(n[:, None] - 1.0, 1e-9)), 1e-9, 1.0
    )
    missed = np.power(1.0 - (1.0 - miss[:, None]) * among, (decoding - 1.0) / among)
    touched = (busy * (1.0 - miss[:, None] * missed)) @ table.weights
    touched_full = (full + delay) * (1.0 - np.power(miss, n))

    stopped = np.minimum(unfinished / engines, n) / n
    moments = lengths_at_end(lengths, starts, tail, stopped, size)
    more = whole * np.array([float(lengths.limited_moment(j, np.inf)) for j in ORDERS])[:, None]
    dispatched, cancelled = moments.of_starts + more, moments.of_stopped
    ended = starts.sum(axis=1) + whole - stopped
    kept = np.where(
        size > 1.0,
        (moments.of_complete + more) / (moments.complete + whole),
        (dispatched - stopped * cancelled) / np.where(ended > 0, ended, 1.0),
    )
    return Waves(
        full=full,
        delay=delay,
        tail=tail,
        tail_second_moment=_STEP * busy @ (table.weights * (2.0 * table.nodes + 1.0)),
        deciding=deciding,
        expert_iterations=touched_full + touched,
        dispatched=dispatched * (n / m),
        kept=kept,
        cut_tokens=cancelled[0],
    )


def _more_than(left: FloatArray, candidates: FloatArray, chance: FloatArray) -> FloatArray:
    """P(Binomial(candidates, chance) > left), real counts; 0 where there are not so many."""
    with np.errstate(divide="ignore"):
        none = -np.expm1(candidates * np.maximum(np.log1p(-chance), -1e3))
    if not np.any(left > 0):
        return none
    spare = candidates - left
    some = special.betainc(left + 1.0, np.maximum(spare, 1e-9), chance)
    return np.where(left > 0, np.where(spare > 1e-9, some, 0.0), none)


def _last_start_sd(
    table: RenewalTable, ended: FloatArray, slots: FloatArray, whole: FloatArray
) -> FloatArray:
    """Standard deviation of the time at which `ended` lives have ended on `slots` slots."""
    lack = (ended - whole * slots)[:, None] - 0.5 - slots[:, None] * table.completions
    deviation = np.sqrt(np.maximum(slots[:, None] * table.variance, 1e-18))
    later = special.ndtr(lack / deviation)
    mean = later.sum(axis=1) * _STEP
    second = later @ (2.0 * np.arange(later.shape[1]) + 1.0) * _STEP**2
    per_wave = table.variance[-1] / RenewalTable.LIVES / slots
    sd: FloatArray = np.sqrt(np.maximum(second - mean**2, 0.0) + whole * per_wave)
    return sd
