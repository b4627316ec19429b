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
        "a group whose rollouts start anew keeps the age of its first finished sample, and whole "
        "groups tie up places meanwhile: the formulas follow single rollouts. Do not trust them.",
    ),
    (
        "`weight_update: drain`",
        "the formulas let the trainer wait for every drain; the simulation lets it go on with "
        "what is queued, and engines take the newest weights when they are empty. With more than "
        "a batch in flight, or with slow rewards, the two differ by tens of percent.",
    ),
    (
        "tools of very uneven time and few rollouts a group",
        "the width that tools give the staleness is added as a variance, not as a shape: the "
        "distribution may be .1 to .2 off, its mean is not.",
    ),
    (
        "one to four batches' waves on few slots with a cv above 1, and oversampling",
        "the end of a batch in waves is up to 10% early or late (see `batch_generation`).",
    ),
    (
        "short KV memory",
        "sequences that find the cache full wait in order, and one that is thrown out is read "
        "again; the closed loop has averages only.",
    ),
    (
        "rejection near load 1",
        "stale groups that are thrown out of the queue and those rejected change places: the sum "
        "of both is right, their parts are up to .1 off.",
    ),
)


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
    lines += [
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
