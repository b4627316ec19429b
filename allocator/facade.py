"""The facade: scenario -> problem -> solver -> evaluate -> plan."""

from __future__ import annotations

import math
import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from allocator.evaluator import Outcome
from allocator.evaluator import evaluate as judge
from allocator.evaluator.prediction import decisions_of, limits_of, prediction_of
from allocator.findings import findings, slow_reward
from allocator.fixed import fixed_decisions
from allocator.intervals import LEVEL, intervals
from allocator.plan import (
    MODES,
    Alternative,
    Infeasibility,
    Objective,
    Plan,
    PlanWarning,
    SolverReport,
    Status,
)
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import DecisionArrays, Domain
from allocator.problem.domain import build_domain
from allocator.problem.limits import objective_value
from allocator.rivals import rivals
from allocator.scenario.dump import scenario_to_dict
from allocator.scenario.load import override
from allocator.scenario.profiles import load_catalogue
from allocator.what_if import value_of_workers
from solvers.base import SolverFailure, SolverOutcome
from solvers.columns import solve_columns

if TYPE_CHECKING:
    from allocator.scenario.schema import Scenario

__all__ = ["InfeasibleError", "SolverFailure", "evaluate", "solve", "try_solve"]

SOLVERS = ("auto", "columns")
#: Largest relative difference between a solver's score and the judge's that is rounding.
SAME = 1e-9


class InfeasibleError(Exception):
    """No plan meets the scenario's limits; `diagnosis` says which, and what would help."""

    def __init__(self, plan: Plan) -> None:
        assert plan.infeasibility is not None
        super().__init__(f"no plan meets {', '.join(plan.infeasibility.conflict)}")
        self.plan = plan

    @property
    def diagnosis(self) -> Infeasibility:
        """What conflicts, and the smallest single changes that would help."""
        assert self.plan.infeasibility is not None
        return self.plan.infeasibility


def solve(
    scenario: Scenario,
    *,
    solver: str = "auto",
    objective: str | None = None,
    time_limit_s: float | None = None,
) -> Plan:
    """Find the best plan of a scenario.

    Parameters
    ----------
    scenario : from `allocator.load`; its `plan:` block is ignored here.
    solver : `auto` picks by need (columns: one trainer pool and one generator kind a plan).
    objective : replaces the scenario's.
    time_limit_s : stop after this long; the plan then has status `feasible` and its gap.

    Raises
    ------
    InfeasibleError
        When no plan of the domain meets every limit.
    SolverFailure
        When the time limit came before any plan.
    """
    plan = try_solve(scenario, solver=solver, objective=objective, time_limit_s=time_limit_s)
    if plan.status == "infeasible":
        raise InfeasibleError(plan)
    return plan


def try_solve(
    scenario: Scenario,
    *,
    solver: str = "auto",
    objective: str | None = None,
    time_limit_s: float | None = None,
) -> Plan:
    """Like `solve`, but an infeasible scenario gives a plan with status `infeasible`."""
    if time_limit_s is not None and not time_limit_s >= 0.0:
        raise ValueError(f"time_limit_s is a number of seconds >= 0, not {time_limit_s!r}")
    if solver not in SOLVERS:
        raise ValueError(f"solver is one of {', '.join(SOLVERS)}, not {solver!r}")
    if objective is not None:
        scenario = override(scenario, {"objective": objective})
    catalogue = load_catalogue()
    problem = build_problem(scenario, catalogue)
    domain = build_domain(scenario, problem.system)
    found = solve_columns(problem, domain, time_limit_s)
    report = SolverReport(
        found.name, found.version, found.wall_s, found.termination, found.points, found.evaluated
    )
    if found.infeasibility is not None:
        return Plan(
            status="infeasible",
            objective=Objective(problem.objective, math.nan, None, None),
            decisions=None,
            prediction=None,
            warnings=problem.warnings,
            provenance=problem.provenance,
            infeasibility=found.infeasibility,
            solver=report,
            scenario=scenario_to_dict(scenario),
            versions=_versions(),
        )
    if found.best is None:
        raise SolverFailure(
            f"no plan after {found.wall_s:.1f} s and {found.evaluated:,} of {found.points:,} "
            "points: give more time, or narrower ranges"
        )
    outcome = judge(problem, found.best)
    score = float(outcome.score[0])
    if not math.isclose(score, found.score, rel_tol=SAME):
        raise RuntimeError(f"{found.name} says {found.score!r}, evaluate says {score!r}")
    return _plan(
        scenario,
        problem,
        domain,
        outcome,
        "optimal" if found.termination == "optimal" else "feasible",
        Objective(
            problem.objective,
            objective_value(problem.objective, score),
            objective_value(problem.objective, found.bound),
            _gap(score, found.bound),
        ),
        alternatives=_alternatives(problem, found, rivals(problem, domain, found, time_limit_s)),
        report=report,
    )


