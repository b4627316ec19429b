"""Exact optimum over one pool pair, by enumeration of columns and matching.

A *generator column* (engine kind, engines, rollouts in flight on each, oversampling, group size)
has a rate, a residence, KV memory and FLOPs that do not depend on the trainer; a *trainer column*
(pool, GPUs, batch, epochs) has a batch time and memory that do not depend on the generator.
Everything else that a plan's objective needs follows from the two rates v_G and v_T.

Why that makes the search exact. The trained rate never exceeds min(v_G, v_T): a queue only loses
time (waiting) or samples (overflow, rejection), pauses for weight sync only lower v_G, and load
imbalance over ranks, left out of v_T here to spare packing every batch, only lowers v_T. At
that rate the objective is a function of the columns alone, so

    bound(plan) = objective at min(v_G(generator column), v_T(trainer column))

is never worse than the plan. It *separates*: v_G and v_T are computed once per column, thousands
of columns stand for millions of plans; and since rollouts in flight cost nothing by themselves,
the bound of a whole setting needs only the fastest column of each (kind, engines). Settings, then
plans, are visited in order of their bound and judged by `allocator.evaluator`; the search ends
when no bound beats the best plan by more than the tie tolerance. What is left out is provably not
better.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from allocator.physics.economics import SECONDS_PER_HOUR
from allocator.problem.build import Problem
from allocator.problem.decisions import (
    ASYNC,
    COLOCATED_SYNC,
    ONE_STEP_OFF,
    DecisionArrays,
    Domain,
    Floats,
    Ints,
)
from allocator.problem.domain import beyond_pools
from allocator.problem.limits import objective_score
from solvers.base import SolverOutcome, Termination
from solvers.infeasible import diagnose
from solvers.running_best import RunningBest, tied
from solvers.settings import Setting, settings

NAME, VERSION = "columns", "1"

#: Plans judged at once: enough to amortise the calls, few enough to stop early.
BLOCK = 4096
#: Plans judged at once when the whole domain must be seen to explain that nothing fits.
DIAGNOSIS_BLOCK = 1 << 17


def solve_columns(
    problem: Problem,
    domain: Domain,
    time_limit_s: float | None = None,
    *,
    explain: bool = True,
) -> SolverOutcome:
    """Find the best plan of the domain, ties (0.1%) broken by fewer GPUs, then lower staleness.

    Parameters
    ----------
    time_limit_s : stop after this long and hand back the best plan so far with its bound.
    explain : whether to say why where no plan exists (which takes a look at all of them).
    """
    start = time.perf_counter()
    choices = settings(problem, domain)
    search = RunningBest(problem)
    optimistic = np.asarray([_best_bound(problem, s) for s in choices])
    timed_out, left = False, np.inf
    for place in np.argsort(optimistic, kind="stable"):
        if search.beats(float(optimistic[place])) or not np.isfinite(optimistic[place]):
            break
        timed_out = _visit(search, domain, choices[place], start, time_limit_s)
        if timed_out:
            left = float(optimistic[place])
            break
    infeasibility = None
    if search.best is None and not timed_out and explain:
        wider = beyond_pools(domain, problem.system)
        infeasibility = diagnose(
            problem, _blocks(domain, choices), _blocks(wider, settings(problem, wider))
        )
    best, score = search.tie_break()
    return SolverOutcome(
        termination=_termination(search, timed_out),
        best=best,
        score=score,
        # Not `score`: the plan that ties prefer may be up to 0.1% above the best.
        bound=left if search.best is None else min(search.best, left),
        alternatives=search.alternatives(best),
        infeasibility=infeasibility,
        points=domain.points,
        evaluated=search.evaluated,
        wall_s=time.perf_counter() - start,
        name=NAME,
        version=VERSION,
    )


def _termination(search: RunningBest, timed_out: bool) -> Termination:
    if timed_out:
        return "time_limit"
    return "infeasible" if search.best is None else "optimal"


def _visit(
    search: RunningBest,
    domain: Domain,
    setting: Setting,
    start: float,
    time_limit_s: float | None,
) -> bool:
    """Judge the setting's plans in order of their bound; return whether time ran out."""
    bound = _bounds(search.problem, setting).ravel()
    hopeful = np.isfinite(bound) if search.best is None else bound <= tied(search.best)
    pairs = np.flatnonzero(hopeful)
    pairs = pairs[np.argsort(bound[pairs], kind="stable")]
    for begin in range(0, pairs.size, BLOCK):
        block = pairs[begin : begin + BLOCK]
        if search.best is not None:
            block = block[bound[block] <= tied(search.best)]
        if block.size == 0:
            return False
        search.judge(_plans(domain, setting, block))
        if time_limit_s is not None and time.perf_counter() - start > time_limit_s:
            return True
    return False


