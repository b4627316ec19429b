"""A plan as its JSON has it: read from a file, by dotted path, and as decisions to evaluate anew.

Everything is read from the keys of the plan's own JSON, so that a plan in memory and one in a file
are taken apart alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocator.scenario.errors import ScenarioError, nearest_of, shown
from allocator.scenario.references import read_text

PLAN_FILE_BYTES = 20_000_000


@dataclass(frozen=True, slots=True)
class PlanData:
    """The plain data of a plan, with the name under which errors speak of it."""

    name: str
    data: Mapping[str, Any]

    def number(self, path: str) -> float:
        """Return the finite number at a dotted path.

        Raises
        ------
        ScenarioError
            When there is none, as in a plan that another version wrote.
        """
        found = self.look_up(path)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise ScenarioError(
                file=self.name, path=path, expected="a finite number of a plan with a prediction",
                given="nothing" if found is None else shown(found),
            )  # fmt: skip
        return float(found)

    def text(self, path: str) -> str:
        """Return what stands at a dotted path as text, empty where nothing does."""
        found = self.look_up(path)
        return "" if found is None else str(found)

    def stated(self, path: str, default: float) -> float:
        """Return a number of the scenario, which may carry a spread; `default` where none is."""
        found = self.look_up(path)
        value = found.get("value") if isinstance(found, Mapping) else found
        return float(value) if isinstance(value, (int, float)) else default

    def look_up(self, path: str) -> Any:
        """Return what stands at a dotted path, None where nothing does."""
        node: Any = self.data
        for key in path.split("."):
            node = node.get(key) if isinstance(node, Mapping) else None
        return node


def recorded_plan(path: Path) -> Mapping[str, Any] | None:
    """Return the plan of a JSON file; None for any other file, which is then a scenario.

    Raises
    ------
    ScenarioError
        If the file cannot be read or is not JSON.
    """
    if path.suffix.lower() != ".json":
        return None
    try:
        data = json.loads(read_text(path, PLAN_FILE_BYTES))
    except json.JSONDecodeError as error:
        raise ScenarioError(
            file=str(path), line=error.lineno, column=error.colno, expected="JSON", given=error.msg
        ) from error
    return data if isinstance(data, Mapping) and "prediction" in data else None


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


def decisions_in(data: Any, file: str | None) -> dict[str, Any]:
    """Return the decisions of a plan's data as the keyword arguments of `evaluate`.

    Parameters
    ----------
    data : what `Plan.to_dict` gives.
    file : name for errors.

    Raises
    ------
    ScenarioError
        If the data is not a plan, holds no decisions (an infeasible plan), or has more than one
        kind of engine.
    """
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
