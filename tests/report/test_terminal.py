from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from allocator.plan import Plan
from allocator.report.terminal import compare_view, plan_view
from tests.report.plans import (
    broken_plan,
    good_plan,
    infeasible_plan,
    prediction,
    scenario,
    two_pool_plan,
    warning_rich_plan,
)

PLANS: list[Callable[[], Plan]] = [
    good_plan,
    broken_plan,
    infeasible_plan,
    warning_rich_plan,
    two_pool_plan,
]


def shown(view: object, width: int = 100, encoding: str = "utf-8", colour: bool = False) -> str:
    """Return what a console of that width and encoding prints."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=stream, width=width, force_terminal=colour, highlight=False, markup=False, emoji=False,
        color_system="truecolor" if colour else None,
    )  # fmt: skip
    console.print(view)
    stream.seek(0)
    return stream.read()


@pytest.mark.parametrize("build", PLANS)
def test_it_fits_a_screen(build: Callable[[], Plan]) -> None:
    lines = shown(plan_view(build())).splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("build", PLANS)
def test_narrow_terminals_lose_nothing_over_the_edge(build: Callable[[], Plan], width: int) -> None:
    assert max(map(len, shown(plan_view(build()), width).splitlines())) <= width


@pytest.mark.parametrize("build", PLANS)
def test_ascii_terminals_get_ascii(build: Callable[[], Plan]) -> None:
    assert shown(plan_view(build()), encoding="ascii").isascii()


def test_the_bar_is_to_scale() -> None:
    bar = next(line for line in shown(plan_view(good_plan())).splitlines() if "\u2588" in line)
    assert bar.count("\u2593") == pytest.approx(3 * bar.count("\u2588"), abs=3)


def test_nothing_is_said_by_colour_alone() -> None:
    plain = shown(plan_view(broken_plan()))
    assert plain.count("BROKEN") >= 4
    assert "\x1b" not in plain
    assert "\x1b" in shown(plan_view(broken_plan()), colour=True)


def test_adjacent_parts_of_a_bar_differ_without_colour() -> None:
    fate = replace(
        prediction().token_fate, rejected_stale=0.0, oversampled=0.0, no_signal=0.4, useful=0.5,
        dropped_overflow=0.05, failed=0.05,
    )  # fmt: skip
    text = shown(plan_view(good_plan(prediction=replace(prediction(), token_fate=fate))))
    bar = next(line for line in text.splitlines() if line.startswith("tokens"))
    assert len(set(bar.removeprefix("tokens").strip())) == 4


def test_a_name_cannot_play_with_the_terminal() -> None:
    plan = good_plan(scenario=scenario("evil \x1b[31m[bold]name[/bold]\nsecond"))
    text = shown(plan_view(plan))
    assert "\x1b" not in text
    assert "[bold]name[/bold] second" in text


def test_every_warning_is_at_least_named() -> None:
    text = " ".join(shown(plan_view(warning_rich_plan())).split())
    for warning in warning_rich_plan().warnings:
        assert warning.code in text
    assert "more in the JSON" in text


def test_few_warnings_are_shown_whole() -> None:
    text = " ".join(shown(plan_view(good_plan())).split())
    for warning in good_plan().warnings:
        assert warning.text in text


def test_numbers_that_are_not_finite_do_not_stop_the_view() -> None:
    sick = replace(
        prediction(), usd_per_useful_mtok=float("inf"), trained_samples_per_s=0.0,
        accepted_samples_per_s=float("nan"),
    )  # fmt: skip
    text = shown(plan_view(good_plan(prediction=sick, intervals={})))
    assert "infinite" in text
    assert "n/a" in text


def test_comparison_has_both_plans_line_by_line() -> None:
    names = ("as configured in plan:", "solved")
    text = shown(compare_view(broken_plan(), good_plan(), names))
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "trained, samples/s 1.50 1.93 +28.7%" in lines
    assert "staleness, mean 9.21 3.82 -58.5%" in lines
    assert "BROKEN as configured in plan: staleness_mean, kv_memory." in lines
    assert "solved: $4.27 per million useful tokens; as configured in plan: $5.49 (-22.3%," in lines
    assert max(map(len, text.splitlines())) <= 80


def test_comparison_with_a_plan_that_has_no_prediction() -> None:
    text = shown(compare_view(infeasible_plan(), good_plan(), ("a", "b")))
    assert "n/a" in text


def test_a_plan_draws_itself() -> None:
    assert "Qwen3-235B-Thinking" in shown(good_plan())
