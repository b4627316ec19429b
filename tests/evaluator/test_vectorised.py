"""A million plans in one call: every law once, and no plan knows of its neighbours."""

from __future__ import annotations

import importlib
import pkgutil
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache, wraps
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import allocator.evaluator
from allocator.evaluator import Outcome, evaluate
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import DecisionArrays, Domain
from allocator.problem.domain import build_domain
from allocator.scenario.load import load, override
from allocator.scenario.profiles import load_catalogue
from tests.generated import numbers, random_plans

EXAMPLE = Path(__file__).parents[2] / "examples" / "qwen3-235b-h200.yaml"
MILLION = 1_000_000
#: Several blocks of every law that works in blocks.
CROWD = 50_000
#: Rounding of a law on arrays of different length (numpy may take another instruction).
SAME = 1e-12
#: Modules that turn one plan of an outcome into scalars; they are not part of a prediction.
OF_ONE_PLAN = {"diagnosis", "prediction", "stale"}


@cache
def example() -> tuple[Problem, Domain]:
    said = load(EXAMPLE)
    problem = build_problem(said, load_catalogue())
    domain = build_domain(said, problem.system)
    # Batches are fixed in the example; here they vary too.
    return problem, replace(
        domain,
        prompts_per_step=np.asarray([8, 16, 32]),
        group_size=np.asarray([8, 16]),
        epochs=np.asarray([1, 2]),
    )


@cache
def crowd() -> tuple[DecisionArrays, Outcome]:
    problem, domain = example()
    plans = random_plans(domain, CROWD, seed=0)
    return plans, evaluate(problem, plans)


def assert_equal(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], rtol=SAME, atol=0, err_msg=name)


# --- every law once ------------------------------------------------------------------------------


def stages() -> Iterator[ModuleType]:
    """Modules of the evaluator that predict (not those that describe one plan)."""
    for info in pkgutil.iter_modules(allocator.evaluator.__path__):
        if info.name not in OF_ONE_PLAN:
            yield importlib.import_module(f"allocator.evaluator.{info.name}")


def laws() -> Iterator[tuple[ModuleType, str, Callable[..., Any]]]:
    """Functions of allocator.physics by the name under which a stage has imported them."""
    for module in stages():
        for name, item in sorted(vars(module).items()):
            if isfunction(item) and item.__module__.startswith("allocator.physics."):
                yield module, name, item


def counted(monkeypatch: pytest.MonkeyPatch, calls: Counter[str]) -> None:
    """Count the calls that the evaluator's modules make to laws."""

    def counting(name: str, law: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(law)
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return law(*args, **kwargs)

        return call

    for module, name, law in list(laws()):
        stage = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, name, counting(f"{stage}.{name}", law))


#: Two uses of one law: busy and wall; trained and useful; with and without log-probabilities.
TWICE = {"accounts.mfu", "accounts.usd_per_mtok", "accounts.update_fraction"}
#: Tried for each width of a replica.
BY_WIDTH = {"trainer.memory_bytes_per_gpu"}
#: Stages gone through once more where an engine holds few groups: places depend on the pace.
AGAIN = {"generator", "stations", "rewards"}
#: Tables that are kept: built once for each kind of group, whatever the calls.
KEPT = {"queue.residence_table"}
#: Laws that a prediction cannot do without; all that it uses are counted.
NEEDED = {
    "generator.engine_flow",
    "rollouts.oversampling_cut",
    "stations.prefill_s",
    "generator.sequences_that_fit",
    "trainer.forward_flops",
    "trainer.imbalance",
    "trainer.train_s",
}


def assert_each_law_once(
    problem: Problem, plans: DecisionArrays, monkeypatch: pytest.MonkeyPatch
) -> Outcome:
    calls: Counter[str] = Counter()
    with monkeypatch.context() as patch:
        counted(patch, calls)
        outcome = evaluate(problem, plans)
    assert set(calls) >= NEEDED
    kinds_of_groups = outcome.rollouts.group_size.size
    widths = len(problem.system.trainers.widths)
    for name, times in calls.items():
        if name in KEPT:
            assert times <= kinds_of_groups, name
        else:
            expected = {2 if name in TWICE else 1 + widths * (name in BY_WIDTH)}
            if name.split(".")[0] in AGAIN:
                expected.add(2)
            assert times in expected, name
    return outcome


def test_each_law_is_called_once_however_many_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, domain = example()
    for count in (1, 1000):
        assert_each_law_once(problem, random_plans(domain, count, seed=0), monkeypatch)


