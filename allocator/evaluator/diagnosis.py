"""Which part of a plan sets its pace, and why."""

from __future__ import annotations

from typing import Any

import numpy as np

from allocator.evaluator import Outcome
from allocator.physics.decode import decode_step_s
from allocator.problem.build import Problem
from allocator.problem.decisions import ASYNC

#: Rates this close count as matched: neither side waits for long.
MATCHED = 0.02
#: More rollouts in flight would raise the rate by at least this: concurrency is the bottleneck.
WORTHWHILE = 0.10
#: Causes are named when they cost at least this share.
MATTERS = 0.15


def bottleneck_and_cause(problem: Problem, outcome: Outcome, index: int) -> tuple[str, str]:
    """Name the slowest stage of one plan and the strongest reason for it.

    Stages: `trainer` when it could take no more than the generator delivers (in the modes where
    both take turns, when it takes longer); `weight_sync` when the transfer takes longer than
    both; else the generator's narrowest part: `reward`, `prefill` (also when engines spend more
    time reading than writing), `sandbox` when its start takes half of a rollout's time,
    `concurrency` when filling the KV cache would raise the rate by 10%, otherwise `decode`.
    Causes, strongest first: a binding staleness limit, groups without signal, cancelled rollouts
    (tail), lost attempts (sandbox), KV memory, the environment (tools), imbalance over trainer
    ranks, weight sync; `none` when nothing costs 15%.
    """
    match = outcome.match
    streaming = int(outcome.plans.mode[index]) == ASYNC
    train_s, generation_s = (
        float(outcome.trainer.train_s[index]),
        float(match.generation_s[index]),
    )
    every = problem.system.algorithm.weight_sync_every_steps
    sync_s = float(match.sync_s[index]) / every
    if not streaming and sync_s > max(train_s, generation_s):
        return "weight_sync", "none"
    drained = problem.system.algorithm.weight_update == "drain" and streaming
    if drained and min(match.wait_fraction[index], match.dropped_fraction[index]) > MATCHED:
        # Both sides could go faster: what holds them is that every update waits for all engines.
        return "weight_sync", "none"
    slower = train_s >= generation_s if not streaming else float(match.load[index]) >= 1.0
    if slower:
        return "trainer", _trainer_cause(problem, outcome, index)
    kv_bound = bool(outcome.generator.kv_bound[index])
    stage = _generator_stage(problem, outcome, index, kv_bound=kv_bound)
    if stage == "reward":
        return stage, "none"
    return stage, _generator_cause(problem, outcome, index, kv_bound=kv_bound)


def _generator_stage(problem: Problem, outcome: Outcome, index: int, *, kv_bound: bool) -> str:
    system, generator, match = problem.system, outcome.generator, outcome.match
    around = generator.stations
    scoring = float(match.reward_wait_s[index]) > 0.5 * float(match.generation_s[index])
    offered = float(match.offered_samples_per_s[index])
    nearly = offered > (1.0 - MATCHED) * float(around.reward.scored_per_s[index])
    if scoring or nearly or bool(generator.reward_bound[index]):
        return "reward"
    if bool(generator.station_bound[index]) or float(generator.prefill_share[index]) > 0.5:
        return "prefill"
    residence = float(match.sample_residence_s[index])
    if float(around.start_s[index]) > 0.5 * residence:
        return "sandbox"
    kind = outcome.plans.generator_kind[index]
    law = system.engines.decode.take(np.asarray([kind]))
    now, fit = float(generator.decoding[index]), float(generator.sequences_fit[index])
    context = float(generator.context_tokens[index])
    rate_now = now / float(decode_step_s(law, now, now * context)[0])
    rate_full = fit / float(decode_step_s(law, fit, fit * context)[0])
    if int(outcome.plans.mode[index]) != ASYNC and _all_in_flight(outcome, index):
        return "decode"
    if not kv_bound and rate_full > rate_now * (1.0 + WORTHWHILE):
        return "concurrency"
    return "decode"


def _all_in_flight(outcome: Outcome, index: int) -> bool:
    """Whether a batch is in flight as a whole: no cap would let more decode."""
    plans = outcome.plans
    places = int(plans.in_flight_per_engine[index] * plans.engines[index])
    return places >= float(plans.oversampling[index] * outcome.trainer.batch_samples[index])


def _trainer_cause(problem: Problem, outcome: Outcome, index: int) -> str:
    trainer, algorithm = outcome.trainer, problem.system.algorithm
    if float(trainer.imbalance[index]) > 1.0 + MATTERS:
        return "imbalance"
    blocking = float(outcome.match.sync_s[index]) / algorithm.weight_sync_every_steps
    blocks = algorithm.trainer_blocks or int(outcome.plans.mode[index]) != ASYNC
    if blocks and blocking > MATTERS * float(trainer.train_s[index]):
        return "weight_sync"
    return "none"


def _generator_cause(problem: Problem, outcome: Outcome, index: int, *, kv_bound: bool) -> str:
    system, match = problem.system, outcome.match
    rollouts, generator = outcome.rollouts, outcome.generator
    row = int(rollouts.row[index])
    if _staleness_binds(problem, outcome, index):
        return "staleness"
    fits = float(generator.sequences_fit[index])
    lost = {
        "signal": 1.0 - float(rollouts.signal[row]),
        "tail": max(
            float(rollouts.cut.discarded_token_fraction[row]), _waiting_for_tail(outcome, index)
        ),
        "staleness": 1.0 - float(match.accepted_fraction[index]),
        "sandbox": float(generator.failed_token_share[index]),
    }
    worst = max(lost, key=lambda cause: lost[cause])
    if lost[worst] > MATTERS:
        return worst
    if kv_bound or float(generator.resident[index]) > (1.0 - MATCHED) * fits:
        return "kv_memory"
    if system.workload.environment_s > MATTERS * float(match.generation_s[index]):
        return "tools"
    return "none"


def _staleness_binds(problem: Problem, outcome: Outcome, index: int) -> bool:
    algorithm = problem.system.algorithm
    streaming = int(outcome.plans.mode[index]) == ASYNC
    if algorithm.staleness_limit is None or algorithm.staleness_enforce == "reject":
        return False

    def at(values: Any) -> float:
        return float(np.broadcast_to(values, (len(outcome.plans),))[index])

    value, limit = outcome.limits[f"staleness_{algorithm.staleness_metric}"]
    return streaming and at(value) > 0.95 * at(limit)


def _waiting_for_tail(outcome: Outcome, index: int) -> float:
    """Share of a batch's generation beyond what its rollouts would take in a steady stream."""
    plans, match = outcome.plans, outcome.match
    if int(plans.mode[index]) == ASYNC:
        return 0.0
    batch = float(outcome.trainer.batch_samples[index] * plans.oversampling[index])
    stream_s = batch / float(outcome.generator.dispatched_per_s[index])
    generation_s = float(match.generation_s[index] - match.reward_wait_s[index])
    rounds = float(outcome.rollouts.rounds[outcome.rollouts.row[index]])
    return max(0.0, 1.0 - rounds * stream_s / generation_s)
