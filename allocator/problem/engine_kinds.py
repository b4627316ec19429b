"""Which engines the generator may use: one kind per pool, backend, version and layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from allocator.physics.decode import DecodeLaw
from allocator.physics.estimate import (
    MEDIAN_ERROR_DENSE,
    MEDIAN_ERROR_MOE,
    estimated_decode_law,
    estimated_prefill_law,
)
from allocator.physics.kv_memory import (
    BYTES_PER_VALUE,
    KvFootprint,
    engine_weights_bytes_per_gpu,
    kv_budget_bytes,
    kv_copies,
)
from allocator.physics.prefill import PrefillLaw
from allocator.plan import Layout
from allocator.problem.model_facts import ModelFacts, dense_bytes
from allocator.problem.system import EngineKinds, EngineLabel, Pool

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue, RateRow
    from allocator.scenario.schema import Scenario

#: Time of an engine over its modelled time: the rate rows are modelled by aiconfigurator-core, and
#: against 13 published maximum-load measurements its rates are 0.86 to 1.32 times the measured
#: ones, 10th to 90th percentile 0.91 to 1.26 (hardware_profiles/measured.yaml). No correction.
ENGINE_OVER_MODEL = (1.0, 0.91, 1.26)
#: 80% of a normal error lies within 1.28 standard deviations.
INTERVAL_80 = 1.2816
#: A law without a context term may be used this close to the context it was measured at.
SAME_CONTEXT = 0.1


@dataclass(frozen=True, slots=True)
class _Kind:
    label: EngineLabel
    gpus: int
    expert_gpus: int
    decode: DecodeLaw
    prefill: PrefillLaw


def engine_kinds(
    scenario: Scenario,
    catalogue: Catalogue,
    pools: tuple[Pool, ...],
    model: ModelFacts,
    mean_context_tokens: float,
    ledger: Ledger,
) -> EngineKinds:
    """Resolve all engine kinds of all pools that may decode.

    Rates come from the user's own measurement, else from matching profile rows, else - only when
    `engine.estimate: allow` - from the physics fallback. Rows that failed their sanity gate are
    left out, and said so.

    Raises
    ------
    ScenarioError
        When a pool has no usable rate, naming the combinations that profiles do have.
    """
    kinds: list[_Kind] = []
    decoding = {p.gpu for i, p in enumerate(pools) if "decode" in scenario.hardware.pools[i].roles}
    if scenario.engine.rates is not None and len(decoding) > 1:
        raise scenario.error(
            "engine.rates",
            "profiles: one measured law cannot stand for several kinds of GPU",
            ", ".join(sorted(decoding)),
        )
    for index, pool in enumerate(pools):
        if "decode" not in scenario.hardware.pools[index].roles:
            continue
        if scenario.engine.rates is not None:
            kinds.append(_own(scenario, index, model, mean_context_tokens, ledger))
            continue
        found = _profiled(scenario, catalogue, index, pool, model, ledger)
        kinds += found or _estimated(scenario, catalogue, index, pool, model, ledger)
    return _assemble(scenario, catalogue, pools, model, kinds, ledger)


def _own(
    scenario: Scenario, index: int, model: ModelFacts, mean_context_tokens: float, ledger: Ledger
) -> _Kind:
    rates = scenario.engine.rates
    assert rates is not None
    layouts = scenario.engine.layouts
    if isinstance(layouts, str) or len(layouts) != 1:
        raise scenario.error(
            "engine.layouts", "exactly one layout, the one engine.rates was measured on", "auto"
        )
    layout = Layout(**{k: getattr(layouts[0], k) for k in ("tp", "ep", "dp", "pp")})
    decode, prefill = rates.decode, rates.prefill
    path = "engine.rates"
    gamma = 0.0
    if decode.gamma_s_per_token is not None:
        gamma = ledger.quantity(
            f"{path}.decode.gamma_s_per_token", decode.gamma_s_per_token, "s/token"
        )
    else:
        _same_context(scenario, mean_context_tokens)
    law = DecodeLaw(
        ledger.quantity(f"{path}.decode.alpha_s", decode.alpha_s, "s"),
        ledger.quantity(f"{path}.decode.expert_s", decode.expert_s, "s"),
        ledger.quantity(f"{path}.decode.beta_s", decode.beta_s, "s"),
        gamma,
        model.expert_miss,
    )
    reading = PrefillLaw(
        ledger.quantity(f"{path}.prefill.p0_s", prefill.p0_s, "s"),
        ledger.quantity(f"{path}.prefill.p1_s_per_token", prefill.p1_s_per_token, "s/token"),
        ledger.quantity(f"{path}.prefill.p2_s_per_token2", prefill.p2_s_per_token2, "s/token2"),
    )
    label = EngineLabel(
        index, scenario.engine.backend, scenario.engine.backend_version or "", layout, False, ""
    )
    gpus = layout.tp * layout.dp * layout.pp
    if gpus != rates.gpus_per_engine:
        raise scenario.error(
            f"{path}.gpus_per_engine", f"the {gpus} GPUs of the layout", rates.gpus_per_engine
        )
    return _Kind(label, gpus, layout.tp * layout.dp, law, reading)


def _same_context(scenario: Scenario, mean_context_tokens: float) -> None:
    rates = scenario.engine.rates
    assert rates is not None
    measured = rates.decode.at_context_tokens
    path = "engine.rates.decode"
    if measured is None:
        raise scenario.error(
            f"{path}.gamma_s_per_token",
            "gamma_s_per_token, or at_context_tokens: a decode law without a context term holds "
            "only at the context it was measured at",
            "neither",
        )
    at = float(measured)
    if abs(mean_context_tokens / at - 1.0) > SAME_CONTEXT:
        raise scenario.error(
            f"{path}.at_context_tokens",
            f"a measurement within 10% of the mean context in flight, {mean_context_tokens:,.0f} "
            "tokens (or gamma_s_per_token)",
            f"{at:,.0f}",
        )


def _profiled(
    scenario: Scenario,
    catalogue: Catalogue,
    index: int,
    pool: Pool,
    model: ModelFacts,
    ledger: Ledger,
) -> list[_Kind]:
    engine = scenario.engine
    backend = None if engine.backend == "auto" else engine.backend
    rows = _rows(catalogue, model, pool, backend, engine.weights_dtype, engine.kv_dtype)
    if engine.backend_version is not None:
        rows = tuple(r for r in rows if r.backend_version == engine.backend_version)
    if not isinstance(engine.layouts, str):
        wanted = {(s.tp, s.ep, s.dp, s.pp) for s in engine.layouts}
        rows = tuple(r for r in rows if (r.tp, r.ep, r.dp, 1) in wanted)
    kept = []
    for row in rows:
        if row.suspect:
            ledger.warn(
                "suspect_rate_left_out",
                f"{row.backend} {row.backend_version} on {pool.gpu}, TP{row.tp} EP{row.ep} "
                f"DP{row.dp}: {'; '.join(row.suspect)}",
                "engine.backend",
            )
        elif row.prefill is not None and row.gpus_per_engine <= pool.gpus:
            kept.append(_from_row(index, row, model, ledger))
    return kept


def _rows(
    catalogue: Catalogue,
    model: ModelFacts,
    pool: Pool,
    backend: str | None = None,
    weights_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> tuple[RateRow, ...]:
    """Profile rows of a catalogue model; a model from elsewhere has none."""
    if not model.in_catalogue:
        return ()
    return catalogue.rates(model.id, pool.gpu, backend, weights_dtype, kv_dtype)


def _from_row(index: int, row: RateRow, model: ModelFacts, ledger: Ledger) -> _Kind:
    layout = Layout(tp=row.tp, ep=row.ep, dp=row.dp)
    place = f"rates/{row.id}."

    def use(name: str) -> float:
        return ledger.datum(row.datum(name), f"{place}{name}")

    value, low, high = ENGINE_OVER_MODEL
    reality = ledger.number(
        "rates.engine_over_model",
        value,
        "1",
        kind="measured",
        source="modelled rates against 13 published measurements (hardware_profiles/measured.yaml)",
        low=low,
        high=high,
    )
    spread = INTERVAL_80 * row.rmse_fraction
    scale = reality * ledger.number(
        f"{place}decode_residual",
        1.0,
        "1",
        kind="fitted",
        source=f"residual of the fit, {row.rmse_fraction:.1%} RMSE of the rate",
        low=1.0 - spread,
        high=1.0 + spread,
    )
    alpha, expert, beta, gamma = (
        scale * use(name) for name in ("alpha_s", "expert_s", "beta_s", "gamma_s_per_token")
    )
    reading = PrefillLaw(
        *(reality * use(name) for name in ("p0_s", "p1_s_per_token", "p2_s_per_token2"))
    )
    label = EngineLabel(index, row.backend, row.backend_version, layout, False, place)
    law = DecodeLaw(alpha, expert, beta, gamma, model.expert_miss)
    return _Kind(label, row.gpus_per_engine, row.moe_tp * row.ep, law, reading)


def _estimated(
    scenario: Scenario,
    catalogue: Catalogue,
    index: int,
    pool: Pool,
    model: ModelFacts,
    ledger: Ledger,
) -> list[_Kind]:
    engine = scenario.engine
    wanted = (
        f"{model.id} on {pool.gpu}, backend {engine.backend}"
        f"{' ' + engine.backend_version if engine.backend_version else ''}, weights "
        f"{engine.weights_dtype}, KV {engine.kv_dtype}"
    )
    if engine.estimate != "allow":
        known = _rows(catalogue, model, pool)
        have = sorted(
            {
                f"{r.backend} {r.backend_version} weights {r.weights_dtype} KV {r.kv_dtype} "
                f"TP{r.tp} EP{r.ep} DP{r.dp}"
                for r in known
                if r.prefill is not None and not r.suspect
            }
        )
        unread = sum(r.prefill is None for r in known)
        if unread:
            have.append(f"{unread} more rows have decode but no prefill rates and are not used")
        raise scenario.error(
            "engine",
            "a combination that a decode profile covers ("
            + ("; ".join(have) if have else f"there is none for {model.id} on {pool.gpu}")
            + "), your own engine.rates, or engine.estimate: allow for a data-sheet estimate",
            wanted,
        )
    ledger.warn(
        "estimate_only",
        f"no decode profile for {wanted}: rates are estimated from data sheets (median error 6-8%"
        " in BF16, more in FP8, not validated for latent attention)",
        "engine.estimate",
    )
    gpu = catalogue.gpu(pool.gpu)
    layouts = (
        [Layout(tp=2**k) for k in range(int(math.log2(pool.unit_gpus * 8)) + 1)]
        if isinstance(engine.layouts, str)
        else [Layout(tp=s.tp, ep=s.ep, dp=s.dp, pp=s.pp) for s in engine.layouts]
    )
    per_value = BYTES_PER_VALUE[engine.weights_dtype]
    dense_value = dense_bytes(engine.weights_dtype)
    peak = ledger.datum(
        gpu.bf16_flops_per_s if engine.weights_dtype == "bf16" else gpu.fp8_flops_per_s,
        f"gpus/{gpu.id}.{'bf16' if engine.weights_dtype == 'bf16' else 'fp8'}_flops_per_s",
    )
    error = MEDIAN_ERROR_MOE if model.experts else MEDIAN_ERROR_DENSE
    scale = ledger.number(
        f"engine.estimate[{pool.name}]",
        1.0,
        "1",
        kind="assumed",
        source="data-sheet estimate of the decode step (allocator.physics.estimate)",
        low=1.0 - 2.0 * error,
        high=1.0 + 2.0 * error,
    )
    domain = int(ledger.datum(gpu.scale_up_domain_gpus, f"gpus/{gpu.id}.scale_up_domain_gpus"))
    kinds = []
    for layout in layouts:
        gpus = layout.tp * layout.dp * layout.pp
        if gpus > min(domain, pool.gpus):
            continue
        law = estimated_decode_law(
            layers=model.layers,
            hidden=model.hidden,
            dense_weight_bytes=(model.params_total - model.expert_params_total) * dense_value,
            expert_weight_bytes=model.expert_params_total * per_value,
            experts=model.experts,
            experts_per_token=model.experts_per_token,
            matmul_params=model.forward.matmul_params,
            kv_bytes_per_token=model.kv_values_per_token
            * BYTES_PER_VALUE[engine.kv_dtype]
            * kv_copies(model.attention, model.kv_heads, layout.tp),
            gpus=gpus,
            hbm_bytes_per_s=ledger.datum(gpu.hbm_bytes_per_s, f"gpus/{gpu.id}.hbm_bytes_per_s"),
            peak_flops_per_s=peak,
            scale_up_bytes_per_s=ledger.datum(
                gpu.scale_up_bytes_per_s, f"gpus/{gpu.id}.scale_up_bytes_per_s"
            ),
        )
        scaled = DecodeLaw(
            scale * law.alpha_s,
            scale * law.expert_s,
            scale * law.beta_s,
            scale * law.gamma_s_per_token,
            law.expert_miss,
        )
        # Layers with a window meet few pairs of a long prompt: they are left out.
        reading = estimated_prefill_law(
            matmul_params=model.forward.matmul_params,
            attention_flops_per_pair=model.forward.flops_per_pair * model.forward.full_layers,
            gpus=gpus,
            peak_flops_per_s=peak,
        )
        label = EngineLabel(index, "estimate", "", layout, True, "")
        kinds.append(_Kind(label, gpus, layout.tp * layout.dp, scaled, reading))
    return kinds


def _assemble(
    scenario: Scenario,
    catalogue: Catalogue,
    pools: tuple[Pool, ...],
    model: ModelFacts,
    kinds: list[_Kind],
    ledger: Ledger,
) -> EngineKinds:
    engine = scenario.engine
    fraction = ledger.quantity("engine.memory_fraction", engine.memory_fraction, "1")
    kv_value = BYTES_PER_VALUE[engine.kv_dtype]
    weights, budgets, limits, growing, windowed, fitting = [], [], [], [], [], []
    for kind in kinds:
        gpu = catalogue.gpu(pools[kind.label.pool].gpu)
        hbm = ledger.datum(gpu.hbm_bytes, f"gpus/{gpu.id}.hbm_bytes")
        weight = engine_weights_bytes_per_gpu(
            model.params_total,
            model.expert_params_total,
            BYTES_PER_VALUE[engine.weights_dtype],
            dense_bytes(engine.weights_dtype),
            tensor_parallel=kind.label.layout.tp,
            pipeline_parallel=kind.label.layout.pp,
            expert_gpus=kind.expert_gpus,
        )
        budget = kv_budget_bytes(kind.gpus, hbm, fraction, weight)
        if budget <= 0.0:
            continue
        fitting.append(kind)
        weights.append(weight)
        budgets.append(budget)
        limits.append(hbm * fraction)
        copies = kv_copies(model.attention, model.kv_heads, kind.label.layout.tp)
        whole = model.kv_values_per_token * kv_value * copies
        growing.append(whole * (1.0 - model.window_share))
        windowed.append(whole * model.window_share)
    if not fitting:
        raise scenario.error(
            "engine.layouts",
            f"a layout whose GPUs hold the weights of {model.id} "
            f"({model.weight_bytes(engine.weights_dtype) / 2**30:,.0f} GiB) and "
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
    )
