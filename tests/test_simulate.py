"""`allocator.simulate`: a plan's simulation beside its prediction."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import allocator
from allocator.plan import Plan
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import override
from allocator.scenario.schema import Scenario
from allocator.simulation import Simulation
from allocator.simulation.quantities import tolerance

EXAMPLES = Path(__file__).parents[1] / "examples"
NODE = EXAMPLES / "qwen3-8b-8gpus.yaml"
SERIAL = EXAMPLES / "slow-code-reward.yaml"
SHORT: dict[str, Any] = {"steps": 20, "replications": 3}


@functools.cache
def node() -> Scenario:
    return allocator.load(NODE)


@functools.cache
def solved() -> Plan:
    return allocator.solve(node())


@functools.cache
def found() -> Simulation:
    return allocator.simulate(solved(), **SHORT)


def test_a_plan_is_taken_as_recorded() -> None:
    prediction = solved().prediction
    assert prediction is not None
    assert found().origin == "recorded"
    assert found().warnings == ()
    assert found().predicted["step_s"] == prediction.step_s
    assert found().predicted["staleness.token_mean"] == prediction.staleness.token_mean
    assert found().predicted["token_fate.no_signal"] == prediction.token_fate.no_signal


def test_scenario_plan_and_files_are_the_same_simulation(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(solved().to_dict()))
    from_file = allocator.simulate(path, **SHORT)
    from_scenario = allocator.simulate(node(), **SHORT)
    assert (from_file.origin, from_scenario.origin) == ("recorded", "solved")
    assert from_file.simulated == from_scenario.simulated == found().simulated
    assert from_file.verdicts == found().verdicts
    assert allocator.simulate(NODE, **SHORT) == replace(from_scenario, name=str(NODE))


def test_a_scenario_that_fixes_its_plan_is_evaluated() -> None:
    simulation = allocator.simulate(SERIAL, steps=10, replications=2)
    evaluated = allocator.evaluate(allocator.load(SERIAL), with_intervals=False)
    assert evaluated.prediction is not None
    assert (simulation.origin, simulation.mode) == ("evaluated", "colocated_sync")
    assert simulation.predicted["generation_s"] == evaluated.prediction.generation_s
    assert not {"decoding", "accepted_samples_per_s"} & set(simulation.predicted)


def test_seed_decides() -> None:
    assert allocator.simulate(solved(), **SHORT) == found()
    other = allocator.simulate(solved(), seed=1, **SHORT)
    assert other.simulated["step_s"] != found().simulated["step_s"]


def test_each_row_is_consistent() -> None:
    paths = set(found().simulated)
    assert paths == set(found().predicted) == set(found().difference) == set(found().verdicts)
    for row in found().rows:
        assert row.difference == row.simulated - row.predicted
        assert row.tolerance == tolerance(row.path, row.simulated)
        within = abs(row.difference) <= row.tolerance + 1e-9 * abs(row.simulated)
        if row.low is not None and row.high is not None:
            assert row.low <= row.simulated <= row.high
            explained = row.low - 1e-9 <= row.predicted <= row.high + 1e-9
            assert row.outside_noise == (not explained)
            within = within or explained
        assert row.verdict == ("agrees" if within else "differs")


def test_intervals_need_two_replications() -> None:
    one = allocator.simulate(solved(), steps=10, replications=1)
    assert one.intervals == {}
    assert one.outside_noise == ()
    assert {"step_s", "usd_per_useful_mtok"} <= set(found().intervals)
    assert "staleness.p95" not in found().intervals


def test_totals_hold() -> None:
    simulated = found().simulated
    fates = [value for path, value in simulated.items() if path.startswith("token_fate.")]
    assert sum(fates) == pytest.approx(1.0)
    stale = found().staleness
    assert sum(stale.simulated) == pytest.approx(1.0)
    mean = sum(age * share for age, share in enumerate(stale.simulated))
    assert mean == pytest.approx(simulated["staleness.mean"])
    assert 0.0 <= stale.cdf_distance <= 1.0
    flight = found().in_flight
    assert flight.mean <= flight.p99 <= flight.cap
    assert flight.sandboxes_p99 is None


def test_dollars_are_those_of_the_plan_over_the_simulated_rate() -> None:
    one = allocator.simulate(solved(), steps=10, replications=1)
    for usd, rate in (
        ("usd_per_mtok", "trained_tokens_per_s"),
        ("usd_per_useful_mtok", "useful_tokens_per_s"),
    ):
        spent = one.simulated[usd] * one.simulated[rate]
        assert spent == pytest.approx(one.predicted[usd] * one.predicted[rate])


def test_tokens_per_second_follow_the_basis() -> None:
    scenario = override(node(), {"token_basis": "response"})
    plan = allocator.solve(scenario)
    by_response = allocator.simulate(plan, **SHORT).simulated
    prompt = node().workload.initial_prompt_tokens.value
    by_sequence = found().simulated
    added = by_sequence["trained_tokens_per_s"] - by_response["trained_tokens_per_s"]
    assert added == pytest.approx(prompt * by_sequence["trained_samples_per_s"], rel=1e-3)


def test_a_wrong_prediction_differs() -> None:
    prediction = solved().prediction
    assert prediction is not None
    wrong = replace(
        solved(),
        prediction=replace(prediction, step_s=1.5 * prediction.step_s,
                           staleness=replace(prediction.staleness, mean=9.0, p95=12)),
    )  # fmt: skip
    verdicts = allocator.simulate(wrong, **SHORT).verdicts
    for path in ("step_s", "staleness.mean", "staleness.p95"):
        assert (found().verdicts[path], verdicts[path]) == ("agrees", "differs")


def test_progress_comes_to_its_end() -> None:
    seen: list[tuple[int, int]] = []
    allocator.simulate(solved(), 10, 0, 2, lambda done, whole: seen.append((done, whole)))
    assert [done for done, _ in seen] == list(range(1, 21))
    assert {whole for _, whole in seen} == {20}


def test_a_trace_is_of_the_first_replication() -> None:
    assert found().trace is None
    traced = allocator.simulate(solved(), trace_steps=3, **SHORT)
    assert traced == found()
    assert traced.trace is not None
    assert (traced.trace.first_step, traced.trace.steps) == (5, 3)
    assert "trace" not in traced.to_dict()


def test_sandboxes_to_hold() -> None:
    scenario = override(
        node(), {"sandbox.provider": "local", "sandbox.per_rollout": 2, "sandbox.start_s": 1}
    )
    flight = allocator.simulate(scenario, steps=5, replications=1).in_flight
    assert flight.sandboxes_p99 == 2 * flight.p99


def test_plain_data_and_table() -> None:
    data = found().to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    for part in ("simulated", "predicted", "difference", "intervals"):
        assert "staleness.mean" in data[part]
    table = found().to_frame()
    assert list(table["path"]) == list(found().predicted)
    row = table.set_index("path").loc["step_s"]
    assert row["simulated"] == found().simulated["step_s"]


@pytest.mark.parametrize("given", [{"steps": 4}, {"replications": 0}, {"trace_steps": -1}])
def test_too_little_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 5 steps"):
        allocator.simulate(solved(), **given)


def test_what_cannot_be_simulated_says_why(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="keys can be replaced"):
        allocator.simulate(solved(), overrides={"model": "qwen3-8b"})
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(solved().to_dict() | {"scenario": None}))
    with pytest.raises(ScenarioError, match="scenario of the plan"):
        allocator.simulate(path)
    hopeless = override(node(), {"staleness.limit": 0.01, "staleness.enforce": "design"})
    with pytest.raises(allocator.InfeasibleError):
        allocator.simulate(hopeless)


def test_a_plan_of_another_version_is_told() -> None:
    old = replace(solved(), versions={**solved().versions, "allocator": "0.0.1"})
    (warning,) = allocator.simulate(old, steps=5, replications=1).warnings
    assert warning.code == "version_differs"
    assert "0.0.1" in warning.text


@pytest.mark.parametrize(
    ("path", "simulated", "expected"),
    [
        ("step_s", 100.0, 3.0),
        ("usd_per_useful_mtok", 2.0, 0.06),
        ("trainer_wait_fraction", 0.5, 0.03),
        ("token_fate.useful", 0.5, 0.02),
        ("staleness.environment_state_fraction", 0.5, 0.02),
        ("staleness.mean", 1.0, 0.15),
        ("staleness.mean", 10.0, 0.5),
        ("staleness.p95", 10.0, 0.0),
    ],
)
def test_tolerances(path: str, simulated: float, expected: float) -> None:
    assert math.isclose(tolerance(path, simulated), expected)
