"""The ledger: every number that enters a prediction passes here once and keeps its origin.

One mechanism serves four readers: the provenance of a plan, the intervals (each number with a
spread is moved to its ends), the robustness of a test (move anything by 10%), and the list of
profile values that a plan does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from allocator.plan import PlanWarning, Provenance
from allocator.scenario.errors import ScenarioError

if TYPE_CHECKING:
    from allocator.scenario.profiles import Datum
    from allocator.scenario.quantity import Quantity


class Ledger:
    """Collects the numbers of one resolution, in order of first use.

    Parameters
    ----------
    shifts : values that replace those of the named entries (used for intervals and what-ifs).
    """

    def __init__(self, shifts: Mapping[str, float] | None = None) -> None:
        self._shifts = dict(shifts or {})
        self._entries: dict[str, Provenance] = {}
        self._warnings: dict[tuple[str, str], PlanWarning] = {}

    def quantity(self, path: str, quantity: Quantity, unit: str) -> float:
        """Enter a number of the scenario under its path and return the value to use."""
        return self.number(
            path,
            quantity.value,
            unit,
            kind=quantity.kind,
            source=quantity.source or "scenario",
            low=quantity.low,
            high=quantity.high,
        )

    def datum(self, datum: Datum | None, missing: str) -> float:
        """Enter a number of a profile under the place it stands in; `missing` names an absent one.

        Raises
        ------
        ScenarioError
            When the profile does not have the number: a datum is never invented.
        """
        if datum is None:
            raise ScenarioError(
                f"the profile value {missing} is needed and was not found in any source",
                path=missing,
                expected="a value in the profile, or in the scenario",
                given="nothing",
            )
        return self.number(
            datum.where,
            datum.value,
            datum.unit,
            kind=datum.kind,
            source=datum.source,
            low=datum.low,
            high=datum.high,
        )

    def number(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        kind: str,
        source: str,
        low: float | None = None,
        high: float | None = None,
    ) -> float:
        """Enter any number with its origin and return the value to use."""
        used = self._shifts.get(name, value)
        self._entries.setdefault(name, Provenance(name, used, unit, kind, source, low, high))
        return used

    def warn(self, code: str, text: str, where: str = "") -> None:
        """Record something the reader must know; the same finding is kept once."""
        self._warnings.setdefault((code, where), PlanWarning(code, text, where))

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """All numbers entered so far."""
        return tuple(self._entries.values())

    @property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """All findings recorded so far."""
        return tuple(self._warnings.values())