def evaluate(scenario: Scenario, *, with_intervals: bool = True, **fixed: Any) -> Plan:
    """Predict the plan in the scenario's `plan:` block; nothing is optimised.

    Parameters
    ----------
    with_intervals : whether to move every uncertain input for the 80% intervals (most of the time
        that this call takes).
    **fixed : decisions by flat alias (`trainer_gpus=64, generator_gpus=192, in_flight=...`), which
        replace those of the block. What neither fixes is completed and named in a warning.

    Returns
    -------
    Plan with status `feasible` when every limit holds, else `infeasible`; both with prediction.
    """
    problem = build_problem(scenario, load_catalogue())
    domain = build_domain(scenario, problem.system)
    plan, completed = fixed_decisions(scenario, problem, domain, fixed)
    outcome = judge(problem, plan)
    value = objective_value(problem.objective, float(outcome.score[0]))
    return _plan(
        scenario,
        problem,
        domain,
        outcome,
        "feasible" if bool(outcome.feasible[0]) else "infeasible",
        Objective(problem.objective, value, None, None),
        extra=completed,
        with_intervals=with_intervals,
    )


def _plan(
    scenario: Scenario,
    problem: Problem,
    domain: Domain,
    outcome: Outcome,
    status: Status,
    objective: Objective,
    *,
    alternatives: tuple[Alternative, ...] = (),
    report: SolverReport | None = None,
    extra: tuple[PlanWarning, ...] = (),
    with_intervals: bool = True,
) -> Plan:
    decisions = decisions_of(problem, outcome.plans, 0)
    prediction = prediction_of(problem, outcome, 0)
    limits = limits_of(problem, outcome, 0)
    if prediction.bottleneck == "reward":
        extra = (*extra, *slow_reward(value_of_workers(problem, outcome.plans)))
    spread: dict[str, tuple[float, float]] = {}
    if with_intervals:
        spread = intervals(scenario, load_catalogue(), problem, outcome.plans, prediction)
    return Plan(
        status=status,
        objective=objective,
        decisions=decisions,
        prediction=prediction,
        intervals=spread,
        interval_level=LEVEL,
        limits=limits,
        alternatives=alternatives,
        warnings=(*extra, *findings(problem, domain, decisions, prediction, limits)),
        provenance=problem.provenance,
        solver=report,
        scenario=scenario_to_dict(scenario),
        versions=_versions(),
    )


def _gap(score: float, bound: float) -> float:
    """Relative distance from a bound; rounding counts as none."""
    gap = abs(score - bound) / abs(score)
    return gap if gap > SAME else 0.0


def _alternatives(
    problem: Problem, found: SolverOutcome, others: DecisionArrays | None
) -> tuple[Alternative, ...]:
    """Return the plans of other kinds, best first, one for each way to differ."""
    if others is None or found.best is None:
        return ()
    outcome = judge(problem, others)
    named: list[Alternative] = []
    for index in np.argsort(outcome.score, kind="stable").tolist():
        differs = _difference(problem, found.best, others, index)
        if not differs or any(differs == other.differs for other in named):
            continue
        decisions = decisions_of(problem, others, index)
        named.append(
            Alternative(
                differs=differs,
                decisions=decisions,
                objective=objective_value(problem.objective, float(outcome.score[index])),
                trained_samples_per_s=float(outcome.accounts.trained_samples_per_s[index]),
                trainer_wait_fraction=float(outcome.match.wait_fraction[index]),
                staleness_mean=float(outcome.match.staleness_mean[index]),
                usd_per_useful_mtok=float(outcome.accounts.usd_per_useful_mtok[index]),
            )
        )
    return tuple(named)


def _difference(problem: Problem, best: DecisionArrays, others: DecisionArrays, index: int) -> str:
    system = problem.system
    label = system.engines.labels[int(others.generator_kind[index])]
    words = []
    if others.mode[index] != best.mode[0]:
        words.append(f"mode {MODES[int(others.mode[index])]}")
    if others.prefill_kind[index] != best.prefill_kind[0]:
        apart = int(others.prefill_kind[index]) >= 0
        words.append("prefill on engines of its own" if apart else "prefill on the decode engines")
    if others.generator_kind[index] != best.generator_kind[0]:
        pool = system.pools[label.pool]
        own = system.engines.labels[int(best.generator_kind[0])]
        same = (own.weights_dtype, own.kv_dtype) == (label.weights_dtype, label.kv_dtype)
        formats = "" if same else f", weights {label.weights_dtype} and KV {label.kv_dtype}"
        words.append(f"generator on {pool.name}: {label.backend} {label.layout}{formats}")
    if others.trainer_kind[index] != best.trainer_kind[0]:
        pool = system.pools[system.trainers.labels[int(others.trainer_kind[index])][0]]
        words.append(f"trainer on {pool.name}")
    return ", ".join(words)


def _versions() -> dict[str, str]:
    from allocator import __version__

    return {
        "allocator": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