def _bounds(problem: Problem, setting: Setting) -> Floats:
    """Return the best score any plan of each pair of columns could have (inf: no room)."""
    return _scores(problem, setting, setting.generators, setting.offered, setting.generator_gpus)


def _best_bound(problem: Problem, setting: Setting) -> float:
    """Return the best score any plan of the setting could have."""
    first = setting.fastest
    fastest = np.maximum.reduceat(setting.offered, first)
    generators = setting.generators.take(first)
    scores = _scores(problem, setting, generators, fastest, setting.generator_gpus[first])
    return float(scores.min())


def _scores(
    problem: Problem,
    setting: Setting,
    generators: DecisionArrays,
    offered: Floats,
    generator_gpus: Floats,
) -> Floats:
    rate = _rate(setting, offered)
    room, usd_per_hour = _room(problem, setting, generators, generator_gpus)
    possible = room & (rate > 0.0)
    rate = np.where(possible, rate, 1.0)
    hours = setting.samples / rate / SECONDS_PER_HOUR
    score = objective_score(
        problem.objective,
        usd_per_hour=usd_per_hour,
        useful_tokens_per_s=rate * setting.tokens,
        run_hours=hours,
        run_usd=hours * usd_per_hour,
    )
    return np.where(possible, score, np.inf)


def _rate(setting: Setting, offered: Floats) -> Floats:
    """Return the most accepted samples/s of each pair: side by side, or one after the other."""
    delivered, taken = offered[:, None], setting.taken[None, :]
    if setting.mode in (ASYNC, ONE_STEP_OFF):
        return np.minimum(delivered, taken)
    both = delivered + taken
    return np.divide(delivered * taken, both, out=np.zeros(both.shape), where=both > 0.0)


def _room(
    problem: Problem, setting: Setting, generators: DecisionArrays, generator_gpus: Floats
) -> tuple[NDArray[np.bool_], Floats | float]:
    """Return whether the pools hold both columns, and the dollars per hour of the pair."""
    system, trainers = problem.system, setting.trainers
    t_pool = system.trainers.pool.astype(int)[trainers.trainer_kind]
    engine_pool = system.engines.pool.astype(int)
    pools = [engine_pool[generators.generator_kind], engine_pool[generators.prefill_kind]]
    if system.reward_kinds is not None:
        pools.append(system.reward_kinds.pool.astype(int)[generators.reward_kind])
    shared = setting.mode == COLOCATED_SYNC
    room = np.ones((len(generators), len(trainers)), dtype=bool)
    if shared:
        room &= pools[0][:, None] == t_pool[None, :]
    usd: Floats = np.zeros(room.shape)
    for index, pool in enumerate(system.pools):
        training = np.where(t_pool == index, trainers.trainer_gpus, 0.0)[None, :]
        roles = [np.where(p == index, generator_gpus[:, r], 0.0) for r, p in enumerate(pools)]
        writing = roles[0][:, None]
        used = np.maximum(training, writing) if shared else training + writing
        used = used + np.sum(roles[1:], axis=0)[:, None]
        room &= used <= pool.gpus
        usd += (used + pool.spare_gpus) * pool.usd_per_gpu_hour
    if system.money.reserved:
        whole = [(p.gpus + p.spare_gpus) * p.usd_per_gpu_hour for p in system.pools]
        return room, float(sum(whole))
    return room, usd


def _plans(domain: Domain, setting: Setting, pairs: Ints) -> DecisionArrays:
    """Return the plans of some column pairs, one for every queue capacity."""
    queues = domain.queues_of(setting.mode)
    rows, columns = np.divmod(np.repeat(pairs, queues.size), len(setting.trainers))
    generators, trainers = setting.generators.take(rows), setting.trainers.take(columns)
    return replace(
        generators,
        trainer_kind=trainers.trainer_kind,
        trainer_gpus=trainers.trainer_gpus,
        queue_batches=np.tile(queues, pairs.size),
    )


def _blocks(domain: Domain, choices: list[Setting]) -> Iterator[DecisionArrays]:
    """Return the whole domain in blocks, pairs without room included."""
    for setting in choices:
        count = len(setting.generators) * len(setting.trainers)
        for begin in range(0, count, DIAGNOSIS_BLOCK):
            yield _plans(domain, setting, np.arange(begin, min(begin + DIAGNOSIS_BLOCK, count)))
