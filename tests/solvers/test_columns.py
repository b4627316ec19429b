"""The column solver against a brute force that knows no columns, on generated problems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import pytest

from allocator import SolverFailure, try_solve
from allocator.evaluator import evaluate
from allocator.plan import Infeasibility
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import Domain
from allocator.problem.domain import build_domain
from allocator.scenario.load import from_dict, override
from allocator.scenario.profiles import load_catalogue
from allocator.scenario.schema import Scenario
from solvers import columns
from solvers.base import SolverOutcome
from solvers.columns import solve_columns
from solvers.settings import settings
from tests.generated import random_plans, scenario
from tests.solvers.oracle import EQUAL, Verdict, brute_force

#: Seeds of the problems; never chosen by outcome.
SEEDS = tuple(range(40))
#: Rounding between a plan judged among others in two different orders.
SAME = 1e-9


@cache
def problem(seed: int) -> tuple[Problem, Domain]:
    return resolved(scenario(seed))


def resolved(said: Scenario) -> tuple[Problem, Domain]:
    built = build_problem(said, load_catalogue())
    return built, build_domain(said, built.system)


@cache
def solved(seed: int) -> SolverOutcome:
    return solve_columns(*problem(seed))


@cache
def judged(seed: int) -> Verdict:
    return brute_force(*problem(seed))


def is_feasible(said: Scenario) -> bool:
    return solve_columns(*resolved(said)).termination == "optimal"


# --- the optimum ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_optimum_is_that_of_trying_everything(seed: int) -> None:
    check_optimum(seed)


@pytest.mark.slow
def test_the_optimum_of_further_problems() -> None:
    for seed in range(40, 160):
        check_optimum(seed)


def check_optimum(seed: int) -> None:
    found, truth = solved(seed), judged(seed)
    assert found.points == truth.points
    assert found.evaluated <= found.points
    if truth.feasible == 0:
        assert found.termination == "infeasible"
        assert found.best is None
        assert found.infeasibility is not None
        assert found.infeasibility.points == truth.points
        return
    assert found.termination == "optimal"
    assert found.infeasibility is None
    assert found.best is not None
    outcome = evaluate(problem(seed)[0], found.best)
    assert outcome.feasible.tolist() == [True]
    assert found.score == pytest.approx(float(outcome.score[0]), rel=SAME)
    # The plan that the rule picks: its score, its GPUs, its staleness.
    assert found.score == pytest.approx(truth.score, rel=SAME)
    assert float(found.best.trainer_gpus[0] + outcome.generator.gpus[0]) == truth.gpus
    assert float(outcome.match.staleness_mean[0]) == pytest.approx(truth.staleness, rel=SAME)
    # The bound is a bound: nothing is better, and it is as tight as a tie allows.
    assert found.bound <= truth.best + SAME * abs(truth.best)
    assert found.score <= found.bound + (EQUAL + SAME) * abs(found.bound)


def test_the_problems_are_not_all_alike() -> None:
    verdicts = [judged(seed) for seed in SEEDS]
    scenarios = [scenario(seed) for seed in SEEDS]
    infeasible = sum(v.feasible == 0 for v in verdicts)
    ties = sum(v.tied > 1 for v in verdicts)
    assert infeasible >= 8
    assert ties >= 5
    # Nothing is proved by problems whose optimum is one of a handful of plans.
    assert sum(v.points > 1000 for v in verdicts) >= 20
    assert all(v.points < 500_000 for v in verdicts)
    spread = Counter(
        name
        for s in scenarios
        for name in (
            f"model {s.model}",
            s.objective,
            s.hardware.billing,
            f"{len(s.hardware.pools)} pools",
            f"dynamic_sampling {s.algorithm.dynamic_sampling}",
            f"dispatch {s.algorithm.group_dispatch}",
            f"scope {s.algorithm.dispatch_scope}",
            f"staleness {s.staleness.enforce} {s.staleness.statistic}",
            f"training {'full' if s.algorithm.training == 'full' else 'lora'}",
            f"rates {'own' if s.engine.rates else s.engine.estimate}",
        )
    )
    assert min(spread[o] for o in ("usd_per_useful_mtok", "run.hours", "run.usd")) >= 3
    assert min(spread[f"dynamic_sampling {d}"] for d in ("off", "drop", "refill")) >= 5
    assert min(spread[n] for n in ("reserved", "on_demand", "1 pools", "2 pools")) >= 8
    assert min(spread[f"dispatch {d}"] for d in ("group", "sample")) >= 5
    assert min(spread[f"scope {d}"] for d in ("engine", "global")) >= 5
    assert min(spread[f"training {t}"] for t in ("full", "lora")) >= 5
    assert min(spread[f"rates {r}"] for r in ("own", "allow", "refuse")) >= 2
    limits = ("design p95", "reject max", "admission mean", "design mean")
    assert min(spread[f"staleness {s}"] for s in limits) >= 3
    assert sum(name.startswith("model ") for name in spread) >= 6


# --- the claim that makes columns exact ----------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_of_a_pair_of_columns_is_never_worse_than_its_plans(seed: int) -> None:
    built, domain = problem(seed)
    random = np.random.default_rng(seed)
    for setting in settings(built, domain):
        bound = columns._bounds(built, setting).ravel()
        assert columns._best_bound(built, setting) == pytest.approx(bound.min(), rel=SAME)
        pairs = random.integers(0, bound.size, 500)
        plans = columns._plans(domain, setting, pairs)
        at = np.repeat(bound[pairs], domain.queue_batches.size)
        outcome = evaluate(built, plans)
        # No bound: the columns themselves break a limit, so no plan of them keeps all.
        assert not np.any(outcome.feasible & np.isinf(at))
        finite = np.isfinite(at)
        score, low = outcome.score[finite], at[finite]
        assert np.all(low <= score + SAME * np.abs(score)), float(np.max(low - score))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_trains_faster_than_either_side_could(seed: int) -> None:
    """The reason for the bound: the trained rate is at most min(v_G, v_T)."""
    built, domain = problem(seed)
    outcome = evaluate(built, random_plans(domain, 2000, seed))
    usable = outcome.generator.sequences_fit > 0
    signal = outcome.rollouts.at(outcome.rollouts.signal)
    refill = built.system.algorithm.dynamic_sampling == "refill"
    could = outcome.generator.dispatched_per_s / outcome.plans.oversampling
    could = could * (signal if refill else 1.0)
    most = np.minimum(could, outcome.match.trainer_samples_per_s)[usable]
    assert np.all(outcome.match.samples_per_s[usable] <= most * (1 + SAME))


# --- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_out_of_time_there_is_an_incumbent_with_a_bound_or_nothing(seed: int) -> None:
    built, domain = problem(seed)
    truth = judged(seed)
    stopped = solve_columns(built, domain, time_limit_s=0.0)
    if stopped.termination == "infeasible":
        assert truth.feasible == 0
        return
    assert stopped.bound <= truth.best + SAME * abs(truth.best)
    if stopped.best is None:
        assert stopped.termination == "time_limit"
        with pytest.raises(SolverFailure, match="more time"):
            try_solve(scenario(seed), time_limit_s=0.0)
        return
    outcome = evaluate(built, stopped.best)
    assert outcome.feasible.tolist() == [True]
    assert stopped.score == pytest.approx(float(outcome.score[0]), rel=SAME)
    assert stopped.bound <= stopped.score <= math.inf
    plan = try_solve(scenario(seed), time_limit_s=0.0)
    assert plan.status == ("feasible" if stopped.termination == "time_limit" else "optimal")


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_a_time_limit_is_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"time_limit_s is a number of seconds >= 0"):
        try_solve(scenario(0), time_limit_s=seconds)


def test_the_clock_stops_a_search() -> None:
    """Of a domain of several blocks only the first is seen."""
    wide = override(
        scenario(2),
        {
            "algorithm.oversampling": {"min": 1.0, "max": 3.0, "step": 0.05},
            "algorithm.prompts_per_step": {"min": 4, "max": 32},
        },
    )
    built, domain = resolved(wide)
    stopped = solve_columns(built, domain, time_limit_s=0.0)
    assert stopped.termination == "time_limit"
    assert stopped.evaluated <= columns.BLOCK * domain.queue_batches.size < stopped.points


# --- why nothing fits ----------------------------------------------------------------------------


def explained(seeds: Iterable[int]) -> Iterator[tuple[int, Infeasibility]]:
    """Yield the infeasible problems among some seeds, with the solver's explanation."""
    for seed in seeds:
        why = solved(seed).infeasibility
        if why is not None:
            yield seed, why


