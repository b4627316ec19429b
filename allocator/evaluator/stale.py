"""Staleness of one plan in full, as people and JSON read it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from allocator.evaluator.batch import MOST_RESUMED
from allocator.evaluator.match import Matched
from allocator.evaluator.queue import QUANTILES
from allocator.evaluator.rollouts import RolloutState
from allocator.physics.batch_step import (
    batch_staleness_cdf,
    batch_staleness_mean,
)
from allocator.physics.pipeline import StalenessLaw
from allocator.physics.resumed import ends_met_at_most
from allocator.physics.staleness import staleness_cdf, staleness_mean, staleness_quantile
from allocator.plan import Staleness
from allocator.problem.decisions import ONE_STEP_OFF, DecisionArrays
from allocator.problem.system import System

#: Where the distribution of staleness that a plan reports ends.
REPORTED_TAIL = 1e-4


def staleness_of(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    matched: Matched,
    index: int,
) -> Staleness:
    """Staleness of one plan in full: quantiles, distribution, and the measures by token.

    With rejection the distribution is that of the samples trained. With admission the distribution
    keeps the shape it has without and is moved to the mean that admission gives. By token,
    versions run from the token's own writing: the time from a token to the end of its group,
    instead of the whole residence of the group. Where a batch is generated as a whole the lag is
    fixed, and no token is fresher than its rollout.
    """
    state = matched.state
    mean = float(state.staleness_mean[index])
    if matched.place[index] < 0:
        cdf = batch_staleness_cdf(
            int(plans.mode[index] == ONE_STEP_OFF),
            system.trainers.optimizer_steps_per_batch,
            system.algorithm.weight_sync_every_steps,
            _resumed_cdf(system, rollouts, matched, index),
        )
        resumed = bool(matched.state.life_token_s[index] > 0.0)
        bound = None if resumed else float(len(cdf) - 1)
        # Tokens are written all along: on average half of the batches met lie before them.
        batches = batch_staleness_mean(
            float(plans.mode[index] == ONE_STEP_OFF),
            system.trainers.optimizer_steps_per_batch,
            system.algorithm.weight_sync_every_steps,
        )
        tokens = 0.5 * (mean + float(batches))
        return _reported(matched, index, mean, cdf, token_mean=tokens, bound=bound)
    limit, enforce = system.algorithm.staleness_limit, system.algorithm.staleness_enforce
    if enforce == "admission" and mean == 0.0:
        return _reported(matched, index, 0.0, np.ones(1), token_mean=0.0, bound=0.0)
    cdf = _cdf(system, matched, index, mean)
    per_step = system.trainers.optimizer_steps_per_batch / float(state.step_s[index])
    after = float(state.generation_s[index] - state.token_end_s[index]) * per_step
    bound = float(int(limit)) if enforce == "reject" and limit is not None else None
    return _reported(
        matched,
        index,
        mean,
        cdf,
        token_mean=max(mean - after, 0.0),
        bound=bound,
        versions=float(state.sample_residence_s[index]) * per_step,
    )


def _resumed_cdf(
    system: System, rollouts: RolloutState, matched: Matched, index: int
) -> NDArray[np.float64] | None:
    """Distribution of the batches that resumed rollouts of one plan meet; None without any."""
    state = matched.state
    life_token_s = float(state.life_token_s[index])
    if life_token_s == 0.0:
        return None
    rounds = float(rollouts.rounds[rollouts.row[index]])
    generation_s = float(state.generation_s[index] - state.reward_wait_s[index]) / rounds
    cdf = np.asarray(
        ends_met_at_most(
            system.workload.lengths,
            life_token_s,
            generation_s,
            np.arange(MOST_RESUMED, dtype=float),
            float(state.late_share[index]),
            float(state.late_part[index]),
        )
    )
    last = int(np.searchsorted(cdf, 1.0 - REPORTED_TAIL))
    return np.asarray(cdf[: last + 1] / cdf[min(last, cdf.size - 1)])


def _cdf(system: System, matched: Matched, index: int, mean: float) -> NDArray[np.float64]:
    """Distribution of the staleness of one asynchronous plan."""
    assert matched.stale is not None
    found, tables, place = matched.stale.law, matched.stale.tables, int(matched.place[index])
    law = StalenessLaw(
        *(np.asarray(getattr(found, f.name))[place : place + 1] for f in fields(found))
    )
    limit, enforce = system.algorithm.staleness_limit, system.algorithm.staleness_enforce
    if enforce == "admission":
        moved = (mean - staleness_mean(law)) / law.optimizer_steps
        law = replace(law, batches=law.batches + moved, centre=law.centre + moved)
    last = int(staleness_quantile(1.0 - REPORTED_TAIL, law, tables)[0])
    if enforce == "reject" and limit is not None:
        last = min(last, int(limit))
    cdf = staleness_cdf(np.arange(last + 1), law, tables)
    whole = enforce == "reject" and last == int(limit or 0)
    return np.asarray(cdf / cdf[-1] if whole else cdf)


def _reported(
    matched: Matched,
    index: int,
    mean: float,
    cdf: NDArray[np.float64],
    *,
    token_mean: float,
    bound: float | None,
    versions: float | None = None,
) -> Staleness:
    state, last = matched.state, len(cdf) - 1
    quantiles = {
        name: min(int(np.searchsorted(cdf, share)), last) for name, share in QUANTILES.items()
    }
    if versions is None:
        versions = float(state.sample_residence_s[index] / state.step_s[index])
    return Staleness(
        mean=mean,
        max=bound,
        token_mean=token_mean,
        versions_per_rollout=versions,
        environment_state_fraction=float(state.mixed_fraction[index]),
        rejected_fraction=1.0 - float(state.accepted_fraction[index]),
        cdf=tuple(float(p) for p in cdf),
        **quantiles,
    )
