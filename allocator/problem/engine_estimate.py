"""Rates of engines without a profile: the data-sheet estimate, or an error that names what exists.

The estimate is used only where the scenario allows it by name, and is always labelled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from allocator.physics.decode import DecodeLaw
from allocator.physics.estimate import (
    MEDIAN_ERROR_DENSE,
    MEDIAN_ERROR_MOE,
    estimated_decode_law,
    estimated_prefill_law,
)
from allocator.physics.kv_memory import BYTES_PER_VALUE, kv_copies
from allocator.physics.prefill import PrefillLaw
from allocator.plan import Layout
from allocator.problem.engine_rates import EngineKind, rate_rows
from allocator.problem.model_facts import ModelFacts, dense_bytes
from allocator.problem.system import EngineLabel, Pool

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.errors import ScenarioError
    from allocator.scenario.profiles import Catalogue, GpuProfile
    from allocator.scenario.schema import Scenario


def estimated_kinds(
    scenario: Scenario,
    catalogue: Catalogue,
    index: int,
    pool: Pool,
    model: ModelFacts,
    formats: list[tuple[str, str]],
    ledger: Ledger,
) -> list[EngineKind]:
    """Return estimated engine kinds of a pool, one for each layout and each of the formats.

    Raises
    ------
    ScenarioError
        Where the scenario does not allow an estimate, naming the combinations that profiles have.
    """
    engine = scenario.engine
    wanted = (
        f"{model.id} on {pool.gpu}, backend {engine.backend}"
        f"{' ' + engine.backend_version if engine.backend_version else ''}, weights "
        + " or ".join(f"{weights}, KV {kv}" for weights, kv in formats)
    )
    if engine.estimate != "allow":
        raise _no_profile(scenario, catalogue, pool, model, wanted)
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
    kinds = []
    for weights, kv in formats:
        peak = engine_peak_flops_per_s(gpu, weights, ledger)
        scale = estimate_scale(f"engine.estimate[{pool.name}]", model, ledger)
        domain = int(ledger.datum(gpu.scale_up_domain_gpus, f"gpus/{gpu.id}.scale_up_domain_gpus"))
        for layout in layouts:
            gpus = layout.tp * layout.dp * layout.pp
            if gpus > min(domain, pool.gpus):
                continue
            law, reading = estimated_laws(model, gpu, layout, (weights, kv), peak, scale, ledger)
            label = EngineLabel(index, "estimate", "", layout, True, "", weights, kv)
            kinds.append(EngineKind(label, gpus, layout.tp * layout.dp, law, reading))
    return kinds


def _no_profile(
    scenario: Scenario, catalogue: Catalogue, pool: Pool, model: ModelFacts, wanted: str
) -> ScenarioError:
    known = rate_rows(catalogue, model, pool)
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
    return scenario.error(
        "engine",
        "a combination that a decode profile covers ("
        + ("; ".join(have) if have else f"there is none for {model.id} on {pool.gpu}")
        + "), your own engine.rates, or engine.estimate: allow for a data-sheet estimate",
        wanted,
    )


def engine_peak_flops_per_s(gpu: GpuProfile, weights_dtype: str, ledger: Ledger) -> float:
    """Dense peak that an engine computes at: FP8 for all formats narrower than BF16."""
    name = "bf16_flops_per_s" if weights_dtype == "bf16" else "fp8_flops_per_s"
    return ledger.datum(getattr(gpu, name), f"gpus/{gpu.id}.{name}")


def estimate_scale(name: str, model: ModelFacts, ledger: Ledger) -> float:
    """Factor on an estimated decode step: 1, with twice the median error on either side."""
    error = MEDIAN_ERROR_MOE if model.experts else MEDIAN_ERROR_DENSE
    return ledger.number(
        name,
        1.0,
        "1",
        kind="assumed",
        source="data-sheet estimate of the decode step (allocator.physics.estimate)",
        low=1.0 - 2.0 * error,
        high=1.0 + 2.0 * error,
    )


def estimated_laws(
    model: ModelFacts,
    gpu: GpuProfile,
    layout: Layout,
    dtypes: tuple[str, str],
    peak_flops_per_s: float,
    scale: float,
    ledger: Ledger,
) -> tuple[DecodeLaw, PrefillLaw]:
    """Decode and prefill law of one engine from its model and data sheet.

    Parameters
    ----------
    dtypes : formats of weights and KV cache.
    scale : factor on the decode step (`estimate_scale`).
    """
    weights_dtype, kv_dtype = dtypes
    gpus = layout.tp * layout.dp * layout.pp
    law = estimated_decode_law(
        layers=model.layers,
        hidden=model.hidden,
        dense_weight_bytes=(model.params_total - model.expert_params_total)
        * dense_bytes(weights_dtype),
        expert_weight_bytes=model.expert_params_total * BYTES_PER_VALUE[weights_dtype],
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        matmul_params=model.forward.matmul_params,
        kv_bytes_per_token=model.kv_values_per_token
        * BYTES_PER_VALUE[kv_dtype]
        * kv_copies(model.attention, model.kv_heads, layout.tp),
        gpus=gpus,
        hbm_bytes_per_s=ledger.datum(gpu.hbm_bytes_per_s, f"gpus/{gpu.id}.hbm_bytes_per_s"),
        peak_flops_per_s=peak_flops_per_s,
        scale_up_bytes_per_s=ledger.datum(
            gpu.scale_up_bytes_per_s, f"gpus/{gpu.id}.scale_up_bytes_per_s"
        ),
    )
    # Layers with a window meet few pairs of a long prompt: they are left out.
    reading = estimated_prefill_law(
        matmul_params=model.forward.matmul_params,
        attention_flops_per_pair=model.forward.flops_per_pair * model.forward.full_layers,
        gpus=gpus,
        peak_flops_per_s=peak_flops_per_s,
    )
    scaled = DecodeLaw(
        scale * law.alpha_s,
        scale * law.expert_s,
        scale * law.beta_s,
        scale * law.gamma_s_per_token,
        law.expert_miss,
    )
    return scaled, reading
