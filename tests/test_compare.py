"""Where the difference in dollars comes from: exact, symmetric, and each cause under its name."""

from __future__ import annotations

import json
import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import allocator
from allocator.comparison import Comparison, InfeasibleSideError
from allocator.comparison.identity import TERMS, Factors, Use, differences, generator_share
from allocator.comparison.paid import gpu_uses
from allocator.plan import Plan
from allocator.recorded import PlanData
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import from_dict, load, override
from allocator.scenario.schema import Scenario
from tests.generated import scenario

EXAMPLES = Path(__file__).parents[1] / "examples"
SEEDS = range(40)
ROUNDING = 1e-9

BASE: dict[str, Any] = {
    "name": "base",
    "model": "qwen3-8b",
    "engine": {"backend": "vllm", "layouts": [{"tp": 1}]},
    "trainer": {"hfu": 0.4, "fixed_s": 0},
    "workload": {
        "initial_prompt_tokens": 300,
        "response_tokens": {"mean": 3000, "cv": 0.8, "max": 12000},
        "solve_rate": {"always": 0.2, "never": 0.1, "rest": {"alpha": 1, "beta": 1}},
    },
    "algorithm": {"group_size": 8, "prompts_per_step": 32},
    "staleness": {"limit": 4, "enforce": "reject"},
    "hardware": {
        "pools": [
            {"name": "node", "gpu": "h200-sxm", "gpus": 64, "price": {"usd_per_gpu_hour": 2.0}}
        ]
    },
    "budget": {"hours": 100},
}
#: The trainer sets the pace of the second split, the generator that of the first.
FAST_TRAINER = {"trainer_gpus": 32, "generator_gpus": 24, "in_flight_per_engine": 48}
SLOW_TRAINER = {"trainer_gpus": 8, "generator_gpus": 48, "in_flight_per_engine": 48}


def base(split: dict[str, int], **changes: Any) -> Scenario:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return override(from_dict(BASE | {"plan": split}), keys)


@cache
def solved() -> tuple[Plan, ...]:
    """Return the plans of generated scenarios that have one, made once."""
    plans = (allocator.try_solve(scenario(seed)) for seed in SEEDS)
    return tuple(plan for plan in plans if plan.prediction is not None)


