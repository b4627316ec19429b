"""The command line: thin over the library, one module a verb.

Nothing heavy is imported before a verb runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import signal
import sys

from allocator.cli.check import check
from allocator.cli.compare import compare
from allocator.cli.evaluate import evaluate
from allocator.cli.profiles import profiles_app
from allocator.cli.program import app
from allocator.cli.simulate import simulate
from allocator.cli.solve import solve

__all__ = ["app", "main"]

# In the order in which `--help` lists them.
for verb in (solve, evaluate, check, compare, simulate):
    app.command()(verb)
app.add_typer(profiles_app, name="profiles")


def main() -> None:
    """Run the command line (console script `allocator`)."""
    # A reader that closes the pipe early (`| head`) ends us quietly, as it ends any other tool.
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app()
