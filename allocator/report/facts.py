"""What the report looks up in a plan: pools, prices, intervals, limits; it predicts nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.plan import Decisions, Limit, Plan
from allocator.report.numbers import three


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool of the scenario: name, GPU type, GPUs, and its price where the scenario says it."""

    name: str
    gpu: str
    gpus: int
    usd_per_gpu_hour: float | None


def number_of(node: Any) -> float | None:
    """Return the value of a scenario number, written plain or as ``{value: ...}``; else None."""
    value = node.get("value") if isinstance(node, Mapping) else node
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def drawn(amount: float) -> float:
    """Return an amount as a length that can be drawn: 0 for what is negative or not finite."""
    return amount if math.isfinite(amount) and amount > 0 else 0.0


def section_of(plan: Plan, *path: str) -> Mapping[str, Any]:
    """Return a mapping inside the plan's scenario, empty where the scenario does not have it."""
    node: Any = plan.scenario
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def scenario_name(plan: Plan) -> str:
    """Return the scenario's name, or its model where it has none."""
    for key in ("name", "model"):
        if isinstance(plan.scenario.get(key), str) and plan.scenario[key]:
            return str(plan.scenario[key])
    return "unnamed scenario"


def pools_of(plan: Plan) -> tuple[Pool, ...]:
    """Return the scenario's pools in file order."""
    listed = section_of(plan, "hardware").get("pools")
    pools = []
    for item in listed if isinstance(listed, (list, tuple)) else ():
        if isinstance(item, Mapping):
            gpus = number_of(item.get("gpus"))
            price = item.get("price")
            usd = number_of(price.get("usd_per_gpu_hour")) if isinstance(price, Mapping) else None
            pools.append(Pool(str(item.get("name")), str(item.get("gpu")), int(gpus or 0), usd))
    return tuple(pools)


def used_gpus(decisions: Decisions) -> dict[str, int]:
    """Return GPUs in use by pool."""
    used: dict[str, int] = {}
    for group in decisions.generator.groups:
        used[group.pool] = used.get(group.pool, 0) + group.engines * group.gpus_per_engine
    trainer = decisions.trainer
    training = used.get(trainer.pool, 0)
    # One set of GPUs that trains and generates in turn counts once.
    together = max(training, trainer.gpus) if shared(decisions) else training + trainer.gpus
    used[trainer.pool] = together
    reward = decisions.reward
    if reward is not None and reward.pool is not None:
        used[reward.pool] = used.get(reward.pool, 0) + reward.gpus
    return used


def shared(decisions: Decisions) -> bool:
    """Return whether one set of GPUs trains and generates in turn."""
    return decisions.mode == "colocated_sync"


def gpu_hour_usd(plan: Plan, pool_name: str, gpu: str) -> float | None:
    """Return dollars per GPU-hour of a pool of GPUs `gpu`.

    Taken from the scenario, else from the price that the plan was computed with (provenance), else,
    with a single pool, from the plan's dollars per hour over the GPUs that are paid for. None when
    none of them says it.
    """
    pools = pools_of(plan)
    stated = {pool.name: pool.usd_per_gpu_hour for pool in pools}.get(pool_name)
    if stated is None:
        used = (p.value for p in plan.provenance if p.name.startswith(f"prices.{gpu}."))
        stated = next(used, None)
    if stated is not None or plan.prediction is None or plan.decisions is None or len(pools) != 1:
        return stated
    on_demand = section_of(plan, "hardware").get("billing") == "on_demand"
    paid = sum(used_gpus(plan.decisions).values()) if on_demand else pools[0].gpus
    return plan.prediction.usd_per_hour / paid if paid else None


def generator_hour_usd(plan: Plan) -> float | None:
    """Return dollars per hour of all engines together, None when a pool's price is not known."""
    if plan.decisions is None:
        return None
    total = 0.0
    for group in plan.decisions.generator.groups:
        usd = gpu_hour_usd(plan, group.pool, group.gpu)
        if usd is None:
            return None
        total += usd * group.engines * group.gpus_per_engine
    return total


def interval(plan: Plan, path: str, text: Callable[[float], str] = three) -> str:
    """Return `` [low, high]`` of a prediction path, empty when the plan has no interval for it."""
    if path not in plan.intervals:
        return ""
    low, high = plan.intervals[path]
    return f" [{text(low)}, {text(high)}]"


def broken_limits(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Return the limits that do not hold."""
    return tuple(limit for limit in limits if not limit.holds)


def staleness_limit(plan: Plan) -> tuple[str, float, str] | None:
    """Return the scenario's staleness limit as (metric, versions, how it is enforced), or None."""
    stated = section_of(plan, "staleness")
    limit = number_of(stated.get("limit"))
    if limit is not None:
        return str(stated.get("metric", "mean")), limit, str(stated.get("enforce", "design"))
    for found in plan.limits:
        if found.name.startswith("staleness_"):
            return found.name.removeprefix("staleness_"), found.limit, "design"
    return None
