"""The running best of a search: who leads, what ties with it, and the best of every other kind."""

from __future__ import annotations

import numpy as np

from allocator.evaluator import Outcome, evaluate
from allocator.evaluator.bill import gpus_in_use
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays, Floats, Ints
from allocator.problem.limits import TIE

#: Plans that differ in one of these differ in kind.
KIND = ("mode", "generator_kind", "trainer_kind", "prefill_kind")


class RunningBest:
    """The running best of one search, and what is needed to break ties and name alternatives."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.best: float | None = None
        self.evaluated = 0
        self._kept: list[tuple[DecisionArrays, Floats, Floats, Floats]] = []

    def beats(self, bound: float) -> bool:
        """Whether the best plan is better than anything with this bound, ties included."""
        return self.best is not None and bound > tied(self.best)

    def judge(self, plans: DecisionArrays) -> None:
        """Evaluate plans and keep those that may matter."""
        outcome = evaluate(self.problem, plans)
        self.evaluated += len(plans)
        good = np.flatnonzero(outcome.feasible)
        if good.size == 0:
            return
        low = float(np.min(outcome.score[good]))
        self.best = low if self.best is None else min(self.best, low)
        self._keep(outcome, good)

    def _keep(self, outcome: Outcome, good: Ints) -> None:
        """Keep ties that could be chosen, and the best of every kind.

        Of the ties only those count that no other beats in GPUs, staleness and score together.
        """
        assert self.best is not None
        score = outcome.score[good]
        equal = good[score <= tied(self.best)]
        gpus = np.asarray(gpus_in_use(outcome.plans, outcome.generator), dtype=float)
        order = equal[
            np.lexsort((outcome.score[equal], outcome.match.staleness_mean[equal], gpus[equal]))
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
                gpus,
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
        equal = np.flatnonzero(score <= tied(self.best))
        chosen = equal[np.lexsort((score[equal], stale[equal], gpus[equal]))[0]]
        return plans.take(np.asarray([chosen])), float(score[chosen])

    def alternatives(self, best: DecisionArrays | None) -> DecisionArrays | None:
        """Return the best judged plan of every other kind, best first."""
        if best is None:
            return None
        plans, score, _, _ = self._gathered()
        each = _first_of_kind(plans, score)
        differs = np.zeros(each.size, dtype=bool)
        for name in KIND:
            differs |= getattr(plans, name)[each] != getattr(best, name)[0]
        other = each[differs]
        if other.size == 0:
            return None
        return plans.take(other[np.argsort(score[other], kind="stable")])


def tied(score: float) -> float:
    """Largest score that counts as equal to `score`."""
    return score + TIE * abs(score)


def _first_of_kind(plans: DecisionArrays, score: Floats) -> Ints:
    """Return the index of the best plan of every combination of `KIND`."""
    kinds = np.zeros(len(plans), dtype=np.int64)
    for name in KIND:
        values = getattr(plans, name)
        kinds = kinds * (2 + int(values.max())) + values + 1
    order = np.lexsort((score, kinds))
    _, first = np.unique(kinds[order], return_index=True)
    return np.asarray(order[first])
