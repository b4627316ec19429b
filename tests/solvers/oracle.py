"""The judge of solvers: try every plan of a domain, one by one. Knows no solver and no columns.

A plan is a combination of one value of every decision that the domain lists. All of them are
evaluated; the answer is read off the table, by the rule the documentation states: within 0.1% of
the best score plans count as equal, then the fewest GPUs decide, then the lowest mean staleness.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocator.evaluator import Outcome, evaluate
from allocator.plan import MODES
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays, Domain

#: Share of the best score within which plans count as equal (docs: 0.1%).
EQUAL = 1e-3
BLOCK = 1 << 17


@dataclass(frozen=True)
class Verdict:
    """What trying everything says of one problem.

    Attributes
    ----------
    points, feasible : plans tried, plans that keep every limit.
    best : lowest score of a feasible plan; inf without one.
    tied : feasible plans within 0.1% of it.
    score, gpus, staleness : of the plan that the rule picks among them.
    broken : patterns of limits that a plan breaks, over all plans (empty set: a feasible plan).
    """

    points: int
    feasible: int
    best: float
    tied: int
    score: float
    gpus: float
    staleness: float
    broken: frozenset[frozenset[str]]


def brute_force(problem: Problem, domain: Domain) -> Verdict:
    """Evaluate every plan of the domain and apply the rule."""
    points, table, patterns = 0, np.empty((3, 0)), set[frozenset[str]]()
    for plans in every_plan(domain):
        outcome = evaluate(problem, plans)
        points += len(plans)
        patterns |= broken_patterns(outcome)
        rows = np.stack([outcome.score, gpus_used(outcome), outcome.match.staleness_mean])
        table = np.concatenate([table, rows[:, outcome.feasible]], axis=1)
    if table.shape[1] == 0:
        nothing = (math.inf, 0, math.inf, math.inf, math.inf)
        return Verdict(points, 0, *nothing, frozenset(patterns))
    best = float(table[0].min())
    tied = table[:, table[0] <= best + EQUAL * abs(best)]
    # Ascending, the first key decides first.
    score, gpus, staleness = min(tied.T.tolist(), key=lambda row: (row[1], row[2], row[0]))
    feasible = int(table.shape[1])
    return Verdict(
        points, feasible, best, int(tied.shape[1]), score, gpus, staleness, frozenset(patterns)
    )


def gpus_used(outcome: Outcome) -> NDArray[Any]:
    """Return the GPUs of each plan; one set that trains and generates in turn counts once."""
    plans, generator = outcome.plans, outcome.generator
    turns = plans.mode == MODES.index("colocated_sync")
    apart = plans.trainer_gpus + generator.gpus
    both = np.where(turns, np.maximum(plans.trainer_gpus, generator.gpus), apart)
    found: NDArray[Any] = both + generator.prefill_gpus + generator.reward_gpus
    return found


def every_plan(domain: Domain) -> Iterator[DecisionArrays]:
    """Yield the full product of the domain's values, in blocks."""
    kinds = itertools.product(
        domain.modes.tolist(),
        range(len(domain.engines)),
        range(len(domain.trainer_gpus)),
        domain.reward,
    )
    for (mode, generator, trainer, (scorer, scorers)), (reader, readers) in (
        (kind, option) for kind in kinds for option in domain.prefill[kind[1]]
    ):
        # Documented: GPUs that take turns have no prefill engines; only async has a queue.
        if mode == MODES.index("colocated_sync") and reader >= 0:
            continue
        queues = domain.queue_batches if mode == MODES.index("async") else [1]
        axes: dict[str, NDArray[Any]] = {
            "engines": domain.engines[generator],
            "in_flight_per_engine": domain.in_flight_per_engine[generator],
            "prefill_engines": readers,
            "reward_engines": scorers,
            "trainer_gpus": domain.trainer_gpus[trainer],
            "oversampling": domain.oversampling,
            "queue_batches": np.asarray(queues),
            "prompts_per_step": domain.prompts_per_step,
            "group_size": domain.group_size,
            "epochs": domain.epochs,
        }
        shape = tuple(axis.size for axis in axes.values())
        for begin in range(0, math.prod(shape), BLOCK):
            number = np.arange(begin, min(begin + BLOCK, math.prod(shape)))
            places = np.unravel_index(number, shape)
            values = {name: axes[name][at] for name, at in zip(axes, places, strict=True)}
            yield DecisionArrays.broadcast(
                mode=mode,
                generator_kind=generator,
                trainer_kind=trainer,
                prefill_kind=reader,
                reward_kind=scorer,
                **values,
            )


def broken_patterns(outcome: Outcome) -> set[frozenset[str]]:
    """Return the distinct sets of limits that plans of an outcome break."""
    names = tuple(outcome.limits)
    # A value that is not a number keeps no limit; 1e-9 is rounding.
    broken = ~np.stack(
        [
            np.broadcast_to(
                np.asarray(value) <= np.asarray(limit) * (1 + 1e-9), outcome.score.shape
            )
            for value, limit in outcome.limits.values()
        ]
    )
    rows = np.unique(broken.T, axis=0)
    return {frozenset(n for n, bad in zip(names, row, strict=True) if bad) for row in rows}