def test_a_conflict_is_one_and_minimal() -> None:
    several = 0
    for seed, why in explained(range(60)):
        conflict, broken = set(why.conflict), judged(seed).broken
        assert all(pattern & conflict for pattern in broken), seed
        for name in conflict:
            rest = conflict - {name}
            assert any(not pattern & rest for pattern in broken), f"{seed}: {name} of {conflict}"
        # What nobody meets is exactly what every plan breaks.
        assert set(why.unmeetable) == set(frozenset.intersection(*broken)), seed
        assert not why.unmeetable or len(conflict) == 1, seed
        several += len(conflict) > 1
    assert several >= 3


def test_each_relaxation_helps_and_a_little_less_does_not() -> None:
    assert sum(check_relaxations(seed, why) for seed, why in explained(range(60))) >= 6


@pytest.mark.slow
def test_relaxations_of_further_problems() -> None:
    assert sum(check_relaxations(seed, why) for seed, why in explained(range(60, 200))) >= 25


def check_relaxations(seed: int, why: Infeasibility) -> int:
    said, system = scenario(seed), problem(seed)[0].system
    assert [r.percent for r in why.relaxations] == sorted(r.percent for r in why.relaxations)
    for relaxation in why.relaxations:
        assert relaxation.to > relaxation.start
        percent = 100 * (relaxation.to / relaxation.start - 1) if relaxation.start else math.inf
        assert relaxation.percent == pytest.approx(percent)
        enough, less = relaxation.to, relaxation.start + 0.99 * (relaxation.to - relaxation.start)
        if relaxation.name.startswith("gpu_pool_"):
            name = relaxation.name.removeprefix("gpu_pool_")
            unit = next(p.unit_gpus for p in system.pools if p.name == name)
            enough, less = int(enough), int(enough) - unit
        assert is_feasible(override(said, {relaxation.where: enough})), (seed, relaxation)
        assert not is_feasible(override(said, {relaxation.where: less})), (seed, relaxation)
    return len(why.relaxations)


