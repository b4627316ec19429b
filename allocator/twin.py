"""From a plan to the line that is simulated: resolved inputs and step laws, no queueing result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from allocator.evaluator.generator import generator_state
from allocator.evaluator.rewards import RewardState
from allocator.evaluator.rollouts import rollout_state
from allocator.evaluator.trainer import trainer_state
from allocator.physics.decode import DecodeLaw
from allocator.physics.lengths import Lengths, capped_lognormal_from_mean_cv
from allocator.physics.prefill import PrefillLaw
from allocator.plan import MODES
from allocator.problem.build import Problem
from allocator.problem.decisions import COLOCATED_SYNC, DecisionArrays
from allocator.problem.system import System
from allocator.simulator.line import (
    EngineSet,
    Groups,
    Policy,
    PrefillPool,
    Reward,
    RolloutKind,
    Sandboxes,
    SimulatedLine,
    Solving,
    TrainerLine,
)


def line_of(problem: Problem, plan: DecisionArrays) -> SimulatedLine:
    """Return one plan as the simulator needs it.

    Lengths, step laws, sizes and rules are those of the resolved system. Of the evaluator only
    what one step or one score takes is used (the trainer's seconds, a reward's seconds): how
    stations wait for each other is what the simulation is to find out.

    Parameters
    ----------
    plan : one plan, as the arrays of its decisions.

    Raises
    ------
    ValueError
        Where the line cannot run, such as a whole group without places.
    """
    system, algorithm, work = problem.system, problem.system.algorithm, problem.system.workload
    rollouts = rollout_state(system, plan)
    generator = generator_state(system, plan, rollouts)
    solving = work.solve_rate
    return SimulatedLine(
        mode=MODES[int(plan.mode[0])],  # type: ignore[arg-type]
        engines=_engines(system, plan),
        rollouts=RolloutKind(
            lengths=work.lengths,
            prompt_tokens=work.prompt_tokens,
            prefix_cache=work.prefix_cache,
            cached_prompt_share=work.cached_prompt_share,
            turns=work.turns,
            tool_tokens=work.tool_tokens,
            tool_call=_tool_call(system),
            kv_held=work.kv_held,
        ),
        groups=Groups(
            size=int(plan.group_size[0]),
            per_batch=int(plan.prompts_per_step[0]),
            whole=algorithm.whole_groups,
            limit_per_engine=algorithm.limit_per_engine,
            oversampling=float(plan.oversampling[0]),
            by=algorithm.oversampling_by,
            solving=None
            if solving is None
            else Solving(solving.always, solving.never, solving.alpha, solving.beta),
            sampling=algorithm.dynamic_sampling,
        ),
        trainer=_trainer(system, plan),
        policy=Policy(
            queue_batches=int(plan.queue_batches[0]),
            enforce=algorithm.staleness_enforce,
            staleness_limit=math.inf
            if algorithm.staleness_limit is None
            else algorithm.staleness_limit,
            weight_update=algorithm.weight_update,
            partial=algorithm.partial_rollout,
            exclude_mixed=algorithm.exclude_mixed,
        ),
        reward=_reward(system, plan, generator.stations.reward),
        sandboxes=_sandboxes(system),
        prefill_pool=_prefill_pool(system, plan),
    )


def _scalars(law: Any, kind: int) -> tuple[float, ...]:
    """Return the coefficients of one kind of engine as floats, in the order of the law's fields."""
    return tuple(float(np.asarray(getattr(law, name))[kind]) for name in law.__slots__)


def _engines(system: System, plan: DecisionArrays) -> EngineSet:
    kinds, kind = system.engines, int(plan.generator_kind[0])
    footprint = kinds.footprint
    windowed = float(np.broadcast_to(footprint.window_bytes_per_token, kinds.pool.shape)[kind])
    return EngineSet(
        count=int(plan.engines[0]),
        in_flight=int(plan.in_flight_per_engine[0]),
        decode=DecodeLaw(*_scalars(kinds.decode, kind)),
        prefill=PrefillLaw(*_scalars(kinds.prefill, kind)),
        kv_bytes_per_token=float(np.asarray(footprint.bytes_per_token)[kind]),
        kv_bytes_per_sequence=windowed * footprint.window_tokens,
        kv_budget_bytes=float(kinds.kv_budget_bytes[kind]),
    )


