"""The asynchronous match: the queue, who waits, what is lost, and how stale samples are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from allocator.evaluator.columns import distinct_rows
from allocator.evaluator.generator import GeneratorState
from allocator.evaluator.match_state import AsyncStaleness, MatchState
from allocator.evaluator.rollouts import RolloutState
from allocator.evaluator.trainer import TrainerState
from allocator.physics.lengths import Lengths
from allocator.physics.pipeline import Pipeline, StalenessLaw, staleness_law
from allocator.physics.queueing import queue_flow
from allocator.physics.residence import ResidenceTable, ResidenceTables, residence_table
from allocator.physics.staleness import (
    accepted_fraction,
    accepted_staleness_mean,
    admission_rate_per_s,
    after_rejection,
    staleness_mean,
    staleness_quantile,
)
from allocator.physics.turns import tool_end_sd_s, tool_tail_s
from allocator.physics.weight_sync import rate_with_pauses
from allocator.physics.weight_update import abort_table, drain_lost_s, retract_s
from allocator.problem.decisions import DecisionArrays
from allocator.problem.system import AlgorithmLaw, System

#: Longest response of a distribution without a cap, as a quantile: the residence tables end there.
UNCAPPED_QUANTILE = 1.0 - 1e-9
QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
#: Halvings that find the rate at which restarts and the step agree.
BISECTIONS = 50
#: Least lives between two syncs, and least share of its free rate a generator keeps: none.
LEAST_INTERVAL = 1e-6


@lru_cache(maxsize=512)
def group_table(
    lengths: Lengths, group_size: int, oversampling: float, by: Literal["group", "sample"]
) -> ResidenceTable:
    """Tabulate how long groups of one kind stay, cancelled rollouts taken into account.

    By group: of many groups those with the smallest maxima are kept, so lengths end at the cut.
    By sample: a group ends with the S-th of o S rollouts, whose distribution I_F(S, oS - S + 1)
    is that of the largest of S lengths with the S-th root of it as distribution.
    """
    longest = lengths.cap
    if longest is None:
        longest = float(lengths.quantile(UNCAPPED_QUANTILE))
    if oversampling <= 1.0:
        return residence_table(lengths.cdf, longest, group_size)
    if by == "group":
        cut = float(lengths.quantile(oversampling ** (-1.0 / group_size)))
        return residence_table(lengths.cdf, longest, group_size, cut_tokens=cut)
    surplus = oversampling * group_size - group_size + 1.0

    def root_of_group_cdf(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        ended = betainc(group_size, surplus, lengths.cdf(tokens))
        return np.asarray(ended ** (1.0 / group_size))

    return residence_table(root_of_group_cdf, longest, group_size)


def match_async(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
) -> tuple[MatchState, AsyncStaleness]:
    """Find the steady state of asynchronous plans: rates, waits, losses and staleness."""
    algorithm, at = system.algorithm, rollouts.at
    meeting = _meeting(system, plans, rollouts, generator, trainer)
    line, batch = meeting.line, trainer.batch_samples
    taken, reached = meeting.taken, meeting.reached
    running = meeting.running
    law = staleness_law(line, meeting.tables)
    if algorithm.staleness_enforce == "admission":
        rate, mean = _admitted(system, generator, trainer, meeting)
        metric, dropped = mean, np.zeros(np.shape(rate))
        held = 1.0 - rate / meeting.offered
        running = running * (1.0 - held)
    else:
        rate, dropped = reached * (1.0 - law.wait_fraction), law.dropped_fraction
        mean, metric = _staleness(algorithm, law, meeting.tables)
        held = np.zeros(np.shape(rate))
    token_age = at(rollouts.cut.kept_second_moment_tokens2 / (2.0 * rollouts.cut.kept_mean_tokens))
    before_token_s = generator.residence_fixed_s + generator.residence_token_s * token_age
    offered = meeting.offered * meeting.accepted
    nothing = np.zeros(np.shape(rate))
    state = MatchState(
        samples_per_s=rate,
        step_s=batch / rate,
        sync_s=meeting.sync_s,
        dispatched_per_s=generator.dispatched_per_s * running,
        written_ratio=nothing + 1.0,
        discarded_token_fraction=at(rollouts.cut.discarded_token_fraction) + nothing,
        life_token_s=nothing,
        late_share=nothing,
        late_part=nothing,
        paused_fraction=1.0 - meeting.running,
        offered_samples_per_s=offered,
        trainer_samples_per_s=taken,
        accepted_fraction=meeting.accepted,
        dropped_fraction=dropped,
        aborted_fraction=meeting.aborted,
        update_length_bias=meeting.length_bias,
        mixed_fraction=nothing,
        wait_fraction=1.0 - rate / taken,
        generator_wait_fraction=held,
        load=offered / taken,
        generation_s=meeting.group_s,
        reward_wait_s=nothing,
        sample_residence_s=meeting.sample_s,
        token_end_s=np.maximum(meeting.group_s - before_token_s, 0.0),
        staleness_mean=mean,
        staleness_metric=metric,
    )
    return state, AsyncStaleness(law, meeting.tables)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What every plan brings to the queue, rejection settled.

    Attributes
    ----------
    free, offered : accepted samples/s before rejection, without and with what updates cost.
    taken : accepted samples/s the trainer could take; `reached` where every update has to wait for
        a drain.
    running : share of the time that updates leave the engines to write.
    accepted : share of finished groups that are fresh enough.
    aborted, length_bias : share of generated tokens that restarts lose, and what they do to the
        mean length of what ends.
    group_s, sample_s : mean residence of a group and of one rollout.
    """

    tables: ResidenceTables
    line: Pipeline
    free: Any
    offered: Any
    taken: Any
    reached: Any
    running: Any
    sync_s: Any
    accepted: Any
    aborted: Any
    length_bias: Any
    group_s: Any
    sample_s: Any


