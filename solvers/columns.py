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

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from allocator.evaluator import Outcome, evaluate
from allocator.evaluator.generator import generator_state, rollout_state
from allocator.evaluator.trainer import trainer_state
from allocator.physics.economics import SECONDS_PER_HOUR
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays, Domain, Floats, Ints
from allocator.problem.domain import beyond_pools
from allocator.problem.limits import TIE, objective_score
from allocator.problem.money import needed_samples
from solvers.base import SolverOutcome
from solvers.infeasible import diagnose

NAME, VERSION = "columns", "1"

#: Plans judged at once: enough to amortise the calls, few enough to stop early.
BLOCK = 4096
#: Plans judged at once when the whole domain must be seen to explain that nothing fits.
DIAGNOSIS_BLOCK = 1 << 17


@dataclass(frozen=True, slots=True)
class _Setting:
    """One choice of prompts, group size, epochs and oversampling, with its columns.

    Attributes
    ----------
    generators, trainers : the columns; fields of the other side are placeholders.
    offered, taken : accepted samples/s of each column; 0 where memory or whole groups forbid it.
    generator_gpus : in whole units of the pool.
    fastest : start of each run of generator columns that differ in rollouts in flight only.
    samples : accepted samples that reach every target.
    tokens : useful tokens per accepted sample.
    """

    generators: DecisionArrays
    trainers: DecisionArrays
    offered: Floats
    taken: Floats
    generator_gpus: Floats
    fastest: Ints
    samples: float
    tokens: float


def solve_columns(
    problem: Problem, domain: Domain, time_limit_s: float | None = None
) -> SolverOutcome:
    """Find the best plan of the domain, ties (0.1%) broken by fewer GPUs, then lower staleness.

    Parameters
    ----------
    time_limit_s : stop after this long and hand back the best plan so far with its bound.
    """
    start = time.perf_counter()
    settings = _settings(problem, domain)
    search = _Search(problem, domain)
    optimistic = np.asarray([_best_bound(problem, s) for s in settings])
    timed_out, left = False, np.inf
    for place in np.argsort(optimistic, kind="stable"):
        if search.beats(float(optimistic[place])) or not np.isfinite(optimistic[place]):
            break
        timed_out = search.visit(settings[place], start, time_limit_s)
        if timed_out:
            left = float(optimistic[place])
            break
    pairs = sum(len(s.generators) * len(s.trainers) for s in settings)
    infeasibility = None
    if search.best is None and not timed_out:
        wider = beyond_pools(domain, problem.system)
        infeasibility = diagnose(
            problem, _blocks(domain, settings), _blocks(wider, _settings(problem, wider))
        )
    best, score = search.tie_break()
    return SolverOutcome(
        termination="infeasible" if infeasibility else "time_limit" if timed_out else "optimal",
        best=best,
        score=score,
        # Not `score`: the plan that ties prefer may be up to 0.1% above the best.
        bound=left if search.best is None else min(search.best, left),
        alternatives=search.alternatives(best),
        infeasibility=infeasibility,
        points=pairs * domain.queue_batches.size,
        evaluated=search.evaluated,
        wall_s=time.perf_counter() - start,
        name=NAME,
        version=VERSION,
    )


