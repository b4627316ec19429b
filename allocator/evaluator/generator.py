"""The generator's side of a plan: engines in closed loop, KV memory, what a rollout costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.evaluator.columns import distinct_rows
from allocator.evaluator.rollouts import RolloutState
from allocator.evaluator.stations import Stations, stations
from allocator.physics.attempts import SandboxFate, sandbox_fate
from allocator.physics.closed_loop import EngineFlow, engine_flow, resident_sequences
from allocator.physics.flops import search_flops
from allocator.physics.group_starts import group_places
from allocator.physics.kv_memory import sequences_bytes, sequences_that_fit
from allocator.physics.prefill import prefill_s
from allocator.physics.turns import mean_tool_context_tokens, sd_turn_context_tokens
from allocator.problem.decisions import DecisionArrays
from allocator.problem.system import System

#: Passes in which pace and timeouts settle: the third moves rates by less than a thousandth.
TIMEOUT_PASSES = 3
#: Least share of attempts that end, so that a plan that loses all is merely hopeless.
LEAST_ENDED = 1e-9


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """What the engines of each plan do when nothing holds them back; arrays, one entry a plan.

    Attributes
    ----------
    dispatched_per_s : rollouts started (and ended) per second, all engines.
    ended_share : rollouts done, delivered or given up, per attempt started.
    given_up_share : of rollouts, after all their retries; lost_share : of attempts.
    failed_token_share : share of the tokens written that are in the others.
    kept_length_ratio : mean length of rollouts that no timeout ended, over that of all.
    written_tokens : mean response tokens of a dispatched rollout, however it ends.
    in_flight : time average of rollouts started and unfinished, all engines.
    residence_fixed_s, residence_token_s : a rollout of R response tokens stays fixed + token x R.
    decoding, step_s : per engine.
    resident : sequences with KV on one engine, counted in decoding ones.
    reread_s : engine-seconds to read the context of a decoding sequence again.
    context_tokens : mean context of a decoding sequence.
    sequences_fit : that the KV cache of one engine holds.
    kv_bytes : to reserve for the sequences of one engine.
    kv_bound : whether KV capacity limits the number decoding.
    station_bound : whether another station does, the reward if `reward_bound`.
    prefill_share : share of engine time spent in prefill.
    search_flops_per_rollout : prefill and decode of one dispatched rollout.
    stations : prefill engines, rewards and sandboxes around the engines.
    gpus, prefill_gpus, reward_gpus : whole units of their pools.
    """

    dispatched_per_s: Any
    ended_share: Any
    given_up_share: Any
    lost_share: Any
    failed_token_share: Any
    kept_length_ratio: Any
    written_tokens: Any
    in_flight: Any
    residence_fixed_s: Any
    residence_token_s: Any
    decoding: Any
    step_s: Any
    resident: Any
    reread_s: Any
    context_tokens: Any
    sequences_fit: Any
    kv_bytes: Any
    kv_bound: Any
    station_bound: Any
    reward_bound: Any
    prefill_share: Any
    search_flops_per_rollout: Any
    stations: Stations
    gpus: Any
    prefill_gpus: Any
    reward_gpus: Any


def generator_state(
    system: System, plans: DecisionArrays, rollouts: RolloutState
) -> GeneratorState:
    """Solve the closed loop of every plan's engines (once per distinct configuration)."""
    algorithm, work, kinds = system.algorithm, system.workload, system.engines
    engines_matter = (
        not (algorithm.whole_groups and algorithm.limit_per_engine)
        or system.sandbox is not None
        or bool(np.any(rollouts.batch > 0))
        or bool(np.any(plans.prefill_engines > 0))
        or np.isfinite(system.reward.workers)
        or np.isfinite(system.reward.max_calls_per_s)
        or bool(np.any(plans.reward_engines > 0))
    )
    rows = distinct_rows(
        plans.generator_kind,
        plans.in_flight_per_engine,
        rollouts.row,
        plans.engines if engines_matter else np.zeros(len(plans), dtype=np.int64),
        plans.prefill_kind,
        plans.prefill_engines,
        plans.reward_kind,
        plans.reward_engines,
    )
    part, row = plans.take(rows.first), rows.pick(rollouts.row)
    kind, engines = part.generator_kind, part.engines.astype(float)
    cut = rollouts.cut
    mean = cut.dispatched_mean_tokens[row]
    second = cut.dispatched_second_moment_tokens2[row]
    places = _places(system, part, rollouts, row)
    around = stations(system, part, rollouts, row, places)
    context = around.context_tokens
    spread = sd_turn_context_tokens(
        work.turns, work.tool_tokens, mean, second, cut.dispatched_third_moment_tokens3[row]
    )
    footprint = kinds.footprint.take(kind)
    sequence_bytes, sd_bytes = footprint.sequence_bytes(context), footprint.bytes_per_token * spread
    fit = sequences_that_fit(kinds.kv_budget_bytes[kind], sequence_bytes, sd_bytes)
    in_tool = mean_tool_context_tokens(work.turns, work.prompt_tokens, work.tool_tokens, mean)
    held_ratio = footprint.sequence_bytes(in_tool) / sequence_bytes
    attempted = rollouts.started_per_kept[row]

    # A batch that starts as a whole is scored after it, not while it is in flight.
    together = rollouts.batch[row] > 0
    environment_s = around.environment_s - np.where(together, around.reward.latency_s, 0.0)
    scores_per_s = np.where(together, np.inf, around.reward.scored_per_s)

    def flow_of(fate: _Fate) -> EngineFlow:
        scored = scores_per_s * attempted / fate.ended_share
        return engine_flow(
            kinds.decode.take(kind),
            places,
            fit,
            response_tokens=mean * fate.token_ratio,
            context_tokens=context,
            prefill_s=around.engine_prefill_s,
            environment_s=environment_s,
            held_s=around.held_s,
            held_ratio=held_ratio,
            rate_limit_per_s=np.minimum(around.read_per_s, scored) / engines,
        )

    fate = _fate(system, around, None)
    flow = flow_of(fate)
    settled = _places(system, part, rollouts, row, mean * flow.token_s, flow.fixed_s)
    if not np.array_equal(settled, places):
        # How long rollouts stay beside their tokens decides how many fit in beside each other.
        places = settled
        around = stations(system, part, rollouts, row, places)
        environment_s = around.environment_s - np.where(together, around.reward.latency_s, 0.0)
        fate = _fate(system, around, None)
        flow = flow_of(fate)
    if system.sandbox is not None and np.isfinite(system.sandbox.timeout_s):
        # How many attempts a timeout ends depends on the pace, and the pace on them.
        for _ in range(TIMEOUT_PASSES):
            fate = _fate(system, around, flow)
            flow = flow_of(fate)
    resident = resident_sequences(flow.decoding, flow.samples_per_s, around.held_s, held_ratio)
    scored = scores_per_s * attempted / fate.ended_share
    # An attempt that is lost has read its prompt, and some of what later turns read.
    flops = search_flops(
        system.forward,
        work.prompt_tokens,
        around.prompt_reads,
        mean * fate.token_ratio,
        second * fate.token_ratio,
        tool_tokens=work.fixed_tokens - work.prompt_tokens,
        later_tokens=around.later_tokens * fate.token_ratio,
        later_pairs=around.later_pairs * fate.token_ratio,
    )
    spread_to = rows.spread
    return GeneratorState(
        dispatched_per_s=plans.engines * spread_to(flow.samples_per_s),
        ended_share=spread_to(fate.ended_share),
        given_up_share=spread_to(fate.given_up_share),
        lost_share=spread_to(fate.lost_share),
        failed_token_share=spread_to(fate.lost_token_share),
        kept_length_ratio=spread_to(fate.kept_length_ratio),
        written_tokens=spread_to(mean * fate.token_ratio),
        in_flight=plans.engines * spread_to(places),
        residence_fixed_s=spread_to(flow.fixed_s),
        residence_token_s=spread_to(flow.token_s),
        decoding=spread_to(flow.decoding),
        step_s=spread_to(flow.step_s),
        resident=spread_to(resident),
        reread_s=spread_to(
            prefill_s(kinds.prefill.take(kind), context, context + spread * spread / context)
        ),
        context_tokens=spread_to(context),
        sequences_fit=spread_to(fit),
        kv_bytes=spread_to(sequences_bytes(resident, sequence_bytes, sd_bytes)),
        kv_bound=spread_to(flow.kv_bound),
        station_bound=spread_to(flow.station_bound),
        reward_bound=spread_to(flow.station_bound & (scored <= around.read_per_s)),
        prefill_share=spread_to(flow.samples_per_s * around.engine_prefill_s),
        search_flops_per_rollout=spread_to(flops),
        stations=around.spread(rows),
        gpus=_gpus(system, kinds, plans.generator_kind, plans.engines),
        prefill_gpus=_gpus(system, kinds, plans.prefill_kind, plans.prefill_engines),
        reward_gpus=_gpus(system, system.reward_kinds, plans.reward_kind, plans.reward_engines),
    )


