"""Rollouts of several turns in every mode: contexts, reads, tools, memory; by hand, to 1e-9."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluator.equal_lengths import (
    QWEN3_30B,
    Case,
    assert_agrees,
    mean_context,
    told,
)

MODES = ("colocated_sync", "disaggregated_sync", "one_step_off", "async")
TURNS = Case(turns=5, tool_tokens=200.0, tool_s=4.0, response=2500.0)
CACHES: dict[str, dict[str, Any]] = {
    "held": {},
    "evicted": {"kv_during_tools": "evict"},
    "evicted, found in a cache of prefixes": {"kv_during_tools": "evict", "cache": "full"},
    "evicted, some found": {"kv_during_tools": "evict", "cache": 0.7},
    "nothing cached": {"cache": "none"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cache", CACHES)
def test_agrees(mode: str, cache: str, tmp_path: Path) -> None:
    assert_agrees(replace(TURNS, mode=mode, p1=5e-5, **CACHES[cache]), tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_experts_memory_and_signal(mode: str, tmp_path: Path) -> None:
    case = replace(
        TURNS,
        mode=mode,
        model=QWEN3_30B,
        expert=9e-3,
        hfu=0.2,
        solve=(0.1, 0.2, 2.0, 1.0),
        sampling="refill",
    )
    assert_agrees(case, tmp_path)


@pytest.mark.parametrize("cache", ["held", "evicted"])
def test_memory_binds(cache: str, tmp_path: Path) -> None:
    """A stream whose rollouts spend most of their time in tools, on engines short of memory."""
    case = replace(TURNS, mode="async", tool_s=30.0, memory_fraction=0.13, cap=200, **CACHES[cache])
    plan = assert_agrees(case, tmp_path)
    assert plan.cause == "kv_memory"


def test_held_cache_costs_memory_and_evicted_costs_reads(tmp_path: Path) -> None:
    """Plentiful memory: holding wins. Scarce memory and long tools: evicting does."""
    rate = {}
    for fraction in (0.88, 0.13):
        for cache in ("held", "evicted"):
            case = replace(
                TURNS, mode="async", tool_s=30.0, memory_fraction=fraction, cap=200, gpus=8
            )
            plan = told(replace(case, **CACHES[cache]), tmp_path)
            rate[fraction, cache] = plan.accepted_samples_per_s
    assert rate[0.88, "held"] > rate[0.88, "evicted"]
    assert rate[0.13, "evicted"] > rate[0.13, "held"]


def test_one_batch_in_step(tmp_path: Path) -> None:
    """Turn by turn: 64 sequences decode 500 tokens, read 200, wait for the tool; five times."""
    plan = told(TURNS, tmp_path)
    seconds, context = 8 * (1e-3 + 2e-5 * 300 + 1e-10 * 300**2), 300.0
    for turn in range(5):
        if turn:
            context += 200
            seconds += 64 * (1e-3 + 2e-5 * 200 + 1e-10 * 200 * context)
        # The mean context over the 500 steps: half way.
        seconds += 500 * (6e-3 + 5e-5 * 64 + 2e-8 * 64 * (context + 250))
        context += 500
        seconds += 4.0
    assert plan.generation_s == pytest.approx(seconds, rel=1e-9)
    assert plan.trained_sequence_tokens == 300 + 5 * 500 + 4 * 200
    assert plan.in_flight_context_tokens == pytest.approx(mean_context(TURNS), rel=1e-12)


def test_tool_time_of_a_stream_hides_behind_other_rollouts(tmp_path: Path) -> None:
    """In turn a batch waits for every call; a stream only needs more in flight."""
    turn, stream = TURNS, replace(TURNS, mode="async", gpus=8)
    slow = told(replace(turn, tool_s=60.0), tmp_path).step_s - told(turn, tmp_path).step_s
    assert slow == pytest.approx(5 * 56.0)
    wider = assert_agrees(replace(stream, tool_s=60.0, cap=500), tmp_path)
    assert wider.step_s < 1.05 * told(stream, tmp_path).step_s


def test_shared_engine_scores_every_turn(tmp_path: Path) -> None:
    """A proxy scores after every turn on the engines that write: 5 reads of the whole sequence."""
    for mode in MODES:
        case = replace(TURNS, mode=mode)
        proxy = replace(
            case, reward=replace(case.reward, type="proxy_prm", placement="shared_engine")
        )
        plan = assert_agrees(proxy, tmp_path)
        tokens = 300 + 2500 + 4 * 200
        once = 1e-3 + 2e-5 * tokens + 1e-10 * tokens**2
        without = told(case, tmp_path)
        more = plan.environment.prefill_s - without.environment.prefill_s
        assert more == pytest.approx(5 * once, rel=1e-9)
