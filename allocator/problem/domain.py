"""The domain: which values each decision of a problem may take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from allocator.physics.decode import (
    decode_step_s,
    mean_decode_context_tokens,
    sd_decode_context_tokens,
)
from allocator.physics.kv_memory import sequences_that_fit
from allocator.physics.oversampling import oversampling_cut
from allocator.problem.decisions import Domain, Floats, Ints, in_flight_grid
from allocator.problem.system import EngineKinds, System, WorkloadLaw

if TYPE_CHECKING:
    from allocator.scenario.quantity import FloatRange, IntRange
    from allocator.scenario.schema import Scenario

#: Largest cap of rollouts in flight on one engine that the domain holds (vLLM and SGLang default
#: request limits lie between 256 and 4,096).
MOST_IN_FLIGHT = 4096


def _values(said: int | IntRange) -> Ints:
    if isinstance(said, int):
        return np.asarray([said], dtype=np.int64)
    low, high, step = said.min, said.max, said.step
    return np.unique(np.append(np.arange(low, high + 1, step or 1), high)).astype(np.int64)


#: Step of an oversampling range that states none.
OVERSAMPLING_STEP = 0.1


def _factors(said: float | FloatRange) -> Floats:
    if isinstance(said, (int, float)):
        return np.asarray([said], dtype=float)
    low, high, step = said.min, said.max, said.step
    count = max(1, round((high - low) / (step or OVERSAMPLING_STEP)))
    return np.linspace(low, high, count + 1) if high > low else np.asarray([low], dtype=float)


def build_domain(scenario: Scenario, system: System) -> Domain:
    """Return the values every decision may take.

    Engines and trainer GPUs fill whole units of their pools; rollouts in flight reach from one
    group to a full KV cache, beyond which no rate rises; ranges are the user's.
    """
    said = scenario.algorithm
    groups, factors = _values(said.group_size), _factors(said.oversampling)
    ranges = [
        (name, path)
        for name, path, value in (
            ("oversampling", "algorithm.oversampling", said.oversampling),
            ("queue_batches", "queue.capacity_batches", scenario.queue.capacity_batches),
            ("prompts_per_step", "algorithm.prompts_per_step", said.prompts_per_step),
            ("group_size", "algorithm.group_size", said.group_size),
            ("epochs", "algorithm.epochs", said.epochs),
        )
        if hasattr(value, "min")
    ]
    kinds, trainers = system.engines, system.trainers
    counts, caps = [], []
    for kind in range(len(kinds.labels)):
        pool = system.pools[int(kinds.pool[kind])]
        gpus = int(kinds.gpus_per_engine[kind])
        step = math.lcm(gpus, pool.unit_gpus) // gpus
        counts.append(np.arange(step, pool.gpus // gpus + 1, step, dtype=np.int64))
        largest = _largest_in_flight(system.workload, system, kinds, kind, groups, factors)
        grid = in_flight_grid(min(largest, MOST_IN_FLIGHT))
        caps.append(grid[grid >= min(int(groups.min()), int(grid[-1]))])
    gpus_of = []
    for index in range(len(trainers.labels)):
        pool = system.pools[int(trainers.pool[index])]
        values = np.arange(pool.unit_gpus, pool.gpus + 1, pool.unit_gpus, dtype=np.int64)
        gpus_of.append(values[values % min(trainers.widths) == 0])
    return Domain(
        engines=tuple(counts),
        in_flight_per_engine=tuple(caps),
        trainer_gpus=tuple(gpus_of),
        oversampling=factors,
        queue_batches=_values(scenario.queue.capacity_batches),
        prompts_per_step=_values(said.prompts_per_step),
        group_size=groups,
        epochs=_values(said.epochs),
        ranges=tuple(ranges),
    )


def _largest_in_flight(
    workload: WorkloadLaw,
    system: System,
    kinds: EngineKinds,
    kind: int,
    groups: Ints,
    factors: Floats,
) -> int:
    """Rollouts in flight on one engine at which its KV cache is full, over all cuts."""
    index = np.asarray([kind])
    cut = oversampling_cut(
        workload.lengths, factors[:, None], groups[None, :], system.algorithm.oversampling_by
    )
    mean, second = cut.dispatched_mean_tokens, cut.dispatched_second_moment_tokens2
    third = cut.dispatched_third_moment_tokens3
    context = mean_decode_context_tokens(workload.prompt_tokens, mean, second)
    spread = sd_decode_context_tokens(mean, second, third)
    per_sequence = kinds.footprint.bytes_per_token[kind] * context
    fit = sequences_that_fit(
        kinds.kv_budget_bytes[kind], per_sequence, kinds.footprint.bytes_per_token[kind] * spread
    )
    step = decode_step_s(kinds.decode.take(index), fit, fit * context)
    outside = fit / (mean * step) * workload.environment_s
    half_group = (factors[:, None] * groups[None, :] - 1.0) / 2.0
    return max(1, math.ceil(float(np.max(fit + outside + half_group))) + 1)