def _meeting(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
) -> _Meeting:
    algorithm, at = system.algorithm, rollouts.at
    tables = ResidenceTables(
        tuple(
            group_table(system.workload.lengths, int(size), float(o), algorithm.oversampling_by)
            for size, o in zip(rollouts.group_size, rollouts.oversampling, strict=True)
        )
    )
    kept = rollouts.signal if algorithm.dynamic_sampling == "refill" else 1.0
    entering = kept / (rollouts.oversampling if algorithm.oversampling_by == "group" else 1.0)
    every = algorithm.weight_sync_every_steps
    batch = trainer.batch_samples
    sync_s = system.sync_s[plans.trainer_kind, plans.generator_kind]
    taken = batch / (trainer.train_s + (sync_s / every if algorithm.trainer_blocks else 0.0))
    free = generator.dispatched_per_s * generator.ended_share * at(kept / rollouts.oversampling)
    free_token_s, free_fixed_s = generator.residence_token_s, generator.residence_fixed_s
    life_s = free_fixed_s + free_token_s * at(rollouts.cut.dispatched_mean_tokens)
    update = _weight_update(system, plans, generator, life_s, free, taken, batch * every, sync_s)
    offered, reached = update.offered, update.reached
    # As many are in flight as without pauses, and fewer end: each stays longer.
    token_s, fixed_s = free_token_s / update.unpaused, free_fixed_s / update.unpaused
    sample_s = fixed_s + token_s * at(rollouts.cut.dispatched_mean_tokens)
    spread_s: Any = 0.0
    end_sd_s: Any = 0.0
    if not algorithm.whole_groups:
        slots = generator.in_flight / (plans.engines if algorithm.limit_per_engine else 1.0)
        spread_s = (at(rollouts.started_per_group) - 1.0) / 2.0 * sample_s / slots
    mean_tokens = np.asarray([table.length_mean_tokens for table in tables.tables])
    longest = np.asarray([table.tailness for table in tables.tables]) * mean_tokens
    if system.workload.tool_calls is not None:
        slowest = (
            token_s * at(longest - mean_tokens),
            system.workload.tool_calls,
            _or_one_number(at(rollouts.group_size)),
            system.workload.lengths.truncated_fraction,
        )
        spread_s, end_sd_s = spread_s + tool_tail_s(*slowest), tool_end_sd_s(*slowest)
    line = Pipeline(
        load=offered / reached,
        groups_per_batch=_or_one_number(plans.prompts_per_step),
        queue_batches=plans.queue_batches.astype(float),
        train_s=batch / reached,
        step_cv=trainer.step_cv,
        length_s=token_s * at(mean_tokens),
        constant_s=fixed_s,
        spread_s=spread_s,
        kept_share=at(entering * np.ones(rollouts.signal.shape)),
        optimizer_steps=float(system.trainers.optimizer_steps_per_batch),
        weight_sync_every=float(every),
        group_kind=_or_one_number(rollouts.row),
        late_s=_late_s(algorithm, sync_s),
        end_sd_s=end_sd_s,
    )
    accepted: Any = np.ones(np.shape(offered))
    if algorithm.staleness_enforce == "reject":
        assert algorithm.staleness_limit is not None
        accepted = accepted_fraction(np.floor(algorithm.staleness_limit), line, tables)
        line = after_rejection(line, accepted)
    return _Meeting(
        tables=tables,
        line=line,
        free=free,
        offered=offered,
        taken=taken,
        reached=reached,
        running=update.running,
        sync_s=sync_s,
        accepted=accepted,
        aborted=update.aborted,
        length_bias=update.length_bias,
        group_s=token_s * at(longest) + fixed_s + spread_s,
        sample_s=sample_s,
    )


