"""The accounts of a plan: where tokens, FLOPs, dollars and hours go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.evaluator.generator import GeneratorState, RolloutState
from allocator.evaluator.match import MatchState
from allocator.evaluator.trainer import TrainerState
from allocator.physics.economics import SECONDS_PER_HOUR, usd_per_mtok
from allocator.physics.flops import update_fraction
from allocator.physics.trainer import mfu
from allocator.problem.decisions import DecisionArrays
from allocator.problem.money import needed_samples
from allocator.problem.system import System


@dataclass(frozen=True, slots=True)
class Accounts:
    """Totals of each plan; arrays, one entry a plan. Token fates are shares of generated tokens."""

    trained_samples_per_s: Any
    trained_tokens_per_s: Any
    useful_tokens_per_s: Any
    useful: Any
    no_signal: Any
    rejected_stale: Any
    oversampled: Any
    dropped_overflow: Any
    search_flops: Any
    learning_flops: Any
    update_fraction: Any
    update_fraction_without_log_probs: Any
    mfu_busy: Any
    mfu_wall: Any
    gpus_paid: Any
    usd_per_hour: Any
    usd_per_mtok: Any
    usd_per_useful_mtok: Any
    flops_per_hour: Any
    needed_steps: Any
    run_steps: Any
    run_hours: Any
    run_usd: Any


def accounts(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
    match: MatchState,
) -> Accounts:
    """Follow every generated token, FLOP and dollar of each plan.

    Fates, in the order a rollout meets them: cancelled by oversampling; its group without
    advantage and replaced (refill); thrown out of a full queue; rejected as stale; trained. Where
    groups without advantage are not replaced they reach the batch and are dropped or trained on
    in vain there. The shares sum to 1.
    """
    algorithm, money = system.algorithm, system.money
    signal = rollouts.at(rollouts.signal)
    refill = algorithm.dynamic_sampling == "refill"
    drop = algorithm.dynamic_sampling == "drop"
    kept = 1.0 - rollouts.at(rollouts.cut.discarded_token_fraction)
    queued = kept * (signal if refill else 1.0)
    stale = queued * (1.0 - match.accepted_fraction)
    overflow = queued * match.accepted_fraction * match.dropped_fraction
    reached = queued * match.accepted_fraction * (1.0 - match.dropped_fraction)
    useful = reached if refill else reached * signal
    trained_per_s = match.samples_per_s * (signal if drop else 1.0)
    useful_per_s = match.samples_per_s * (1.0 if refill else signal)
    response = rollouts.at(rollouts.cut.kept_mean_tokens)
    tokens = trainer.sequence_tokens if money.sequence_basis else response
    dispatched = generator.dispatched_per_s * match.running_fraction
    search = generator.search_flops_per_rollout * dispatched * match.step_s
    learning = trainer.learning_flops
    trained_tokens = trainer.trained_samples * trainer.sequence_tokens * plans.epochs
    peak = system.trainers.peak_flops_per_s[plans.trainer_kind]
    gpus_paid, usd_per_hour = _bill(system, plans, generator)
    useful_tokens_per_s = useful_per_s * tokens
    flops_per_hour = (search + learning) / match.step_s * SECONDS_PER_HOUR
    needed = (
        needed_samples(
            money,
            trainer.batch_samples,
            trainer.trained_samples / trainer.batch_samples,
            useful_tokens_per_s / match.samples_per_s,
        )
        / trainer.batch_samples
    )
    hours = _hours(
        system, needed * match.step_s / SECONDS_PER_HOUR, gpus_paid, usd_per_hour, flops_per_hour
    )
    return Accounts(
        trained_samples_per_s=trained_per_s,
        trained_tokens_per_s=trained_per_s * tokens,
        useful_tokens_per_s=useful_tokens_per_s,
        useful=useful,
        no_signal=(kept - queued) + (reached - useful),
        rejected_stale=stale,
        oversampled=1.0 - kept,
        dropped_overflow=overflow,
        search_flops=search,
        learning_flops=learning,
        update_fraction=update_fraction(learning, search, 0.0),
        update_fraction_without_log_probs=update_fraction(
            learning - trainer.log_prob_flops, search, 0.0
        ),
        mfu_busy=mfu(
            system.active_params, trained_tokens, plans.trainer_gpus, peak, trainer.train_s
        ),
        mfu_wall=mfu(system.active_params, trained_tokens, plans.trainer_gpus, peak, match.step_s),
        gpus_paid=gpus_paid,
        usd_per_hour=usd_per_hour,
        usd_per_mtok=usd_per_mtok(usd_per_hour, trained_per_s * tokens),
        usd_per_useful_mtok=usd_per_mtok(usd_per_hour, useful_tokens_per_s),
        flops_per_hour=flops_per_hour,
        needed_steps=needed,
        run_steps=hours * SECONDS_PER_HOUR / match.step_s,
        run_hours=hours,
        run_usd=hours * usd_per_hour,
    )


def _bill(system: System, plans: DecisionArrays, generator: GeneratorState) -> tuple[Any, Any]:
    """GPUs paid for and dollars per hour: the whole pools when reserved, else what is used."""
    if system.money.reserved:
        gpus = float(sum(p.gpus for p in system.pools))
        usd = float(sum(p.gpus * p.usd_per_gpu_hour for p in system.pools))
        return np.full(len(plans), gpus), np.full(len(plans), usd)
    price = np.asarray([p.usd_per_gpu_hour for p in system.pools])
    trainer_price = price[system.trainers.pool.astype(int)][plans.trainer_kind]
    generator_price = price[system.engines.pool.astype(int)][plans.generator_kind]
    gpus = plans.trainer_gpus + generator.gpus
    return gpus, plans.trainer_gpus * trainer_price + generator.gpus * generator_price


def _hours(
    system: System, needed_hours: Any, gpus_paid: Any, usd_per_hour: Any, flops_per_hour: Any
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
