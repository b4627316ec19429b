"""Every named limit of a problem at each plan: its value, and what it may not exceed."""

from __future__ import annotations

from typing import Any

import numpy as np

from allocator.evaluator.accounts import Accounts
from allocator.evaluator.generator import GeneratorState, RolloutState
from allocator.evaluator.match import MatchState
from allocator.evaluator.trainer import TrainerState
from allocator.physics.economics import SECONDS_PER_HOUR
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays

GIB = 2.0**30
#: Relative rounding allowed before a limit counts as broken.
ROUNDING = 1e-9


def limit_values(
    problem: Problem,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
    match: MatchState,
    account: Accounts,
) -> dict[str, tuple[Any, Any]]:
    """Return (value, limit) arrays by limit name, in the order of `problem.limits`.

    Budgets compare what the target needs (one step where there is no target) with what the
    user allows. KV memory compares the sequences an engine decodes with those that fit, at least
    one; more rollouts in flight than fit wait in the engine's queue, which is slow, not forbidden.
    """
    system = problem.system
    money = system.money
    needed_hours = account.needed_steps * match.step_s / SECONDS_PER_HOUR
    dispatched = np.ceil(plans.oversampling * plans.group_size)
    places = plans.in_flight_per_engine * (
        1 if system.algorithm.limit_per_engine else plans.engines
    )
    kinds = system.trainers
    values: dict[str, tuple[Any, Any]] = {
        "kv_memory": (np.maximum(generator.decoding, 1.0), generator.sequences_fit),
        "trainer_memory": (
            trainer.memory_bytes / GIB,
            kinds.hbm_limit_bytes[plans.trainer_kind] / GIB,
        ),
        "group_in_flight": (
            dispatched if system.algorithm.whole_groups else np.ones(len(plans)),
            places,
        ),
        "trainer_replica": (_whole_replicas(trainer.width, plans.trainer_gpus), plans.trainer_gpus),
        "budget_usd": (needed_hours * account.usd_per_hour, money.usd),
        "budget_gpu_hours": (needed_hours * account.gpus_paid, money.gpu_hours),
        "budget_flops": (needed_hours * account.flops_per_hour, money.flops),
        "budget_hours": (needed_hours, money.hours),
    }
    for index, pool in enumerate(system.pools):
        used = np.where(kinds.pool[plans.trainer_kind] == index, plans.trainer_gpus, 0) + np.where(
            system.engines.pool[plans.generator_kind] == index, generator.gpus, 0
        )
        values[f"gpu_pool_{pool.name}"] = (used, pool.gpus)
    if system.algorithm.staleness_limit is not None:
        metric = system.algorithm.staleness_metric
        values[f"staleness_{metric}"] = (
            match.staleness_metric,
            system.algorithm.staleness_limit,
        )
    return {spec.name: values[spec.name] for spec in problem.limits}


def _whole_replicas(width: Any, gpus: Any) -> Any:
    """GPUs of one replica where replicas fill the trainer, else those the next whole one needs."""
    return np.where(gpus % width == 0, width, np.ceil(gpus / width) * width)


def within(values: dict[str, tuple[Any, Any]]) -> Any:
    """Whether each plan keeps every limit."""
    held = [
        np.asarray(value) <= np.asarray(limit) * (1.0 + ROUNDING)
        for value, limit in values.values()
    ]
    return np.logical_and.reduce(np.broadcast_arrays(*held))
