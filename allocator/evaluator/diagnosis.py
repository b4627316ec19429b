"""Which part of a plan sets its pace, and why."""

from __future__ import annotations

import numpy as np

from allocator.evaluator import Outcome
from allocator.physics.decode import decode_step_s
from allocator.problem.build import Problem

#: Rates this close count as matched: neither side waits for long.
MATCHED = 0.02
#: More rollouts in flight would raise the rate by at least this: concurrency is the bottleneck.
WORTHWHILE = 0.10
#: Causes are named when they cost at least this share.
MATTERS = 0.15


def bottleneck_and_cause(problem: Problem, outcome: Outcome, index: int) -> tuple[str, str]:
    """Name the slowest stage of one plan and the strongest reason for it.

    Stages: `trainer` when it could take no more than the generator delivers; else the generator,
    as `concurrency` when filling the KV cache would raise its rate by 10%, `prefill` when engines
    spend more time reading than writing, otherwise `decode`. Causes, strongest first: a binding
    staleness limit, KV memory, groups without signal, cancelled rollouts (tail), the environment
    (tools), imbalance over trainer ranks, weight sync; `none` when nothing costs 15%.
    """
    system, match = problem.system, outcome.match
    load = float(match.load[index])
    if load >= 1.0:
        return "trainer", _trainer_cause(problem, outcome, index)
    generator = outcome.generator
    kind = outcome.plans.generator_kind[index]
    law = system.engines.decode.take(np.asarray([kind]))
    now, fit = float(generator.decoding[index]), float(generator.sequences_fit[index])
    context = float(generator.context_tokens[index])
    rate_now = now / float(decode_step_s(law, now, now * context)[0])
    rate_full = fit / float(decode_step_s(law, fit, fit * context)[0])
    kv_bound = bool(generator.kv_bound[index])
    if float(generator.prefill_share[index]) > 0.5:
        stage = "prefill"
    elif not kv_bound and rate_full > rate_now * (1.0 + WORTHWHILE):
        stage = "concurrency"
    else:
        stage = "decode"
    return stage, _generator_cause(problem, outcome, index, kv_bound=kv_bound)


def _trainer_cause(problem: Problem, outcome: Outcome, index: int) -> str:
    trainer, algorithm = outcome.trainer, problem.system.algorithm
    if float(trainer.imbalance[index]) > 1.0 + MATTERS:
        return "imbalance"
    blocking = algorithm.sync_s / algorithm.weight_sync_every_steps
    if algorithm.trainer_blocks and blocking > MATTERS * float(trainer.train_s[index]):
        return "weight_sync"
    return "none"


def _generator_cause(problem: Problem, outcome: Outcome, index: int, *, kv_bound: bool) -> str:
    system = problem.system
    rollouts, generator = outcome.rollouts, outcome.generator
    row = int(rollouts.row[index])
    if system.algorithm.staleness_limit is not None:
        value, limit = outcome.limits[f"staleness_{system.algorithm.staleness_metric}"]
        close = float(np.broadcast_to(value, (len(outcome.plans),))[index]) > 0.95 * float(
            np.broadcast_to(limit, (len(outcome.plans),))[index]
        )
        if close and system.algorithm.staleness_enforce != "reject":
            return "staleness"
    fits = float(generator.sequences_fit[index])
    lost = 1.0 - float(rollouts.signal[row])
    cancelled = float(rollouts.cut.discarded_token_fraction[row])
    rejected = 1.0 - float(outcome.match.accepted_fraction[index])
    worst = max(lost, cancelled, rejected)
    if worst > MATTERS:
        return {lost: "signal", cancelled: "tail", rejected: "staleness"}[worst]
    if kv_bound or float(generator.decoding[index]) > (1.0 - MATCHED) * fits:
        return "kv_memory"
    residence = float(outcome.match.residence_s[index])
    if system.workload.environment_s > MATTERS * residence:
        return "tools"
    return "none"