class _Search:
    """The running best of one search, and what is needed to break ties and name alternatives."""

    def __init__(self, problem: Problem, domain: Domain) -> None:
        self.problem = problem
        self.domain = domain
        self.best: float | None = None
        self.evaluated = 0
        self._kept: list[tuple[DecisionArrays, Floats, Floats, Floats]] = []

    def beats(self, bound: float) -> bool:
        """Whether the best plan is better than anything with this bound, ties included."""
        return self.best is not None and bound > _tied(self.best)

    def visit(self, setting: _Setting, start: float, time_limit_s: float | None) -> bool:
        """Judge the setting's plans in order of their bound; return whether time ran out."""
        bound = _bounds(self.problem, setting).ravel()
        hopeful = np.isfinite(bound) if self.best is None else bound <= _tied(self.best)
        pairs = np.flatnonzero(hopeful)
        pairs = pairs[np.argsort(bound[pairs], kind="stable")]
        for begin in range(0, pairs.size, BLOCK):
            block = pairs[begin : begin + BLOCK]
            if self.best is not None:
                block = block[bound[block] <= _tied(self.best)]
            if block.size == 0:
                return False
            self._judge(_plans(self.domain, setting, block))
            if time_limit_s is not None and time.perf_counter() - start > time_limit_s:
                return True
        return False

    def _judge(self, plans: DecisionArrays) -> None:
        outcome = evaluate(self.problem, plans)
        self.evaluated += len(plans)
        good = np.flatnonzero(outcome.feasible)
        if good.size == 0:
            return
        low = float(np.min(outcome.score[good]))
        self.best = low if self.best is None else min(self.best, low)
        self._keep(outcome, good)

    def _keep(self, outcome: Outcome, good: Ints) -> None:
        """Keep ties that could be chosen, and the best of every pair of engine and trainer kinds.

        Of the ties only those count that no other beats in GPUs, staleness and score together.
        """
        assert self.best is not None
        score = outcome.score[good]
        tied = good[score <= _tied(self.best)]
        gpus = outcome.plans.trainer_gpus + outcome.generator.gpus
        order = tied[
            np.lexsort((outcome.score[tied], outcome.match.staleness_mean[tied], gpus[tied]))
        ]
        lowest = np.minimum.accumulate(outcome.score[order])
        front = order[np.append(True, outcome.score[order][1:] < lowest[:-1])[: order.size]]
        chosen = np.unique(
            np.concatenate([front, good[_first_of_kind(outcome.plans.take(good), score)]])
        )
        gpus = gpus[chosen]
        self._kept.append(
            (
                outcome.plans.take(chosen),
                np.asarray(outcome.score)[chosen],
                np.asarray(gpus, dtype=float),
                np.asarray(outcome.match.staleness_mean)[chosen],
            )
        )

    def _gathered(self) -> tuple[DecisionArrays, Floats, Floats, Floats]:
        plans = DecisionArrays.concatenate([k[0] for k in self._kept])
        score, gpus, stale = (
            np.concatenate(parts) for parts in zip(*(k[1:] for k in self._kept), strict=True)
        )
        return plans, score, gpus, stale

    def tie_break(self) -> tuple[DecisionArrays | None, float]:
        """Return the plan to recommend and its score."""
        if self.best is None:
            return None, np.inf
        plans, score, gpus, stale = self._gathered()
        tied = np.flatnonzero(score <= _tied(self.best))
        chosen = tied[np.lexsort((score[tied], stale[tied], gpus[tied]))[0]]
        return plans.take(np.asarray([chosen])), float(score[chosen])

    def alternatives(self, best: DecisionArrays | None) -> DecisionArrays | None:
        """Return the best judged plan of every other pair of kinds, best first."""
        if best is None:
            return None
        plans, score, _, _ = self._gathered()
        each = _first_of_kind(plans, score)
        other = each[
            (plans.generator_kind[each] != best.generator_kind[0])
            | (plans.trainer_kind[each] != best.trainer_kind[0])
        ]
        if other.size == 0:
            return None
        return plans.take(other[np.argsort(score[other], kind="stable")])


def _tied(score: float) -> float:
    """Largest score that counts as equal to `score`."""
    return score + TIE * abs(score)


def _first_of_kind(plans: DecisionArrays, score: Floats) -> Ints:
    """Return the index of the best plan of every pair of engine and trainer kinds."""
    kinds = plans.generator_kind * (1 + int(plans.trainer_kind.max())) + plans.trainer_kind
    order = np.lexsort((score, kinds))
    _, first = np.unique(kinds[order], return_index=True)
    return np.asarray(order[first])


