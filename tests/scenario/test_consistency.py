"""Keys that are legal one by one and contradict each other, or change nothing together."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import from_dict
from allocator.scenario.quantity import Quantity
from allocator.scenario.schema import Mode, Scenario

MODES = get_args(Mode)


def data() -> dict[str, Any]:
    pool = {"gpu": "h200-sxm", "gpus": 64}
    return {
        "model": "qwen3-8b",
        "workload": {"response_tokens": {"mean": 8000, "cv": 0.8}},
        "hardware": {"pools": [{"name": "a", **pool}, {"name": "b", **pool}]},
        "budget": {"hours": 24},
    }


def scenario(said: dict[str, Any]) -> Scenario:
    return from_dict(data(), said)


def refused(said: dict[str, Any], path: str, expected: str) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        scenario(said)
    error = caught.value
    assert error.path == path, str(error)
    assert expected in (error.expected or ""), str(error)
    assert error.others == (), str(error)
    return error


# --- the mode ------------------------------------------------------------------------------------


def test_the_modes_to_choose_from() -> None:
    assert scenario({}).algorithm.modes == ("async",)
    assert scenario({"algorithm.mode": "auto"}).algorithm.modes == MODES
    assert set(MODES) == {"async", "one_step_off", "disaggregated_sync", "colocated_sync"}


def test_only_ppo_has_a_critic() -> None:
    ppo = {"algorithm.estimator": "ppo", "algorithm.group_size": 1}
    assert scenario(ppo).algorithm.critic is None
    critic = {"algorithm.critic": "qwen3-8b"}
    assert scenario(ppo | critic).algorithm.critic == "qwen3-8b"
    refused(critic, "algorithm.critic", "no critic: grpo trains none")


@pytest.mark.parametrize("mode", [*MODES, "auto"])
@pytest.mark.parametrize("name", ["offload_s", "onload_s"])
def test_only_colocated_gpus_change_over(mode: str, name: str) -> None:
    said = {"algorithm.mode": mode, f"algorithm.switch.{name}": 3}
    if mode in ("colocated_sync", "auto"):
        assert getattr(scenario(said).algorithm.switch, name) == Quantity(value=3)
    else:
        refused(said, f"algorithm.switch.{name}", f"in mode {mode}")


@pytest.mark.parametrize("mode", [*MODES, "auto"])
@pytest.mark.parametrize("update", ["drain", "abort", "retract"])
def test_only_async_updates_weights_under_rollouts(mode: str, update: str) -> None:
    said = {"algorithm.mode": mode, "algorithm.weight_update": update}
    if mode in ("async", "auto"):
        assert scenario(said).algorithm.weight_update == update
    else:
        error = refused(said, "algorithm.weight_update", f"in_flight: in mode {mode}")
        assert error.nearest == "in_flight"


@pytest.mark.parametrize("mode", [*MODES, "auto"])
def test_rollouts_resume_where_something_stops_them(mode: str) -> None:
    said = {"algorithm.mode": mode, "algorithm.partial_rollout": True}
    if mode == "async":
        refused(said, "algorithm.partial_rollout", "weight_update: abort")
        said["algorithm.weight_update"] = "abort"
    assert scenario(said).algorithm.partial_rollout
    exclude = {"algorithm.mixed_environment": "exclude"}
    assert scenario(said | exclude).algorithm.mixed_environment == "exclude"
    said["algorithm.partial_rollout"] = False
    refused(said | exclude, "algorithm.mixed_environment", "partial_rollout: true")


@pytest.mark.parametrize("mode", [*MODES, "auto"])
@pytest.mark.parametrize("enforce", ["reject", "admission"])
def test_only_async_has_a_staleness_to_enforce(mode: str, enforce: str) -> None:
    said = {"algorithm.mode": mode, "staleness.limit": 2, "staleness.enforce": enforce}
    if mode in ("async", "auto"):
        assert scenario(said).staleness.enforce == enforce
    else:
        error = refused(said, "staleness.enforce", f"design: in mode {mode}")
        assert error.nearest == "design"
        assert scenario(said | {"staleness.enforce": "design"}).staleness.limit is not None


@pytest.mark.parametrize("mode", [*MODES, "auto"])
def test_only_batches_wait_for_their_scores(mode: str) -> None:
    said = {"algorithm.mode": mode, "reward.overlap": False}
    if mode == "async":
        refused(said, "reward.overlap", "true: in mode async")
    else:
        assert not scenario(said).reward.overlap


# --- pools ---------------------------------------------------------------------------------------


def test_prefill_engines_and_rewards_need_a_pool() -> None:
    roles = {"hardware.pools[a].roles": ["trainer"], "hardware.pools[b].roles": ["decode"]}
    always, judge = {"engine.disaggregation": "always"}, {"reward": {"type": "prm", "model": "m"}}
    scenario(roles | {"engine.disaggregation": "auto"})
    refused(roles | always, "hardware.pools", "a pool with the role prefill, for engine.disagg")
    refused(roles | judge, "hardware.pools", "a pool with the role reward, for a reward on own")
    both = roles | {"hardware.pools[b].roles": ["decode", "prefill", "reward"]}
    scenario(both | always | judge)
    hosted = {"reward": judge["reward"] | {"usd_per_mtok": {"input": 1, "output": 1}}}
    scenario(roles | hosted)


def test_colocated_roles_share_a_pool() -> None:
    roles = {"hardware.pools[a].roles": ["trainer"], "hardware.pools[b].roles": ["decode"]}
    expected = "a pool with the roles trainer and decode"
    refused(roles | {"algorithm.mode": "colocated_sync"}, "hardware.pools", expected)
    auto = roles | {"algorithm.mode": "auto"}
    scenario(auto)
    refused(auto | {"mode": "colocated_sync"}, "hardware.pools", expected)
    apart = {"algorithm.mode": "colocated_sync", "engine.disaggregation": "always"}
    refused(apart, "engine.disaggregation", "GPUs that train and generate in turn prefill on")
    colocated = {"algorithm.mode": "colocated_sync", "trainer_pool": "a"}
    scenario(colocated | {"generator_pool": "a"})
    refused(colocated | {"generator_pool": "b"}, "plan.generator_pool", "a, the trainer_pool")


def test_links_join_two_known_pools_once() -> None:
    link = {"between": ["b", "a"], "gbit_per_s": 400}
    links = scenario({"hardware.links": [link]}).hardware.links
    assert (links[0].between, links[0].gbit_per_s) == (("b", "a"), Quantity(value=400))
    assert scenario({}).hardware.links == ()
    for between in (["a"], ["a", "a"], ["a", "b", "a"], []):
        refused(
            {"hardware.links": [link | {"between": between}]},
            "hardware.links[0].between",
            "the names of two different pools",
        )
    path = "hardware.links[1].between"
    error = refused(
        {"hardware.links": [link, link | {"between": ["a", "B"]}]}, f"{path}[1]", "a pool: a, b"
    )
    assert error.nearest == "b"
    refused({"hardware.links": [link, link | {"between": ["a", "b"]}]}, path, "one link for a pair")
    refused(
        {"hardware.links": [link | {"gbit_per_s": 0}]}, "hardware.links[0].gbit_per_s", "a number >"
    )


def test_some_gpus_of_a_pool_are_in_use() -> None:
    assert scenario({"hardware.pools[a].spare_gpus": 63}).hardware.pools[0].spare_gpus == 63
    path = "hardware.pools[0].spare_gpus"
    refused({path: 64}, path, "a whole number < gpus (64)")
    refused({path: -1}, path, "a whole number >= 0")


# --- fixed decisions -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_fixed_mode_is_one_the_algorithm_allows(mode: str) -> None:
    assert scenario({"algorithm.mode": "auto", "mode": mode}).plan.mode == mode
    assert scenario({"algorithm.mode": mode, "mode": mode}).plan.mode == mode
    other = next(name for name in MODES if name != mode)
    error = refused({"algorithm.mode": mode, "mode": other}, "plan.mode", f"{mode}, the algorithm")
    assert error.nearest == mode
    refused({"algorithm.mode": "auto", "mode": "auto"}, "plan.mode", "async, one_step_off")


@pytest.mark.parametrize(
    ("name", "value"), [("prefill_engines", 2), ("prefill_gpus", 8), ("prefill_pool", "a")]
)
def test_prefill_is_fixed_where_it_has_engines(name: str, value: object) -> None:
    refused({name: value}, f"plan.{name}", "engine.disaggregation: auto or always")
    for choice in ("auto", "always"):
        said = scenario({name: value, "engine.disaggregation": choice})
        assert getattr(said.plan, name) == value


@pytest.mark.parametrize(("name", "value"), [("reward_gpus", 8), ("reward_pool", "a")])
def test_a_reward_is_fixed_where_it_has_gpus(name: str, value: object) -> None:
    refused({name: value}, f"plan.{name}", "a reward on own_gpus")
    refused({name: value, "reward.type": "proxy_prm"}, f"plan.{name}", "a reward on own_gpus")
    said = scenario({name: value, "reward": {"type": "prm", "model": "qwen3-8b"}})
    assert getattr(said.plan, name) == value


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("trainer_pool", "trainer"),
        ("generator_pool", "decode"),
        ("prefill_pool", "prefill"),
        ("reward_pool", "reward"),
    ],
)
def test_a_fixed_pool_has_the_role(name: str, role: str) -> None:
    others = [other for other in ("trainer", "prefill", "decode", "reward") if other != role]
    said = {
        "engine.disaggregation": "always",
        "reward": {"type": "prm", "model": "qwen3-8b"},
        "hardware.pools[a].roles": others,
    }
    assert getattr(scenario(said | {name: "b"}).plan, name) == "b"
    refused(said | {name: "a"}, f"plan.{name}", f"a pool with the role {role}: b")
    assert refused(said | {name: "B"}, f"plan.{name}", f"the role {role}: b").nearest == "b"


# --- interruptions -------------------------------------------------------------------------------


def test_evaluations_checkpoints_and_failures() -> None:
    none = scenario({})
    assert (none.evaluation, none.checkpoint, none.failures) == (None, None, None)
    said = scenario(
        {
            "evaluation": {"every_steps": 20, "samples": 500},
            "checkpoint": {"every_steps": 10, "seconds": 90},
            "failures": {"mtbf_gpu_hours": 5e4, "restart_s": 600},
        }
    )
    assert said.evaluation is not None
    assert said.evaluation.response_tokens is None
    assert said.checkpoint is not None
    assert said.checkpoint.blocks
    assert said.failures is not None
    assert said.failures.mtbf_gpu_hours == Quantity(value=50_000)
    error = refused({"evaluation": {"every_steps": 20}}, "evaluation.samples", "a whole number")
    assert error.given == "nothing"
    refused({"checkpoint": {"every_steps": 0, "seconds": 1}}, "checkpoint.every_steps", ">= 1")
    refused({"failures": {"mtbf_gpu_hours": 0, "restart_s": 0}}, "failures.mtbf_gpu_hours", "> 0")
