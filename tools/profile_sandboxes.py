"""Sandbox providers: from the source file to SI base units with origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.scenario.profiles import fold_id
from tools.profile_facts import GIB, Row, datum

VCPUS_PER_CORE = 2  # Modal bills physical cores of two vCPUs (modal_sandbox_docs)
PRICES = {
    # source key: (profile field, unit, factor)
    "usd_per_vcpu_hour": ("vcpu_usd_per_hour", "USD/vCPU-hour", 1),
    "usd_per_vcpu_second": ("vcpu_usd_per_hour", "USD/vCPU-hour", 3600),
    "usd_per_core_second": ("vcpu_usd_per_hour", "USD/vCPU-hour", 3600 / VCPUS_PER_CORE),
    "usd_per_gib_hour": ("memory_gib_usd_per_hour", "USD/GiB-hour", 1),
    "usd_per_gib_second": ("memory_gib_usd_per_hour", "USD/GiB-hour", 3600),
    "usd_per_disk_gib_hour": ("disk_gib_usd_per_hour", "USD/GiB-hour", 1),
}
LIMITS = {
    # source key: (name, unit, factor to SI base)
    "concurrent": ("concurrent_sandboxes", "sandbox", 1),
    "starts_per_second": ("starts_per_s", "sandbox/s", 1),
    "starts_per_minute": ("starts_per_s", "sandbox/s", 1 / 60),
    "lifetime_hours": ("lifetime_s", "s", 3600),
    "pool_vcpus": ("pool_vcpus", "vCPU", 1),
    "pool_memory_gib": ("pool_memory_bytes", "byte", GIB),
    "pool_disk_gib": ("pool_disk_bytes", "byte", GIB),
}
OTHER = "_other_source"


def sandbox_profiles(facts: Mapping[str, Any]) -> dict[str, Row]:
    """Return the profile of every provider by its id."""
    return {key: _profile(key, entry) for key, entry in facts["providers"].items()}


def sandbox_aliases(profiles: Mapping[str, Row]) -> dict[str, str]:
    """Return every accepted name in folded form to its id; one name for two is an error."""
    table: dict[str, str] = {}
    for key, profile in profiles.items():
        for name in (key, *profile["aliases"]):
            if table.setdefault(fold_id(name), key) != key:
                raise ValueError(f"{name} is declared for {table[fold_id(name)]} and {key}")
    return table


def _profile(key: str, entry: Mapping[str, Any]) -> Row:
    _no_more(key, entry, ("aliases", "prices", "limits", "starts", "notes"))
    prices: Row = {}
    for row in entry["prices"]:
        for name, number in _numbers(f"{key}.prices", row, PRICES, ("source",)):
            if prices.setdefault(name, number) is not number:
                raise ValueError(f"{key}: two prices for {name}")
    limits = [
        {"name": name, "plan": row["plan"], "raised_by": row["raised_by"], "limit": number}
        for row in entry["limits"]
        for name, number in _numbers(f"{key}.limits", row, LIMITS, ("plan", "source", "raised_by"))
    ]
    for row in entry["notes"]:
        _no_more(f"{key}.notes", row, ("source", "text"))
    return {
        "aliases": entry["aliases"],
        "values": prices,
        "limits": limits,
        "starts": [_start(f"{key}.starts", row) for row in entry["starts"]],
        "notes": [{"text": row["text"], "source": row["source"]} for row in entry["notes"]],
    }


def _start(where: str, row: Mapping[str, Any]) -> Row:
    _no_more(where, row, ("what", "kind", "source", "concurrency", "seconds"))
    return {
        "what": row["what"],
        "concurrency": row.get("concurrency"),
        "seconds": datum(row["seconds"], "s", row["kind"], row["source"]),
    }


def _numbers(
    where: str,
    row: Mapping[str, Any],
    known: Mapping[str, tuple[str, str, float]],
    besides: Iterable[str],
) -> Iterable[tuple[str, Row]]:
    """Yield name and datum of every number of a row; vendors publish their limits and prices."""
    _no_more(where, row, (*known, *(f"{name}{OTHER}" for name in known), *besides))
    for published, (name, unit, factor) in known.items():
        if published in row:
            other = row.get(f"{published}{OTHER}")
            spread = () if other is None else (other * factor,)
            yield name, datum(row[published] * factor, unit, "vendor", row["source"], spread)


def _no_more(where: str, row: Mapping[str, Any], known: Iterable[str]) -> None:
    unread = set(row) - set(known)
    if unread:
        raise ValueError(f"{where}: no rule for {', '.join(sorted(map(str, unread)))}")
