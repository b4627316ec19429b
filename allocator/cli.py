"""The command line: thin over `allocator.solve` and `allocator.evaluate`.

Nothing heavy is imported before a verb runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from allocator.scenario.errors import ScenarioError, nearest_of

if TYPE_CHECKING:
    from rich.console import Console

    from allocator.plan import Plan
    from allocator.report.tree import Report
    from allocator.scenario.schema import Scenario

FOUND, USAGE, INFEASIBLE, STOPPED, FAILED, INTERRUPTED = 0, 2, 3, 4, 5, 130

SOLVERS = ("auto", "columns")
#: Width of output that is no terminal: nothing the views print is wider.
PIPE_WIDTH = 100
#: Width of tables in a pipe, where a line per row matters more than its length.
PIPE_TABLE_WIDTH = 1000

# typer carries its own copy of click from 0.29 on and imports click before that; the base of the
# exception that it makes public is the right class in both.
_UsageError = cast(type[Exception], typer.BadParameter.__base__)


class Verbs(TyperGroup):
    """A group of verbs that tells errors and exit codes as the interface promises."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a verb; an unknown one is an error that names the nearest."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise ScenarioError(
                expected=f"a verb of {ctx.command_path} ({', '.join(self.commands)})",
                given=args[0],
                nearest=nearest_of(args[0], self.commands),
            )
        return super().resolve_command(ctx, args)

    def main(self, *given: Any, **options: Any) -> Any:
        """Run, and turn what a user can cause into its exit code; bugs keep their traceback.

        Takes what the method it replaces takes: `args`, `prog_name`, `standalone_mode`, ...
        """
        args = given[0] if given else options.get("args")
        words = list(sys.argv[1:] if args is None else args)
        standalone = options.get("standalone_mode", True)
        try:
            code = super().main(
                **{"prog_name": "allocator"} | options | {"args": words, "standalone_mode": False}
            )
        except ScenarioError as error:
            code = _tell(error, "--json" in words, USAGE)
        except _UsageError as error:
            code = _tell(_usage_error(error), "--json" in words, USAGE)
        except typer.Abort:
            code = INTERRUPTED
        if standalone:
            sys.exit(code)
        return code


def _usage_error(error: Any) -> ScenarioError:
    """Return a wrong command line as the one error that this program prints."""
    command = error.ctx.command_path if error.ctx else "allocator"
    param = getattr(error, "param", None)
    option = getattr(error, "option_name", None) or (param.opts[-1] if param else None)
    if getattr(error, "possibilities", None) is not None or "No such option" in error.message:
        known = [name for param in error.ctx.command.params for name in param.opts]
        return ScenarioError(
            path=option, expected=f"an option of `{command}`", given=option,
            nearest=nearest_of(option, [name for name in known if name.startswith("--")]),
        )  # fmt: skip
    return ScenarioError(
        f"{error.format_message().rstrip('.')} (see {command} --help)", path=option
    )


def _tell(error: ScenarioError, as_json: bool, code: int) -> int:
    """Print an error where its reader looks, and return the exit code."""
    if as_json:
        _print_json({"status": "error", "error": error.to_dict()})
    else:
        print(f"error: {error}", file=sys.stderr)
    return code


app = typer.Typer(
    cls=Verbs,
    help="Plan RL post-training: GPU split, concurrency, staleness, dollars per useful token.",
    epilog="Exit codes: 0 a plan, 2 bad usage or config, 3 infeasible (with --strict: "
    "failing), 4 stopped at a limit with a plan, 5 solver failed or stopped without one, "
    "130 interrupted, 1 a bug.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
profiles_app = typer.Typer(
    cls=Verbs,
    help="Show GPUs, models, rates and prices with their sources.",
    rich_markup_mode=None,
)
app.add_typer(profiles_app, name="profiles")

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="Scenario (YAML).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a key of the scenario; repeatable."),
]


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        import allocator

        print(f"allocator {allocator.__version__}")
        raise typer.Exit(FOUND)
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(USAGE)


@app.command()
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

    _one_of("--solver", solver, SOLVERS)
    if objective is not None:
        _one_of("--objective", objective, tuple(OBJECTIVES))
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
        raise typer.Exit(_tell(ScenarioError(str(failure)), as_json, FAILED)) from failure
    if output is not None:
        write_atomically(output, plan_json(plan))
    _show_plan(plan, as_json)
    if not as_json and plan.prediction is not None:
        _show_as_configured(scenario, plan)
    if output is not None:
        print(f"wrote {output}", file=sys.stderr)
    codes = {"optimal": FOUND, "feasible": STOPPED, "infeasible": INFEASIBLE}
    raise typer.Exit(codes.get(plan.status, FAILED))


@app.command()
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
    _show_plan(plan, as_json)
    broken = plan.status == "infeasible" or any(not limit.holds for limit in plan.limits)
    raise typer.Exit(INFEASIBLE if strict and broken else FOUND)


@app.command()
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
        _print_json(preflight_data(found, scenario.origin))
    else:
        from allocator.report.terminal import ReportView

        _console(PIPE_WIDTH).print(ReportView(preflight_content(found, scenario.origin)))
    raise typer.Exit(INFEASIBLE if strict and not found.passed else FOUND)


