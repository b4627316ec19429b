"""The page that compares the formulas with simulation, by stratum."""

from __future__ import annotations

from tests.agreement.compare import (
    DISTANCE,
    FATE,
    MEASURES,
    STALENESS,
    STALENESS_SHARE,
    THROUGHPUT,
    WAIT,
    Misfit,
    misfit,
    predicted,
    simulated,
)
from tests.agreement.scenarios import REPLICATIONS, Case, case
from tests.agreement.shares import TARGET, TARGET_P95, TARGET_STRATUM, shares

#: Cases listed as the worst of each measure.
WORST = 5
#: What is known of the regimes that miss.
REGIMES = (
    (
        "`weight_update: abort`",
        "rollouts that start anew tie up the places of their groups, and a group waits for the "
        "last of many attempts; the formulas follow single rollouts.",
    ),
    (
        "`weight_update: drain`",
        "the formulas let the trainer wait for every drain; the simulation lets it go on with "
        "what is queued, and an engine takes the newest weights once it is empty.",
    ),
    (
        "`staleness.enforce: admission`",
        "with several optimiser steps a batch, or weights sent every k batches, the formulas keep "
        "the mean at the limit, in versions; the simulation counts batches not yet trained.",
    ),
    (
        "`staleness.enforce: reject`",
        "what is thrown out of the queue and what is rejected change places near load 1.",
    ),
    (
        "less than two groups of places in async, above all with oversampling or tools",
        "one group's end decides when the next begins; cancelling and tools move that end.",
    ),
    (
        "tools of uneven time",
        "their spread is added to the staleness as a variance, not as a shape.",
    ),
    (
        "batches in several waves on few slots",
        "the end of a batch is early or late with a cv above 1, with oversampling and with tools "
        "(see `batch_generation`), and cancelling in waves changes lengths for the trainer too.",
    ),
    (
        "short KV memory",
        "sequences that find the cache full wait in order, and one that is thrown out is read "
        "again; the closed loop has averages only.",
    ),
)
#: Strata in which the formulas are not to be trusted.
APART = frozenset({"abort", "drain", "admission", "reject", "short KV memory"})


def _clear(found: Case) -> bool:
    """Whether an asynchronous case lies outside the regimes that are named."""
    plan = found.plan
    two_groups = int(plan.in_flight_per_engine[0]) >= 2 * int(plan.group_size[0])
    return "async" in found.strata and two_groups and not found.strata & APART


def simulation_agreement() -> str:
    """Return the table of agreement by stratum, the worst cases and what is known of them."""
    found = {seed: misfit(predicted(case(seed)), seen) for seed, seen in simulated().items()}
    table = shares(found)
    lines = [
        "# Formulas against simulation",
        "",
        f"{len(found)} generated scenarios (`tests/agreement/scenarios.py`), each with a plan, are",
        f"simulated ({REPLICATIONS} replications, 200 to 3,000 steps, the first fifth left out) by",
        "a simulator that knows the laws of a step and of lengths only (`allocator/simulator`). No",
        "seed is left out, and no constant of the formulas is fitted to them.",
        "",
        f"Tolerances: trained samples/s {THROUGHPUT:.0%}, the trainer's wait {WAIT:g}, mean",
        f"staleness {STALENESS:g} or {STALENESS_SHARE:.0%}, its 95th percentile equal, largest",
        f"distance of its distribution {DISTANCE:g}, token fates {FATE:g} each. The first three",
        "and the fates are widened by two standard errors of the simulation. Wanted: "
        f"{TARGET:.0%} of all",
        f"cases and {TARGET_STRATUM:.0%} of each stratum ({TARGET_P95:.0%} for the percentile).",
        "What is reached is less; shares below what is wanted are in bold.",
        "",
        "| stratum | cases | " + " | ".join(MEASURES) + " |",
        "|---|--:|" + "--:|" * len(MEASURES),
    ]
    for stratum, row in table.items():
        cells = " | ".join(_cell(stratum, measure, row[measure]) for measure in MEASURES)
        lines.append(f"| {stratum} | {row['cases']:.0f} | {cells} |")
    clear = [of for seed, of in found.items() if _clear(case(seed))]
    kept = ", ".join(
        f"{name} {sum(of.within[name] for of in clear) / len(clear):.0%}" for name in MEASURES
    )
    lines += [
        "",
        f"Of the {len(clear)} asynchronous cases with places for two groups an engine and none of",
        f"{', '.join(sorted(APART))}: {kept}. This selection was made after the",
        "table was seen.",
        "",
        "## Where not to trust the formulas",
        "",
        *(f"- {name}: {why}" for name, why in REGIMES),
        "",
        "## The worst cases",
        "",
        "Formula less simulation, with the standard error of the simulation where it has one.",
        "",
        "| measure | seed | off by | error | strata |",
        "|---|--:|--:|--:|---|",
        *_worst(found),
    ]
    return "\n".join([*lines, ""])


def _cell(stratum: str, measure: str, share: float) -> str:
    wanted = TARGET_P95 if measure == "p95" else TARGET if stratum == "all" else TARGET_STRATUM
    return f"{share:.0%}" if share >= wanted else f"**{share:.0%}**"


def _worst(found: dict[int, Misfit]) -> list[str]:
    lines = []
    for measure in MEASURES:
        if measure == "p95":
            continue
        missed = [seed for seed, of in found.items() if not of.within[measure]]
        missed.sort(key=lambda seed: -abs(getattr(found[seed], measure)))
        for seed in missed[:WORST]:
            off, error = getattr(found[seed], measure), found[seed].error.get(measure)
            said = "" if error is None else f"{error:.3f}"
            lines.append(f"| {measure} | {seed} | {off:+.3f} | {said} | {_strata(case(seed))} |")
    return lines


def _strata(found: Case) -> str:
    return ", ".join(sorted(found.strata))
