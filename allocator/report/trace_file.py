"""A trace as a file: one event a row, as CSV or, where pyarrow is there, as Parquet."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

from allocator.scenario.errors import ScenarioError
from allocator.simulator.trace import Event, Trace

SUFFIXES = (".csv", ".parquet")


def check_trace_file(path: Path) -> None:
    """Raise ScenarioError if a trace cannot be written under that name, before it is computed."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ScenarioError(
            path="--trace", expected=f"a file that ends in {' or '.join(SUFFIXES)}", given=str(path)
        )
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ScenarioError(
            path="--trace", expected="a .csv file, since Parquet needs pyarrow, which is not "
            "installed", given=str(path),
        )  # fmt: skip


def trace_file(trace: Trace, suffix: str) -> str | bytes:
    """Return the content of a trace's file: columns `time_s`, `kind` and `value` (see `Event`).

    Raises
    ------
    ModuleNotFoundError
        For `.parquet`, if pyarrow is not installed.
    """
    if suffix.lower() == ".parquet":
        return _parquet(trace)
    lines = [",".join(Event._fields)]
    lines += [f"{event.time_s:.6f},{event.kind},{event.value:.12g}" for event in trace.events]
    return "\n".join(lines) + "\n"


def _parquet(trace: Trace) -> bytes:
    import pandas as pd

    stream = BytesIO()
    pd.DataFrame(trace.events, columns=list(Event._fields)).to_parquet(stream, engine="pyarrow")
    return stream.getvalue()
