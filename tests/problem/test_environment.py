"""Sandboxes, what interrupts a run, and GPUs kept as spares."""

from __future__ import annotations

import math
from typing import Any

import pytest

from allocator.problem.build import Problem
from allocator.problem.system import Interruptions, SandboxLaw
from allocator.scenario.errors import ScenarioError
from tests.problem.scenarios import SAME, built, pool, said


def boxed(sandbox: dict[str, Any]) -> Problem:
    return built(said(sandbox={"provider": "custom"} | sandbox))


def law_of(sandbox: dict[str, Any]) -> SandboxLaw:
    found = boxed(sandbox).system.sandbox
    assert found is not None
    return found


def quota_of(problem: Problem) -> list[tuple[str, str]]:
    return [(spec.where, spec.unit) for spec in problem.limits if spec.name == "sandbox_quota"]


# --- sandboxes -----------------------------------------------------------------------------------


def test_without_a_provider_there_are_no_sandboxes() -> None:
    problem = built(said())
    assert problem.system.sandbox is None
    assert quota_of(problem) == []


def test_sandboxes_as_stated() -> None:
    table = {96: 8, 960: 3600}
    law = law_of(
        {
            "per_rollout": 2,
            "max_concurrent": 960,
            "start_s": table,
            "failure_fraction": 0.1,
            "retries": 1,
            "timeout_s": 4000,
            "usd_per_hour": 0.05,
            "credit_usd": 200,
        }
    )
    assert (law.provider, law.per_rollout, law.max_concurrent, law.retries) == (
        "custom",
        2,
        960,
        1,
    )
    # Linear between its points, constant outside.
    assert law.start_s.at([10, 528, 2000]).tolist() == [8, 1804, 3600]
    assert law.failure_fraction.at([10, 1000]).tolist() == [0.1, 0.1]
    assert (law.timeout_s, law.usd_per_hour, law.credit_usd) == (4000, 0.05, 200)
    names = {entry.name for entry in boxed({"start_s": table}).provenance}
    assert {"sandbox.start_s[96]", "sandbox.start_s[960]"} <= names


def test_what_is_not_stated_limits_nothing() -> None:
    law = law_of({})
    assert (law.max_concurrent, law.timeout_s, law.credit_usd) == (math.inf,) * 3
    assert law.start_s.at(1000) == 8
    assert quota_of(boxed({})) == []


@pytest.mark.parametrize(
    ("stated", "quota", "where"),
    [
        ({"max_concurrent": 64}, 64, "sandbox.max_concurrent"),
        # 96 cores for 2 each: 48. 512 GiB for 16: 32.
        ({"host": {"cpus": 96}, "cpus": 2}, 48, "sandbox.host"),
        (
            {"host": {"cpus": 96, "memory_gib": 512}, "cpus": 2, "memory_gib": 16},
            32,
            "sandbox.host",
        ),
        ({"host": {"cpus": 96}, "cpus": 2, "max_concurrent": 40}, 40, "sandbox.max_concurrent"),
        ({"host": {"cpus": 96}, "cpus": 2, "max_concurrent": 80}, 48, "sandbox.host"),
    ],
)
def test_a_quota_is_a_named_limit(stated: dict[str, Any], quota: float, where: str) -> None:
    problem = boxed({"provider": "local"} | stated)
    assert problem.system.sandbox is not None
    assert problem.system.sandbox.max_concurrent == quota
    assert quota_of(problem) == [(where, "sandbox")]


def warned(problem: Problem) -> set[str]:
    return {warning.code for warning in problem.warnings}


def test_a_provider_stands_in_for_quota_and_price_alone() -> None:
    needs = {"cpus": 2, "memory_gib": 4}
    problem = boxed({"provider": "e2b"} | needs)
    law = problem.system.sandbox
    assert law is not None
    # 2 x 0.0504 + 4 x 0.0162 USD an hour; 1,100 is the most that any plan has.
    assert law.usd_per_hour == pytest.approx(0.1656, rel=SAME)
    assert law.max_concurrent == 1100
    assert quota_of(problem) == [("sandbox.max_concurrent", "sandbox")]
    assert "documented_quota" in warned(problem)
    kinds = {entry.name: entry.kind for entry in problem.provenance}
    assert [kind for name, kind in kinds.items() if name.startswith("sandboxes/e2b.limits")] == [
        "vendor"
    ]
    assert float(law.start_s.at(1000)) == 8
    assert law.timeout_s == math.inf


