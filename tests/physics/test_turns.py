"""Laws of several turns against sums written out turn by turn, enumeration, and random rollouts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.physics.decode import mean_decode_context_tokens, sd_decode_context_tokens
from allocator.physics.lengths import CappedLogNormal, Lengths, capped_lognormal_from_mean_cv
from allocator.physics.prefill import PrefillLaw, PrefixCache, prefill_s
from allocator.physics.turns import (
    context_kept_share,
    later_prefill_s,
    later_reads,
    mean_tool_context_tokens,
    mean_turn_context_tokens,
    sd_turn_context_tokens,
    sum_of_calls,
    tool_tail_s,
)

PROMPT, TOOL = 1_500.0, 400.0
RESPONSES = np.random.default_rng(2).lognormal(8.0, 0.9, 40)
MEAN, SECOND, THIRD = (float(np.mean(RESPONSES**m)) for m in (1, 2, 3))
LAW = PrefillLaw(0.02, 5e-5, 6e-10)


def calls_one_by_one(turns: int, kept: float, apart: bool) -> list[tuple[float, float, float]]:
    """(tokens read, whole context, cached context) of every later prefill of every response."""
    calls = []
    for response in RESPONSES:
        own = response / turns
        for turn in range(2, turns + 1):
            before = PROMPT + (turn - 1) * own + (turn - 2) * TOOL
            cached = kept * (before - own if apart else before)
            calls.append((before + TOOL - cached, before + TOOL, cached))
    return calls


@pytest.mark.parametrize("turns", [1, 2, 5, 12])
def test_contexts_met_while_decoding(turns: int) -> None:
    """Every response at 12,000 points of its decoding, weighted by how long it decodes."""
    place = (np.arange(12_000) + 0.5) / 12_000
    contexts = PROMPT + place * RESPONSES[:, None] + np.floor(place * turns) * TOOL
    weights = RESPONSES / RESPONSES.sum()
    mean = float(weights @ contexts.mean(axis=1))
    second = float(weights @ (contexts**2).mean(axis=1))
    assert mean_turn_context_tokens(turns, PROMPT, TOOL, MEAN, SECOND) == pytest.approx(mean)
    got = float(sd_turn_context_tokens(turns, TOOL, MEAN, SECOND, THIRD))
    assert got == pytest.approx(math.sqrt(second - mean * mean), rel=1e-6)


def test_one_turn_is_the_law_of_one_turn() -> None:
    mean = mean_turn_context_tokens(1, PROMPT, TOOL, MEAN, SECOND)
    assert mean == mean_decode_context_tokens(PROMPT, MEAN, SECOND)
    spread = sd_turn_context_tokens(1, TOOL, MEAN, SECOND, THIRD)
    assert spread == pytest.approx(sd_decode_context_tokens(MEAN, SECOND, THIRD), rel=1e-14)


@pytest.mark.parametrize("turns", [2, 3, 9])
def test_contexts_met_in_a_tool(turns: int) -> None:
    ends = np.arange(1, turns)
    contexts = PROMPT + ends * RESPONSES[:, None] / turns + (ends - 1) * TOOL
    got = mean_tool_context_tokens(turns, PROMPT, TOOL, MEAN)
    assert got == pytest.approx(contexts.mean(), rel=1e-12)


@pytest.mark.parametrize("turns", [1, 2, 7])
@pytest.mark.parametrize("kept", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("apart", [False, True])
def test_later_prefill_is_the_sum_of_its_calls(turns: int, kept: float, apart: bool) -> None:
    calls = calls_one_by_one(turns, kept, apart)
    count = len(RESPONSES)
    got = later_reads(turns, PROMPT, TOOL, MEAN, SECOND, kept_share=kept, separate_prefill=apart)
    assert got.calls == turns - 1
    assert got.tokens == pytest.approx(sum(n for n, _, _ in calls) / count, rel=1e-12)
    pairs = sum((whole**2 - cached**2) / 2 for _, whole, cached in calls) / count
    assert got.pairs_tokens2 == pytest.approx(pairs, rel=1e-12)
    seconds = sum(float(prefill_s(LAW, n, whole)) for n, whole, _ in calls) / count
    assert later_prefill_s(LAW, got) == pytest.approx(seconds, rel=1e-12)


def test_later_reads_by_hand() -> None:
    """P 100, o 10, R 60 in 3 turns: contexts 120 and 150 before, 130 and 160 after the tools."""
    half = later_reads(3, 100.0, 10.0, 60.0, 3600.0, kept_share=0.5)
    assert half.tokens == 70 + 85
    assert half.token_contexts_tokens2 == 70 * 130 + 85 * 160
    assert half.pairs_tokens2 == (130**2 - 60**2 + 160**2 - 75**2) / 2
    apart = later_reads(3, 100.0, 10.0, 60.0, 3600.0, kept_share=1.0, separate_prefill=True)
    assert apart.tokens == 2 * (20 + 10)
    assert apart.token_contexts_tokens2 == 30 * 130 + 30 * 160


@pytest.mark.parametrize("turns", [1, 4])
def test_every_pair_of_the_sequence_is_counted_once(turns: int) -> None:
    """First prompt, decode and held tool reads make up causal attention over the whole sequence."""
    tools = (turns - 1) * TOOL
    decode = MEAN * float(mean_turn_context_tokens(turns, PROMPT, TOOL, MEAN, SECOND))
    reads = later_reads(turns, PROMPT, TOOL, MEAN, SECOND, kept_share=1.0)
    whole = (PROMPT + tools) ** 2 + 2 * (PROMPT + tools) * MEAN + SECOND
    parts = PROMPT**2 / 2 + decode + float(reads.pairs_tokens2)
    assert parts == pytest.approx(whole / 2, rel=1e-12)


def test_silent_tools_are_free_only_while_kv_is_held() -> None:
    held = later_reads(4, PROMPT, 0.0, MEAN, SECOND, kept_share=1.0)
    assert later_prefill_s(LAW, held) == 0.0
    assert held.calls == held.pairs_tokens2 == 0.0
    evicted = later_reads(4, PROMPT, 0.0, MEAN, SECOND, kept_share=0.0)
    assert evicted.calls == 3
    assert evicted.tokens == pytest.approx(3 * PROMPT + 1.5 * MEAN)


@given(
    turns=st.integers(2, 60),
    kept=st.floats(0, 0.99),
    tool=st.floats(0, 5_000),
    apart=st.booleans(),
)
def test_keeping_more_of_the_cache_never_costs_more(
    turns: int, kept: float, tool: float, apart: bool
) -> None:
    shares = np.array([kept, 1.0])
    reads = later_reads(
        turns, PROMPT, tool, MEAN, SECOND, kept_share=shares, separate_prefill=apart
    )
    for part in (reads.tokens, reads.token_contexts_tokens2, reads.pairs_tokens2):
        assert 0 <= part[1] <= part[0]
    assert np.diff(later_prefill_s(LAW, reads)) <= 0


def test_turns_broadcast() -> None:
    turns = np.array([1.0, 2.0, 7.0])[:, None]
    kept, apart = np.array([0.0, 1.0, 1.0, 0.5]), np.array([False, False, True, True])
    table = later_reads(turns, PROMPT, TOOL, MEAN, SECOND, kept_share=kept, separate_prefill=apart)
    contexts = mean_turn_context_tokens(turns, PROMPT, TOOL, MEAN, SECOND)
    assert contexts.shape == (3, 1)
    for row, column in np.ndindex(3, 4):
        one = later_reads(
            float(turns[row, 0]),
            PROMPT,
            TOOL,
            MEAN,
            SECOND,
            kept_share=kept[column],
            separate_prefill=apart[column],
        )
        for name in one.__slots__:
            assert getattr(table, name)[row, column] == getattr(one, name)


@pytest.mark.parametrize(
    ("cache", "policy", "expected"),
    [
        ("none", "hold", 1.0),
        ("share", "hold", 1.0),
        ("full", "evict", 1.0),
        ("share", "evict", 0.4),
        ("shared_prompt", "evict", 0.0),
        ("none", "evict", 0.0),
    ],
)
def test_what_the_cache_keeps(cache: PrefixCache, policy: str, expected: float) -> None:
    assert policy in ("hold", "evict")
    assert context_kept_share(cache, "hold" if policy == "hold" else "evict", 0.4) == expected


def test_sums_of_calls_keep_the_moments() -> None:
    call = capped_lognormal_from_mean_cv(3.0, 1.2, 60.0)
    total = sum_of_calls(call, 9)
    assert total.mean == pytest.approx(27.0)
    assert total.cv == pytest.approx(0.4)
    assert total.cap == 540.0
    assert sum_of_calls(call, 1) is call
    constant = sum_of_calls(CappedLogNormal(math.log(3.0), 0.0), 9)
    assert constant.mean == pytest.approx(27.0)
    assert constant.quantile([0.01, 0.99]) == pytest.approx([27.0, 27.0])
    with pytest.raises(ValueError, match="at least one turn"):
        sum_of_calls(call, 0)


@pytest.mark.parametrize(("cv", "off"), [(0.5, 0.015), (1.0, 0.03), (2.0, 0.08)])
@pytest.mark.parametrize("turns", [2, 16])
def test_the_longest_sum_of_calls(cv: float, off: float, turns: int) -> None:
    call = capped_lognormal_from_mean_cv(1.0, cv)
    generator = np.random.default_rng(11)
    sums = call.quantile(generator.random((turns, 3_000, 64))).sum(axis=0)
    for rollouts in (4, 64):
        longest = sums.reshape(-1, rollouts).max(axis=1).mean()
        got = turns * float(sum_of_calls(call, turns).tailness(rollouts))
        assert got == pytest.approx(longest, rel=off)


@pytest.mark.parametrize("tool_cv", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "responses",
    [
        capped_lognormal_from_mean_cv(100.0, 0.3),
        capped_lognormal_from_mean_cv(100.0, 1.0),
        capped_lognormal_from_mean_cv(100.0, 0.9, 212.5),
    ],
    ids=["cv .3", "cv 1", "a third truncated"],
)
def test_the_longest_rollout_waits_for_its_tools(responses: Lengths, tool_cv: float) -> None:
    """One second per token; random rollouts against the law of the longest."""
    generator = np.random.default_rng(23)
    alone = responses.quantile(generator.random((3_000, 64)))
    rollouts = np.array([4, 16, 64])
    tail = responses.mean * (responses.tailness(rollouts) - 1.0)
    for turns, share in [(1, 0.3), (4, 1.0), (16, 0.3)]:
        call = capped_lognormal_from_mean_cv(100.0 * share / turns, tool_cv)
        tools = call.quantile(generator.random((turns, 3_000, 64))).sum(axis=0)
        simulated = [(alone + tools).reshape(-1, n).max(axis=1).mean() for n in rollouts]
        total = sum_of_calls(call, turns)
        extra = tool_tail_s(tail, total, rollouts, responses.truncated_fraction)
        assert responses.mean + total.mean + tail + extra == pytest.approx(simulated, rel=0.075)


def test_tails_at_their_ends() -> None:
    tools = capped_lognormal_from_mean_cv(20.0, 1.0)
    alone = 20.0 * (float(tools.tailness(16)) - 1.0)
    assert tool_tail_s(0.0, tools, 16) == pytest.approx(alone)  # equal responses: tools decide
    assert tool_tail_s(50.0, tools, 16, 1.0) == pytest.approx(alone)  # all truncated: likewise
    assert tool_tail_s(50.0, tools, 1) == pytest.approx(0.0)  # nobody to wait for
    constant = CappedLogNormal(math.log(20.0), 0.0)
    assert tool_tail_s(50.0, constant, 16, 0.5) == pytest.approx(0.0, abs=1e-9)
    tails = tool_tail_s(np.array([0.0, 10.0, 100.0]), tools, 16)
    assert np.all(np.diff(tails) < 0)  # a longer tail of responses hides more of the tools'
