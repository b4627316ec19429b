"""The rollouts of a plan: lengths after cancelling, and the share of groups with a signal."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from allocator.evaluator.columns import distinct_rows
from allocator.physics.batch_cut import BatchCut, batch_cut
from allocator.physics.oversampling import Oversampling, oversampling_cut
from allocator.physics.signal import refill_rounds, signal_fraction
from allocator.problem.decisions import ASYNC, DecisionArrays
from allocator.problem.system import System


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Lengths of kept and cancelled rollouts; one entry per distinct kind of group.

    Attributes
    ----------
    cut : what cancelling the slowest does.
    together : the same and the end of batches that start as a whole, one entry for each row of
        such; None without any. `together_row` is the entry of a row, -1 in async.
    oversampling, group_size : of the row; batch : samples kept of a batch that starts as a
        whole, 0 in async, where groups come one by one.
    started_per_group : rollouts that start together: with surplus groups a group has no more.
    started_per_kept : 1 where unfinished rollouts resume, and are kept in the end.
    signal : share of groups with an advantage.
    rounds : batches generated per batch trained where dead groups are replaced; 1 elsewhere.
    row : row of each plan.
    """

    cut: Oversampling
    together: BatchCut | None
    together_row: Any
    oversampling: Any
    group_size: Any
    batch: Any
    started_per_group: Any
    started_per_kept: Any
    signal: Any
    rounds: Any
    row: Any

    def at(self, values: Any) -> Any:
        """Return a quantity of the rows at all plans."""
        return np.asarray(values)[self.row]


def rollout_state(system: System, plans: DecisionArrays) -> RolloutState:
    """Resolve lengths and signal once per distinct oversampling factor and group size.

    In the modes that generate a batch as a whole the batch size counts too. Where unfinished
    rollouts are resumed nothing is cancelled: in the long run every rollout is kept, and lengths
    are those of all.
    """
    work, algorithm = system.workload, system.algorithm
    whole = plans.mode != ASYNC
    batch = np.where(whole, plans.prompts_per_step * plans.group_size, 0)
    rows = distinct_rows(plans.oversampling, plans.group_size, batch)
    factor, batch = rows.pick(plans.oversampling), rows.pick(batch).astype(float)
    group = rows.pick(plans.group_size).astype(float)
    cancelling = np.where((batch > 0) & algorithm.partial_rollout, 1.0, factor)
    cut, together = _cut(system, cancelling, group, batch)
    signal = np.broadcast_to(signal_fraction(work.solve_rate, group), group.shape)
    rounds = np.ones(group.shape)
    if algorithm.dynamic_sampling == "refill" and np.any(batch > 0):
        rounds = np.where(batch > 0, refill_rounds(np.maximum(batch / group, 1.0), signal), 1.0)
    return RolloutState(
        cut=cut,
        together=together,
        together_row=np.where(batch > 0, np.cumsum(batch > 0) - 1, -1),
        oversampling=factor,
        group_size=group,
        batch=batch,
        started_per_group=group * (factor if algorithm.oversampling_by == "sample" else 1.0),
        started_per_kept=cancelling,
        signal=signal,
        rounds=rounds,
        row=rows.inverse,
    )


def _cut(
    system: System, factor: Any, group: Any, batch: Any
) -> tuple[Oversampling, BatchCut | None]:
    """Lengths of groups that come one by one, and of batches that start together."""
    lengths, by = system.workload.lengths, system.algorithm.oversampling_by
    whole = batch > 0
    if not np.any(whole):
        return oversampling_cut(lengths, factor, group, by), None
    together = batch_cut(lengths, factor[whole], batch[whole], group[whole], by)
    if np.all(whole):
        return together.lengths, together
    stream = oversampling_cut(lengths, factor[~whole], group[~whole], by)
    merged = {}
    for field in fields(Oversampling):
        merged[field.name] = np.empty(factor.shape)
        merged[field.name][whole] = getattr(together.lengths, field.name)
        merged[field.name][~whole] = getattr(stream, field.name)
    return Oversampling(**merged), together
