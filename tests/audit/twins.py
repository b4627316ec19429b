"""Scenarios that a rule fires on, each beside its repaired twin; all are Qwen3-8B on one node."""

from __future__ import annotations

from typing import Any, NamedTuple

from allocator.preflight import Preflight, check
from allocator.scenario.load import from_dict


def sound(*changes: str) -> Preflight:
    """Check a plan that nothing is wrong with, after some changes of it."""
    data: dict[str, Any] = {
        "model": "qwen3-8b",
        "engine": {"backend": "vllm", "layouts": [{"tp": 1}]},
        "trainer": {"hfu": 0.4, "fixed_s": 2},
        "workload": {
            "initial_prompt_tokens": 300,
            "response_tokens": {"mean": 3000, "cv": 0.9, "max": 16000},
        },
        "algorithm": {"group_size": 8, "prompts_per_step": 32},
        "queue": {"capacity_batches": 1},
        "staleness": {"limit": 5},
        "hardware": {
            "pools": [
                {
                    "name": "node",
                    "gpu": "h200-sxm",
                    "gpus": 8,
                    "granularity": "gpu",
                    "price": {"usd_per_gpu_hour": 2.0},
                }
            ]
        },
        "budget": {"usd": 2000},
        "plan": {"trainer_gpus": 4, "generator_gpus": 4, "in_flight": 256},
    }
    return check(from_dict(data, changes, file="twin.yaml"))


class Twins(NamedTuple):
    """Changes that make a rule fire, what it must say, and the further ones that repair it."""

    code: str
    level: str
    case: tuple[str, ...]
    says: tuple[str, ...]
    repair: tuple[str, ...]


#: The generator is the slower side, with a reject limit of one version and batches of 16.
SLOW = (
    "plan.trainer_gpus=7",
    "plan.generator_gpus=1",
    "plan.in_flight=96",
    "algorithm.prompts_per_step=2",
)
REJECT = ("staleness.limit=1", "staleness.enforce=reject", "staleness.metric=max")
FAST_DECODE = "{alpha_s: 0.012, beta_s: 1.0e-5, gamma_s_per_token: 3.0e-8}"
SLOW_DECODE = "{alpha_s: 0.2, beta_s: 1.0e-5, gamma_s_per_token: 3.0e-8}"
FAST_PREFILL = "{p0_s: 0.01, p1_s_per_token: 4.0e-5}"
SLOW_PREFILL = "{p0_s: 2, p1_s_per_token: 4.0e-5}"


def rates(decode: str, prefill: str) -> tuple[str, ...]:
    return (
        "engine.backend=auto",
        f"engine.rates={{decode: {decode}, prefill: {prefill}, gpus_per_engine: 1}}",
    )


def hosted(*changes: str) -> tuple[str, ...]:
    return ("sandbox.provider=custom", *(f"sandbox.{change}" for change in changes))


def local(*changes: str) -> tuple[str, ...]:
    return ("sandbox.provider=local", *(f"sandbox.{change}" for change in changes))


