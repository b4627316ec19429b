"""Intervals of a prediction: what the spreads of its inputs make of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from allocator.evaluator import evaluate
from allocator.evaluator.prediction import prediction_of
from allocator.plan import Prediction, leaves, plain
from allocator.problem.build import Problem, build_problem
from allocator.scenario.errors import ScenarioError

if TYPE_CHECKING:
    from allocator.plan import Provenance
    from allocator.problem.decisions import DecisionArrays
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.schema import Scenario

#: The level that low and high of an input, and so the intervals of a plan, stand for.
LEVEL = 0.8


def intervals(
    scenario: Scenario,
    catalogue: Catalogue,
    problem: Problem,
    plan: DecisionArrays,
    prediction: Prediction,
) -> dict[str, tuple[float, float]]:
    """Return 80% intervals of every number of a prediction, by its path.

    Each input with a spread is moved to its low and high end alone, the plan being kept; what the
    ends change adds up in squares on either side (inputs independent, effects near-linear).
    Inputs without a spread add nothing, so an interval is a lower bound of what is not known.

    Parameters
    ----------
    plan : one plan, as the arrays of its decisions.
    """
    base = _numbers(prediction)
    down = dict.fromkeys(base, 0.0)
    up = dict.fromkeys(base, 0.0)
    for entry in _uncertain(problem, plan):
        ends = []
        for end in (entry.low, entry.high):
            # A spread may be stated on one side only.
            moved = None
            if end is not None:
                moved = _moved(scenario, catalogue, problem, plan, {entry.name: end})
            if moved is not None:
                ends.append(moved)
        for path, value in base.items():
            changes = [m.get(path, value) - value for m in ends]
            down[path] = math.hypot(down[path], min([0.0, *changes]))
            up[path] = math.hypot(up[path], max([0.0, *changes]))
    return {
        path: _within_reason(path, value, value - down[path], value + up[path])
        for path, value in base.items()
        if down[path] > 0.0 or up[path] > 0.0
    }


def _within_reason(path: str, value: float, low: float, high: float) -> tuple[float, float]:
    """Keep an interval where the quantity itself can be: not below 0, shares not above 1."""
    share = path.startswith("token_fate.") or "fraction" in path or "mfu" in path or "hfu" in path
    return (max(low, 0.0) if value >= 0.0 else low, min(high, 1.0) if share else high)


def _uncertain(problem: Problem, plan: DecisionArrays) -> list[Provenance]:
    """Inputs with a spread, without the rate profiles of engines that the plan does not use."""
    labels = problem.system.engines.labels
    used = labels[int(plan.generator_kind[0])].rate_row
    unused = {label.rate_row for label in labels} - {used}
    return [
        entry
        for entry in problem.provenance
        if any(end is not None and end != entry.value for end in (entry.low, entry.high))
        and not any(row and entry.name.startswith(row) for row in unused)
    ]


def _moved(
    scenario: Scenario,
    catalogue: Catalogue,
    problem: Problem,
    plan: DecisionArrays,
    shifts: dict[str, float],
) -> dict[str, float] | None:
    """Prediction with one input moved; None where that end has no such system or engine."""
    try:
        shifted = build_problem(scenario, catalogue, shifts)
    except ScenarioError:
        return None
    # Engines whose weights no longer fit are gone, and the places of the others with them.
    label = problem.system.engines.labels[int(plan.generator_kind[0])]
    labels = shifted.system.engines.labels
    if label not in labels:
        return None
    plan = replace(plan, generator_kind=np.asarray([labels.index(label)]))
    return _numbers(prediction_of(shifted, evaluate(shifted, plan), 0))


def _numbers(prediction: Prediction) -> dict[str, float]:
    return {
        path: float(value)
        for path, value in leaves(plain(prediction))
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
