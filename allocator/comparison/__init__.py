"""Two plans compared: where the difference in dollars per useful token comes from.

`identity` holds the law, `reading` takes a plan apart (`paid` its GPUs and dollars), `sides` has
the numbers behind each term, `result` is what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

from allocator.comparison.identity import differences, generator_share
from allocator.comparison.reading import factors_of
from allocator.comparison.result import Change, Comparison, Measure, Origin, Side, Term
from allocator.comparison.sides import Case, measures, side_of
from allocator.facade import InfeasibleError, evaluate, try_solve
from allocator.plan import Plan, PlanWarning
from allocator.recorded import PlanData, recorded_plan
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import load, override
from allocator.scenario.overrides import Overrides
from allocator.scenario.schema import Scenario

__all__ = ["Change", "Comparison", "InfeasibleSideError", "Measure", "Side", "Term", "compare"]

Source = Scenario | Plan | str | PathLike[str]

#: Where the scenario says what a side is called and what is already decided: not what it is.
NOT_COMPARED = ("name", "plan")


class InfeasibleSideError(InfeasibleError):
    """One of two scenarios to compare has no plan; `name` is the side's, `diagnosis` says why."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__(plan)
        self.name = name

    def __str__(self) -> str:
        """Return the side's name and which limits cannot be met."""
        return f"{self.name}: {self.args[0]}"


def compare(
    a: Source, b: Source, *, solve: bool = False, overrides_b: Overrides = ()
) -> Comparison:
    """Say where the difference in dollars per useful token between two plans comes from.

    Parameters
    ----------
    a, b : each a scenario, a plan, or the path of a scenario file (YAML) or of a plan that `solve`
        wrote (JSON). A scenario whose `plan:` block fixes the GPUs of trainer and generator (or
        its engines) is evaluated as it stands, any other is solved; a plan counts as it was
        recorded, nothing is computed anew.
    solve : solve every scenario, also one that fixes its plan.
    overrides_b : keys of scenario `b` to replace, as for `allocator.load`.

    Returns
    -------
    Comparison, whose terms sum to the difference of the dollars.

    Raises
    ------
    ScenarioError
        When a side cannot be read or planned, or has no finite dollars per useful token.
    InfeasibleSideError
        When a scenario to be solved has no plan.
    SolverFailure
        As for `allocator.solve`.
    """
    first = _case(a, "A", solve, ())
    second = _case(b, "B", solve, overrides_b)
    dollars = differences(first.factors, second.factors)
    numbers = measures(first, second)
    side_a, side_b = side_of(first), side_of(second)
    return Comparison(
        a=side_a,
        b=side_b,
        difference_usd=side_b.usd_per_useful_mtok - side_a.usd_per_useful_mtok,
        generator_share=generator_share(first.factors, second.factors),
        terms=tuple(Term(name, usd, numbers[name]) for name, usd in dollars.items()),
        scenario_changes=tuple(_changes(_scenario(first.plan), _scenario(second.plan))),
        decision_changes=tuple(_changes(first.plan.look_up("plan"), second.plan.look_up("plan"))),
        warnings=_warnings(first.plan, second.plan),
    )


def _case(source: Source, label: str, solve: bool, overrides: Overrides) -> Case:
    if not isinstance(source, (Scenario, Plan)):
        path = Path(source)
        recorded = recorded_plan(path)
        if recorded is not None:
            if overrides:
                raise ScenarioError(
                    file=str(path), expected="a scenario, whose keys can be replaced",
                    given="a plan",
                )  # fmt: skip
            return _taken_apart(PlanData(str(path), recorded), "recorded")
        return _planned(load(path, overrides), str(path), solve)
    if isinstance(source, Plan):
        name = str(source.scenario.get("name") or f"plan {label}")
        return _taken_apart(PlanData(name, source.to_dict()), "recorded")
    if overrides:
        source = override(source, overrides)
    return _planned(source, source.name or f"scenario {label}", solve)


def _planned(scenario: Scenario, name: str, solve: bool) -> Case:
    if scenario.plan.fixes_split and not solve:
        plan = evaluate(scenario, with_intervals=False)
        return _taken_apart(PlanData(name, plan.to_dict()), "evaluated")
    plan = try_solve(scenario)
    if plan.prediction is None:
        raise InfeasibleSideError(plan, name)
    return _taken_apart(PlanData(name, plan.to_dict()), "solved")


def _taken_apart(data: PlanData, origin: Origin) -> Case:
    data.number("prediction.usd_per_useful_mtok")
    return Case(data, origin, factors_of(data))


def _scenario(plan: PlanData) -> dict[str, Any]:
    stated = plan.look_up("scenario") or {}
    return {key: _values(value) for key, value in stated.items() if key not in NOT_COMPARED}


def _changes(a: Any, b: Any, path: str = "") -> Iterator[Change]:
    """Yield what differs, each at the deepest key that both sides have."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        dot = f"{path}." if path else ""
        for key in {**a, **b}:
            yield from _changes(a.get(key), b.get(key), f"{dot}{key}")
    elif isinstance(a, list) and isinstance(b, list) and _blocks(a) and _blocks(b):
        for place, (first, second) in enumerate(zip_longest(a, b)):
            yield from _changes(first, second, f"{path}[{place}]")
    elif a != b:
        yield Change(path, a, b)


def _blocks(items: list[Any]) -> bool:
    return all(isinstance(item, Mapping) for item in items)


def _values(node: Any) -> Any:
    """Return plain data with numbers that carry a spread or a source as bare numbers."""
    if isinstance(node, Mapping):
        if "value" in node and {"kind", "low", "high", "source"} & set(node):
            return node["value"]
        return {key: _values(item) for key, item in node.items()}
    if isinstance(node, list):
        return [_values(item) for item in node]
    return node


def _warnings(a: PlanData, b: PlanData) -> tuple[PlanWarning, ...]:
    found = []
    for code, path, text in (
        ("token_basis_differs", "scenario.token_basis",
         "useful tokens are counted differently, so the dollars are not those of the same thing"),
        ("version_differs", "versions.allocator",
         "predicted by different versions of the allocator, whose laws may differ"),
        ("model_differs", "scenario.model",
         "a token of one model is not worth a token of another"),
    ):  # fmt: skip
        values = [plan.look_up(path) for plan in (a, b)]
        if values[0] != values[1]:
            # An inline model is a block of many lines; its keys are among the changes.
            said = ", ".join("inline" if isinstance(v, Mapping) else str(v) for v in values)
            found.append(PlanWarning(code, f"{text} ({said})", path))
    for plan in (a, b):
        objective = plan.text("objective.name")
        if objective != "usd_per_useful_mtok" and plan.look_up("solver") is not None:
            found.append(
                PlanWarning(
                    "other_objective",
                    f"{plan.name} was solved for {objective}, not for the cost of a token",
                    "objective",
                )
            )
    return tuple(found)
