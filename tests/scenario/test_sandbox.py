"""Sandboxes: tables by concurrency, needs and hosts, and nothing without a provider."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.scenario.dump import dump
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import from_dict, loads, override
from allocator.scenario.quantity import Quantity
from allocator.scenario.schema import Scenario

LOCAL = {"provider": "local"}


def scenario(sandbox: dict[str, Any]) -> Scenario:
    return from_dict(
        {
            "model": "qwen3-8b",
            "workload": {"response_tokens": {"mean": 8000, "cv": 0.8}},
            "hardware": {"pools": [{"gpu": "h200-sxm", "gpus": 64}]},
            "budget": {"hours": 24},
            "sandbox": sandbox,
        }
    )


def test_there_are_none_unless_asked_for() -> None:
    assert not scenario({}).sandbox.used
    assert scenario(LOCAL).sandbox.used
    start = scenario(LOCAL).sandbox.start_s
    assert isinstance(start, Quantity)
    assert (start.value, start.kind) == (8, "assumed")
    # As the interface writes it: every key with its default.
    stated = {"provider": "none", "per_rollout": 1, "start_s": 8, "failure_fraction": 0}
    assert not scenario(stated | {"usd_per_hour": 0, "retries": 3}).sandbox.used


def starts(said: Scenario) -> object:
    return said.sandbox.start_s


def test_a_table_is_pairs_in_ascending_order() -> None:
    said = scenario(LOCAL | {"start_s": {960: 3600, 8: 2, 64.5: 20}})
    assert starts(said) == ((8, 2), (64.5, 20), (960, 3600))
    assert loads(dump(said)) == said
    fewer = scenario(LOCAL | {"failure_fraction": {200: 0.05, 100: 0.15}}).sandbox
    assert fewer.failure_fraction == ((100.0, 0.15), (200.0, 0.05))
    shorter = override(said, {"sandbox.start_s[960]": 60})
    assert starts(shorter) == ((8, 2), (64.5, 20), (960, 60))
    wider = override(shorter, {"sandbox.start_s[2000]": 90})
    assert starts(wider) == ((8, 2), (64.5, 20), (960, 60), (2000, 90))
    assert starts(override(wider, {"sandbox.start_s": 5})) == Quantity(value=5)


@pytest.mark.parametrize(
    ("said", "path", "expected", "given"),
    [
        ({"start_s": {0: 3}}, "start_s[0]", "a concurrency > 0", "0"),
        ({"start_s": {"many": 3}}, "start_s.many", "a concurrency > 0", "many"),
        ({"start_s": {"nan": 3}}, "start_s.nan", "a concurrency > 0", '"nan"'),
        ({"start_s": {float("inf"): 3}}, "start_s.inf", "a concurrency > 0", "inf"),
        ({"start_s": {True: 3}}, "start_s.True", "a concurrency > 0", "true"),
        ({"start_s": {8: -1}}, "start_s[8]", "a number >= 0", "-1"),
        ({"start_s": {8: "3"}}, "start_s[8]", "a number >= 0", '"3"'),
        ({"start_s": {8: 1, "8": 2}}, "start_s[8]", "each concurrency once", "8"),
        ({"start_s": {}}, "start_s", "a block of concurrency: seconds, 1 or more", "{}"),
        ({"start_s": [1, 2]}, "start_s", "a number >= 0 or a block of concurrency", "[1, 2]"),
        ({"start_s": "slow"}, "start_s", "a number >= 0 or a block of concurrency", "slow"),
        ({"start_s": -1}, "start_s", "a number >= 0 or a block of concurrency", "-1"),
        ({"failure_fraction": 1}, "failure_fraction", "a number in [0, 1) or a block", "1"),
        ({"failure_fraction": {8: 1}}, "failure_fraction[8]", "a number in [0, 1)", "1"),
        ({"retries": -1}, "retries", "a whole number >= 0", "-1"),
        ({"timeout_s": 0}, "timeout_s", "a number > 0", "0"),
        ({"per_rollout": 3, "max_concurrent": 2}, "max_concurrent", ">= per_rollout (3)", "2"),
        ({"cpus": 2, "host": {"memory_gib": 512}}, "memory_gib", "beside host.memory_gib", "null"),
        ({"host": {"cpu": 3}}, "host.cpu", "one of the keys cpus, memory_gib", "cpu"),
    ],
)
def test_a_wrong_sandbox(said: dict[str, Any], path: str, expected: str, given: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(LOCAL | said)
    error = caught.value
    assert error.path == f"sandbox.{path}", str(error)
    assert expected in (error.expected or ""), str(error)
    assert error.given == given, str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("per_rollout", 2),
        ("max_concurrent", 9),
        ("start_s", 9),
        ("start_s", {"value": 8, "low": 1}),
        ("start_s", {8: 3}),
        ("failure_fraction", 0.1),
        ("retries", 0),
        ("timeout_s", 3),
        ("usd_per_hour", 0.1),
        ("credit_usd", 3),
        ("cpus", 2),
        ("memory_gib", 2),
        ("disk_gib", 2),
        ("host", {"cpus": 64}),
    ],
)
def test_no_key_acts_without_a_provider(name: str, value: Any) -> None:
    with pytest.raises(ScenarioError, match=f"expected no {name}: provider: none") as caught:
        scenario({name: value})
    assert caught.value.path == f"sandbox.{name}"


def test_a_host_runs_local_sandboxes_only() -> None:
    needs = {"cpus": 2, "memory_gib": 4, "host": {"cpus": 128, "memory_gib": 1024}}
    host = scenario(LOCAL | needs).sandbox.host
    assert host is not None
    assert host.cpus == Quantity(value=128)
    with pytest.raises(ScenarioError, match="no host: provider custom") as caught:
        scenario(needs | {"provider": "custom"})
    assert caught.value.path == "sandbox.host"