def dollars(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.usd_per_useful_mtok


def moved(comparison: Comparison) -> set[str]:
    """Return the terms that are more than rounding."""
    least = ROUNDING * comparison.a.usd_per_useful_mtok
    return {term.name for term in comparison.terms if abs(term.usd_per_useful_mtok) > least}


def test_terms_sum_exactly_to_the_difference() -> None:
    pairs = list(pairwise(solved()))
    assert len(pairs) >= 20
    for first, second in pairs:
        comparison = allocator.compare(first, second)
        total = math.fsum(term.usd_per_useful_mtok for term in comparison.terms)
        difference = dollars(second) - dollars(first)
        scale = max(dollars(first), dollars(second))
        assert comparison.difference_usd == difference
        assert abs(total - difference) <= ROUNDING * scale
        assert [term.name for term in comparison.terms] == list(TERMS)


def test_pairs_of_every_kind_of_pace_are_among_them() -> None:
    kinds = {
        (comparison.a.pace, comparison.b.pace)
        for comparison in (allocator.compare(a, b) for a, b in pairwise(solved()))
    }
    assert {("generator", "trainer"), ("trainer", "generator"), ("generator", "generator")} <= kinds


def test_there_and_back_are_opposites() -> None:
    for first, second in pairwise(solved()):
        there, back = allocator.compare(first, second), allocator.compare(second, first)
        scale = max(dollars(first), dollars(second))
        assert there.generator_share == pytest.approx(back.generator_share, abs=1e-12)
        for term in there.terms:
            opposite = back.term(term.name).usd_per_useful_mtok
            assert abs(term.usd_per_useful_mtok + opposite) <= ROUNDING * scale, term.name


def test_a_plan_does_not_differ_from_itself() -> None:
    for plan in solved():
        comparison = allocator.compare(plan, plan)
        assert [term.usd_per_useful_mtok for term in comparison.terms] == [0.0] * len(TERMS)
        assert not comparison.scenario_changes
        assert not comparison.decision_changes


SINGLE: list[tuple[str, dict[str, int], dict[str, Any], set[str]]] = [
    ("price", FAST_TRAINER, {"hardware__pools[0]__price__usd_per_gpu_hour": 3.0}, {"price"}),
    ("price, slow trainer", SLOW_TRAINER,
     {"hardware__pools[0]__price__usd_per_gpu_hour": 3.0}, {"price"}),
    ("solve rate", FAST_TRAINER, {"workload__solve_rate__never": 0.4}, {"signal"}),
    ("solve rate, slow trainer", SLOW_TRAINER, {"workload__solve_rate__never": 0.4}, {"signal"}),
    ("GPUs that nobody uses", FAST_TRAINER, {"hardware__pools[0]__gpus": 128}, {"split"}),
    ("a trainer that waits", FAST_TRAINER, {"plan__trainer_gpus": 40}, set()),
    ("a faster trainer that waits", FAST_TRAINER, {"trainer__hfu": 0.5}, set()),
    ("a faster trainer", SLOW_TRAINER, {"trainer__hfu": 0.42}, {"training_speed"}),
    ("what is counted", FAST_TRAINER, {"token_basis": "response"}, {"tokens_counted"}),
    ("what is counted, slow trainer", SLOW_TRAINER, {"token_basis": "response"},
     {"tokens_counted"}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "split", "change", "terms"), SINGLE, ids=[s[0] for s in SINGLE])
def test_a_single_change_moves_its_own_term(
    what: str, split: dict[str, int], change: dict[str, Any], terms: set[str]
) -> None:
    """With rejection and steady queues; the pace setter's own waiting may follow a little."""
    comparison = allocator.compare(base(split), base(split, **change))
    pace = "generator" if split is FAST_TRAINER else "trainer"
    assert (comparison.a.pace, comparison.b.pace) == (pace, pace)
    assert terms <= moved(comparison)
    small = 0.02 * comparison.a.usd_per_useful_mtok
    # How evenly batches arrive depends on both rates: rejection, overflow and waits follow.
    follow = (
        {"idle", "discards", "staleness", "weight_sync", "split"} if "trainer" in what else set()
    )
    others = moved(comparison) - terms
    assert others <= follow, comparison.to_frame()
    assert all(abs(comparison.term(name).usd_per_useful_mtok) <= small for name in others)


def test_a_trainer_that_grows_faster_counts_as_long_as_it_sets_the_pace() -> None:
    split = {**SLOW_TRAINER, "generator_gpus": 16}
    comparison = allocator.compare(base(split), base(split, trainer__hfu=0.9))
    assert (comparison.a.pace, comparison.b.pace) == ("trainer", "generator")
    assert 0.0 < comparison.generator_share < 1.0
    assert comparison.term("training_speed").usd_per_useful_mtok < comparison.difference_usd < 0.0
    # What the generator does has not changed; near a match, queues run full and empty.
    still = {"price", "split", "inference_speed", "tail", "signal", "tokens_counted"}
    assert not moved(comparison) & still


def product(
    trainer: float, generator: float, price: float = 2.0, spare: float = 0.0, sandboxes: float = 0.0
) -> Factors:
    return Factors(
        uses={"trainer": Use(8.0, price), "generator": Use(24.0, price)}
        | ({"unused": Use(spare, price)} if spare else {}),
        besides_usd_per_hour={"sandboxes": sandboxes},
        generator_gpus=24.0,
        trainer_gpus=8.0,
        generator={"inference_speed": generator},
        trainer={"training_speed": trainer},
        common={"idle": 0.9},
    )


def cost(side: Factors) -> float:
    usd = sum(use.usd_per_hour for use in side.uses.values())
    usd += sum(side.besides_usd_per_hour.values())
    return usd / (side.useful_tokens_per_s * 3600) * 1e6


def test_the_way_is_divided_where_both_sides_are_equally_fast() -> None:
    slow_trainer, slow_generator = product(300.0, 400.0), product(1200.0, 100.0)
    # ln(T / V) runs from ln(1/4) to ln 4: the middle of the way.
    assert generator_share(slow_trainer, slow_generator) == pytest.approx(0.5)
    terms = differences(slow_trainer, slow_generator)
    # Both give 2,400 tokens/s: what the trainer gains the generator loses.
    assert terms["training_speed"] < 0.0 < terms["inference_speed"]
    assert terms["training_speed"] == pytest.approx(-terms["inference_speed"])


def test_what_is_only_on_one_side_is_its_own_term() -> None:
    a, b = product(300.0, 400.0), product(300.0, 400.0, spare=8.0, sandboxes=16.0)
    terms = differences(a, b)
    assert terms["split"] == pytest.approx(cost(a) / 4.0)
    assert terms["sandboxes"] == pytest.approx(cost(a) / 4.0)
    assert terms["reward_api"] == 0.0
    assert math.fsum(terms.values()) == pytest.approx(cost(b) - cost(a), rel=1e-12)
    gift = product(300.0, 400.0, price=0.0)
    assert differences(a, gift)["price"] == pytest.approx(-cost(a))


def test_price_and_speed_share_what_they_do_together_alike() -> None:
    a, b = product(300.0, 50.0), product(300.0, 100.0, price=4.0)
    terms = differences(a, b)
    # Twice the price at twice the speed: nothing changes, and both count the same.
    assert terms["price"] == pytest.approx(cost(a) * math.log(2.0))
    assert terms["price"] == pytest.approx(-terms["inference_speed"])


def test_a_scenario_that_fixes_its_plan_is_evaluated_and_any_other_solved() -> None:
    published = EXAMPLES / "qwen3-235b-h200.yaml"
    comparison = allocator.compare(published, EXAMPLES / "qwen3-8b-8gpus.yaml")
    assert (comparison.a.origin, comparison.b.origin) == ("evaluated", "solved")
    assert comparison.a.name == str(published)
    assert {warning.code for warning in comparison.warnings} == {"model_differs"}


def test_a_file_a_plan_and_a_scenario_say_the_same(tmp_path: Path) -> None:
    path = EXAMPLES / "qwen3-8b-8gpus.yaml"
    plan = allocator.solve(load(path))
    recorded = tmp_path / "plan.json"
    recorded.write_text(json.dumps(plan.to_dict()))
    for source in (plan, recorded, load(path), path):
        comparison = allocator.compare(source, recorded)
        assert moved(comparison) == set()
        assert comparison.b.origin == "recorded"


def test_what_differs_in_the_scenarios_is_listed_at_its_key() -> None:
    a = base(FAST_TRAINER)
    b = override(
        a,
        {
            "name": "another",
            "trainer.hfu": {"value": 0.4, "low": 0.3, "high": 0.5, "kind": "assumed"},
            "hardware.pools[0].gpus": 128,
            "algorithm.dynamic_sampling": "drop",
            "budget.usd": 1e6,
            "plan.trainer_gpus": 40,
        },
    )
    comparison = allocator.compare(a, b)
    changes = {change.path: (change.a, change.b) for change in comparison.scenario_changes}
    assert changes == {
        "hardware.pools[0].gpus": (64, 128),
        "algorithm.dynamic_sampling": ("off", "drop"),
        "budget.usd": (None, 1_000_000),
    }
    decided = {change.path: (change.a, change.b) for change in comparison.decision_changes}
    assert decided["trainer.gpus"] == (32, 40)


def test_keys_of_b_can_be_replaced() -> None:
    path = EXAMPLES / "qwen3-235b-h200.yaml"
    comparison = allocator.compare(path, path, overrides_b=["oversampling=1"])
    largest = max(comparison.terms, key=lambda term: abs(term.usd_per_useful_mtok))
    assert largest.name == "tail"
    assert largest.measure("oversampling").b == 1.0


def test_sides_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    path = EXAMPLES / "qwen3-8b-8gpus.yaml"
    poor = override(load(path), {"budget.usd": 0.001, "name": "poor"})
    with pytest.raises(InfeasibleSideError, match=r"poor: no plan meets"):
        allocator.compare(path, poor)
    infeasible = allocator.try_solve(poor)
    with pytest.raises(ScenarioError, match=r"poor: prediction\.usd_per_useful_mtok: expected"):
        allocator.compare(infeasible, path)
    recorded = tmp_path / "old.json"
    recorded.write_text('{"prediction": {"usd_per_useful_mtok": 1.0}}')
    with pytest.raises(ScenarioError, match=r"old\.json: plan\.trainer\.gpus: expected"):
        allocator.compare(recorded, path)
    recorded.write_text("{")
    with pytest.raises(ScenarioError, match=r"old\.json:1: expected JSON"):
        allocator.compare(recorded, path)
    whole = tmp_path / "plan.json"
    whole.write_text(json.dumps(allocator.solve(load(path)).to_dict()))
    with pytest.raises(ScenarioError, match="given a plan"):
        allocator.compare(path, whole, overrides_b=["oversampling=1"])


def test_the_frame_is_the_chain() -> None:
    comparison = allocator.compare(base(FAST_TRAINER), base(SLOW_TRAINER))
    frame = comparison.to_frame()
    assert list(frame["term"]) == ["A", *TERMS]
    assert frame["sum_usd"].iloc[0] == comparison.a.usd_per_useful_mtok
    assert frame["sum_usd"].iloc[-1] == pytest.approx(comparison.b.usd_per_useful_mtok, rel=1e-12)


MODES = ("one_step_off", "disaggregated_sync", "colocated_sync")
ELSEWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "failures": (
        {"failures": {"mtbf_gpu_hours": 5000, "restart_s": 600},
         "checkpoint": {"every_steps": 20, "seconds": 30}},
        "availability",
    ),
    "judge behind an API": (
        {"reward": {"type": "llm_judge", "usd_per_mtok": {"input": 1, "output": 2}}},
        "reward_api",
    ),
    "sandboxes": (
        {"sandbox": {"provider": "local", "usd_per_hour": 0.3}}, "sandboxes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_batches_that_are_written_as_a_whole_pay_for_their_tail(mode: str) -> None:
    """The term of a mode is its tail and the turns it takes; nothing is left over."""
    stream = from_dict(BASE | {"staleness": {}, "plan": FAST_TRAINER})
    split = {**FAST_TRAINER, "generator_gpus": 32} if mode == "colocated_sync" else FAST_TRAINER
    batches = from_dict(
        BASE | {"staleness": {}, "algorithm": BASE["algorithm"] | {"mode": mode}, "plan": split}
    )
    comparison = allocator.compare(stream, batches)
    total = math.fsum(term.usd_per_useful_mtok for term in comparison.terms)
    assert total == pytest.approx(comparison.difference_usd, rel=ROUNDING)
    largest = max(comparison.terms, key=lambda term: term.usd_per_useful_mtok)
    assert largest.name == "tail"
    assert comparison.term("idle").usd_per_useful_mtok > 0.0
    assert not moved(comparison) & {"sandboxes", "reward_api", "availability"}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_dollars_and_time_lost_elsewhere_have_terms_of_their_own(what: str) -> None:
    keys, name = ELSEWHERE[what]
    comparison = allocator.compare(
        from_dict(BASE | {"plan": FAST_TRAINER}), from_dict(BASE | keys | {"plan": FAST_TRAINER})
    )
    largest = max(comparison.terms, key=lambda term: abs(term.usd_per_useful_mtok))
    assert largest.name == name
    total = math.fsum(term.usd_per_useful_mtok for term in comparison.terms)
    assert total == pytest.approx(comparison.difference_usd, rel=ROUNDING)


UPDATES = {"drain": "weight_sync", "retract": "weight_sync", "abort": "discards"}


@pytest.mark.parametrize("update", UPDATES)
def test_rollouts_that_meet_new_weights_pay_under_their_own_term(update: str) -> None:
    """Time spent on them is weight sync, tokens thrown away are discards."""
    # A drain ends all that is in flight: with more than a batch of it the rest would overflow.
    few = {"in_flight_per_engine": 8} if update == "drain" else {}
    given = BASE | {"staleness": {}, "plan": {**FAST_TRAINER, **few}}
    costly = given | {"algorithm": BASE["algorithm"] | {"weight_update": update}}
    plan = allocator.evaluate(from_dict(costly), with_intervals=False)
    comparison = allocator.compare(from_dict(given), plan)
    total = math.fsum(term.usd_per_useful_mtok for term in comparison.terms)
    assert total == pytest.approx(comparison.difference_usd, rel=ROUNDING)
    assert comparison.b.pace == "generator"
    largest = max(comparison.terms, key=lambda term: term.usd_per_useful_mtok)
    assert largest.name == UPDATES[update]
    # The engines decode as fast as before; shorter rollouts count more prompt.
    still = {"price", "inference_speed", "tail", "signal", "staleness"}
    assert not moved(comparison) & (still if update == "abort" else still | {"tokens_counted"})
    predicted, paused = plan.prediction, comparison.term("weight_sync").measures[0].b
    assert predicted is not None
    assert plan.decisions is not None
    if update == "abort":
        # The transfers, once a batch; the table of restarts rounds lengths to 1/512 of the mean.
        transfers = predicted.weight_sync_s * predicted.accepted_samples_per_s
        assert paused == pytest.approx(transfers / plan.decisions.batch, rel=0.01)
        thrown_away = comparison.term("discards").measure("failed_fraction")
        assert thrown_away.a == 0.0
        assert thrown_away.b == predicted.token_fate.failed > 0.0
    else:
        assert paused == pytest.approx(predicted.update_pause_fraction, rel=ROUNDING)


JUDGE = {"type": "llm_judge", "model": "qwen3-8b", "tokens": {"output": 50}}
SPENT: dict[str, dict[str, Any]] = {
    "stream": {"plan": FAST_TRAINER},
    "GPUs in turn": {
        "staleness": {}, "algorithm": BASE["algorithm"] | {"mode": "colocated_sync"},
        "plan": {**FAST_TRAINER, "generator_gpus": 32},
    },
    "judge on GPUs": {"reward": JUDGE, "plan": {**FAST_TRAINER, "reward_gpus": 8}},
    "prefill apart": {
        "engine": BASE["engine"] | {"disaggregation": "always"},
        "plan": {**FAST_TRAINER, "generator_gpus": 24, "prefill_gpus": 8},
    },
    "on demand": {
        "hardware": BASE["hardware"] | {"billing": "on_demand"}, "plan": FAST_TRAINER,
    },
}  # fmt: skip


@pytest.mark.parametrize("what", SPENT)
def test_uses_are_what_the_plan_pays(what: str) -> None:
    plan = allocator.evaluate(from_dict(BASE | SPENT[what]), with_intervals=False)
    assert plan.prediction is not None
    uses = gpu_uses(PlanData(what, plan.to_dict()))
    spent = plan.prediction.spending
    assert {use for use in uses if uses[use].usd_per_hour > 0.0} == set(uses)
    assert all(use.usd_per_gpu_hour == pytest.approx(2.0) for use in uses.values())
    assert sum(use.usd_per_hour for use in uses.values()) == pytest.approx(
        plan.prediction.usd_per_hour - spent.sandboxes - spent.reward_api, rel=ROUNDING
    )
    assert ("reward" in uses) == (what == "judge on GPUs")
    assert ("unused" in uses) == (what not in ("on demand", "judge on GPUs"))
    together = uses["trainer"].usd_per_hour + uses["generator"].usd_per_hour
    assert together == pytest.approx(spent.trainer + spent.generator, rel=ROUNDING)
    split = allocator.compare(plan, plan).term("split")
    assert split.measure("prefill_gpus").a == (8 if what == "prefill apart" else 0)
