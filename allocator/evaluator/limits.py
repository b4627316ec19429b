"""Every named limit of a problem at each plan: its value, and what it may not exceed."""

from __future__ import annotations

from typing import Any

import numpy as np

from allocator.evaluator.accounts import Accounts
from allocator.evaluator.generator import GeneratorState
from allocator.evaluator.match_state import MatchState
from allocator.evaluator.rollouts import RolloutState
from allocator.evaluator.trainer import TrainerState
from allocator.physics.economics import SECONDS_PER_HOUR
from allocator.physics.sandbox import sandboxes_in_use
from allocator.problem.build import Problem
from allocator.problem.decisions import ASYNC, COLOCATED_SYNC, DecisionArrays
from allocator.problem.system import System

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
    user allows. KV memory compares the sequences an engine holds with those that fit, at least
    one; more rollouts in flight than fit wait in the engine's queue, which is slow, not forbidden.
    """
    system = problem.system
    money = system.money
    stretch = account.availability.stretch
    needed_hours = account.needed_steps * match.step_s * stretch / SECONDS_PER_HOUR
    # In a batch that starts as a whole, what finds no place waits for the next wave.
    dispatched = np.where(
        plans.mode == ASYNC, np.ceil(rollouts.at(rollouts.started_per_group)), 1.0
    )
    places = plans.in_flight_per_engine * (
        1 if system.algorithm.limit_per_engine else plans.engines
    )
    kinds = system.trainers
    values: dict[str, tuple[Any, Any]] = {
        "kv_memory": (np.maximum(generator.resident, 1.0), generator.sequences_fit),
        "trainer_memory": (
            trainer.memory_bytes / GIB,
            kinds.hbm_limit_bytes[plans.trainer_kind] / GIB,
        ),
        "group_in_flight": (
            dispatched if system.algorithm.whole_groups else np.ones(len(plans)),
            places,
        ),
        "trainer_replica": (_whole_replicas(trainer.width, plans.trainer_gpus), plans.trainer_gpus),
        "shared_pool": (2 * _two_pools(system, plans), np.ones(len(plans))),
        "budget_usd": (needed_hours * account.usd_per_hour, money.usd),
        "budget_gpu_hours": (needed_hours * account.gpus_paid, money.gpu_hours),
        "budget_flops": (needed_hours * account.flops_per_hour / stretch, money.flops),
        "budget_hours": (needed_hours, money.hours),
    }
    if system.sandbox is not None:
        values["sandbox_credit"] = (
            needed_hours * account.sandbox_usd_per_hour,
            system.sandbox.credit_usd,
        )
    for index, pool in enumerate(system.pools):
        values[f"gpu_pool_{pool.name}"] = (gpus_of_pool(system, plans, generator, index), pool.gpus)
    if system.sandbox is not None and np.isfinite(system.sandbox.max_concurrent):
        # With a cap on rollouts in flight that is always refilled, the cap is their p99.
        cap = plans.engines * plans.in_flight_per_engine
        batch = plans.oversampling * plans.prompts_per_step * plans.group_size
        most = np.where(plans.mode == ASYNC, cap, np.minimum(cap, np.ceil(batch)))
        values["sandbox_quota"] = (
            sandboxes_in_use(most, system.sandbox.per_rollout),
            system.sandbox.max_concurrent,
        )
    if system.algorithm.staleness_limit is not None:
        metric = system.algorithm.staleness_metric
        values[f"staleness_{metric}"] = (
            match.staleness_metric,
            system.algorithm.staleness_limit,
        )
    return {spec.name: values[spec.name] for spec in problem.limits}


def _two_pools(system: System, plans: DecisionArrays) -> Any:
    """Whether GPUs that are to train and generate in turn would be of two pools."""
    apart = system.trainers.pool[plans.trainer_kind] != system.engines.pool[plans.generator_kind]
    return np.where((plans.mode == COLOCATED_SYNC) & apart, 1, 0)


def gpus_of_pool(
    system: System, plans: DecisionArrays, generator: GeneratorState, pool: int
) -> Any:
    """GPUs of one pool that each plan uses; one set that trains and generates counts once."""
    training = np.where(system.trainers.pool[plans.trainer_kind] == pool, plans.trainer_gpus, 0)
    writing = np.where(system.engines.pool[plans.generator_kind] == pool, generator.gpus, 0)
    used = np.where(plans.mode == COLOCATED_SYNC, np.maximum(training, writing), training + writing)
    if np.any(plans.prefill_engines > 0):
        at = system.engines.pool[np.maximum(plans.prefill_kind, 0)]
        used = used + np.where((plans.prefill_kind >= 0) & (at == pool), generator.prefill_gpus, 0)
    if system.reward_kinds is not None and np.any(plans.reward_engines > 0):
        at = system.reward_kinds.pool[np.maximum(plans.reward_kind, 0)]
        used = used + np.where((plans.reward_kind >= 0) & (at == pool), generator.reward_gpus, 0)
    return used


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
