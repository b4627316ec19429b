"""Batches whose unfinished rollouts are resumed in the next: partial rollout.

o B rollouts are in flight when a batch begins, (o - 1) B of them resumed from the one before; it
ends when B are done. Nothing is thrown away, and nobody waits for the longest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.physics.decode import DecodeLaw
from allocator.physics.lengths import Lengths

#: Gauss-Legendre nodes for the experts that a step reads.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
#: Halvings that find the steps of a batch, and the most batches that a rollout is followed through.
_HALVINGS, _MOST_BATCHES = 60, 400
#: Batches a life beyond which E[ceil(R/x)] is 1/x + 1/2.
_MANY = 40.0
#: Relative distance within which two ends count as one, where all lengths are equal.
_TIE = 1e-9


@dataclass(frozen=True, slots=True)
class ResumedBatch:
    """Decoding of one batch on one engine; arrays of the broadcast shape.

    Attributes
    ----------
    iterations : decode steps from the start of the batch to its end.
    decode_s : seconds of them.
    token_s : mean seconds of a step.
    in_flight : mean number in flight on the engine.
    ends_met : ends of batches that a rollout meets on average after its start.
    late_share, late_part : share of the rollouts that start when another ends, and the part of
        the batch in which they do.
    """

    iterations: Any
    decode_s: Any
    token_s: Any
    in_flight: Any
    ends_met: Any
    late_share: Any
    late_part: Any


def resumed_batch(
    law: DecodeLaw,
    lengths: Lengths,
    *,
    started: Any,
    kept: Any,
    slots: Any,
    mean_tokens: Any,
    context_tokens: Any,
    longest_tokens: Any,
    decoding_share: Any = 1.0,
) -> ResumedBatch:
    """Time the decoding of a batch that begins with m in flight on an engine and ends k later.

    In the long run k lives are written per batch, k E[R] tokens. While all N slots are taken,
    s N/E[R] rollouts end in a step, s the share of those in flight that decode. Then, from
    b = min(m, N) on, no more start; the batch ends at m - k left, d = b - (m - k) later. Where all
    fresh ones start with the batch, each lives through ceil(R/K) batches, m/k of them on average,
    and the same is taken for the part in which the number falls::

        K = E[R]/s (max(0, min(m - N, k))/N + f(b/d))       E[ceil(R/(f(o) E[R]))] = o

    (without the second while m - k >= N). Either part spends the tokens of the rollouts that end in
    it. f(o) = ln(o/(o - 1)) for memoryless lengths, 1/floor(o) for equal ones. As m approaches k
    the last ones are waited for: K is at most the longest of the batch. The time is

        alpha K + expert int (1 - miss^(s n)) dl + (beta + gamma c) k E[R],

    n the number with a slot: N, then d sum_j P(R > (j f + l/K') E[R]), which falls from b to m - k.
    In the slots min(N, m - k) are met by the end of a batch at which k end, so that a rollout meets
    min(N, m - k)/k ends, whatever the lengths.

    Parameters
    ----------
    law : decode coefficients, broadcast.
    lengths : law whose shape R has, at the mean below.
    started : m > k, rollouts in flight on the engine when the batch begins.
    kept : k > 0, rollouts that end in it.
    slots : N > 0, that the engine holds at a time (cap, KV memory).
    mean_tokens : E[R], response tokens.
    context_tokens : c, mean context of a decoding sequence.
    longest_tokens : expected longest of the batch, were all begun with it.
    decoding_share : s in (0, 1], time in decoding over time in the generator.

    Notes
    -----
    Steps against simulated batches of one engine (log-normal lengths of cv .3 to 1.2, m/k 1.25
    to 4): with a slot for each 0 to +2% at 96 kept and more, and +1 to +7% at 16, where the last
    few end sooner than expected values say; with slots for half or three quarters -2 to +5%, but
    -8 to +10% at m/k below 2 and cv .3. Below m/k of 1.1 up to 20% off. Ends met within 1%; the
    share that meets none within .03, .06 where some wait (.13 where steps are 10% off). Of equal
    lengths all of an age end at once: steps then jump at whole m/k. Source: derived here, by
    Little's law.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> got = resumed_batch(DecodeLaw(0.01, 0.0, 0.0, 0.0, 0.0),
    ...                     capped_lognormal_from_mean_cv(1000.0, 0.8), started=20.0, kept=10.0,
    ...                     slots=50.0, mean_tokens=1000.0, context_tokens=0.0,
    ...                     longest_tokens=4000.0)
    >>> round(float(got.iterations)), round(float(got.in_flight), 2), float(got.ends_met)
    (661, 15.13, 1.0)
    """
    m, k, n, mean_tokens, longest_tokens, share, miss = np.broadcast_arrays(
        *(
            np.asarray(a, dtype=float)
            for a in (
                *(started, kept, slots),
                *(mean_tokens, longest_tokens, decoding_share, law.expert_miss),
            )
        )
    )
    life = mean_tokens / share
    waiting = np.clip(m - n, 0.0, k)
    full = life * waiting / n
    left, begun = np.maximum(m - k, 1e-12), np.minimum(m, n)
    falls = left < begun * (1.0 - _TIE)
    ending = np.where(falls, begun - left, 1.0)
    lives = steps_in_lives(lengths, np.where(falls, begun / ending, 2.0))
    emptying = np.where(falls, life * lives, 0.0)
    iterations = np.minimum(full + emptying, np.maximum(longest_tokens, k * mean_tokens / n))
    tokens = k * mean_tokens
    seconds = (
        law.alpha_s * iterations + (law.beta_s + law.gamma_s_per_token * context_tokens) * tokens
    )
    if np.any(np.asarray(law.expert_s) > 0.0):
        busy = np.minimum(full, iterations)
        rest = iterations - busy
        touched = busy * (1.0 - np.power(miss, share * n))
        at = (_NODES + 1.0) / 2.0 * (rest / life)[..., None]
        falling = (share * ending)[..., None] * _still(lengths, lives[..., None], at)
        touched = touched + rest / 2.0 * ((1.0 - np.power(miss[..., None], falling)) @ _WEIGHTS)
        seconds = seconds + law.expert_s * touched
    return ResumedBatch(
        iterations=iterations,
        decode_s=seconds,
        token_s=seconds / iterations,
        in_flight=tokens / (iterations * share),
        ends_met=np.minimum(n, m - k) / k,
        late_share=waiting / k,
        late_part=np.minimum(full / iterations, 1.0),
    )


def steps_in_lives(lengths: Lengths, factor: Any) -> Any:
    """Least x at which rollouts live through at most o batches of x mean lengths: E[ceil(R/x)] = o.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> equal = capped_lognormal_from_mean_cv(500.0, 0.0)
    >>> steps_in_lives(equal, [1.5, 2.0, 4.5]).round(6).tolist()
    [1.0, 0.5, 0.25]
    """
    given = np.asarray(factor, dtype=float)
    factors, where = np.unique(np.minimum(given, _MANY), return_inverse=True)
    top = float(lengths.quantile(1.0 - 1e-9)) if lengths.cap is None else lengths.cap
    low = 1.0 / (factors + 1.0)  # E[ceil(R/x)] >= 1/x
    high = np.full(factors.shape, top / lengths.mean)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        many = 1.0 + _still(lengths, middle, middle) > factors * (1.0 + _TIE)
        low, high = np.where(many, middle, low), np.where(many, high, middle)
    few = (high * (1.0 + _TIE))[where].reshape(given.shape)
    return few * (_MANY - 0.5) / (np.maximum(given, _MANY) - 0.5)


def _still(lengths: Lengths, every: Any, after: Any) -> Any:
    """Sum over j >= 0 of P(R > after + j every), in mean lengths."""
    number = np.zeros(np.broadcast_shapes(np.shape(every), np.shape(after)))
    for j in range(_MOST_BATCHES):
        more = np.asarray(lengths.survival((after + j * every) * (1.0 + _TIE) * lengths.mean))
        number = number + more
        if np.all(more < 1e-12):
            break
    return number


def ends_met_at_most(
    lengths: Lengths,
    life_token_s: Any,
    generation_s: Any,
    batches: Any,
    late_share: Any = 0.0,
    late_part: Any = 1.0,
) -> Any:
    """Probability that a rollout meets at most n ends of batches before it is done.

    One of W = life x R seconds in the generator that starts with a batch of G seconds meets at most
    n with P(W <= (n + 1) G). A share starts as places come free, at any moment of the first part
    p of the batch: 1 - (E[min(W, (n + 1) G)] - E[min(W, (n + 1 - p) G)])/(p G).

    Parameters
    ----------
    lengths : law of the response tokens R.
    life_token_s : seconds in the generator per token, tools and waiting in proportion (> 0).
    generation_s : G (> 0); batches : n >= 0, whole.
    late_share, late_part : of `ResumedBatch`.

    Examples
    --------
    >>> from allocator.physics.lengths import capped_lognormal_from_mean_cv
    >>> equal = capped_lognormal_from_mean_cv(100.0, 0.0)
    >>> ends_met_at_most(equal, 1.0, 80.0, np.arange(3)).tolist()
    [0.0, 1.0, 1.0]
    >>> ends_met_at_most(equal, 1.0, 80.0, np.arange(3), 1.0).round(9).tolist()
    [0.0, 0.75, 1.0]
    """
    tokens = generation_s / np.maximum(life_token_s, 1e-12)
    late = np.maximum(late_part, 1e-12) * tokens
    ends = (batches + 1.0) * tokens
    at_once = 1.0 - np.asarray(lengths.survival(ends * (1.0 + _TIE)))
    more = lengths.limited_mean(ends) - lengths.limited_mean(np.maximum(ends - late, 0.0))
    return (1.0 - late_share) * at_once + late_share * (1.0 - more / late)