def _settings(problem: Problem, domain: Domain) -> list[_Setting]:
    """Return all settings with the rates of their columns, computed in two calls."""
    choices = list(
        itertools.product(
            domain.prompts_per_step, domain.group_size, domain.epochs, domain.oversampling
        )
    )
    common = [
        {
            "oversampling": factor,
            "queue_batches": domain.queue_batches[0],
            "prompts_per_step": prompts,
            "group_size": group,
            "epochs": epochs,
        }
        for prompts, group, epochs, factor in choices
    ]
    kinds, engines, in_flight, fastest = _generator_grid(domain)
    trainer_kinds = np.concatenate([np.full(g.size, k) for k, g in enumerate(domain.trainer_gpus)])
    trainer_gpus = np.concatenate(domain.trainer_gpus)
    generators = [
        DecisionArrays.broadcast(
            generator_kind=kinds,
            engines=engines,
            in_flight_per_engine=in_flight,
            trainer_kind=trainer_kinds[0],
            trainer_gpus=trainer_gpus[0],
            **shared,
        )
        for shared in common
    ]
    trainers = [
        DecisionArrays.broadcast(
            generator_kind=kinds[0],
            engines=engines[0],
            in_flight_per_engine=in_flight[0],
            trainer_kind=trainer_kinds,
            trainer_gpus=trainer_gpus,
            **shared,
        )
        for shared in common
    ]
    offered, gpus, signal, tokens = _offered(problem, DecisionArrays.concatenate(generators))
    taken = _taken(problem, DecisionArrays.concatenate(trainers))
    sampling = problem.system.algorithm.dynamic_sampling
    result = []
    for place, (prompts, group, _, _) in enumerate(choices):
        own = slice(place * kinds.size, (place + 1) * kinds.size)
        theirs = slice(place * trainer_gpus.size, (place + 1) * trainer_gpus.size)
        carried = float(signal[own][0])
        useful = float(tokens[own][0]) * (1.0 if sampling == "refill" else carried)
        result.append(
            _Setting(
                generators=generators[place],
                trainers=trainers[place],
                offered=offered[own],
                taken=taken[theirs],
                generator_gpus=gpus[own],
                fastest=fastest,
                samples=float(
                    needed_samples(
                        problem.system.money,
                        int(prompts * group),
                        carried if sampling == "drop" else 1.0,
                        useful,
                    )
                ),
                tokens=useful,
            )
        )
    return result


def _generator_grid(domain: Domain) -> tuple[Ints, Ints, Ints, Ints]:
    """Return kind, engines and rollouts in flight of all generator columns, and run starts."""
    kinds, engines, in_flight, starts, size = [], [], [], [], 0
    for kind, (counts, caps) in enumerate(
        zip(domain.engines, domain.in_flight_per_engine, strict=True)
    ):
        kinds.append(np.full(counts.size * caps.size, kind))
        engines.append(np.repeat(counts, caps.size))
        in_flight.append(np.tile(caps, counts.size))
        starts.append(size + np.arange(counts.size) * caps.size)
        size += counts.size * caps.size
    return tuple(np.concatenate(part) for part in (kinds, engines, in_flight, starts))  # type: ignore[return-value]


def _offered(problem: Problem, plans: DecisionArrays) -> tuple[Floats, Floats, Floats, Floats]:
    """Return accepted samples/s, GPUs, signal and tokens per sample of generator columns."""
    system = problem.system
    rollouts = rollout_state(system, plans)
    generator = generator_state(system, plans, rollouts)
    signal = rollouts.at(rollouts.signal)
    refill = system.algorithm.dynamic_sampling == "refill"
    rate = generator.dispatched_per_s / plans.oversampling * (signal if refill else 1.0)
    fits = generator.sequences_fit >= 1.0
    if system.algorithm.whole_groups:
        places = plans.in_flight_per_engine * (
            1 if system.algorithm.limit_per_engine else plans.engines
        )
        fits &= places >= np.ceil(plans.oversampling * plans.group_size)
    prompt = system.workload.prompt_tokens if system.money.sequence_basis else 0.0
    tokens = prompt + rollouts.at(rollouts.cut.kept_mean_tokens)
    return np.where(fits, rate, 0.0), generator.gpus, signal, tokens


