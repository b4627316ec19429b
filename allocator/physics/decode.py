"""Decode: how long one step of an inference engine takes, and the context it carries.

A step writes one token for each of the n sequences that an engine is decoding. It reads the
dense weights once (alpha), the experts that at least one sequence routes to, a little per
sequence (beta: sampling, projections) and the KV cache of every token in flight (gamma).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class DecodeLaw:
    """Coefficients of the decode step of one engine, scalars or one entry per engine kind.

    Attributes
    ----------
    alpha_s : seconds of a step whatever is in flight (dense weights, launches, collectives).
    expert_s : seconds to read all routed experts; 0 for a dense model.
    beta_s : seconds per sequence decoding.
    gamma_s_per_token : seconds per token of context in flight.
    expert_miss : 1 - experts_per_token / experts, the share of experts one token leaves untouched;
        0 for a dense model.
    """

    alpha_s: Any
    expert_s: Any
    beta_s: Any
    gamma_s_per_token: Any
    expert_miss: Any

    def take(self, index: Index) -> DecodeLaw:
        """Return the coefficients of the engine kinds in `index` (shape of `index`)."""
        return DecodeLaw(*(np.asarray(getattr(self, f.name))[index] for f in fields(self)))


def decode_step_s(law: DecodeLaw, decoding: Any, context_tokens: Any) -> Any:
    """Seconds of one decode step of a whole engine.

    step = alpha + expert (1 - miss^n) + beta n + gamma K

    Parameters
    ----------
    law : coefficients; broadcast against the other arguments.
    decoding : n, sequences decoding on the engine (>= 0, may be fractional: a time average).
    context_tokens : K, context tokens of those sequences together (>= n).

    Returns
    -------
    Seconds, increasing in n and K, concave in n through the expert term.

    Notes
    -----
    n counts the whole engine, also where attention runs data-parallel: over the 14 such profiles
    n per engine reproduces the stored points at 1.4-7.5% rms (relative error of the rate), n per
    rank in the expert term at 4.3-21.8%.
    Over 551 engine layouts the median error of the rate is 3.2% (dense) and 5.1% (experts);
    valid inside the KV capacity and from 1k to 32k tokens of context
    (hardware_profiles/sources, fits to aiconfigurator-core 0.12.0).

    Examples
    --------
    >>> law = DecodeLaw(6.972e-3, 16.72e-3, 4.206e-5, 1.187e-8, 1 - 8 / 128)
    >>> round(float(decode_step_s(law, 88.0, 88 * 16000.0)), 4)
    0.044
    """
    touched = 1.0 - np.power(law.expert_miss, decoding)
    return (
        law.alpha_s
        + law.expert_s * touched
        + law.beta_s * decoding
        + law.gamma_s_per_token * context_tokens
    )


def mean_decode_context_tokens(
    prompt_tokens: Any, response_mean: Any, response_second_moment: Any
) -> Any:
    """Mean context of a sequence picked among those decoding now.

    prompt + E[R^2] / (2 E[R]): sequences in flight are length-biased (a long one is met more
    often) and met, on average, half way. Exact against event simulation in six cases
    (design section 2). One turn; tokens throughout; `response_mean` > 0.

    Examples
    --------
    >>> float(mean_decode_context_tokens(100.0, 50.0, 2500.0))
    125.0
    """
    return prompt_tokens + response_second_moment / (2.0 * response_mean)


def sd_decode_context_tokens(
    response_mean: Any, response_second_moment: Any, response_third_moment: Any
) -> Any:
    """Standard deviation of the context of a sequence picked among those decoding now.

    The age a of a length-biased sequence has E[a] = E[R^2]/2E[R] and E[a^2] = E[R^3]/3E[R];
    the prompt, being common, adds nothing. Tokens.

    Examples
    --------
    >>> round(float(sd_decode_context_tokens(60.0, 3600.0, 216000.0)), 3)  # uniform on [0, 60]
    17.321
    """
    mean_age = response_second_moment / (2.0 * response_mean)
    variance = response_third_moment / (3.0 * response_mean) - mean_age * mean_age
    return np.sqrt(np.maximum(variance, 0.0))