@dataclass(frozen=True, slots=True)
class _Updated:
    """Accepted samples/s under weight updates, and what restarts lose of tokens and lengths.

    `reached` is what the trainer can take when it waits for every drain. `running` is the share of
    the time that the engines write, whatever becomes of it; `unpaused` that in which they do not
    stand still for new weights, or to read again.
    """

    offered: Any
    reached: Any
    running: Any
    unpaused: Any
    aborted: Any
    length_bias: Any


def _weight_update(
    system: System,
    plans: DecisionArrays,
    generator: GeneratorState,
    sample_s: Any,
    free: Any,
    taken: Any,
    sync_batch: Any,
    sync_s: Any,
) -> _Updated:
    """What updates of the weights leave of the generator's free rate.

    The transfer pauses it; engines that drop their cache read everything in flight again; draining
    leaves them part empty; restarts lose what has not ended since the last update.
    """
    algorithm, lengths = system.algorithm, system.workload.lengths
    pause = sync_s if algorithm.generator_pauses else np.zeros(np.shape(sync_s))
    resumed = algorithm.weight_update == "abort" and algorithm.partial_rollout
    if algorithm.weight_update == "retract" or resumed:
        pause = pause + retract_s(generator.resident, generator.reread_s)
    elif algorithm.weight_update == "drain":
        law = system.engines.decode.take(plans.generator_kind)
        slots = np.maximum(generator.decoding, 1.0)
        # Every slot ends at least one life between two drains, however short the interval.
        shortest_s = sample_s + drain_lost_s(law, lengths, slots, LEAST_INTERVAL) + pause
        interval_s = np.maximum(sync_batch / np.minimum(free, taken), shortest_s)
        lives = np.maximum((interval_s - pause) / sample_s - 1.0, LEAST_INTERVAL)
        lost_s = drain_lost_s(law, lengths, slots, lives)
        reached = np.minimum(taken, sync_batch / shortest_s)
        offered = rate_with_pauses(free, reached, pause + lost_s, sync_batch)
        whole = np.ones(np.shape(free))
        unpaused = _unpaused(pause, offered, reached, sync_batch)
        return _Updated(offered, reached, offered / free, unpaused, 0.0 * whole, whole)
    if algorithm.weight_update == "abort" and not resumed:
        return _restarted(lengths, sample_s, free, taken, pause, sync_batch)
    whole = np.ones(np.shape(free))
    offered = rate_with_pauses(free, taken, pause, sync_batch)
    running = offered / free
    return _Updated(offered, taken, running, running, 0.0 * whole, whole)


def _unpaused(pause_s: Any, offered: Any, reached: Any, sync_batch: Any) -> Any:
    """Share of the time in which no sync stops the engines."""
    share = 1.0 - pause_s * np.minimum(offered, reached) / sync_batch
    return np.maximum(share, LEAST_INTERVAL)


def _late_s(algorithm: AlgorithmLaw, sync_s: Any) -> Any:
    """Seconds of a transfer in which engines still start rollouts with the weights before it."""
    if algorithm.generator_pauses or algorithm.weight_update == "drain":
        return 0.0 * sync_s
    return sync_s


