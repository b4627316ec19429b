"""Where the two sides meet: the queue, who waits, what is lost, and how stale samples are."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from allocator.evaluator.generator import GeneratorState, RolloutState
from allocator.evaluator.trainer import TrainerState
from allocator.physics.lengths import Lengths
from allocator.physics.pipeline import Pipeline, StalenessLaw, staleness_law
from allocator.physics.residence import ResidenceTable, residence_table
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
    """Find the steady state of every plan, one kind of group after the other."""
    states = []
    places = []
    for row in range(rollouts.group_size.size):
        own = np.flatnonzero(rollouts.row == row)
        if own.size == 0:
            continue
        pick = _all if own.size == len(plans) else partial(_some, own)
        meeting = _meeting(system, plans, rollouts, generator, trainer, row, pick)
        states.append(_match_row(system, rollouts, meeting, row))
        places.append(own)
    if len(states) == 1:
        return states[0]
    order = np.argsort(np.concatenate(places))
    return MatchState(
        *(np.concatenate([getattr(s, f.name) for s in states])[order] for f in fields(MatchState))
    )


def _all(values: Any) -> Any:
    return values


def _some(chosen: NDArray[np.intp], values: Any) -> Any:
    return np.asarray(values)[chosen]


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What some plans of one kind of group bring to the queue, rejection settled."""

    table: ResidenceTable
    line: Pipeline
    accepted: Any
    free: Any
    offered: Any
    taken: Any
    batch: Any
    token_s: Any
    fixed_s: Any
    sample_s: Any


def _meeting(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
    row: int,
    pick: Any,
) -> _Meeting:
    algorithm, cut = system.algorithm, rollouts.cut
    factor = float(rollouts.oversampling[row])
    size = float(rollouts.group_size[row])
    table = group_table(system.workload.lengths, int(size), factor, algorithm.oversampling_by)
    signal = float(rollouts.signal[row])
    replaced = signal if algorithm.dynamic_sampling == "refill" else 1.0
    batch, taken = pick(trainer.batch_samples), pick(trainer.samples_per_s)
    free = pick(generator.dispatched_per_s) / factor * replaced
    pause = algorithm.sync_s if algorithm.generator_pauses else 0.0
    every = algorithm.weight_sync_every_steps
    offered = rate_with_pauses(free, taken, pause, batch * every)
    token_s, fixed_s = pick(generator.residence_token_s), pick(generator.residence_fixed_s)
    sample_s = fixed_s + token_s * float(cut.dispatched_mean_tokens[row])
    spread_s: Any = 0.0
    if not algorithm.whole_groups:
        slots = pick(generator.in_flight)
        if algorithm.limit_per_engine:
            slots = slots / pick(plans.engines)
        spread_s = (factor * size - 1.0) / 2.0 * sample_s / slots
    line = Pipeline(
        load=offered / taken,
        groups_per_batch=pick(plans.prompts_per_step).astype(float),
        queue_batches=pick(plans.queue_batches).astype(float),
        train_s=batch / taken,
        step_cv=system.trainers.step_cv,
        length_s=token_s * table.length_mean_tokens,
        constant_s=fixed_s,
        spread_s=spread_s,
        kept_share=replaced / (factor if algorithm.oversampling_by == "group" else 1.0),
        optimizer_steps=float(system.trainers.optimizer_steps_per_batch),
        weight_sync_every=float(every),
    )
    accepted: Any = np.ones(np.shape(offered))
    if algorithm.staleness_enforce == "reject":
        assert algorithm.staleness_limit is not None
        accepted = accepted_fraction(np.floor(algorithm.staleness_limit), line, table)
        line = after_rejection(line, accepted)
    return _Meeting(table, line, accepted, free, offered, taken, batch, token_s, fixed_s, sample_s)


def _match_row(system: System, rollouts: RolloutState, meeting: _Meeting, row: int) -> MatchState:
    """Steady state of the plans of one kind of group."""
    algorithm, cut = system.algorithm, rollouts.cut
    line, table, taken, batch = meeting.line, meeting.table, meeting.taken, meeting.batch
    law = staleness_law(line, table)
    rate = taken * (1.0 - law.wait_fraction)
    group_s = line.length_s * table.tailness + line.constant_s + line.spread_s
    mean, metric = _staleness(algorithm, law, table)
    dropped = law.dropped_fraction
    running = meeting.offered / meeting.free
    held = np.zeros(np.shape(rate))
    if algorithm.staleness_enforce == "admission":
        paced = _paced(system, meeting, group_s)
        bound = paced < rate
        held = np.where(bound, 1.0 - paced / meeting.offered, 0.0)
        running = np.where(bound, paced / meeting.free, running)
        rate = np.where(bound, paced, rate)
        dropped = np.where(bound, 0.0, dropped)
        mean = metric = np.where(bound, algorithm.staleness_limit, mean)
    token_age = meeting.fixed_s + meeting.token_s * float(
        cut.kept_second_moment_tokens2[row] / (2.0 * cut.kept_mean_tokens[row])
    )
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
        residence_s=group_s,
        sample_residence_s=meeting.sample_s,
        token_end_s=np.maximum(group_s - token_age, 0.0),
        staleness_mean=mean,
        staleness_metric=metric,
    )


def _paced(system: System, meeting: _Meeting, group_s: Any) -> Any:
    """Rate that admission allows, samples/s."""
    lengths = system.workload.lengths
    longest = meeting.token_s * lengths.mean * lengths.tailness(meeting.batch)
    return admission_rate_per_s(
        system.algorithm.staleness_limit,
        meeting.batch,
        group_s,
        meeting.fixed_s + longest,
        meeting.batch / meeting.taken,
    )


def _staleness(
    algorithm: AlgorithmLaw, law: StalenessLaw, table: ResidenceTable
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


def staleness_of(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    trainer: TrainerState,
    match: MatchState,
    index: int,
) -> Staleness:
    """Staleness of one plan in full: quantiles, distribution, and the measures by token.

    With rejection the distribution is that of the samples trained. Where admission holds the
    generator back, the distribution keeps its shape and its mean is moved to the limit. By token,
    versions run from the token's own writing: the time from a token to the end of its group,
    instead of the whole residence of the group.
    """
    row = int(rollouts.row[index])
    meeting = _meeting(
        system, plans, rollouts, generator, trainer, row,
        lambda values: np.asarray(values)[index : index + 1],
    )  # fmt: skip
    law = staleness_law(meeting.line, meeting.table)
    mean = float(match.staleness_mean[index])
    limit = system.algorithm.staleness_limit
    enforce = system.algorithm.staleness_enforce
    if enforce == "admission" and float(match.generator_wait_fraction[index]) > 0.0:
        law = replace(law, batches=law.batches + (mean - staleness_mean(law)))
    last = int(staleness_quantile(1.0 - REPORTED_TAIL, law, meeting.table)[0])
    if enforce == "reject":
        assert limit is not None
        last = min(last, int(limit))
    cdf = staleness_cdf(np.arange(last + 1), law, meeting.table)
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
        max=float(limit) if enforce == "reject" and limit is not None else None,
        token_mean=max(mean - after, 0.0),
        versions_per_rollout=float(match.sample_residence_s[index]) / step_s * versions,
        environment_state_fraction=0.0,
        rejected_fraction=1.0 - float(match.accepted_fraction[index]),
        cdf=tuple(float(p) for p in cdf),
        **quantiles,
    )
