"""The verb `compare`: where the difference between two plans comes from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from allocator.cli.console import PIPE_WIDTH, stdout_console
from allocator.cli.program import FAILED, INFEASIBLE, Json, tell
from allocator.scenario.errors import ScenarioError


def compare(
    plan_a: Annotated[Path, typer.Argument(metavar="A", help="Scenario (YAML) or plan (JSON).")],
    plan_b: Annotated[Path, typer.Argument(metavar="B", help="Scenario (YAML) or plan (JSON).")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write JSON; .html or .md a report."),
    ] = None,
    as_json: Json = False,
    solve_both: Annotated[
        bool, typer.Option("--solve", help="Solve scenarios that fix a plan, too.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a key of B; repeatable."),
    ] = None,
) -> None:
    """Say where the difference in dollars per useful token between A and B comes from.

    A scenario whose plan: fixes trainer and generator is evaluated as it stands, any other is
    solved; a plan written by solve counts as recorded.
    """
    import allocator
    from allocator.comparison import InfeasibleSideError
    from allocator.report.comparison import comparison_file, comparison_json
    from allocator.report.plan_file import check_writable, write_atomically

    if output is not None:
        check_writable(output)
    try:
        found = allocator.compare(
            plan_a, plan_b, solve=solve_both, overrides_b=tuple(overrides or ())
        )
    except InfeasibleSideError as error:
        raise typer.Exit(tell(ScenarioError(str(error)), as_json, INFEASIBLE)) from error
    except allocator.SolverFailure as failure:
        raise typer.Exit(tell(ScenarioError(str(failure)), as_json, FAILED)) from failure
    if output is not None:
        write_atomically(output, comparison_file(found, output.suffix))
    if as_json:
        sys.stdout.write(comparison_json(found))
    else:
        stdout_console(PIPE_WIDTH).print(found)
    if output is not None:
        print(f"wrote {output}", file=sys.stderr)
