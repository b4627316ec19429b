"""What a change of one resource would be worth to a plan, by evaluating it again."""

from __future__ import annotations

import math
from dataclasses import replace

from allocator.evaluator import evaluate
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays

#: Multiples of the workers there are that are tried.
MORE_WORKERS = (2, 4, 8)
#: A shorter step than this share is not worth more workers.
WORTH_IT = 0.01


def value_of_workers(problem: Problem, plan: DecisionArrays) -> tuple[tuple[int, float], ...]:
    """Return how much shorter a step gets with more reward workers: (workers, share saved).

    Each multiple of the workers is evaluated with the plan as it is; those that no longer shorten
    the step by 1% end the list.

    Parameters
    ----------
    plan : one plan, as the arrays of its decisions.
    """
    reward = problem.system.reward
    if not math.isfinite(reward.workers):
        return ()
    step_s = float(evaluate(problem, plan).match.step_s[0])
    found: list[tuple[int, float]] = []
    saved_before = 0.0
    for factor in MORE_WORKERS:
        more = replace(reward, workers=reward.workers * factor)
        changed = replace(problem, system=replace(problem.system, reward=more))
        saved = 1.0 - float(evaluate(changed, plan).match.step_s[0]) / step_s
        if saved - saved_before < WORTH_IT:
            break
        found.append((int(more.workers), saved))
        saved_before = saved
    return tuple(found)
