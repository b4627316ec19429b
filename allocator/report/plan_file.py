"""Plans as JSON files: text, atomic writing, and the decisions read back from one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from allocator.plan import Plan
from allocator.recorded import decisions_in
from allocator.scenario.errors import ScenarioError


def plan_json(plan: Plan) -> str:
    """Return a plan as one JSON object with the keys of the contract, ending in a newline."""
    return json.dumps(plan.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def check_writable(path: Path) -> None:
    """Raise ScenarioError if `path` cannot be written, so that no time is spent on a plan first."""
    target = path.resolve()
    if target.is_dir():
        raise ScenarioError(file=str(path), expected="a file to write", given="a directory")
    if not target.parent.is_dir():
        raise ScenarioError(
            file=str(path), expected="a file in a folder that exists", given=str(path.parent)
        )
    if not os.access(target.parent, os.W_OK):
        raise ScenarioError(
            file=str(path), expected="a folder that can be written to", given=str(path.parent)
        )


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    The content (text as UTF-8) goes to a temporary file in the same folder, which then takes the
    place of `path`; a link is followed, and permissions of a file that was there are kept.

    Raises
    ------
    ScenarioError
        If `path` is a directory or its folder cannot be written to. Nothing is left behind.
    """
    check_writable(path)
    target = path.resolve()
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with open(handle, "wb") as stream:
            stream.write(content.encode("utf-8") if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ScenarioError(f"cannot be written: {reason}", file=str(path)) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _mode(target: Path) -> int:
    """Return the permissions the written file is to have: the old ones, else what umask leaves."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def read_decisions(path: Path) -> dict[str, Any]:
    """Return the decisions of a plan file as the keyword arguments of `evaluate`.

    Parameters
    ----------
    path : Path
        A JSON file that `solve` wrote.

    Raises
    ------
    ScenarioError
        If the file cannot be read, is not JSON, is not a plan, holds no decisions (an infeasible
        plan), or has more than one kind of engine.
    """
    file = str(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(
            file=file, expected="a plan file that can be read", given=error.strerror or str(error)
        ) from error
    except UnicodeDecodeError as error:
        raise ScenarioError(file=file, expected="JSON in UTF-8", given="other bytes") from error
    except json.JSONDecodeError as error:
        raise ScenarioError(
            file=file, line=error.lineno, column=error.colno, expected="JSON", given=error.msg
        ) from error
    return decisions_in(data, file)
