"""The verb `evaluate`: a given plan, predicted and audited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allocator.cli.console import show_plan
from allocator.cli.program import FOUND, INFEASIBLE, Config, Json, Set


def evaluate(
    config: Config,
    *,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="A plan written by solve; else `plan:`."),
    ] = None,
    as_json: Json = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 3 on a broken limit.")] = False,
    overrides: Set = None,
) -> None:
    """Predict and audit a given plan; nothing is optimised."""
    import allocator
    from allocator.report.plan_file import read_decisions

    scenario = allocator.load(config, tuple(overrides or ()))
    fixed = {} if plan_file is None else read_decisions(plan_file)
    plan = allocator.evaluate(scenario, **fixed)
    show_plan(plan, as_json)
    broken = plan.status == "infeasible" or any(not limit.holds for limit in plan.limits)
    raise typer.Exit(INFEASIBLE if strict and broken else FOUND)
