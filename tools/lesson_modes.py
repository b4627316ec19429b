"""Lessons of the examples on modes: NeMo RL one step off, slime with resumed rollouts."""

from __future__ import annotations

from functools import cache

from allocator.plan import Plan
from tools.lesson_runs import (
    changed,
    error,
    example,
    outcome,
    predicted,
    span,
    table,
)

MODES = "qwen3-30b-h100-modes.yaml"
SLIME = "slime-235b-partial-rollout.yaml"

#: NVIDIA, NeMo RL performance summary v0.6 (April 2026): seconds of a step.
PUBLISHED_STEP_S = {"colocated_sync": 192.0, "one_step_off": 152.0}

#: SemiAnalysis, "RL Systems Mind the Gap" (June 2026), case 4; batch 64 is inferred from its table.
SLIME_BATCH_S = 492.2
SLIME_WAIT = 0.60
SLIME_USD_PER_MTOK = 16.23
SLIME_SEQUENCE_TOKENS = 20_164
SLIME_BATCH = 64


@cache
def modes() -> dict[str, Plan]:
    """Return the published pair: one pool in turn, and half of it each, one step off."""
    return {
        "colocated_sync": predicted(example(MODES), with_intervals=True),
        "one_step_off": predicted(
            example(MODES),
            with_intervals=True,
            mode="one_step_off",
            trainer_gpus=16,
            generator_gpus=16,
        ),
    }


def mode_lines() -> list[str]:
    """Return both modes beside what was measured."""
    rows = []
    for mode, plan in modes().items():
        found, measured = outcome(plan), PUBLISHED_STEP_S[mode]
        rows.append(
            (
                f"`{mode}`",
                f"{measured:.0f}",
                span(plan, "step_s", ".0f"),
                error(found.step_s, measured),
                f"{found.generation_s:.0f}",
                f"{found.train_s:.0f}",
                f"{found.staleness.mean:.1f}",
            )
        )
    measured_gain = PUBLISHED_STEP_S["colocated_sync"] / PUBLISHED_STEP_S["one_step_off"]
    return [
        *table(
            ("mode", "measured s", "predicted", "error", "generation s", "training s", "staleness"),
            rows,
        ),
        "",
        f"One step off is {mode_gain():.2f} times as fast by prediction, {measured_gain:.2f} times "
        "as measured.",
    ]


def mode_gain() -> float:
    """Return how many times as fast one step off is, by prediction."""
    plans = modes()
    return outcome(plans["colocated_sync"]).step_s / outcome(plans["one_step_off"]).step_s


@cache
def slime() -> tuple[Plan, Plan]:
    """Return the published run, and the same with every rollout waited for."""
    waiting = {"algorithm.partial_rollout": False, "algorithm.oversampling": 1}
    published, whole = (
        predicted(changed(SLIME, changes), with_intervals=True) for changes in ({}, waiting)
    )
    return published, whole


def slime_usd_per_mtok(usd_per_hour: float, batch_s: float) -> float:
    """Return dollars per million tokens of a batch as the report counts them."""
    return usd_per_hour / 3600.0 * batch_s / (SLIME_BATCH * SLIME_SEQUENCE_TOKENS) * 1e6


def slime_lines() -> list[str]:
    """Return the published run beside two predictions."""
    rows = [("published", f"{SLIME_BATCH_S}", "", f"{SLIME_WAIT:.2f}", f"{SLIME_USD_PER_MTOK}", "")]
    for name, plan in zip(("resumed, as published", "all waited for"), slime(), strict=True):
        found = outcome(plan)
        rows.append(
            (
                name,
                span(plan, "step_s", ".0f"),
                error(found.step_s, SLIME_BATCH_S),
                span(plan, "trainer_wait_fraction", ".2f"),
                span(plan, "usd_per_mtok", ".2f"),
                f"{found.staleness.environment_state_fraction:.0%}",
            )
        )
    hour = outcome(slime()[0]).usd_per_hour
    return [
        *table(("", "batch s", "error", "trainer waits", "$/Mtok", "mixed environment"), rows),
        "",
        f"The report's price is arithmetic: ${hour:.2f} an hour for {SLIME_BATCH_S} s over "
        f"{SLIME_BATCH} x {SLIME_SEQUENCE_TOKENS:,} tokens is "
        f"${slime_usd_per_mtok(hour, SLIME_BATCH_S):.2f} (printed {SLIME_USD_PER_MTOK}).",
    ]