@app.command()
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
        raise typer.Exit(_tell(ScenarioError(str(error)), as_json, INFEASIBLE)) from error
    except allocator.SolverFailure as failure:
        raise typer.Exit(_tell(ScenarioError(str(failure)), as_json, FAILED)) from failure
    if output is not None:
        write_atomically(output, comparison_file(found, output.suffix))
    if as_json:
        sys.stdout.write(comparison_json(found))
    else:
        _console(PIPE_WIDTH).print(found)
    if output is not None:
        print(f"wrote {output}", file=sys.stderr)


@app.command()
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

    _at_least("--steps", steps, FEWEST_STEPS)
    _at_least("--seed", seed, 0)
    _at_least("--replications", replications, 1)
    _at_least("--trace-steps", trace_steps, 1)
    if output is not None:
        check_simulation_file(output)
        check_writable(output)
    if trace is not None:
        check_trace_file(trace)
        check_writable(trace)
    traced = trace is not None or (output is not None and output.suffix.lower() == ".png")
    try:
        with _progress("simulating") as progress:
            found = allocator.simulate(
                source, steps, seed, replications, progress,
                overrides=tuple(overrides or ()), trace_steps=trace_steps if traced else 0,
            )  # fmt: skip
    except allocator.InfeasibleError as error:
        raise typer.Exit(_tell(ScenarioError(str(error)), as_json, INFEASIBLE)) from error
    except allocator.SolverFailure as failure:
        raise typer.Exit(_tell(ScenarioError(str(failure)), as_json, FAILED)) from failure
    if output is not None:
        write_atomically(output, simulation_file(found, output.suffix))
    if trace is not None and found.trace is not None:
        write_atomically(trace, trace_file(found.trace, trace.suffix))
    if as_json:
        sys.stdout.write(simulation_json(found))
    else:
        _console(PIPE_WIDTH).print(found)
    for path in (output, trace):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)


@profiles_app.command("list")
def profiles_list(as_json: Json = False) -> None:
    """List GPUs and models."""
    from allocator.report.profiles import catalogue_content
    from allocator.scenario.profiles import load_catalogue

    catalogue = load_catalogue()
    if as_json:
        _print_json(
            {
                "gpus": [catalogue.gpu(key) for key in catalogue.gpu_ids],
                "models": [catalogue.model(key) for key in catalogue.model_ids],
            }
        )
    else:
        _show_tables(catalogue_content(catalogue))


@profiles_app.command("show")
def profiles_show(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="A GPU or model, or `defaults` of a scenario.")
    ],
    as_json: Json = False,
) -> None:
    """Show every number of one profile with its source, or the defaults of a scenario."""
    from allocator.report.profiles import (
        defaults_content,
        find_profile,
        profile_content,
        profile_data,
    )
    from allocator.scenario.profiles import load_catalogue

    if name == "defaults":
        from allocator.scenario.describe import defaults

        known = defaults()
        _print_json(known) if as_json else _show_tables(defaults_content(known))
        return
    catalogue = load_catalogue()
    profile = find_profile(catalogue, name)
    if as_json:
        _print_json(profile_data(catalogue, profile))
    else:
        _show_tables(profile_content(catalogue, profile))


@profiles_app.command("check")
def profiles_check(as_json: Json = False) -> None:
    """Check that every number has a kind, a source and a spread that holds it."""
    from allocator.report.profiles import check_catalogue, check_content
    from allocator.scenario.profiles import load_catalogue

    found = check_catalogue(load_catalogue())
    _print_json(found) if as_json else _show_tables(check_content(found))
    raise typer.Exit(USAGE if found["problems"] else FOUND)


def _one_of(option: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ScenarioError(
            path=option, expected=f"one of {', '.join(legal)}", given=value,
            nearest=nearest_of(value, legal),
        )  # fmt: skip


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise ScenarioError(path=option, expected=f"{least} or more", given=str(value))


@contextmanager
def _progress(words: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give what shows steps done and all steps on stderr; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def _show_plan(plan: Plan, as_json: bool) -> None:
    if as_json:
        from allocator.report.plan_file import plan_json

        sys.stdout.write(plan_json(plan))
        for warning in plan.warnings:
            print(f"warning: {warning.code}: {warning.text}", file=sys.stderr)
        return
    from allocator.report.terminal import plan_view

    _console(PIPE_WIDTH).print(plan_view(plan))


def _show_as_configured(scenario: Scenario, solved: Plan) -> None:
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
    console = _console(PIPE_WIDTH)
    console.print()
    console.print(view)


def _show_tables(report: Report) -> None:
    from allocator.report.terminal import ReportView

    console = _console(PIPE_TABLE_WIDTH)
    console.print(ReportView(report, widest=console.width))


def _console(pipe_width: int) -> Console:
    """Return a console on stdout: colours and width of the terminal, plain and wide in a pipe."""
    from rich.console import Console

    return Console(
        width=None if sys.stdout.isatty() else pipe_width,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _print_json(data: Any) -> None:
    from allocator.plan import plain

    print(json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False))


def main() -> None:
    """Run the command line (console script `allocator`)."""
    # A reader that closes the pipe early (`| head`) ends us quietly, as it ends any other tool.
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app()


if __name__ == "__main__":
    main()
