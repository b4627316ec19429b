"""What a scenario resolves to: weights and what is sent of them, MFU, lengths, domain, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from allocator.evaluator import Outcome, evaluate
from allocator.evaluator.prediction import prediction_of
from allocator.physics.kv_memory import KvFootprint, engine_weights_bytes_per_gpu
from allocator.physics.prefill import PrefillLaw, prefill_s
from allocator.physics.trainer import state_bytes
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays, in_flight_grid
from allocator.problem.domain import build_domain
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import override
from tests.problem.scenarios import SAME, built, pool, said, value_of


def one_plan(problem: Problem, **changes: Any) -> Outcome:
    decisions: dict[str, Any] = {
        "generator_kind": 0,
        "engines": 4,
        "in_flight_per_engine": 48,
        "trainer_kind": 0,
        "trainer_gpus": 16,
        "oversampling": 1.0,
        "queue_batches": 2,
        "prompts_per_step": 16,
        "group_size": 8,
        "epochs": 1,
    }
    return evaluate(problem, DecisionArrays.broadcast(**(decisions | changes)))


# --- weights -------------------------------------------------------------------------------------


def test_only_experts_are_quantised_where_the_format_says_so() -> None:
    """116.8e9 parameters, 114.7e9 in experts at 4.25 bits, the rest in BF16; TP2."""
    found = engine_weights_bytes_per_gpu(
        116.8e9,
        114.7e9,
        0.53125,
        2.0,
        tensor_parallel=2,
        pipeline_parallel=1,
        expert_gpus=2,
    )
    assert found == pytest.approx((2.1e9 * 2.0 + 114.7e9 * 4.25 / 8) / 2, rel=1e-12)


@pytest.mark.parametrize("gpu", ["h200-sxm", "gb300-nvl72"])
def test_mxfp4_is_planned_from_its_profile(gpu: str) -> None:
    scenario = said(
        model="gpt-oss-120b",
        engine={"weights_dtype": "mxfp4"},
        hardware={"pools": [pool("all", gpu)]},
    )
    problem = built(scenario)
    kinds = problem.system.engines
    assert all(label.rate_row for label in kinds.labels)
    experts = value_of("gpt-oss-120b", "expert_params_total")
    dense = value_of("gpt-oss-120b", "params_total") - experts
    # TP1: all of it on one GPU.
    expected = 0.53125 * experts + 2.0 * dense
    np.testing.assert_allclose(kinds.weights_bytes_per_gpu, expected, rtol=SAME)
    # What is sent is what the engine holds.
    sync = said(
        model="gpt-oss-120b",
        engine={"weights_dtype": "mxfp4"},
        algorithm={"group_size": 8, "prompts_per_step": 16, "weight_sync": {"gb_per_s": 10}},
    )
    assert built(sync).system.sync_s[0, 0] == pytest.approx(expected / 10e9, rel=SAME)


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_adapters_are_sent_in_bf16_whatever_the_engine_holds(weights: str) -> None:
    algorithm = {"group_size": 8, "prompts_per_step": 16, "weight_sync": {"gb_per_s": 0.1}}
    full, lora = (
        built(
            said(
                engine={"weights_dtype": weights, "kv_dtype": weights},
                algorithm=algorithm | training,
            )
        ).system
        for training in ({}, {"training": {"lora_rank": 8}})
    )
    width = {"bf16": 2.0, "fp8": 1.0}[weights]
    params = value_of("qwen3-32b", "params_total")
    assert full.sync_s[0, 0] == pytest.approx(params * width / 1e8, rel=SAME)
    # Adapters of a trained state of 2 + 4 + 12 bytes, beside a backbone in BF16.
    adapters = (lora.trainers.state_bytes - 2.0 * params) / 18.0
    assert 0 < adapters < 0.01 * params
    assert lora.sync_s[0, 0] == pytest.approx(adapters * 2.0 / 1e8, rel=1e-6)


def test_a_reference_model_is_held_in_bf16() -> None:
    plain = state_bytes(1e9, 4.0, 12.0)
    assert plain == 18e9
    assert state_bytes(1e9, 4.0, 12.0, reference_params=1e9) == plain + 2e9
    algorithm = {"group_size": 8, "prompts_per_step": 16, "reference_model": True}
    params = value_of("qwen3-32b", "params_total")
    more = built(said(algorithm=algorithm)).system.trainers.state_bytes
    assert more - built(said()).system.trainers.state_bytes == pytest.approx(2 * params, rel=SAME)


# --- prefill, KV ---------------------------------------------------------------------------------


def test_a_cached_beginning_is_not_read_and_is_attended_to() -> None:
    law = PrefillLaw(0.01, 1e-5, 1e-9)
    assert float(prefill_s(law, 4000.0, 4000.0)) == pytest.approx(0.01 + 0.04 + 0.016)
    assert float(prefill_s(law, 1000.0, 4000.0)) == pytest.approx(0.01 + 0.01 + 0.004)
    assert float(prefill_s(law, 0.0, 4000.0)) == 0.0
    # Of 1,000 tokens a quarter is cached: 750 are read, and meet 1,000.
    workload = {
        "initial_prompt_tokens": 1000,
        "response_tokens": {"mean": 3000, "cv": 0.7, "max": 12000},
        "prefix_cache": 0.25,
    }
    generator = one_plan(built(said(workload=workload))).generator
    each = generator.prefill_share / (generator.dispatched_per_s / 4)
    assert float(each[0]) == pytest.approx(5e-3 + 3e-5 * 750 + 1e-9 * 750 * 1000, rel=SAME)


def test_footprints_are_taken_by_engine_kind() -> None:
    prints = KvFootprint(np.asarray([10.0, 20.0]), np.asarray([1.0, 3.0]), 128.0)
    taken = prints.take(np.asarray([1, 0, 1]))
    # Layers with a window hold no more than it.
    assert taken.sequence_bytes(np.asarray([100.0, 1000.0, 1000.0])).tolist() == [
        20 * 100 + 3 * 100,
        10 * 1000 + 1 * 128,
        20 * 1000 + 3 * 128,
    ]


# --- the user's own rates ------------------------------------------------------------------------


def test_own_rates_are_those_of_one_kind_of_gpu() -> None:
    two = [pool("first"), pool("second", "h100-sxm")]
    with pytest.raises(ScenarioError, match=r"engine\.rates: .* h100-sxm, h200-sxm"):
        built(said(hardware={"pools": two}))
    # Two pools of one kind are as one; a pool that only trains has no engines.
    built(said(hardware={"pools": [pool("first"), pool("second")]}))
    apart = [pool("t", "h100-sxm", roles=["trainer"]), pool("d", roles=["decode"])]
    assert len(built(said(hardware={"pools": apart})).system.engines.labels) == 1


# --- MFU -----------------------------------------------------------------------------------------

MEASURED = {"mfu": 0.3, "mfu_at_gpus": 16}
RANGED = {"group_size": {"min": 4, "max": 8, "step": 4}, "prompts_per_step": 16}


@pytest.mark.parametrize("epochs", [1, 2, 4])
def test_the_measured_mfu_comes_back_whatever_the_epochs(epochs: int) -> None:
    """Each pass of a batch takes as long as the others, but for log-probabilities, taken once."""
    algorithm = {"group_size": 8, "prompts_per_step": 16, "old_log_probs": "from_engine"}
    problem = built(said(trainer=MEASURED, algorithm=algorithm | {"epochs": epochs}))
    found = one_plan(problem, epochs=epochs)
    assert float(found.accounts.mfu_busy[0]) == pytest.approx(0.3, rel=SAME)


def test_the_measured_mfu_comes_back_with_a_critic() -> None:
    algorithm = {"group_size": 8, "prompts_per_step": 16, "estimator": "ppo", "critic": "qwen3-8b"}
    found = one_plan(built(said(trainer=MEASURED, algorithm=algorithm)))
    assert float(found.accounts.mfu_busy[0]) == pytest.approx(0.3, rel=SAME)


def test_with_log_probabilities_more_epochs_are_more_efficient() -> None:
    algorithm = {"group_size": 8, "prompts_per_step": 16}
    once, twice = (
        float(
            one_plan(
                built(said(trainer=MEASURED, algorithm=algorithm | {"epochs": n})), epochs=n
            ).accounts.mfu_busy[0]
        )
        for n in (1, 2)
    )
    # (4 + 1) passes of forward FLOPs in one epoch; 2 x 4 + 1 in two, for twice the tokens. The
    # fixed time of each epoch stays its own.
    assert once == pytest.approx(0.3, rel=SAME)
    assert 0.3 < twice < 0.3 * 10 / 9


def test_a_range_of_batches_needs_the_batch_of_the_measurement() -> None:
    with pytest.raises(ScenarioError, match=r"trainer\.mfu_at_batch: .* given nothing"):
        built(said(trainer=MEASURED, algorithm=RANGED))
    # Without the GPUs of the measurement its batch cancels.
    built(said(trainer={"mfu": 0.3}, algorithm=RANGED))
    problem = built(said(trainer=MEASURED | {"mfu_at_batch": 128}, algorithm=RANGED))
    fixed = built(said(trainer=MEASURED))
    assert problem.system.trainers.hfu == pytest.approx(fixed.system.trainers.hfu, rel=SAME)
    assert float(one_plan(problem).accounts.mfu_busy[0]) == pytest.approx(0.3, rel=SAME)
    # A batch twice as large would have hidden the fixed time better: less of it is in the MFU.
    larger = built(said(trainer=MEASURED | {"mfu_at_batch": 256}))
    assert larger.system.trainers.hfu[0] < fixed.system.trainers.hfu[0]


def test_more_than_the_peak_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"trainer\.mfu: expected less than 0\.\d\d") as caught:
        built(said(trainer={"mfu": 0.9}))
    assert caught.value.given == "0.9"
    most = float((caught.value.expected or "").split()[2].rstrip(":"))
    built(said(trainer={"mfu": most - 0.01}))
    with pytest.raises(ScenarioError, match=r"trainer\.mfu"):
        built(said(trainer={"mfu": most + 0.01}))


# --- lengths as observed -------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["group", "sample"])
def test_lengths_are_those_of_the_rollouts_kept_in_the_observed_run(by: str) -> None:
    algorithm = {"group_size": 8, "prompts_per_step": 16, "oversampling_by": by}
    workload = {
        "initial_prompt_tokens": 1000,
        "response_tokens": {"mean": 3000, "cv": 0.7, "max": 30000, "at_oversampling": 1.5},
    }
    trainer = {"mfu": 0.3, "mfu_at_gpus": 16}
    problem = built(said(workload=workload, algorithm=algorithm, trainer=trainer))
    work = problem.system.workload
    assert work.observed_mean_tokens == pytest.approx(3000, rel=SAME)
    assert work.lengths.mean > 3000
    again = one_plan(problem, oversampling=1.5)
    assert float(again.trainer.sequence_tokens[0]) == pytest.approx(4000, rel=SAME)
    # Trained without oversampling the rollouts are longer.
    plain = one_plan(problem)
    expected = 1000 + work.lengths.mean
    assert float(plain.trainer.sequence_tokens[0]) == pytest.approx(expected, rel=SAME)


def test_lengths_that_no_run_leaves_are_refused_where_they_stand() -> None:
    workload = {"response_tokens": {"mean": 9000, "cv": 1.0, "max": 20000, "at_oversampling": 4}}
    with pytest.raises(ScenarioError, match=r"kept at oversampling 4") as caught:
        built(said(workload=workload))
    assert caught.value.path == "workload.response_tokens"


# --- the domain ----------------------------------------------------------------------------------


def test_every_cap_to_150_is_told_apart_and_then_steps_of_one_percent() -> None:
    grid = in_flight_grid(4096)
    assert grid[:150].tolist() == list(range(1, 151))
    assert grid[-1] == 4096
    steps = np.diff(grid[149:]) / grid[149:-1]
    # Whole numbers: half a place more or less than 1%.
    assert np.all(steps <= 0.01 + 0.5 / grid[149:-1] + 1e-12)
    assert np.all(steps[:-1] >= 0.01 - 0.5 / grid[149:-2] - 1e-12)
    assert in_flight_grid(7).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert in_flight_grid(0).tolist() == [1]


def test_a_domain_too_large_to_enumerate_is_refused_by_its_widest_range() -> None:
    algorithm = {
        "group_size": {"min": 2, "max": 64},
        "prompts_per_step": {"min": 1, "max": 1000},
        "epochs": {"min": 1, "max": 4},
    }
    wide = said(algorithm=algorithm)
    with pytest.raises(ScenarioError, match="combinations of the ranges") as caught:
        build_domain(wide, built(wide).system)
    assert caught.value.path == "algorithm.prompts_per_step"
    assert caught.value.given == "1,000 choices"
    narrow = override(wide, {"algorithm.prompts_per_step": 16, "algorithm.epochs": 1})
    build_domain(narrow, built(narrow).system)


def test_a_range_of_factors_has_steps_of_a_tenth() -> None:
    scenario = said(
        algorithm={
            "group_size": 8,
            "prompts_per_step": 16,
            "oversampling": {"min": 1.0, "max": 1.35},
        }
    )
    domain = build_domain(scenario, built(scenario).system)
    assert domain.oversampling.tolist() == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.35])


@pytest.mark.parametrize(
    ("sizes", "uneven"),
    [
        ({"prompts_per_step": 15, "group_size": 5}, 75),
        ({"prompts_per_step": {"min": 5, "max": 6}, "group_size": 5}, 25),
        ({"prompts_per_step": 5, "group_size": {"min": 4, "max": 5}}, 25),
    ],
)
def test_optimizer_steps_divide_every_batch(sizes: dict[str, Any], uneven: int) -> None:
    with pytest.raises(ScenarioError, match=rf"\({uneven} samples is one\)"):
        built(said(algorithm=sizes | {"optimizer_steps_per_batch": 2}))
    even = sizes | {"group_size": 4}
    built(said(algorithm=even | {"optimizer_steps_per_batch": 2}))


# --- admission without overlap -------------------------------------------------------------------


@pytest.mark.parametrize("engines", [1, 4, 12])
def test_a_limit_of_no_version_lets_nothing_overlap(engines: int) -> None:
    """A step is the generation of its batch, then its training."""
    problem = built(said(staleness={"limit": 0, "enforce": "admission"}))
    found = one_plan(problem, engines=engines)
    match, trainer, generator = found.match, found.trainer, found.generator
    # Trainer and engines both wait for the transfer of weights.
    sync_s = float(problem.system.sync_s[0, 0])
    step_s, train_s = float(match.step_s[0]), float(trainer.train_s[0]) + sync_s
    # What the trainer is not busy with is generation: the throughput of the batch at least, and
    # the residence of a mean rollout.
    generation_s = step_s - train_s
    residence = generator.residence_fixed_s + generator.residence_token_s * 3000
    assert generation_s >= 128 / float(match.offered_samples_per_s[0]) * (1 - SAME)
    assert generation_s > float(residence[0])
    assert float(match.wait_fraction[0]) == pytest.approx(generation_s / step_s, rel=1e-6)
    assert float(match.staleness_mean[0]) == 0.0
    seen = prediction_of(problem, found, 0).staleness
    assert seen.cdf == (1.0,)
    assert (seen.mean, seen.p50, seen.p95, seen.p99, seen.max, seen.token_mean) == (0,) * 6
    # The same plan with one version of overlap trains faster.
    overlapped = one_plan(
        built(said(staleness={"limit": 1, "enforce": "admission"})), engines=engines
    )
    assert float(overlapped.match.samples_per_s[0]) > float(match.samples_per_s[0])
    assert math.isclose(float(match.samples_per_s[0]) * step_s, 128, rel_tol=SAME)
