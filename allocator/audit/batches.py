"""Rules about batches: groups without signal, and samples that do not divide among ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from allocator.audit.finding import Finding, Planned, said
from allocator.physics.signal import refill_rounds, signal_fraction

#: Generated groups for each useful one from which a curriculum is no longer the cheapest choice
#: (DAPO #22: a run that gave up after 10 rounds without one full batch).
MOST_ROUNDS_PER_BATCH = 3.0
#: Share of a step that ranks stand idle because samples do not divide among them, worth a word.
UNEVEN = 0.05


def low_signal(planned: Planned) -> Iterator[Finding]:
    """So few groups carry an advantage that filling a batch takes many times its rollouts."""
    algorithm, system = planned.scenario.algorithm, planned.problem.system
    share = planned.prediction.signal_fraction
    wanted = 1.0 / MOST_ROUNDS_PER_BATCH
    if algorithm.dynamic_sampling == "off" or share >= wanted:
        return
    groups, size = planned.decisions.prompts_per_step, planned.decisions.group_size
    factor = 1.0 / share if share > 0.0 else math.inf
    rounds = math.ceil(float(refill_rounds(groups, share))) + 1 if share > 0.0 else None
    if algorithm.dynamic_sampling == "refill":
        cost = f"a batch of {groups:,} groups takes {said(factor)} times that many on average"
    else:
        cost = f"of {groups:,} groups {said(share * groups)} are left to train on"
    law = system.workload.solve_rate
    wider = float(signal_fraction(law, 2 * size))
    mixed = 0.0 if law is None else law.mixed
    ways = [f"a curriculum in which at least {wanted:.0%} of groups carry signal"]
    if 0.0 < mixed < 1.0:
        ways.append(
            f"without the {1.0 - mixed:.0%} of prompts always or never solved it is "
            f"{share / mixed:.0%}"
        )
    if wider >= wanted:
        ways.append(f"algorithm.group_size: {2 * size} gives {wider:.0%}")
    if rounds is not None:
        ways.append(
            f"and a framework that generates at least {rounds} batches for one before it gives up "
            "(max_num_gen_batches in verl)"
        )
    yield Finding(
        "low_signal",
        "warning",
        f"P(useful) = {share:.1%} of groups carry an advantage: {cost} (factor {said(factor)}, "
        f"more than {MOST_ROUNDS_PER_BATCH:g})",
        "workload.solve_rate",
        "; ".join(ways),
    )


def idle_ranks(planned: Planned) -> Iterator[Finding]:
    """More data-parallel ranks than samples in an optimiser step, or a step that does not divide.

    Samples of one optimiser step are dealt to ranks whole; a step lasts as long as the fullest.
    """
    trainer, decisions = planned.decisions.trainer, planned.decisions
    samples = decisions.batch // planned.versions_per_batch
    ranks = trainer.ranks
    width = trainer.gpus // ranks
    if ranks > samples:
        yield Finding(
            "idle_ranks",
            "error",
            f"{ranks - samples:,} of {ranks:,} trainer ranks never get a sample: an optimiser "
            f"step has {samples:,} ({decisions.batch:,} in {planned.versions_per_batch})",
            "plan.trainer_gpus",
            f"plan.trainer_gpus: at most {samples * width:,}, or a batch of at least "
            f"{ranks * planned.versions_per_batch:,} samples",
        )
        return
    most = math.ceil(samples / ranks)
    idle = 1.0 - samples / (ranks * most)
    if idle > UNEVEN:
        whole = math.ceil(samples / ranks) * ranks * planned.versions_per_batch
        yield Finding(
            "uneven_ranks",
            "note",
            f"{samples:,} samples of an optimiser step do not divide among {ranks:,} ranks: some "
            f"get {most:,}, others {samples // ranks:,}, and {idle:.0%} of the rank time is idle "
            "if all are equally long",
            "algorithm.prompts_per_step",
            f"a batch of {whole:,} samples instead of {decisions.batch:,}",
        )
