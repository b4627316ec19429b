"""Which engines a plan may use: one kind per pool, backend, version, layout and formats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from allocator.physics.decode import DecodeLaw, Floats
from allocator.physics.kv_memory import (
    BYTES_PER_VALUE,
    KvFootprint,
    engine_weights_bytes_per_gpu,
    kv_budget_bytes,
    kv_copies,
)
from allocator.physics.prefill import PrefillLaw
from allocator.problem.engine_estimate import estimated_kinds
from allocator.problem.engine_rates import EngineKind, combinations, own_kind, profiled_kinds
from allocator.problem.model_facts import ModelFacts, dense_bytes
from allocator.problem.system import EngineKinds, Pool

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.schema import Scenario


def engine_kinds(
    scenario: Scenario,
    catalogue: Catalogue,
    pools: tuple[Pool, ...],
    model: ModelFacts,
    mean_context_tokens: float,
    ledger: Ledger,
) -> EngineKinds:
    """Resolve all engine kinds of all pools that may decode or, when prefill is apart, prefill.

    Rates come from the user's own measurement, else from matching profile rows, else - only when
    `engine.estimate: allow` - from the physics fallback. Rows that failed their sanity gate are
    left out, and said so.

    Raises
    ------
    ScenarioError
        When a pool has no usable rate, naming the combinations that profiles do have.
    """
    _check_inline_cache(scenario)
    kinds: list[EngineKind] = []
    used = [i for i in range(len(pools)) if _serves(scenario, i)]
    gpus = {pools[i].gpu for i in used}
    if scenario.engine.rates is not None and len(gpus) > 1:
        raise scenario.error(
            "engine.rates",
            "profiles: one measured law cannot stand for several kinds of GPU",
            ", ".join(sorted(gpus)),
        )
    for index in used:
        if scenario.engine.rates is not None:
            kinds.append(own_kind(scenario, index, model, mean_context_tokens, ledger))
            continue
        found = profiled_kinds(scenario, catalogue, index, pools[index], model, ledger)
        kinds += found
        have = {(kind.label.weights_dtype, kind.label.kv_dtype) for kind in found}
        absent = [formats for formats in combinations(scenario) if formats not in have]
        if not found or (absent and scenario.engine.estimate == "allow"):
            kinds += estimated_kinds(
                scenario, catalogue, index, pools[index], model, absent, ledger
            )
    assembled = _assemble(scenario, catalogue, pools, model, kinds, ledger)
    _warn_of_precision(scenario, assembled, ledger)
    return assembled


def disaggregated(scenario: Scenario) -> bool:
    """Whether a plan may run prefill on engines of its own."""
    return scenario.engine.disaggregation != "never"


def _serves(scenario: Scenario, index: int) -> bool:
    roles = scenario.hardware.pools[index].roles
    return "decode" in roles or ("prefill" in roles and disaggregated(scenario))


def _check_inline_cache(scenario: Scenario) -> None:
    said, model = scenario.engine.kv_dtype, scenario.model
    if isinstance(said, str) or isinstance(model, str) or model.kv_bytes_per_token is None:
        return
    raise scenario.error("engine.kv_dtype", "one format beside model.kv_bytes_per_token", said)


def _assemble(
    scenario: Scenario,
    catalogue: Catalogue,
    pools: tuple[Pool, ...],
    model: ModelFacts,
    kinds: list[EngineKind],
    ledger: Ledger,
) -> EngineKinds:
    engine = scenario.engine
    fraction = ledger.quantity("engine.memory_fraction", engine.memory_fraction, "1")
    weights, budgets, limits, growing, windowed, fitting = [], [], [], [], [], []
    token_bytes = []
    for kind in kinds:
        label = kind.label
        gpu = catalogue.gpu(pools[label.pool].gpu)
        hbm = ledger.datum(gpu.hbm_bytes, f"gpus/{gpu.id}.hbm_bytes")
        weight = engine_weights_bytes_per_gpu(
            model.params_total,
            model.expert_params_total,
            BYTES_PER_VALUE[label.weights_dtype],
            dense_bytes(label.weights_dtype),
            tensor_parallel=label.layout.tp,
            pipeline_parallel=label.layout.pp,
            expert_gpus=kind.expert_gpus,
        )
        budget = kv_budget_bytes(kind.gpus, hbm, fraction, weight)
        if budget <= 0.0:
            continue
        fitting.append(kind)
        weights.append(weight)
        budgets.append(budget)
        limits.append(hbm * fraction)
        token_bytes.append(model.kv_values_per_token * BYTES_PER_VALUE[label.kv_dtype])
        whole = token_bytes[-1] * kv_copies(model.attention, model.kv_heads, label.layout.tp)
        growing.append(whole * (1.0 - model.window_share))
        windowed.append(whole * model.window_share)
    if not fitting:
        least = min(model.weight_bytes(dtype) for dtype in engine.weights_dtypes)
        raise scenario.error(
            "engine.layouts",
            f"a layout whose GPUs hold the weights of {model.id} "
            f"({least / 2**30:,.0f} GiB) and "
            "some KV cache",
            f"{len(kinds)} layouts, none of which does",
        )
    array = np.asarray
    return EngineKinds(
        labels=tuple(k.label for k in fitting),
        pool=array([k.label.pool for k in fitting], dtype=float),
        gpus_per_engine=array([k.gpus for k in fitting], dtype=float),
        decode=DecodeLaw(
            *(
                array([float(getattr(k.decode, name)) for k in fitting])
                for name in ("alpha_s", "expert_s", "beta_s", "gamma_s_per_token", "expert_miss")
            )
        ),
        prefill=PrefillLaw(
            *(
                array([float(getattr(k.prefill, name)) for k in fitting])
                for name in ("p0_s", "p1_s_per_token", "p2_s_per_token2")
            )
        ),
        footprint=KvFootprint(array(growing), array(windowed), model.kv_window_tokens),
        weights_bytes_per_gpu=array(weights),
        kv_budget_bytes=array(budgets),
        hbm_limit_bytes=array(limits),
        kv_token_bytes=array(token_bytes),
        network_bytes_per_s=_network(scenario, catalogue, pools, fitting, ledger),
        decodes=array([_has_role(scenario, k.label.pool, "decode") for k in fitting]),
        prefills=array([_has_role(scenario, k.label.pool, "prefill") for k in fitting]),
    )


def _has_role(scenario: Scenario, pool: int, role: str) -> bool:
    return role in scenario.hardware.pools[pool].roles


def _network(
    scenario: Scenario,
    catalogue: Catalogue,
    pools: tuple[Pool, ...],
    kinds: list[EngineKind],
    ledger: Ledger,
) -> Floats:
    """Bytes/s that all GPUs of an engine send; NaN where unknown, or where nothing is sent."""
    rates = []
    for kind in kinds:
        found = catalogue.gpu(pools[kind.label.pool].gpu).network_bytes_per_s
        known = disaggregated(scenario) and found is not None
        rates.append(kind.gpus * ledger.datum(found, "") if known else math.nan)
    return np.asarray(rates)


def _warn_of_precision(scenario: Scenario, kinds: EngineKinds, ledger: Ledger) -> None:
    """Say, once for each format narrower than the trainer's, what generating in it puts at risk."""
    engine = scenario.engine
    weights = {label.weights_dtype for label in kinds.labels} - {"bf16"}
    caches = {label.kv_dtype for label in kinds.labels} - {"bf16"}
    for dtype in (*engine.weights_dtypes, *engine.kv_dtypes):
        parts = [
            (name, what)
            for name, what, used in (
                ("weights_dtype", "weights", weights),
                ("kv_dtype", "KV cache", caches),
            )
            if dtype in used
        ]
        if parts:
            name = parts[0][0]
            said = getattr(engine, name)
            ledger.warn(
                "reduced_precision",
                f"rollouts written with {' and '.join(what for _, what in parts)} in {dtype} "
                "come from a policy that differs from the BF16 one the trainer scores: they are "
                "off-policy even at staleness 0, and need recomputed log-probabilities or an "
                "importance correction; what that does to learning is not predicted here",
                f"engine.{name}"
                if isinstance(said, str)
                else f"engine.{name}[{said.index(dtype)}]",
            )
    if weights and scenario.algorithm.old_log_probs == "from_engine":
        ledger.warn(
            "mismatched_log_probs",
            f"old_log_probs: from_engine takes what a policy in {' or '.join(sorted(weights))} "
            "said for what the BF16 one would: importance ratios are wrong from the first step "
            "on; use old_log_probs: recompute, or correct for the mismatch",
            "algorithm.old_log_probs",
        )
