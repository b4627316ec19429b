"""Columns: what either side of a plan can do by itself, computed once per choice of setting.

A *setting* is one choice of mode, prompts, group size, epochs and oversampling. In it, a
*generator column* (engine kinds, counts, rollouts in flight, prefill and reward engines) delivers
a rate that does not depend on the trainer, a *trainer column* (pool, GPUs) takes one that does not
depend on the generator.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from allocator.evaluator.batch_writing import offered_per_s
from allocator.evaluator.generator import GeneratorState, generator_state
from allocator.evaluator.rollouts import RolloutState, rollout_state
from allocator.evaluator.trainer import trainer_state
from allocator.problem.build import Problem
from allocator.problem.decisions import ASYNC, DecisionArrays, Domain, Floats, Ints
from allocator.problem.money import needed_samples


@dataclass(frozen=True, slots=True)
class Setting:
    """One choice of mode, prompts, group size, epochs and oversampling, with its columns.

    Attributes
    ----------
    mode : place in `allocator.plan.MODES`.
    generators, trainers : the columns; fields of the other side are placeholders.
    offered, taken : accepted samples/s of each column; 0 where memory or whole groups forbid it.
    generator_gpus : of each generator column (rows), by role: engines, prefill, reward.
    fastest : start of each run of generator columns that differ in rollouts in flight only.
    samples : accepted samples that reach every target.
    tokens : useful tokens per accepted sample.
    """

    mode: int
    generators: DecisionArrays
    trainers: DecisionArrays
    offered: Floats
    taken: Floats
    generator_gpus: Floats
    fastest: Ints
    samples: float
    tokens: float


def settings(problem: Problem, domain: Domain) -> list[Setting]:
    """Return all settings with the rates of their columns, computed in a few calls."""
    choices = [
        {
            "mode": mode,
            "prompts_per_step": prompts,
            "group_size": group,
            "epochs": epochs,
            "oversampling": factor,
            "queue_batches": domain.queue_batches[0],
        }
        for mode, prompts, group, epochs, factor in itertools.product(
            domain.modes,
            domain.prompts_per_step,
            domain.group_size,
            domain.epochs,
            domain.oversampling,
        )
    ]
    generators = _generators(problem, domain, choices)
    trainers = [_trainers(domain, choice) for choice in choices]
    offered, gpus, signal, tokens = _offered(problem, DecisionArrays.concatenate(generators))
    taken = _taken(problem, DecisionArrays.concatenate(trainers))
    sampling = problem.system.algorithm.dynamic_sampling
    result, begin, start = [], 0, 0
    for choice, columns, others in zip(choices, generators, trainers, strict=True):
        own = slice(begin, begin + len(columns))
        theirs = slice(start, start + len(others))
        begin, start = own.stop, theirs.stop
        if len(columns) == 0:
            continue
        carried = float(signal[own][0])
        useful = float(tokens[own][0]) * (1.0 if sampling == "refill" else carried)
        batch = int(choice["prompts_per_step"] * choice["group_size"])
        result.append(
            Setting(
                mode=int(choice["mode"]),
                generators=columns,
                trainers=others,
                offered=offered[own],
                taken=taken[theirs],
                generator_gpus=gpus[own],
                fastest=_runs(columns),
                samples=float(
                    needed_samples(
                        problem.system.money,
                        batch,
                        carried if sampling == "drop" else 1.0,
                        useful,
                    )
                ),
                tokens=useful,
            )
        )
    return result


def _trainers(domain: Domain, choice: dict[str, Any]) -> DecisionArrays:
    kinds = np.concatenate([np.full(g.size, k) for k, g in enumerate(domain.trainer_gpus)])
    return DecisionArrays.broadcast(
        generator_kind=0,
        engines=1,
        in_flight_per_engine=1,
        trainer_kind=kinds,
        trainer_gpus=np.concatenate(domain.trainer_gpus),
        **choice,
    )


def _generators(
    problem: Problem, domain: Domain, choices: list[dict[str, Any]]
) -> list[DecisionArrays]:
    """Return the generator columns of every setting.

    Of prefill and reward engines a column has at most as many as keep up with its decode engines:
    any more would cost GPUs and raise nothing. (Where a batch is generated as a whole, engines
    that score it afterwards are never too many: every count is kept.)
    """
    everyone = [
        DecisionArrays.broadcast(
            trainer_kind=0,
            trainer_gpus=domain.trainer_gpus[0][0],
            **_base_columns(domain, int(choice["mode"])),
            **choice,
        )
        for choice in choices
    ]
    joined = DecisionArrays.concatenate(everyone)
    if not np.any(joined.prefill_engines > 0) and not np.any(joined.reward_engines > 0):
        return everyone
    rollouts = rollout_state(problem.system, joined)
    state = generator_state(problem.system, joined, rollouts)
    needed_prefill = _needed(state.dispatched_per_s * state.stations.pool_prefill_s)
    reward_s = joined.reward_engines / state.stations.reward.scored_per_s
    needed_reward = _needed(
        state.dispatched_per_s * state.ended_share / joined.oversampling * reward_s
    )
    begin, result = 0, []
    for columns in everyone:
        own = slice(begin, begin + len(columns))
        begin = own.stop
        enough = (needed_prefill[own], needed_reward[own])
        if len(columns) and int(columns.mode[0]) != ASYNC:
            enough = (np.full(len(columns), np.inf), np.full(len(columns), np.inf))
        result.append(_counted(domain, columns, *enough))
    return result


def _needed(engines: Floats) -> Floats:
    """Whole engines that keep up, rounding forgiven; one where there is nothing to do."""
    return np.maximum(np.ceil(engines * (1.0 - 1e-9)), 1.0)


def _base_columns(domain: Domain, mode: int) -> dict[str, Ints]:
    """Return kinds, counts and rollouts in flight, prefill and reward engines at their most."""
    parts: dict[str, list[Ints]] = {
        name: []
        for name in (
            "generator_kind",
            "engines",
            "in_flight_per_engine",
            "prefill_kind",
            "prefill_engines",
            "reward_kind",
            "reward_engines",
        )
    }
    for kind, (counts, caps) in enumerate(
        zip(domain.engines, domain.in_flight_per_engine, strict=True)
    ):
        if counts.size == 0:
            continue
        for (reader, readers), (scorer, scorers) in itertools.product(
            domain.prefill_of(kind, mode), domain.reward
        ):
            if readers.size == 0 or scorers.size == 0:
                continue
            size = counts.size * caps.size
            parts["generator_kind"].append(np.full(size, kind))
            parts["engines"].append(np.repeat(counts, caps.size))
            parts["in_flight_per_engine"].append(np.tile(caps, counts.size))
            parts["prefill_kind"].append(np.full(size, reader))
            parts["prefill_engines"].append(np.full(size, readers[-1]))
            parts["reward_kind"].append(np.full(size, scorer))
            parts["reward_engines"].append(np.full(size, scorers[-1]))
    return {
        name: np.concatenate(values) if values else np.empty(0, dtype=np.int64)
        for name, values in parts.items()
    }


def _counted(
    domain: Domain, columns: DecisionArrays, most_prefill: Floats, most_reward: Floats
) -> DecisionArrays:
    """Return the columns with every count of prefill and reward engines that may help.

    Columns that differ in rollouts in flight only stay together.
    """
    parts = []
    kinds = np.stack([columns.generator_kind, columns.prefill_kind, columns.reward_kind])
    for kind, reader, scorer in np.unique(kinds, axis=1).T:
        here = np.flatnonzero(
            (columns.generator_kind == kind)
            & (columns.prefill_kind == reader)
            & (columns.reward_kind == scorer)
        )
        readers = next(c for k, c in domain.prefill[kind] if k == reader)
        scorers = next(c for k, c in domain.reward if k == scorer)
        for few, many in itertools.product(_with_before(readers), _with_before(scorers)):
            kept = here[(few[0] < most_prefill[here]) | (few[1] == 0)]
            kept = kept[(many[0] < most_reward[kept]) | (many[1] == 0)]
            parts.append(
                replace(
                    columns.take(kept),
                    prefill_engines=np.full(kept.size, few[1]),
                    reward_engines=np.full(kept.size, many[1]),
                )
            )
    return DecisionArrays.concatenate(parts)


def _with_before(counts: Ints) -> list[tuple[int, int]]:
    """Return each count with the one before it, 0 before the first."""
    return list(zip([0, *counts[:-1].tolist()], counts.tolist(), strict=True))


def _runs(columns: DecisionArrays) -> Ints:
    """Return the start of each run of columns that differ in rollouts in flight only."""
    same = np.ones(len(columns) - 1, dtype=bool)
    for field in fields(DecisionArrays):
        if field.name != "in_flight_per_engine":
            values = getattr(columns, field.name)
            same &= values[1:] == values[:-1]
    return np.flatnonzero(np.append(True, ~same))


def _offered(problem: Problem, plans: DecisionArrays) -> tuple[Floats, Floats, Floats, Floats]:
    """Return accepted samples/s, GPUs by role, signal and tokens per sample of the columns."""
    system = problem.system
    rollouts = rollout_state(system, plans)
    generator = generator_state(system, plans, rollouts)
    fits = generator.sequences_fit >= 1.0
    if system.algorithm.whole_groups:
        places = plans.in_flight_per_engine * (
            1 if system.algorithm.limit_per_engine else plans.engines
        )
        enough = places >= np.ceil(rollouts.at(rollouts.started_per_group))
        fits &= enough | (plans.mode != ASYNC)
    if system.sandbox is not None:
        most = np.floor(system.sandbox.max_concurrent / system.sandbox.per_rollout)
        fits &= (plans.engines * plans.in_flight_per_engine <= most) | (plans.mode != ASYNC)
    rate = _free_rate(problem, plans, rollouts, generator)
    fixed = system.workload.fixed_tokens if system.money.sequence_basis else 0.0
    tokens = fixed + rollouts.at(rollouts.cut.kept_mean_tokens)
    gpus = np.stack([generator.gpus, generator.prefill_gpus, generator.reward_gpus], axis=1)
    return np.where(fits, rate, 0.0), gpus, rollouts.at(rollouts.signal), tokens


def _free_rate(
    problem: Problem, plans: DecisionArrays, rollouts: RolloutState, generator: GeneratorState
) -> Floats:
    """Return the accepted samples/s of the columns while no trainer holds them up."""
    system = problem.system
    signal = rollouts.at(rollouts.signal)
    refill = system.algorithm.dynamic_sampling == "refill"
    ended = generator.dispatched_per_s * generator.ended_share
    stream = ended / plans.oversampling * (signal if refill else 1.0)
    if np.all(plans.mode == ASYNC):
        return np.asarray(stream)
    batches = offered_per_s(system, plans, rollouts, generator)
    return np.asarray(np.where(plans.mode == ASYNC, stream, batches))


def _taken(problem: Problem, plans: DecisionArrays) -> Floats:
    """Return accepted samples/s that balanced trainer columns can take; 0 where memory is short.

    The weight sync is the shortest to any engine kind, where the trainer has to wait for it.
    """
    system = problem.system
    trainer = trainer_state(system, plans, rollout_state(system, plans), balanced=True)
    memory = system.trainers.hbm_limit_bytes[plans.trainer_kind]
    every = system.algorithm.weight_sync_every_steps
    shortest = np.min(system.sync_s, axis=1)[plans.trainer_kind] / every
    waits = (plans.mode != ASYNC) | system.algorithm.trainer_blocks
    rate = trainer.batch_samples / (trainer.train_s + np.where(waits, shortest, 0.0))
    return np.where(trainer.memory_bytes <= memory, rate, 0.0)
