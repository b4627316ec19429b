"""The domain: which values each decision of a problem may take."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from allocator.physics.decode import decode_step_s
from allocator.physics.kv_memory import sequences_that_fit
from allocator.physics.oversampling import oversampling_cut
from allocator.physics.prefill import prefill_s
from allocator.physics.turns import mean_turn_context_tokens, sd_turn_context_tokens
from allocator.plan import MODES
from allocator.problem.decisions import (
    ASYNC,
    COLOCATED_SYNC,
    NONE,
    Domain,
    Floats,
    Ints,
    in_flight_grid,
)
from allocator.problem.system import EngineKinds, EngineLabel, RewardKinds, System, WorkloadLaw

if TYPE_CHECKING:
    from allocator.scenario.quantity import FloatRange, IntRange
    from allocator.scenario.schema import Scenario

#: Largest cap of rollouts in flight on one engine that the domain holds (vLLM and SGLang default
#: request limits lie between 256 and 4,096).
MOST_IN_FLIGHT = 4096

#: Generator columns over all settings that one search may hold in memory (about 2 GB).
MOST_COLUMNS = 6_000_000

#: Most seconds that scoring on GPUs is expected to take a rollout (assumed: it only bounds the
#: rollouts in flight that are tried).
MOST_SCORING_S = 60.0

#: How many times its pool a trainer is tried at when nothing fits.
POOL_FACTOR = 16

_NOTHING = np.empty(0, dtype=np.int64)


def values_of(said: int | IntRange) -> Ints:
    """Return a fixed number, or every value of a range."""
    return np.asarray([said] if isinstance(said, int) else said.values(), dtype=np.int64)


def _factors(said: float | FloatRange) -> Floats:
    values = [said] if isinstance(said, (int, float)) else said.values()
    return np.asarray(values, dtype=float)


def build_domain(scenario: Scenario, system: System) -> Domain:
    """Return the values every decision may take.

    Engines and trainer GPUs fill whole units of their pools; rollouts in flight reach from one
    group to a full KV cache, beyond which no rate rises; ranges are the user's.

    Raises
    ------
    ScenarioError
        When the ranges multiply to more generator columns than can be enumerated.
    """
    said = scenario.algorithm
    groups, factors = values_of(said.group_size), _factors(said.oversampling)
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
    modes = _modes(scenario, system)
    most = int(values_of(said.prompts_per_step).max() * groups.max() * factors.max())
    for kind in range(len(kinds.labels)):
        counts.append(_counts(system, kinds, kind) if kinds.decodes[kind] else _NOTHING)
        largest = _largest_in_flight(system.workload, system, kinds, kind, groups, factors)
        if ASYNC not in modes:
            largest = min(largest, most)
        grid = in_flight_grid(min(largest, MOST_IN_FLIGHT))
        least = int(groups.min()) if ASYNC in modes else 1
        caps.append(grid[grid >= min(least, int(grid[-1]))])
    gpus_of = []
    for index in range(len(trainers.labels)):
        pool = system.pools[int(trainers.pool[index])]
        values = np.arange(pool.unit_gpus, pool.gpus + 1, pool.unit_gpus, dtype=np.int64)
        gpus_of.append(values[values % min(trainers.widths) == 0])
    _check_size(scenario, ranges, sum(n.size * c.size for n, c in zip(counts, caps, strict=True)))
    return Domain(
        engines=tuple(counts),
        in_flight_per_engine=tuple(caps),
        trainer_gpus=tuple(gpus_of),
        oversampling=factors,
        queue_batches=values_of(scenario.queue.capacity_batches),
        prompts_per_step=values_of(said.prompts_per_step),
        group_size=groups,
        epochs=values_of(said.epochs),
        ranges=tuple(ranges),
        stated_ranges=frozenset(name for name, path in ranges if _stated(scenario, path)),
        modes=modes,
        prefill=_prefill(scenario, system),
        reward=_reward(scenario, system),
    )


def _counts(system: System, kinds: EngineKinds | RewardKinds, kind: int) -> Ints:
    """Return the counts of engines that fill whole units of their pool."""
    pool = system.pools[int(kinds.pool[kind])]
    gpus = int(kinds.gpus_per_engine[kind])
    step = math.lcm(gpus, pool.unit_gpus) // gpus
    return np.arange(step, pool.gpus // gpus + 1, step, dtype=np.int64)


def _modes(scenario: Scenario, system: System) -> Ints:
    """Return the modes to choose from; taking turns on one set of GPUs needs a pool for both."""
    said = scenario.algorithm.mode
    if said != "auto":
        return np.asarray([MODES.index(said)])
    shared = set(system.trainers.pool) & set(system.engines.pool[system.engines.decodes])
    together = bool(shared) and scenario.engine.disaggregation != "always"
    return np.asarray([m for m in range(len(MODES)) if m != COLOCATED_SYNC or together])


def _prefill(scenario: Scenario, system: System) -> tuple[tuple[tuple[int, Ints], ...], ...]:
    """Return, per engine kind, the engines that may prefill for it.

    They share its backend and the format of its cache, which they hand over. Of the kinds of one
    pool only the one that reads the prompt with the fewest GPU-seconds is offered.
    """
    kinds, said = system.engines, scenario.engine.disaggregation
    options = []
    for kind, label in enumerate(kinds.labels):
        offered: list[tuple[int, Ints]] = []
        if said != "always":
            offered.append((NONE, np.zeros(1, dtype=np.int64)))
        if said != "never" and kinds.decodes[kind]:
            offered += [
                (reader, _counts(system, kinds, reader))
                for reader in _fastest_readers(system, label)
            ]
        options.append(tuple(offered))
    if not any(counts.size for offered in options for _, counts in offered):
        raise scenario.error(
            "engine.disaggregation",
            "engines of one backend and KV format in pools with the roles prefill and decode, and "
            "room for one of each",
            said,
        )
    return tuple(options)


def _fastest_readers(system: System, label: EngineLabel) -> list[int]:
    """Return the kind of each pool that prefills for `label` with the fewest GPU-seconds."""
    kinds, work = system.engines, system.workload
    tokens = max(work.fixed_tokens, 1.0)
    spent = kinds.gpus_per_engine * prefill_s(kinds.prefill, tokens, tokens)
    best: dict[int, int] = {}
    for kind, other in enumerate(kinds.labels):
        fits = other.backend == label.backend and other.kv_dtype == label.kv_dtype
        known = best.get(other.pool)
        if kinds.prefills[kind] and fits and (known is None or spent[kind] < spent[known]):
            best[other.pool] = kind
    return sorted(best.values())


def _reward(scenario: Scenario, system: System) -> tuple[tuple[int, Ints], ...]:
    kinds = system.reward_kinds
    if kinds is None:
        return ((NONE, np.zeros(1, dtype=np.int64)),)
    offered = tuple((kind, _counts(system, kinds, kind)) for kind in range(len(kinds.labels)))
    if not any(counts.size for _, counts in offered):
        least = int(kinds.gpus_per_engine.min())
        raise scenario.error(
            "hardware.pools",
            f"a pool with the role reward and room for an engine of {least} GPUs",
            ", ".join(f"{pool.name} ({pool.gpus} GPUs)" for pool in system.pools),
        )
    return offered


def _stated(scenario: Scenario, path: str) -> bool:
    """Whether the user wrote a range, instead of leaving the default."""
    block, _, name = path.partition(".")
    return name in getattr(scenario, block).model_fields_set


def _check_size(scenario: Scenario, ranges: list[tuple[str, str]], columns: int) -> None:
    """Refuse ranges that multiply to more than can be enumerated."""
    said = scenario.algorithm
    choices = {
        "algorithm.oversampling": _factors(said.oversampling).size,
        "algorithm.prompts_per_step": values_of(said.prompts_per_step).size,
        "algorithm.group_size": values_of(said.group_size).size,
        "algorithm.epochs": values_of(said.epochs).size,
    }
    settings = math.prod(choices.values())
    if settings > 1 and settings * columns > MOST_COLUMNS:
        widest = max(choices, key=lambda path: choices[path])
        raise scenario.error(
            widest,
            f"fewer choices: {settings:,} combinations of the ranges times {columns:,} generator "
            f"columns are more than {MOST_COLUMNS:,}",
            f"{choices[widest]:,} choices",
        )


def beyond_pools(domain: Domain, system: System) -> Domain:
    """Return a coarse domain of larger pools, to find what size would make a plan possible.

    Trainers up to `POOL_FACTOR` times their pool, one to three counts of engines and a few caps,
    ranges at one value each: enough for the least GPUs of a plan, not for a good one.
    """
    trainers = []
    for index, gpus in enumerate(domain.trainer_gpus):
        pool = system.pools[int(system.trainers.pool[index])]
        step = int(gpus[0]) if gpus.size else pool.unit_gpus
        trainers.append(np.arange(step, POOL_FACTOR * pool.gpus + 1, step, dtype=np.int64))
    engines = []
    for kind, counts in enumerate(domain.engines):
        if not system.engines.decodes[kind]:
            engines.append(_NOTHING)
            continue
        pool = system.pools[int(system.engines.pool[kind])]
        per_engine = int(system.engines.gpus_per_engine[kind])
        step = math.lcm(per_engine, pool.unit_gpus) // per_engine
        engines.append(np.unique(np.append(counts[:3], [step, 2 * step, 4 * step])))
    return replace(
        domain,
        engines=tuple(engines),
        in_flight_per_engine=tuple(_thinned(caps) for caps in domain.in_flight_per_engine),
        trainer_gpus=tuple(trainers),
        oversampling=domain.oversampling[:1],
        queue_batches=domain.queue_batches[-1:],
        prompts_per_step=domain.prompts_per_step[:1],
        group_size=domain.group_size[:1],
        epochs=domain.epochs[:1],
        prefill=tuple(
            tuple((kind, _few(counts)) for kind, counts in options) for options in domain.prefill
        ),
        reward=tuple((kind, _few(counts)) for kind, counts in domain.reward),
    )


def _few(counts: Ints) -> Ints:
    return counts[[0, -1]] if counts.size > 1 else counts


def _thinned(values: Ints, count: int = 6) -> Ints:
    chosen: Ints = values[np.unique(np.linspace(0, values.size - 1, count).astype(int))]
    return chosen


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
    turns, tools = workload.turns, workload.tool_tokens
    context = mean_turn_context_tokens(turns, workload.prompt_tokens, tools, mean, second)
    spread = sd_turn_context_tokens(turns, tools, mean, second, third)
    footprint = kinds.footprint.take(index)
    fit = sequences_that_fit(
        kinds.kv_budget_bytes[kind],
        footprint.sequence_bytes(context),
        footprint.bytes_per_token * spread,
    )
    step = decode_step_s(kinds.decode.take(index), fit, fit * context)
    outside = fit / (mean * step) * _most_environment_s(system)
    half_group = (factors[:, None] * groups[None, :] - 1.0) / 2.0
    return max(1, math.ceil(float(np.max(fit + outside + half_group))) + 1)


def _most_environment_s(system: System) -> float:
    """Most seconds that a rollout may spend outside its engine while none has to wait."""
    reward, sandbox = system.reward, system.sandbox
    seconds = system.workload.environment_s + reward.latency_s + reward.calls * reward.cpu_s
    if sandbox is not None:
        seconds += max(sandbox.start_s.values)
    if reward.placement == "own_gpus":
        seconds += MOST_SCORING_S
    return seconds
