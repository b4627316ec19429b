"""The modes that generate a batch as a whole: how long it takes, and the step that results."""

from __future__ import annotations

from typing import Any

import numpy as np

from allocator.evaluator.batch_writing import Written, batch_written
from allocator.evaluator.generator import GeneratorState
from allocator.evaluator.match_state import MatchState
from allocator.evaluator.rollouts import RolloutState
from allocator.evaluator.trainer import TrainerState
from allocator.physics.batch_step import (
    batch_staleness_mean,
    step_in_turn_s,
    step_overlapped_s,
)
from allocator.physics.resumed import ends_met_at_most
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
    written = batch_written(system, plans, rollouts, generator)
    whole_s, scored = written.whole_s, written.scoring_s
    mixed = 1.0 - _met_at_most(system, written, 0.0)
    sync_s = system.sync_s[plans.trainer_kind, plans.generator_kind]
    # Between pools there is nothing to switch (infinite in the table): a limit forbids the plan.
    switching = system.switch_s[plans.trainer_kind, plans.generator_kind]
    together = (plans.mode == COLOCATED_SYNC) & np.isfinite(switching)
    switch_s = np.where(together, switching, 0.0)
    overlapped = plans.mode == ONE_STEP_OFF
    step_s = np.where(
        overlapped,
        step_overlapped_s(
            whole_s,
            trainer.train_s,
            sync_s / every,
            written.sd_s,
            trainer.step_cv * trainer.train_s,
        ),
        step_in_turn_s(whole_s, trainer.train_s, sync_s / every, switch_s),
    )
    rate = batch / step_s
    taken = batch / (trainer.train_s + sync_s / every)
    offered = batch / whole_s
    lag, versions = np.where(overlapped, 1.0, 0.0), system.trainers.optimizer_steps_per_batch
    mean = batch_staleness_mean(lag, versions, every, written.ends_met)
    oldest = versions * (lag + _oldest(system, written) + every) - 1.0
    attempted = at(rollouts.started_per_kept) * batch * rounds / generator.ended_share
    tokens = at(rollouts.cut.dispatched_mean_tokens)
    residence_s = generator.residence_fixed_s + generator.residence_token_s * tokens
    residence_s = np.where(written.resumed, written.life_token_s * tokens, residence_s)
    nothing, one = np.zeros(np.shape(rate)), np.ones(np.shape(rate))
    return MatchState(
        samples_per_s=rate,
        step_s=step_s,
        sync_s=sync_s,
        dispatched_per_s=attempted / step_s,
        written_ratio=written.written_ratio,
        discarded_token_fraction=written.discarded_token_fraction,
        life_token_s=written.life_token_s,
        late_share=written.late_share,
        late_part=written.late_part,
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


def _met_at_most(system: System, written: Written, batches: float) -> Any:
    """Probability that a resumed rollout meets at most so many ends of batches; else 1."""
    if not np.any(written.resumed):
        return np.ones(np.shape(written.whole_s))
    at_most = ends_met_at_most(
        system.workload.lengths,
        written.life_token_s,
        written.generation_s,
        batches,
        written.late_share,
        written.late_part,
    )
    return np.where(written.resumed, at_most, 1.0)


def _oldest(system: System, written: Written) -> Any:
    """Batches before its own in which the oldest samples were begun, by the limited quantile."""
    count: Any = np.zeros(np.shape(written.whole_s))
    if not np.any(written.resumed):
        return count
    share = QUANTILES.get(system.algorithm.staleness_metric, REPORTED)
    for batches in range(MOST_RESUMED):
        older = _met_at_most(system, written, float(batches)) < share
        if not np.any(older):
            break
        count = np.where(older, batches + 1.0, count)
    return count
