"""Keys and values of the scenario contract that this version does not act on.

They are refused by name: a plan that ignored them silently would be worse than none. To act on
one, delete its row and widen the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.scenario.paths import Part, parse_path


def _stated(value: object) -> bool:
    return value not in ({}, [], "", None)


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


@dataclass(frozen=True)
class NotYet:
    """One key of the contract and what of it this version acts on.

    Attributes
    ----------
    path : str
        Path of the key; ``[*]`` stands for any place in a list or any name.
    why : str
        What this version does instead, in a few words.
    acted_on : tuple
        Values that are acted on; empty when the key itself is not.
    refused : callable, optional
        Which values are refused; by default all but `acted_on`, or all but an empty one.
    """

    path: str
    why: str
    acted_on: tuple[str | int | bool, ...] = ()
    refused: Callable[[object], bool] | None = None

    def refuses(self, value: object) -> bool:
        """Return whether `value` at this path is not acted on."""
        if value is None:
            return False
        if self.refused is not None:
            return self.refused(value)
        if self.acted_on:
            bare = value["value"] if isinstance(value, Mapping) and "value" in value else value
            return not any(_same(bare, legal) for legal in self.acted_on)
        return _stated(value)


def _same(value: object, legal: object) -> bool:
    # 1 and True are equal in Python and mean different things in a file; 0 and 0.0 do not.
    return isinstance(value, bool) == isinstance(legal, bool) and bool(value == legal)


_ONE_MODEL = "this version plans one model, not a choice between several"
_ONE_ENGINE = "this version takes one engine description for all pools"
_ONE_FORMAT = "this version takes one, not a choice between several"
_ONE_LENGTH = "in this version all classes share the workload's lengths"
_COEFFICIENTS = "this version takes coefficients, not a file of points"

NOT_YET: tuple[NotYet, ...] = (
    NotYet("model", _ONE_MODEL, refused=_is_list),
    NotYet("engine", _ONE_ENGINE, refused=_is_list),
    NotYet("engine.backend", _ONE_FORMAT, refused=_is_list),
    NotYet("engine.rates.decode.points", _COEFFICIENTS),
    NotYet("engine.rates.prefill.points", _COEFFICIENTS),
    NotYet(
        "trainer.parallelism.ep",
        "in this version expert parallelism changes no rate of a trainer: leave it out",
        (1,),
    ),
    NotYet("trainer.offload", "this version keeps optimiser state on the GPU", (False,)),
    NotYet("workload.response_tokens", "this version takes one distribution", refused=_is_list),
    NotYet("workload.solve_rate[*].response_tokens", _ONE_LENGTH),
    NotYet("algorithm.trained_share", "this version trains on whole groups", (1,)),
    NotYet("queue.overflow", "in this version the oldest finished rollouts go", ("drop_oldest",)),
    NotYet(
        "staleness.reference", "this version counts from the start of the rollout", ("submission",)
    ),
    NotYet("hardware.pools[*].granularity", "this version allots nodes or GPUs", ("node", "gpu")),
    NotYet("hardware.pools[*].engine", _ONE_ENGINE),
    NotYet("budget.power_kw", "this version limits no power"),
    NotYet("value.model", "this version has no law of diminishing returns", ("none",)),
    NotYet("calibration", "this version corrects no profile"),
    NotYet("phases", "this version plans one workload for the whole run"),
    NotYet("replan", "this version makes one plan for the whole run"),
    NotYet("tenants", "this version plans one run at a time"),
)


@dataclass(frozen=True)
class Refusal:
    """A place of a scenario that a row of the table refuses.

    Attributes
    ----------
    parts : tuple
        Path of the value.
    value : object
        What is there.
    row : NotYet
        The row that refuses it.
    """

    parts: tuple[Part, ...]
    value: object
    row: NotYet


def refusals(data: Mapping[str, Any]) -> Iterator[Refusal]:
    """Yield every place of a scenario that this version does not act on."""
    for row in NOT_YET:
        for parts, value in _matches(data, parse_path(row.path) or (), ()):
            if row.refuses(value):
                yield Refusal(parts, value, row)


def idle(data: Mapping[str, Any]) -> Iterator[tuple[Part, ...]]:
    """Yield the places of keys outside the schema that are there and empty, hence harmless."""
    for row in NOT_YET:
        if row.acted_on or row.refused is not None:
            continue
        for parts, value in _matches(data, parse_path(row.path) or (), ()):
            if not row.refuses(value):
                yield parts


def _matches(
    node: object, pattern: tuple[Part, ...], parts: tuple[Part, ...]
) -> Iterator[tuple[tuple[Part, ...], object]]:
    if not pattern:
        yield parts, node
        return
    head, rest = pattern[0], pattern[1:]
    if isinstance(node, Mapping):
        for name, item in node.items():
            if isinstance(name, str) and head in {"*", name}:
                yield from _matches(item, rest, (*parts, name))
    elif isinstance(node, (list, tuple)) and head == "*":
        for place, item in enumerate(node):
            yield from _matches(item, rest, (*parts, place))
