"""Named limits and objectives: what a plan must not exceed, and what is minimised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from allocator.physics.economics import usd_per_mtok

ObjectiveName = Literal["usd_per_useful_mtok", "run.hours", "useful_tokens_per_s", "run.usd"]

#: Plans whose objective is within this share of the best count as equal; fewer GPUs, then lower
#: staleness decide between them. No input is known to a tenth of a percent.
TIE = 1e-3


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """One limit as a user would name it: value <= limit, in `unit`, set at config path `where`.

    `relaxable` says whether a user may change it; physics (memory, whole groups) is never relaxed.
    """

    name: str
    unit: str
    where: str
    relaxable: bool


def objective_score(
    name: ObjectiveName,
    *,
    usd_per_hour: Any,
    useful_tokens_per_s: Any,
    run_hours: Any,
    run_usd: Any,
) -> Any:
    """Value to minimise: the objective itself, or minus the rate when more is better."""
    if name == "usd_per_useful_mtok":
        return usd_per_mtok(usd_per_hour, useful_tokens_per_s)
    if name == "run.hours":
        return run_hours
    if name == "run.usd":
        return run_usd
    return -np.asarray(useful_tokens_per_s)


def objective_value(name: ObjectiveName, score: float) -> float:
    """Turn a score back into the objective as people read it."""
    return -score if name == "useful_tokens_per_s" else score