def _taken(problem: Problem, plans: DecisionArrays) -> Floats:
    """Return accepted samples/s that balanced trainer columns can take; 0 where memory is short."""
    system = problem.system
    trainer = trainer_state(system, plans, rollout_state(system, plans), balanced=True)
    memory = system.trainers.hbm_limit_bytes[plans.trainer_kind]
    return np.where(trainer.memory_bytes <= memory, trainer.samples_per_s, 0.0)


def _bounds(problem: Problem, setting: _Setting) -> Floats:
    """Return the best score any plan of each pair of columns could have (inf: no room)."""
    return _scores(problem, setting, setting.generators, setting.offered, setting.generator_gpus)


def _best_bound(problem: Problem, setting: _Setting) -> float:
    """Return the best score any plan of the setting could have."""
    first = setting.fastest
    fastest = np.maximum.reduceat(setting.offered, first)
    generators = setting.generators.take(first)
    scores = _scores(problem, setting, generators, fastest, setting.generator_gpus[first])
    return float(scores.min())


def _scores(
    problem: Problem,
    setting: _Setting,
    generators: DecisionArrays,
    offered: Floats,
    generator_gpus: Floats,
) -> Floats:
    rate = np.minimum(offered[:, None], setting.taken[None, :])
    room, usd_per_hour = _room(problem, generators, setting.trainers, generator_gpus)
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


def _room(
    problem: Problem, generators: DecisionArrays, trainers: DecisionArrays, generator_gpus: Floats
) -> tuple[NDArray[np.bool_], Floats | float]:
    """Return whether the pools hold both columns, and the dollars per hour of the pair."""
    system = problem.system
    size = np.asarray([p.gpus for p in system.pools], dtype=float)
    price = np.asarray([p.usd_per_gpu_hour for p in system.pools])
    g_pool = system.engines.pool.astype(int)[generators.generator_kind]
    t_pool = system.trainers.pool.astype(int)[trainers.trainer_kind]
    shared = g_pool[:, None] == t_pool[None, :]
    used = generator_gpus[:, None] + np.where(shared, trainers.trainer_gpus[None, :], 0.0)
    room = (used <= size[g_pool][:, None]) & (trainers.trainer_gpus <= size[t_pool])[None, :]
    if system.money.reserved:
        return room, float(size @ price)
    spend = (generator_gpus * price[g_pool])[:, None]
    return room, spend + (trainers.trainer_gpus * price[t_pool])[None, :]


def _plans(domain: Domain, setting: _Setting, pairs: Ints) -> DecisionArrays:
    """Return the plans of some column pairs, one for every queue capacity."""
    queues = domain.queue_batches
    rows, columns = np.divmod(np.repeat(pairs, queues.size), len(setting.trainers))
    generators, trainers = setting.generators.take(rows), setting.trainers.take(columns)
    return replace(
        generators,
        trainer_kind=trainers.trainer_kind,
        trainer_gpus=trainers.trainer_gpus,
        queue_batches=np.tile(queues, pairs.size),
    )


def _blocks(domain: Domain, settings: list[_Setting]) -> Iterator[DecisionArrays]:
    """Return the whole domain in blocks, pairs without room included."""
    for setting in settings:
        count = len(setting.generators) * len(setting.trainers)
        for begin in range(0, count, DIAGNOSIS_BLOCK):
            yield _plans(domain, setting, np.arange(begin, min(begin + DIAGNOSIS_BLOCK, count)))
