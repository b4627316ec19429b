"""The verb `check`: what is known to fail before launch."""

from __future__ import annotations

from typing import Annotated

import typer

from allocator.cli.console import PIPE_WIDTH, print_json, stdout_console
from allocator.cli.program import FOUND, INFEASIBLE, Config, Json, Set


def check(
    config: Config,
    *,
    as_json: Json = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 when something fails for sure.")
    ] = False,
    overrides: Set = None,
) -> None:
    """Say what is known to fail before launch.

    Audits the plan in `plan:`; solves only where that leaves the split open.
    """
    import allocator
    from allocator.preflight import check as preflight
    from allocator.report.preflight import preflight_content, preflight_data

    scenario = allocator.load(config, tuple(overrides or ()))
    found = preflight(scenario)
    if as_json:
        print_json(preflight_data(found, scenario.origin))
    else:
        from allocator.report.terminal import ReportView

        stdout_console(PIPE_WIDTH).print(ReportView(preflight_content(found, scenario.origin)))
    raise typer.Exit(INFEASIBLE if strict and not found.passed else FOUND)
