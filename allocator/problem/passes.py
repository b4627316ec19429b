"""What is trained: the policy or its adapters, and the critic of PPO, in forward passes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from allocator.physics.trainer import Passes, executed_passes
from allocator.problem.model_facts import ModelFacts, catalogue_model
from allocator.problem.system import Critic

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.schema import Scenario


def policy_passes(scenario: Scenario, model: ModelFacts) -> Passes:
    """Forward-equivalents of the policy, of its reference model and of its log-probabilities."""
    return executed_passes(
        recompute_activations=scenario.trainer.recomputation == "full",
        recompute_log_probs=scenario.algorithm.old_log_probs == "recompute",
        reference_model=scenario.algorithm.reference_model,
        adapter_share=_adapter_share(scenario, model),
    )


def critic_model(
    scenario: Scenario, catalogue: Catalogue, policy: ModelFacts, ledger: Ledger
) -> ModelFacts | None:
    """Return the value model of PPO: the one named, else one like the policy; None without PPO."""
    if scenario.algorithm.estimator != "ppo":
        return None
    name = scenario.algorithm.critic
    if name is None:
        return policy
    return catalogue_model(scenario, catalogue, ledger, "algorithm.critic", name)


def critic_law(scenario: Scenario, model: ModelFacts) -> Critic:
    """Passes of the critic: trained as the policy is, and its values read once a batch.

    Its scalar head is counted as the output head that it replaces.
    """
    trained = executed_passes(
        recompute_activations=scenario.trainer.recomputation == "full",
        recompute_log_probs=False,
        reference_model=False,
        adapter_share=_adapter_share(scenario, model),
    )
    return Critic(model.forward, replace(trained, once=1.0))


def adapter_params(scenario: Scenario, model: ModelFacts) -> float | None:
    """Parameters of the adapters that are trained and sent to engines; None in full training."""
    training = scenario.algorithm.training
    if isinstance(training, str):
        return None
    if model.adapter_params_per_rank is None:
        raise scenario.error(
            "algorithm.training",
            f"full: the profile of {model.id} lacks the dimensions that size LoRA adapters",
            f"lora_rank {training.lora_rank}",
        )
    return model.adapter_params_per_rank * training.lora_rank


def _adapter_share(scenario: Scenario, model: ModelFacts) -> float | None:
    training = scenario.algorithm.training
    if isinstance(training, str) or model.adapter_active_per_rank is None:
        return None
    return model.adapter_active_per_rank * training.lora_rank / model.params_active
