"""How rollouts are scored: by type and place, and the engines of a reward model."""

from __future__ import annotations

import math
from typing import Any

import pytest

from allocator.problem.build import Problem
from allocator.problem.system import RewardKinds, RewardLaw
from allocator.scenario.errors import ScenarioError
from allocator.scenario.profiles import load_catalogue
from tests.problem.scenarios import SAME, built, pool, said, value_of

GIB = 2**30
LENGTHS = {"mean": 3000, "cv": 0.7, "max": 12000}
AGENT = {
    "initial_prompt_tokens": 1000,
    "response_tokens": LENGTHS,
    "turns": 4,
    "tool_tokens_per_turn": 200,
}
API = {"input": 0.5, "output": 2}


def scored(reward: dict[str, Any], **changes: Any) -> Problem:
    return built(said(reward=reward, **changes))


def law_of(reward: dict[str, Any], **changes: Any) -> RewardLaw:
    return scored(reward, **changes).system.reward


def kinds_of(reward: dict[str, Any], **changes: Any) -> RewardKinds:
    found = scored(reward, **changes).system.reward_kinds
    assert found is not None
    return found


def room(gpus: int, model: str, tokens: float, hbm_gib: float = 141.0) -> float:
    """Sequences in BF16 that some GPUs hold beside the weights, at 0.9 of their memory."""
    if gpus == 0:
        return 0.0
    left = gpus * 0.9 * hbm_gib * GIB - 2 * value_of(model, "params_total")
    # Each KV head is on one GPU until there are more GPUs than heads.
    copies = max(1.0, gpus / value_of(model, "kv_heads"))
    return left / (2 * value_of(model, "kv_elements_per_token") * copies * tokens)


# --- the law -------------------------------------------------------------------------------------


def test_rules_are_checked_on_processors_without_limit() -> None:
    problem = scored({"cpu_s": 3})
    law = problem.system.reward
    assert (law.type, law.placement, law.calls, law.cpu_s) == ("sparse", "cpu", 1, 3)
    assert (law.workers, law.max_calls_per_s) == (math.inf, math.inf)
    assert (law.forward, law.latency_s, law.usd_per_mtok_in) == (None, 0, 0)
    assert problem.system.reward_kinds is None
    # The environment has no part in it any more.
    assert problem.system.workload.environment_s == 0
    assert law_of({"cpu_s": 3, "workers": 64, "latency_s": 0.5}).workers == 64


@pytest.mark.parametrize(
    ("kind", "calls"), [("sparse", 1), ("structured", 1), ("dense", 4), ("proxy_prm", 4)]
)
def test_dense_rewards_are_given_every_turn(kind: str, calls: int) -> None:
    assert law_of({"type": kind}, workload=AGENT).calls == calls
    assert law_of({"type": kind, "calls": 2.5}, workload=AGENT).calls == 2.5


def test_a_proxy_scores_with_the_policy() -> None:
    system = scored({"type": "proxy_prm"}).system
    assert system.reward.placement == "shared_engine"
    assert system.reward.forward == system.forward
    assert system.reward_kinds is None


def test_a_hosted_judge_has_a_price_and_perhaps_a_shape() -> None:
    hosted = {"type": "llm_judge", "usd_per_mtok": API, "tokens": {"input": 5000, "output": 300}}
    law = law_of(hosted | {"max_per_s": 20})
    assert (law.placement, law.usd_per_mtok_in, law.usd_per_mtok_out) == ("api", 0.5, 2)
    assert (law.input_tokens, law.output_tokens, law.max_calls_per_s) == (5000, 300, 20)
    assert law.forward is None
    known = law_of(hosted | {"model": "qwen3-8b"})
    assert known.forward is not None
    assert known.forward.matmul_params == value_of("qwen3-8b", "params_matmul_active")


def test_an_unknown_model_is_an_error_at_its_key() -> None:
    with pytest.raises(ScenarioError) as caught:
        scored({"type": "prm", "model": "qwen3-8c"})
    assert (caught.value.path, caught.value.nearest) == ("reward.model", "qwen3-8b")


