"""Lessons of the examples on rewards: process reward model, judge, code that is slow to run."""

from __future__ import annotations

from functools import cache
from typing import Any

from allocator.plan import Plan
from tools.lesson_runs import (
    best,
    changed,
    decided,
    example,
    outcome,
    predicted,
    table,
)

PROCESS = "process-reward.yaml"
JUDGE = "llm-judge.yaml"
SLOW = "slow-code-reward.yaml"

#: Wilhelm & Kao 2026: update fraction at the peak of the native reward, rules and PRM-style.
PUBLISHED_PEAK = {"sparse": "0.72", "proxy_prm": "0.44 to 0.45", "prm": "0.44 to 0.45"}
#: fastrl issue 6: shares of a step.
PUBLISHED_ROLLOUT_SHARE = 0.30
PUBLISHED_REWARD_SHARE = 0.40
#: Tinker, January 2026, Qwen3-32B, dollars per million tokens read and written.
HOSTED = {"input": 0.49, "output": 1.47}
WORKERS = (1, 2, 4, 8, 16)


@cache
def process_rewards() -> dict[str, Plan]:
    """Return the best plans with a rule, the policy's own engines, and a model apart."""
    kinds: dict[str, Any] = {"sparse": {"type": "sparse"}, "proxy_prm": {"type": "proxy_prm"}}
    plans = {kind: best(changed(PROCESS, {"reward": said})) for kind, said in kinds.items()}
    return {**plans, "prm": best(example(PROCESS))}


def process_lines() -> list[str]:
    """Return what each kind of process reward takes."""
    rows = []
    for kind, plan in process_rewards().items():
        found = outcome(plan)
        rows.append(
            (
                f"`{kind}`",
                _gpus(plan),
                f"{found.flops.reward / found.flops.total:.0%}",
                f"{found.update_fraction:.2f}",
                PUBLISHED_PEAK[kind],
                f"{found.usd_per_useful_mtok:.3f}",
            )
        )
    header = ("reward", "trainer + generator + reward GPUs", "reward's FLOPs", "update fraction")
    return table((*header, "published best", "$/useful Mtok"), rows)


def _gpus(plan: Plan) -> str:
    said = decided(plan)
    scoring = 0 if said.reward is None else said.reward.gpus
    return f"{said.trainer.gpus} + {said.generator.gpus} + {scoring}"


@cache
def judges() -> dict[str, Plan]:
    """Return the best plans with the judge on own GPUs, hosted, and hosted under a rate limit."""
    hosted = {"type": "llm_judge", "usd_per_mtok": HOSTED, "tokens": {"output": 300}}
    return {
        "own GPUs": best(example(JUDGE)),
        "hosted": best(changed(JUDGE, {"reward": hosted})),
        "hosted, 10 calls/s": best(changed(JUDGE, {"reward": {**hosted, "max_per_s": 10}})),
    }


def judge_lines() -> list[str]:
    """Return what the judge costs in each place."""
    rows = []
    for name, plan in judges().items():
        found = outcome(plan)
        rows.append(
            (
                name,
                _gpus(plan),
                f"{found.trained_samples_per_s:.1f}",
                f"{found.environment.reward_usd_per_hour:,.0f} of {found.usd_per_hour:,.0f}",
                f"{found.usd_per_useful_mtok:.2f}",
            )
        )
    header = ("judge", "trainer + generator + reward GPUs", "samples/s", "$/h for hosted calls")
    return [
        *table((*header, "$/useful Mtok"), rows),
        "",
        f"At the hosted price a call costs ${call_usd():.5f}; own GPUs score at "
        f"${own_call_usd():.5f}.",
    ]


def call_usd() -> float:
    """Return what one hosted call costs: prompt and response in, 300 tokens out."""
    tokens_in = outcome(judges()["own GPUs"]).trained_sequence_tokens
    return (HOSTED["input"] * tokens_in + HOSTED["output"] * 300.0) / 1e6


def own_call_usd() -> float:
    """Return what one call costs on own GPUs: their hourly price over what the plan trains on."""
    plan = judges()["own GPUs"]
    found, said = outcome(plan), decided(plan)
    assert said.reward is not None
    share = said.reward.gpus / example(JUDGE).hardware.pools[0].gpus
    return share * found.usd_per_hour / 3600.0 / found.trained_samples_per_s


@cache
def slow_rewards() -> dict[int, Plan]:
    """Return the step by the number of workers that run code."""
    return {k: predicted(changed(SLOW, {"reward.workers": k})) for k in WORKERS}


def slow_lines() -> list[str]:
    """Return what k workers save."""
    plans = slow_rewards()
    whole = outcome(plans[1]).step_s
    rows = []
    for workers, plan in plans.items():
        found = outcome(plan)
        scoring = found.environment.reward_wait_s
        rows.append(
            (
                f"{workers}",
                f"{found.step_s:.0f}",
                f"{found.step_s / whole - 1.0:+.0%}",
                f"{scoring / found.step_s:.0%}",
                f"{(found.generation_s - scoring) / found.step_s:.0%}",
                f"{found.train_s / found.step_s:.0%}",
                found.bottleneck,
            )
        )
    published = (
        "published, 1",
        "",
        "",
        f"{PUBLISHED_REWARD_SHARE:.0%}",
        f"{PUBLISHED_ROLLOUT_SHARE:.0%}",
        "",
        "",
    )
    return table(
        ("workers", "step s", "saved", "reward", "rollout", "training", "bottleneck"),
        [published, *rows],
    )
