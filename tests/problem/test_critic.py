"""The critic of PPO: what it executes and holds, and its share of a measured MFU."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.problem.system import TrainerKinds
from allocator.scenario.errors import ScenarioError
from tests.problem.scenarios import SAME, built, said, value_of

PPO = {"group_size": 8, "prompts_per_step": 16, "estimator": "ppo"}
GRPO = PPO | {"estimator": "grpo"}


def trainers(algorithm: dict[str, Any], **trainer: Any) -> TrainerKinds:
    return built(said(algorithm=algorithm, trainer=trainer or {"hfu": 0.4})).system.trainers


def test_without_a_name_the_critic_is_as_large_as_the_policy() -> None:
    alone, both = trainers(GRPO), trainers(PPO)
    assert alone.critic is None
    assert both.critic is not None
    assert both.critic.forward == built(said()).system.forward
    # Forward and backward, recomputation; values once a batch.
    passes = both.critic.passes
    assert (passes.update, passes.once, passes.log_probs) == (4, 1, 0)
    assert both.state_bytes == pytest.approx(2 * alone.state_bytes, rel=SAME)
    # The two take turns, and values are no logits.
    assert both.activation_bytes == alone.activation_bytes
    kept = trainers(PPO, hfu=0.4, recomputation="none").critic
    assert kept is not None
    assert kept.passes.update == 3


def test_a_named_critic_is_of_its_own_size() -> None:
    alone, both = trainers(GRPO), trainers(PPO | {"critic": "qwen3-8b"})
    small = value_of("qwen3-8b", "params_total")
    assert both.state_bytes - alone.state_bytes == pytest.approx(18 * small, rel=SAME)
    assert both.critic is not None
    assert both.critic.forward.matmul_params == value_of("qwen3-8b", "params_matmul_active")
    with pytest.raises(ScenarioError) as caught:
        trainers(PPO | {"critic": "qwen3-8c"})
    assert (caught.value.path, caught.value.nearest) == ("algorithm.critic", "qwen3-8b")


def test_adapters_train_the_critic_as_they_train_the_policy() -> None:
    lora = {"training": {"lora_rank": 8}}
    both = trainers(PPO | lora)
    assert both.critic is not None
    # Through a frozen backbone, with recomputation: 1 + 1 + 1 and the adapters' own.
    assert 3.0 < both.critic.passes.update < 3.05
    assert both.state_bytes == pytest.approx(2 * trainers(GRPO | lora).state_bytes, rel=SAME)


def test_a_measured_mfu_holds_the_critic() -> None:
    """5 passes of the policy and 5 of the critic ran in the time that 6N was counted over."""
    grpo, ppo = (trainers(algorithm, mfu=0.1).hfu[0] for algorithm in (GRPO, PPO))
    assert ppo == pytest.approx(2 * grpo, rel=SAME)
    # An assumed utilisation is of runs without one: the critic comes on top.
    assert built(said(algorithm=PPO, trainer={})).system.trainers.hfu[0] == pytest.approx(
        built(said(algorithm=GRPO, trainer={})).system.trainers.hfu[0], rel=SAME
    )
