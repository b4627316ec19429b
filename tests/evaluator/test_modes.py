"""Every mode at equal lengths against a scalar computation (`equal_lengths`), to 1e-9."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocator.evaluator import evaluate
from allocator.evaluator.prediction import prediction_of
from allocator.plan import leaves, plain
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import COLOCATED_SYNC, DecisionArrays
from allocator.problem.domain import build_domain
from allocator.scenario.load import from_dict
from allocator.scenario.profiles import load_catalogue
from tests.evaluator.equal_lengths import (
    QWEN3_06B,
    QWEN3_8B,
    QWEN3_30B,
    Case,
    Loop,
    assert_agrees,
    read_again_s,
    told,
    with_reward,
)
from tests.evaluator.other_hand import Array

MODES = ("colocated_sync", "disaggregated_sync", "one_step_off", "async")
SOLVED = (0.2, 0.1, 1.0, 1.0)
MIXTURE = Case(model=QWEN3_30B, expert=9e-3, alpha=4e-3, beta=6e-5, hfu=0.2)

VARIANTS = {
    "one wave": Case(),
    "three waves": Case(cap=24),
    "mixture of experts": replace(MIXTURE, cap=64),
    "mixture of experts in waves": replace(MIXTURE, cap=24, engines=4),
    "waves of what memory holds": Case(memory_fraction=0.15, engines=2, cap=128),
    "oversampling by sample": Case(oversampling=1.25, cap=128),
    "oversampling by group": Case(oversampling=1.5, by="group", cap=128),
    "no signal": Case(solve=SOLVED),
    "no signal, dropped": Case(solve=SOLVED, sampling="drop", microbatch_s=0.05),
    "no signal, refilled": Case(solve=SOLVED, sampling="refill"),
    "refilled, oversampled": Case(solve=SOLVED, sampling="refill", oversampling=1.25, cap=128),
    "length cut": Case(response=5000.0, length_cut=2000, solve=SOLVED),
    "mini-batches and slow sync": Case(steps=4, sync_every=2, fixed_s=1.0),
    "two epochs of wide replicas": Case(epochs=2, width=2, recompute=False, old_log_probs=False),
    "uneven ranks": Case(gpus=3, prompts=5, group=4, engines=2, cap=20),
    "trainer in FP8": Case(precision="fp8"),
    "response basis": Case(basis="response", solve=SOLVED),
    "on demand": Case(on_demand=True),
    "no cache of prompts": Case(cache="none", p1=2e-4),
    "share of the cache": Case(cache=0.6, p1=2e-4),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", VARIANTS)
def test_agrees(mode: str, name: str, tmp_path: Path) -> None:
    assert_agrees(replace(VARIANTS[name], mode=mode), tmp_path)


TRAINED = {
    "reference model": Case(reference=True),
    "adapters": Case(lora_rank=16),
    "adapters beside the reference model": Case(lora_rank=32, reference=True, recompute=False),
    "critic as large as the policy": Case(critic=QWEN3_8B),
    "small critic": Case(critic=QWEN3_06B, epochs=2),
    "weights and cache in FP8": Case(weights="fp8", kv="fp8", memory_fraction=0.15, cap=128),
    "weights in FP8": Case(weights="fp8"),
}


@pytest.mark.parametrize("mode", ["disaggregated_sync", "async"])
@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained_and_sent(mode: str, name: str, tmp_path: Path) -> None:
    assert_agrees(replace(TRAINED[name], mode=mode), tmp_path)


@pytest.mark.parametrize("offload", [None, 3.0])
@pytest.mark.parametrize("onload", [None, 7.0])
def test_switching_roles(offload: float | None, onload: float | None, tmp_path: Path) -> None:
    """16 GPUs do both; what is not stated is the bytes of a GPU over its link to host memory."""
    case = Case(mode="colocated_sync", gpus=16, engines=16, pool=16, on_demand=True)
    plan = assert_agrees(replace(case, offload_s=offload, onload_s=onload), tmp_path)
    # 16.38 GB of weights leave at 25 GB/s; 18 bytes of each of 8.19e9 parameters / 16 come back.
    switch = (0.6552 if offload is None else offload) + (0.36855 if onload is None else onload)
    parts = plan.generation_s + plan.train_s + plan.weight_sync_s
    assert plan.step_s == pytest.approx(parts + switch, rel=1e-9)
    # One set of GPUs is paid once: 16, not 32.
    assert plan.usd_per_hour == pytest.approx(32.0, rel=1e-12)


RESUMED = {
    "nothing to resume": Case(),
    "a quarter more": Case(oversampling=1.25, cap=128),
    "half more, by group": Case(oversampling=1.5, by="group", cap=128),
    "so few that the last are waited for": Case(oversampling=1.03, cap=60),
    "four times": Case(oversampling=4.0, cap=300),
    "some wait for a place": Case(oversampling=2.0, cap=100),
    "all wait for a place": Case(oversampling=4.0, cap=64),
    "experts": replace(MIXTURE, oversampling=2.0, cap=128),
    "experts, some wait": replace(MIXTURE, oversampling=2.0, cap=100),
    "tools": Case(oversampling=1.5, cap=128, turns=5, tool_tokens=200.0, tool_s=20.0),
    "refilled": Case(oversampling=1.5, cap=128, solve=SOLVED, sampling="refill"),
    "mini-batches": Case(oversampling=1.5, cap=128, steps=4, fixed_s=1.0),
}


@pytest.mark.parametrize("mode", MODES[:3])
@pytest.mark.parametrize("name", RESUMED)
def test_unfinished_rollouts_resume(mode: str, name: str, tmp_path: Path) -> None:
    """o B in flight, B of them end; the others are read again and go on in the next batch."""
    case = replace(RESUMED[name], mode=mode, partial=True)
    plan = assert_agrees(case, tmp_path)
    assert plan.discarded_tokens_fraction == 0.0
    mixed = plan.staleness.environment_state_fraction
    # Fewer than two ages in as many places end together with the batch.
    assert (mixed > 0.0) == (case.oversampling >= 2.0 or case.cap < 64 * case.oversampling)
    assert plan.token_fate.mixed_environment == 0.0
    fresh = {"one_step_off": 1.0}.get(mode, 0.0) * case.steps + (case.steps - 1) / 2
    # A token is written, on average, half way through the batches that its rollout meets.
    older = plan.staleness.mean - fresh
    assert plan.staleness.token_mean == pytest.approx(fresh + older / 2, abs=1e-12)


def test_mixed_samples_may_not_count(tmp_path: Path) -> None:
    case = Case(partial=True, exclude_mixed=True, oversampling=1.1, cap=40)
    plan = assert_agrees(case, tmp_path)
    mixed = plan.staleness.environment_state_fraction
    assert 0.1 < mixed < 0.9
    assert plan.token_fate.useful == pytest.approx(1.0 - mixed, abs=1e-12)


def test_waves_of_unequal_last_one(tmp_path: Path) -> None:
    """80 samples on each engine with 32 places: 32, 32 and 16 that decode faster."""
    plan = told(Case(prompts=40, cap=32, gamma=0.0), tmp_path)
    steps = [6e-3 + 5e-5 * n for n in (32, 32, 16)]
    reading = 10 * (1e-3 + 300 * 2e-5 + 300**2 * 1e-10)  # ten prompts an engine, one a group
    assert plan.generation_s == pytest.approx(3000 * sum(steps) + reading, rel=1e-9)


def test_one_step_off_pays_for_the_slower_side(tmp_path: Path) -> None:
    found = {}
    for gpus in (2, 8):
        plan = assert_agrees(Case(mode="one_step_off", gpus=gpus), tmp_path)
        found[gpus] = plan
    assert found[2].bottleneck == "trainer"
    assert found[2].step_s == pytest.approx(found[2].train_s + found[2].weight_sync_s)
    assert found[8].bottleneck == "decode"
    assert found[8].step_s == pytest.approx(found[8].generation_s + found[8].weight_sync_s)
    assert found[2].staleness.cdf == (0.0, 1.0)


def reads_again(
    case: Case, loop: Loop, stay_s: float, free: float, taken: float, pause_s: float
) -> tuple[float, float]:
    """Every sync drops the cache: what is resident is read again, one after the other."""
    return _held_up(case, free, taken, pause_s + loop.resident * read_again_s(case)), 0.0


def starts_anew(
    case: Case, loop: Loop, stay_s: float, free: float, taken: float, pause_s: float
) -> tuple[float, float]:
    """Whole lives between two syncs count; the trainer sets the interval."""
    between = (case.batch * case.sync_every / taken - pause_s) / stay_s
    running = 1.0 - pause_s * taken / (case.batch * case.sync_every)
    counted = math.floor(between) / between
    rate = free * running * counted
    assert rate > taken
    return rate, 1.0 - counted


def ends_in_step(
    case: Case, loop: Loop, stay_s: float, free: float, taken: float, pause_s: float
) -> tuple[float, float]:
    """After one drain all slots keep step, so the next one finds nothing half empty."""
    return _held_up(case, free, taken, pause_s), 0.0


def _held_up(case: Case, free: float, taken: float, pause_s: float) -> float:
    per_sync = case.batch * case.sync_every
    starved = free / (1.0 + free * pause_s / per_sync)
    return starved if starved < taken else free * (1.0 - taken * pause_s / per_sync)


UPDATES = {
    "retract": (reads_again, Case(weight_update="retract", p1=2e-4)),
    "retract, fast trainer": (reads_again, Case(weight_update="retract", p1=2e-4, gpus=8)),
    "abort, resumed": (reads_again, Case(weight_update="abort", partial=True, p1=2e-4)),
    "abort": (starts_anew, Case(weight_update="abort", gpus=1, cap=24)),
    "abort, slow sync": (starts_anew, Case(weight_update="abort", gpus=2, sync_every=3)),
    "drain": (ends_in_step, Case(weight_update="drain")),
}


@pytest.mark.parametrize("name", UPDATES)
def test_weight_updates(name: str, tmp_path: Path) -> None:
    law, case = UPDATES[name]
    assert_agrees(replace(case, mode="async"), tmp_path, law)


def test_restarted_rollouts_are_not_scored(tmp_path: Path) -> None:
    """$1 per million tokens, 1,000 a verdict: a tenth of a cent for each that ends."""
    case = replace(UPDATES["abort"][1], mode="async")
    judged = with_reward(case, type="llm_judge", placement="api", usd=(1.0, 0.0), input=1000.0)
    plan = assert_agrees(judged, tmp_path, starts_anew)
    ended_per_h = plan.accepted_samples_per_s * 3600
    assert plan.token_fate.failed > 0.02
    assert plan.environment.reward_usd_per_hour == pytest.approx(ended_per_h * 1e-3, rel=1e-9)


def test_resumed_in_async_cancels_as_ever(tmp_path: Path) -> None:
    """Rollouts that resume after an update are not those that oversampling cancels."""
    case = Case(
        mode="async", weight_update="abort", partial=True, oversampling=1.5, cap=96, p1=2e-4
    )
    judged = with_reward(case, type="llm_judge", placement="api", usd=(1.0, 0.0), input=1000.0)
    plan = assert_agrees(judged, tmp_path, reads_again)
    # $1 per million tokens: a tenth of a cent for each of the rollouts kept.
    kept_per_h = plan.generated_samples_per_s / 1.5 * 3600
    assert plan.environment.reward_usd_per_hour == pytest.approx(kept_per_h * 1e-3)


def test_surplus_that_never_starts_costs_nothing(tmp_path: Path) -> None:
    """320 rollouts on 256 places: the first wave is the batch, and 64 are never begun."""
    plan = assert_agrees(Case(oversampling=1.25, cap=64), tmp_path)
    plain = told(Case(cap=64), tmp_path)
    assert plan.token_fate.oversampled == pytest.approx(0.0, abs=1e-12)
    # A prompt is read for ten rollouts instead of eight, otherwise the work is the same.
    reading = 256 * (1 / 8 - 1 / 10) * QWEN3_8B.forward(300)
    assert plain.flops.search - plan.flops.search == pytest.approx(reading, rel=1e-9)
    # The time to read the prompts of all is charged.
    prompt_s = 1e-3 + 300 * 2e-5 + 300**2 * 1e-10
    assert plan.generation_s == pytest.approx(plain.generation_s, rel=1e-9)
    assert plan.generation_s - 8 * prompt_s == pytest.approx(
        3000 * (6e-3 + 64 * 5e-5 + 64 * 1800 * 2e-8)
    )


def test_surplus_that_starts_is_written_to_the_end(tmp_path: Path) -> None:
    """80 rollouts on an engine with 33 places: two waves are 66, two more than are needed."""
    plan = assert_agrees(Case(oversampling=1.25, cap=33), tmp_path)
    assert plan.token_fate.oversampled == pytest.approx(2 / 66, rel=1e-9)


def test_nothing_useful_is_no_crash(tmp_path: Path) -> None:
    """With more than a batch in flight every rollout is resumed, and here none of those counts."""
    plan = told(Case(partial=True, exclude_mixed=True, oversampling=2.0, cap=128), tmp_path)
    assert plan.token_fate.useful == 0.0


def mixed(**algorithm: Any) -> tuple[Problem, DecisionArrays]:
    """Plans of all modes, with and without prefill engines, reward engines, oversampling, waves."""
    algorithm |= {
        "mode": "auto",
        "oversampling": {"min": 1, "max": 1.5, "step": 0.25},
        "prompts_per_step": {"min": 8, "max": 24, "step": 8},
        "group_size": {"min": 4, "max": 8, "step": 4},
    }
    data = {
        "model": "qwen3-8b",
        "engine": {
            "layouts": [{"tp": 1}],
            "disaggregation": "auto",
            "weights_dtype": ["bf16", "fp8"],
            "memory_fraction": 0.25,
        },
        "trainer": {"hfu": 0.4},
        "workload": {
            "initial_prompt_tokens": 800,
            "response_tokens": {"mean": 3000, "cv": 0.9, "max": 16000},
            "turns": 3,
            "tool_tokens_per_turn": 100,
            "tool_s": {"mean": 3, "cv": 1},
            "solve_rate": {"always": 0.2, "never": 0.1},
        },
        "algorithm": algorithm,
        "reward": {"type": "prm", "model": "qwen3-0.6b"},
        "sandbox": {
            "provider": "local",
            "start_s": {50: 5, 500: 60},
            "failure_fraction": 0.05,
            "timeout_s": 900,
        },
        "evaluation": {"every_steps": 10, "samples": 100},
        "hardware": {
            "pools": [
                {
                    "name": name,
                    "gpu": "h200-sxm",
                    "gpus": 8,
                    "granularity": "gpu",
                    "price": {"usd_per_gpu_hour": usd},
                }
                for name, usd in (("near", 2.0), ("far", 1.5))
            ],
            "links": [{"between": ["near", "far"], "gbit_per_s": 50}],
        },
        "budget": {"hours": 100},
    }
    scenario = from_dict(data)
    problem = build_problem(scenario, load_catalogue())
    domain, dice = build_domain(scenario, problem.system), np.random.default_rng(3)
    plans = []
    for mode in [*range(len(MODES))] * 6:
        kind = int(dice.integers(len(domain.engines)))
        reader, readers = domain.prefill[kind][dice.integers(len(domain.prefill[kind]))]
        scorer, scorers = domain.reward[dice.integers(len(domain.reward))]
        trainer = int(dice.integers(len(domain.trainer_gpus)))
        if mode == COLOCATED_SYNC:  # on the GPUs of the engines
            pool = problem.system.engines.labels[kind].pool
            trainer = [place for place, _ in problem.system.trainers.labels].index(pool)
        names = ("oversampling", "prompts_per_step", "group_size", "queue_batches", "epochs")
        plans.append(
            DecisionArrays.broadcast(
                mode=mode,
                generator_kind=kind,
                engines=dice.choice(domain.engines[kind]),
                in_flight_per_engine=dice.choice([8, 20, 40, 90]),
                prefill_kind=reader,
                prefill_engines=dice.choice(readers),
                reward_kind=scorer,
                reward_engines=dice.choice(scorers),
                trainer_kind=trainer,
                trainer_gpus=dice.choice(domain.trainer_gpus[trainer]),
                **{name: dice.choice(getattr(domain, name)) for name in names},
            )
        )
    return problem, DecisionArrays.concatenate(plans)


def everything(state: Any, count: int, name: str = "") -> dict[str, Array]:
    """Return every array of an outcome with an entry a plan, nested ones by dotted names."""
    found: dict[str, Array] = {}
    for field in fields(state):
        value, path = getattr(state, field.name), f"{name}.{field.name}"
        if path in (".rollouts", ".matched.stale", ".matched.place", ".plans"):
            continue
        if is_dataclass(value):
            found |= everything(value, count, path)
        elif isinstance(value, dict):
            for limit, pair in value.items():
                found |= {f"{path}.{limit}.{i}": np.asarray(pair[i]) for i in (0, 1)}
        else:
            found[path] = np.asarray(value)
    return {name: np.broadcast_to(values, (count,)) for name, values in found.items()}


@pytest.mark.parametrize(
    "algorithm",
    [
        {"dynamic_sampling": "refill"},
        {"oversampling_by": "sample", "group_dispatch": "sample", "dynamic_sampling": "drop"},
        {"partial_rollout": True, "weight_update": "abort", "dispatch_scope": "global"},
        {"weight_update": "drain", "estimator": "gspo", "optimizer_steps_per_batch": 2},
    ],
)
def test_plans_of_all_modes_at_once(algorithm: dict[str, Any]) -> None:
    """No plan knows of its neighbours, whatever their mode."""
    problem, plans = mixed(**algorithm)
    together = everything(evaluate(problem, plans), len(plans))
    assert np.all(np.isfinite(together[".matched.state.step_s"]))
    for index in range(len(plans)):
        alone = everything(evaluate(problem, plans.take(slice(index, index + 1))), 1)
        assert alone.keys() == together.keys()
        for name, values in alone.items():
            expected = pytest.approx(float(values[0]), rel=1e-9, abs=1e-12, nan_ok=True)
            assert float(together[name][index]) == expected, (index, name)


def test_predictions_of_all_modes_at_once() -> None:
    problem, plans = mixed()
    together = evaluate(problem, plans)
    for index in range(0, len(plans), 5):
        alone = evaluate(problem, plans.take(slice(index, index + 1)))
        found = dict(leaves(plain(prediction_of(problem, together, index))))
        for name, value in leaves(plain(prediction_of(problem, alone, 0))):
            if isinstance(value, float):
                assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12), (index, name)
            elif not isinstance(value, list):
                assert found[name] == value, (index, name)
