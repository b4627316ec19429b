"""Where the two sides meet: the queue, who waits, what is lost, and how stale samples are."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from allocator.evaluator.columns import distinct_rows
from allocator.evaluator.generator import GeneratorState, RolloutState
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
    staleness_cdf,
    staleness_mean,
    staleness_quantile,
)
from allocator.physics.weight_sync import rate_with_pauses
from allocator.plan import Staleness
from allocator.problem.decisions import DecisionArrays
from allocator.problem.system import AlgorithmLaw, System

#: Longest response of a distribution without a cap, as a quantile: the residence tables end there.
UNCAPPED_QUANTILE = 1.0 - 1e-9
#: Where the distribution of staleness that a plan reports ends.
REPORTED_TAIL = 1e-4
QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class MatchState:
    """Steady state of generator, queue and trainer together; arrays, one entry a plan.

    Attributes
    ----------
    samples_per_s : accepted samples that reach the trainer.
    step_s : seconds from one training step to the next, waits included.
    running_fraction : share of its free rate at which the generator runs (pauses, admission).
    offered_samples_per_s : accepted samples/s the generator could deliver (v_G).
    accepted_fraction : share of finished samples that are fresh enough (1 without rejection).
    dropped_fraction : share of accepted samples thrown out of a full queue.
    wait_fraction, generator_wait_fraction : share of time that either side is held up.
    load : v_G over what the trainer could take.
    residence_s : mean time from a group's first start to its last end.
    sample_residence_s : mean time one rollout stays.
    token_end_s : mean time from the writing of a response token to the end of its group.
    staleness_mean : weight versions.
    staleness_metric : the statistic that the scenario limits (the mean where it limits none).
    law, tables : distribution of staleness under `drop_oldest`, after rejection.
    """

    samples_per_s: Any
    step_s: Any
    running_fraction: Any
    offered_samples_per_s: Any
    accepted_fraction: Any
    dropped_fraction: Any
    wait_fraction: Any
    generator_wait_fraction: Any
    load: Any
    residence_s: Any
    sample_residence_s: Any
    token_end_s: Any
    staleness_mean: Any
    staleness_metric: Any
    law: StalenessLaw
    tables: ResidenceTables


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


def match_rates(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
) -> MatchState:
    """Find the steady state of every plan: rates, waits, losses and staleness."""
    algorithm, at = system.algorithm, rollouts.at
    meeting = _meeting(system, plans, rollouts, generator, trainer)
    line, taken, batch = meeting.line, trainer.samples_per_s, trainer.batch_samples
    running = meeting.offered / meeting.free
    law = staleness_law(line, meeting.tables)
    if algorithm.staleness_enforce == "admission":
        rate, mean = _admitted(system, generator, trainer, meeting)
        metric, dropped = mean, np.zeros(np.shape(rate))
        held = 1.0 - rate / meeting.offered
        running = running * (1.0 - held)
    else:
        rate, dropped = taken * (1.0 - law.wait_fraction), law.dropped_fraction
        mean, metric = _staleness(algorithm, law, meeting.tables)
        held = np.zeros(np.shape(rate))
    token_age = at(rollouts.cut.kept_second_moment_tokens2 / (2.0 * rollouts.cut.kept_mean_tokens))
    before_token_s = generator.residence_fixed_s + generator.residence_token_s * token_age
    offered = meeting.offered * meeting.accepted
    return MatchState(
        samples_per_s=rate,
        step_s=batch / rate,
        running_fraction=running,
        offered_samples_per_s=offered,
        accepted_fraction=meeting.accepted,
        dropped_fraction=dropped,
        wait_fraction=1.0 - rate / taken,
        generator_wait_fraction=held,
        load=offered / taken,
        residence_s=meeting.group_s,
        sample_residence_s=meeting.sample_s,
        token_end_s=np.maximum(meeting.group_s - before_token_s, 0.0),
        staleness_mean=mean,
        staleness_metric=metric,
        law=law,
        tables=meeting.tables,
    )


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What every plan brings to the queue, rejection settled.

    Attributes
    ----------
    free, offered : accepted samples/s before rejection, without and with pauses for weight sync.
    accepted : share of finished groups that are fresh enough.
    group_s, sample_s : mean residence of a group and of one rollout.
    """

    tables: ResidenceTables
    line: Pipeline
    free: Any
    offered: Any
    accepted: Any
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
    batch, taken = trainer.batch_samples, trainer.samples_per_s
    free = generator.dispatched_per_s * at(kept / rollouts.oversampling)
    pause = algorithm.sync_s if algorithm.generator_pauses else 0.0
    offered = rate_with_pauses(free, taken, pause, batch * every)
    token_s, fixed_s = generator.residence_token_s, generator.residence_fixed_s
    sample_s = fixed_s + token_s * at(rollouts.cut.dispatched_mean_tokens)
    spread_s: Any = 0.0
    if not algorithm.whole_groups:
        slots = generator.in_flight / (plans.engines if algorithm.limit_per_engine else 1.0)
        spread_s = (at(rollouts.oversampling * rollouts.group_size) - 1.0) / 2.0 * sample_s / slots
    mean_tokens = np.asarray([table.length_mean_tokens for table in tables.tables])
    longest = np.asarray([table.tailness for table in tables.tables]) * mean_tokens
    line = Pipeline(
        load=offered / taken,
        groups_per_batch=_or_one_number(plans.prompts_per_step),
        queue_batches=plans.queue_batches.astype(float),
        train_s=batch / taken,
        step_cv=system.trainers.step_cv,
        length_s=token_s * at(mean_tokens),
        constant_s=fixed_s,
        spread_s=spread_s,
        kept_share=at(entering * np.ones(rollouts.signal.shape)),
        optimizer_steps=float(system.trainers.optimizer_steps_per_batch),
        weight_sync_every=float(every),
        group_kind=_or_one_number(rollouts.row),
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
        accepted=accepted,
        group_s=token_s * at(longest) + fixed_s + spread_s,
        sample_s=sample_s,
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
    rate = np.minimum(trainer.samples_per_s * (1.0 - flow.wait_fraction), allowed)
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


def staleness_of(system: System, match: MatchState, index: int) -> Staleness:
    """Staleness of one plan in full: quantiles, distribution, and the measures by token.

    With rejection the distribution is that of the samples trained. With admission the distribution
    keeps the shape it has without and is moved to the mean that admission gives. By token,
    versions run from the token's own writing: the time from a token to the end of its group,
    instead of the whole residence of the group.
    """
    law = StalenessLaw(
        *(np.asarray(getattr(match.law, f.name))[index : index + 1] for f in fields(match.law))
    )
    mean = float(match.staleness_mean[index])
    limit = system.algorithm.staleness_limit
    enforce = system.algorithm.staleness_enforce
    if enforce == "admission" and mean == 0.0:
        return _nothing_stale(match, index)
    if enforce == "admission":
        moved = (mean - staleness_mean(law)) / law.optimizer_steps
        law = replace(law, batches=law.batches + moved, centre=law.centre + moved)
    last = int(staleness_quantile(1.0 - REPORTED_TAIL, law, match.tables)[0])
    if enforce == "reject":
        assert limit is not None
        last = min(last, int(limit))
    cdf = staleness_cdf(np.arange(last + 1), law, match.tables)
    if enforce == "reject" and last == int(limit or 0):
        cdf = cdf / cdf[-1]
    step_s = float(match.step_s[index])
    versions = float(system.trainers.optimizer_steps_per_batch)
    after = float(match.residence_s[index] - match.token_end_s[index]) / step_s * versions
    quantiles = {
        name: min(int(np.searchsorted(cdf, share)), last) for name, share in QUANTILES.items()
    }
    return Staleness(
        mean=mean,
        max=float(int(limit)) if enforce == "reject" and limit is not None else None,
        token_mean=max(mean - after, 0.0),
        versions_per_rollout=float(match.sample_residence_s[index]) / step_s * versions,
        environment_state_fraction=0.0,
        rejected_fraction=1.0 - float(match.accepted_fraction[index]),
        cdf=tuple(float(p) for p in cdf),
        **quantiles,
    )


def _nothing_stale(match: MatchState, index: int) -> Staleness:
    """Staleness where every rollout starts after the step before it has ended."""
    return Staleness(
        mean=0.0,
        p50=0,
        p95=0,
        p99=0,
        max=0.0,
        token_mean=0.0,
        versions_per_rollout=float(match.sample_residence_s[index] / match.step_s[index]),
        environment_state_fraction=0.0,
        rejected_fraction=0.0,
        cdf=(1.0,),
    )
