"""The bill: which GPUs are paid for, what they do, and their dollars per hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.evaluator.generator import GeneratorState
from allocator.problem.decisions import COLOCATED_SYNC, DecisionArrays
from allocator.problem.system import System


@dataclass(frozen=True, slots=True)
class Bill:
    """GPUs paid for, and dollars per hour by use; arrays, one entry a plan.

    `generator` includes prefill engines; `idle` are GPUs that are paid and not used: spare ones,
    and the rest of pools that are reserved as a whole. Where one set of GPUs trains and generates
    in turn it counts as the trainer's, what only generates as the generator's.
    """

    gpus: Any
    trainer: Any
    generator: Any
    reward: Any
    idle: Any

    @property
    def usd_per_hour(self) -> Any:
        """Dollars per hour of all GPUs."""
        return self.trainer + self.generator + self.reward + self.idle


def gpus_in_use(plans: DecisionArrays, generator: GeneratorState) -> Any:
    """GPUs of all roles; where one set of GPUs both trains and generates it counts once."""
    only = _generating_only(plans, generator.gpus)
    return plans.trainer_gpus + only + generator.prefill_gpus + generator.reward_gpus


def bill_by_use(system: System, plans: DecisionArrays, generator: GeneratorState) -> Bill:
    """Split the bill by use; reserved pools are paid as a whole, spare GPUs always."""
    price = np.asarray([p.usd_per_gpu_hour for p in system.pools])
    spare = np.asarray([p.spare_gpus for p in system.pools], dtype=float)
    engine_price = price[system.engines.pool.astype(int)]
    trainer = plans.trainer_gpus * price[system.trainers.pool.astype(int)][plans.trainer_kind]
    writing = _generating_only(plans, generator.gpus) * engine_price[plans.generator_kind]
    if np.any(plans.prefill_engines > 0):
        reader_price = engine_price[np.maximum(plans.prefill_kind, 0)]
        writing = writing + generator.prefill_gpus * reader_price
    reward: Any = np.zeros(len(plans))
    if system.reward_kinds is not None and np.any(plans.reward_engines > 0):
        reward_price = price[system.reward_kinds.pool.astype(int)]
        reward = generator.reward_gpus * reward_price[np.maximum(plans.reward_kind, 0)]
    used, idle = gpus_in_use(plans, generator), float(spare @ price)
    if not system.money.reserved:
        return Bill(used + spare.sum(), trainer, writing, reward, np.full(len(plans), idle))
    whole = spare + np.asarray([p.gpus for p in system.pools], dtype=float)
    rest = float(whole @ price) - (trainer + writing + reward)
    return Bill(np.full(len(plans), whole.sum()), trainer, writing, reward, rest)


def _generating_only(plans: DecisionArrays, gpus: Any) -> Any:
    """GPUs of the engines that the trainer does not use in turn."""
    shared = plans.mode == COLOCATED_SYNC
    return np.where(shared, np.maximum(gpus - plans.trainer_gpus, 0), gpus)
