"""Pools with their prices, budgets and targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from allocator.physics.economics import ownership_usd_per_gpu_hour
from allocator.problem.system import Money, Pool
from allocator.scenario.errors import ScenarioError
from allocator.scenario.hardware import OwnershipPrice, PublishedPrice

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.quantity import Quantity
    from allocator.scenario.schema import Scenario


def pools(scenario: Scenario, catalogue: Catalogue, ledger: Ledger) -> tuple[Pool, ...]:
    """Resolve the pools: GPUs a plan may use, unit of allocation and dollars per GPU-hour."""
    resolved = []
    for i, pool in enumerate(scenario.hardware.pools):
        try:
            gpu = catalogue.gpu(pool.gpu)
        except ScenarioError as error:
            path = f"hardware.pools[{i}].gpu"
            file, line = scenario.origin.locate(path)
            raise error.at(file=file, line=line, path=path) from None
        node = int(ledger.datum(gpu.gpus_per_node, f"gpus/{gpu.id}.gpus_per_node"))
        unit = node if pool.granularity == "node" else 1
        if pool.gpus % unit:
            raise scenario.error(
                f"hardware.pools[{i}].gpus",
                f"whole nodes of {node} GPUs (or granularity: gpu)",
                str(pool.gpus),
                nearest=str(max(unit, round(pool.gpus / unit) * unit)),
            )
        if pool.spare_gpus % unit:
            raise scenario.error(
                f"hardware.pools[{i}].spare_gpus",
                f"whole nodes of {node} GPUs (or granularity: gpu)",
                str(pool.spare_gpus),
                nearest=str(round(pool.spare_gpus / unit) * unit),
            )
        price = _usd_per_gpu_hour(scenario, catalogue, ledger, i)
        usable = pool.gpus - pool.spare_gpus
        resolved.append(Pool(pool.name, gpu.id, usable, unit, price, pool.spare_gpus))
    return tuple(resolved)


def _usd_per_gpu_hour(
    scenario: Scenario, catalogue: Catalogue, ledger: Ledger, index: int
) -> float:
    pool = scenario.hardware.pools[index]
    path = f"hardware.pools[{index}].price"
    price = pool.price
    if isinstance(price, OwnershipPrice):
        names = {
            "capex_usd_per_server": "USD",
            "lifetime_years": "year",
            "cost_of_capital": "1/year",
            "other_usd_per_gpu_hour": "USD/h",
        }
        capex, years, rate, other = (
            ledger.quantity(f"{path}.{name}", getattr(price, name), unit)
            for name, unit in names.items()
        )
        return ownership_usd_per_gpu_hour(capex, price.gpus_per_server, years, rate, other)
    if price.usd_per_gpu_hour is not None:
        return ledger.quantity(f"{path}.usd_per_gpu_hour", price.usd_per_gpu_hour, "USD/h")
    assert isinstance(price, PublishedPrice)
    datum = catalogue.price(pool.gpu, price.kind, price.vintage)
    return ledger.datum(datum, f"prices/{pool.gpu}.{price.kind}.{price.vintage}")


def money(scenario: Scenario, ledger: Ledger) -> Money:
    """Resolve billing, budgets and target."""

    def use(path: str, quantity: Quantity | None, unit: str) -> float | None:
        return None if quantity is None else ledger.quantity(path, quantity, unit)

    budget, target = scenario.budget, scenario.budget.target

    def goal(name: str, unit: str) -> float | None:
        return use(f"budget.target.{name}", getattr(target, name, None), unit)

    hours = use("budget.hours", budget.hours, "h")
    resolved = Money(
        reserved=scenario.hardware.billing == "reserved",
        usd=use("budget.usd", budget.usd, "USD"),
        gpu_hours=use("budget.gpu_hours", budget.gpu_hours, "GPU h"),
        flops=use("budget.flops", budget.flops, "FLOP"),
        hours=hours,
        target_steps=goal("steps", "step"),
        target_samples=goal("samples", "sample"),
        target_useful_tokens=goal("useful_tokens", "token"),
        sequence_basis=scenario.token_basis == "sequence",
    )
    goals = (resolved.target_steps, resolved.target_samples, resolved.target_useful_tokens)
    if not resolved.reserved and all(g is None for g in goals) and hours is None:
        raise scenario.error(
            "hardware.billing",
            "a budget.target or budget.hours beside on_demand (without one the cheapest plan is "
            "the smallest)",
            "on_demand",
        )
    return resolved


def needed_samples(
    money: Money, batch: Any, trained_share: Any, useful_tokens_per_sample: Any
) -> Any:
    """Accepted samples that reach every target; one batch where there is none.

    Parameters
    ----------
    batch : accepted samples per step.
    trained_share : share of them that the optimiser sees.
    useful_tokens_per_sample : useful tokens per accepted sample.
    """
    needed = batch * max(1.0, money.target_steps or 1.0)
    if money.target_samples is not None:
        needed = np.maximum(needed, money.target_samples / trained_share)
    if money.target_useful_tokens is not None:
        needed = np.maximum(needed, money.target_useful_tokens / useful_tokens_per_sample)
    return needed