TWINS = (
    # prime-rl #2812: a limit that in flight and queue keep out of reach.
    Twins(
        "staleness_limit_idle",
        "warning",
        ("staleness.limit=30",),
        ("30 versions cannot bind", "256 rollouts in flight", "what binds is the rollouts"),
        ("staleness.limit=3",),
    ),
    Twins(
        "staleness_limit_idle",
        "warning",
        ("plan.in_flight=32", "plan.queue_batches=2", "queue.capacity_batches=2"),
        ("what binds is the queue",),
        ("plan.in_flight=256",),
    ),
    # miles PR #2030: 1,000 groups, 8 a step.
    Twins(
        "deep_queue",
        "error",
        ("queue.capacity_batches=125", "algorithm.prompts_per_step=8"),
        ("125 batches (1,000 groups)", "backlog of 125 versions, beyond the limit of 5"),
        ("queue.capacity_batches=2",),
    ),
    Twins(
        "deep_queue",
        "warning",
        ("queue.capacity_batches=125", "plan.trainer_gpus=6", "plan.generator_gpus=2"),
        ("as soon as the trainer is the slower side",),
        ("queue.capacity_batches=4",),
    ),
    # tinker-cookbook PR #822: the slowest are regenerated for ever.
    Twins(
        "never_accepted",
        "error",
        (*SLOW, *REJECT),
        ("P(accepted) = 0", "the limit is 1 version"),
        ("staleness.metric=mean", "staleness.enforce=admission"),
    ),
    Twins(
        "never_accepted",
        "error",
        (*SLOW, *REJECT),
        ("P(accepted) = 0",),
        ("algorithm.prompts_per_step=32",),
    ),
    # TRL PR #5650: nothing in flight.
    Twins(
        "zero_concurrency",
        "error",
        ("plan.in_flight=16",),
        ("dispatches 8 rollouts at once and only 4 places",),
        ("plan.in_flight=32",),
    ),
    Twins(
        "zero_concurrency",
        "error",
        ("staleness.limit=0",),
        ("0 by design leaves 0 rollouts in flight",),
        ("staleness.enforce=admission",),
    ),
    # DAPO #22: ten batches did not fill one.
    Twins(
        "low_signal",
        "warning",
        ("algorithm.dynamic_sampling=refill", "workload.solve_rate={always: 0.6, never: 0.3}"),
        ("P(useful) = 7.8%", "factor 12.9"),
        ("workload.solve_rate={always: 0.2, never: 0.2}",),
    ),
    Twins(
        "low_signal",
        "warning",
        ("algorithm.dynamic_sampling=drop", "workload.solve_rate={always: 0.6, never: 0.3}"),
        ("of 32 groups 2.49 are left",),
        ("workload.solve_rate={always: 0.2, never: 0.2}",),
    ),
    Twins(
        "idle_ranks",
        "error",
        ("algorithm.prompts_per_step=1", "algorithm.group_size=2"),
        ("2 of 4 trainer ranks never get a sample",),
        ("algorithm.prompts_per_step=2",),
    ),
    Twins(
        "uneven_ranks",
        "note",
        ("plan.trainer_gpus=6", "plan.generator_gpus=2", "algorithm.prompts_per_step=4"),
        ("some get 6, others 5, and 11%",),
        ("algorithm.prompts_per_step=6",),
    ),
    # verl #3114, slime #385, rLLM #292: an anomaly, not an allocation.
    Twins(
        "far_off_roofline",
        "error",
        rates(SLOW_DECODE, FAST_PREFILL),
        ("a decode step of", "on the same h200-sxm"),
        rates(FAST_DECODE, FAST_PREFILL),
    ),
    Twins(
        "far_off_roofline",
        "error",
        rates(FAST_DECODE, SLOW_PREFILL),
        ("the prefill of 300 tokens takes",),
        rates(FAST_DECODE, FAST_PREFILL),
    ),
    # 960 hosted sandboxes: dead starts from account limits.
    Twins(
        "sandbox_quota",
        "error",
        hosted("per_rollout=4", "max_concurrent=960"),
        ("256 rollouts in flight x 4 = 1,024 sandboxes", "960 are allowed"),
        ("plan.in_flight=240",),
    ),
    Twins(
        "sandbox_credit",
        "error",
        hosted("usd_per_hour=0.1", "credit_usd=1000"),
        ("sandboxes at $0.1 an hour", "and the credit is $1,000: it ends after"),
        hosted("credit_usd=5000"),
    ),
    Twins(
        "sandbox_memory",
        "error",
        local("memory_gib=4", "host.memory_gib=512"),
        ("256 sandboxes x 4 = 1,024 GiB of memory", "128 fit"),
        ("plan.in_flight=128",),
    ),
    Twins(
        "sandbox_disk",
        "error",
        local("disk_gib=10", "host.disk_gib=2000"),
        ("256 sandboxes x 10 = 2,560 GiB of disk", "200 fit"),
        local("host.disk_gib=2560"),
    ),
    # ToRL #17: what concurrency do my tools need?
    Twins(
        "sandbox_cpus",
        "error",
        ("workload.tool_s=20", *local("cpus=1", "host.cpus=64")),
        ("256 sandboxes x 1 = 256 cores", "the host has 64: 64 fit"),
        local("host.cpus=256"),
    ),
    Twins(
        "sandbox_timeout",
        "warning",
        hosted("timeout_s=100"),
        ("last longer than 100 s",),
        hosted("timeout_s=300"),
    ),
    Twins(
        "no_scale",
        "warning",
        ("hardware.billing=on_demand", "budget.hours=10"),
        ("the smallest plan",),
        ("budget.target={steps: 100}",),
    ),
    Twins(
        "broken_limit",
        "error",
        ("budget={usd: 1, target: {steps: 100}}",),
        ("budget_usd is 21.4 and may be 1 at most",),
        ("budget.usd=22",),
    ),
    Twins(
        "dead_knob",
        "note",
        ("algorithm.dispatch_scope=global", *SLOW, "algorithm.prompts_per_step=32"),
        ("this plan has one engine",),
        ("plan.trainer_gpus=6", "plan.generator_gpus=2"),
    ),
)

#: Changes that set a key without effect, by the key.
DEAD = {
    "algorithm.oversampling_by": ("algorithm.oversampling_by=sample",),
    "algorithm.dynamic_sampling": ("algorithm.dynamic_sampling=refill",),
    "queue.capacity_batches": ("staleness.enforce=admission",),
    "engine.backend": (*rates(FAST_DECODE, FAST_PREFILL), "engine.backend=vllm"),
    "engine.backend_version": (
        *rates(FAST_DECODE, FAST_PREFILL),
        "engine.backend_version=0.24.0",
    ),
    "engine.estimate": (*rates(FAST_DECODE, FAST_PREFILL), "engine.estimate=allow"),
    "sandbox.retries": hosted("retries=1"),
    "sandbox.credit_usd": hosted("credit_usd=100"),
    "sandbox.memory_gib": hosted("memory_gib=2"),
    "sandbox.disk_gib": hosted("disk_gib=2"),
    "sandbox.cpus": hosted("cpus=2"),
}
