"""Prefill on engines of its own, in every mode: pools, links, transfers; by hand, to 1e-9."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluator.equal_lengths import Case, assert_agrees, by_hand, told

MODES = ("disaggregated_sync", "one_step_off", "async")
READING = Case(prompt=6000.0, response=1500.0, p1=1e-4, prefill_engines=2, cache="none")
VARIANTS = {
    "one pool": READING,
    "prompts shared": replace(READING, cache="shared_prompt"),
    "one slow reader": replace(READING, p1=5e-4, prefill_engines=1),
    "behind a link": replace(READING, link_gbit=100.0),
    "behind a slow link": replace(READING, link_gbit=4.0),
    "cache in FP8": replace(READING, kv="fp8"),
    "on demand": replace(READING, link_gbit=200.0, on_demand=True),
    "turns, held": replace(READING, turns=4, tool_tokens=500.0, tool_s=2.0, cache="shared_prompt"),
    "turns, evicted": replace(
        READING, turns=4, tool_tokens=500.0, tool_s=2.0, kv_during_tools="evict"
    ),
    "turns behind a link": replace(
        READING, turns=4, tool_tokens=500.0, tool_s=2.0, link_gbit=50.0, cache=0.5
    ),
    "oversampled": replace(READING, oversampling=1.25, cap=100),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", VARIANTS)
def test_agrees(mode: str, name: str, tmp_path: Path) -> None:
    assert_agrees(replace(VARIANTS[name], mode=mode), tmp_path)


def test_one_prompt_by_hand(tmp_path: Path) -> None:
    plan = told(READING, tmp_path)
    found = plan.environment
    # 6,000 tokens of 73,728 values of two bytes at the 50 GB/s of one GPU.
    assert found.kv_transfer_s == pytest.approx(6000 * 147_456 / 50e9, rel=1e-12)
    assert found.prefill_s == pytest.approx(1e-3 + 0.6 + 1e-10 * 36e6, rel=1e-12)
    assert found.prefills_per_s == pytest.approx(2 / 0.6046, rel=1e-9)


def test_readers_are_the_bottleneck_until_there_are_enough(tmp_path: Path) -> None:
    """Reading takes .6 s a rollout: n engines let n/.6046 through, until decoding is slower."""
    rates = {}
    for readers in (1, 2, 4, 8):
        case = replace(READING, mode="async", gpus=16, prefill_engines=readers, pool=48, cap=100)
        plan = assert_agrees(case, tmp_path)
        rates[readers] = plan.accepted_samples_per_s
        if readers <= 4:
            assert plan.bottleneck == "prefill"
            pause = by_hand(case)["weight_sync_s"] * plan.trained_samples_per_s / 256
            assert rates[readers] == pytest.approx(readers / 0.6046 * (1 - pause), rel=1e-3)
    assert rates[8] < 8 / 0.6046


def test_a_link_bounds_all_of_them(tmp_path: Path) -> None:
    """1 Gbit/s is 125 MB/s, and a prompt has 885 MB of cache: one in 7 seconds."""
    case = replace(READING, mode="async", link_gbit=1.0, prefill_engines=4)
    plan = assert_agrees(case, tmp_path)
    assert plan.environment.prefills_per_s == pytest.approx(125e6 / 884.736e6, rel=1e-9)
    assert plan.bottleneck == "prefill"


def test_cache_is_held_while_a_turn_is_read_elsewhere(tmp_path: Path) -> None:
    """Memory binds: what waits for the next turn's cache has its own in memory meanwhile."""
    case = replace(
        READING,
        mode="async",
        cache="shared_prompt",
        turns=4,
        tool_tokens=500.0,
        tool_s=2.0,
        link_gbit=20.0,
        memory_fraction=0.14,
        cap=128,
        prefill_engines=8,
    )
    plan = assert_agrees(case, tmp_path)
    assert plan.cause == "kv_memory"
    assert plan.environment.kv_transfer_s > 0.4


def test_prefill_no_longer_stops_the_decoders(tmp_path: Path) -> None:
    """Same decode engines: apart, a step is not stretched by reading; the GPUs are extra."""
    together = told(replace(READING, mode="async", prefill_engines=0), tmp_path)
    apart = told(replace(READING, mode="async", prefill_engines=8, pool=32), tmp_path)
    assert apart.generated_samples_per_s > 2 * together.generated_samples_per_s
