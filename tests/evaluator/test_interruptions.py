"""Evaluations, checkpoints, failures and spares in every mode; by hand, to 1e-9."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluator.equal_lengths import Case, assert_agrees, told

MODES = ("colocated_sync", "disaggregated_sync", "one_step_off", "async")
VARIANTS = {
    "evaluation": Case(evaluation=(20, 500)),
    "evaluation beside a full queue": Case(evaluation=(4, 300), queue=4, gpus=2),
    "evaluation beside a queue too short": Case(evaluation=(2, 2000), queue=2, gpus=2),
    "checkpoint that blocks": Case(checkpoint=(10, 45.0, True)),
    "checkpoint beside": Case(checkpoint=(10, 45.0, False)),
    "failures": Case(checkpoint=(10, 45.0, True), failures=(4000.0, 600.0)),
    "failures, checkpoint beside": Case(checkpoint=(25, 45.0, False), failures=(400.0, 600.0)),
    "everything": Case(
        evaluation=(20, 500), checkpoint=(10, 30.0, True), failures=(900.0, 300.0), on_demand=True
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", VARIANTS)
def test_agrees(mode: str, name: str, tmp_path: Path) -> None:
    found = assert_agrees(replace(VARIANTS[name], mode=mode), tmp_path).availability
    shares = (found.productive, found.evaluation, found.checkpoint, found.restart, found.redone)
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-12)


def test_steps_do_not_change_but_the_run_does(tmp_path: Path) -> None:
    bare = told(Case(), tmp_path)
    stopped = told(Case(checkpoint=(10, 80.0, True)), tmp_path)
    assert stopped.step_s == bare.step_s
    # 8 s more a step, whoever pays for them.
    stretch = 1 + 8.0 / bare.step_s
    assert stopped.run.hours == pytest.approx(bare.run.hours * stretch, rel=1e-12)
    assert stopped.usd_per_useful_mtok == pytest.approx(bare.usd_per_useful_mtok * stretch)
    assert stopped.usd_per_hour == bare.usd_per_hour


def test_failures_by_the_gpus_in_use(tmp_path: Path) -> None:
    """8 GPUs and 1,000 GPU-hours between failures: one in 125 hours of work.

    Each costs the restart and, to first order, half of the ten steps between two checkpoints.
    """
    bare = told(Case(), tmp_path)
    failing = told(Case(checkpoint=(10, 0.0, True), failures=(1000.0, 900.0)), tmp_path)
    lost_s = 900.0 + 5 * bare.step_s
    expected = 1 + lost_s / (125 * 3600)
    assert failing.run.hours / bare.run.hours == pytest.approx(expected, rel=1e-5)


def test_queue_bridges_an_evaluation(tmp_path: Path) -> None:
    """A stream with more batches than it needs trains on from its queue; in turn nothing can."""
    stream = told(Case(mode="async", evaluation=(8, 200), queue=4, gpus=2), tmp_path)
    assert stream.load > 1.0
    assert stream.availability.evaluation == 0.0
    turn = told(Case(evaluation=(8, 200), gpus=2), tmp_path)
    assert turn.availability.evaluation > 0.0
