"""FLOPs: what a forward pass costs, and how a run's compute splits into search and learning.

Everything is counted in FLOP (a multiply-add is two), before any hardware inefficiency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Update fraction with the best native reward for rule-based rewards (Wilhelm & Kao 2026, RACE;
#: LoRA runs of 1.5-7B models on mathematics): a prior to compare with, not a target.
PUBLISHED_UPDATE_FRACTION_RULES = 0.72


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """What a forward pass of a model depends on.

    Attributes
    ----------
    matmul_params : active parameters that multiply (input embedding out, output head in).
    full_layers : layers that attend to the whole context.
    window_layers : layers that attend to at most `window_tokens` of it.
    window_tokens : that window; for sparse attention, the entries picked per query.
    flops_per_pair : FLOP per layer and per (query, key) pair: 2 heads (qk_dim + v_dim).
    index_flops_per_pair : FLOP per layer and pair of the index that picks entries (sparse
        attention), over the whole context.
    """

    matmul_params: float
    full_layers: float
    window_layers: float
    window_tokens: float
    flops_per_pair: float
    index_flops_per_pair: float = 0.0


def attention_flops(shape: ForwardShape, mean_tokens: Any, second_moment: Any) -> Any:
    """FLOP of causal attention over a sequence of T tokens, in expectation.

    Full layers meet E[T^2]/2 pairs (causality halves them; the second moment carries the length
    bias). A layer with a window w meets about w E[T] - w^2/2, and E[T^2]/2 while E[T] <= w.

    Examples
    --------
    >>> shape = ForwardShape(1.0, 2.0, 0.0, 0.0, 4.0)
    >>> float(attention_flops(shape, 10.0, 100.0))
    400.0
    """
    pairs = np.asarray(second_moment, dtype=float) / 2.0
    window = shape.window_tokens
    windowed = np.where(
        np.asarray(mean_tokens) > window, window * (mean_tokens - window / 2.0), pairs
    )
    layers = shape.full_layers + shape.window_layers
    return (
        shape.flops_per_pair * (shape.full_layers * pairs + shape.window_layers * windowed)
        + layers * shape.index_flops_per_pair * pairs
    )


def forward_flops(shape: ForwardShape, mean_tokens: Any, second_moment: Any) -> Any:
    """FLOP of one forward pass over a whole sequence: 2 N E[T] + attention.

    Parameters
    ----------
    shape : the model.
    mean_tokens, second_moment : E[T] and E[T^2] of the sequence length, tokens.

    Examples
    --------
    >>> float(forward_flops(ForwardShape(1e9, 0.0, 0.0, 0.0, 0.0), 10.0, 100.0))
    20000000000.0
    """
    return 2.0 * shape.matmul_params * mean_tokens + attention_flops(
        shape, mean_tokens, second_moment
    )


def search_flops(
    shape: ForwardShape,
    prompt_tokens: Any,
    prompt_reads: Any,
    response_mean: Any,
    response_second_moment: Any,
    *,
    tool_tokens: Any = 0.0,
    later_tokens: Any = 0.0,
    later_pairs: Any = 0.0,
) -> Any:
    """FLOP to generate one dispatched rollout: its share of prefill, and its decode.

    prefill = reads x forward(P) + 2 N t + attention over the q pairs of what later turns read;
    decode = 2 N E[R] + attention over P E[R] + E[R^2]/2 + O E[R]/2 pairs: tokens of the response
    see the prompt, the response so far and, on average, half of the tool outputs. All rollouts
    count, thrown away or not.

    Parameters
    ----------
    prompt_reads : times the prompt is prefilled per rollout
        (`prefill.prompt_reads_per_rollout` x share not found in the cache).
    tool_tokens : O, tool outputs between the turns of a rollout.
    later_tokens, later_pairs : t and q, tokens and (query, key) pairs prefilled after the first
        turn (`turns.later_prefill`).
    """
    prompt_second = prompt_tokens * prompt_tokens
    whole_mean = prompt_tokens + response_mean
    whole_second = (
        prompt_second + (2.0 * prompt_tokens + tool_tokens) * response_mean + response_second_moment
    )
    first = forward_flops(shape, prompt_tokens, prompt_second)
    decode = forward_flops(shape, whole_mean, whole_second) - first
    later = 2.0 * shape.matmul_params * later_tokens + pairs_flops(shape, later_tokens, later_pairs)
    return prompt_reads * first + decode + later


def pairs_flops(shape: ForwardShape, tokens: Any, pairs: Any) -> Any:
    """FLOP of attention of `tokens` queries that meet `pairs` keys in all.

    Layers with a window meet at most `window_tokens` keys for each query; the index of sparse
    attention meets all.

    Examples
    --------
    >>> float(pairs_flops(ForwardShape(1.0, 2.0, 1.0, 4.0, 4.0), 10.0, 100.0))
    960.0
    """
    windowed = np.minimum(pairs, shape.window_tokens * np.asarray(tokens, dtype=float))
    layers = shape.full_layers + shape.window_layers
    return (
        shape.flops_per_pair * (shape.full_layers * pairs + shape.window_layers * windowed)
        + layers * shape.index_flops_per_pair * pairs
    )


def update_fraction(learning_flops: Any, search_flops_: Any, reward_flops: Any) -> Any:
    """Share of all compute that updates the policy: learning / (search + learning + reward).

    The rho of Wilhelm & Kao 2026 (not the load of the queue). Between 0 and 1.

    Examples
    --------
    >>> update_fraction(3.0, 1.0, 0.0)
    0.75
    """
    return learning_flops / (search_flops_ + learning_flops + reward_flops)
