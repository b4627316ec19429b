"""The sentences for names that the plan carries: objectives, bottlenecks, causes, fates."""

from __future__ import annotations

from dataclasses import dataclass

from allocator.report.palette import Role


@dataclass(frozen=True, slots=True)
class ObjectiveWords:
    """How an objective is printed: dollars or a plain number, and what it counts."""

    dollars: bool
    per: str
    smaller_is_better: bool


OBJECTIVES: dict[str, ObjectiveWords] = {
    "usd_per_useful_mtok": ObjectiveWords(True, "per million useful tokens", True),
    "run.hours": ObjectiveWords(False, "hours for the run", True),
    "useful_tokens_per_s": ObjectiveWords(False, "useful tokens per second", False),
    "run.usd": ObjectiveWords(True, "for the run", True),
}

BOTTLENECKS: dict[str, str] = {
    "trainer": "The trainer is the slow side: generation delivers at least what it can take.",
    "decode": "Decoding on the generator's engines is the slow side.",
    "prefill": "Prefill is the slow side.",
    "reward": "Computing rewards is the slow side.",
    "sandbox": "Sandboxes are the slow side.",
    "weight_sync": "Copying new weights to the engines is the slow side.",
    "concurrency": "Too few rollouts are in flight to keep the engines busy.",
}

CAUSES: dict[str, str] = {
    "kv_memory": "KV memory is full, so no more rollouts fit in flight.",
    "staleness": "The staleness limit allows no more rollouts in flight.",
    "tail": "The longest responses hold back the groups they belong to.",
    "signal": "Groups without signal are generated but train nothing.",
    "tools": "Tools take a large part of a rollout's time.",
    "imbalance": "Trainer ranks wait for the one with the longest sequences.",
    "weight_sync": "It waits for new weights to be copied.",
    "sandbox": "Sandboxes lose rollouts, which are generated again.",
}

FATES: tuple[tuple[Role, str], ...] = (
    ("useful", "useful"),
    ("no_signal", "no signal"),
    ("rejected_stale", "too stale"),
    ("oversampled", "oversampled"),
    ("dropped_overflow", "overflow"),
    ("failed", "failed"),
    ("mixed_environment", "resumed"),
)

MODE_WORDS: dict[str, str] = {
    "one_step_off": "one step off: the next batch is generated while this one is trained on",
    "disaggregated_sync": "synchronous on GPUs apart: generator and trainer take turns",
    "colocated_sync": "synchronous on one set of GPUs, which generates and trains in turn",
}


@dataclass(frozen=True, slots=True)
class PublishedPeak:
    """Update fraction at which published runs did best, and how far that can be trusted."""

    name: str
    update_fraction: float
    reward_types: tuple[str, ...]
    kind: str
    source: str


#: Best native reward by kind of reward: LoRA runs of 1.5-7B on maths, hence priors.
PEAKS = (
    PublishedPeak(
        name="rules",
        update_fraction=0.72,
        reward_types=("sparse", "structured", "dense"),
        kind="measured",
        source="RACE (Wilhelm & Kao 2026), a prior from LoRA 1.5-7B on maths",
    ),
    PublishedPeak(
        name="reward models",
        update_fraction=0.445,
        reward_types=("proxy_prm", "prm"),
        kind="measured",
        source="RACE (Wilhelm & Kao 2026), 0.44 to 0.45, a prior from LoRA 1.5-7B on maths",
    ),
)


def bottleneck_words(bottleneck: str) -> str:
    """Return the sentence for a bottleneck; an unknown one is named as it is."""
    return BOTTLENECKS.get(bottleneck, f"Bottleneck: {bottleneck}.")


def cause_words(cause: str) -> str:
    """Return the sentence for a cause, empty for `none`; an unknown one is named as it is."""
    return "" if cause in ("", "none") else CAUSES.get(cause, f"Cause: {cause}.")
