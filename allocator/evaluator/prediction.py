"""One plan of an outcome as people and JSON read it: decisions, prediction, limits."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from allocator.evaluator import Outcome
from allocator.evaluator.bill import bill_by_use
from allocator.evaluator.diagnosis import bottleneck_and_cause
from allocator.evaluator.limits import GIB, ROUNDING
from allocator.evaluator.stale import staleness_of
from allocator.plan import (
    MODES,
    Availability,
    Decisions,
    EngineGroup,
    Environment,
    Flops,
    GeneratorPlan,
    Layout,
    Limit,
    Memory,
    Prediction,
    RewardPlan,
    Run,
    Spending,
    Staleness,
    TokenFate,
    TrainerPlan,
)
from allocator.problem.build import Problem
from allocator.problem.decisions import ASYNC, DecisionArrays

#: A limit with less slack than this share of it is called binding.
BINDING = 0.02


def decisions_of(problem: Problem, plans: DecisionArrays, index: int) -> Decisions:
    """Return one plan's decisions with names for pools, engines and layouts."""
    system = problem.system
    trainer = int(plans.trainer_kind[index])
    trainer_pool, layout = system.trainers.labels[trainer]
    gpus = int(plans.trainer_gpus[index])
    width = _trainer_width(problem, plans, index)
    if len(system.trainers.widths) > 1:
        layout = Layout(cp=width)
    prompts, group = int(plans.prompts_per_step[index]), int(plans.group_size[index])
    streaming = int(plans.mode[index]) == ASYNC
    return Decisions(
        mode=MODES[int(plans.mode[index])],
        trainer=TrainerPlan(
            pool=system.pools[trainer_pool].name,
            gpu=system.pools[trainer_pool].gpu,
            gpus=gpus,
            parallelism=layout,
            ranks=max(1, gpus // width),
        ),
        generator=_generator_plan(problem, plans, index),
        reward=_reward_plan(problem, plans, index),
        prompts_per_step=prompts,
        group_size=group,
        batch=prompts * group,
        oversampling=float(plans.oversampling[index]),
        epochs=int(plans.epochs[index]),
        trained_share=1.0,
        queue_batches=int(plans.queue_batches[index]) if streaming else 0,
    )


def _generator_plan(problem: Problem, plans: DecisionArrays, index: int) -> GeneratorPlan:
    kind, engines = int(plans.generator_kind[index]), int(plans.engines[index])
    in_flight = int(plans.in_flight_per_engine[index])
    readers, reader = int(plans.prefill_engines[index]), int(plans.prefill_kind[index])
    if reader < 0:
        groups = [_engine_group(problem, kind, "aggregated", engines, in_flight)]
    else:
        groups = [
            _engine_group(problem, reader, "prefill", readers, 0),
            _engine_group(problem, kind, "decode", engines, in_flight),
        ]
    gpus = 0
    for group in groups:
        pool = next(p for p in problem.system.pools if p.name == group.pool)
        gpus += -(-group.engines * group.gpus_per_engine // pool.unit_gpus) * pool.unit_gpus
    return GeneratorPlan(
        gpus=gpus, engines=engines, in_flight=engines * in_flight, groups=tuple(groups)
    )


def _engine_group(
    problem: Problem,
    kind: int,
    role: Literal["aggregated", "prefill", "decode"],
    engines: int,
    in_flight: int,
) -> EngineGroup:
    kinds = problem.system.engines
    label = kinds.labels[kind]
    pool = problem.system.pools[label.pool]
    return EngineGroup(
        pool=pool.name,
        gpu=pool.gpu,
        role=role,
        engines=engines,
        gpus_per_engine=int(kinds.gpus_per_engine[kind]),
        layout=label.layout,
        in_flight_per_engine=in_flight,
        share=1.0,
        backend=label.backend,
        backend_version=label.backend_version,
        weights_dtype=label.weights_dtype,
        kv_dtype=label.kv_dtype,
    )


def _reward_plan(problem: Problem, plans: DecisionArrays, index: int) -> RewardPlan:
    system = problem.system
    law, kinds, kind = system.reward, system.reward_kinds, int(plans.reward_kind[index])
    own = kinds is not None and kind >= 0
    pool = system.pools[kinds.labels[kind].pool] if kinds is not None and own else None
    each = int(kinds.gpus_per_engine[kind]) if kinds is not None and own else 0
    engines = int(plans.reward_engines[index])
    unit = 1 if pool is None else pool.unit_gpus
    return RewardPlan(
        type=law.type,
        placement=law.placement,
        pool=None if pool is None else pool.name,
        gpu=None if pool is None else pool.gpu,
        gpus=-(-engines * each // unit) * unit,
        engines=engines,
        gpus_per_engine=each,
        workers=int(law.workers) if math.isfinite(law.workers) else None,
    )


def _trainer_width(problem: Problem, plans: DecisionArrays, index: int) -> int:
    from allocator.evaluator.trainer import replica_width

    width = replica_width(
        problem.system,
        plans.trainer_kind[index : index + 1],
        plans.trainer_gpus[index : index + 1].astype(float),
    )
    return int(width[0])


def prediction_of(problem: Problem, outcome: Outcome, index: int) -> Prediction:
    """Return one plan's prediction as scalars, its staleness distribution included."""

    def at(values: Any) -> float:
        return float(np.broadcast_to(values, (len(outcome.plans),))[index])

    system = problem.system
    generator, trainer = outcome.generator, outcome.trainer
    match, account, rollouts = outcome.match, outcome.accounts, outcome.rollouts
    bottleneck, cause = bottleneck_and_cause(problem, outcome, index)
    kind = int(outcome.plans.generator_kind[index])
    kinds = system.engines
    per_engine = float(kinds.gpus_per_engine[kind])
    kv = at(generator.kv_bytes) / per_engine
    cut = rollouts.cut
    search, learning = at(account.search_flops), at(account.learning_flops)
    reward = at(account.reward_flops)
    hours = at(account.run_hours)
    return Prediction(
        step_s=at(match.step_s),
        train_s=at(trainer.train_s),
        generation_s=at(match.generation_s),
        weight_sync_s=at(match.sync_s),
        decode_step_s=at(generator.step_s),
        generated_samples_per_s=at(match.dispatched_per_s),
        generated_tokens_per_s=at(
            match.dispatched_per_s * generator.written_tokens * match.written_ratio
        ),
        accepted_samples_per_s=at(match.offered_samples_per_s),
        trained_samples_per_s=at(account.trained_samples_per_s),
        trainer_samples_per_s=at(match.trainer_samples_per_s),
        trainer_wait_fraction=at(match.wait_fraction),
        generator_wait_fraction=at(match.generator_wait_fraction),
        update_pause_fraction=at(match.paused_fraction),
        load=at(match.load),
        bottleneck=bottleneck,
        cause=cause,
        mfu_busy=at(account.mfu_busy),
        mfu_wall=at(account.mfu_wall),
        hfu=float(system.trainers.hfu[outcome.plans.trainer_kind[index]]),
        imbalance=at(trainer.imbalance),
        update_fraction=at(account.update_fraction),
        update_fraction_without_log_probs=at(account.update_fraction_without_log_probs),
        staleness=_staleness(problem, outcome, index),
        decoding=at(generator.decoding) * float(outcome.plans.engines[index]),
        in_flight_context_tokens=at(generator.context_tokens),
        discarded_rollouts_fraction=at(rollouts.at(cut.discarded_rollout_fraction)),
        discarded_tokens_fraction=at(rollouts.at(cut.discarded_token_fraction)),
        length_bias=at(
            rollouts.at(cut.length_bias) * match.update_length_bias * generator.kept_length_ratio
        ),
        truncated_fraction=float(system.workload.lengths.truncated_fraction),
        signal_fraction=at(rollouts.at(rollouts.signal)),
        token_fate=TokenFate(
            useful=at(account.useful),
            no_signal=at(account.no_signal),
            rejected_stale=at(account.rejected_stale),
            oversampled=at(account.oversampled),
            dropped_overflow=at(account.dropped_overflow),
            failed=at(account.failed),
            mixed_environment=at(account.mixed_environment),
        ),
        trained_sequence_tokens=at(trainer.sequence_tokens),
        trained_tokens_per_s=at(account.trained_tokens_per_s),
        useful_tokens_per_s=at(account.useful_tokens_per_s),
        usd_per_hour=at(account.usd_per_hour),
        usd_per_mtok=at(account.usd_per_mtok),
        usd_per_useful_mtok=at(account.usd_per_useful_mtok),
        flops=Flops(search, learning, reward, search + learning + reward),
        memory=Memory(
            trainer_gib=at(trainer.memory_bytes) / GIB,
            trainer_limit_gib=float(
                system.trainers.hbm_limit_bytes[outcome.plans.trainer_kind[index]]
            )
            / GIB,
            generator_gib=(float(kinds.weights_bytes_per_gpu[kind]) + kv) / GIB,
            generator_limit_gib=float(kinds.hbm_limit_bytes[kind]) / GIB,
            kv_gib=kv / GIB,
            kv_limit_gib=float(kinds.kv_budget_bytes[kind]) / per_engine / GIB,
        ),
        environment=_environment(problem, outcome, index),
        availability=Availability(
            productive=at(account.availability.productive_share),
            evaluation=at(account.availability.evaluation_share),
            checkpoint=at(account.availability.checkpoint_share),
            restart=at(account.availability.restart_share),
            redone=at(account.availability.redone_share),
        ),
        spending=_spending(problem, outcome, index),
        run=Run(
            steps=at(account.run_steps),
            hours=hours,
            gpu_hours=hours * at(account.gpus_paid),
            usd=at(account.run_usd),
            ended_by=_ended_by(problem, outcome, index),
        ),
    )


def _spending(problem: Problem, outcome: Outcome, index: int) -> Spending:
    system, plans, account = problem.system, outcome.plans, outcome.accounts
    bill = bill_by_use(system, plans, outcome.generator)

    def at(values: Any) -> float:
        return float(np.broadcast_to(values, (len(plans),))[index])

    return Spending(
        trainer=at(bill.trainer),
        generator=at(bill.generator),
        reward=at(bill.reward),
        idle=at(bill.idle),
        sandboxes=at(account.sandbox_usd_per_hour),
        reward_api=at(account.reward_usd_per_hour),
    )


def _environment(problem: Problem, outcome: Outcome, index: int) -> Environment:
    system, generator, account = problem.system, outcome.generator, outcome.accounts
    around = generator.stations

    def at(values: Any) -> float:
        return float(np.broadcast_to(values, (len(outcome.plans),))[index])

    def rate(values: Any) -> float | None:
        return at(values) if math.isfinite(at(values)) else None

    return Environment(
        tool_s=system.workload.environment_s,
        sandboxes=at(around.sandboxes),
        sandbox_start_s=at(around.start_s),
        sandbox_usd_per_hour=at(account.sandbox_usd_per_hour),
        failed_rollouts_fraction=at(generator.lost_share),
        reward_s=at(around.reward.latency_s),
        reward_wait_s=at(outcome.match.reward_wait_s),
        rewards_per_s=rate(around.reward.scored_per_s),
        reward_usd_per_hour=at(account.reward_usd_per_hour),
        prefills_per_s=rate(around.read_per_s),
        prefill_s=at(around.engine_prefill_s + around.pool_prefill_s),
        kv_transfer_s=at(around.transfer_s),
    )


def _staleness(problem: Problem, outcome: Outcome, index: int) -> Staleness:
    return staleness_of(problem.system, outcome.plans, outcome.rollouts, outcome.matched, index)


def _ended_by(problem: Problem, outcome: Outcome, index: int) -> str:
    money, account = problem.system.money, outcome.accounts
    for name in ("target_steps", "target_samples", "target_useful_tokens"):
        if getattr(money, name) is not None:
            return "budget.target"
    hours = float(account.run_hours[index])
    per_hour = {
        "usd": float(account.usd_per_hour[index]),
        "gpu_hours": float(account.gpus_paid[index]),
        "flops": float(account.flops_per_hour[index] / account.availability.stretch[index]),
        "hours": 1.0,
    }
    for name, rate in per_hour.items():
        budget = getattr(money, name)
        if budget is not None and budget / rate <= hours * (1.0 + ROUNDING):
            return f"budget.{name}"
    return "nothing"


def limits_of(problem: Problem, outcome: Outcome, index: int) -> tuple[Limit, ...]:
    """Return every named limit at one plan, broken ones included.

    A limit that rejection keeps is shown with the oldest samples that occur (all but 1 in 10,000),
    so that one can see whether it binds.
    """
    limits = []
    algorithm = problem.system.algorithm
    for spec in problem.limits:
        value, limit = (
            float(np.broadcast_to(v, (len(outcome.plans),))[index])
            for v in outcome.limits[spec.name]
        )
        if (
            spec.name.startswith("staleness_")
            and algorithm.staleness_enforce == "reject"
            and outcome.matched.place[index] >= 0
        ):
            value = min(limit, float(len(_staleness(problem, outcome, index).cdf) - 1))
        slack = limit - value
        if abs(slack) <= ROUNDING * abs(limit):
            slack = 0.0
        binding = slack <= BINDING * abs(limit)
        limits.append(Limit(spec.name, value, limit, spec.unit, slack, binding, spec.where))
    return tuple(limits)