def _tool_call(system: System) -> Lengths | None:
    work = system.workload
    if work.tool_call is not None or work.tool_s == 0.0:
        return work.tool_call
    return capped_lognormal_from_mean_cv(work.tool_s, 0.0)


def _trainer(system: System, plan: DecisionArrays) -> TrainerLine:
    """Split the time of a mean batch into a fixed part and one in proportion to its tokens."""
    kinds, algorithm = system.trainers, system.algorithm
    state = trainer_state(system, plan, rollout_state(system, plan))
    fixed = float(plan.epochs[0]) * kinds.fixed_s * kinds.optimizer_steps_per_batch
    tokens = float(state.trained_samples[0] * state.sequence_tokens[0])
    place = (int(plan.trainer_kind[0]), int(plan.generator_kind[0]))
    switching = int(plan.mode[0]) == COLOCATED_SYNC
    return TrainerLine(
        fixed_s=fixed,
        s_per_token=(float(state.train_s[0]) - fixed) / tokens,
        step_cv=kinds.step_cv,
        optimizer_steps=kinds.optimizer_steps_per_batch,
        sync_s=float(system.sync_s[place]),
        sync_every=algorithm.weight_sync_every_steps,
        trainer_blocks=algorithm.trainer_blocks,
        generator_pauses=algorithm.generator_pauses,
        switch_s=float(system.switch_s[place]) if switching else 0.0,
    )


def _reward(system: System, plan: DecisionArrays, state: RewardState) -> Reward:
    law, kinds = system.reward, system.reward_kinds
    if law.placement == "own_gpus" and kinds is not None:
        # What one server takes, from the rate of all of them.
        engines = float(plan.reward_engines[0])
        seconds = engines / float(state.scored_per_s[0])
        at_once = 1.0 if kinds.decode is None else kinds.judge_in_flight
        return Reward(
            servers=engines * at_once,
            seconds=seconds * at_once,
            latency_s=law.latency_s + law.calls * law.cpu_s,
            overlap=law.overlap,
        )
    if law.placement == "shared_engine":
        return Reward(
            engine_s=float(state.engine_s[0]), latency_s=law.latency_s, overlap=law.overlap
        )
    if law.placement == "api" and math.isfinite(law.max_calls_per_s):
        # A limit of calls per second: one server that spaces them.
        return Reward(
            servers=1.0,
            seconds=law.calls / law.max_calls_per_s,
            latency_s=law.latency_s,
            overlap=law.overlap,
        )
    return Reward(
        servers=law.workers,
        seconds=law.calls * law.cpu_s,
        latency_s=law.latency_s,
        overlap=law.overlap,
    )


def _sandboxes(system: System) -> Sandboxes | None:
    law = system.sandbox
    if law is None:
        return None
    start, failure = law.start_s, law.failure_fraction
    return Sandboxes(
        per_rollout=law.per_rollout,
        quota=law.max_concurrent,
        start_s=tuple(zip(start.concurrency, start.values, strict=True)),
        failure_share=tuple(zip(failure.concurrency, failure.values, strict=True)),
        retries=law.retries,
        timeout_s=law.timeout_s,
    )


def _prefill_pool(system: System, plan: DecisionArrays) -> PrefillPool | None:
    reader, kinds = int(plan.prefill_kind[0]), system.engines
    if reader < 0:
        return None
    return PrefillPool(
        count=int(plan.prefill_engines[0]),
        prefill=PrefillLaw(*_scalars(kinds.prefill, reader)),
        bytes_per_token=float(kinds.kv_token_bytes[reader]),
        bytes_per_s=float(system.kv_link_bytes_per_s[reader, int(plan.generator_kind[0])]),
    )
