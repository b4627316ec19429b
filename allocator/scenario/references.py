"""Files a scenario refers to: kept inside its own directory, and read with line numbers."""

from __future__ import annotations

import csv
import io
import math
from os import PathLike
from pathlib import Path

from allocator.scenario.errors import ScenarioError, shown
from allocator.scenario.origin import Origin
from allocator.scenario.quantity import Bounds

LENGTHS_COLUMN = "response_tokens"
LATENCY_COLUMN = "tool_s"
COLUMN_FILE_BYTES = 20_000_000


def resolve_reference(reference: str, path: str, origin: Origin) -> Path:
    """Return the file that `reference` names, relative to the scenario's directory.

    Parameters
    ----------
    reference : str
        Relative file name as written in the scenario.
    path : str
        Path of the key that holds it, for errors.
    origin : Origin
        Where the scenario was read from.

    Raises
    ------
    ScenarioError
        If `reference` is absolute, leads outside the directory (also through a link), or names no
        regular file; or if the scenario was not read from a file.
    """
    file, line = origin.locate(path)

    def wrong(expected: str) -> ScenarioError:
        return ScenarioError(
            file=file, line=line, path=path, expected=expected, given=shown(reference)
        )

    if origin.directory is None:
        raise wrong("no file name (this scenario was not read from a file)")
    directory = origin.directory.resolve()
    if Path(reference).is_absolute() or "\\" in reference or "\0" in reference:
        raise wrong("a file name relative to the scenario file")
    target = (directory / reference).resolve()
    if not target.is_relative_to(directory):
        raise wrong("a file in the directory of the scenario, or below it")
    if not target.is_file():
        raise wrong("an existing file")
    return target


def read_lengths_file(path: str | PathLike[str]) -> tuple[float, ...]:
    """Return the response lengths of a CSV file: a header `response_tokens`, a number per row.

    Parameters
    ----------
    path : path-like
        UTF-8 file of at most 20 MB. Empty lines are skipped.

    Returns
    -------
    tuple of float
        Lengths in tokens, each finite and > 0, at least one, in file order.

    Raises
    ------
    ScenarioError
        With file and line, for anything else.
    """
    return _read_column(path, LENGTHS_COLUMN, Bounds(low=0, low_open=True))


def read_latency_file(path: str | PathLike[str]) -> tuple[float, ...]:
    """Return the times of a CSV file: a header `tool_s`, a number per row.

    Parameters
    ----------
    path : path-like
        UTF-8 file of at most 20 MB. Empty lines are skipped.

    Returns
    -------
    tuple of float
        Seconds, each finite and >= 0, at least one > 0, in file order.

    Raises
    ------
    ScenarioError
        With file and line, for anything else.
    """
    times = _read_column(path, LATENCY_COLUMN, Bounds(low=0))
    if not any(times):
        raise ScenarioError(
            file=str(path), path=LATENCY_COLUMN, expected="a number > 0 in some row", given="zeros"
        )
    return times


def _read_column(path: str | PathLike[str], column: str, legal: Bounds) -> tuple[float, ...]:
    file = str(path)
    text = read_text(path, COLUMN_FILE_BYTES)
    rows = csv.reader(io.StringIO(text, newline=""))
    numbers: list[float] = []
    header_seen = False

    def wrong_row(expected: str, row: list[str]) -> ScenarioError:
        given = shown(",".join(row))
        return ScenarioError(
            file=file, line=rows.line_num, path=column, expected=expected, given=given
        )

    try:
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            if not header_seen:
                if [cell.strip() for cell in row] != [column]:
                    raise wrong_row(f"the header {column}", row)
                header_seen = True
                continue
            if len(row) != 1:
                raise wrong_row("one number per row", row)
            try:
                number = float(row[0])
            except ValueError:
                raise wrong_row(f"a number {legal.text()}", row) from None
            if not (math.isfinite(number) and legal.holds(number)):
                raise wrong_row(f"a finite number {legal.text()}", row)
            numbers.append(number)
    except csv.Error as wrong:
        raise ScenarioError(
            file=file, line=rows.line_num, expected="a CSV row", given=str(wrong)
        ) from wrong
    if not numbers:
        raise ScenarioError(
            file=file,
            line=rows.line_num or None,
            path=column,
            expected=f"the header {column} and at least one number below it",
            given="none",
        )
    return tuple(numbers)


def read_text(path: str | PathLike[str], limit_bytes: int) -> str:
    """Return the UTF-8 text of a regular file of at most `limit_bytes`.

    Raises
    ------
    ScenarioError
        If there is no such file, it cannot be read, is larger, or is not UTF-8.
    """
    file = str(path)
    try:
        if Path(path).is_dir():
            raise ScenarioError(file=file, expected="a file", given="a directory")
        if Path(path).exists() and not Path(path).is_file():
            raise ScenarioError(file=file, expected="a regular file", given="something else")
        with open(path, "rb") as stream:
            data = stream.read(limit_bytes + 1)
    except (OSError, ValueError) as wrong:
        reason = wrong.strerror if isinstance(wrong, OSError) else str(wrong)
        given = "no such file" if isinstance(wrong, FileNotFoundError) else str(reason)
        raise ScenarioError(file=file, expected="a readable file", given=given) from wrong
    if len(data) > limit_bytes:
        raise ScenarioError(
            file=file, expected=f"at most {limit_bytes:,} bytes", given="a larger file"
        )
    return decoded(data, file)


def decoded(data: bytes, file: str) -> str:
    """Return `data` as text without a byte-order mark; errors name the line that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = data[: wrong.start].count(b"\n") + 1
        raise ScenarioError(
            file=file, line=line, expected="UTF-8 text", given=f"the byte 0x{data[wrong.start]:02x}"
        ) from wrong
