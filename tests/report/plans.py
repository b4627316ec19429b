"""Plans built by hand: Qwen3-235B on 64 + 192 H200, and the same gone wrong in several ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allocator.plan import (
    Alternative,
    Availability,
    Decisions,
    EngineGroup,
    Environment,
    Flops,
    GeneratorPlan,
    Infeasibility,
    Layout,
    Limit,
    Memory,
    Objective,
    Plan,
    PlanWarning,
    Prediction,
    Provenance,
    Relaxation,
    Run,
    SolverReport,
    Spending,
    Staleness,
    TokenFate,
    TrainerPlan,
)

USD_PER_GPU_HOUR = 1.59
SEQUENCE_TOKENS = 18_294.0


def scenario(name: str = "Qwen3-235B-Thinking on 256 H200, as published") -> dict[str, Any]:
    return {
        "scenario_version": 1,
        "name": name,
        "model": "qwen3-235b-a22b",
        "staleness": {"limit": 4, "metric": "mean", "enforce": "design"},
        "reward": {"type": "sparse"},
        "hardware": {
            "billing": "reserved",
            "pools": [
                {
                    "name": "h200",
                    "gpu": "h200-sxm",
                    "gpus": 256,
                    "price": {
                        "kind": "owner_neocloud",
                        "vintage": "2026-07",
                        "usd_per_gpu_hour": {"value": USD_PER_GPU_HOUR, "kind": "measured"},
                    },
                }
            ],
        },
        "objective": "usd_per_useful_mtok",
    }


def decisions(trainer_gpus: int = 64, engines: int = 24, in_flight: int = 88) -> Decisions:
    return Decisions(
        mode="async",
        trainer=TrainerPlan("h200", "h200-sxm", trainer_gpus, Layout(tp=8), trainer_gpus // 8),
        generator=GeneratorPlan(
            gpus=8 * engines,
            engines=engines,
            in_flight=engines * in_flight,
            groups=(
                EngineGroup(
                    pool="h200",
                    gpu="h200-sxm",
                    role="aggregated",
                    engines=engines,
                    gpus_per_engine=8,
                    layout=Layout(tp=8, ep=8),
                    in_flight_per_engine=in_flight,
                    share=1.0,
                    backend="sglang",
                    backend_version="0.5.5",
                ),
            ),
        ),
        reward=None,
        prompts_per_step=32,
        group_size=16,
        batch=512,
        oversampling=1.6,
        epochs=1,
        trained_share=1.0,
        queue_batches=1,
    )


FATE = TokenFate(
    useful=0.541,
    no_signal=0.183,
    rejected_stale=0.012,
    oversampled=0.246,
    dropped_overflow=0.012,
    failed=0.006,
)
STALENESS = Staleness(
    mean=3.82,
    p50=4,
    p95=7,
    p99=9,
    max=None,
    token_mean=2.1,
    versions_per_rollout=3.4,
    environment_state_fraction=0.0,
    rejected_fraction=0.0,
    cdf=(0.0, 0.055, 0.205, 0.46, 0.70, 0.865, 0.945, 0.978, 0.989, 0.996, 0.999, 1.0),
)


ENVIRONMENT = Environment(
    tool_s=0.0,
    sandboxes=0.0,
    sandbox_start_s=0.0,
    sandbox_usd_per_hour=0.0,
    failed_rollouts_fraction=0.0,
    reward_s=0.0,
    reward_wait_s=0.0,
    rewards_per_s=None,
    reward_usd_per_hour=0.0,
    prefills_per_s=None,
    prefill_s=0.1,
    kv_transfer_s=0.0,
)


def prediction(trained: float = 1.93) -> Prediction:
    accepted, could_take = 1.95, 2.75
    usd_per_hour = 256 * USD_PER_GPU_HOUR
    trained_tokens_per_s = trained * SEQUENCE_TOKENS
    useful_tokens_per_s = trained_tokens_per_s * 0.75
    step_s = 512 / trained
    return Prediction(
        step_s=step_s,
        train_s=512 / could_take,
        generation_s=560.0,
        weight_sync_s=11.0,
        decode_step_s=0.0441,
        generated_samples_per_s=3.61,
        generated_tokens_per_s=3.61 * 11_000.0,
        accepted_samples_per_s=accepted,
        trained_samples_per_s=trained,
        trainer_samples_per_s=could_take,
        trainer_wait_fraction=1 - trained / could_take,
        generator_wait_fraction=0.0,
        update_pause_fraction=0.02,
        load=accepted / could_take,
        bottleneck="decode",
        cause="kv_memory",
        mfu_busy=0.1049,
        mfu_wall=0.1049 * trained / could_take,
        hfu=0.156,
        imbalance=1.21,
        update_fraction=0.412,
        update_fraction_without_log_probs=0.344,
        staleness=STALENESS,
        decoding=1980.0,
        in_flight_context_tokens=16_010.0,
        discarded_rollouts_fraction=0.375,
        discarded_tokens_fraction=0.246,
        length_bias=0.97,
        truncated_fraction=0.04,
        signal_fraction=0.75,
        token_fate=FATE,
        trained_sequence_tokens=SEQUENCE_TOKENS,
        trained_tokens_per_s=trained_tokens_per_s,
        useful_tokens_per_s=useful_tokens_per_s,
        usd_per_hour=usd_per_hour,
        usd_per_mtok=usd_per_hour / 3600 / trained_tokens_per_s * 1e6,
        usd_per_useful_mtok=usd_per_hour / 3600 / useful_tokens_per_s * 1e6,
        flops=Flops(search=4.1e18, learning=2.9e18, reward=0.0, total=7.0e18),
        memory=Memory(98.2, 126.9, 123.8, 124.1, 61.6, 62.1),
        environment=ENVIRONMENT,
        availability=Availability(1.0, 0.0, 0.0, 0.0, 0.0),
        spending=Spending(64 * USD_PER_GPU_HOUR, 192 * USD_PER_GPU_HOUR, 0.0, 0.0, 0.0, 0.0),
        run=Run(1000.0, 1000 * step_s / 3600, 256 * 1000 * step_s / 3600,
                usd_per_hour * 1000 * step_s / 3600, "target.steps"),
    )  # fmt: skip


LIMITS = (
    Limit("gpu_pool_h200", 256, 256, "GPUs", 0, True, "hardware.pools[0].gpus", None, -0.017),
    Limit("kv_memory", 61.6, 62.1, "GiB", 0.5, True, "engine.memory_fraction"),
    Limit("staleness_mean", 3.82, 4.0, "versions", 0.18, False, "staleness.limit"),
    Limit("trainer_memory", 98.2, 126.9, "GiB", 28.7, False, "trainer.memory_fraction"),
    Limit("budget_usd", 58_600.0, 250_000.0, "USD", 191_400.0, False, "budget.usd"),
)
INTERVALS = {
    "usd_per_useful_mtok": (3.71, 5.02),
    "usd_per_mtok": (2.80, 3.79),
    "trained_samples_per_s": (1.64, 2.21),
    "trainer_samples_per_s": (2.41, 3.12),
    "accepted_samples_per_s": (1.66, 2.24),
    "staleness.mean": (3.1, 4.6),
    "run.usd": (51_200.0, 69_000.0),
    "run.hours": (126.0, 170.0),
    "mfu_wall": (0.062, 0.084),
    "update_fraction": (0.36, 0.46),
}
PROVENANCE = (
    Provenance("gpus/h200-sxm.bf16_flops_per_s", 989e12, "FLOP/s", "vendor", "NVIDIA data sheet"),
    Provenance("gpus/h200-sxm.hbm_bytes", 141e9, "byte", "vendor", "NVIDIA data sheet"),
    Provenance("rates.alpha_s", 0.00697, "s", "fitted", "sglang 0.5.5, TP8 EP8, 3.2% rmse"),
    Provenance("trainer.mfu", 0.105, "", "measured", "published run, 64 H200"),
    Provenance("hardware.price", 1.59, "USD/h", "measured", "ownership survey, July 2026"),
    Provenance("trainer.step_cv", 0.1, "", "assumed", "default"),
    Provenance("workload.response_tokens.cv", 0.8, "", "stated", "scenario"),
)  # fmt: skip
WARNINGS = (
    PlanWarning("decided_by_range", "oversampling ended at the upper end of its range (1.6); a "
                "wider range may give a better plan", "algorithm.oversampling"),
    PlanWarning("assumed_matters", "the coefficient of variation of response lengths is assumed "
                "and moves the cost by 14% over its range", "workload.response_tokens.cv"),
)  # fmt: skip


def good_plan(**changes: Any) -> Plan:
    base = Plan(
        status="optimal",
        objective=Objective("usd_per_useful_mtok", prediction().usd_per_useful_mtok, 4.25, 0.0),
        decisions=decisions(),
        prediction=prediction(),
        intervals=dict(INTERVALS),
        limits=LIMITS,
        near_optimal=(alternative("trainer 56, generator 200"),),
        alternatives=(alternative("no oversampling"),),
        warnings=WARNINGS,
        provenance=PROVENANCE,
        solver=SolverReport("columns", "0.1.0", 0.41, "proven optimal", 61_440, 8_113),
        scenario=scenario(),
        versions={"allocator": "0.1.0"},
    )
    return replace(base, **changes)


def alternative(differs: str) -> Alternative:
    return Alternative(differs, decisions(56, 25), 4.31, 1.9, 0.27, 4.0, 4.31)


def broken_plan() -> Plan:
    """Return an evaluated plan that breaks its staleness limit and, by a hair, KV memory."""
    stale = replace(STALENESS, mean=9.21, p50=9, p95=14, p99=17)
    limits = (
        replace(LIMITS[2], value=9.21, slack=-5.21),
        replace(LIMITS[1], value=62.1004, slack=-0.0004, binding=False),
        LIMITS[0],
    )
    return good_plan(
        status="infeasible",
        objective=Objective("usd_per_useful_mtok", prediction(1.5).usd_per_useful_mtok, None, None),
        prediction=replace(prediction(1.5), staleness=stale),
        limits=limits,
        solver=None,
        near_optimal=(),
        alternatives=(),
    )


def infeasible_plan() -> Plan:
    return good_plan(
        status="infeasible",
        objective=Objective("usd_per_useful_mtok", float("nan"), None, None),
        decisions=None,
        prediction=None,
        intervals={},
        limits=(),
        near_optimal=(),
        alternatives=(),
        infeasibility=Infeasibility(
            conflict=("budget_hours", "gpu_pool_h200"),
            unmeetable=("kv_memory",),
            relaxations=(
                Relaxation("budget_hours", 72.0, 141.03, 95.9, "h", "budget.hours"),
                Relaxation("gpu_pool_h200", 256, 504, 96.9, "GPUs", "hardware.pools[0].gpus"),
            ),
            nearest=decisions(),
            nearest_limits=(
                Limit("budget_hours", 141.03, 72.0, "h", -69.03, False, "budget.hours"),
                LIMITS[0],
            ),
            points=61_440,
        ),
    )


def warning_rich_plan() -> Plan:
    """Return a plan with every warning a long and careful audit could find."""
    codes = ("decided_by_range", "dead_knob", "no_scale", "estimate_only", "assumed_matters",
             "signal_unknown", "extrapolated", "wide_interval", "price_vintage")  # fmt: skip
    text = ("this number was not measured at the plan's own context length and batch; the "
            "prediction may be off by more than its interval says; measure it first")  # fmt: skip
    return good_plan(
        warnings=tuple(
            PlanWarning(code, text, f"engine.rates[{i}]") for i, code in enumerate(codes)
        ),
        limits=tuple(replace(limit, binding=True) for limit in LIMITS * 2),
    )


def two_pool_plan() -> Plan:
    """Return a plan that trains on GB300 and generates on H200, with GPUs idle in both pools."""
    known = scenario("two pools")
    known["hardware"]["pools"] = [
        {"name": "old", "gpu": "h200-sxm", "gpus": 256, "price": {"usd_per_gpu_hour": 1.59}},
        {"name": "new", "gpu": "gb300-nvl72", "gpus": 72, "price": {"usd_per_gpu_hour": 3.2}},
    ]
    base = decisions()
    trainer = replace(base.trainer, pool="new", gpu="gb300-nvl72")
    groups = tuple(replace(group, pool="old") for group in base.generator.groups)
    return good_plan(
        scenario=known,
        decisions=replace(base, trainer=trainer, generator=replace(base.generator, groups=groups)),
    )
