from __future__ import annotations

from dataclasses import replace

import pytest

from allocator.plan import Availability, Plan, Provenance
from allocator.report.content import plan_content
from allocator.report.facts import gpu_hour_usd
from allocator.report.tree import Facts, Histogram, Notices, Sentence, Stack, Table
from tests.report.plans import (
    ENVIRONMENT,
    FATE,
    broken_plan,
    good_plan,
    infeasible_plan,
    prediction,
    scenario,
    two_pool_plan,
    warning_rich_plan,
)


def texts(plan: Plan, name: str) -> str:
    """Return everything one section says, as one text."""
    section = plan_content(plan).section(name)
    assert section is not None, name
    said: list[str] = []
    for block in section.blocks:
        match block:
            case Facts() | Notices():
                said += [f"{f.label} {f.value} {f.unit} {f.note}" for f in block.items]
            case Sentence():
                said.append(block.text)
            case Table():
                said += [" ".join(row) for row in block.rows]
            case Stack():
                said += [f"{part.label} {part.text}" for part in block.parts] + [block.note]
            case Histogram():
                said.append(block.limit_text)
    return "\n".join(said)


def test_headline_has_the_objective_in_its_own_words_with_interval() -> None:
    report = plan_content(good_plan())
    assert report.headline == "$4.27 per million useful tokens [$3.71, $5.02] (80% interval)"
    assert report.status == "optimal"
    assert "gap 0%" in report.note


def test_split_names_who_gets_what() -> None:
    said = texts(good_plan(), "split")
    for part in ("trainer 64", "generator 192", "idle 0", "256 h200-sxm (pool h200)",
                 "24 x 8 GPUs, TP8 EP8", "88 in flight each (2,112)",
                 "oversampling 1.6"):  # fmt: skip
        assert part in said


def test_what_surrounds_the_engines_is_said_where_there_is_any() -> None:
    assert plan_content(good_plan()).section("outside") is None
    around = replace(
        ENVIRONMENT,
        tool_s=36.0,
        sandboxes=296.0,
        sandbox_start_s=412.0,
        failed_rollouts_fraction=0.043,
        reward_s=9.5,
        rewards_per_s=2.25,
        reward_usd_per_hour=3.2,
        prefills_per_s=4.0,
        kv_transfer_s=0.7,
    )
    stops = Availability(0.9, 0.04, 0.02, 0.03, 0.01)
    found = replace(prediction(), environment=around, availability=stops)
    said = texts(replace(good_plan(), prediction=found), "outside")
    for part in ("tools 36.0 s a rollout", "sandboxes 296 start in 412 s", "lost attempts 4.30%",
                 "rewards 2.25 a second at most", "reward API $3.20", "KV transfer 0.700",
                 "productive 90.0%", "evaluation 4.00%",
                 "checkpoints 2.00%, restarts 3.00%"):  # fmt: skip
        assert part in said, said


def test_two_pools_are_told_apart_and_idle_gpus_of_each_are_shown() -> None:
    said = texts(two_pool_plan(), "split")
    for part in ("trainer gb300-nvl72 64", "generator h200-sxm 192", "idle h200-sxm 64",
                 "idle gb300-nvl72 8"):  # fmt: skip
        assert part in said


def test_the_waiting_side_is_priced() -> None:
    # 64 GPUs x $1.59 x (1 - 1.93/2.75)
    assert "waits 29.8% of the time: 64 GPUs idle, $30.3 of $407/h" in texts(good_plan(), "rates")


def test_the_waiting_side_is_priced_at_its_own_pool() -> None:
    # 64 GPUs x $3.20 x (1 - 1.93/2.75)
    assert "$61.1 of $407/h" in texts(two_pool_plan(), "rates")


def test_price_comes_from_provenance_or_the_bill_when_the_scenario_only_names_a_survey() -> None:
    known = scenario()
    known["hardware"]["pools"][0]["price"] = {"kind": "rental", "vintage": "2026-07"}
    looked_up = Provenance("prices.h200-sxm.rental.survey", 2.05, "USD/GPU-hour", "measured", "")
    assert gpu_hour_usd(
        good_plan(scenario=known, provenance=(looked_up,)), "h200", "h200-sxm"
    ) == pytest.approx(2.05)
    assert gpu_hour_usd(good_plan(scenario=known, provenance=()), "h200", "h200-sxm") == (
        pytest.approx(1.59)
    )


def test_without_any_price_the_wait_is_still_told() -> None:
    known = scenario()
    known["hardware"]["pools"].append({"name": "other", "gpu": "b200", "gpus": 8, "price": {}})
    known["hardware"]["pools"][0]["price"] = {"kind": "rental", "vintage": "2026-07"}
    said = texts(good_plan(scenario=known, provenance=()), "rates")
    assert "waits 29.8% of the time: 64 GPUs idle." in said


def test_balanced_sides_do_not_wait() -> None:
    calm = replace(
        prediction(), trainer_wait_fraction=0.0, token_fate=replace(FATE, dropped_overflow=0.0)
    )
    assert texts(good_plan(prediction=calm), "rates").endswith("Neither side waits for the other.")


def test_what_binds_is_a_sentence_with_limits() -> None:
    said = texts(good_plan(), "binds")
    assert "Decoding on the generator's engines is the slow side." in said
    assert "KV memory is full" in said
    assert "binds gpu_pool_h200 256 of 256" in said
    assert "staleness_mean" not in said


