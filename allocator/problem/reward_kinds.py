"""Engines of a reward model on GPUs of its own: how many GPUs, how fast, how much at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from allocator.physics.decode import DecodeLaw
from allocator.physics.prefill import PrefillLaw
from allocator.physics.reward import judge_s
from allocator.plan import Layout
from allocator.problem.engine_estimate import (
    engine_peak_flops_per_s,
    estimate_scale,
    estimated_laws,
)
from allocator.problem.engine_rates import rate_rows, row_laws, row_place
from allocator.problem.model_facts import ModelFacts
from allocator.problem.reward_room import (
    DTYPE,
    Call,
    Place,
    calls_that_fit,
    reward_place,
    smallest_engine,
)
from allocator.problem.system import EngineLabel, Pool, RewardKinds, RewardLaw, WorkloadLaw

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue, RateRow
    from allocator.scenario.schema import Scenario

#: Judgements that one engine writes at the same time, value, low, high; kind assumed. Memory may
#: allow fewer.
JUDGE_IN_FLIGHT = (64.0, 16.0, 256.0)
Law = TypeVar("Law", DecodeLaw, PrefillLaw)


@dataclass(frozen=True, slots=True)
class _Engine:
    label: EngineLabel
    gpus: int
    room: float
    decode: DecodeLaw | None = None
    prefill: PrefillLaw | None = None


def reward_kinds(
    scenario: Scenario,
    catalogue: Catalogue,
    pools: tuple[Pool, ...],
    law: RewardLaw,
    model: ModelFacts | None,
    workload: WorkloadLaw,
    ledger: Ledger,
) -> RewardKinds | None:
    """Resolve the engines of a reward model on its own GPUs, one kind a pool; None without them.

    The smallest power of two of GPUs, at most a node, that holds the weights in BF16 and the cache
    of what is scored at the same time: the longest sequence where the model only reads, the
    judgements in flight where it writes (as many as a node holds when that is fewer). A judge
    takes the profile row that needs the fewest GPU-seconds for a judgement; without a row its
    rates are estimated, and said to be.

    Raises
    ------
    ScenarioError
        When no pool with the role reward holds the model.
    """
    if law.placement != "own_gpus" or model is None:
        return None
    call = _call(law, workload, ledger)
    places = [
        reward_place(catalogue, pool, index, ledger)
        for index, pool in enumerate(pools)
        if "reward" in scenario.hardware.pools[index].roles
    ]
    build = _judge if call.writes else _scorer
    engines = [e for place in places if (e := build(catalogue, place, model, call, ledger))]
    if not engines:
        raise scenario.error(
            "reward.model",
            f"a model that one node of {' or '.join(place.pool.name for place in places)} holds "
            f"in BF16, with {call.holds:,.0f} tokens of cache",
            f"{model.id}, {model.weight_bytes(DTYPE) / 2**30:,.0f} GiB",
        )
    return RewardKinds(
        labels=tuple(engine.label for engine in engines),
        pool=np.asarray([engine.label.pool for engine in engines], dtype=float),
        gpus_per_engine=np.asarray([engine.gpus for engine in engines], dtype=float),
        peak_flops_per_s=np.asarray(
            [
                engine_peak_flops_per_s(catalogue.gpu(pools[e.label.pool].gpu), DTYPE, ledger)
                for e in engines
            ]
        ),
        hfu=math.nan if call.writes else ledger.quantity("reward.hfu", scenario.reward.hfu, "1"),
        decode=_stacked([e.decode for e in engines if e.decode is not None]),
        prefill=_stacked([e.prefill for e in engines if e.prefill is not None]),
        judge_in_flight=min(call.together, *(engine.room for engine in engines)),
    )


def _call(law: RewardLaw, workload: WorkloadLaw, ledger: Ledger) -> Call:
    fixed, lengths = workload.fixed_tokens, workload.lengths
    if law.input_tokens is not None:
        reads, second = law.input_tokens, law.input_tokens**2
        longest = reads
    else:
        reads = fixed + lengths.mean
        second = fixed * fixed + 2.0 * fixed * lengths.mean + lengths.second_moment
        longest = fixed + (float(lengths.quantile(0.999)) if lengths.cap is None else lengths.cap)
    if law.output_tokens == 0.0:
        return Call(reads, second, 0.0, longest, 1.0)
    value, low, high = JUDGE_IN_FLIGHT
    together = ledger.number(
        "assumed/reward.judge_in_flight",
        value,
        "1",
        kind="assumed",
        source="judgements written together (allocator.problem.reward_kinds)",
        low=low,
        high=high,
    )
    return Call(reads, second, law.output_tokens, reads + law.output_tokens, together)


def _scorer(
    catalogue: Catalogue, place: Place, model: ModelFacts, call: Call, ledger: Ledger
) -> _Engine | None:
    found = smallest_engine(place, model, call)
    if found is None:
        return None
    gpus, room = found
    label = EngineLabel(place.index, "scorer", "", Layout(tp=gpus), False, "", DTYPE, DTYPE)
    return _Engine(label, gpus, room)


def _judge(
    catalogue: Catalogue, place: Place, model: ModelFacts, call: Call, ledger: Ledger
) -> _Engine | None:
    rows = [
        (row, room)
        for row in rate_rows(catalogue, model, place.pool, None, DTYPE, DTYPE)
        if row.prefill is not None
        and not row.suspect
        and row.gpus_per_engine <= place.pool.gpus
        and (room := calls_that_fit(place, model, _layout(row), row.moe_tp * row.ep, call)) >= 1.0
    ]
    if not rows:
        return _estimated_judge(place, model, call, ledger)
    best, room = min(rows, key=lambda found: _gpu_seconds(found[0], found[1], model, call))
    law, reading = row_laws(best, model, ledger)
    label = EngineLabel(
        place.index,
        best.backend,
        best.backend_version,
        _layout(best),
        False,
        row_place(best),
        DTYPE,
        DTYPE,
    )
    return _Engine(label, best.gpus_per_engine, room, law, reading)


def _layout(row: RateRow) -> Layout:
    return Layout(tp=row.tp, ep=row.ep, dp=row.dp)


def _gpu_seconds(row: RateRow, room: float, model: ModelFacts, call: Call) -> float:
    """GPU-seconds of one judgement, at the rates of a row as they stand in the profile."""
    assert row.prefill is not None
    fit = row.prefill
    seconds = judge_s(
        DecodeLaw(row.alpha_s, row.expert_s, row.beta_s, row.gamma_s_per_token, model.expert_miss),
        PrefillLaw(fit.p0_s, fit.p1_s_per_token, fit.p2_s_per_token2),
        1.0,
        call.reads,
        call.reads_second,
        call.writes,
        min(call.together, room),
    )
    return row.gpus_per_engine * float(seconds)


def _estimated_judge(place: Place, model: ModelFacts, call: Call, ledger: Ledger) -> _Engine | None:
    found = smallest_engine(place, model, call)
    if found is None:
        return None
    gpus, room = found
    ledger.warn(
        "estimate_only",
        f"no decode profile for the judge {model.id} on {place.pool.gpu} in BF16: its rates are "
        "estimated from data sheets (median error 6-8%)",
        "reward.model",
    )
    layout = Layout(tp=gpus)
    peak = engine_peak_flops_per_s(place.gpu, DTYPE, ledger)
    scale = estimate_scale(f"reward.estimate[{place.pool.name}]", model, ledger)
    law, reading = estimated_laws(model, place.gpu, layout, (DTYPE, DTYPE), peak, scale, ledger)
    label = EngineLabel(place.index, "estimate", "", layout, True, "", DTYPE, DTYPE)
    return _Engine(label, gpus, room, law, reading)


def _stacked(laws: list[Law]) -> Law | None:
    """One law with an entry for each engine; None without any."""
    if not laws:
        return None
    kind = type(laws[0])
    names = [f.name for f in fields(kind)]
    return kind(*(np.asarray([float(getattr(law, name)) for law in laws]) for name in names))
