"""The two sides of a comparison, and the numbers behind each term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allocator.comparison.identity import Factors, Use
from allocator.comparison.paid import prefill_gpus
from allocator.comparison.result import Measure, Origin, Side
from allocator.recorded import PlanData


@dataclass(frozen=True, slots=True)
class Case:
    """A plan to compare: its data, where it comes from, and its dollars taken apart."""

    plan: PlanData
    origin: Origin
    factors: Factors


def side_of(case: Case) -> Side:
    """Return what a reader needs to know of one plan."""
    plan, factors = case.plan, case.factors
    return Side(
        name=plan.name,
        origin=case.origin,
        scenario=plan.text("scenario.name") or plan.text("scenario.model"),
        status=plan.text("status"),
        mode=plan.text("plan.mode"),
        usd_per_useful_mtok=plan.number("prediction.usd_per_useful_mtok"),
        usd_per_hour=plan.number("prediction.usd_per_hour"),
        useful_tokens_per_s=plan.number("prediction.useful_tokens_per_s"),
        pace="generator" if factors.lead >= 0.0 else "trainer",
        bottleneck=plan.text("prediction.bottleneck"),
        cause=plan.text("prediction.cause"),
        generator_tokens_per_s=factors.generator_tokens_per_s,
        trainer_tokens_per_s=factors.trainer_tokens_per_s,
        generator_wait_fraction=plan.number("prediction.generator_wait_fraction"),
        trainer_wait_fraction=plan.number("prediction.trainer_wait_fraction"),
        broken_limits=tuple(
            str(limit["name"]) for limit in plan.look_up("limits") or () if _broken(limit)
        ),
    )


def _share_kept(plan: PlanData) -> float:
    """Return the share of tokens that meet oversampling and are not cancelled by it."""
    alive = 1.0 - plan.number("prediction.token_fate.failed")
    return 1.0 - plan.number("prediction.token_fate.oversampled") / alive


def _broken(limit: Mapping[str, Any]) -> bool:
    slack = limit.get("slack")
    return isinstance(slack, (int, float)) and slack < 0


def measures(a: Case, b: Case) -> dict[str, tuple[Measure, ...]]:
    """Return the numbers behind each term on both sides, by term."""
    first, second = _numbers(a), _numbers(b)
    return {
        term: tuple(Measure(name, value, second[term][name]) for name, value in numbers.items())
        for term, numbers in first.items()
    }


def _numbers(case: Case) -> dict[str, dict[str, float | None]]:
    """Return the numbers behind each term of one side, by term and name."""
    plan, factors = case.plan, case.factors
    uses, generator, trainer = factors.uses, factors.generator, factors.trainer
    gpus = sum(use.gpus for use in uses.values())
    gpu_usd = sum(use.usd_per_hour for use in uses.values())
    none = Use(0.0, 0.0)

    def fate(name: str) -> float:
        return plan.number(f"prediction.token_fate.{name}")

    def stopped(by: str) -> float:
        return plan.number(f"prediction.availability.{by}")

    def price(use: str) -> float | None:
        return uses[use].usd_per_gpu_hour if use in uses else None

    return {
        "price": {
            "usd_per_gpu_hour": gpu_usd / gpus,
            "trainer_usd_per_gpu_hour": price("trainer"),
            "generator_usd_per_gpu_hour": price("generator"),
            "reward_usd_per_gpu_hour": price("reward"),
        },
        "split": {
            "trainer_gpus": factors.trainer_gpus,
            "generator_gpus": factors.generator_gpus,
            "prefill_gpus": prefill_gpus(plan),
            "reward_gpus": uses.get("reward", none).gpus,
            "unused_gpus": uses.get("unused", none).gpus,
            "paid_gpus": gpus,
        },
        "inference_speed": {
            "response_tokens_per_gpu_s": generator["inference_speed"],
            "in_flight_per_generator_gpu": plan.number("plan.generator.in_flight")
            / factors.generator_gpus,
            "decode_step_s": plan.number("prediction.decode_step_s"),
        },
        "training_speed": {
            "trained_tokens_per_gpu_s": trainer["training_speed"],
            "mfu_busy": plan.number("prediction.mfu_busy"),
            "epochs": plan.number("plan.epochs"),
        },
        "weight_sync": {
            "generator_paused_fraction": 1.0 - generator["weight_sync"],
            "trainer_blocked_fraction": 1.0 - trainer["weight_sync"],
        },
        "idle": {
            "held_fraction": max(0.0, 1.0 - factors.common["idle"]),
            "trainer_wait_fraction": plan.number("prediction.trainer_wait_fraction"),
            "generator_wait_fraction": plan.number("prediction.generator_wait_fraction"),
        },
        "tail": {"oversampled_fraction": fate("oversampled"),
                 "oversampling": plan.number("plan.oversampling"),
                 "batch_end_fraction":
                     max(0.0, 1.0 - generator["tail"] / _share_kept(plan))},
        "signal": {"no_signal_fraction": fate("no_signal"),
                   "signal_fraction": plan.number("prediction.signal_fraction")},
        "staleness": {"rejected_stale_fraction": fate("rejected_stale"),
                      "mixed_environment_fraction": fate("mixed_environment"),
                      "staleness_mean_versions": plan.number("prediction.staleness.mean")},
        "discards": {"dropped_overflow_fraction": fate("dropped_overflow"),
                     "failed_fraction": fate("failed")},
        "tokens_counted": {
            "counted_per_response_token": generator["tokens_counted"],
            "counted_per_trained_token": trainer["tokens_counted"],
        },
        "availability": {
            "available_fraction": factors.common["availability"],
            "evaluation_fraction": stopped("evaluation"),
            "checkpoint_fraction": stopped("checkpoint"),
            "failure_fraction": stopped("restart") + stopped("redone"),
        },
        "sandboxes": {
            "usd_per_hour": factors.besides_usd_per_hour["sandboxes"],
            "sandboxes": plan.number("prediction.environment.sandboxes"),
        },
        "reward_api": {"usd_per_hour": factors.besides_usd_per_hour["reward_api"]},
    }  # fmt: skip
