"""Shares of the cases that keep each tolerance, by stratum, and what they must not fall below."""

from __future__ import annotations

from collections.abc import Mapping

from tests.agreement.compare import MEASURES, Misfit
from tests.agreement.scenarios import case

TARGET, TARGET_STRATUM, TARGET_P95 = 0.95, 0.90, 0.80
#: What is reached where that is less than wanted: these may only rise.
FLOORS: dict[str, dict[str, float]] = {
    "all": {
        "throughput": 0.85,
        "wait": 0.881,
        "staleness": 0.881,
        "distribution": 0.803,
        "fates": 0.862,
    },
    "async": {
        "throughput": 0.875,
        "wait": 0.888,
        "staleness": 0.83,
        "p95": 0.754,
        "distribution": 0.723,
        "fates": 0.839,
    },
    "near load 1": {
        "throughput": 0.796,
        "wait": 0.812,
        "staleness": 0.835,
        "distribution": 0.742,
        "fates": 0.812,
    },
    "sync every k": {"staleness": 0.888, "distribution": 0.861, "fates": 0.888},
    "at most 4 groups": {
        "throughput": 0.873,
        "wait": 0.883,
        "staleness": 0.834,
        "p95": 0.796,
        "distribution": 0.766,
        "fates": 0.805,
    },
    "tools": {"throughput": 0.846, "wait": 0.857, "distribution": 0.785, "fates": 0.806},
    "cv above 1.1": {
        "throughput": 0.826,
        "wait": 0.891,
        "staleness": 0.891,
        "p95": 0.771,
        "distribution": 0.858,
        "fates": 0.869,
    },
    "one by one": {
        "throughput": 0.89,
        "wait": 0.876,
        "staleness": 0.808,
        "p95": 0.739,
        "distribution": 0.657,
    },
    "several optimiser steps": {
        "throughput": 0.857,
        "staleness": 0.842,
        "p95": 0.642,
        "distribution": 0.7,
        "fates": 0.885,
    },
    "oversampling": {
        "throughput": 0.666,
        "wait": 0.761,
        "staleness": 0.888,
        "distribution": 0.777,
        "fates": 0.666,
    },
    "reward with capacity": {
        "throughput": 0.868,
        "staleness": 0.885,
        "distribution": 0.836,
        "fates": 0.852,
    },
    "cv below 0.4": {
        "throughput": 0.814,
        "wait": 0.888,
        "staleness": 0.833,
        "distribution": 0.74,
        "fates": 0.888,
    },
    "groups of 32 or more": {
        "throughput": 0.804,
        "wait": 0.853,
        "staleness": 0.878,
        "p95": 0.731,
        "distribution": 0.78,
        "fates": 0.878,
    },
    "sandboxes": {
        "throughput": 0.794,
        "wait": 0.871,
        "staleness": 0.846,
        "distribution": 0.769,
        "fates": 0.846,
    },
    "drop": {"throughput": 0.789, "staleness": 0.789, "distribution": 0.789, "fates": 0.842},
    "disaggregated_sync": {"throughput": 0.812},
    "one_step_off": {"throughput": 0.656, "wait": 0.687, "fates": 0.875},
    "groups of 1": {"fates": 0.838},
    "refill": {
        "throughput": 0.827,
        "wait": 0.793,
        "staleness": 0.862,
        "p95": 0.793,
        "distribution": 0.793,
        "fates": 0.862,
    },
    "constant reward": {
        "throughput": 0.782,
        "wait": 0.869,
        "staleness": 0.739,
        "p95": 0.695,
        "distribution": 0.565,
        "fates": 0.695,
    },
    "drain": {
        "throughput": 0.411,
        "wait": 0.411,
        "staleness": 0.411,
        "p95": 0.47,
        "distribution": 0.176,
        "fates": 0.411,
    },
    "abort": {
        "throughput": 0.384,
        "wait": 0.384,
        "staleness": 0.23,
        "p95": 0.461,
        "distribution": 0.153,
        "fates": 0.153,
    },
    "short KV memory": {
        "throughput": 0.75,
        "wait": 0.75,
        "staleness": 0.75,
        "p95": 0.75,
        "distribution": 0.666,
        "fates": 0.833,
    },
    "retract": {"distribution": 0.818},
    "reject": {"throughput": 0.8, "staleness": 0.8, "distribution": 0.7, "fates": 0.6},
    "admission": {
        "throughput": 0.5,
        "wait": 0.5,
        "staleness": 0.5,
        "p95": 0.5,
        "distribution": 0.166,
    },
    "resumed": {"throughput": 0.75, "p95": 0.75, "distribution": 0.75},
}


def shares(misfits: Mapping[int, Misfit]) -> dict[str, dict[str, float]]:
    """Return the share within each tolerance by stratum, "all" first, then the largest strata."""
    members: dict[str, list[Misfit]] = {"all": list(misfits.values())}
    for seed, found in misfits.items():
        for stratum in case(seed).strata:
            members.setdefault(stratum, []).append(found)
    ordered = sorted(members, key=lambda name: (name != "all", -len(members[name]), name))
    return {
        name: {
            "cases": float(len(members[name])),
            **{
                measure: sum(found.within[measure] for found in members[name]) / len(members[name])
                for measure in MEASURES
            },
        }
        for name in ordered
    }
