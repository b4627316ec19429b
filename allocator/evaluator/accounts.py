"""The accounts of a plan: where tokens, FLOPs, dollars and hours go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.evaluator.bill import bill_by_use, gpus_in_use
from allocator.evaluator.generator import GeneratorState
from allocator.evaluator.match_state import MatchState
from allocator.evaluator.rollouts import RolloutState
from allocator.evaluator.trainer import TrainerState
from allocator.physics.availability import (
    RunStretch,
    evaluation_hold_s,
    evaluation_pause_s,
    failures_per_s,
    run_stretch,
)
from allocator.physics.economics import SECONDS_PER_HOUR, usd_per_mtok
from allocator.physics.flops import update_fraction
from allocator.physics.sandbox import sandbox_usd_per_hour
from allocator.physics.trainer import mfu
from allocator.problem.decisions import ASYNC, DecisionArrays
from allocator.problem.money import needed_samples
from allocator.problem.system import System

#: Least share of samples that counts as useful: a plan without any is hopeless, not infinite.
LEAST_USEFUL = 1e-9


@dataclass(frozen=True, slots=True)
class Accounts:
    """Totals of each plan; arrays, one entry a plan. Token fates are shares of generated tokens.

    Rates are those of the running steps; `availability` says which share of the run's time those
    take, and dollars per token and hours of the run include the rest.
    """

    trained_samples_per_s: Any
    trained_tokens_per_s: Any
    useful_tokens_per_s: Any
    useful: Any
    no_signal: Any
    rejected_stale: Any
    oversampled: Any
    dropped_overflow: Any
    failed: Any
    mixed_environment: Any
    search_flops: Any
    learning_flops: Any
    reward_flops: Any
    update_fraction: Any
    update_fraction_without_log_probs: Any
    mfu_busy: Any
    mfu_wall: Any
    gpus_paid: Any
    usd_per_hour: Any
    reward_usd_per_hour: Any
    sandbox_usd_per_hour: Any
    usd_per_mtok: Any
    usd_per_useful_mtok: Any
    flops_per_hour: Any
    availability: RunStretch
    needed_steps: Any
    run_steps: Any
    run_hours: Any
    run_usd: Any


@dataclass(frozen=True, slots=True)
class _Fates:
    """Where generated tokens end; the shares sum to 1."""

    useful: Any
    no_signal: Any
    rejected_stale: Any
    oversampled: Any
    dropped_overflow: Any
    failed: Any
    mixed_environment: Any


def _fates(
    system: System, rollouts: RolloutState, generator: GeneratorState, match: MatchState
) -> _Fates:
    """Follow every generated token, in the order a rollout meets its fates.

    Lost with its sandbox or restarted at a weight update; cancelled by oversampling; its group
    without advantage and replaced (refill); thrown out of a full queue; rejected as stale;
    trained. Where groups without advantage are not replaced they reach the batch and are dropped
    or trained on in vain there. Of the rounds that fill a batch, groups beyond it are discarded.
    """
    algorithm, at = system.algorithm, rollouts.at
    signal = at(rollouts.signal)
    refill = algorithm.dynamic_sampling == "refill"
    alive = (1.0 - generator.failed_token_share) * (1.0 - match.aborted_fraction)
    kept = alive * (1.0 - match.discarded_token_fraction)
    queued = kept * (signal if refill else 1.0)
    # One batch is taken of what the rounds bring; in async every group is.
    whole = at((rollouts.batch > 0) & refill)
    surplus = queued * np.where(whole, 1.0 - 1.0 / np.maximum(at(rollouts.rounds) * signal, 1.0), 0)
    offered = queued - surplus
    stale = offered * (1.0 - match.accepted_fraction)
    overflow = offered * match.accepted_fraction * match.dropped_fraction
    reached = offered * match.accepted_fraction * (1.0 - match.dropped_fraction)
    carrying = reached if refill else reached * signal
    mixed = carrying * match.mixed_fraction if algorithm.exclude_mixed else 0.0 * carrying
    return _Fates(
        useful=carrying - mixed,
        no_signal=(kept - queued) + (reached - carrying),
        rejected_stale=stale,
        oversampled=(alive - kept) + surplus,
        dropped_overflow=overflow,
        failed=1.0 - alive,
        mixed_environment=mixed,
    )


def accounts(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
    match: MatchState,
) -> Accounts:
    """Follow every generated token, FLOP and dollar of each plan."""
    algorithm, money = system.algorithm, system.money
    signal = rollouts.at(rollouts.signal)
    fates = _fates(system, rollouts, generator, match)
    refill = algorithm.dynamic_sampling == "refill"
    drop = algorithm.dynamic_sampling == "drop"
    # A rollout given up leaves its place in the batch empty.
    there = 1.0 - generator.given_up_share
    trained_per_s = match.samples_per_s * there * (signal if drop else 1.0)
    useful_per_s = match.samples_per_s * there * (1.0 if refill else signal)
    if algorithm.exclude_mixed:
        useful_per_s = useful_per_s * np.maximum(1.0 - match.mixed_fraction, LEAST_USEFUL)
    response = rollouts.at(rollouts.cut.kept_mean_tokens)
    shortened = match.update_length_bias * generator.kept_length_ratio
    tokens = response * shortened
    if money.sequence_basis:
        tokens = trainer.sequence_tokens + (tokens - response)
    started_per_s = match.dispatched_per_s * match.written_ratio
    search = generator.search_flops_per_rollout * started_per_s * match.step_s
    learning = trainer.learning_flops
    around = generator.stations
    attempted = rollouts.at(rollouts.started_per_kept)
    # Of what restarts throw away nothing is scored.
    finished = (1.0 - match.aborted_fraction) / match.update_length_bias
    scored_per_s = match.dispatched_per_s * finished * generator.ended_share * there / attempted
    reward = around.reward.flops * scored_per_s * match.step_s
    trained_tokens = trainer.trained_samples * trainer.sequence_tokens * plans.epochs
    peak = system.trainers.peak_flops_per_s[plans.trainer_kind]
    bill = bill_by_use(system, plans, generator)
    gpus_paid, usd_per_hour = bill.gpus, bill.usd_per_hour
    reward_usd = around.reward.usd * scored_per_s * SECONDS_PER_HOUR
    sandbox_usd = _sandbox_usd(system, generator, match)
    usd_per_hour = usd_per_hour + reward_usd + sandbox_usd
    useful_tokens_per_s = useful_per_s * tokens
    flops_per_hour = (search + learning + reward) / match.step_s * SECONDS_PER_HOUR
    needed = (
        needed_samples(
            money,
            trainer.batch_samples,
            trainer.trained_samples / trainer.batch_samples,
            useful_tokens_per_s / match.samples_per_s,
        )
        / trainer.batch_samples
    )
    running = _availability(system, plans, generator, match)
    hours = _hours(
        system,
        needed * match.step_s * running.stretch / SECONDS_PER_HOUR,
        gpus_paid,
        usd_per_hour,
        flops_per_hour / running.stretch,
    )
    return Accounts(
        trained_samples_per_s=trained_per_s,
        trained_tokens_per_s=trained_per_s * tokens,
        useful_tokens_per_s=useful_tokens_per_s,
        useful=fates.useful,
        no_signal=fates.no_signal,
        rejected_stale=fates.rejected_stale,
        oversampled=fates.oversampled,
        dropped_overflow=fates.dropped_overflow,
        failed=fates.failed,
        mixed_environment=fates.mixed_environment,
        search_flops=search,
        learning_flops=learning,
        reward_flops=reward,
        update_fraction=update_fraction(learning, search, reward),
        update_fraction_without_log_probs=update_fraction(
            learning - trainer.log_prob_flops, search, reward
        ),
        mfu_busy=mfu(
            system.active_params, trained_tokens, plans.trainer_gpus, peak, trainer.train_s
        ),
        mfu_wall=mfu(system.active_params, trained_tokens, plans.trainer_gpus, peak, match.step_s),
        gpus_paid=gpus_paid,
        usd_per_hour=usd_per_hour,
        reward_usd_per_hour=reward_usd,
        sandbox_usd_per_hour=sandbox_usd,
        usd_per_mtok=usd_per_mtok(usd_per_hour * running.stretch, trained_per_s * tokens),
        usd_per_useful_mtok=usd_per_mtok(usd_per_hour * running.stretch, useful_tokens_per_s),
        flops_per_hour=flops_per_hour,
        availability=running,
        needed_steps=needed,
        run_steps=hours * SECONDS_PER_HOUR / (match.step_s * running.stretch),
        run_hours=hours,
        run_usd=hours * usd_per_hour,
    )


def _sandbox_usd(system: System, generator: GeneratorState, match: MatchState) -> Any:
    """Dollars per hour of sandboxes; between batches none runs."""
    if system.sandbox is None:
        return np.zeros(np.shape(match.step_s))
    busy = 1.0 - match.generator_wait_fraction
    return busy * sandbox_usd_per_hour(generator.stations.sandboxes, system.sandbox.usd_per_hour)


def _availability(
    system: System, plans: DecisionArrays, generator: GeneratorState, match: MatchState
) -> RunStretch:
    """Shares of the run's time that evaluations, checkpoints and failures take."""
    stops = system.interruptions
    hold: Any = 0.0
    if stops.evaluation_every_steps is not None:
        pause = evaluation_pause_s(
            1.0,
            stops.evaluation_tokens,
            generator.dispatched_per_s * generator.written_tokens,
        )
        waiting = np.where((plans.mode == ASYNC) & (match.load > 1.0), plans.queue_batches - 1, 0)
        spare = 1.0 - match.samples_per_s / np.maximum(
            match.offered_samples_per_s, match.samples_per_s
        )
        hold = evaluation_hold_s(pause, stops.evaluation_every_steps, match.step_s, waiting, spare)
    return run_stretch(
        match.step_s,
        evaluation_hold_s=hold,
        evaluation_every_steps=stops.evaluation_every_steps or 1.0,
        checkpoint_s=stops.checkpoint_s if stops.checkpoint_every_steps is not None else 0.0,
        checkpoint_every_steps=stops.checkpoint_every_steps or 1.0,
        checkpoint_blocks=stops.checkpoint_blocks,
        failures_per_s=0.0
        if stops.mtbf_gpu_hours is None
        else failures_per_s(gpus_in_use(plans, generator), stops.mtbf_gpu_hours),
        restart_s=stops.restart_s,
    )


def _hours(
    system: System,
    needed_hours: Any,
    gpus_paid: Any,
    usd_per_hour: Any,
    flops_per_hour: Any,
) -> Any:
    """Hours of the run: until the target, or without one until the first budget ends."""
    money = system.money
    if any(
        goal is not None
        for goal in (money.target_steps, money.target_samples, money.target_useful_tokens)
    ):
        return needed_hours
    hours = np.full(np.shape(needed_hours), np.inf)
    for budget, per_hour in (
        (money.usd, usd_per_hour),
        (money.gpu_hours, gpus_paid),
        (money.flops, flops_per_hour),
        (money.hours, 1.0),
    ):
        if budget is not None:
            hours = np.minimum(hours, budget / per_hour)
    return hours
