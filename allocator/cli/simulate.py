"""The verb `simulate`: a plan run event by event beside its formulas."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from allocator.cli.console import PIPE_WIDTH, progress_bar, stdout_console
from allocator.cli.options import at_least
from allocator.cli.program import FAILED, INFEASIBLE, Json, Set, tell
from allocator.scenario.errors import ScenarioError


def simulate(
    source: Annotated[
        Path, typer.Argument(metavar="CONFIG|PLAN", help="Scenario (YAML) or plan (JSON).")
    ],
    *,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps of each replication.")] = 500,
    seed: Annotated[int, typer.Option(metavar="S", help="Of all random numbers.")] = 0,
    replications: Annotated[
        int, typer.Option(metavar="R", help="Independent runs; intervals need 2.")
    ] = 4,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write .json, .html, .md, .csv, or the timeline as .png.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the events of some steps as .csv or .parquet."),
    ] = None,
    trace_steps: Annotated[
        int, typer.Option(metavar="N", help="Steps of trace and timeline, after the warm-up.")
    ] = 8,
    as_json: Json = False,
    overrides: Set = None,
) -> None:
    """Run a plan event by event, beside what the formulas predict.

    A scenario whose plan: fixes trainer and generator is evaluated as it stands, any other is
    solved; a plan written by solve counts as recorded.
    """
    import allocator
    from allocator.report.plan_file import check_writable, write_atomically
    from allocator.report.simulation import check_simulation_file, simulation_file, simulation_json
    from allocator.report.trace_file import check_trace_file, trace_file
    from allocator.simulation import FEWEST_STEPS

    at_least("--steps", steps, FEWEST_STEPS)
    at_least("--seed", seed, 0)
    at_least("--replications", replications, 1)
    at_least("--trace-steps", trace_steps, 1)
    if output is not None:
        check_simulation_file(output)
        check_writable(output)
    if trace is not None:
        check_trace_file(trace)
        check_writable(trace)
    traced = trace is not None or (output is not None and output.suffix.lower() == ".png")
    try:
        with progress_bar("simulating") as progress:
            found = allocator.simulate(
                source, steps, seed, replications, progress,
                overrides=tuple(overrides or ()), trace_steps=trace_steps if traced else 0,
            )  # fmt: skip
    except allocator.InfeasibleError as error:
        raise typer.Exit(tell(ScenarioError(str(error)), as_json, INFEASIBLE)) from error
    except allocator.SolverFailure as failure:
        raise typer.Exit(tell(ScenarioError(str(failure)), as_json, FAILED)) from failure
    if output is not None:
        write_atomically(output, simulation_file(found, output.suffix))
    if trace is not None and found.trace is not None:
        write_atomically(trace, trace_file(found.trace, trace.suffix))
    if as_json:
        sys.stdout.write(simulation_json(found))
    else:
        stdout_console(PIPE_WIDTH).print(found)
    for path in (output, trace):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)
