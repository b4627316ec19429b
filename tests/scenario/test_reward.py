"""The reward: where each type is computed, which keys act there, and what the defaults mean."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import from_dict
from allocator.scenario.schema import Reward

PRICE = {"input": 0.5, "output": 1.5}
JUDGE = {"type": "llm_judge", "model": "qwen3-32b"}


def reward(said: dict[str, Any]) -> Reward:
    return from_dict(
        {
            "model": "qwen3-8b",
            "workload": {"response_tokens": {"mean": 8000, "cv": 0.8}},
            "hardware": {"pools": [{"gpu": "h200-sxm", "gpus": 64}]},
            "budget": {"hours": 24},
            "reward": said,
        }
    ).reward


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({}, "cpu"),
        ({"type": "structured", "workers": 8}, "cpu"),
        ({"type": "dense", "placement": "cpu"}, "cpu"),
        ({"type": "proxy_prm"}, "shared_engine"),
        ({"type": "proxy_prm", "placement": "own_gpus", "model": "qwen3-8b"}, "own_gpus"),
        ({"type": "prm", "model": "qwen3-8b", "hfu": 0.3}, "own_gpus"),
        ({"type": "prm", "model": "qwen3-8b", "usd_per_mtok": PRICE}, "api"),
        (JUDGE, "own_gpus"),
        ({"type": "llm_judge", "usd_per_mtok": PRICE}, "api"),
        (JUDGE | {"usd_per_mtok": PRICE, "max_per_s": 20, "tokens": {"output": 300}}, "api"),
    ],
)
def test_where_a_reward_is_computed(said: dict[str, Any], place: str) -> None:
    assert reward(said).resolved_placement == place


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        ({"type": "sparse"}, 1),
        ({"type": "structured"}, 1),
        ({"type": "dense"}, 6),
        ({"type": "proxy_prm"}, 6),
        ({"type": "prm", "model": "qwen3-8b"}, 1),
        (JUDGE, 1),
        (JUDGE | {"calls": 2.5}, 2.5),
        ({"type": "dense", "calls": 3}, 3),
    ],
)
def test_scoring_calls_of_a_rollout_of_six_turns(said: dict[str, Any], calls: float) -> None:
    assert reward(said).resolved_calls(6) == calls


@pytest.mark.parametrize(
    ("said", "path", "expected", "nearest"),
    [
        ({"type": "sparce"}, "type", "sparse, structured, dense", "sparse"),
        ({"placement": "own_gpu"}, "placement", "cpu, shared_engine, own_gpus", "own_gpus"),
        ({"placement": "api"}, "placement", "cpu, where a reward of type sparse", "cpu"),
        ({"type": "proxy_prm", "placement": "api"}, "placement", "shared_engine or own_gpus",
         "shared_engine"),
        (JUDGE | {"placement": "shared_engine"}, "placement", "own_gpus or api", "own_gpus"),
        ({"type": "prm"}, "model", "type prm on own_gpus", None),
        ({"type": "prm", "usd_per_mtok": PRICE}, "model", "type prm on api", None),
        ({"type": "llm_judge"}, "model", "type llm_judge on own_gpus", None),
        ({"type": "proxy_prm", "placement": "own_gpus"}, "model", "type proxy_prm on own", None),
        ({"type": "llm_judge", "placement": "api"}, "usd_per_mtok", "{input, output}", None),
        ({"type": "llm_judge", "usd_per_mtok": {"input": 1}}, "usd_per_mtok.output",
         "a number >= 0", None),
    ],
)  # fmt: skip
def test_a_reward_has_a_place_and_what_it_needs_there(
    said: dict[str, Any], path: str, expected: str, nearest: str | None
) -> None:
    with pytest.raises(ScenarioError) as caught:
        reward(said)
    error = caught.value
    assert error.path == f"reward.{path}", str(error)
    assert expected in (error.expected or ""), str(error)
    assert error.nearest == nearest, str(error)
    assert error.others == (), str(error)


@pytest.mark.parametrize(
    ("said", "name", "given"),
    [
        ({"model": "qwen3-8b"}, "model", "qwen3-8b"),
        ({"hfu": 0.3}, "hfu", "0.3"),
        ({"type": "dense", "tokens": {"input": 100}}, "tokens", "{input: 100, output: 0}"),
        ({"usd_per_mtok": PRICE}, "usd_per_mtok", "{input: 0.5, output: 1.5}"),
        ({"max_per_s": 5}, "max_per_s", "5"),
        ({"type": "proxy_prm", "model": "qwen3-8b"}, "model", "qwen3-8b"),
        ({"type": "proxy_prm", "cpu_s": 2}, "cpu_s", "2"),
        ({"type": "proxy_prm", "usd_per_mtok": PRICE}, "usd_per_mtok", "{input: 0.5, output: 1.5}"),
        (JUDGE | {"workers": 4}, "workers", "4"),
        (JUDGE | {"max_per_s": 4}, "max_per_s", "4"),
        (JUDGE | {"placement": "own_gpus", "usd_per_mtok": PRICE}, "usd_per_mtok",
         "{input: 0.5, output: 1.5}"),
        ({"type": "llm_judge", "usd_per_mtok": PRICE, "hfu": 0.2}, "hfu", "0.2"),
        ({"hfu": {"value": 0.4, "low": 0.1}}, "hfu", "0.4"),
    ],
)  # fmt: skip
def test_a_key_without_effect_is_refused_by_type_and_place(
    said: dict[str, Any], name: str, given: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        reward(said)
    error = caught.value
    assert error.path == f"reward.{name}", str(error)
    kind = said.get("type", "sparse")
    assert f"no {name}: a reward of type {kind} on " in (error.expected or ""), str(error)
    assert error.given == given


def test_stating_what_holds_anyway_is_harmless() -> None:
    assert reward({"hfu": 0.4, "tokens": {"output": 0}}).resolved_placement == "cpu"
    assert reward({"type": "proxy_prm", "cpu_s": 0}).cpu_s.value == 0


def test_the_share_of_peak_flops_is_an_assumption_with_a_spread() -> None:
    hfu = reward(JUDGE).hfu
    assert (hfu.low, hfu.value, hfu.high, hfu.kind) == (0.25, 0.4, 0.55, "assumed")
