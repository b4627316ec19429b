"""What the verbs print, and where: tables for people, plain data for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from allocator.plan import Plan
    from allocator.report.tree import Report

#: Width of output that is no terminal: nothing the views print is wider.
PIPE_WIDTH = 100
#: Width of tables in a pipe, where a line per row matters more than its length.
PIPE_TABLE_WIDTH = 1000


def show_plan(plan: Plan, as_json: bool) -> None:
    """Print a plan: tables for a person, one JSON object (and warnings on stderr) otherwise."""
    if as_json:
        from allocator.report.plan_file import plan_json

        sys.stdout.write(plan_json(plan))
        for warning in plan.warnings:
            print(f"warning: {warning.code}: {warning.text}", file=sys.stderr)
        return
    from allocator.report.terminal import plan_view

    stdout_console(PIPE_WIDTH).print(plan_view(plan))


def show_tables(report: Report) -> None:
    """Print a report whose tables keep one line a row, however wide."""
    from allocator.report.terminal import ReportView

    console = stdout_console(PIPE_TABLE_WIDTH)
    console.print(ReportView(report, widest=console.width))


def stdout_console(pipe_width: int) -> Console:
    """Return a console on stdout: colours and width of the terminal, plain and wide in a pipe."""
    from rich.console import Console

    return Console(
        width=None if sys.stdout.isatty() else pipe_width,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_json(data: Any) -> None:
    """Print what a dataclass or plain data holds as one JSON object."""
    from allocator.plan import plain

    print(json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False))


@contextmanager
def progress_bar(words: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give what shows steps done and all steps on stderr; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