def _restarted(
    lengths: Lengths, sample_s: Any, free: Any, taken: Any, pause_s: Any, sync_batch: Any
) -> _Updated:
    """Rate of a generator that starts anew at every sync: only what ends before the next counts.

    The interval between syncs is what the training of the samples between them takes, so rate and
    interval settle together; a generator that finishes nothing in it never trains anything.
    """
    table = abort_table(lengths)
    low, high = np.zeros(np.shape(free)), free + 0.0

    def interval(rate: Any) -> Any:
        running_s = sync_batch / np.minimum(rate, taken) - pause_s
        return np.maximum(running_s / sample_s, LEAST_INTERVAL)

    def running(trained: Any) -> Any:
        return np.maximum(1.0 - pause_s * np.minimum(trained, taken) / sync_batch, 0.0)

    def rate_in(lives: Any, trained: Any) -> Any:
        return free * running(trained) * table.completions(lives) / lives

    for _ in range(BISECTIONS):
        rate = 0.5 * (low + high)
        more = rate_in(interval(rate), rate) > rate
        low, high = np.where(more, rate, low), np.where(more, high, rate)
    settled = np.maximum(low, LEAST_INTERVAL * free)
    lives = interval(settled)
    return _Updated(
        np.maximum(rate_in(lives, settled), LEAST_INTERVAL * free),
        taken,
        running(settled),
        np.maximum(running(settled), LEAST_INTERVAL),
        1.0 - table.completed_share(lives),
        np.where(table.completions(lives) > 0.0, table.length_ratio(lives), 1.0),
    )


def _or_one_number(values: NDArray[Any]) -> Any:
    """Return an array as floats, or one float where all entries are the same (laws run faster)."""
    first = values[0]
    return float(first) if np.all(values == first) else values.astype(float)


def _admitted(
    system: System, generator: GeneratorState, trainer: TrainerState, meeting: _Meeting
) -> tuple[Any, Any]:
    """Rate and mean staleness when rollouts start only while (L + 1) B are not yet trained.

    What the rollouts in flight leave of L batches is room for finished groups. The generator is
    held where that room is full, so nothing is thrown away: the queue waits as one of that
    capacity, the rate stays below what admission allows, and the mean reaches L and no more.
    """
    limit = float(system.algorithm.staleness_limit or 0.0)
    line, lengths, batch = meeting.line, system.workload.lengths, trainer.batch_samples
    room = np.maximum(limit - generator.in_flight / batch, 1.0)
    fill = line.train_s / (line.load * line.length_s)
    flow = queue_flow(
        line.load,
        line.groups_per_batch,
        room,
        fill,
        line.step_cv,
        meeting.tables.rows(line.group_kind),
        kept_share=line.kept_share,
    )
    sizes = distinct_rows(batch)
    longest_tokens = sizes.spread(lengths.mean * lengths.tailness(sizes.pick(batch)))
    longest_s = generator.residence_fixed_s + generator.residence_token_s * longest_tokens
    # With fewer rollouts in flight than a batch has, a batch takes as long as its throughput and
    # then the longest of its last rollouts.
    whole_s = np.maximum(longest_s, batch / meeting.offered + longest_s - meeting.sample_s)
    allowed = admission_rate_per_s(limit, batch, meeting.group_s, whole_s, line.train_s)
    if limit < 1.0:
        # Nothing starts before the step before it has ended: no queue, no overlap.
        return allowed, np.zeros(np.shape(allowed))
    rate = np.minimum(meeting.reached * (1.0 - flow.wait_fraction), allowed)
    waiting = flow.backlog + np.minimum(line.load, 1.0)
    return rate, np.minimum(meeting.group_s * rate / batch + waiting, limit)


def _staleness(
    algorithm: AlgorithmLaw, law: StalenessLaw, table: ResidenceTables
) -> tuple[Any, Any]:
    """Mean staleness of what is trained, and the statistic that the scenario limits."""
    mean = staleness_mean(law)
    if algorithm.staleness_enforce == "reject":
        assert algorithm.staleness_limit is not None
        limit = int(algorithm.staleness_limit)
        return accepted_staleness_mean(limit, law, table), np.full(np.shape(mean), float(limit))
    if algorithm.staleness_metric in QUANTILES and algorithm.staleness_limit is not None:
        return mean, staleness_quantile(QUANTILES[algorithm.staleness_metric], law, table)
    return mean, mean
