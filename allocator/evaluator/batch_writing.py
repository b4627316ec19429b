"""How long the generator takes to write and score one batch, and what becomes of its rollouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from allocator.evaluator.columns import distinct_rows
from allocator.evaluator.generator import GeneratorState
from allocator.evaluator.match_state import taken
from allocator.evaluator.rollouts import RolloutState
from allocator.physics.attempts import restarted_tail
from allocator.physics.batch_generation import BatchGeneration, batch_generation
from allocator.physics.decode import decode_step_s
from allocator.physics.resumed import ResumedBatch, resumed_batch
from allocator.physics.reward import batch_reward_s
from allocator.physics.turns import tool_tail_s
from allocator.problem.decisions import DecisionArrays
from allocator.problem.system import System


@dataclass(frozen=True, slots=True)
class Written:
    """One batch of the generator; arrays, one entry a plan.

    Attributes
    ----------
    whole_s : seconds until it is written and scored; `scoring_s` of them are added by scoring.
    sd_s : standard deviation of the first over the batches.
    generation_s : of one round.
    resumed : whether unfinished rollouts are resumed in the next batch.
    life_token_s : seconds in the generator per token of a rollout that may be resumed.
    ends_met : ends of batches that such a rollout meets on average; `late_share` of them start
        when a place comes free, in the first `late_part` of a batch.
    written_ratio : tokens of a rollout started over those that the cut alone says: where a batch
        needs several waves some never start.
    discarded_token_fraction : share of the tokens in rollouts that are cancelled.
    """

    whole_s: Any
    scoring_s: Any
    sd_s: Any
    generation_s: Any
    resumed: Any
    life_token_s: Any
    ends_met: Any
    late_share: Any
    late_part: Any
    written_ratio: Any
    discarded_token_fraction: Any


def batch_written(
    system: System, plans: DecisionArrays, rollouts: RolloutState, generator: GeneratorState
) -> Written:
    """Time one batch of every plan (once per distinct configuration of the generator)."""
    rows = distinct_rows(
        plans.generator_kind,
        plans.engines,
        plans.in_flight_per_engine,
        plans.prefill_kind,
        plans.prefill_engines,
        plans.reward_kind,
        plans.reward_engines,
        rollouts.row,
    )
    written = _distinct(
        system,
        plans.take(rows.first),
        replace(rollouts, row=rollouts.row[rows.first]),
        taken(generator, rows.first),
    )
    spread: Written = taken(written, rows.inverse)
    return spread


def offered_per_s(
    system: System, plans: DecisionArrays, rollouts: RolloutState, generator: GeneratorState
) -> Any:
    """Accepted samples/s of a generator that writes and scores one batch after the other."""
    batch = plans.prompts_per_step * plans.group_size
    return batch / batch_written(system, plans, rollouts, generator).whole_s


def _distinct(
    system: System, plans: DecisionArrays, rollouts: RolloutState, generator: GeneratorState
) -> Written:
    """Time one batch; dead groups are replaced in further rounds, each with its own tail."""
    reward, at = generator.stations.reward, rollouts.at
    rounds, cut = at(rollouts.rounds), rollouts.cut
    batch = (plans.prompts_per_step * plans.group_size).astype(float)
    fresh = _from_the_start(system, plans, rollouts, generator, batch)
    tokens = at(cut.dispatched_mean_tokens)
    generation_s = fresh.seconds
    ratio = fresh.lengths.dispatched_mean_tokens / tokens
    discarded = fresh.lengths.discarded_token_fraction
    resumed = np.zeros(batch.shape, dtype=bool)
    life_s, met, late, part = np.zeros((4, *batch.shape))
    if system.algorithm.partial_rollout:
        resumed = plans.oversampling > 1.0
        again, again_s = _resumed(system, plans, rollouts, generator, batch)
        life_s = again_s * again.in_flight / (batch / generator.ended_share / plans.engines)
        life_s = life_s / generator.written_tokens
        met, late, part = (
            np.where(resumed, of, 0.0) for of in (again.ends_met, again.late_share, again.late_part)
        )
        generation_s = np.where(resumed, again_s, generation_s)
        life_s = np.where(resumed, life_s, 0.0)
        ratio, discarded = np.where(resumed, 1.0, ratio), np.where(resumed, 0.0, discarded)
    scoring_s = batch_reward_s(
        batch * rounds,
        reward.scored_per_s,
        reward.latency_s,
        rounds * generation_s,
        overlap=system.reward.overlap,
    )
    return Written(
        whole_s=rounds * generation_s + scoring_s,
        scoring_s=scoring_s,
        sd_s=_sd_s(system, plans, rollouts, generator, batch) * np.sqrt(rounds),
        generation_s=generation_s,
        resumed=resumed,
        life_token_s=life_s,
        ends_met=met,
        late_share=late,
        late_part=part,
        written_ratio=ratio,
        discarded_token_fraction=discarded,
    )


def _from_the_start(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    batch: Any,
) -> BatchGeneration:
    """Generate a batch whose rollouts all begin with it; the slowest are cancelled or waited for.

    Attempts that are lost are made again, so that engines have more to write; those lost near the
    end make the batch wait for them.
    """
    work, around = system.workload, generator.stations
    assert rollouts.together is not None
    cut = taken(rollouts.together, rollouts.at(rollouts.together_row))
    law = system.engines.decode.take(plans.generator_kind)
    tail: Any = 0.0
    if work.tool_calls is not None:
        beyond = cut.end_tokens - cut.lengths.dispatched_mean_tokens
        tail = tool_tail_s(
            generator.residence_token_s * np.maximum(beyond, 0.0),
            work.tool_calls,
            batch,
            work.lengths.truncated_fraction,
        )
    lost = generator.lost_share
    if system.sandbox is not None and np.any(lost > 0.0):
        late = restarted_tail(work.lengths, lost, system.sandbox.retries, batch, cut.end_tokens)
        few = np.maximum(batch * lost / plans.engines, 1.0)
        step_s = decode_step_s(law, few, few * generator.context_tokens)
        again_s = around.environment_s - around.reward.latency_s + around.engine_prefill_s
        tail = tail + late.tokens * step_s + late.restarts * again_s
    written = batch_generation(
        law,
        work.lengths,
        cut,
        engines=plans.engines * generator.ended_share,
        slots=np.minimum(plans.in_flight_per_engine, generator.sequences_fit),
        prompt_tokens=(work.prompt_tokens + work.fixed_tokens) / 2.0,
        prefill_s=around.engine_prefill_s,
        environment_s=around.environment_s - around.reward.latency_s,
        tail_s=tail,
    )
    started = plans.oversampling * batch / generator.ended_share
    return replace(written, seconds=np.maximum(written.seconds, started / around.read_per_s))


def _sd_s(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    batch: Any,
) -> Any:
    """Standard deviation of the time in which one batch is written.

    In one wave the longest sample decides, at the pace of an engine that has little else left, and
    the sum of the others on its engine delays it. In waves the sum of an engine's tokens decides,
    which all its slots share.
    """
    work, cut = system.workload, rollouts.cut
    assert rollouts.together is not None
    together = taken(rollouts.together, rollouts.at(rollouts.together_row))
    law = system.engines.decode.take(plans.generator_kind)
    samples = np.maximum(plans.oversampling * batch / generator.ended_share / plans.engines, 1.0)
    slots = np.minimum(plans.in_flight_per_engine, generator.sequences_fit)
    mean = rollouts.at(cut.dispatched_mean_tokens)
    variance = rollouts.at(cut.dispatched_second_moment_tokens2) - mean**2
    end = together.end_tokens
    end_variance = np.maximum(together.end_second_moment_tokens2 - end**2, 0.0)
    last_s = decode_step_s(law, 1.0, work.prompt_tokens + end / 2.0)
    full_s = decode_step_s(law, slots, slots * generator.context_tokens)
    others = (samples - 1.0) * variance * np.square((full_s - last_s) / slots)
    one_wave = end_variance * last_s**2 + others
    waves = samples * variance * np.square(full_s / slots)
    return np.sqrt(np.where(samples > slots, waves, one_wave))


def _resumed(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    generator: GeneratorState,
    batch: Any,
) -> tuple[ResumedBatch, Any]:
    """Steps of a batch that resumes what the one before left, and the seconds it takes.

    What is resumed, if it had begun, is read again at the start.
    """
    around = generator.stations
    assert rollouts.together is not None
    together = taken(rollouts.together, rollouts.at(rollouts.together_row))
    tokens = generator.written_tokens
    kept = batch / generator.ended_share / plans.engines
    again = np.maximum(plans.oversampling - 1.0, 0.0) * batch / plans.engines
    outside_s = around.environment_s - around.reward.latency_s
    writing_s = tokens * generator.step_s
    share = writing_s / (writing_s + outside_s)
    slots = np.minimum(plans.in_flight_per_engine, generator.sequences_fit)
    found = resumed_batch(
        system.engines.decode.take(plans.generator_kind),
        system.workload.lengths,
        started=kept + again,
        kept=kept,
        slots=slots,
        mean_tokens=tokens,
        context_tokens=generator.context_tokens,
        longest_tokens=together.end_tokens / share,
        decoding_share=share,
    )
    read_again = np.minimum(again, slots)
    reading_s = kept * around.engine_prefill_s + read_again * generator.reread_s
    seconds = np.maximum(found.decode_s + reading_s, kept * plans.engines / around.read_per_s)
    return found, seconds
