"""Plans as JSON files: text, atomic writing, and the decisions read back from one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from allocator.plan import Plan
from allocator.scenario.errors import ScenarioError, nearest_of, shown


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


def write_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    The text goes to a temporary file in the same folder, which then takes the place of `path`; a
    link is followed, and permissions of a file that was there are kept.

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
        with open(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
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


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _at_least_one(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


#: Flat name of a decision, where it stands under `plan`, its test, and the test in words.
#: Places under `generator.groups` start from the decode engines, which are the last.
DECISIONS: tuple[tuple[str, tuple[str | int, ...], Callable[[Any], bool], str], ...] = (
    ("mode", ("mode",), _text, "the name of a mode"),
    ("trainer_gpus", ("trainer", "gpus"), _whole, "a whole number of GPUs, 1 or more"),
    ("trainer_pool", ("trainer", "pool"), _text, "the name of a pool"),
    ("generator_gpus", ("generator", "gpus"), _whole, "a whole number of GPUs, 1 or more"),
    ("engines", ("generator", "engines"), _whole, "a whole number of engines, 1 or more"),
    ("in_flight_per_engine", ("generator", "groups", -1, "in_flight_per_engine"), _whole,
     "a whole number of rollouts, 1 or more"),
    ("generator_pool", ("generator", "groups", -1, "pool"), _text, "the name of a pool"),
    ("prompts_per_step", ("prompts_per_step",), _whole, "a whole number, 1 or more"),
    ("group_size", ("group_size",), _whole, "a whole number, 1 or more"),
    ("oversampling", ("oversampling",), _at_least_one, "a number, 1 or more"),
    ("epochs", ("epochs",), _whole, "a whole number, 1 or more"),
    ("weights_dtype", ("generator", "groups", -1, "weights_dtype"), _text, "a number format"),
    ("kv_dtype", ("generator", "groups", -1, "kv_dtype"), _text, "a number format"),
)  # fmt: skip
#: Decisions that only an asynchronous plan has.
QUEUE = ("queue_batches", ("queue_batches",), _whole, "a whole number, 1 or more")
#: Decisions about engines that only prefill, where the plan has any.
PREFILL = (
    ("prefill_engines", ("generator", "groups", 0, "engines"), _whole, "1 engine or more"),
    ("prefill_pool", ("generator", "groups", 0, "pool"), _text, "the name of a pool"),
)
#: Decisions about the GPUs of a reward, where it has any.
REWARD = (
    ("reward_gpus", ("reward", "gpus"), _whole, "a whole number of GPUs, 1 or more"),
    ("reward_pool", ("reward", "pool"), _text, "the name of a pool"),
)
LAYOUT = ("tp", "ep", "dp", "pp")


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
    plan = data.get("plan") if isinstance(data, Mapping) else None
    if not isinstance(plan, Mapping):
        raise ScenarioError(
            file=file, path="plan", expected="the decisions of a plan written by `solve`",
            given=_absence(data), nearest=_nearest(data, "plan"),
        )  # fmt: skip
    groups = _lookup(plan, ("generator", "groups"))
    roles = [_lookup(group, ("role",)) for group in groups] if isinstance(groups, list) else []
    if roles not in (["aggregated"], ["prefill", "decode"]):
        raise ScenarioError(
            file=file, path="plan.generator.groups",
            expected="one kind of engine, or one that prefills and one that decodes",
            given=f"{len(groups)} kinds, {shown(roles)}" if isinstance(groups, list)
            else shown(groups),
        )  # fmt: skip
    chosen: dict[str, Any] = {}
    decisions = [
        *DECISIONS,
        *((QUEUE,) if _lookup(plan, ("mode",)) == "async" else ()),
        *(PREFILL if len(groups) == 2 else ()),
        *(REWARD if _lookup(plan, ("reward", "pool")) is not None else ()),
    ]
    for name, where, legal, words in decisions:
        value = _lookup(plan, where)
        if not legal(value):
            raise ScenarioError(file=file, path=_dotted(where), expected=words, given=_found(value))
        chosen[name] = value
    layout = _lookup(plan, ("generator", "groups", -1, "layout"))
    degrees = {key: _lookup(layout, (key,)) for key in LAYOUT}
    if not all(_whole(degree) for degree in degrees.values()):
        raise ScenarioError(
            file=file, path="plan.generator.groups[-1].layout",
            expected="degrees tp, ep, dp and pp, each 1 or more", given=_found(layout),
        )  # fmt: skip
    return {**chosen, "layout": degrees}


def _lookup(node: Any, where: tuple[str | int, ...]) -> Any:
    for key in where:
        if isinstance(key, int):
            node = node[key] if isinstance(node, list) and key < len(node) and node else None
        else:
            node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _dotted(where: tuple[str | int, ...]) -> str:
    return "plan" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in where)


def _found(value: Any) -> str:
    return "nothing" if value is None else shown(value)


def _absence(data: Any) -> str:
    if not isinstance(data, Mapping):
        return shown(data)
    if "plan" in data and data.get("status") == "infeasible":
        return "an infeasible plan, which has none"
    return _found(data.get("plan"))


def _nearest(data: Any, key: str) -> str | None:
    if not isinstance(data, Mapping) or key in data:
        return None
    return nearest_of(key, [str(name) for name in data])
