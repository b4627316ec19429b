"""The evaluator against an independent re-implementation (`other_hand`), to 1e-9.

Scenarios come from profiles; the re-implementation gets the resolved inputs of the system (rates,
budgets, prices) and what the scenario says, never a prediction. `test_inputs` checks the resolved
inputs themselves against the profile files.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocator.evaluator import Outcome, evaluate
from allocator.evaluator.prediction import prediction_of
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import DecisionArrays
from allocator.scenario.load import from_dict
from allocator.scenario.profiles import load_catalogue
from tests.evaluator.other_hand import Run, main_path

RELATIVE = 1e-9
#: The trainer's wait is 1 less a ratio in the product: compared to this much of the whole.
WAIT = 1e-9
#: What rounding leaves of shares that are 1 less something (drop), of a probability (difference of
#: two integrals), and of seconds of fixed residence (residence less the part of the tokens).
ROUNDING = {"dropped_fraction": 1e-14, "dropped_overflow": 1e-14, "fixed_s": 1e-12}
PROBABILITY_ROUNDING = 1e-12
PROFILES = Path(__file__).parents[2] / "hardware_profiles"

Data = dict[str, Any]
Plans = list[tuple[int, int, int, int, int]]


def scenario_data(
    model: str,
    backend: str,
    tp: int,
    ep: int = 1,
    *,
    lengths: Data,
    prompt: float,
    trainer: Data,
    algorithm: Data | None = None,
    solve_rate: Data | None = None,
    tool_s: float = 0.0,
    memory_fraction: float = 0.88,
    rates: Data | None = None,
) -> Data:
    engine: Data = {
        "backend": backend,
        "layouts": [{"tp": tp, "ep": ep}],
        "memory_fraction": memory_fraction,
    }
    workload: Data = {
        "initial_prompt_tokens": prompt,
        "response_tokens": lengths,
        "tool_s": tool_s,
        "prefix_cache": "shared_prompt",
    }
    return {
        "model": model,
        "engine": engine | ({"rates": rates} if rates else {}),
        "trainer": trainer,
        "workload": workload | ({"solve_rate": solve_rate} if solve_rate else {}),
        "algorithm": algorithm or {},
        "hardware": {
            "pools": [{"gpu": "h200-sxm", "gpus": 512, "price": {"usd_per_gpu_hour": 2.05}}]
        },
        "budget": {"hours": 100},
    }


def one_rank(width: int, mfu: float, **more: Any) -> Data:
    return {"mfu": mfu, "mfu_at_gpus": width, "parallelism": {"tp": width}, **more}


SOLVED = {"always": 0.2, "never": 0.1, "rest": {"alpha": 1, "beta": 1}}
SKEWED = {"always": 0.05, "never": 0.3, "rest": {"alpha": 0.7, "beta": 2.5}}

#: Scenario, GPUs of its one-rank trainer, and (engines, in flight, queue, prompts, group) of plans.
CASES: dict[str, tuple[Data, int, Plans]] = {
    "dense, refill, in-flight pauses": (
        scenario_data(
            "qwen3-8b",
            "vllm",
            1,
            lengths={"mean": 3000, "cv": 0.9, "max": 16000},
            prompt=300,
            trainer=one_rank(8, 0.33, fixed_s=2),
            algorithm={
                "dynamic_sampling": "refill",
                "weight_sync": {"gb_per_s": 25, "fixed_s": 1.5},
            },
            solve_rate=SOLVED,
        ),
        8,
        [
            (8, 32, 1, 32, 8),
            (24, 48, 1, 32, 8),
            (40, 64, 2, 32, 8),
            (30, 40, 3, 16, 16),
            (64, 96, 2, 64, 4),
            (33, 64, 2, 4, 8),
        ],
    ),
    "dense, off, trainer does not block": (
        scenario_data(
            "qwen3-8b",
            "sglang",
            1,
            lengths={"mean": 4000, "cv": 0.6, "max": 12000},
            prompt=1200,
            trainer=one_rank(8, 0.4, fixed_s=5, recomputation="none"),
            algorithm={
                "weight_sync": {"gb_per_s": 10, "trainer_blocks": False},
                "old_log_probs": "from_engine",
            },
            solve_rate=SKEWED,
        ),
        8,
        [
            (4, 64, 1, 8, 16),
            (12, 64, 1, 8, 16),
            (14, 64, 2, 8, 16),
            (16, 64, 3, 32, 4),
            (32, 64, 2, 4, 4),
            (2, 24, 3, 64, 8),
        ],
    ),
    "mixture of experts, off, no pauses": (
        scenario_data(
            "qwen3-235b-a22b",
            "sglang",
            8,
            8,
            lengths={"mean": 12704, "cv": 0.6, "max": 27177},
            prompt=5591,
            trainer=one_rank(64, 0.105),
            algorithm={"weight_sync": {"generator_pauses": False, "gb_per_s": 50}},
        ),
        64,
        [
            (24, 88, 1, 32, 16),
            (24, 16, 2, 32, 16),
            (40, 40, 2, 16, 8),
            (30, 60, 3, 32, 16),
            (12, 150, 1, 64, 8),
            (36, 88, 2, 8, 32),
        ],
    ),
    "mixture of experts, refill, pauses without blocking": (
        scenario_data(
            "qwen3-235b-a22b",
            "vllm",
            8,
            lengths={"mean": 9000, "cv": 1.1, "max": 40000},
            prompt=800,
            trainer=one_rank(64, 0.15, step_cv=0.25),
            algorithm={
                "dynamic_sampling": "refill",
                "weight_sync": {"trainer_blocks": False, "gb_per_s": 20, "fixed_s": 3},
            },
            solve_rate=SOLVED,
            tool_s=20.0,
        ),
        64,
        [
            (16, 64, 1, 32, 16),
            (48, 48, 2, 32, 16),
            (64, 64, 3, 64, 8),
            (56, 64, 2, 16, 8),
            (60, 30, 1, 4, 4),
        ],
    ),
    "small mixture, KV full, two optimiser steps": (
        scenario_data(
            "qwen3-30b-a3b",
            "sglang",
            1,
            lengths={"mean": 8000, "cv": 0.8, "max": 32000},
            prompt=2000,
            trainer=one_rank(8, 0.12),
            algorithm={"reference_model": True, "optimizer_steps_per_batch": 2},
            memory_fraction=0.6,
        ),
        8,
        [
            (16, 400, 1, 32, 8),
            (40, 200, 2, 32, 8),
            (40, 32, 2, 32, 8),
            (64, 120, 3, 16, 16),
            (24, 300, 1, 8, 16),
        ],
    ),
    "dense TP4, no cap, two epochs": (
        scenario_data(
            "qwen3-32b",
            "trtllm",
            4,
            lengths={"mean": 2500, "cv": 0.5},
            prompt=4000,
            trainer=one_rank(16, 0.35, fixed_s=8),
            algorithm={"epochs": 2},
            tool_s=45.0,
        ),
        16,
        [
            (6, 32, 1, 64, 8),
            (8, 48, 1, 64, 8),
            (8, 64, 2, 128, 4),
            (12, 64, 3, 32, 16),
            (20, 48, 2, 8, 2),
        ],
    ),
    "heavy tail, full KV, dense TP8": (
        scenario_data(
            "llama-3.1-70b",
            "vllm",
            8,
            lengths={"mean": 6000, "cv": 1.6, "max": 60000},
            prompt=1000,
            trainer=one_rank(64, 0.3, optimizer_bytes_per_param=8, gradient_bytes_per_param=2),
            algorithm={"dynamic_sampling": "refill"},
            solve_rate=SKEWED,
        ),
        64,
        [
            (16, 64, 1, 16, 8),
            (40, 200, 2, 16, 8),
            (64, 400, 2, 32, 16),
            (24, 250, 3, 64, 4),
            (50, 30, 1, 128, 8),
        ],
    ),
    "own rates, steps all alike, one limit over all engines": (
        scenario_data(
            "qwen3-8b",
            "vllm",
            2,
            lengths={"mean": 1000, "cv": 0.25, "max": 8000},
            prompt=50,
            trainer=one_rank(2, 0.3, step_cv=0, fixed_s=0),
            algorithm={"weight_sync": {"gb_per_s": 100}, "dispatch_scope": "global"},
            solve_rate={"always": 0, "never": 0, "rest": {"alpha": 2, "beta": 3}},
            rates={
                "gpus_per_engine": 2,
                "decode": {"alpha_s": 0.004, "beta_s": 2e-5, "gamma_s_per_token": 3e-8},
                "prefill": {"p0_s": 0.002, "p1_s_per_token": 1e-5},
            },
        ),
        2,
        [
            (1, 16, 1, 32, 8),
            (4, 16, 1, 32, 8),
            (4, 32, 2, 32, 8),
            (3, 64, 3, 64, 4),
            (10, 32, 2, 16, 2),
            (1, 40, 3, 256, 2),
            (500, 900, 1, 1, 4),
        ],
    ),
    "guards: a group or two a batch, steps unlike each other": (
        scenario_data(
            "qwen3-8b",
            "vllm",
            1,
            lengths={"mean": 6000, "cv": 0.3, "max": 20000},
            prompt=100,
            trainer=one_rank(8, 0.4, step_cv=0.9, fixed_s=0.1, optimizer_bytes_per_param=4),
            algorithm={"weight_sync": {"gb_per_s": 400, "generator_pauses": False}},
        ),
        8,
        [
            (1, 4, 1, 1, 4),
            (1, 32, 1, 1, 32),
            (2, 34, 2, 1, 32),
            (10, 80, 3, 1, 64),
            (3, 32, 1, 2, 2),
            (4, 16, 2, 1, 2),
            (40, 64, 1, 64, 16),
            (60, 64, 2, 32, 8),
        ],
    ),
}


@cache
def outcome_of(case: str) -> tuple[Problem, Outcome]:
    data, gpus, plans = CASES[case]
    problem = build_problem(from_dict(data), load_catalogue())
    engines, in_flight, queue, prompts, group = np.asarray(plans).T
    return problem, evaluate(
        problem,
        DecisionArrays.broadcast(
            generator_kind=0,
            engines=engines,
            in_flight_per_engine=in_flight,
            trainer_kind=0,
            trainer_gpus=gpus,
            oversampling=1.0,
            queue_batches=queue,
            prompts_per_step=prompts,
            group_size=group,
            epochs=data["algorithm"].get("epochs", 1),
        ),
    )


def run_of(case: str, problem: Problem, index: int) -> Run:
    """Numbers of the resolved system, of the scenario, and of one plan; no predictions."""
    data, gpus, plans = CASES[case]
    system = problem.system
    engines, in_flight, queue, prompts, group = plans[index]
    kinds, trainers, work, algorithm = (
        system.engines,
        system.trainers,
        system.workload,
        system.algorithm,
    )
    lengths = data["workload"]["response_tokens"]
    solve = work.solve_rate
    return Run(
        mean=lengths["mean"],
        cv=lengths["cv"],
        cap=lengths.get("max", math.inf),
        prompt=work.prompt_tokens,
        environment_s=work.environment_s + system.reward.cpu_s,
        solve=None if solve is None else (solve.always, solve.never, solve.alpha, solve.beta),
        refill=algorithm.dynamic_sampling == "refill",
        alpha=float(kinds.decode.alpha_s[0]),
        expert=float(kinds.decode.expert_s[0]),
        miss=float(kinds.decode.expert_miss[0]),
        beta=float(kinds.decode.beta_s[0]),
        gamma=float(kinds.decode.gamma_s_per_token[0]),
        p0=float(kinds.prefill.p0_s[0]),
        p1=float(kinds.prefill.p1_s_per_token[0]),
        p2=float(kinds.prefill.p2_s_per_token2[0]),
        kv_bytes_per_token=float(kinds.footprint.bytes_per_token[0]),
        kv_budget=float(kinds.kv_budget_bytes[0]),
        engines=engines,
        cap_per_engine=in_flight,
        limit_per_engine=data["algorithm"].get("dispatch_scope", "engine") == "engine",
        gpus=gpus,
        peak=float(trainers.peak_flops_per_s[0]),
        hfu=float(trainers.hfu[0]),
        recomputation=data["trainer"].get("recomputation", "full") == "full",
        old_log_probs=data["algorithm"].get("old_log_probs", "recompute") == "recompute",
        reference_model=data["algorithm"].get("reference_model", False),
        trainer_fixed_s=trainers.fixed_s,
        optimizer_steps=trainers.optimizer_steps_per_batch,
        epochs=data["algorithm"].get("epochs", 1),
        step_cv=trainers.step_cv,
        state_bytes=trainers.state_bytes,
        activation_bytes=trainers.activation_bytes,
        width=gpus,
        params_active=system.active_params,
        matmul_params=system.forward.matmul_params,
        layers=system.forward.full_layers,
        pair_flops=system.forward.flops_per_pair,
        sync_s=float(system.sync_s[0, 0]),
        sync_every=algorithm.weight_sync_every_steps,
        blocks=algorithm.trainer_blocks,
        pauses=algorithm.generator_pauses,
        groups=prompts,
        group_size=group,
        queue=queue,
        pool_gpus=sum(pool.gpus for pool in system.pools),
        usd_per_gpu_hour=system.pools[0].usd_per_gpu_hour,
    )


def product_numbers(outcome: Outcome, index: int) -> dict[str, float]:
    generator, trainer = outcome.generator, outcome.trainer
    match, account = outcome.match, outcome.accounts
    per_engine = generator.dispatched_per_s / outcome.plans.engines
    values = {
        "decoding": generator.decoding,
        "samples_per_s_per_engine": per_engine,
        "token_s": generator.residence_token_s,
        "fixed_s": generator.residence_fixed_s,
        "train_s": trainer.train_s,
        "trainer_samples_per_s": match.trainer_samples_per_s,
        "offered_samples_per_s": match.offered_samples_per_s,
        "load": match.load,
        "wait_fraction": match.wait_fraction,
        "dropped_fraction": match.dropped_fraction,
        "trained_samples_per_s": match.samples_per_s,
        "step_s": match.step_s,
        "search_flops": account.search_flops,
        "learning_flops": account.learning_flops,
        "update_fraction": account.update_fraction,
        "mfu_busy": account.mfu_busy,
        "mfu_wall": account.mfu_wall,
        "useful": account.useful,
        "no_signal": account.no_signal,
        "dropped_overflow": account.dropped_overflow,
        "usd_per_useful_mtok": account.usd_per_useful_mtok,
        "trainer_memory_bytes": trainer.memory_bytes,
        "sequences_fit": generator.sequences_fit,
    }
    count = len(outcome.plans)
    return {name: float(np.broadcast_to(v, (count,))[index]) for name, v in values.items()}


def assert_agrees(problem: Problem, outcome: Outcome, index: int, run: Run) -> None:
    answer, product = main_path(run), product_numbers(outcome, index)
    assert answer.numbers.keys() == product.keys()
    for name, value in answer.numbers.items():
        rounding = WAIT if name == "wait_fraction" else ROUNDING.get(name, 0.0)
        relative = 0.0 if name == "wait_fraction" else RELATIVE
        assert product[name] == pytest.approx(value, rel=relative, abs=rounding), name
    prediction = prediction_of(problem, outcome, index)
    fate = prediction.token_fate
    assert fate.rejected_stale == fate.oversampled == fate.failed == 0.0
    cdf = prediction.staleness.cdf
    mine = [answer.within(versions) for versions in range(len(cdf))]
    assert list(cdf) == pytest.approx(mine, rel=RELATIVE, abs=PROBABILITY_ROUNDING)


@pytest.mark.parametrize("case", CASES)
def test_agrees(case: str) -> None:
    problem, outcome = outcome_of(case)
    for index in range(len(outcome.plans)):
        assert_agrees(problem, outcome, index, run_of(case, problem, index))


@pytest.mark.parametrize("plan", [0, 2, 3])
@pytest.mark.parametrize("away", [-0.02, -1e-3, -1e-10, 0.0, 1e-10, 1e-6, 1e-3, 0.02])
def test_agrees_around_load_one(plan: int, away: float) -> None:
    """Where drop and wait change places; the fixed time of a step sets the load."""
    case = "mixture of experts, off, no pauses"
    problem, outcome = outcome_of(case)
    run = run_of(case, problem, plan)
    numbers = main_path(run).numbers
    batch = run.groups * run.group_size
    longer = batch * (1.0 + away) / numbers["offered_samples_per_s"]
    longer -= batch / numbers["trainer_samples_per_s"]
    run = replace(run, trainer_fixed_s=run.trainer_fixed_s + longer)
    trainers = replace(problem.system.trainers, fixed_s=run.trainer_fixed_s)
    moved = replace(problem, system=replace(problem.system, trainers=trainers))
    one = evaluate(moved, outcome.plans.take(slice(plan, plan + 1)))
    assert float(one.match.load[0]) == pytest.approx(1.0 + away, abs=1e-12)
    assert_agrees(moved, one, 0, run)


def test_cases_cover_the_regimes() -> None:
    outcomes = [outcome_of(case)[1] for case in CASES]
    loads = np.concatenate([o.match.load for o in outcomes])
    assert np.sum(loads < 0.6) >= 5
    assert np.sum(np.abs(loads - 1.0) < 0.2) >= 5
    assert np.sum(loads > 1.5) >= 5
    assert {int(q) for o in outcomes for q in o.plans.queue_batches} >= {1, 2, 3}
    bound = np.concatenate([o.generator.kv_bound for o in outcomes])
    assert 5 <= np.sum(bound) <= bound.size - 5
    assert all(np.all(np.abs(o.trainer.imbalance - 1.0) < 1e-14) for o in outcomes)


def profile_rate(data: Data) -> Data:
    """The profile row of a scenario: column name -> value."""
    index = json.loads((PROFILES / "index.json").read_text())
    engine, layout = data["engine"], data["engine"]["layouts"][0]
    rows = [
        dict(zip(index["rate_columns"], row, strict=True)) for row in index["rates"][data["model"]]
    ]
    (row,) = (
        row
        for row in rows
        if (row["gpu"], row["backend"]) == ("h200-sxm", engine["backend"])
        and (row["weights_dtype"], row["kv_dtype"]) == ("bf16", "bf16")
        and (row["tp"], row["ep"], row["dp"]) == (layout["tp"], layout["ep"], 1)
    )
    return row


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("own rates")])
def test_inputs(case: str) -> None:
    """Resolved inputs from the profile files, by the formulas of the texts."""
    data, gpus, _ = CASES[case]
    problem, _ = outcome_of(case)
    run = run_of(case, problem, 0)
    index = json.loads((PROFILES / "index.json").read_text())
    model = {k: v[0] for k, v in index["models"][data["model"]]["values"].items()}
    gpu = {k: v[0] for k, v in index["gpus"]["h200-sxm"]["values"].items()}
    row = profile_rate(data)
    params, tp = model["params_total"], row["tp"]
    expected = {
        "alpha": row["alpha_s"],
        "expert": row["expert_s"],
        "beta": row["beta_s"],
        "gamma": row["gamma_s_per_token"],
        "miss": 1 - row["experts_per_token"] / row["experts"] if row["experts"] else 0.0,
        "p0": row["prefill"][0],
        "p1": row["prefill"][1],
        "p2": row["prefill"][2],
        "params_active": model["params_active"],
        "matmul_params": model["params_matmul_active"],
        "layers": model["layers"],
        "pair_flops": 2 * model["attention_heads"] * 2 * model["head_dim"],
        "peak": gpu["bf16_flops_per_s"],
    }
    # KV: two values a head and token in BF16, copied past the KV heads; HBM share less weights
    copies = tp / min(tp, model["kv_heads"])
    per_token = 2 * model["layers"] * model["kv_heads"] * model["head_dim"] * 2
    experts = model.get("expert_params_total", 0.0)
    weights = 2 * ((params - experts) / tp + experts / (row["moe_tp"] * row["ep"]))
    fraction = data["engine"]["memory_fraction"]
    expected["kv_bytes_per_token"] = per_token * copies
    expected["kv_budget"] = row["gpus_per_engine"] * (fraction * gpu["hbm_bytes"] - weights)
    # Trainer: memory (a reference model is held in BF16 beside the trained one), and the
    # utilisation behind the busy MFU measured on the same batch with one epoch
    said, algorithm = data["trainer"], data["algorithm"]
    states = said.get("gradient_bytes_per_param", 4) + said.get("optimizer_bytes_per_param", 12)
    reference_bytes = 2 if algorithm.get("reference_model") else 0
    expected["state_bytes"] = params * (2 + states + reference_bytes)
    expected["trainer_fixed_s"] = said.get("fixed_s", 5)
    expected["step_cv"] = said.get("step_cv", 0.1)
    sync = algorithm.get("weight_sync", {})
    if "gb_per_s" in sync:
        expected["sync_s"] = params * 2 / (sync["gb_per_s"] * 1e9) + sync.get("fixed_s", 0)
    # The default batch of a scenario
    reference = replace(run, groups=32, group_size=16, cap_per_engine=100, epochs=1)
    executed = main_path(reference).numbers["learning_flops"]
    tokens = 32 * 16 * (run.prompt + run.mean)
    busy_s = 6 * model["params_active"] * tokens / (gpus * run.peak * said["mfu"])
    fixed_s = run.trainer_fixed_s * run.optimizer_steps
    expected["hfu"] = executed / ((busy_s - fixed_s) * gpus * run.peak)
    for name, value in expected.items():
        assert getattr(run, name) == pytest.approx(value, rel=RELATIVE), name
