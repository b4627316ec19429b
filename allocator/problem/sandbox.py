"""Sandboxes of the environment, as the laws need them: as stated, else as their provider says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from allocator.physics.sandbox import StartTable, sandboxes_that_fit
from allocator.problem.system import SandboxLaw
from allocator.scenario.errors import ScenarioError
from allocator.scenario.quantity import Quantity
from allocator.scenario.sandbox import Sandbox

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.providers import SandboxProfile
    from allocator.scenario.schema import Scenario

GIB = 2.0**30
#: What a sandbox needs: unit in the scenario, the provider's price of one and its limit on all
#: together, and what that limit counts per unit. Cores of the scenario are vCPUs of a provider.
RESOURCES = {
    "cpus": ("core", "vcpu_usd_per_hour", "pool_vcpus", 1.0),
    "memory_gib": ("GiB", "memory_gib_usd_per_hour", "pool_memory_bytes", GIB),
    "disk_gib": ("GiB", "disk_gib_usd_per_hour", "pool_disk_bytes", GIB),
}
#: Providers without a profile: the user's own machines, or whatever the scenario describes.
OWN = ("local", "custom")


def sandbox_law(scenario: Scenario, catalogue: Catalogue, ledger: Ledger) -> SandboxLaw | None:
    """Resolve the sandboxes; None without any.

    What the scenario states wins. Of a provider of the catalogue only the list price and the quota
    stand in for what it leaves out, with their source; start-up, failures and timeout never do.

    Raises
    ------
    ScenarioError
        For a provider the catalogue does not know, or room for less than one rollout.
    """
    said = scenario.sandbox
    if not said.used:
        return None
    profile = _profile(scenario, catalogue)

    def use(name: str, quantity: Quantity, unit: str) -> float:
        return ledger.quantity(f"sandbox.{name}", quantity, unit)

    def table(name: str, unit: str) -> StartTable:
        given: Quantity | tuple[tuple[float, float], ...] = getattr(said, name)
        if isinstance(given, Quantity):
            return StartTable.constant(use(name, given, unit))
        return StartTable.of(
            {
                at: ledger.number(
                    f"sandbox.{name}[{at:g}]", value, unit, kind="stated", source="scenario"
                )
                for at, value in given
            }
        )

    quota = _quota(scenario, profile, ledger)
    start_s, failures = table("start_s", "s"), table("failure_fraction", "1")
    timeout_s = math.inf if said.timeout_s is None else use("timeout_s", said.timeout_s, "s")
    if timeout_s <= min(start_s.values):
        raise scenario.error(
            "sandbox.timeout_s",
            f"more than the {min(start_s.values):g} s a sandbox takes to start",
            f"{timeout_s:g}",
        )
    return SandboxLaw(
        provider=said.provider if profile is None else profile.id,
        per_rollout=said.per_rollout,
        max_concurrent=quota,
        start_s=start_s,
        failure_fraction=failures,
        retries=said.retries,
        timeout_s=timeout_s,
        usd_per_hour=_usd_per_hour(scenario, profile, ledger),
        credit_usd=math.inf
        if said.credit_usd is None
        else use("credit_usd", said.credit_usd, "USD"),
    )


def quota_path(scenario: Scenario, law: SandboxLaw) -> str:
    """Key that sets the quota, for a user who wants more sandboxes."""
    said = scenario.sandbox
    by_host = said.host is not None and said.max_concurrent != law.max_concurrent
    return "sandbox.host" if by_host else "sandbox.max_concurrent"


def _profile(scenario: Scenario, catalogue: Catalogue) -> SandboxProfile | None:
    name = scenario.sandbox.provider
    if name in OWN:
        return None
    try:
        return catalogue.sandbox(name)
    except ScenarioError as error:
        path = "sandbox.provider"
        known = ", ".join(("none", *OWN, *catalogue.sandbox_ids))
        raise scenario.error(path, f"one of {known}", name, error.nearest) from None


def _needs(scenario: Scenario, names: list[str], ledger: Ledger) -> dict[str, float]:
    said = scenario.sandbox
    return {
        name: ledger.quantity(f"sandbox.{name}", getattr(said, name), RESOURCES[name][0])
        for name in names
    }


def _quota(scenario: Scenario, profile: SandboxProfile | None, ledger: Ledger) -> float:
    """Sandboxes that may run together: as stated, at most what host or provider has room for."""
    said = scenario.sandbox
    stated = math.inf if said.max_concurrent is None else float(said.max_concurrent)
    if profile is not None and said.max_concurrent is None:
        return _documented_quota(scenario, profile, ledger)
    if said.host is None:
        return stated
    names = [name for name in RESOURCES if getattr(said.host, name) is not None]
    host = {
        name: ledger.quantity(f"sandbox.host.{name}", getattr(said.host, name), RESOURCES[name][0])
        for name in names
    }
    room = sandboxes_that_fit(host, _needs(scenario, names, ledger))
    if room < said.per_rollout:
        raise scenario.error(
            "sandbox.host",
            f"room for the {said.per_rollout} sandboxes of one rollout",
            f"room for {room:g}",
        )
    return min(stated, room)


def _documented_quota(scenario: Scenario, profile: SandboxProfile, ledger: Ledger) -> float:
    """Most sandboxes of any documented plan of a provider, and a warning that names the plans."""
    said = scenario.sandbox
    counted = profile.limits_of("concurrent_sandboxes")
    most = [max(counted, key=lambda limit: limit.limit.value)] if counted else []
    quota = min((ledger.datum(limit.limit, "") for limit in most), default=math.inf)
    names = [n for n, row in RESOURCES.items() if getattr(said, n) and profile.limits_of(row[2])]
    pools = {}
    for name in names:
        largest = max(profile.limits_of(RESOURCES[name][2]), key=lambda limit: limit.limit.value)
        pools[name] = ledger.datum(largest.limit, "") / RESOURCES[name][3]
    quota = min(quota, sandboxes_that_fit(pools, _needs(scenario, names, ledger)))
    plans = ", ".join(f"{limit.plan} {limit.limit.value:,.0f}" for limit in counted)
    if math.isinf(quota):
        text = f"no documented quota of {profile.id} applies: sandboxes are taken as unlimited"
    else:
        text = (
            f"no quota stated: the largest that {profile.id} documents is taken, {quota:,.0f} "
            f"sandboxes{f' ({plans})' if plans else ''}; an account may have less"
        )
    ledger.warn("documented_quota", f"{text}; state sandbox.max_concurrent", "sandbox.provider")
    return quota


def _usd_per_hour(scenario: Scenario, profile: SandboxProfile | None, ledger: Ledger) -> float:
    """Price of a sandbox-hour: as stated, else the provider's list price of what one needs."""
    said = scenario.sandbox
    stated = said.usd_per_hour != Sandbox.model_fields["usd_per_hour"].default
    prices = {
        name: getattr(profile, row[1])
        for name, row in RESOURCES.items()
        if profile is not None and getattr(profile, row[1]) is not None
    }
    if stated or not prices:
        return ledger.quantity("sandbox.usd_per_hour", said.usd_per_hour, "USD/h")
    names = [name for name in prices if getattr(said, name) is not None]
    absent = [name for name in prices if name not in names]
    if absent:
        assert profile is not None
        ledger.warn(
            "sandbox_not_priced",
            f"{profile.id} bills {' and '.join(absent)} of a sandbox, which the scenario does not "
            "state: that part costs nothing here; state it, or sandbox.usd_per_hour",
            "sandbox.provider",
        )
    needs = _needs(scenario, names, ledger)
    return sum((need * ledger.datum(prices[name], "") for name, need in needs.items()), 0.0)
