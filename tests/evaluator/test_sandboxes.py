"""Sandboxes in every mode: start-up by concurrency, losses, dollars, quota; by hand, to 1e-9."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import allocator
from allocator.scenario.load import from_dict
from tests.evaluator.equal_lengths import (
    Case,
    Sandboxes,
    assert_agrees,
    decisions_of,
    scenario_of,
    told,
)

MODES = ("colocated_sync", "disaggregated_sync", "one_step_off", "async")
TABLE = ((100.0, 6.0), (400.0, 18.0), (1000.0, 90.0))
BOXED = Case(turns=3, tool_tokens=100.0, tool_s=2.0)
VARIANTS = {
    "constant start": Sandboxes(),
    "start by concurrency": Sandboxes(start_s=TABLE),
    "two each, paid": Sandboxes(start_s=TABLE, per_rollout=2, usd_per_hour=0.05),
    "below the table": Sandboxes(start_s=((1000.0, 6.0), (2000.0, 60.0))),
    "beyond the table": Sandboxes(start_s=((10.0, 6.0), (20.0, 33.0))),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", VARIANTS)
def test_agrees(mode: str, name: str, tmp_path: Path) -> None:
    assert_agrees(replace(BOXED, mode=mode, sandboxes=VARIANTS[name]), tmp_path)


@pytest.mark.parametrize("lost", [((1.0, 0.2),), ((100.0, 0.0), (500.0, 0.4))])
@pytest.mark.parametrize("oversampling", [1.0, 1.25])
def test_a_stream_with_losses(
    lost: tuple[tuple[float, float], ...], oversampling: float, tmp_path: Path
) -> None:
    boxes = Sandboxes(start_s=TABLE, lost=lost, usd_per_hour=0.1)
    assert_agrees(
        replace(BOXED, mode="async", sandboxes=boxes, oversampling=oversampling), tmp_path
    )


def test_losses_by_hand(tmp_path: Path) -> None:
    """A fifth is lost, on average half written: .1 of .9 of what is written is thrown away."""
    boxes = Sandboxes(start_s=((1.0, 10.0),), lost=((1.0, 0.2),))
    plan = told(replace(BOXED, mode="async", sandboxes=boxes), tmp_path)
    assert plan.environment.failed_rollouts_fraction == pytest.approx(0.2, rel=1e-12)
    assert plan.token_fate.failed == pytest.approx(0.1 / 0.9, rel=1e-12)
    kept = plan.accepted_samples_per_s / plan.generated_samples_per_s
    # One attempt and three more: .0016 are given up, the others need 1.248 attempts on average.
    assert kept == pytest.approx(0.8 / (1 - 0.2**4), rel=1e-9)


@pytest.mark.parametrize("mode", MODES[:3])
def test_start_is_paid_once_a_batch(mode: str, tmp_path: Path) -> None:
    """256 sandboxes start in 6 + 12 x 156/300 = 12.24 s, for all rollouts at once."""
    case = replace(BOXED, mode=mode)
    boxed = told(replace(case, sandboxes=Sandboxes(start_s=TABLE)), tmp_path)
    assert boxed.environment.sandbox_start_s == pytest.approx(12.24, rel=1e-12)
    bare = told(case, tmp_path)
    assert boxed.generation_s - bare.generation_s == pytest.approx(12.24, rel=1e-9)


def test_paid_while_they_run(tmp_path: Path) -> None:
    """Between batches no sandbox runs; in a stream all of them always do."""
    boxes = Sandboxes(usd_per_hour=0.05)
    turn = told(replace(BOXED, sandboxes=boxes), tmp_path)
    running = turn.generation_s / turn.step_s
    assert turn.environment.sandbox_usd_per_hour == pytest.approx(256 * 0.05 * running, rel=1e-9)
    stream = told(replace(BOXED, mode="async", sandboxes=boxes), tmp_path)
    # Of 64 places on each of 4 engines half a group less one are empty: 60.5.
    assert stream.environment.sandbox_usd_per_hour == pytest.approx(242 * 0.05, rel=1e-9)


@pytest.mark.parametrize("mode", ["disaggregated_sync", "async"])
@pytest.mark.parametrize(("quota", "holds"), [(511, False), (512, True)])
def test_quota_holds_for_all_that_may_run(
    mode: str, quota: int, holds: bool, tmp_path: Path
) -> None:
    """Not for the mean (484 in a stream): 2 sandboxes for each of 256 rollouts."""
    case = replace(BOXED, mode=mode, sandboxes=Sandboxes(per_rollout=2))
    data = scenario_of(case, tmp_path)
    data["sandbox"]["max_concurrent"] = quota
    plan = allocator.evaluate(from_dict(data, directory=tmp_path), **decisions_of(case))
    (limit,) = (one for one in plan.limits if one.name == "sandbox_quota")
    assert (limit.value, limit.limit, limit.holds) == (512.0, quota, holds)
    assert plan.status == ("feasible" if holds else "infeasible")


def test_timeout_beyond_every_rollout_changes_nothing(tmp_path: Path) -> None:
    case = replace(BOXED, mode="async", sandboxes=Sandboxes(start_s=TABLE))
    found = []
    for timeout in (None, 1e5):
        data = scenario_of(case, tmp_path)
        data["sandbox"]["timeout_s"] = timeout
        plan = allocator.evaluate(from_dict(data, directory=tmp_path), **decisions_of(case))
        assert plan.prediction is not None
        found.append(plan.prediction)
    assert found[0].step_s == pytest.approx(found[1].step_s, rel=1e-12)
    assert found[1].token_fate.failed == 0.0


@pytest.mark.parametrize("mode", MODES[:3])
@pytest.mark.parametrize("case", [BOXED, Case(cap=128), Case(cap=128, oversampling=1.25)])
@pytest.mark.parametrize("lost", [((1.0, 0.2),), ((1.0, 0.001),), ((100.0, 0.0), (500.0, 0.4))])
def test_a_batch_with_losses(
    mode: str, case: Case, lost: tuple[tuple[float, float], ...], tmp_path: Path
) -> None:
    boxes = Sandboxes(start_s=TABLE, lost=lost, usd_per_hour=0.1)
    assert_agrees(replace(case, mode=mode, sandboxes=boxes), tmp_path)


def test_a_batch_waits_for_what_is_started_again(tmp_path: Path) -> None:
    """Of 256 some 51 are lost at a random moment, the last near the end, and begin anew.

    With equal lengths the batch then takes all but twice as long, and longer by what is lost again.
    """
    boxes = Sandboxes(lost=((1.0, 0.2),))
    case = replace(BOXED, cap=128)
    lossless = told(replace(case, sandboxes=Sandboxes()), tmp_path).generation_s
    lossy = told(replace(case, sandboxes=boxes), tmp_path).generation_s
    # An engine that decodes a few sequences alone is faster: 6.05 ms a step instead of 11.5.
    assert lossy > 1.5 * lossless


def test_tools_are_called_again_by_what_is_started_again(tmp_path: Path) -> None:
    """A batch of one rollout that is lost a tenth of the time: .1 + .01 + .001 lives more."""
    case = Case(prompts=1, group=2, engines=1, gpus=1, turns=4, sandboxes=Sandboxes())
    lossy = replace(case, sandboxes=Sandboxes(lost=((1.0, 0.1),)))
    more_s = [
        told(replace(of, tool_s=50.0), tmp_path).step_s - told(of, tmp_path).step_s
        for of in (case, lossy)
    ]
    assert more_s[0] == pytest.approx(200.0, rel=1e-9)
    again = sum(1.0 - (1.0 - 0.1**times) ** 2 for times in (1, 2, 3))
    assert more_s[1] == pytest.approx(200.0 * (1.0 + again), rel=1e-9)
