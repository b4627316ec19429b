"""How a rollout is scored: what a call reads, writes, takes and costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from allocator.problem.model_facts import ModelFacts, catalogue_model
from allocator.problem.system import RewardLaw, WorkloadLaw

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.quantity import Quantity
    from allocator.scenario.schema import Scenario


def reward_model(
    scenario: Scenario, catalogue: Catalogue, policy: ModelFacts, ledger: Ledger
) -> ModelFacts | None:
    """Return the model that scores; None for rules, and for a hosted model that is not named."""
    said = scenario.reward
    if said.model is not None:
        return catalogue_model(scenario, catalogue, ledger, "reward.model", said.model)
    return policy if said.resolved_placement == "shared_engine" else None


def reward_law(
    scenario: Scenario, workload: WorkloadLaw, model: ModelFacts | None, ledger: Ledger
) -> RewardLaw:
    """Resolve how a rollout is scored; what its type and place do not use is 0 or no limit."""
    said = scenario.reward
    place = said.resolved_placement

    def use(name: str, quantity: Quantity, unit: str) -> float:
        return ledger.quantity(f"reward.{name}", quantity, unit)

    cpu_s = use("cpu_s", said.cpu_s, "s") if place == "cpu" else 0.0
    latency_s = 0.0
    if said.latency_s.value > 0.0 or said.latency_s.has_spread:
        latency_s = use("latency_s", said.latency_s, "s")
    calls = said.resolved_calls(workload.turns)
    if said.calls is not None:
        calls = use("calls", said.calls, "1")
    reads, writes = None, 0.0
    if place != "cpu":
        if said.tokens.input is not None:
            reads = use("tokens.input", said.tokens.input, "token")
        writes = use("tokens.output", said.tokens.output, "token")
    price_in = price_out = 0.0
    if said.usd_per_mtok is not None:
        price_in = use("usd_per_mtok.input", said.usd_per_mtok.input, "USD/Mtoken")
        price_out = use("usd_per_mtok.output", said.usd_per_mtok.output, "USD/Mtoken")
    return RewardLaw(
        type=said.type,
        placement=place,
        cpu_s=cpu_s,
        workers=math.inf if said.workers is None else float(said.workers),
        latency_s=latency_s,
        calls=calls,
        forward=None if model is None else model.forward,
        input_tokens=reads,
        output_tokens=writes,
        max_calls_per_s=math.inf
        if said.max_per_s is None
        else use("max_per_s", said.max_per_s, "1/s"),
        usd_per_mtok_in=price_in,
        usd_per_mtok_out=price_out,
        overlap=said.overlap,
    )