def test_a_million_plans_call_each_law_once_and_fit_a_laptop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """About 135 numbers a plan are kept; the peak is no more than twice that."""
    problem, domain = example()
    plans = random_plans(domain, MILLION, seed=0)
    # What is made once and kept, whatever the plans, is made here.
    evaluate(problem, plans.take(slice(0, 1000)))
    tracemalloc.start()
    outcome = assert_each_law_once(problem, plans, monkeypatch)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(outcome.score) == MILLION
    assert kept < 140 * 8 * MILLION
    assert peak < 2 * 110 * 8 * MILLION
    assert_every_plan_has_numbers(outcome)
    assert_alone_as_together(problem, outcome, np.random.default_rng(1).integers(0, MILLION, 100))


@pytest.mark.parametrize(
    "changes",
    [
        {"staleness.metric": "mean", "staleness.enforce": "design"},
        {"staleness.metric": "p95", "staleness.enforce": "design"},
        {"staleness.metric": "mean", "staleness.enforce": "admission", "staleness.limit": 2},
        {"algorithm.group_dispatch": "sample", "algorithm.dispatch_scope": "global"},
        # By sample no lengths of this cv and cap leave such a mean at 2.5: it is that of all.
        {
            "algorithm.oversampling_by": "sample",
            "algorithm.dynamic_sampling": "drop",
            "workload.response_tokens.at_oversampling": 1,
        },
        {"staleness.enforce": "admission", "staleness.metric": "mean", "staleness.limit": 0},
        {"workload.solve_rate": {"always": 0.1}, "algorithm.dynamic_sampling": "refill"},
    ],
)
def test_so_it_is_whatever_is_planned(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = override(load(EXAMPLE), changes)
    problem = build_problem(said, load_catalogue())
    domain = build_domain(said, problem.system)
    for count in (1, 1000):
        assert_each_law_once(problem, random_plans(domain, count, seed=0), monkeypatch)


def test_every_stage_takes_its_laws_from_physics() -> None:
    """Counting sees every law that a stage uses: none is reached through a module."""
    by_stage = Counter(module.__name__.rpartition(".")[2] for module, _, _ in laws())
    assert set(by_stage) >= {"generator", "trainer", "queue", "accounts"}
    for module in stages():
        reached = [item for item in vars(module).values() if isinstance(item, ModuleType)]
        assert not any(item.__name__.startswith("allocator.physics") for item in reached)


# --- no neighbours -------------------------------------------------------------------------------


def assert_alone_as_together(problem: Problem, outcome: Outcome, sample: NDArray[np.int64]) -> None:
    """A plan alone has the numbers it has among others."""
    plans = outcome.plans
    together = {name: values[sample] for name, values in numbers(outcome).items()}
    alone = [numbers(evaluate(problem, plans.take(sample[i : i + 1]))) for i in range(sample.size)]
    one_by_one = {name: np.concatenate([each[name] for each in alone]) for name in alone[0]}
    assert_equal(together, one_by_one)
    # Neither vacuous nor a corner: plans of both kinds are among them.
    assert 0 < np.count_nonzero(together["feasible"]) < sample.size


def test_a_plan_alone_has_the_numbers_it_has_in_a_crowd() -> None:
    sample = np.random.default_rng(1).integers(0, CROWD, 200)
    assert_alone_as_together(example()[0], crowd()[1], sample)


def test_order_and_neighbours_do_not_matter() -> None:
    problem, _ = example()
    plans, outcome = crowd()
    some = np.random.default_rng(2).permutation(CROWD)[:20_000]
    reference = {name: values[some] for name, values in numbers(outcome).items()}
    assert_equal(numbers(evaluate(problem, plans.take(some))), reference)
    twice = np.concatenate([some[:100], some[:100]])
    doubled = numbers(evaluate(problem, plans.take(twice)))
    for name, values in doubled.items():
        np.testing.assert_array_equal(values[:100], values[100:], err_msg=name)


def test_evaluating_changes_nothing() -> None:
    problem, domain = example()
    plans = random_plans(domain, 1000, seed=3)
    before = {f.name: getattr(plans, f.name).copy() for f in fields(plans)}
    first, second = numbers(evaluate(problem, plans)), numbers(evaluate(problem, plans))
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)
    for name, column in before.items():
        np.testing.assert_array_equal(getattr(plans, name), column, err_msg=name)


def assert_every_plan_has_numbers(outcome: Outcome) -> None:
    for name, values in numbers(outcome).items():
        assert not np.any(np.isnan(values)), name
    assert np.all(np.isfinite(outcome.score[outcome.feasible]))


def test_every_plan_has_numbers() -> None:
    assert_every_plan_has_numbers(crowd()[1])
