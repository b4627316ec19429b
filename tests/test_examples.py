"""Every example loads, solves and can be written down; its headline lies where a pencil puts it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from allocator import ScenarioError, evaluate, load, solve
from allocator.plan import Plan, Prediction, leaves, plain
from allocator.scenario.load import override
from allocator.scenario.schema import Scenario

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))
NAMES = [path.name for path in EXAMPLES]
PUBLISHED = "qwen3-235b-h200.yaml"
TWO_POOLS = "h200-trainer-gb300-generator.yaml"
MINIMAL = "minimal.yaml"
ONE_NODE = "qwen3-8b-8gpus.yaml"


@cache
def scenario(name: str) -> Scenario:
    return load(EXAMPLES[NAMES.index(name)])


@cache
def solved(name: str) -> Plan:
    return solve(scenario(name))


@cache
def fixed(name: str) -> Plan:
    return evaluate(scenario(name))


def prediction(plan: Plan) -> Prediction:
    assert plan.prediction is not None
    return plan.prediction


def has_plan(name: str) -> bool:
    plan = scenario(name).plan
    return any(getattr(plan, key) is not None for key in type(plan).model_fields)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4
    assert any(has_plan(name) for name in NAMES)


# --- every example -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_it_solves_to_an_optimum_that_keeps_every_limit(name: str) -> None:
    plan = solved(name)
    assert plan.status == "optimal"
    assert plan.objective.bound is not None
    assert plan.objective.gap is not None
    assert 0 <= plan.objective.gap <= 1e-3
    assert all(limit.holds for limit in plan.limits)
    assert plan.decisions is not None
    assert plan.solver is not None
    assert plan.solver.termination == "optimal"
    pools = {pool.name: pool.gpus for pool in scenario(name).hardware.pools}
    used = dict.fromkeys(pools, 0)
    generator, trainer = plan.decisions.generator, plan.decisions.trainer
    for group in generator.groups:
        used[group.pool] += group.engines * group.gpus_per_engine
    turns = plan.decisions.mode == "colocated_sync"
    used[trainer.pool] = (
        max(used[trainer.pool], trainer.gpus) if turns else used[trainer.pool] + trainer.gpus
    )
    assert all(used[pool] <= gpus for pool, gpus in pools.items())
    assert plan.decisions.trainer.gpus > 0
    assert plan.decisions.generator.gpus > 0


@pytest.mark.parametrize("name", NAMES)
def test_its_plan_is_strict_json(name: str) -> None:
    text = json.dumps(solved(name).to_dict(), allow_nan=False)
    data = json.loads(text)
    assert data["status"] == "optimal"
    assert data["plan"]["trainer"]["gpus"] > 0
    assert data["prediction"]["usd_per_useful_mtok"] > 0
    # Nothing that should be a number was turned into null.
    empty = [path for path, value in leaves(plain(solved(name).prediction)) if value is None]
    unlimited = {"environment.rewards_per_s", "environment.prefills_per_s"}
    assert set(empty) <= {"staleness.max"} | unlimited
    assert set(data["intervals"]) <= {path for path, _ in leaves(data["prediction"])}


@pytest.mark.parametrize("name", NAMES)
def test_its_numbers_agree_with_each_other(name: str) -> None:
    plan = solved(name)
    found, decisions = prediction(plan), plan.decisions
    assert decisions is not None
    fates = plain(found.token_fate).values()
    assert sum(fates) == pytest.approx(1, abs=1e-12)
    assert found.run.usd == pytest.approx(found.run.hours * found.usd_per_hour)
    running_s = found.run.hours * 3600 * found.availability.productive
    assert running_s == pytest.approx(found.run.steps * found.step_s)
    assert found.usd_per_mtok <= found.usd_per_useful_mtok * (1 + 1e-9)
    assert found.trainer_samples_per_s * (1 - found.trainer_wait_fraction) == pytest.approx(
        decisions.batch / found.step_s
    )
    assert found.staleness.p50 <= found.staleness.p95 <= found.staleness.p99
    assert list(found.staleness.cdf) == sorted(found.staleness.cdf)
    assert found.staleness.mean >= 0
    for path, (low, high) in plan.intervals.items():
        value = dict(leaves(plain(found)))[path]
        assert low <= value <= high, path


@pytest.mark.parametrize("name", NAMES)
def test_it_evaluates_the_plan_it_states(name: str) -> None:
    if not has_plan(name):
        with pytest.raises(ScenarioError, match=r"plan\.trainer_gpus"):
            fixed(name)
        return
    plan, stated = fixed(name), scenario(name).plan
    assert plan.status == "feasible"
    assert plan.decisions is not None
    for key, found in {
        "trainer_gpus": plan.decisions.trainer.gpus,
        "generator_gpus": plan.decisions.generator.gpus,
        "oversampling": plan.decisions.oversampling,
    }.items():
        assert getattr(stated, key) in (None, found)
    json.dumps(plan.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_holds_the_same_numbers(name: str) -> None:
    frame = solved(name).to_frame()
    assert list(frame.columns) == ["path", "value", "low", "high"]
    table = dict(zip(frame["path"], frame["value"], strict=True))
    decisions = solved(name).decisions
    assert decisions is not None
    assert table["step_s"] == prediction(solved(name)).step_s
    assert table["plan.trainer.gpus"] == decisions.trainer.gpus


# --- plans that a user fixes ---------------------------------------------------------------------


def test_what_is_given_replaces_what_the_file_states() -> None:
    fewer = evaluate(scenario(PUBLISHED), engines=20, with_intervals=False)
    assert fewer.decisions is not None
    assert fewer.decisions.generator.gpus == 160
    assert fewer.decisions.trainer.gpus == 64
    assert (
        prediction(fewer).accepted_samples_per_s
        < prediction(fixed(PUBLISHED)).accepted_samples_per_s
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trainer_gpus": 0}, r"plan\.trainer_gpus: expected a whole number >= 1, given 0"),
        ({"trainer_gpus": 60}, r"plan\.trainer_gpus: expected whole nodes of 8 GPUs"),
        ({"generator_gpus": 190}, r"plan\.generator_gpus: expected a multiple of an engine's GPUs"),
        ({"engines": 20, "generator_gpus": 192}, r"plan\.generator_gpus: .* 20 engines"),
        ({"trainer_pool": "b200"}, r"plan\.trainer_pool"),
        ({"gpus": 8}, r"plan\.gpus: expected one of"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        evaluate(scenario(PUBLISHED), **given)


def test_rollouts_in_flight_are_shared_out_in_whole_numbers_and_said_so() -> None:
    plan = evaluate(scenario(PUBLISHED), in_flight=2000, with_intervals=False)
    assert plan.decisions is not None
    assert plan.decisions.generator.in_flight == 24 * 83
    (completed,) = [w.text for w in plan.warnings if w.code == "completed_plan"]
    assert "in_flight 1992, 83 on each of 24 engines" in completed


@pytest.mark.parametrize("objective", ["usd_per_useful_mtok", "useful_tokens_per_s"])
def test_open_rollouts_in_flight_are_the_fewest_of_the_best(objective: str) -> None:
    """Whether less or more is better, those chosen are within 0.1% of the best."""
    said = override(scenario(ONE_NODE), {"objective": objective, "staleness": {}})

    def split(in_flight: int | None = None) -> Plan:
        return evaluate(
            said,
            trainer_gpus=3,
            generator_gpus=5,
            in_flight_per_engine=in_flight,
            with_intervals=False,
        )

    chosen = split()
    assert chosen.decisions is not None
    each = chosen.decisions.generator.groups[0].in_flight_per_engine
    values = [split(n).objective.value for n in (8, each // 2, each, 2 * each, 4 * each)]
    best = max(values) if objective == "useful_tokens_per_s" else min(values)
    assert chosen.objective.value == values[2] == pytest.approx(best, rel=1e-3)
    assert values[1] != pytest.approx(best, rel=1e-3)


# --- headlines, by hand --------------------------------------------------------------------------


def within(value: float, low: float, high: float) -> None:
    assert low <= value <= high, f"{value} not in [{low}, {high}]"


def test_235b_as_published() -> None:
    """64 + 192 H200, 60% of rollouts discarded; published 2.75 samples/s, 1.95, 30% wait, 576 s."""
    plan = fixed(PUBLISHED)
    found = prediction(plan)
    # The lengths published are those of the rollouts kept: 5,591 + 12,704 tokens are trained.
    assert found.trained_sequence_tokens == pytest.approx(18_295, rel=1e-9)
    # The measured utilisation, given back: 10.5%, by the very plan that it was measured in.
    assert found.mfu_busy == pytest.approx(0.105, rel=1e-9)
    # 0.105 x 64 x 989e12 / (6 x 22.19e9 x 18,295 tokens) = 2.73 samples/s.
    assert found.trainer_samples_per_s == pytest.approx(2.73, rel=2e-3)
    within(found.trainer_wait_fraction, 0.3, 0.5)
    assert plan.decisions is not None
    within(plan.decisions.batch / found.step_s, 1.5, 1.95)
    # Prompt 5,591 and a length-biased half of a response. Responses of all rollouts have a mean m
    # whose kept 40% have 12,704: (5,591 + m (1 + .6^2)/2) with m = 13,510 is 14,778.
    assert found.in_flight_context_tokens == pytest.approx(14_778, rel=1e-3)
    # 24 engines; KV of 596 GB at 385 kB a token and 14,778 tokens: 105 sequences, less the spread.
    within(found.decoding / 24, 85, 105)
    # A response of 13,510 at about 40 ms a token is 540 s, and the last of 40 takes 2 to 2.5 times.
    within(found.generation_s, 540, 1350)
    # Six of ten rollouts are discarded, and they are the longer ones.
    assert found.discarded_rollouts_fraction == pytest.approx(0.6)
    within(found.discarded_tokens_fraction, 0.6, 0.7)
    # 256 x $1.59, whatever is used.
    assert found.usd_per_hour == pytest.approx(407.04)
    # The published $3.12 at 1.98 samples/s of 18,294 tokens; at 1.61 samples/s it is $3.84.
    within(found.usd_per_mtok, 2.4, 4.5)


def test_235b_planned_anew_is_cheaper_than_as_published() -> None:
    plan = solved(PUBLISHED)
    assert plan.decisions is not None
    # Discarding nothing saves 60% of the generator, so the trainer gets more of the pool.
    assert plan.decisions.oversampling == 1.0
    within(plan.decisions.trainer.gpus, 64, 128)
    # $407.04 an hour over what a trainer of 64 to 128 GPUs takes in 3,600 s; 0.105 of 64 GPUs is
    # 2.73 samples/s of 18,295 tokens: $2.26; of 88 GPUs $1.65. Little of it is lost to waiting.
    within(plan.objective.value, 1.65, 2.0)
    assert plan.objective.value < fixed(PUBLISHED).objective.value
    # 235.1e9 parameters x (2 + 4 + 12) bytes over 88 GPUs is 44.8 GiB, and activations.
    within(prediction(plan).memory.trainer_gib, 40, 126.9)


def test_two_pools_pay_each_its_own_price() -> None:
    plan = solved(TWO_POOLS)
    found, decisions = prediction(plan), plan.decisions
    assert decisions is not None
    assert decisions.trainer.gpu == "h200-sxm"
    assert decisions.generator.groups[0].gpu == "gb300-nvl72"
    prices = {entry.name: entry.value for entry in plan.provenance if "price" in entry.name}
    assert 2.79 in prices.values()
    assert found.usd_per_hour == pytest.approx(
        1.59 * decisions.trainer.gpus + 2.79 * decisions.generator.gpus
    )
    assert found.run.steps == pytest.approx(1000)
    assert found.run.ended_by == "budget.target"
    within(found.run.hours, 20, 336)
    within(found.staleness.mean, 1, 4)
    # always .10, never .15, the rest uniform: .75 (1 - 2/17).
    assert found.signal_fraction == pytest.approx(0.75 * 15 / 17)
    # Refill: what carries no signal is generated and not trained on.
    assert found.token_fate.no_signal == pytest.approx(1 - 0.75 * 15 / 17)


def test_minimal_needs_no_more_than_it_says() -> None:
    found = prediction(solved(MINIMAL))
    # 64 x $2.05; 20,000 dollars last 152 hours.
    assert found.usd_per_hour == pytest.approx(131.2)
    assert found.run.hours == pytest.approx(20_000 / 131.2)
    assert found.run.ended_by == "budget.usd"
    # 512 + 4,000 tokens a sample.
    assert found.trained_sequence_tokens == pytest.approx(4512)
    # Trained at 6 x 32.8e9 FLOP a token with a fifth to two fifths of 64 x 989e12 FLOP/s, less
    # what generates: some 20,000 to 90,000 tokens/s, so $0.4 to $1.8 a million.
    within(found.useful_tokens_per_s, 20_000, 90_000)
    within(found.usd_per_useful_mtok, 0.4, 1.8)
    codes = {warning.code for warning in solved(MINIMAL).warnings}
    assert {"no_solve_rate", "assumed_utilisation"} <= codes


def test_one_node_is_split_gpu_by_gpu() -> None:
    plan = solved(ONE_NODE)
    found, decisions = prediction(plan), plan.decisions
    assert decisions is not None
    assert decisions.trainer.gpus + decisions.generator.gpus <= 8
    # 8 x $2.05; 2,000 dollars last 122 hours.
    assert found.usd_per_hour == pytest.approx(16.4)
    assert found.run.hours == pytest.approx(2000 / 16.4)
    within(found.staleness.mean, 0.5, 2.5)
    # always .2, never .1, the rest uniform, groups of 8: .7 (1 - 2/9).
    assert found.signal_fraction == pytest.approx(0.7 * 7 / 9)
    # Weights of 8.19e9 x 2 bytes are 15.3 GiB; the rest of 0.88 x 141 GiB is KV.
    assert found.memory.kv_limit_gib == pytest.approx(0.88 * 141 - 15.26, abs=0.05)
    # Three GPUs at 33% of 989e12 FLOP/s and 6 x 8.19e9 FLOP a token train 20,000 tokens/s.
    within(found.trained_tokens_per_s, 8_000, 30_000)


def test_examples_say_where_their_numbers_come_from() -> None:
    for name in NAMES:
        entries: list[Any] = list(solved(name).provenance)
        assert all(entry.source for entry in entries)
        assert all(entry.unit for entry in entries)
        kinds = {entry.kind for entry in entries}
        assert kinds <= {"stated", "measured", "vendor", "fitted", "assumed"}
