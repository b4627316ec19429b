"""The preflight check: which plan of a scenario is audited, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from allocator.audit import Finding, Planned, audit
from allocator.audit.outcome import infeasible
from allocator.facade import evaluate, try_solve
from allocator.problem.build import build_problem
from allocator.scenario.profiles import load_catalogue

if TYPE_CHECKING:
    from allocator.plan import Plan
    from allocator.scenario.schema import Scenario

Audited = Literal["as configured", "solved", "scenario"]


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a check found.

    Attributes
    ----------
    audited : the plan that `plan:` fixes, the one that solving gives, or the scenario alone where
        there is no plan.
    plan : that plan; an infeasible one where there is none.
    findings : worst first.
    """

    audited: Audited
    plan: Plan
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found that fails."""
        return all(finding.level != "error" for finding in self.findings)


def check(scenario: Scenario) -> Preflight:
    """Audit a scenario before launch.

    The plan that `plan:` fixes is predicted, without solving; where the block leaves the split
    open, the scenario is solved and the best plan audited beside it.

    Raises
    ------
    ScenarioError
        Where the scenario does not describe a system, or its plan does not fit the pools.
    """
    configured = scenario.plan.fixes_split
    plan = evaluate(scenario, with_intervals=False) if configured else try_solve(scenario)
    own = [] if configured else _left_out(scenario)
    if plan.infeasibility is not None:
        own.append(infeasible(plan.infeasibility))
    if plan.decisions is None or plan.prediction is None:
        return Preflight("scenario", plan, audit(scenario, None, plan.warnings, own))
    planned = Planned(
        scenario,
        build_problem(scenario, load_catalogue()),
        plan.decisions,
        plan.prediction,
        plan.limits,
    )
    found = audit(scenario, planned, plan.warnings, own)
    return Preflight("as configured" if configured else "solved", plan, found)


def _left_out(scenario: Scenario) -> list[Finding]:
    """Decisions of the `plan:` block that solving does not look at."""
    plan = scenario.plan
    stated = [name for name in type(plan).model_fields if getattr(plan, name) is not None]
    if not stated:
        return []
    return [
        Finding(
            "plan_not_audited",
            "note",
            f"plan: fixes {', '.join(stated)} and not the split, so the solved plan is audited, "
            "which ignores the block",
            "plan",
            "plan.trainer_gpus and plan.generator_gpus, to audit your own plan",
        )
    ]
