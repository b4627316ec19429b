"""What the lessons of the examples share: scenarios, predictions, and tables of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from allocator import evaluate, load, solve
from allocator.plan import Decisions, Plan, Prediction
from allocator.scenario.load import override
from allocator.scenario.schema import Scenario

EXAMPLES = Path(__file__).parents[1] / "examples"


@cache
def example(name: str) -> Scenario:
    """Return a shipped example by its file name."""
    return load(EXAMPLES / name)


def changed(name: str, changes: Mapping[str, Any]) -> Scenario:
    """Return an example with some keys replaced, as `--set` does."""
    return override(example(name), dict(changes)) if changes else example(name)


def predicted(scenario: Scenario, *, with_intervals: bool = False, **fixed: Any) -> Plan:
    """Return the prediction of the plan that a scenario states, or of `fixed`.

    Raises
    ------
    ValueError
        When the plan breaks a limit: no lesson is drawn from one that cannot run.
    """
    plan = evaluate(scenario, with_intervals=with_intervals, **fixed)
    if plan.status != "feasible":
        broken = ", ".join(limit.name for limit in plan.limits if not limit.holds)
        raise ValueError(f"{scenario.name}: the plan breaks {broken}")
    return plan


def best(scenario: Scenario) -> Plan:
    """Return the best plan of a scenario."""
    return solve(scenario)


def outcome(plan: Plan) -> Prediction:
    """Return the prediction of a plan that has one."""
    assert plan.prediction is not None
    return plan.prediction


def decided(plan: Plan) -> Decisions:
    """Return the decisions of a plan that has them."""
    assert plan.decisions is not None
    return plan.decisions


def prefill_gpus(plan: Plan) -> int:
    """Return the GPUs of engines that only prefill."""
    groups = decided(plan).generator.groups
    return sum(g.engines * g.gpus_per_engine for g in groups if g.role == "prefill")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table of Markdown, its first column to the left and the others to the right."""
    rule = ["---", *["--:"] * (len(header) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]


def span(plan: Plan, path: str, digits: str) -> str:
    """Return a predicted number with its 80% interval, where it has one."""
    value = dict(plan.to_frame()[["path", "value"]].itertuples(index=False, name=None))[path]
    text = format(value, digits)
    if path in plan.intervals:
        low, high = plan.intervals[path]
        text += f" ({format(low, digits)} to {format(high, digits)})"
    return text


def error(value: float, published: float) -> str:
    """Return how far a prediction is from what was published, in percent of it."""
    return f"{value / published - 1.0:+.0%}"
