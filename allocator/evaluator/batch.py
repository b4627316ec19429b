"""The modes that generate a batch as a whole: how long it takes, and the step that results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from allocator.evaluator.columns import distinct_rows
from allocator.evaluator.generator import GeneratorState
from allocator.evaluator.match_state import MatchState, taken
from allocator.evaluator.rollouts import RolloutState
from allocator.evaluator.trainer import TrainerState
from allocator.physics.batch_generation import batch_generation
from allocator.physics.batch_step import (
    batch_staleness_mean,
    resumed_at_most,
    step_in_turn_s,
    step_overlapped_s,
)
from allocator.physics.reward import batch_reward_s
from allocator.physics.turns import tool_tail_s
from allocator.problem.decisions import COLOCATED_SYNC, ONE_STEP_OFF, DecisionArrays
from allocator.problem.system import System

#: Quantiles that a limit on staleness may hold for; a maximum is all but one sample in 10,000.
QUANTILES = {"p95": 0.95, "p99": 0.99}
REPORTED = 1.0 - 1e-4
#: Most batches that a rollout is followed through.
MOST_RESUMED = 200


def match_batches(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
) -> MatchState:
    """Find the step of every batch-synchronous plan; no queue, no overflow, no rejection."""
    algorithm, at = system.algorithm, rollouts.at
    every = algorithm.weight_sync_every_steps
    batch = trainer.batch_samples
    rounds = at(rollouts.rounds)
    written = _batch_written(system, plans, rollouts, generator)
    whole_s, scored, mixed = written.whole_s, written.scoring_s, written.mixed_fraction
    sync_s = system.sync_s[plans.trainer_kind, plans.generator_kind]
    # Between pools there is nothing to switch (infinite in the table): a limit forbids the plan.
    switching = system.switch_s[plans.trainer_kind, plans.generator_kind]
    together = (plans.mode == COLOCATED_SYNC) & np.isfinite(switching)
    switch_s = np.where(together, switching, 0.0)
    overlapped = plans.mode == ONE_STEP_OFF
    step_s = np.where(
        overlapped,
        step_overlapped_s(whole_s, trainer.train_s, sync_s / every),
        step_in_turn_s(whole_s, trainer.train_s, sync_s / every, switch_s),
    )
    rate = batch / step_s
    taken = batch / (trainer.train_s + sync_s / every)
    offered = batch / whole_s
    lag, versions = np.where(overlapped, 1.0, 0.0), system.trainers.optimizer_steps_per_batch
    mean = batch_staleness_mean(lag, versions, every, written.resumed_mean)
    oldest = versions * (lag + _resumed(system, generator, written) + every) - 1.0
    factor = np.where(algorithm.partial_rollout, 1.0, plans.oversampling)
    attempted = factor * batch * rounds / generator.ended_share
    residence_s = _residence_s(rollouts, generator)
    nothing, one = np.zeros(np.shape(rate)), np.ones(np.shape(rate))
    return MatchState(
        samples_per_s=rate,
        step_s=step_s,
        sync_s=sync_s,
        dispatched_per_s=attempted / step_s,
        paused_fraction=nothing,
        offered_samples_per_s=offered,
        trainer_samples_per_s=taken,
        accepted_fraction=one,
        dropped_fraction=nothing,
        aborted_fraction=nothing,
        update_length_bias=one,
        mixed_fraction=mixed,
        wait_fraction=1.0 - rate / taken,
        generator_wait_fraction=1.0 - whole_s / step_s,
        load=offered / taken,
        generation_s=whole_s,
        reward_wait_s=scored,
        sample_residence_s=residence_s,
        token_end_s=np.maximum(whole_s - 0.5 * residence_s, 0.0),
        staleness_mean=mean,
        staleness_metric=mean if algorithm.staleness_metric == "mean" else oldest,
    )


def offered_per_s(
    system: System, plans: DecisionArrays, rollouts: RolloutState, generator: GeneratorState
) -> Any:
    """Accepted samples/s of a generator that writes and scores one batch after the other."""
    batch = plans.prompts_per_step * plans.group_size
    return batch / _batch_written(system, plans, rollouts, generator).whole_s


@dataclass(frozen=True, slots=True)
class _Written:
    """One batch: seconds until it is written and scored, and the part that scoring adds.

    `mixed_fraction` of its samples were begun in an earlier batch, `resumed_mean` batches earlier
    on average over all.
    """

    whole_s: Any
    scoring_s: Any
    mixed_fraction: Any
    resumed_mean: Any


def _batch_written(
    system: System, plans: DecisionArrays, rollouts: RolloutState, generator: GeneratorState
) -> _Written:
    """Time one batch of every plan (once per distinct configuration of the generator)."""
    rows = distinct_rows(
        plans.generator_kind,
        plans.engines,
        plans.in_flight_per_engine,
        plans.prefill_kind,
        plans.prefill_engines,
        plans.reward_kind,
        plans.reward_engines,
        rollouts.row,
    )
    written = _distinct_written(
        system,
        plans.take(rows.first),
        replace(rollouts, row=rollouts.row[rows.first]),
        taken(generator, rows.first),
    )
    spread: _Written = taken(written, rows.inverse)
    return spread


def _distinct_written(
    system: System, plans: DecisionArrays, rollouts: RolloutState, generator: GeneratorState
) -> _Written:
    """Time one batch; dead groups are replaced in further rounds, each with its own tail."""
    reward, rounds = generator.stations.reward, rollouts.at(rollouts.rounds)
    batch = (plans.prompts_per_step * plans.group_size).astype(float)
    generation_s = _generation_s(system, plans, rollouts, generator, batch)
    mixed, resumed = np.zeros(batch.shape), np.zeros(batch.shape)
    if system.algorithm.partial_rollout:
        mixed = 1.0 - resumed_at_most(
            system.workload.lengths,
            generator.residence_fixed_s,
            generator.residence_token_s,
            generation_s,
            0.0,
        )
        resumed = _residence_s(rollouts, generator) / generation_s
    scoring_s = batch_reward_s(
        batch * rounds,
        reward.scored_per_s,
        reward.latency_s,
        rounds * generation_s,
        overlap=system.reward.overlap,
    )
    return _Written(rounds * generation_s + scoring_s, scoring_s, mixed, resumed)


def _residence_s(rollouts: RolloutState, generator: GeneratorState) -> Any:
    """Mean seconds of a rollout in the generator."""
    tokens = rollouts.at(rollouts.cut.dispatched_mean_tokens)
    return generator.residence_fixed_s + generator.residence_token_s * tokens


def _resumed(system: System, generator: GeneratorState, written: _Written) -> Any:
    """Batches before its own in which the oldest samples were begun, by the limited quantile."""
    none = np.zeros(np.shape(written.whole_s))
    if not system.algorithm.partial_rollout:
        return none
    share = QUANTILES.get(system.algorithm.staleness_metric, REPORTED)
    count = none
    for batches in range(MOST_RESUMED):
        at_most = resumed_at_most(
            system.workload.lengths,
            generator.residence_fixed_s,
            generator.residence_token_s,
            written.whole_s - written.scoring_s,
            float(batches),
        )
        count = np.where(at_most < share, batches + 1.0, count)
        if np.all(at_most >= share):
            break
    return count


def _generation_s(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    batch: Any,
) -> Any:
    """Seconds of one generated batch, without scoring.

    Where unfinished rollouts are resumed, o B of them are in flight all the time and a batch is
    the time in which B end, as in a stream; what is in flight is read again at every start.
    """
    work, at = system.workload, rollouts.at
    if system.algorithm.partial_rollout:
        stream_s = batch / (generator.dispatched_per_s * generator.ended_share)
        return stream_s + generator.resident * generator.reread_s
    around = generator.stations
    assert rollouts.together is not None
    cut = taken(rollouts.together, at(rollouts.together_row))
    tail: Any = 0.0
    if work.tool_calls is not None:
        beyond = cut.end_tokens - cut.lengths.dispatched_mean_tokens
        tail = tool_tail_s(
            generator.residence_token_s * np.maximum(beyond, 0.0),
            work.tool_calls,
            batch,
            work.lengths.truncated_fraction,
        )
    written = batch_generation(
        system.engines.decode.take(plans.generator_kind),
        work.lengths,
        cut,
        engines=plans.engines * generator.ended_share,
        slots=np.minimum(plans.in_flight_per_engine, generator.sequences_fit),
        prompt_tokens=(work.prompt_tokens + work.fixed_tokens) / 2.0,
        prefill_s=around.engine_prefill_s,
        environment_s=around.environment_s - around.reward.latency_s,
        tail_s=tail,
    )
    limited_s = plans.oversampling * batch / generator.ended_share / around.read_per_s
    return np.maximum(written.seconds, limited_s)