@pytest.mark.parametrize("name", ["trainer", "reward", "something new"])
def test_every_bottleneck_gets_a_sentence(name: str) -> None:
    said = texts(
        good_plan(prediction=replace(prediction(), bottleneck=name, cause="none")), "binds"
    )
    assert name.split(maxsplit=1)[0] in said.lower()


def test_staleness_stands_against_its_limit() -> None:
    said = texts(good_plan(), "staleness")
    for part in ("mean 3.82 [3.10, 4.60]", "p50 4", "p95 7", "mean <= 4", "limit 4 on the mean"):
        assert part in said


def test_a_bound_on_the_maximum_that_nothing_enforces_is_told() -> None:
    known = scenario() | {"staleness": {"limit": 16, "metric": "max", "enforce": "reject"}}
    assert "max <= 16  reject; not bounded" in texts(good_plan(scenario=known), "staleness")


def test_a_table_that_does_not_reach_its_median_is_not_drawn() -> None:
    stale = replace(prediction().staleness, cdf=(0.0, 1.0))
    plan = good_plan(prediction=replace(prediction(), staleness=stale))
    assert "limit 4 on the mean" not in texts(plan, "staleness")


def test_the_histogram_holds_all_of_the_distribution() -> None:
    section = plan_content(good_plan()).section("staleness")
    assert section is not None
    chart = section.blocks[1]
    assert isinstance(chart, Histogram)
    assert sum(chart.shares) == pytest.approx(1, abs=0.005)
    assert chart.labels[0] == "1"


def test_a_long_tail_is_gathered_in_the_last_bin() -> None:
    stale = replace(prediction().staleness, cdf=tuple(1 - 0.97**k for k in range(400)))
    section = plan_content(good_plan(prediction=replace(prediction(), staleness=stale))).section(
        "staleness"
    )
    assert section is not None
    chart = section.blocks[1]
    assert isinstance(chart, Histogram)
    assert chart.open_ended
    assert chart.labels[-1].endswith("+")
    assert sum(chart.shares) == pytest.approx(1)


def test_token_fates_sum_to_a_hundred_percent() -> None:
    section = plan_content(good_plan()).section("tokens")
    assert section is not None
    stack = section.blocks[0]
    assert isinstance(stack, Stack)
    assert sum(float(part.text.rstrip("%")) for part in stack.parts) == pytest.approx(100)


def test_cost_is_per_useful_and_per_trained_token_per_hour_and_run() -> None:
    said = texts(good_plan(), "cost")
    for part in ("useful Mtok $4.27 [3.71, 5.02]", "trained Mtok $3.20", "per hour $407",
                 "run $30,000", "hours 73.7 [126, 170]", "steps 1,000"):  # fmt: skip
        assert part in said


def test_update_fraction_stands_beside_the_published_peak_and_its_source() -> None:
    said = texts(good_plan(), "compute")
    for part in ("update fraction 0.412", "published peak 0.72", "Wilhelm & Kao 2026", "prior",
                 "MFU busy 10.5%", "MFU wall 7.36%"):  # fmt: skip
        assert part in said


def test_the_peak_is_not_held_against_other_rewards() -> None:
    known = scenario() | {"reward": {"type": "prm"}}
    assert "0.72" not in texts(good_plan(scenario=known), "compute")


def test_numbers_are_counted_by_kind() -> None:
    assert texts(good_plan(), "numbers") == ("2 measured, 2 vendor, 1 fitted, 1 assumed, 1 stated.")


def test_broken_limits_come_first_with_the_word() -> None:
    report = plan_content(broken_plan())
    assert report.sections[0].name == "broken"
    said = texts(broken_plan(), "broken")
    assert "BROKEN staleness_mean 9.21, at most 4 versions" in said
    assert "BROKEN kv_memory 62.1004, at most 62.1 GiB" in said
    assert report.status == "BROKEN: 2 limits"
    assert report.note.startswith("Evaluated as configured")


def test_an_infeasible_scenario_says_why_and_what_would_help() -> None:
    plan = infeasible_plan()
    assert plan_content(plan).status == "INFEASIBLE"
    assert "budget_hours, gpu_pool_h200" in texts(plan, "conflict")
    assert "kv_memory" in texts(plan, "unmet")
    assert "budget_hours 72 -> 142 h +95.9% budget.hours" in texts(plan, "to fix")
    assert "BROKEN budget_hours 141, at most 72 h" in texts(plan, "nearest")


def test_no_single_change_is_said() -> None:
    plan = infeasible_plan()
    assert plan.infeasibility is not None
    alone = replace(plan.infeasibility, relaxations=(), nearest=None)
    assert "No change of a single limit" in texts(replace(plan, infeasibility=alone), "to fix")


def test_warnings_keep_code_text_and_place() -> None:
    said = texts(warning_rich_plan(), "warnings")
    assert said.count("measure it first") == 9
    assert "price_vintage" in said
    assert "engine.rates[8]" in said


def test_a_plan_stopped_at_a_limit_says_so() -> None:
    plan = good_plan(status="feasible", objective=replace(good_plan().objective, gap=0.043))
    report = plan_content(plan)
    assert report.note.startswith("Best plan found, not proven best; bound $4.25")
    assert "gap 4.30%" in report.note


def test_a_scenario_that_says_little_still_reads() -> None:
    report = plan_content(good_plan(scenario={}, intervals={}, provenance=(), limits=()))
    assert report.title == "unnamed scenario"
    assert "No limit binds." in texts(good_plan(limits=()), "binds")
