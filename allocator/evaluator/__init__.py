"""The one judge of plans: `evaluate(problem, plans)`, vectorised over arrays of decisions.

Every solver, report and what-if reads predictions from here; a solver's own bound is compared
with it and never replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allocator.evaluator.accounts import Accounts, accounts
from allocator.evaluator.generator import GeneratorState, generator_state
from allocator.evaluator.limits import limit_values, within
from allocator.evaluator.match import Matched, match_rates
from allocator.evaluator.match_state import MatchState
from allocator.evaluator.rollouts import RolloutState, rollout_state
from allocator.evaluator.trainer import TrainerState, trainer_state
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays
from allocator.problem.limits import objective_score

__all__ = ["Outcome", "evaluate"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Predictions of many plans, by stage; every array has one entry a plan.

    Attributes
    ----------
    matched : with the distributions of staleness; `match` is its state.
    limits : (value, limit) arrays by limit name.
    feasible : whether a plan keeps every limit.
    score : the objective to minimise (more is better objectives negated); inf never appears.
    """

    plans: DecisionArrays
    rollouts: RolloutState
    generator: GeneratorState
    trainer: TrainerState
    matched: Matched
    accounts: Accounts
    limits: dict[str, tuple[Any, Any]]
    feasible: Any
    score: Any

    @property
    def match(self) -> MatchState:
        """Steady state of generator, queue and trainer together."""
        return self.matched.state


def evaluate(problem: Problem, plans: DecisionArrays) -> Outcome:
    """Predict every plan: lengths -> generator and trainer -> match -> accounts -> limits.

    Parameters
    ----------
    problem : from `allocator.problem.build_problem`.
    plans : any number of plans, inside the problem's domain or not.

    Returns
    -------
    Outcome. Each physical law is called once, on arrays; a plan's numbers do not depend on the
    plans beside it.
    """
    system = problem.system
    rollouts = rollout_state(system, plans)
    generator = generator_state(system, plans, rollouts)
    trainer = trainer_state(system, plans, rollouts)
    matched = match_rates(system, plans, rollouts, generator, trainer)
    match = matched.state
    account = accounts(system, plans, rollouts, generator, trainer, match)
    limits = limit_values(problem, plans, rollouts, generator, trainer, match, account)
    score = objective_score(
        problem.objective,
        usd_per_hour=account.usd_per_hour,
        useful_tokens_per_s=account.useful_tokens_per_s / account.availability.stretch,
        run_hours=account.run_hours,
        run_usd=account.run_usd,
    )
    return Outcome(
        plans, rollouts, generator, trainer, matched, account, limits, within(limits), score
    )
