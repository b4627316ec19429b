"""What a rule reads and what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from allocator.physics.sandbox import sandboxes_in_use

if TYPE_CHECKING:
    from allocator.plan import Decisions, EngineGroup, Limit, Prediction
    from allocator.problem.build import Problem
    from allocator.scenario.schema import Scenario

#: How bad a finding is, worst first: the run fails or does not do what its file says; it runs and
#: wastes; good to know.
Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an audit found.

    Attributes
    ----------
    code : stable name of the kind of finding.
    level : see `Level`.
    text : what is wrong, with the numbers that show it.
    where : path of the scenario key it comes from; empty where no single key does it.
    remedy : what to change, and to what.
    """

    code: str
    level: Level
    text: str
    where: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Planned:
    """One plan of a scenario with its prediction: what the rules of a plan read."""

    scenario: Scenario
    problem: Problem
    decisions: Decisions
    prediction: Prediction
    limits: tuple[Limit, ...]

    @property
    def versions_per_batch(self) -> int:
        """Weight versions made of one batch."""
        return self.scenario.algorithm.optimizer_steps_per_batch

    @property
    def mean_residence_s(self) -> float:
        """Mean seconds that one rollout stays in flight."""
        steps = self.prediction.staleness.versions_per_rollout
        if self.decisions.mode == "async":
            steps /= self.versions_per_batch
        return steps * self.prediction.step_s

    def duration_s(self, tokens: float) -> float:
        """Least seconds in flight of a rollout of so many response tokens, above the mean length.

        The mean residence plus the predicted decode step for each token beyond the mean length;
        prefill of others slows it further.
        """
        beyond = tokens - self.problem.system.workload.lengths.mean
        return self.mean_residence_s + self.prediction.decode_step_s * beyond

    def share_longer_than(self, seconds: float) -> tuple[float, float]:
        """Share of rollouts that stay longer, and the response tokens from which they do."""
        lengths = self.problem.system.workload.lengths
        beyond = (seconds - self.mean_residence_s) / self.prediction.decode_step_s
        tokens = max(0.0, lengths.mean + beyond)
        return 1.0 - float(lengths.cdf(tokens)), tokens

    @property
    def sandboxes(self) -> int:
        """Sandboxes that exist at the same time at most.

        Places in flight are refilled at once in mode async; other modes start one batch.
        """
        decisions = self.decisions
        most = decisions.generator.in_flight
        if decisions.mode != "async":
            most = min(most, math.ceil(decisions.oversampling * decisions.batch))
        return int(sandboxes_in_use(most, self.scenario.sandbox.per_rollout))

    @property
    def decoders(self) -> EngineGroup:
        """The engines that write rollouts."""
        groups = self.decisions.generator.groups
        return next(group for group in groups if group.role != "prefill")

    @property
    def in_flight_key(self) -> str:
        """Key that caps rollouts in flight: the one the file states, else the total."""
        stated = self.scenario.plan.in_flight_per_engine is not None
        return "plan.in_flight_per_engine" if stated else "plan.in_flight"


@dataclass(frozen=True, slots=True)
class Rule(Generic[Subject]):
    """One row of the table of rules.

    Attributes
    ----------
    code : of the findings it makes.
    find : yields nothing where all is well.
    source : the published case behind it, or the clause of the contract.
    replaces : code of a plan's warning that says the same with less.
    """

    code: str
    find: Callable[[Subject], Iterator[Finding]]
    source: str
    replaces: str = ""


def said(value: float) -> str:
    """Return a number for a sentence: whole from 100 on, else three significant digits.

    Examples
    --------
    >>> said(1234.56), said(3.14159), said(8.0), said(0.00012)
    ('1,235', '3.14', '8', '0.00012')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def enough(value: float) -> str:
    """Return the next number >= `value` > 0 with three significant digits, for a remedy.

    Examples
    --------
    >>> enough(2.8216), enough(4.0), enough(1234.5)
    ('2.83', '4', '1,240')
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return said(math.ceil(value / unit - 1e-9) * unit)


def counted(number: float, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> counted(1, "version"), counted(2.5, "version"), counted(3000, "group")
    ('1 version', '2.5 versions', '3,000 groups')
    """
    return f"{said(number)} {noun}{'' if number == 1 else 's'}"