@dataclass(frozen=True, slots=True)
class _Fate:
    """What sandboxes make of attempts; ratios to rollouts that nothing ends early."""

    ended_share: Any
    given_up_share: Any
    lost_share: Any
    token_ratio: Any
    lost_token_share: Any
    kept_length_ratio: Any


def _fate(system: System, around: Stations, flow: EngineFlow | None) -> _Fate:
    """Outcome of attempts: failures alone, or with the timeout at the pace of `flow`."""
    law, lengths = system.sandbox, system.workload.lengths
    whole = np.ones(np.shape(around.start_s))
    if law is None:
        return _Fate(whole, 0.0 * whole, 0.0 * whole, whole, 0.0 * whole, whole)
    failures = law.failure_fraction.at(around.sandboxes)
    if flow is None:
        found: SandboxFate = sandbox_fate(
            lengths, whole, around.start_s, around.environment_s, failures, law.retries
        )
    else:
        found = sandbox_fate(
            lengths,
            flow.token_s,
            around.start_s,
            np.maximum(flow.fixed_s - around.start_s, 0.0),
            failures,
            law.retries,
            law.timeout_s,
        )
    return _Fate(
        ended_share=1.0 / np.maximum(found.attempts.attempts, 1.0),
        given_up_share=np.minimum(found.attempts.given_up_share, 1.0 - LEAST_ENDED),
        lost_share=found.attempts.lost_share,
        token_ratio=np.maximum(found.attempt_moments[0] / lengths.mean, LEAST_ENDED),
        lost_token_share=found.lost_token_share,
        kept_length_ratio=np.nan_to_num(found.kept_moments[0] / lengths.mean, nan=1.0),
    )


