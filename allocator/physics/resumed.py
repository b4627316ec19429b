"""Batches whose unfinished rollouts are resumed in the next: partial rollout.

o B rollouts are in flight when a batch begins, (o - 1) B of them resumed from the one before; it
ends when B are done. Nothing is thrown away, and nobody waits for the longest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.physics.decode import DecodeLaw

#: Gauss-Legendre nodes for the experts that a step reads.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)


@dataclass(frozen=True, slots=True)
class ResumedBatch:
    """Decoding of one batch on one engine; arrays of the broadcast shape.

    Attributes
    ----------
    iterations : decode steps from the start of the batch to its end.
    decode_s : seconds of them.
    token_s : mean seconds of a step.
    in_flight : mean number in flight on the engine.
    """

    iterations: Any
    decode_s: Any
    token_s: Any
    in_flight: Any


def resumed_batch(
    law: DecodeLaw,
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

    In the long run k lives are written per batch, k E[R] tokens. With ages mixed by resuming, a
    rollout ends with the chance s/E[R] in a step, s the share of those in flight that decode; of n
    in flight min(n, N) have a slot. So n falls from m to m - k, and

        K = E[R]/s (max(0, min(m - N, k))/N + ln(min(m, N)/(m - k)))      (no ln while m - k >= N)

    which spends exactly those tokens. As m approaches k the last ones are waited for: K is at
    most the longest of the batch. The time is

        alpha K + expert int (1 - miss^b) dl + (beta + gamma c) k E[R],   b = s min(n, N)

    Parameters
    ----------
    law : decode coefficients, broadcast.
    started : m > k, rollouts in flight on the engine when the batch begins.
    kept : k > 0, rollouts that end in it.
    slots : N > 0, that the engine holds at a time (cap, KV memory).
    mean_tokens : E[R], response tokens.
    context_tokens : c, mean context of a decoding sequence.
    longest_tokens : expected longest of the batch, were all begun with it.
    decoding_share : s in (0, 1], time in decoding over time in the generator.

    Notes
    -----
    The memoryless ending is an assumption: rollouts resumed are older than fresh ones, and at
    equal lengths the oldest end together. It keeps tokens and rollouts in balance whatever the
    lengths.

    Examples
    --------
    >>> got = resumed_batch(DecodeLaw(0.01, 0.0, 0.0, 0.0, 0.0), started=20.0, kept=10.0,
    ...                     slots=50.0, mean_tokens=1000.0, context_tokens=0.0,
    ...                     longest_tokens=4000.0)
    >>> round(float(got.iterations), 1), round(float(got.in_flight), 2)
    (693.1, 14.43)
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
    emptying = np.where(left < begun, life * np.log(np.maximum(begun / left, 1.0)), 0.0)
    iterations = np.minimum(full + emptying, np.maximum(longest_tokens, k * mean_tokens / n))
    tokens = k * mean_tokens
    busy = np.minimum(full, iterations)
    rest = iterations - busy
    at = rest[..., None] * (_NODES + 1.0) / 2.0
    falling = (share * begun)[..., None] * np.exp(-at / life[..., None])
    touched = busy * (1.0 - np.power(miss, share * n)) + rest / 2.0 * (
        (1.0 - np.power(miss[..., None], falling)) @ _WEIGHTS
    )
    seconds = (
        law.alpha_s * iterations
        + law.expert_s * np.where(law.expert_s > 0.0, touched, 0.0)
        + (law.beta_s + law.gamma_s_per_token * context_tokens) * tokens
    )
    return ResumedBatch(
        iterations=iterations,
        decode_s=seconds,
        token_s=seconds / iterations,
        in_flight=tokens / (iterations * share),
    )
