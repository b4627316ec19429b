"""Where the two sides of a plan meet, in whichever mode: rates, waits, losses, staleness."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from allocator.evaluator.batch import match_batches
from allocator.evaluator.generator import GeneratorState
from allocator.evaluator.match_state import AsyncStaleness, MatchState, taken
from allocator.evaluator.queue import match_async
from allocator.evaluator.rollouts import RolloutState
from allocator.evaluator.trainer import TrainerState
from allocator.problem.decisions import ASYNC, DecisionArrays
from allocator.problem.system import System


@dataclass(frozen=True, slots=True)
class Matched:
    """Steady state of plans of all modes.

    Attributes
    ----------
    state : one entry a plan.
    stale : distribution of staleness of the asynchronous ones, in their order; None without any.
    place : of each plan in `stale`; -1 for the others.
    """

    state: MatchState
    stale: AsyncStaleness | None
    place: Any


def match_rates(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
) -> Matched:
    """Find the steady state of every plan, each law called once for all plans of its modes."""
    streaming = plans.mode == ASYNC
    if np.all(streaming):
        state, stale = match_async(system, plans, rollouts, generator, trainer)
        return Matched(state, stale, np.arange(len(plans)))
    if not np.any(streaming):
        state = match_batches(system, plans, rollouts, generator, trainer)
        return Matched(state, None, np.full(len(plans), -1))
    flow, stale = match_async(
        system,
        plans.take(streaming),
        _rows_used(rollouts, streaming),
        taken(generator, streaming),
        taken(trainer, streaming),
    )
    batches = match_batches(
        system,
        plans.take(~streaming),
        _rows_used(rollouts, ~streaming),
        taken(generator, ~streaming),
        taken(trainer, ~streaming),
    )
    merged = {}
    for field in fields(MatchState):
        values = np.empty(len(plans))
        values[streaming] = getattr(flow, field.name)
        values[~streaming] = getattr(batches, field.name)
        merged[field.name] = values
    return Matched(MatchState(**merged), stale, np.where(streaming, np.cumsum(streaming) - 1, -1))


def _rows_used(rollouts: RolloutState, index: Any) -> RolloutState:
    """Return the rows that the plans in `index` use, numbered anew."""
    used, row = np.unique(rollouts.row[index], return_inverse=True)
    rows = {
        field.name: taken(value, used) if field.name == "cut" else np.asarray(value)[used]
        for field in fields(rollouts)
        for value in [getattr(rollouts, field.name)]
        if field.name not in ("row", "together")
    }
    return RolloutState(**rows, together=rollouts.together, row=row)
