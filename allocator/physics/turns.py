"""Rollouts of several turns: contexts, what later turns read again, and the spread of tool calls.

A rollout is T turns of equal length R/T. Turn 1 follows the initial prompt P; between two turns
the environment appends o tokens (a tool's answer), O = (T - 1) o in all, whatever R. Every law
broadcasts, T too; R enters through its moments, so it may have any distribution. A rollout that is
cut short counts as one of T shorter turns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from allocator.physics.decode import mean_decode_context_tokens, sd_decode_context_tokens
from allocator.physics.lengths import CappedLogNormal, Lengths, capped_lognormal_from_mean_cv
from allocator.physics.prefill import PrefillLaw, PrefixCache

#: Below this the cv of a constant is the rounding of its second moment.
_ROUNDING = 1e-6


def mean_turn_context_tokens(
    turns: Any,
    prompt_tokens: Any,
    tool_tokens: Any,
    response_mean: Any,
    response_second_moment: Any,
) -> Any:
    """Mean context of a sequence picked among those decoding now: P + E[R^2]/(2 E[R]) + O/2.

    Sequences in flight are length-biased and met half way, with half of the tools' answers behind
    them (design section 2, at O that does not depend on R). Tokens; T >= 1; E[R] > 0. At T = 1 it
    is `decode.mean_decode_context_tokens`.

    Examples
    --------
    >>> float(mean_turn_context_tokens(4, 100.0, 20.0, 50.0, 2500.0))
    155.0
    """
    one_turn = mean_decode_context_tokens(prompt_tokens, response_mean, response_second_moment)
    return one_turn + (np.asarray(turns, dtype=float) - 1.0) * tool_tokens / 2.0


def sd_turn_context_tokens(
    turns: Any,
    tool_tokens: Any,
    response_mean: Any,
    response_second_moment: Any,
    response_third_moment: Any,
) -> Any:
    """Standard deviation of the context of a sequence picked among those decoding now.

    The context is P + u R' + floor(u T) o with u uniform and R' length-biased, so that
    E[u floor(u T)] = (T - 1)(4 T + 1)/(12 T) and E[floor(u T)^2] = (T - 1)(2 T - 1)/6 give

        variance = variance at one turn + (T^2 - 1)/12 (o^2 + 2 o E[R']/T),   E[R'] = E[R^2]/E[R].

    Tokens; T >= 1. At T = 1 it is `decode.sd_decode_context_tokens`.

    Examples
    --------
    >>> round(float(sd_turn_context_tokens(4, 20.0, 60.0, 3600.0, 216000.0)), 2)
    39.37
    """
    count = np.asarray(turns, dtype=float)
    one_turn = sd_decode_context_tokens(
        response_mean, response_second_moment, response_third_moment
    )
    biased = response_second_moment / response_mean
    from_tools = (count * count - 1.0) / 12.0 * tool_tokens * (tool_tokens + 2.0 * biased / count)
    return np.sqrt(one_turn * one_turn + from_tools)


def mean_tool_context_tokens(
    turns: Any, prompt_tokens: Any, tool_tokens: Any, response_mean: Any
) -> Any:
    """Mean context of a sequence whose tool runs between two turns: P + E[R]/2 + o (T - 2)/2.

    The tool that follows turn t = 1 .. T - 1 finds P + t R/T + (t - 1) o. How long it runs does not
    depend on R, so R is not length-biased here. Tokens; T >= 2, and at T = 1, where no tool comes
    between turns, the value of T = 2.

    Examples
    --------
    >>> float(mean_tool_context_tokens(4, 100.0, 20.0, 50.0))
    145.0
    """
    between = np.maximum(np.asarray(turns, dtype=float), 2.0)
    return prompt_tokens + response_mean / 2.0 + tool_tokens * (between - 2.0) / 2.0


def context_kept_share(
    prefix_cache: PrefixCache, kv_during_tools: Literal["hold", "evict"], cached_share: float
) -> float:
    """Share of a sequence's context that is still in the cache when its next turn begins.

    All of it where KV is held during tools or the prefix cache is `full`; `cached_share` where the
    cache is stated as a share; otherwise nothing (a cache of prompts holds no responses, and with
    the prompt alone the whole context is charged, on the safe side).

    Examples
    --------
    >>> context_kept_share("shared_prompt", "hold", 0.0), context_kept_share("share", "evict", 0.7)
    (1.0, 0.7)
    """
    if kv_during_tools == "hold" or prefix_cache == "full":
        return 1.0
    return cached_share if prefix_cache == "share" else 0.0


@dataclass(frozen=True, slots=True)
class LaterReads:
    """What the prefill of turns 2 .. T of one rollout reads, summed over turns and expected over R.

    Attributes
    ----------
    calls : prefill calls.
    tokens : tokens read (2 x parameters FLOP each).
    token_contexts_tokens2 : sum of tokens read x whole context, what the prefill law charges.
    pairs_tokens2 : (query, key) pairs of causal attention over the whole context; a layer with a
        window of w tokens meets at most w x `tokens` of them.
    """

    calls: Any
    tokens: Any
    token_contexts_tokens2: Any
    pairs_tokens2: Any


def later_reads(
    turns: Any,
    prompt_tokens: Any,
    tool_tokens: Any,
    response_mean: Any,
    response_second_moment: Any,
    *,
    kept_share: Any,
    separate_prefill: Any = False,
) -> LaterReads:
    """Sum what turns 2 .. T read: the tool's answer, and the context that the cache lost.

    Turn j + 1 begins with W_j = P + j (r + o) tokens, j = 1 .. T - 1, r = R/T. The cache of whoever
    reads has seen W_j - d of them: d = o on the engine that decoded the turn before; d = r + o on
    a prefill engine apart, which never saw what the decode engine wrote. A share s of that is kept:

        tokens = W_j - s (W_j - d)      pairs = (W_j^2 - s^2 (W_j - d)^2) / 2

    The sums over j are closed forms in E[R] and E[R^2], exact for whole T.

    Parameters
    ----------
    turns : T >= 1; at 1 everything is 0.
    prompt_tokens, tool_tokens : P and o, >= 0.
    response_mean, response_second_moment : E[R] and E[R^2], tokens and tokens^2.
    kept_share : s in [0, 1]: 1 when KV is held, 0 when it is evicted (`context_kept_share`).
    separate_prefill : whether engines apart from the decoding ones read.

    Returns
    -------
    LaterReads of the broadcast shape. A turn always appends at least the tool's message, so with
    o = 0 and all KV at hand there is no call at all.

    Examples
    --------
    >>> held = later_reads(3, 100.0, 10.0, 60.0, 3600.0, kept_share=1.0)
    >>> float(held.calls), float(held.tokens), float(held.token_contexts_tokens2)
    (2.0, 20.0, 2900.0)
    >>> float(later_reads(3, 100.0, 10.0, 60.0, 3600.0, kept_share=0.0).tokens)  # 130 + 160
    290.0
    """
    count, share = np.asarray(turns, dtype=float), np.asarray(kept_share, dtype=float)
    later = count - 1.0
    turn, turn_second = response_mean / count, response_second_moment / (count * count)
    growth = turn + tool_tokens
    growth_second = turn_second + 2.0 * tool_tokens * turn + tool_tokens * tool_tokens
    # Sums over j of W, W^2, and of d, d^2 and d W.
    whole = later * (prompt_tokens + growth * count / 2.0)
    whole_second = later * (
        prompt_tokens * prompt_tokens
        + prompt_tokens * count * growth
        + growth_second * count * (2.0 * count - 1.0) / 6.0
    )
    apart = np.asarray(separate_prefill, dtype=bool)
    unseen = np.where(apart, later * growth, later * tool_tokens)
    unseen_second = later * np.where(apart, growth_second, tool_tokens * tool_tokens)
    unseen_whole = np.where(
        apart,
        later * (prompt_tokens * growth + growth_second * count / 2.0),
        tool_tokens * whole,
    )
    tokens = (1.0 - share) * whole + share * unseen
    kept_second = whole_second - 2.0 * unseen_whole + unseen_second
    return LaterReads(
        calls=np.where(tokens > 0.0, later, 0.0),
        tokens=tokens,
        token_contexts_tokens2=(1.0 - share) * whole_second + share * unseen_whole,
        pairs_tokens2=(whole_second - share * share * kept_second) / 2.0,
    )


def later_prefill_s(law: PrefillLaw, reads: LaterReads) -> Any:
    """Engine-seconds that the prefill of turns 2 .. T of one rollout takes.

    The law p0 + p1 tokens + p2 tokens x context of `prefill.prefill_s`, summed over the calls.

    Examples
    --------
    >>> reads = later_reads(3, 100.0, 10.0, 60.0, 3600.0, kept_share=1.0)
    >>> round(float(later_prefill_s(PrefillLaw(0.01, 1e-3, 1e-6), reads)), 6)
    0.0429
    """
    return (
        law.p0_s * reads.calls
        + law.p1_s_per_token * reads.tokens
        + law.p2_s_per_token2 * reads.token_contexts_tokens2
    )


def sum_of_calls(call: Lengths, turns: int) -> Lengths:
    """Law of the sum of T independent tool calls, seconds, for the law of one (also seconds).

    A log-normal of mean T m and cv/sqrt(T), below T times the limit of one call (moments matched,
    Fenton-Wilkinson); one call is itself. Against simulation (2-50 log-normal calls, n 4-64) its
    expected largest of n is at most 2.5% off up to a cv of 1, and 7.4% too small to 3.4% too large
    at a cv of 2.

    Examples
    --------
    >>> total = sum_of_calls(capped_lognormal_from_mean_cv(2.0, 1.0), 16)
    >>> round(total.mean, 9), round(total.cv, 9)
    (32.0, 0.25)
    """
    if turns == 1:
        return call
    if turns < 1:
        raise ValueError(f"a rollout has at least one turn, given {turns}")
    mean, limit = turns * call.mean, None if call.cap is None else turns * call.cap
    if call.cv < _ROUNDING:
        return CappedLogNormal(math.log(mean), 0.0, limit)
    return capped_lognormal_from_mean_cv(mean, call.cv / math.sqrt(turns), limit)


def tool_tail_s(
    response_tail_s: Any, tools: Lengths, rollouts: Any, truncated_fraction: Any = 0.0
) -> Any:
    """Seconds that the spread of tool time adds to the longest of n rollouts, beyond its mean.

    The longest of n waits a = token_s E[R] (tailness(n) - 1) beyond the mean for its response, and
    would wait b = T m (tailness of tools(n) - 1) for its tools alone. The two rarely meet in one
    rollout, so they add in quadrature: sqrt(a^2 + b^2) - a. Rollouts truncated at the cap are
    equally long; among n x truncated of them the slowest tools decide, so the answer is never
    less than b of that many.

    Parameters
    ----------
    response_tail_s : a >= 0, seconds.
    tools : law of the tool seconds of one rollout (`sum_of_calls`).
    rollouts : n >= 1, may be fractional.
    truncated_fraction : share of the responses that end at the cap, 0 to 1.

    Notes
    -----
    Error of the whole residence of the longest, against simulation (log-normal lengths of cv 0.3-1,
    T = 1-16 calls of cv 0.5-2, tools 0.1-3 times the response time, n 4-64): 1.4% rms, -6 to +6%.
    With 8-41% of the lengths truncated: 1.6% rms, -7 to +3% (-10.5% without the last rule). A
    log-normal fitted to the sum of both is 3.3% rms, -15 to +12%.

    Examples
    --------
    >>> tools = capped_lognormal_from_mean_cv(20.0, 1.0)
    >>> round(float(tools.tailness(16)), 3)
    3.435
    >>> round(float(tool_tail_s(100.0, tools, 16)), 2)
    11.23
    """
    return _tool_tail(response_tail_s, tools, rollouts, truncated_fraction)[0]


def tool_end_sd_s(
    response_tail_s: Any, tools: Lengths, rollouts: Any, truncated_fraction: Any = 0.0
) -> Any:
    """Standard deviation that tools give the end of the longest of n rollouts, seconds.

    Where responses decide which rollout is the longest its tools are those of any rollout, where
    tools decide they are the slowest of n: between the two variances in the proportion of
    `tool_tail_s` to what it is where tools alone decide. Arguments as there.

    Examples
    --------
    >>> tools = capped_lognormal_from_mean_cv(20.0, 0.5)
    >>> [round(float(tool_end_sd_s(tail, tools, 16)), 1) for tail in (0.0, 1e6)]
    [11.9, 10.0]
    """
    tail, alone = _tool_tail(response_tail_s, tools, rollouts, truncated_fraction)
    count = np.maximum(np.asarray(rollouts, dtype=float), 1.0)
    first, second = tools.order_statistic_moments(count, count)[:2]
    slowest = np.maximum(second - np.square(first), 0.0)
    decided = np.where(alone > 0.0, np.minimum(tail / np.where(alone > 0.0, alone, 1.0), 1.0), 0.0)
    return np.sqrt(decided * slowest + (1.0 - decided) * (tools.mean * tools.cv) ** 2)


def _tool_tail(
    response_tail_s: Any, tools: Lengths, rollouts: Any, truncated_fraction: Any
) -> tuple[Any, Any]:
    """See `tool_tail_s`; the second is what it is where tools alone decide."""
    count = np.asarray(rollouts, dtype=float)
    tied = np.maximum(count * truncated_fraction, 1.0)
    alone = tools.mean * (tools.tailness(count) - 1.0)
    among_tied = tools.mean * (tools.tailness(tied) - 1.0)
    return np.maximum(np.hypot(response_tail_s, alone) - response_tail_s, among_tied), alone
