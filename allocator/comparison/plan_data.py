"""A plan as its JSON has it, read by dotted path.

Everything is read from the keys of the plan's own JSON, so that a plan in memory and one in a file
are taken apart alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allocator.scenario.errors import ScenarioError, shown


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
