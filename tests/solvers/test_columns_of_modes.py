"""The column solver against trying everything, where plans have modes and stations."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from allocator.evaluator import evaluate
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import Domain
from allocator.problem.domain import build_domain
from allocator.scenario.profiles import load_catalogue
from solvers.base import SolverOutcome
from solvers.columns import solve_columns
from tests.generated_modes import MODES, scenario
from tests.solvers.oracle import EQUAL, Verdict, brute_force, gpus_used

#: Seeds of the problems; never chosen by outcome.
SEEDS = tuple(range(18))
#: Those and the ones of the slow set.
ALL = tuple(range(70))
#: Problems larger than this are left to the slow set, whatever their outcome.
MOST_POINTS = 40_000
SAME = 1e-9


@cache
def problem(seed: int) -> tuple[Problem, Domain]:
    said = scenario(seed)
    built = build_problem(said, load_catalogue())
    return built, build_domain(said, built.system)


@cache
def solved(seed: int) -> SolverOutcome:
    return solve_columns(*problem(seed))


@cache
def judged(seed: int) -> Verdict:
    return brute_force(*problem(seed))


def small(seed: int) -> bool:
    return problem(seed)[1].points <= MOST_POINTS


@pytest.mark.parametrize("seed", SEEDS)
def test_the_optimum_is_that_of_trying_everything(seed: int) -> None:
    if not small(seed):
        pytest.skip("in the slow set")
    check(seed)


@pytest.mark.slow
def test_the_optimum_of_larger_and_further_problems() -> None:
    for seed in (*(seed for seed in SEEDS if not small(seed)), *ALL[len(SEEDS) :]):
        check(seed)


def check(seed: int) -> None:
    found, truth = solved(seed), judged(seed)
    assert found.points == truth.points
    if truth.feasible == 0:
        assert found.termination == "infeasible"
        assert found.best is None
        assert found.infeasibility is not None
        return
    assert found.termination == "optimal"
    assert found.best is not None
    outcome = evaluate(problem(seed)[0], found.best)
    assert outcome.feasible.tolist() == [True]
    assert found.score == pytest.approx(float(outcome.score[0]), rel=SAME)
    assert found.score == pytest.approx(truth.score, rel=SAME)
    assert float(gpus_used(outcome)[0]) == truth.gpus
    assert float(outcome.match.staleness_mean[0]) == pytest.approx(truth.staleness, rel=SAME)
    assert found.bound <= truth.best + SAME * abs(truth.best)
    assert found.score <= found.bound + (EQUAL + SAME) * abs(found.bound)


def test_the_problems_are_not_all_alike() -> None:
    scenarios = [scenario(seed) for seed in ALL]
    spread = Counter(
        name
        for said in scenarios
        for name in (
            f"mode {said.algorithm.mode}",
            f"reward {said.reward.type}",
            f"prefill {said.engine.disaggregation}",
            "sandboxes" if said.sandbox.used else "none",
            "turns" if said.workload.turns > 1 else "one turn",
            "stops" if said.failures is not None else "no stops",
        )
    )
    assert min(spread[f"mode {mode}"] for mode in MODES) >= 10
    assert min(spread[name] for name in ("sandboxes", "turns", "stops")) >= 20
    assert spread["prefill auto"] + spread["prefill always"] >= 12
    assert len([name for name in spread if name.startswith("reward ")]) >= 4
    seeds = [seed for seed in SEEDS if small(seed)]
    feasible = [seed for seed in seeds if solved(seed).best is not None]
    assert len(feasible) >= 6
    assert len(seeds) - len(feasible) >= 3
    chosen = Counter(int(solved(seed).best.mode[0]) for seed in feasible)  # type: ignore[union-attr]
    assert len(chosen) >= 3, chosen


@pytest.mark.parametrize("seed", SEEDS[:15])
def test_no_plan_trains_faster_than_its_bound(seed: int) -> None:
    """Never faster than either side; where they take turns, than both after each other."""
    built, domain = problem(seed)
    for plans in _some_plans(domain, seed):
        outcome = evaluate(built, plans)
        match = outcome.match
        most = np.minimum(match.offered_samples_per_s, match.trainer_samples_per_s)
        assert np.all(match.samples_per_s <= most * (1 + SAME))


def _some_plans(domain: Domain, seed: int):  # type: ignore[no-untyped-def]
    from tests.solvers.oracle import every_plan

    random = np.random.default_rng(seed)
    for plans in every_plan(domain):
        yield plans.take(random.integers(0, len(plans), min(len(plans), 300)))
