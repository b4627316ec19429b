"""Intervals: what the spread of an input does to a prediction, and to nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from allocator import evaluate
from allocator.plan import Plan, leaves, plain
from allocator.scenario.load import from_dict, override
from allocator.scenario.schema import Scenario


def known() -> dict[str, Any]:
    """A scenario in which nothing is assumed: every number with a default spread is stated."""
    return {
        "model": "qwen3-32b",
        "engine": {
            "memory_fraction": 0.88,
            "layouts": [{"tp": 2}],
            "rates": {
                "decode": {"alpha_s": 8e-3, "beta_s": 4e-5, "gamma_s_per_token": 1e-8},
                "prefill": {"p0_s": 5e-3, "p1_s_per_token": 3e-5, "p2_s_per_token2": 1e-9},
                "gpus_per_engine": 2,
            },
        },
        "trainer": {
            "mfu": 0.3,
            "mfu_at_gpus": 8,
            "fixed_s": 5,
            "step_cv": 0.1,
            "gradient_bytes_per_param": 4,
            "optimizer_bytes_per_param": 12,
            "memory_fraction": 0.9,
        },
        "workload": {
            "initial_prompt_tokens": 500,
            "response_tokens": {"mean": 3000, "cv": 0.7, "max": 12000},
            "solve_rate": {"always": 0.1, "never": 0.2},
            "tool_s": 2,
        },
        "algorithm": {
            "group_size": 8,
            "prompts_per_step": 16,
            "weight_sync": {"gb_per_s": 10, "fixed_s": 1},
        },
        "hardware": {
            "pools": [
                {"name": "all", "gpu": "h200-sxm", "gpus": 32, "price": {"usd_per_gpu_hour": 2}}
            ]
        },
        "budget": {"hours": 1000, "target": {"steps": 500}},
        "plan": {
            "trainer_gpus": 16,
            "generator_gpus": 16,
            "in_flight_per_engine": 40,
            "queue_batches": 2,
        },
    }


#: Inputs, and the ends of a spread on each.
SPREADS = {
    "engine.memory_fraction": (0.80, 0.92),
    "engine.rates.decode.alpha_s": (7e-3, 1e-2),
    "engine.rates.prefill.p1_s_per_token": (2e-5, 5e-5),
    "trainer.mfu": (0.25, 0.34),
    "trainer.fixed_s": (2, 9),
    "trainer.step_cv": (0.05, 0.3),
    "trainer.optimizer_bytes_per_param": (8, 16),
    "trainer.memory_fraction": (0.85, 0.95),
    "workload.initial_prompt_tokens": (300, 900),
    "workload.response_tokens.mean": (2700, 3500),
    "workload.response_tokens.cv": (0.5, 0.8),
    "workload.solve_rate.always": (0.05, 0.2),
    "workload.tool_s": (0, 8),
    "algorithm.weight_sync.gb_per_s": (5, 20),
    "hardware.pools[0].price.usd_per_gpu_hour": (1.5, 3),
}
#: What moves with an input, by hand, and what does not.
MOVES: dict[str, tuple[set[str], set[str]]] = {
    "hardware.pools[0].price.usd_per_gpu_hour": (
        {"usd_per_hour", "usd_per_mtok", "usd_per_useful_mtok", "run.usd"},
        {"step_s", "run.hours", "useful_tokens_per_s", "staleness.mean"},
    ),
    "trainer.memory_fraction": ({"memory.trainer_limit_gib"}, {"step_s", "usd_per_hour"}),
    "trainer.optimizer_bytes_per_param": ({"memory.trainer_gib"}, {"train_s", "usd_per_mtok"}),
    "workload.solve_rate.always": (
        {"signal_fraction", "token_fate.useful", "usd_per_useful_mtok", "useful_tokens_per_s"},
        {"step_s", "usd_per_mtok", "trained_tokens_per_s", "staleness.mean", "run.hours"},
    ),
    "trainer.fixed_s": (
        {"trainer_samples_per_s", "step_s", "mfu_wall", "run.hours", "usd_per_mtok"},
        {"decode_step_s", "decoding", "weight_sync_s", "imbalance", "memory.kv_gib"},
    ),
    "engine.rates.decode.alpha_s": (
        {"decode_step_s", "generation_s", "accepted_samples_per_s", "load"},
        {"train_s", "mfu_busy", "hfu", "trainer_samples_per_s", "in_flight_context_tokens"},
    ),
    "trainer.step_cv": (
        {"trainer_wait_fraction", "step_s"},
        {"train_s", "load", "generation_s", "decode_step_s"},
    ),
    "algorithm.weight_sync.gb_per_s": (
        {"weight_sync_s", "trainer_samples_per_s", "accepted_samples_per_s"},
        {"train_s", "decode_step_s", "mfu_busy"},
    ),
}


#: Numbers that are shares of something: never above 1.
SHARES = {
    *(f"{name}_fraction" for name in ("trainer_wait", "generator_wait", "signal", "update")),
    *(f"{name}_fraction" for name in ("truncated", "discarded_rollouts", "discarded_tokens")),
    *("update_fraction_without_log_probs", "mfu_busy", "mfu_wall", "hfu"),
    *("staleness.environment_state_fraction", "staleness.rejected_fraction"),
    *(f"token_fate.{fate}" for fate in ("useful", "no_signal", "rejected_stale", "oversampled")),
    *("token_fate.dropped_overflow", "token_fate.failed"),
}


@cache
def exact() -> Scenario:
    return from_dict(known())


def spread(*names: str) -> Scenario:
    """Return the scenario with a spread on some inputs."""
    said = exact()
    for name in names:
        low, high = SPREADS[name]
        said = override(said, {name: {"value": value_of(name), "low": low, "high": high}})
    return said


def value_of(name: str) -> float:
    node: Any = known()
    for part in name.replace("[0]", ".0").split("."):
        node = node[int(part)] if isinstance(node, list) else node[part]
    return float(node)


def numbers(plan: Plan) -> dict[str, float]:
    return {
        path: float(value)
        for path, value in leaves(plain(plan.prediction))
        if isinstance(value, (int, float))
    }


def moved(name: str) -> Mapping[str, tuple[float, float]]:
    """Return least and largest of every number that changes when the input itself is changed."""
    base = numbers(evaluate(exact()))
    ends = [numbers(evaluate(override(exact(), {name: end}))) for end in SPREADS[name]]
    return {
        path: (min(value, *(e[path] for e in ends)), max(value, *(e[path] for e in ends)))
        for path, value in base.items()
        if any(e[path] != value for e in ends)
    }


def test_without_a_spread_there_is_no_interval() -> None:
    assert evaluate(exact()).intervals == {}
    assert evaluate(exact()).interval_level == 0.8


@pytest.mark.parametrize("name", SPREADS)
def test_a_spread_moves_what_depends_on_the_input_and_nothing_else(name: str) -> None:
    """The interval of one input is what its two ends give when they are stated instead."""
    intervals, expected = evaluate(spread(name)).intervals, moved(name)
    assert set(intervals) == set(expected)
    for path, ends in expected.items():
        assert intervals[path] == pytest.approx(ends, rel=1e-9), path
    must, must_not = MOVES.get(name, (set(), set()))
    assert must <= set(intervals)
    assert not must_not & set(intervals)


def test_spreads_of_several_inputs_add_up_in_squares() -> None:
    names = ("trainer.fixed_s", "engine.rates.decode.alpha_s", "workload.tool_s")
    plan = evaluate(spread(*names))
    each = [evaluate(spread(name)).intervals for name in names]
    value = numbers(plan)
    assert set(plan.intervals) == set().union(*each)
    for path, (low, high) in plan.intervals.items():
        parts = [intervals.get(path, (value[path], value[path])) for intervals in each]
        down = math.hypot(*(value[path] - part[0] for part in parts))
        up = math.hypot(*(part[1] - value[path] for part in parts))
        # Rounding of a difference of two values, then no more than the quantity can be.
        rounding = 1e-12 * abs(value[path])
        assert low == pytest.approx(max(value[path] - down, 0.0), rel=1e-9, abs=rounding), path
        top = min(value[path] + up, 1.0) if path in SHARES else value[path] + up
        assert high == pytest.approx(top, rel=1e-9, abs=rounding), path


def test_intervals_contain_the_value_and_do_not_move_it() -> None:
    plan, base = evaluate(spread(*SPREADS)), numbers(evaluate(exact()))
    value = numbers(plan)
    assert value == base
    for path, (low, high) in plan.intervals.items():
        assert low <= value[path] <= high, path
        assert low < high, path
    # Everything with a unit of time or money is uncertain when everything is.
    assert {"step_s", "usd_per_useful_mtok", "staleness.mean", "run.usd"} <= set(plan.intervals)


def test_an_interval_stays_where_the_quantity_can_be() -> None:
    """Effects that add up in squares may pass 0 or 1, where no share and no rate can be."""
    said = override(
        exact(),
        {
            "workload.solve_rate": {
                "always": {"value": 0.02, "low": 0, "high": 0.5},
                "never": {"value": 0.02, "low": 0, "high": 0.5},
                "rest": {"alpha": {"value": 3, "high": 9}, "beta": {"value": 3, "high": 9}},
            },
            "engine.rates.decode.alpha_s": {"value": 8e-3, "low": 1e-3, "high": 4e-2},
            "workload.tool_s": {"value": 2, "low": 0, "high": 200},
            "trainer.fixed_s": {"value": 5, "low": 0, "high": 500},
            "trainer.mfu": {"value": 0.3, "low": 0.05, "high": 0.6},
        },
    )
    plan = evaluate(said)
    value = numbers(plan)
    assert set(value) >= SHARES
    ends = {path: set(interval) for path, interval in plan.intervals.items()}
    for path, (low, high) in plan.intervals.items():
        assert 0.0 <= low <= value[path] <= high, path
        assert path not in SHARES or high <= 1.0, path
    # Neither end is idle: something reaches each.
    assert any(0.0 in ends[path] and value[path] > 0.1 for path in ends)
    assert any(1.0 in ends[path] and value[path] < 0.99 for path in ends if path in SHARES)


def test_a_wider_spread_gives_a_wider_interval() -> None:
    def width(high: float) -> float:
        value = {"value": 5, "low": 4, "high": high}
        low, top = evaluate(override(exact(), {"trainer.fixed_s": value})).intervals["step_s"]
        return top - low

    assert width(6) < width(8) < width(12)


@pytest.mark.parametrize("end", ["low", "high"])
def test_a_spread_may_have_one_side(end: str) -> None:
    value = {"value": 5, end: {"low": 2, "high": 9}[end]}
    plan = evaluate(override(exact(), {"trainer.fixed_s": value}))
    middle, (low, high) = numbers(plan)["step_s"], plan.intervals["step_s"]
    assert (low < middle) == (end == "low")
    assert (high > middle) == (end == "high")


def test_what_a_measurement_already_contains_moves_no_time_at_its_own_place() -> None:
    """On the GPUs where MFU was measured the busy time is known, whatever part of it is fixed.

    What is not fixed varies with the tokens of a batch, which moves waits a little.
    """
    there = override(exact(), {"trainer.mfu_at_gpus": 16, "plan.trainer_gpus": 16})
    value = {"value": 5, "low": 2, "high": 9}
    moved = evaluate(override(there, {"trainer.fixed_s": value})).intervals
    assert "hfu" in moved
    assert not {"train_s", "trainer_samples_per_s", "mfu_busy"} & set(moved)


def test_a_spread_of_nothing_is_none() -> None:
    value = {"value": 5, "low": 5, "high": 5}
    assert evaluate(override(exact(), {"trainer.fixed_s": value})).intervals == {}


def test_an_end_that_describes_no_system_is_left_out() -> None:
    """At 0.2 of 141 GiB two GPUs do not hold the 61 GiB of weights: only the upper end counts."""
    value = {"value": 0.88, "low": 0.2, "high": 0.92}
    plan = evaluate(override(exact(), {"engine.memory_fraction": value}))
    low, high = plan.intervals["memory.kv_limit_gib"]
    middle = numbers(plan)["memory.kv_limit_gib"]
    assert low == middle < high


def test_an_end_at_which_other_engines_are_gone_moves_the_engine_of_the_plan() -> None:
    """145 GB of weights fit two H100 at 0.88 of 80 GiB, and not at 0.80: there TP4 comes first."""
    data = known()
    del data["engine"]["memory_fraction"]
    data |= {"model": "qwen2.5-72b", "engine": {"estimate": "allow"}}
    data["algorithm"]["training"] = {"lora_rank": 8}
    data["hardware"]["pools"][0]["gpu"] = "h100-sxm"
    for degree, sides in ((2, 1), (4, 2), (8, 2)):
        data["plan"]["layout"] = {"tp": degree}
        plan = evaluate(from_dict(data))
        middle = numbers(plan)["memory.kv_limit_gib"]
        low, high = plan.intervals["memory.kv_limit_gib"]
        # An engine keeps 80 GiB a GPU, whatever is left of it by the weights.
        assert high - middle == pytest.approx(0.04 * 80)
        assert middle - low == pytest.approx(0.08 * 80 if sides == 2 else 0)


def test_fitted_rates_are_as_uncertain_as_their_fit_and_those_of_other_engines_do_not_count() -> (
    None
):
    said = override(exact(), {"engine.rates": {}, "engine.layouts": [{"tp": 2}, {"tp": 4}]})
    many = evaluate(said)
    assert many.decisions is not None
    engine = many.decisions.generator.groups[0]
    pinned = {"engine.backend": engine.backend, "engine.layouts": [{"tp": engine.layout.tp}]}
    one = evaluate(override(said, pinned))
    assert one.decisions == many.decisions

    def residuals(plan: Plan) -> int:
        return sum(entry.name.endswith("decode_residual") for entry in plan.provenance)

    assert residuals(one) == 1 < residuals(many)
    assert many.intervals == one.intervals
    assert {"decode_step_s", "accepted_samples_per_s"} <= set(one.intervals)
    assert not {"train_s", "mfu_busy", "usd_per_hour"} & set(one.intervals)
