"""The verb `solve`: the best plan of a scenario."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allocator.cli.console import PIPE_WIDTH, show_plan, stdout_console
from allocator.cli.options import one_of
from allocator.cli.program import FAILED, FOUND, INFEASIBLE, STOPPED, Config, Json, Set, tell
from allocator.scenario.errors import ScenarioError

if TYPE_CHECKING:
    from allocator.plan import Plan
    from allocator.scenario.schema import Scenario

SOLVERS = ("auto", "columns")


def solve(
    config: Config,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan as JSON.")
    ] = None,
    as_json: Json = False,
    solver: Annotated[str, typer.Option(metavar="|".join(SOLVERS), help="Solver.")] = "auto",
    objective: Annotated[
        str | None, typer.Option(metavar="NAME", help="Replace the scenario's objective.")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop with the best plan so far.")
    ] = None,
    overrides: Set = None,
) -> None:
    """Find the best plan of a scenario."""
    import allocator
    from allocator.report.plan_file import check_writable, plan_json, write_atomically
    from allocator.report.words import OBJECTIVES

    one_of("--solver", solver, SOLVERS)
    if objective is not None:
        one_of("--objective", objective, tuple(OBJECTIVES))
    if time_limit is not None and not time_limit > 0:
        raise ScenarioError(
            path="--time-limit", expected="seconds, more than 0", given=f"{time_limit:g}"
        )
    if output is not None:
        check_writable(output)
    changes = [*(overrides or ()), *([f"objective={objective}"] if objective else [])]
    scenario = allocator.load(config, tuple(changes))
    try:
        plan = allocator.try_solve(scenario, solver=solver, time_limit_s=time_limit)
    except allocator.SolverFailure as failure:
        raise typer.Exit(tell(ScenarioError(str(failure)), as_json, FAILED)) from failure
    if output is not None:
        write_atomically(output, plan_json(plan))
    show_plan(plan, as_json)
    if not as_json and plan.prediction is not None:
        show_as_configured(scenario, plan)
    if output is not None:
        print(f"wrote {output}", file=sys.stderr)
    codes = {"optimal": FOUND, "feasible": STOPPED, "infeasible": INFEASIBLE}
    raise typer.Exit(codes.get(plan.status, FAILED))


def show_as_configured(scenario: Scenario, solved: Plan) -> None:
    """Print the plan of the scenario's `plan:` block beside the solved one, if it has a block."""
    fixed = getattr(scenario, "plan", None)
    if fixed is None or all(getattr(fixed, name) is None for name in type(fixed).model_fields):
        return
    import allocator
    from allocator.report.terminal import compare_view

    try:
        configured = allocator.evaluate(scenario, with_intervals=False)
    except ScenarioError as error:
        print(f"warning: the plan in `plan:` cannot be compared: {error}", file=sys.stderr)
        return
    view = compare_view(configured, solved, ("as configured in plan:", "solved"))
    console = stdout_console(PIPE_WIDTH)
    console.print()
    console.print(view)
