"""The program that all verbs join: their group, errors, exit codes and common options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from allocator.cli.console import print_json
from allocator.scenario.errors import ScenarioError, nearest_of

FOUND, USAGE, INFEASIBLE, STOPPED, FAILED, INTERRUPTED = 0, 2, 3, 4, 5, 130

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
            code = tell(error, "--json" in words, USAGE)
        except _UsageError as error:
            code = tell(_usage_error(error), "--json" in words, USAGE)
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


def tell(error: ScenarioError, as_json: bool, code: int) -> int:
    """Print an error where its reader looks, and return the exit code."""
    if as_json:
        print_json({"status": "error", "error": error.to_dict()})
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
