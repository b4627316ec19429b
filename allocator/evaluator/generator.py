"""The generator's side of a plan: lengths after cancelling, engines in closed loop, KV memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.evaluator.columns import distinct_rows
from allocator.physics.closed_loop import engine_flow
from allocator.physics.decode import mean_decode_context_tokens, sd_decode_context_tokens
from allocator.physics.flops import search_flops
from allocator.physics.kv_memory import sequences_bytes, sequences_that_fit
from allocator.physics.oversampling import Oversampling, oversampling_cut
from allocator.physics.prefill import prefill_s, prompt_reads_per_rollout
from allocator.physics.signal import signal_fraction
from allocator.problem.decisions import DecisionArrays
from allocator.problem.system import System


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Lengths of kept and cancelled rollouts; one entry per distinct (oversampling, group size)."""

    cut: Oversampling
    oversampling: Any
    group_size: Any
    signal: Any
    row: Any
    """Row of each plan."""

    def at(self, values: Any) -> Any:
        """Return a quantity of the rows at all plans."""
        return np.asarray(values)[self.row]


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """What the engines of each plan do when nothing holds them back; arrays, one entry a plan.

    Attributes
    ----------
    dispatched_per_s : rollouts started (and ended) per second, all engines.
    in_flight : time average of rollouts started and unfinished, all engines.
    residence_fixed_s, residence_token_s : a rollout of R response tokens stays fixed + token x R.
    decoding, step_s : per engine.
    context_tokens : mean context of a decoding sequence.
    sequences_fit : that the KV cache of one engine holds.
    kv_bytes : to reserve for the sequences of one engine.
    kv_bound : whether KV capacity limits the number decoding.
    prefill_share : share of engine time spent in prefill.
    search_flops_per_rollout : prefill and decode of one dispatched rollout.
    gpus : of the generator, whole units of its pool.
    """

    dispatched_per_s: Any
    in_flight: Any
    residence_fixed_s: Any
    residence_token_s: Any
    decoding: Any
    step_s: Any
    context_tokens: Any
    sequences_fit: Any
    kv_bytes: Any
    kv_bound: Any
    prefill_share: Any
    search_flops_per_rollout: Any
    gpus: Any


def rollout_state(system: System, plans: DecisionArrays) -> RolloutState:
    """Resolve lengths and signal once per distinct oversampling factor and group size."""
    rows = distinct_rows(plans.oversampling, plans.group_size)
    group = rows.pick(plans.group_size).astype(float)
    work = system.workload
    factor = rows.pick(plans.oversampling)
    return RolloutState(
        cut=oversampling_cut(work.lengths, factor, group, system.algorithm.oversampling_by),
        oversampling=factor,
        group_size=group,
        signal=np.broadcast_to(signal_fraction(work.solve_rate, group), group.shape),
        row=rows.inverse,
    )


def generator_state(
    system: System, plans: DecisionArrays, rollouts: RolloutState
) -> GeneratorState:
    """Solve the closed loop of every plan's engines (once per distinct configuration)."""
    algorithm, work, kinds = system.algorithm, system.workload, system.engines
    engines_matter = not (algorithm.whole_groups and algorithm.limit_per_engine)
    rows = distinct_rows(
        plans.generator_kind,
        plans.in_flight_per_engine,
        rollouts.row,
        plans.engines if engines_matter else np.zeros(len(plans), dtype=np.int64),
    )
    kind, row = rows.pick(plans.generator_kind), rows.pick(rollouts.row)
    engines = rows.pick(plans.engines).astype(float)
    mean = rollouts.cut.dispatched_mean_tokens[row]
    second = rollouts.cut.dispatched_second_moment_tokens2[row]
    dispatched = rows.pick(plans.oversampling) * rollouts.group_size[row]
    context = mean_decode_context_tokens(work.prompt_tokens, mean, second)
    third = rollouts.cut.dispatched_third_moment_tokens3[row]
    spread = sd_decode_context_tokens(mean, second, third)
    footprint = kinds.footprint.take(kind)
    sequence_bytes, sd_bytes = footprint.sequence_bytes(context), footprint.bytes_per_token * spread
    fit = sequences_that_fit(kinds.kv_budget_bytes[kind], sequence_bytes, sd_bytes)
    # A whole group waits until its places are free: on average half a group of places is empty.
    empty = (dispatched - 1.0) / 2.0 if algorithm.whole_groups else 0.0
    if not algorithm.limit_per_engine:
        empty = empty / engines
    cap = rows.pick(plans.in_flight_per_engine).astype(float)
    in_flight = np.maximum(cap - empty, np.minimum(cap, 1.0))
    reads = prompt_reads_per_rollout(
        work.prefix_cache, dispatched, engines, whole_groups=algorithm.whole_groups
    )
    fresh = work.prompt_tokens * (1.0 - work.cached_prompt_share)
    prefill = reads * prefill_s(kinds.prefill.take(kind), fresh, work.prompt_tokens)
    flow = engine_flow(
        kinds.decode.take(kind),
        in_flight,
        fit,
        response_tokens=mean,
        context_tokens=context,
        prefill_s=prefill,
        environment_s=work.environment_s,
    )
    flops = search_flops(
        system.forward,
        work.prompt_tokens,
        reads * (1.0 - work.cached_prompt_share),
        mean,
        second,
    )
    unit = np.asarray([p.unit_gpus for p in system.pools])[kinds.pool.astype(int)]
    gpus = plans.engines * kinds.gpus_per_engine[plans.generator_kind]
    units = unit[plans.generator_kind]
    return GeneratorState(
        dispatched_per_s=plans.engines * rows.spread(flow.samples_per_s),
        in_flight=plans.engines * rows.spread(in_flight),
        residence_fixed_s=rows.spread(flow.fixed_s),
        residence_token_s=rows.spread(flow.token_s),
        decoding=rows.spread(flow.decoding),
        step_s=rows.spread(flow.step_s),
        context_tokens=rows.spread(context),
        sequences_fit=rows.spread(fit),
        kv_bytes=rows.spread(sequences_bytes(flow.decoding, sequence_bytes, sd_bytes)),
        kv_bound=rows.spread(flow.kv_bound),
        prefill_share=rows.spread(flow.samples_per_s * prefill),
        search_flops_per_rollout=rows.spread(flops),
        gpus=np.ceil(gpus / units) * units,
    )
