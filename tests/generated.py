"""Random small scenarios: legal by construction, cheap enough to solve by trying every plan.

`scenario_data(seed)` returns plain data with the keys of a scenario file, `scenario(seed)` the
scenario that the schema makes of it. The same seed gives the same scenario for ever, so a failing
seed can be named and kept. `random_plans` draws plans of a domain, `numbers` lays out what the
evaluator says of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocator.evaluator import Outcome
from allocator.problem.decisions import DecisionArrays, Domain
from allocator.scenario.load import from_dict
from allocator.scenario.schema import Scenario


@dataclass(frozen=True)
class Served:
    """A model with engines small enough for the pools here.

    `layouts` are those with a decode profile (in `formats` and on `gpus`), or those to estimate.
    """

    model: str
    layouts: tuple[dict[str, int], ...]
    gpus: tuple[str, ...]
    formats: tuple[tuple[str, str], ...] = (("bf16", "bf16"),)
    backends: tuple[str, ...] = ("sglang", "vllm")
    estimate: bool = False

    @property
    def engine_gpus(self) -> int:
        """GPUs of the smallest engine."""
        return min(layout["tp"] for layout in self.layouts)


HOPPER = ("h200-sxm", "h100-sxm")
BLACKWELL = ("b200-sxm", "gb300-nvl72")
NODE_GPUS = {"gb300-nvl72": 4, "gb200-nvl72": 4}

SERVED = (
    Served("qwen3-8b", ({"tp": 1},), (*HOPPER, *BLACKWELL)),
    Served("qwen3-30b-a3b", ({"tp": 1},), (*HOPPER, *BLACKWELL)),
    Served("qwen3-32b", ({"tp": 2}, {"tp": 4}), (*HOPPER, *BLACKWELL)),
    Served("qwen3-32b", ({"tp": 2},), HOPPER, formats=(("fp8", "fp8"),)),
    Served("llama-3.1-70b", ({"tp": 8},), (*HOPPER, "b200-sxm")),
    Served("qwen3-235b-a22b", ({"tp": 8}, {"tp": 8, "ep": 8}), ("h200-sxm", "b200-sxm")),
    Served("qwen3-235b-a22b", ({"tp": 4, "ep": 4},), HOPPER, formats=(("fp8", "fp8"),)),
    Served("gpt-oss-120b", ({"tp": 1},), (*HOPPER, *BLACKWELL), formats=(("mxfp4", "bf16"),)),
    Served("gpt-oss-120b", ({"tp": 4},), ("h200-sxm", "b200-sxm"), estimate=True),
    Served("qwen2.5-14b", ({"tp": 2},), ("h200-sxm", "h20-sxm"), estimate=True),
)
OBJECTIVES = ("usd_per_useful_mtok", "useful_tokens_per_s", "run.hours", "run.usd")


def scenario(seed: int) -> Scenario:
    """Return the scenario of a seed, as the schema reads it."""
    return from_dict(scenario_data(seed), file=f"<generated {seed}>")


def scenario_data(seed: int) -> dict[str, Any]:
    """Return the scenario of a seed as plain data with the keys of a file."""
    dice = random.Random(seed)
    served = dice.choice(SERVED)
    objective = dice.choice(OBJECTIVES)
    algorithm = _algorithm(dice)
    hardware = _hardware(dice, served)
    large = served.model in ("qwen3-235b-a22b", "gpt-oss-120b")
    if large or (served.engine_gpus > 1 and dice.random() < 0.3):
        algorithm["training"] = {"lora_rank": dice.choice((8, 32))}
    return {
        "name": f"generated {seed}",
        "model": served.model,
        "engine": _engine(dice, served, hardware),
        "trainer": _trainer(dice),
        "workload": _workload(dice),
        "algorithm": algorithm,
        "queue": {"capacity_batches": dice.choice((1, 2, {"min": 1, "max": 2}))},
        "staleness": _staleness(dice),
        "reward": {"cpu_s": dice.choice((0, 0, 2.5))},
        "hardware": hardware,
        "budget": _budget(dice, objective, hardware),
        "objective": objective,
        "token_basis": dice.choice(("sequence", "response")),
    }


def random_plans(domain: Domain, count: int, seed: int) -> DecisionArrays:
    """Return plans of a domain, feasible or not, every decision drawn by itself."""
    random = np.random.default_rng(seed)
    kind = random.integers(0, len(domain.engines), count)
    trainer = random.integers(0, len(domain.trainer_gpus), count)

    def each(values: tuple[NDArray[np.int64], ...], of: NDArray[np.int64]) -> NDArray[np.int64]:
        drawn = np.stack([random.choice(choices, count) for choices in values])
        picked: NDArray[np.int64] = drawn[of, np.arange(count)]
        return picked

    return DecisionArrays.broadcast(
        generator_kind=kind,
        engines=each(domain.engines, kind),
        in_flight_per_engine=each(domain.in_flight_per_engine, kind),
        trainer_kind=trainer,
        trainer_gpus=each(domain.trainer_gpus, trainer),
        oversampling=random.choice(domain.oversampling, count),
        queue_batches=random.choice(domain.queue_batches, count),
        prompts_per_step=random.choice(domain.prompts_per_step, count),
        group_size=random.choice(domain.group_size, count),
        epochs=random.choice(domain.epochs, count),
    )


def numbers(outcome: Outcome) -> dict[str, NDArray[Any]]:
    """Return every array of an outcome with one entry a plan, by stage and name."""
    count = len(outcome.plans)
    found: dict[str, Any] = {"feasible": outcome.feasible, "score": outcome.score}
    for stage in ("generator", "trainer", "match", "accounts"):
        state = getattr(outcome, stage)
        for field in fields(state):
            found[f"{stage}.{field.name}"] = getattr(state, field.name)
    cut = outcome.rollouts.cut
    for field in fields(cut):
        found[f"rollouts.{field.name}"] = outcome.rollouts.at(getattr(cut, field.name))
    found["rollouts.signal"] = outcome.rollouts.at(outcome.rollouts.signal)
    for name, (value, limit) in outcome.limits.items():
        found |= {f"limits.{name}": value, f"limits.{name}.most": limit}
    return {
        name: np.broadcast_to(values, (count,)).astype(float)
        for name, values in found.items()
        if not is_dataclass(values)
    }


def _engine(dice: random.Random, served: Served, hardware: dict[str, Any]) -> dict[str, Any]:
    weights, cache = dice.choice(served.formats)
    engine: dict[str, Any] = {
        "weights_dtype": weights,
        "kv_dtype": cache,
        "layouts": list(served.layouts),
    }
    if served.estimate:
        engine["estimate"] = "allow"
        return engine
    engine["backend"] = dice.choice(served.backends)
    # The user's own rates are those of one kind of GPU.
    decoding = {
        pool["gpu"] for pool in hardware["pools"] if "decode" in pool.get("roles", ["decode"])
    }
    if len(served.layouts) == 1 and len(decoding) == 1 and dice.random() < 0.3:
        engine["rates"] = {
            "decode": {
                "alpha_s": round(dice.uniform(4e-3, 12e-3), 5),
                "beta_s": round(dice.uniform(1e-5, 8e-5), 7),
                "gamma_s_per_token": round(dice.uniform(2e-9, 3e-8), 11),
            },
            "prefill": {"p0_s": 5e-3, "p1_s_per_token": round(dice.uniform(5e-6, 8e-5), 8)},
            "gpus_per_engine": served.engine_gpus,
        }
    return engine


def _trainer(dice: random.Random) -> dict[str, Any]:
    trainer: dict[str, Any] = {
        "recomputation": dice.choice(("full", "full", "none")),
        "fixed_s": dice.choice((0, 2, 5)),
        "microbatch_s": dice.choice((0, 0.05)),
        "step_cv": dice.choice((0.05, 0.1, 0.3)),
        "gradient_bytes_per_param": dice.choice((2, 4)),
        "optimizer_bytes_per_param": dice.choice((4, 12)),
    }
    match dice.choice(("hfu", "mfu", "profile")):
        case "hfu":
            trainer["hfu"] = round(dice.uniform(0.2, 0.5), 3)
        case "mfu":
            trainer["mfu"] = round(dice.uniform(0.08, 0.35), 3)
        case _:
            pass
    if dice.random() < 0.2:
        trainer["parallelism"] = {"tp": 2}
    return trainer


def _workload(dice: random.Random) -> dict[str, Any]:
    mean = dice.choice((800, 2000, 4000, 8000))
    workload: dict[str, Any] = {
        "initial_prompt_tokens": dice.choice((0, 300, 1000, 4000)),
        "response_tokens": dice.choice(
            (
                {"mean": mean, "cv": round(dice.uniform(0.3, 0.9), 2), "max": 5 * mean},
                {"p50": mean, "p99": 4 * mean, "max": 5 * mean},
                {"quantiles": {0.1: mean // 3, 0.5: mean, 0.9: 2 * mean}, "max": 3 * mean},
            )
        ),
        "prefix_cache": dice.choice(("none", "shared_prompt", "full", 0.5)),
        "tool_s": dice.choice((0, 0, 15)),
    }
    if dice.random() < 0.6:
        workload["solve_rate"] = {
            "always": round(dice.uniform(0, 0.3), 2),
            "never": round(dice.uniform(0, 0.3), 2),
            "rest": {"alpha": dice.choice((0.5, 1, 2)), "beta": dice.choice((1, 2))},
        }
    return workload


def _algorithm(dice: random.Random) -> dict[str, Any]:
    algorithm: dict[str, Any] = {
        "group_size": dice.choice((4, 8, 16)),
        "prompts_per_step": dice.choice((4, 8, 16, 32)),
        "optimizer_steps_per_batch": dice.choice((1, 1, 2)),
        "weight_sync_every_steps": dice.choice((1, 1, 2)),
        "weight_sync": {
            "trainer_blocks": dice.random() < 0.5,
            "generator_pauses": dice.random() < 0.5,
        },
        "old_log_probs": dice.choice(("recompute", "from_engine")),
        "reference_model": dice.random() < 0.3,
        "dynamic_sampling": dice.choice(("off", "drop", "refill")),
        "group_dispatch": dice.choice(("group", "group", "sample")),
        "dispatch_scope": dice.choice(("engine", "engine", "global")),
        "oversampling": dice.choice((1.0, 1.0, 1.25)),
        "oversampling_by": dice.choice(("group", "sample")),
    }
    # Few free ranges at a time keep the brute force to seconds.
    free = dice.sample(("group_size", "prompts_per_step", "epochs", "oversampling"), k=2)
    ranges = {
        "group_size": {"min": 4, "max": 8, "step": 4},
        "prompts_per_step": {"min": 8, "max": 16, "step": 8},
        "epochs": {"min": 1, "max": 2},
        "oversampling": {"min": 1.0, "max": 2.0, "step": 0.5},
    }
    for name in free[: dice.choice((0, 1, 2))]:
        algorithm[name] = ranges[name]
    return algorithm


def _staleness(dice: random.Random) -> dict[str, Any]:
    match dice.choice(("none", "mean", "p95", "reject", "admission")):
        case "mean":
            return {"limit": round(dice.uniform(0.3, 6), 2), "metric": "mean"}
        case "p95":
            return {"limit": dice.choice((1, 2, 4, 8)), "metric": "p95"}
        case "reject":
            return {"limit": dice.choice((0, 1, 2, 4)), "enforce": "reject"}
        case "admission":
            return {"limit": dice.choice((0, 1, 2, 4)), "enforce": "admission"}
        case _:
            return {}


def _hardware(dice: random.Random, served: Served) -> dict[str, Any]:
    big = served.engine_gpus > 2
    sizes = (16, 24, 32) if big else (8, 16, 24)
    grain = "node" if big else dice.choice(("node", "gpu"))
    gpu = dice.choice(served.gpus)
    other = dice.choice(served.gpus)

    def pool(name: str, gpu: str, gpus: int, roles: list[str] | None) -> dict[str, Any]:
        # Single GPUs of a large pool would be thousands of columns.
        fine = grain == "gpu" and gpus <= 8
        found: dict[str, Any] = {
            "name": name,
            "gpu": gpu,
            "gpus": gpus,
            "granularity": "gpu" if fine else "node",
            "price": {"usd_per_gpu_hour": round(dice.uniform(1.2, 4), 2)},
        }
        if roles is not None:
            found["roles"] = roles
        return found

    match dice.choice(("shared", "shared", "apart", "mixed")):
        case "shared":
            pools = [pool("all", gpu, dice.choice(sizes), None)]
        case "apart":
            trainer = dice.choice(("h200-sxm", "h100-sxm", "h20-sxm", "b200-sxm"))
            pools = [
                pool("trainer", trainer, dice.choice(sizes), ["trainer"]),
                pool("decode", gpu, dice.choice(sizes), ["decode"]),
            ]
        case _:
            pools = [
                pool("first", gpu, dice.choice(sizes[:2]), None),
                pool("second", other, dice.choice(sizes[:2]), ["decode"]),
            ]
    return {"billing": dice.choice(("reserved", "on_demand")), "pools": pools}


def _budget(dice: random.Random, objective: str, hardware: dict[str, Any]) -> dict[str, Any]:
    """Return limits that are sometimes generous, sometimes out of reach."""
    steps = dice.choice((20, 100, 500))
    step_s = 10 ** dice.uniform(1.2, 3.2)
    hours = steps * step_s / 3600
    gpus = sum(pool["gpus"] for pool in hardware["pools"])
    # Steps of 4 to 32 groups of 4 to 16 rollouts; tokens of a few hundred useful rollouts a step.
    target = dice.choice(
        ({"steps": steps}, {"samples": 128 * steps}, {"useful_tokens": 3e5 * steps})
    )
    limits = {
        "hours": round(hours, 3),
        "gpu_hours": round(hours * gpus, 2),
        "usd": round(hours * gpus * 2.5, 2),
        "flops": 10 ** dice.uniform(20, 22.5),
    }
    chosen = dice.sample(sorted(limits), k=dice.choice((1, 1, 2)))
    budget: dict[str, Any] = {name: limits[name] for name in chosen}
    # Without a target the run ends with its budget, whatever is planned: nothing to minimise.
    open_ended = dice.random() < 0.3 and not objective.startswith("run.")
    if not open_ended or hardware["billing"] == "on_demand":
        budget["target"] = target
    return budget
