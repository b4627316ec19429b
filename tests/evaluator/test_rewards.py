"""Every reward type and place in every mode, by hand to 1e-9, and what each of them changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocator.plan import Prediction
from tests.evaluator.equal_lengths import (
    QWEN3_06B,
    QWEN3_8B,
    Case,
    assert_agrees,
    told,
    with_reward,
)

MODES = ("colocated_sync", "disaggregated_sync", "one_step_off", "async")
PROFILES = Path(__file__).parents[2] / "hardware_profiles" / "index.json"
BASE = Case(on_demand=True)


def judge_engine(reads: float, writes: float) -> tuple[float, float]:
    """Seconds of one verdict of a Qwen3-8B on an H200, 64 at a time, on its cheapest engine."""
    index = json.loads(PROFILES.read_text())
    best = (float("inf"), 0.0)
    for values in index["rates"]["qwen3-8b"]:
        row = dict(zip(index["rate_columns"], values, strict=True))
        formats = (row["weights_dtype"], row["kv_dtype"])
        if row["gpu"] != "h200-sxm" or formats != ("bf16", "bf16") or row["prefill"] is None:
            continue
        if row["suspect"]:
            continue
        p0, p1, p2 = row["prefill"][:3]
        step = row["alpha_s"] + 64 * row["beta_s"]
        step += row["gamma_s_per_token"] * 64 * (reads + writes / 2)
        seconds = p0 + p1 * reads + p2 * reads**2 + writes * step / 64
        best = min(best, (row["gpus_per_engine"] * seconds, seconds))
    return best[1], 64.0


REWARDS: dict[str, dict[str, Any]] = {
    "sparse": {},
    "structured": {"type": "structured", "cpu_s": 0.5, "workers": 4},
    "dense": {"type": "dense", "cpu_s": 2.0, "calls": 3, "workers": 16, "latency_s": 1.5},
    "proxy_prm": {"type": "proxy_prm", "placement": "shared_engine"},
    "proxy_prm, some tokens": {
        "type": "proxy_prm",
        "placement": "shared_engine",
        "calls": 2.5,
        "input": 800.0,
    },
    "prm": {"type": "prm", "placement": "own_gpus", "model": QWEN3_06B, "gpus": 2},
    "prm behind an API": {
        "type": "prm",
        "placement": "api",
        "model": QWEN3_06B,
        "usd": (0.1, 0.0),
        "max_per_s": 3.0,
    },
    "llm_judge": {
        "type": "llm_judge",
        "placement": "own_gpus",
        "model": QWEN3_8B,
        "output": 200.0,
        "gpus": 1,
        "judge_engine": judge_engine(3300.0, 200.0),
    },
    "llm_judge behind an API": {
        "type": "llm_judge",
        "placement": "api",
        "usd": (0.5, 2.0),
        "output": 200.0,
        "latency_s": 4.0,
    },
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REWARDS)
def test_agrees(mode: str, name: str, tmp_path: Path) -> None:
    assert_agrees(with_reward(replace(BASE, mode=mode), **REWARDS[name]), tmp_path)


@pytest.mark.parametrize("name", ["structured", "prm", "prm behind an API"])
def test_without_overlap(name: str, tmp_path: Path) -> None:
    """All of a batch is scored after the last rollout: B over the rate, and one latency."""
    case = with_reward(BASE, overlap=False, **REWARDS[name])
    plan = assert_agrees(case, tmp_path)
    rate = plan.environment.rewards_per_s
    assert rate is not None
    wait = plan.environment.reward_wait_s
    assert wait == pytest.approx(256 / rate + plan.environment.reward_s, rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["dense", "llm_judge behind an API"])
def test_groups_without_signal_are_scored_too(mode: str, name: str, tmp_path: Path) -> None:
    """Nobody knows before the score that a group has to be replaced."""
    case = replace(BASE, mode=mode, solve=(0.2, 0.1, 1.0, 1.0), sampling="refill")
    assert_agrees(with_reward(case, **REWARDS[name]), tmp_path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by", ["sample", "group"])
@pytest.mark.parametrize("name", ["structured", "proxy_prm", "prm", "llm_judge behind an API"])
def test_only_what_is_kept_is_scored(mode: str, by: str, name: str, tmp_path: Path) -> None:
    case = replace(BASE, mode=mode, oversampling=1.5, by=by, cap=128)
    assert_agrees(with_reward(case, **REWARDS[name]), tmp_path)


@pytest.mark.parametrize("name", ["structured", "proxy_prm", "llm_judge behind an API"])
def test_resumed_rollouts_are_scored_once(name: str, tmp_path: Path) -> None:
    case = replace(BASE, partial=True, oversampling=1.5, cap=128)
    free = told(with_reward(case), tmp_path)
    plan = told(with_reward(case, **REWARDS[name]), tmp_path)
    assert plan.generated_samples_per_s == pytest.approx(plan.trained_samples_per_s, rel=1e-12)
    usd = plan.environment.reward_usd_per_hour
    assert usd == pytest.approx(
        (0.00205 if "API" in name else 0.0) * plan.trained_samples_per_s * 3600, rel=1e-9
    )
    assert plan.step_s >= free.step_s


def _said(name: str, tmp_path: Path, mode: str = "disaggregated_sync") -> Prediction:
    return told(with_reward(replace(BASE, mode=mode), **REWARDS[name]), tmp_path)


def test_switching_the_six_types(tmp_path: Path) -> None:
    """One example, six rewards: GPUs, latency, FLOP, dollars, step and bottleneck by hand.

    A batch has 256 rollouts of 3,300 tokens; it is written in 34.568 s. A forward pass of the
    policy over 3,300 tokens has 2 x 7.568e9 x 3,300 + 589,824 x 3,300^2/2 = 5.316036e13 FLOP, one
    of the 0.6B model 2 x 5.96e8 x 3,300 + 229,376 x 3,300^2/2 = 5.182552e12.
    """
    found = {name: _said(name, tmp_path) for name in REWARDS}
    plain = found["sparse"]
    policy = 2 * 7.568e9 * 3300 + 589_824 * 3300**2 / 2
    small = 2 * 5.96e8 * 3300 + 229_376 * 3300**2 / 2
    read_s = 1e-3 + 2e-5 * 3300 + 1e-10 * 3300**2
    verdict_s, together = judge_engine(3300.0, 200.0)
    judged = 2 * 7.568e9 * 3500 + 589_824 * 3500**2 / 2
    #            GPUs, latency, FLOP a rollout, dollars a rollout, seconds more a step
    by_hand: dict[str, tuple[int, float, float, float, float]] = {
        "sparse": (8, 0.0, 0.0, 0.0, 0.0),
        # 8 a second: 32 s of work, done beside 34.6 s of writing; the last takes half a second.
        "structured": (8, 0.5, 0.0, 0.0, 0.5),
        # 16 workers, 6 s each: 96 s of work beside 34.6 s of writing, then one more latency.
        "dense": (8, 7.5, 0.0, 0.0, 96.0 - plain.generation_s + 7.5),
        # 64 rollouts an engine, each read once more.
        "proxy_prm": (8, 0.0, policy, 0.0, 64 * read_s),
        "prm": (10, small / (989e12 * 0.4), small, 0.0, small / (989e12 * 0.4)),
        "llm_judge": (9, verdict_s * together, judged, 0.0, verdict_s * together),
        # 3,300 tokens at $0.5 and 200 at $2 a million.
        "llm_judge behind an API": (8, 4.0, 0.0, 0.00205, 4.0),
    }
    assert policy == pytest.approx(5.316036e13, rel=1e-6)
    assert small == pytest.approx(5.182552e12, rel=1e-6)
    for name, (gpus, latency_s, flops, usd, more_s) in by_hand.items():
        plan = found[name]
        rollouts_per_h = 256 / plan.step_s * 3600
        assert plan.step_s - plain.step_s == pytest.approx(more_s, rel=1e-9, abs=1e-9), name
        assert plan.environment.reward_s == pytest.approx(latency_s, rel=1e-9), name
        assert plan.flops.reward == pytest.approx(256 * flops, rel=1e-9), name
        spent = plan.environment.reward_usd_per_hour
        assert spent == pytest.approx(usd * rollouts_per_h, rel=1e-9), name
        assert plan.usd_per_hour == pytest.approx(2.0 * gpus + spent, rel=1e-9), name
    slowest = {name: plan.bottleneck for name, plan in found.items()}
    assert slowest == {
        # The trainer's 45 s are more than the 34.6 s of writing.
        **dict.fromkeys(REWARDS, "trainer"),
        "dense": "reward",
        # 256 at 3 a second: 85 s, half of them after the last rollout.
        "prm behind an API": "reward",
    }


def test_an_api_adds_dollars_and_no_gpus(tmp_path: Path) -> None:
    for mode in MODES:
        plain = _said("sparse", tmp_path, mode)
        priced = _said("llm_judge behind an API", tmp_path, mode)
        assert priced.run.gpu_hours / priced.run.hours == pytest.approx(
            plain.run.gpu_hours / plain.run.hours, rel=1e-12
        )
        per_h = priced.generated_samples_per_s * 3600
        assert priced.usd_per_hour - plain.usd_per_hour == pytest.approx(0.00205 * per_h, rel=1e-9)


def test_serial_code_execution_sets_the_pace(tmp_path: Path) -> None:
    """Rollout about 30% of a step and reward about 40%: what k parallel verifiers save.

    Evidence case C10. One verifier takes W = 46 s for 256 rollouts; with k of them a step of
    G + T + W/k is shorter by W (1 - 1/k).
    """
    case = replace(BASE, gpus=6)
    work_s = 46.08
    steps = {}
    for workers in (1, 2, 4, 8, 64):
        reward = {"type": "sparse", "cpu_s": 0.18, "workers": workers, "overlap": False}
        plan = assert_agrees(with_reward(case, **reward), tmp_path)
        steps[workers] = plan.step_s
        if workers == 1:
            written_s = plan.generation_s - plan.environment.reward_wait_s
            assert 0.25 < written_s / plan.step_s < 0.35
            assert 0.35 < plan.environment.reward_wait_s / plan.step_s < 0.45
            assert plan.bottleneck == "reward"
        if workers == 64:
            assert plan.bottleneck != "reward"
    for workers, step_s in steps.items():
        saved = work_s * (1.0 - 1.0 / workers)
        assert steps[1] - step_s == pytest.approx(saved, rel=1e-9, abs=1e-9)
    # 1 worker to 4: 30% shorter steps; the next four bring 6% more.
    assert 1 - steps[4] / steps[1] == pytest.approx(0.30, abs=0.02)


def test_scoring_paces_a_stream(tmp_path: Path) -> None:
    """k workers of 1 s score k rollouts a second until the engines write no more than that."""
    free = told(replace(BASE, mode="async", pauses=False, gpus=8), tmp_path)
    written = free.accepted_samples_per_s
    for workers in (1, 2, 4, 8, 16):
        case = replace(BASE, mode="async", pauses=False, gpus=8)
        plan = assert_agrees(with_reward(case, cpu_s=1.0, workers=workers), tmp_path)
        if workers < written:
            assert plan.accepted_samples_per_s == pytest.approx(workers, rel=1e-9)
            assert plan.bottleneck == "reward"
        else:
            # One second more in flight, of some ten.
            assert plan.accepted_samples_per_s == pytest.approx(written, rel=0.05)
            assert plan.bottleneck != "reward"


def test_a_rate_limit_paces_a_stream(tmp_path: Path) -> None:
    judge = {"type": "llm_judge", "placement": "api", "usd": (1.0, 1.0), "calls": 2}
    case = replace(BASE, mode="async", pauses=False, gpus=8)
    plan = assert_agrees(with_reward(case, max_per_s=3.0, **judge), tmp_path)
    assert plan.accepted_samples_per_s == pytest.approx(1.5, rel=1e-9)
    assert plan.bottleneck == "reward"