# --- engines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "gpu", "hbm_gib", "gpus"),
    [
        ("qwen3-32b", "h200-sxm", 141, 1),
        # 65.5 GB and 3.4 GB for 13,000 tokens are less than 0.9 x 80 GiB = 77.3 GB.
        ("qwen3-32b", "h100-sxm", 80, 1),
        # 470 GB: four of 136 GB, 545 GB.
        ("qwen3-235b-a22b", "h200-sxm", 141, 4),
        ("qwen3-235b-a22b", "h100-sxm", 80, 8),
    ],
)
def test_a_scoring_model_takes_the_fewest_gpus_that_hold_it(
    model: str, gpu: str, hbm_gib: float, gpus: int
) -> None:
    pools = [pool("all", roles=["trainer", "decode"]), pool("r", gpu, roles=["reward"])]
    reward = {"type": "prm", "model": model, "hfu": 0.3}
    kinds = kinds_of(reward, hardware={"pools": pools})
    assert kinds.gpus_per_engine.tolist() == [gpus]
    assert kinds.pool.tolist() == [1]
    assert (kinds.hfu, kinds.decode, kinds.prefill) == (0.3, None, None)
    assert kinds.peak_flops_per_s.tolist() == [989e12]
    assert room(gpus, model, 13_000, hbm_gib) >= 1 > room(gpus // 2, model, 13_000, hbm_gib)


def test_a_model_that_no_node_holds_is_refused() -> None:
    # 671e9 parameters, 1,342 GB against 8 x 136.
    with pytest.raises(ScenarioError, match=r"one node of all holds") as caught:
        scored({"type": "prm", "model": "deepseek-v3"})
    assert caught.value.path == "reward.model"


JUDGE = {"type": "llm_judge", "model": "qwen3-32b", "tokens": {"input": 6000, "output": 500}}


def test_a_judge_runs_on_the_row_of_the_fewest_gpu_seconds() -> None:
    problem = scored(JUDGE)
    kinds = problem.system.reward_kinds
    assert kinds is not None
    assert kinds.decode is not None
    assert kinds.prefill is not None
    assert kinds.judge_in_flight == 64
    assert math.isnan(kinds.hfu)

    def gpu_seconds(row: Any) -> float:
        context = 64 * (6000 + 500 / 2)
        step = row.alpha_s + row.beta_s * 64 + row.gamma_s_per_token * context
        fit = row.prefill
        read = fit.p0_s + fit.p1_s_per_token * 6000 + fit.p2_s_per_token2 * 6000**2
        return float(row.gpus_per_engine * (read + 500 * step / 64))

    rows = [
        row
        for row in load_catalogue().rates("qwen3-32b", "h200-sxm", None, "bf16", "bf16")
        if row.prefill is not None and not row.suspect
    ]
    best = min(rows, key=gpu_seconds)
    assert len(rows) > 1
    assert kinds.labels[0].rate_row == f"rates/{best.id}."
    assert kinds.gpus_per_engine.tolist() == [best.gpus_per_engine]
    assert kinds.decode.gamma_s_per_token[0] == pytest.approx(best.gamma_s_per_token, rel=SAME)
    assert "reward.model" not in [w.where for w in problem.warnings if w.code == "estimate_only"]


def test_a_judge_without_a_row_is_estimated_and_said_to_be() -> None:
    problem = scored(JUDGE | {"model": "qwen3-14b"})
    kinds = problem.system.reward_kinds
    assert kinds is not None
    assert kinds.decode is not None
    assert kinds.labels[0].estimate
    assert [w.where for w in problem.warnings if w.code == "estimate_only"] == ["reward.model"]
    # 64 judgements of 6,500 tokens, 68 GB, and 30 GB of weights on one GPU.
    assert room(1, "qwen3-14b", 6500) > 64
    assert kinds.gpus_per_engine.tolist() == [1]
    # Of 30,000 tokens they need a second GPU.
    long = kinds_of(JUDGE | {"model": "qwen3-14b", "tokens": {"input": 29_500, "output": 500}})
    assert room(1, "qwen3-14b", 30_000) < 64 < room(4, "qwen3-14b", 30_000)
    gpus = int(long.gpus_per_engine[0])
    assert room(gpus // 2, "qwen3-14b", 30_000) < 64 <= room(gpus, "qwen3-14b", 30_000)
    assert long.judge_in_flight == 64


def test_memory_may_allow_fewer_judgements() -> None:
    tokens = {"input": 199_500, "output": 500}
    kinds = kinds_of(JUDGE | {"model": "qwen3-14b", "tokens": tokens})
    assert kinds.gpus_per_engine.tolist() == [8]
    assert kinds.judge_in_flight == pytest.approx(room(8, "qwen3-14b", 200_000), rel=SAME)
    assert 1 < kinds.judge_in_flight < 64
