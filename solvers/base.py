"""What every solver takes and hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from allocator.plan import Infeasibility
from allocator.problem.decisions import DecisionArrays

Termination = Literal["optimal", "time_limit", "infeasible"]


class SolverFailure(Exception):  # noqa: N818  (the contract's name)
    """A solver stopped without a plan and without proving that there is none."""


@dataclass(frozen=True, slots=True)
class SolverOutcome:
    """Why a solver stopped, and what it hands back: two statuses, never one.

    Attributes
    ----------
    best : one plan, or None.
    score, bound : of the best plan, and a proven lower bound on any plan's score.
    alternatives : best plans of other kinds (one entry each, may be empty).
    points, evaluated : size of the domain and how many plans of it were evaluated.
    """

    termination: Termination
    best: DecisionArrays | None
    score: float
    bound: float
    alternatives: DecisionArrays | None
    infeasibility: Infeasibility | None
    points: int
    evaluated: int
    wall_s: float
    name: str
    version: str
