"""Rates of engines: the user's own measurement, or the rows of the profiles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from allocator.physics.decode import DecodeLaw
from allocator.physics.prefill import PrefillLaw
from allocator.plan import Layout
from allocator.problem.model_facts import ModelFacts
from allocator.problem.system import EngineLabel, Pool

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
class EngineKind:
    """One engine kind before it is known to hold the model.

    `expert_gpus` are those that the experts are spread over.
    """

    label: EngineLabel
    gpus: int
    expert_gpus: int
    decode: DecodeLaw
    prefill: PrefillLaw


def own_kind(
    scenario: Scenario, index: int, model: ModelFacts, mean_context_tokens: float, ledger: Ledger
) -> EngineKind:
    """Return the engine kind that `engine.rates` was measured on.

    Raises
    ------
    ScenarioError
        When the law is not of one layout and one format, or lacks the context it holds at.
    """
    rates = scenario.engine.rates
    assert rates is not None
    for name in ("weights_dtype", "kv_dtype"):
        said = getattr(scenario.engine, name)
        if not isinstance(said, str):
            raise scenario.error(
                f"engine.{name}", "the one format that engine.rates was measured in", said
            )
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
    engine = scenario.engine
    dtypes = (*engine.weights_dtypes, *engine.kv_dtypes)
    label = EngineLabel(
        index, engine.backend, engine.backend_version or "", layout, False, "", *dtypes
    )
    gpus = layout.tp * layout.dp * layout.pp
    if gpus != rates.gpus_per_engine:
        raise scenario.error(
            f"{path}.gpus_per_engine", f"the {gpus} GPUs of the layout", rates.gpus_per_engine
        )
    return EngineKind(label, gpus, layout.tp * layout.dp, law, reading)


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


def combinations(scenario: Scenario) -> list[tuple[str, str]]:
    """Formats of weights and KV cache that may be chosen together."""
    engine = scenario.engine
    return list(product(engine.weights_dtypes, engine.kv_dtypes))


def profiled_kinds(
    scenario: Scenario,
    catalogue: Catalogue,
    index: int,
    pool: Pool,
    model: ModelFacts,
    ledger: Ledger,
) -> list[EngineKind]:
    """Return the engine kinds that profile rows describe, over all formats asked for.

    Rows that failed their sanity gate are left out, and said so; so is a format without a row
    where another one has some.
    """
    found = {
        (weights, kv): _of_formats(scenario, catalogue, index, pool, model, weights, kv, ledger)
        for weights, kv in combinations(scenario)
    }
    if any(found.values()):
        absent = [f"weights {w} with KV {k}" for (w, k), kinds in found.items() if not kinds]
        if absent and scenario.engine.estimate != "allow":
            ledger.warn(
                "format_without_rates",
                f"no rate profile on {pool.gpu} for {', '.join(absent)}: not among the choices",
                f"hardware.pools[{index}]",
            )
    return [kind for kinds in found.values() for kind in kinds]


def _of_formats(
    scenario: Scenario,
    catalogue: Catalogue,
    index: int,
    pool: Pool,
    model: ModelFacts,
    weights_dtype: str,
    kv_dtype: str,
    ledger: Ledger,
) -> list[EngineKind]:
    engine = scenario.engine
    backend = None if engine.backend == "auto" else engine.backend
    rows = rate_rows(catalogue, model, pool, backend, weights_dtype, kv_dtype)
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
            kept.append(_of_row(index, row, model, ledger))
    return kept


def rate_rows(
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


def _of_row(index: int, row: RateRow, model: ModelFacts, ledger: Ledger) -> EngineKind:
    layout = Layout(tp=row.tp, ep=row.ep, dp=row.dp)
    law, reading = row_laws(row, model, ledger)
    dtypes = row.weights_dtype, row.kv_dtype
    label = EngineLabel(
        index, row.backend, row.backend_version, layout, False, row_place(row), *dtypes
    )
    return EngineKind(label, row.gpus_per_engine, row.moe_tp * row.ep, law, reading)


def row_place(row: RateRow) -> str:
    """Beginning of the ledger names of a row's numbers."""
    return f"rates/{row.id}."


def row_laws(row: RateRow, model: ModelFacts, ledger: Ledger) -> tuple[DecodeLaw, PrefillLaw]:
    """Decode and prefill law of a profile row that has both, entered in the ledger."""
    place = row_place(row)

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
    return DecodeLaw(alpha, expert, beta, gamma, model.expert_miss), reading
