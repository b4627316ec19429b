"""Batch-synchronous generation: how long the engines take from the first start to the batch's end.

All samples of a batch start together, m on each engine, and the batch ends when enough are done.
One wave (`allocator.physics.one_wave`) where an engine has a slot for each of its samples, several
(`allocator.physics.waves`) where it has not.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from allocator.physics.batch_cut import BatchCut
from allocator.physics.decode import DecodeLaw, decode_step_s
from allocator.physics.lengths import Lengths
from allocator.physics.moments import FloatArray, plain
from allocator.physics.one_wave import decisive_sum, expert_steps, slowest_engine_delay
from allocator.physics.oversampling import Oversampling
from allocator.physics.wave_groups import unfinished_of_groups
from allocator.physics.waves import waves

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class BatchGeneration:
    """Generation of one batch, one entry a plan."""

    seconds: FloatArray
    """From the first start to the last end, environment and tail included."""
    decode_s: FloatArray
    """Seconds of decode steps on the engine that ends last."""
    prefill_s: FloatArray
    """Seconds of prefill on it."""
    iterations: FloatArray
    """Decode steps it takes."""
    decoding_mean: FloatArray
    """Sequences in a step of it, on average over the steps."""
    lengths: Oversampling
    """Lengths kept and discarded: those of the cut, but where waves change them."""


def batch_generation(
    law: DecodeLaw,
    lengths: Lengths,
    cut: BatchCut,
    *,
    engines: ArrayLike,
    slots: ArrayLike,
    prompt_tokens: ArrayLike,
    prefill_s: ArrayLike = 0.0,
    environment_s: ArrayLike = 0.0,
    tail_s: ArrayLike = 0.0,
) -> BatchGeneration:
    """Return the time that the generation of a batch takes.

    With m = o B / engines samples an engine, N slots, the end q of the cut, D_j = E[min(L, q)^j]
    and w = (m - 1)/(o B - 1)::

        seconds = m prefill + decode + environment + tail
        decode = alpha K + expert X + beta S_1 + gamma (P_0 S_1 + S_2/2) + unlucky

        one wave, m <= N:    K = q        S_j = (1 - w) E[q^j] + w o B D_j
        waves, m > N:        K = max(s + d + r, q, m D_1/N)
                             S_j = m D_j + (1 - 1/engines) (E[r^j] - E[L^j]) + N d E[L^j]/E[L]

    S_1 tokens are decoded on the engine that holds the sample which ends the batch, with context
    sum P_0 S_1 + S_2/2 over its steps; X is the number of steps times the share of experts read
    (`expert_steps`). In waves s, d and r are the full steps, the delay and the tail of
    `allocator.physics.waves`. `unlucky` is what the last of several engines is later since the
    sums of their lengths differ (`slowest_engine_delay`); waves have it in d.

    Parameters
    ----------
    law : decode coefficients of an engine, scalars or one a plan; all below broadcast with it.
    lengths, cut : the law of lengths, and what the end of the batch does to it.
    engines : engines that share the batch, > 0; more than o B of them leave some idle (m is then
        1: an engine that is used holds a sample).
    slots : N > 0, rollouts an engine can decode at once (limit in flight, KV capacity); below 1
        counts as 1.
    prompt_tokens : P_0, context of a sequence without its response (>= 0).
    prefill_s : engine-seconds of prefill per sample, which stop the decoding (>= 0).
    environment_s : seconds of a rollout outside the engine, added once, at the end (>= 0).
    tail_s : further seconds until the batch is whole, e.g. scoring its last rollout (>= 0).

    Notes
    -----
    Exact for equal lengths: ceil(m/N) waves, the last of them with what remains. Against 440 plans
    of list scheduling with random lengths (cv .2 to 1.5, caps from 2.1 means on, 1 to 24 engines,
    m/N from .5 to 8, each under a dense law and one with experts; the simulation's own standard
    error is .5% in the median): one wave within 4.3%, half the plans within .5%; waves on 16 to 128
    slots within 5.6%, half within .5%; on 4 slots within 10.4%, half within 1.1%. With oversampling
    of 1.25 by sample waves are within 6.6% on 16 slots and more, and from 16% short to 7% long on
    4; by group (of 8, 36 plans on 32 and 64 slots) within 5.3%, half within .8%. For nearly equal
    lengths on many engines the first sample of a new wave may count 1.3% more than it should.

    By group, waves end at the number of unfinished samples that is expected when enough groups are
    complete (`unfinished_of_groups`); the samples of a group start together, on one engine.

    Raises
    ------
    ValueError
        engines or slots not above 0.

    Examples
    --------
    >>> from allocator.physics.batch_cut import batch_cut
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> responses = capped_lognormal_from_mean_cv(4_000.0, 0.0)
    >>> law = DecodeLaw(0.01, 0.0, 1e-4, 0.0, 0.0)
    >>> got = batch_generation(law, responses, batch_cut(responses, 1.0, 80, 8, "sample"),
    ...                        engines=2, slots=[40.0, 16.0], prompt_tokens=500.0)
    >>> got.decode_s.round(9).tolist(), got.iterations.round(6).tolist()
    ([56.0, 136.0], [4000.0, 12000.0])
    """
    given = (
        *(getattr(law, f.name) for f in fields(DecodeLaw)),
        *(cut.oversampling, cut.batch, cut.group_size, cut.running_at_end),
        *(cut.end_tokens, cut.end_second_moment_tokens2),
        *(engines, slots, prompt_tokens, prefill_s, environment_s, tail_s),
        *(getattr(cut.lengths, f.name) for f in fields(Oversampling)),
    )
    arrays = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in given))
    shape = arrays[0].shape
    flat = [a.ravel() for a in arrays]
    kinds = DecodeLaw(*flat[:5])
    factor, batch, size, running, end, end_squared = flat[5:11]
    count, slot, prompt, prefill, around, after = flat[11:17]
    spent = Oversampling(*flat[17:])
    if not (np.all(count > 0) and np.all(slot > 0)):
        raise ValueError("batch generation needs engines and slots above 0")
    total = factor * batch
    samples, room = np.maximum(total / count, 1.0), np.maximum(slot, 1.0)
    used = np.maximum(total / samples, 1.0)
    mean, second = spent.dispatched_mean_tokens, spent.dispatched_second_moment_tokens2

    read, more = np.zeros((2, total.size))
    routed = kinds.expert_s > 0
    if np.any(routed):
        at_once = np.minimum(samples, room)
        arguments = (end, at_once, total, running, kinds.expert_miss)
        read[routed], more[routed] = expert_steps(lengths, *(a[routed] for a in arguments))
    token_s = kinds.beta_s + kinds.gamma_s_per_token * (prompt + second / mean)
    token_s = token_s + kinds.expert_s * more / mean
    last_s = decode_step_s(kinds, 1.0, prompt + end / 2.0)

    run = _Run(
        steps=end,
        tokens=decisive_sum(end, mean, samples, total),
        squares=decisive_sum(end_squared, second, samples, total),
        expert_steps=read,
    )
    wavy = samples > room * (1.0 + 1e-12)
    deciding = np.where(wavy, 0.0, np.maximum(1.0 - running / samples, 0.0))
    spread = np.sqrt((samples - 1.0) * np.maximum(second - mean**2, 0.0)) * (deciding > 0)
    delay = slowest_engine_delay(lengths, samples, used, token_s / last_s * spread / lengths.mean)
    unlucky_s = deciding * delay * lengths.mean * last_s
    if np.any(wavy):
        full_s = decode_step_s(kinds, room, room * (prompt + second / (2.0 * mean)))
        left = running.copy()
        of = wavy & (running > 0) & (size > 1.0)
        grouped = (a[of] for a in (samples, room, factor, size))
        left[of] = used[of] * unfinished_of_groups(lengths, *grouped)
        costs = (kinds.expert_miss, token_s / full_s, last_s / full_s)
        plans = (samples, room, used, left, size, *costs)
        run, spent = _with_waves(lengths, np.stack(plans), wavy, run, spent, factor)

    context = prompt * run.tokens + run.squares / 2.0
    decode = kinds.alpha_s * run.steps + kinds.expert_s * run.expert_steps + unlucky_s
    decode = decode + kinds.beta_s * run.tokens + kinds.gamma_s_per_token * context
    reading = samples * prefill
    whole = (reading + decode + around + after, decode, reading, run.steps, run.tokens / run.steps)
    seconds, decode, reading, steps, decoding = (plain(a.reshape(shape)) for a in whole)
    after_all = [plain(getattr(spent, f.name).reshape(shape)) for f in fields(Oversampling)]
    return BatchGeneration(seconds, decode, reading, steps, decoding, Oversampling(*after_all))


class _Run(NamedTuple):
    """What the engine that ends last does: steps, tokens, sum of tokens^2, steps x experts."""

    steps: FloatArray
    tokens: FloatArray
    squares: FloatArray
    expert_steps: FloatArray


def _with_waves(
    lengths: Lengths,
    plans: FloatArray,
    wavy: Mask,
    run: _Run,
    spent: Oversampling,
    factor: FloatArray,
) -> tuple[_Run, Oversampling]:
    """Return both with the plans in `wavy` replaced by what waves make of them.

    `plans` are the arguments of `waves` (rows), one plan a column.
    """
    unique, where = np.unique(plans[:, wavy], axis=1, return_inverse=True)
    where = where.ravel()
    got = waves(lengths, *unique)
    samples, room, used = unique[:3]
    mean, second = lengths.mean, lengths.second_moment
    last = got.deciding * (1.0 - 1.0 / used)
    own, own_squares = samples * got.dispatched[:2]
    tokens = own + (last * (got.tail - 1.0) + room * got.delay) * mean
    squares = own_squares + last * (got.tail_second_moment * mean**2 - second)
    squares = squares + room * got.delay * second
    steps = np.maximum((got.full + got.delay + got.tail) * mean, own / room)
    new = (steps, tokens, squares, got.expert_iterations * mean)
    merged = _Run(*(_put(old, wavy, values[where]) for old, values in zip(run, new, strict=True)))
    merged = merged._replace(steps=np.maximum(merged.steps, run.steps))

    cancels = wavy & (plans[3] > 0)
    of = where[cancels[wavy]]
    kept = got.kept[0]
    per_kept = factor[cancels] * got.dispatched[0, of]
    moments = {
        "cut_tokens": got.cut_tokens[of],
        "kept_mean_tokens": kept[of],
        "kept_second_moment_tokens2": got.kept[1, of],
        "dispatched_mean_tokens": got.dispatched[0, of],
        "dispatched_second_moment_tokens2": got.dispatched[1, of],
        "dispatched_third_moment_tokens3": got.dispatched[2, of],
        "tokens_per_kept": per_kept,
        "discarded_token_fraction": 1.0 - kept[of] / per_kept,
        "length_bias": kept[of] / mean,
    }
    changed = {name: _put(getattr(spent, name), cancels, new) for name, new in moments.items()}
    return merged, replace(spent, **changed)


def _put(values: FloatArray, where: Mask, new: FloatArray) -> FloatArray:
    """Return a copy with the entries of a mask replaced."""
    copy = values.copy()
    copy[where] = new
    return copy