def test_the_nearest_plan_breaks_what_it_is_said_to_break() -> None:
    for seed, why in explained(SEEDS):
        assert why.nearest is not None
        missed = {limit.name for limit in why.nearest_limits if not limit.holds}
        assert missed in judged(seed).broken, seed
        assert missed & set(why.conflict), seed
        # No plan breaks fewer.
        assert len(missed) == min(len(pattern) for pattern in judged(seed).broken), seed


def test_a_limit_of_nothing_has_a_way_out_too() -> None:
    """No share of zero says how far to go: the percentage is infinite, and null in JSON."""
    said = override(scenario(2), {"staleness": {"limit": 0, "metric": "mean"}, "budget.hours": 1e6})
    built, domain = resolved(said)
    why = solve_columns(built, domain).infeasibility
    assert why is not None
    (way_out,) = [r for r in why.relaxations if r.name == "staleness_mean"]
    assert (way_out.start, way_out.percent, way_out.where) == (0, math.inf, "staleness.limit")
    assert is_feasible(override(said, {"staleness.limit": way_out.to * (1 + SAME)}))
    assert not is_feasible(override(said, {"staleness.limit": 0.99 * way_out.to}))
    written = try_solve(said).to_dict()["infeasibility"]["relaxations"]
    (entry,) = [r for r in written if r["name"] == "staleness_mean"]
    assert entry["from"] == 0
    assert entry["percent"] is None
    assert "start" not in entry


def test_a_larger_reserved_pool_that_breaks_the_budget_is_no_way_out() -> None:
    """A reserved pool is paid for whole: twice the GPUs are twice the dollars of an hour.

    Full training of 32.8e9 parameters at 2 + 4 + 12 bytes is 590e9 bytes. Eight H200 at 0.9 of
    141 GiB hold it, and leave none of a pool of eight for the generator: 16 are needed.
    """
    data = {
        "model": "qwen3-32b",
        "trainer": {"hfu": 0.4},
        "workload": {"response_tokens": {"mean": 2000, "cv": 0.6, "max": 8000}},
        "hardware": {
            "pools": [
                {"name": "all", "gpu": "h200-sxm", "gpus": 8, "price": {"usd_per_gpu_hour": 2}}
            ]
        },
        "budget": {"hours": 1e6, "usd": 1e9, "target": {"steps": 100}},
    }
    said = from_dict(data)
    found = solve_columns(*resolved(said))
    assert found.infeasibility is not None
    (way_out,) = found.infeasibility.relaxations
    assert (way_out.name, way_out.to) == ("gpu_pool_all", 16)
    # A budget of what they cost leaves that way open. One of 3/4 closes it, though at the price of
    # eight GPUs the same hours would cost half; 24 more GPUs, all for the trainer, which is what
    # the generator waits for, open it again. At 6/10 no size of the pool is cheap enough.
    larger = try_solve(override(said, {"hardware.pools[0].gpus": 16}), objective="run.usd")
    assert larger.prediction is not None
    for share, enough in ((1.001, 16), (0.9, 24), (0.75, 32), (0.6, None)):
        tight = override(said, {"budget.usd": share * larger.prediction.run.usd})
        why = solve_columns(*resolved(tight)).infeasibility
        assert why is not None
        assert [r.to for r in why.relaxations] == ([] if enough is None else [enough])
        # The cheapest pools of all have 40 and 48 GPUs: a trainer of 32 or 40, one node besides.
        for gpus in (48,) if enough is None else (enough - 8, enough):
            able = is_feasible(override(tight, {"hardware.pools[0].gpus": gpus}))
            assert able == (gpus == enough)