def test_what_is_stated_wins_over_the_provider() -> None:
    needs = {"cpus": 2, "memory_gib": 4}
    problem = boxed({"provider": "e2b", "usd_per_hour": 0.1, "max_concurrent": 64} | needs)
    law = problem.system.sandbox
    assert law is not None
    assert (law.usd_per_hour, law.max_concurrent) == (0.1, 64)
    assert not {"documented_quota", "sandbox_not_priced"} & warned(problem)
    assert not [e for e in problem.provenance if e.name.startswith("sandboxes/")]


def test_a_limit_on_resources_is_one_on_sandboxes() -> None:
    # The largest tier has 500 vCPUs and 1,000 GiB: 250 sandboxes of 2, 200 of 5 GiB.
    few, fewer = (
        law_of({"provider": "daytona", "cpus": 2, "memory_gib": memory}) for memory in (1, 5)
    )
    assert (few.max_concurrent, fewer.max_concurrent) == (250, 200)


def test_needs_that_are_billed_and_not_stated_are_warned_of() -> None:
    problem = boxed({"provider": "e2b", "cpus": 2})
    assert problem.system.sandbox is not None
    assert problem.system.sandbox.usd_per_hour == pytest.approx(0.1008, rel=SAME)
    assert "sandbox_not_priced" in warned(problem)


def test_sandboxes_that_cannot_work_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"sandbox\.provider: .* custom, modal") as caught:
        boxed({"provider": "e2c"})
    assert (caught.value.given, caught.value.nearest) == ("e2c", "e2b")
    small = {"provider": "local", "host": {"cpus": 4}, "cpus": 3, "per_rollout": 2}
    with pytest.raises(ScenarioError, match=r"sandbox\.host: .* given room for 1"):
        boxed(small)
    with pytest.raises(ScenarioError, match=r"sandbox\.timeout_s: expected more than the 8 s"):
        boxed({"timeout_s": 8})


# --- interruptions -------------------------------------------------------------------------------


def stops(**blocks: Any) -> Interruptions:
    return built(said(**blocks)).system.interruptions


def test_nothing_interrupts_a_run_by_default() -> None:
    found = stops()
    assert (found.evaluation_every_steps, found.checkpoint_every_steps) == (None, None)
    assert found.mtbf_gpu_hours is None


def test_an_evaluation_writes_samples_times_their_mean() -> None:
    evaluation = {"every_steps": 10, "samples": 500}
    assert stops(evaluation=evaluation).evaluation_tokens == pytest.approx(500 * 3000, rel=SAME)
    other = stops(evaluation=evaluation | {"response_tokens": 800})
    assert (other.evaluation_every_steps, other.evaluation_tokens) == (10, 400_000)


def test_failures_fall_back_to_a_checkpoint() -> None:
    failures = {"mtbf_gpu_hours": 50_000, "restart_s": 900}
    checkpoint = {"every_steps": 20, "seconds": 60, "blocks": False}
    found = stops(failures=failures, checkpoint=checkpoint)
    assert (found.mtbf_gpu_hours, found.restart_s) == (50_000, 900)
    assert (found.checkpoint_every_steps, found.checkpoint_s) == (20, 60)
    assert found.checkpoint_blocks is False
    with pytest.raises(ScenarioError, match=r"checkpoint: .* beside failures"):
        stops(failures=failures)


# --- spares --------------------------------------------------------------------------------------


def test_spares_are_no_part_of_what_a_plan_may_use() -> None:
    found = built(said(hardware={"pools": [pool("all", spare_gpus=8)]})).system.pools[0]
    assert (found.gpus, found.spare_gpus, found.unit_gpus) == (24, 8, 8)
    with pytest.raises(ScenarioError, match=r"spare_gpus: expected whole nodes of 8") as caught:
        built(said(hardware={"pools": [pool("all", spare_gpus=6)]}))
    assert caught.value.nearest == "8"
    single = pool("all", spare_gpus=6, granularity="gpu")
    assert built(said(hardware={"pools": [single]})).system.pools[0].gpus == 26