def _places(
    system: System,
    plans: DecisionArrays,
    rollouts: RolloutState,
    row: Any,
    written_s: Any = 1.0,
    fixed_s: Any = 0.0,
) -> Any:
    """Time average of rollouts in flight on one engine while it has work.

    A whole group waits until its places are free (`group_places`), which depends a little on how
    much of a rollout's stay is writing. Of a batch that starts together an engine has its share,
    or as many as its cap allows.
    """
    algorithm = system.algorithm
    engines, cap = plans.engines.astype(float), plans.in_flight_per_engine.astype(float)
    stream = cap
    if algorithm.whole_groups:
        together = 1.0 if algorithm.limit_per_engine else engines
        stream = (
            group_places(
                system.workload.lengths,
                cap * together,
                rollouts.group_size[row],
                rollouts.oversampling[row],
                algorithm.oversampling_by,
                fixed_s / (written_s + fixed_s),
            )
            / together
        )
    batch = rollouts.oversampling[row] * rollouts.batch[row] / engines
    return np.where(batch > 0, np.minimum(cap, np.maximum(batch, 1.0)), stream)


def _gpus(system: System, kinds: Any, kind: Any, engines: Any) -> Any:
    """GPUs of some engines in whole units of their pool; 0 where there are none."""
    if kinds is None or not np.any(engines > 0):
        return np.zeros(np.shape(engines))
    unit = np.asarray([p.unit_gpus for p in system.pools])[kinds.pool.astype(int)]
    place = np.maximum(kind, 0)
    units = unit[place]
    return np.ceil(engines * kinds.gpus_per_engine[place] / units) * units
