"""The profile catalogue: regenerated, resolved, looked up, and its fits checked on their points."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hardware_profiles
from allocator.scenario.errors import ScenarioError
from allocator.scenario.profiles import (
    PRICE_KINDS,
    PRICE_VINTAGES,
    UNUSED_FIELDS,
    Catalogue,
    Datum,
    GpuProfile,
    ModelProfile,
    RateRow,
    SandboxProfile,
    fold_id,
    load_catalogue,
)
from allocator.scenario.records import datum_names
from tools import build_profiles
from tools.profile_facts import Names
from tools.profile_rates import prefill_fit
from tools.profile_sandboxes import sandbox_aliases, sandbox_profiles

PROFILES = Path(next(iter(hardware_profiles.__path__)))
KINDS = {"vendor", "measured", "fitted", "assumed"}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    return build_profiles.load_sources(PROFILES / "sources")


@pytest.fixture(scope="module")
def rows(catalogue: Catalogue) -> tuple[RateRow, ...]:
    return tuple(all_rates(catalogue))


def all_rates(catalogue: Catalogue) -> Iterator[RateRow]:
    for model in catalogue.model_ids:
        for gpu in catalogue.gpu_ids:
            yield from catalogue.rates(model, gpu)


def all_data(catalogue: Catalogue) -> Iterator[Datum]:
    for gpu in map(catalogue.gpu, catalogue.gpu_ids):
        yield from (d for n in datum_names(GpuProfile) if (d := getattr(gpu, n)) is not None)
    for model in map(catalogue.model, catalogue.model_ids):
        yield from (d for n in datum_names(ModelProfile) if (d := getattr(model, n)) is not None)
    yield from (price.usd_per_gpu_hour for price in catalogue.prices())
    yield from (rate.datum() for rate in catalogue.training_rates())
    for provider in map(catalogue.sandbox, catalogue.sandbox_ids):
        yield from (
            d for n in datum_names(SandboxProfile) if (d := getattr(provider, n)) is not None
        )
        yield from (row.limit for row in provider.limits)
        yield from (row.seconds for row in provider.starts)
    for hosted in catalogue.hosted_prices():
        yield hosted.prefill_usd_per_mtok
        yield hosted.sample_usd_per_mtok
    for row in all_rates(catalogue):
        yield row.datum("alpha_s")
        yield row.datum("gamma_s_per_token")
        if row.prefill is not None:
            yield row.datum("p1_s_per_token")


class TestGenerated:
    def test_committed_profiles_are_those_the_sources_give(
        self, facts: dict[str, Any], tmp_path: Path
    ) -> None:
        build_profiles.write(tmp_path, build_profiles.build(facts))
        made = {p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()}
        kept = {
            p.relative_to(PROFILES)
            for p in (*PROFILES.rglob("*.yaml"), PROFILES / "index.json")
            if "sources" not in p.parts
        }
        assert made == kept
        stale = [str(p) for p in made if (tmp_path / p).read_bytes() != (PROFILES / p).read_bytes()]
        assert stale == [], "run `make profiles`"

    def test_profiles_no_longer_made_are_removed(self, tmp_path: Path) -> None:
        build_profiles.write(tmp_path, {"gpus/new.yaml": "a", "index.json": "{}"})
        build_profiles.write(tmp_path, {"gpus/other.yaml": "a"})
        assert [p.name for p in tmp_path.rglob("*.yaml")] == ["other.yaml"]

    def test_profile_files_are_yaml_that_says_what_the_index_says(
        self, catalogue: Catalogue
    ) -> None:
        from ruamel.yaml import YAML

        yaml = YAML(typ="safe")
        page = yaml.load(PROFILES / "gpus" / "gb300-nvl72.yaml")
        gpu = catalogue.gpu("gb300-nvl72")
        for name, entry in page["values"].items():
            assert entry["value"] == getattr(gpu, name).value, name
            assert set(entry["source"].split()) <= set(page["sources"])
        page = yaml.load(PROFILES / "rates" / "qwen3-8b.yaml")
        row = catalogue.rates("qwen3-8b", "h100-sxm")[0]
        assert page["rows"][0]["id"] == row.id
        assert page["rows"][0]["alpha_s"]["value"] == row.alpha_s
        assert page["rows"][0]["prefill"]["p1_s_per_token"]["unit"] == "s/token"
        assert row.prefill is not None
        assert page["rows"][0]["prefill"]["p1_s_per_token"]["value"] == row.prefill.p1_s_per_token

    def test_a_name_without_declaration_stops_the_build(self) -> None:
        names = Names(
            {
                "gpus": {"a-1": ["A one"]},
                "models": {},
                "not_in_catalogue": {"gpus": ["b"], "models": []},
                "same_dimensions": {},
                "variants": {},
            }
        )
        assert names.gpu("A_One") == "a-1"
        assert names.gpu("b") is None
        with pytest.raises(ValueError, match="c occurs in the data"):
            names.gpu("c")


class TestOrigin:
    def test_every_number_has_kind_unit_source_and_place(self, catalogue: Catalogue) -> None:
        data = list(all_data(catalogue))
        assert len(data) > 1000
        for datum in data:
            assert datum.kind in KINDS, datum
            assert datum.unit, datum
            assert datum.source, datum
            assert datum.where, datum
            assert datum.value > 0 or datum.unit in ("1", "s/token"), datum

    def test_where_sources_disagree_both_are_kept(self, catalogue: Catalogue) -> None:
        bandwidth = catalogue.gpu("b200").hbm_bytes_per_s
        assert (bandwidth.value, bandwidth.low, bandwidth.high) == (7.7e12, 7.7e12, 8e12)
        network = catalogue.gpu("gb200").network_bytes_per_s
        assert network is not None
        assert (network.low, network.high) == (50e9, 100e9)

    def test_figures_that_the_source_itself_assumes_say_so(self, catalogue: Catalogue) -> None:
        network = catalogue.gpu("a100").network_bytes_per_s
        power = catalogue.gpu("h200").all_in_w
        assert network is not None
        assert power is not None
        assert network.kind == power.kind == "assumed"

    def test_a_missing_number_names_the_file_to_fill(self, catalogue: Catalogue) -> None:
        with pytest.raises(ScenarioError, match=r"gpus/a100-80gb-sxm\.fp8_flops_per_s.*gpus\.yaml"):
            catalogue.gpu("a100").peak_flops_per_s("fp8")
        with pytest.raises(ScenarioError, match=r"models/glm-4\.5\.params_total.*models\.yaml"):
            catalogue.model("glm-4.5").require("params_total")

    def test_records_cannot_be_changed(self, catalogue: Catalogue) -> None:
        with pytest.raises(FrozenInstanceError):
            catalogue.gpu("h200").id = "x"  # type: ignore[misc]
        with pytest.raises(TypeError):
            catalogue.aliases["x"] = "y"  # type: ignore[index]


class TestNames:
    @pytest.mark.parametrize(
        ("name", "gpu"),
        [
            ("H200", "h200-sxm"),
            ("h200_sxm", "h200-sxm"),
            ("h200-sxm", "h200-sxm"),
            ("GB300", "gb300-nvl72"),
            ("gb300_nvl72", "gb300-nvl72"),
            ("A100 80GB", "a100-80gb-sxm"),
        ],
    )
    def test_gpu_aliases(self, catalogue: Catalogue, name: str, gpu: str) -> None:
        assert catalogue.gpu(name).id == gpu

    @pytest.mark.parametrize(
        ("name", "model"),
        [
            ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
            ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
            ("Qwen3-235B-A22B-Thinking-2507", "qwen3-235b-a22b"),
            ("nvidia/Qwen3-235B-A22B-NVFP4", "qwen3-235b-a22b"),
            ("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b"),
            ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ],
    )
    def test_model_aliases(self, catalogue: Catalogue, name: str, model: str) -> None:
        assert catalogue.model(name).id == model

    def test_unknown_names_come_with_the_nearest_id(self, catalogue: Catalogue) -> None:
        with pytest.raises(ScenarioError) as gpu:
            catalogue.gpu("h200-sxn")
        assert (gpu.value.nearest, gpu.value.given) == ("h200-sxm", "h200-sxn")
        with pytest.raises(ScenarioError) as model:
            catalogue.model("qwen3-235b-a22")
        assert model.value.nearest == "qwen3-235b-a22b"
        with pytest.raises(ScenarioError) as far:
            catalogue.gpu("abacus")
        assert far.value.nearest is None
        with pytest.raises(ScenarioError):
            catalogue.model("Llama-3-70B")  # shares rows with 3.1, is not 3.1

    def test_every_id_is_its_own_alias_and_no_alias_is_both(self, catalogue: Catalogue) -> None:
        ids = (*catalogue.gpu_ids, *catalogue.model_ids, *catalogue.sandbox_ids)
        assert all(catalogue.aliases[fold_id(name)] == name for name in ids)
        index = json.loads((PROFILES / "index.json").read_text())
        names = [index[f"{kind}_aliases"] for kind in ("gpu", "model", "sandbox")]
        assert len(catalogue.aliases) == sum(map(len, names))
        for gpu in map(catalogue.gpu, catalogue.gpu_ids):
            assert all(catalogue.gpu_id(name) == gpu.id for name in gpu.aliases)

    def test_every_name_in_every_data_file_resolves_or_is_listed(
        self, catalogue: Catalogue, facts: dict[str, Any]
    ) -> None:
        outside = catalogue.not_in_catalogue
        declared = facts["aliases"]
        rows_only = {*declared["same_dimensions"], *declared["variants"]}
        tables = [facts["prices"]["gpu_hour"], facts["prices"]["training_api"]]
        tables += [table for table in facts["rates"].values() if isinstance(table, list)]
        seen: dict[str, set[str]] = {"gpus": set(), "models": set()}
        for row in (row for table in tables for row in table if isinstance(row, dict)):
            seen["gpus"] |= {row[key] for key in ("gpu", "system") if key in row}
            seen["models"] |= {row["model"]} if "model" in row else set()
        assert len(seen["gpus"]) > 15
        assert len(seen["models"]) > 40
        for gpu in seen["gpus"] - set(outside["gpus"]):
            assert catalogue.gpu_id(gpu)
        for model in seen["models"] - set(outside["models"]) - rows_only:
            assert catalogue.model_id(model)
        # The lists hold nothing that no file mentions, and nothing that has a profile.
        assert set(outside["gpus"]) <= seen["gpus"]
        assert set(outside["models"]) <= seen["models"]
        assert rows_only <= seen["models"]
        assert not {fold_id(n) for names in outside.values() for n in names} & set(
            catalogue.aliases
        )

    def test_hf_ids_are_aliases(self, catalogue: Catalogue) -> None:
        for model in map(catalogue.model, catalogue.model_ids):
            assert model.hf_id is not None
            assert catalogue.model(model.hf_id) == model


class TestGpus:
    def test_h200_in_base_units(self, catalogue: Catalogue) -> None:
        gpu = catalogue.gpu("h200")
        assert gpu.bf16_flops_per_s.value == 989e12
        assert gpu.hbm_bytes.value == 141 * 2**30
        assert gpu.hbm_bytes_per_s.value == 4.8e12
        assert gpu.scale_up_bytes_per_s.value == 450e9
        assert gpu.require("network_bytes_per_s").value == 50e9
        assert gpu.peak_flops_per_s("fp8").value == 1979e12

    def test_arithmetic_peaks_rise_as_precision_falls(self, catalogue: Catalogue) -> None:
        for gpu in map(catalogue.gpu, catalogue.gpu_ids):
            peaks = [gpu.bf16_flops_per_s, gpu.fp8_flops_per_s, gpu.fp4_flops_per_s]
            values = [peak.value for peak in peaks if peak is not None]
            assert all(1.9 < b / a < 3.1 for a, b in pairwise(values)), gpu.id


class TestPrices:
    def test_lookup_keeps_vintages_apart(self, catalogue: Catalogue) -> None:
        assert catalogue.price("H200", "owner_neocloud", "2026-07").value == 1.59
        assert catalogue.price("H200", "owner_neocloud", "2026-04").value == 1.74
        assert catalogue.price("gb300", "owner_neocloud", "2026-07").value == 2.79
        price = catalogue.price("h200", "rental", "2026-late")
        assert (price.value, price.unit, price.kind) == (2.9, "USD/GPU-hour", "measured")

    def test_a_price_that_was_not_surveyed_is_an_error(self, catalogue: Catalogue) -> None:
        with pytest.raises(ScenarioError, match=r"2026-late.*2026-04, 2026-07.*prices\.yaml"):
            catalogue.price("h200", "owner_neocloud", "2026-late")
        with pytest.raises(ScenarioError, match="surveys that have one: none"):
            catalogue.price("l40s", "rental", "2026-07")
        with pytest.raises(ScenarioError) as vintage:
            catalogue.price("h200", "rental", "2026-7")
        assert vintage.value.nearest == "2026-07"
        with pytest.raises(ScenarioError) as kind:
            catalogue.price("h200", "owner-neocloud", "2026-07")
        assert kind.value.nearest == "owner_neocloud"

    def test_one_price_for_each_gpu_kind_and_vintage(self, catalogue: Catalogue) -> None:
        keys = [(p.gpu_as_published, p.kind, p.vintage) for p in catalogue.prices() if p.vintage]
        assert len(keys) == len(set(keys))
        assert {vintage for _, _, vintage in keys} == set(PRICE_VINTAGES)
        assert {kind for _, kind, _ in keys} == set(PRICE_KINDS)

    def test_list_prices_are_the_vendors(self, catalogue: Catalogue) -> None:
        (dedicated,) = catalogue.prices("h200", "dedicated")
        assert dedicated.usd_per_gpu_hour.kind == "vendor"
        assert dedicated.vintage is None

    def test_hosted_prices(self, catalogue: Catalogue) -> None:
        (row,) = catalogue.hosted_prices("qwen3-235b-a22b")
        assert row.model_as_published == "Qwen3-235B-A22B-Instruct-2507"
        assert row.prefill_usd_per_mtok.value == 0.68
        assert row.sample_usd_per_mtok.value == 1.70
        assert row.train_usd_per_mtok is not None
        assert row.train_usd_per_mtok.value == 2.04
        assert row.cached_prefill_usd_per_mtok is None
        outside = [row for row in catalogue.hosted_prices() if row.model is None]
        assert outside
        assert {row.model_as_published for row in outside} <= set(
            catalogue.not_in_catalogue["models"]
        )


class TestSandboxes:
    def test_limits_belong_to_a_plan_and_somebody_raises_them(self, catalogue: Catalogue) -> None:
        rows = [row for key in catalogue.sandbox_ids for row in catalogue.sandbox(key).limits]
        assert len(rows) > 20
        for row in rows:
            assert row.plan, row
            assert row.raised_by, row
            assert row.limit.kind == "vendor", row
        keys = [(row.limit.where, row.name) for row in rows]
        assert len(set(keys)) == len(rows)

    def test_concurrency_by_plan(self, catalogue: Catalogue) -> None:
        limits = catalogue.sandbox("E2B").limits_of("concurrent_sandboxes")
        assert [(row.plan, row.limit.value) for row in limits] == [
            ("hobby", 20), ("pro", 100), ("pro with most concurrency", 1100),
        ]  # fmt: skip
        team = catalogue.sandbox("modal").limits_of("concurrent_sandboxes")[1].limit
        assert (team.value, team.low, team.high) == (1000, 1000, 5000)

    def test_units_are_si(self, catalogue: Catalogue) -> None:
        daytona = catalogue.sandbox("daytona")
        assert daytona.limits_of("starts_per_s")[3].limit.value == 10
        assert daytona.limits_of("pool_memory_bytes")[1].limit.value == 200 * 2**30
        assert catalogue.sandbox("e2b").limits_of("lifetime_s")[0].limit.value == 3600

    def test_prices_are_per_hour_and_vcpu(self, catalogue: Catalogue) -> None:
        # Two vCPUs and half a GiB of E2B for an hour: $0.109 in its own worked example.
        e2b = catalogue.sandbox("e2b")
        assert e2b.vcpu_usd_per_hour is not None
        assert e2b.memory_gib_usd_per_hour is not None
        usd = 2 * e2b.vcpu_usd_per_hour.value + 0.5 * e2b.memory_gib_usd_per_hour.value
        assert usd == pytest.approx(0.109, abs=5e-4)
        # Modal bills a core, two vCPUs, at $0.1419 an hour.
        modal = catalogue.sandbox("modal").vcpu_usd_per_hour
        assert modal is not None
        assert 2 * modal.value == pytest.approx(0.1419, abs=1e-4)
        assert modal.unit == "USD/vCPU-hour"

    def test_start_ups_of_a_published_run(self, catalogue: Catalogue) -> None:
        (start,) = catalogue.sandbox("modal").starts
        assert (start.concurrency, start.seconds.value) == (960, 3600)
        assert start.seconds.kind == "measured"
        assert "SemiAnalysis" in start.seconds.source
        assert any("96" in note.text for note in catalogue.sandbox("modal").notes)

    def test_what_no_source_gives_is_missing(self, catalogue: Catalogue) -> None:
        assert catalogue.sandbox("prime").limits_of("concurrent_sandboxes") == ()
        assert catalogue.sandbox("modal").disk_gib_usd_per_hour is None

    def test_unknown_providers_come_with_the_nearest(self, catalogue: Catalogue) -> None:
        assert catalogue.sandbox("Modal_Sandboxes").id == "modal"
        with pytest.raises(ScenarioError, match="sandbox provider") as unknown:
            catalogue.sandbox("dayton")
        assert unknown.value.nearest == "daytona"

    def test_the_build_refuses_what_it_does_not_understand(self, facts: dict[str, Any]) -> None:
        entry = facts["sandboxes"]["providers"]["e2b"]
        for part, row in (
            ("limits", {"plan": "x", "source": "s", "raised_by": "y", "concurent": 1}),
            ("prices", {"source": "s", "usd_per_cpu_hour": 1}),
            ("notes", {"source": "s", "txt": "y"}),
        ):
            with pytest.raises(ValueError, match="no rule for"):
                sandbox_profiles({"providers": {"e2b": {**entry, part: [row]}}})
        price = {"source": "s", "usd_per_vcpu_hour": 1}
        with pytest.raises(ValueError, match="two prices"):
            sandbox_profiles({"providers": {"e2b": {**entry, "prices": [price, price]}}})
        with pytest.raises(ValueError, match="is declared for"):
            sandbox_aliases({"a": {"aliases": ["b"]}, "b": {"aliases": []}})


class TestTraining:
    def test_mfu_is_flops_over_the_peak_of_the_same_precision(self, catalogue: Catalogue) -> None:
        runs = catalogue.training_rates()
        assert len(runs) == 33
        for run in runs:
            peak = catalogue.gpu(run.gpu).peak_flops_per_s(run.precision)
            assert run.mfu == pytest.approx(run.model_flops_per_s_per_gpu / peak.value, abs=6e-4)

    def test_published_flops_are_near_six_per_parameter_and_token(
        self, catalogue: Catalogue
    ) -> None:
        for run in catalogue.training_rates():
            if run.model is None or run.task == "lora":
                continue
            model = catalogue.model(run.model)
            six_n = 6 * model.require("params_active").value * run.tokens_per_s_per_gpu
            # Embedding, attention and windows move it; a unit error would move it by 1,000.
            assert 0.75 < run.model_flops_per_s_per_gpu / six_n < 1.6, run

    def test_selection(self, catalogue: Catalogue) -> None:
        runs = catalogue.training_rates("Qwen3-235B-A22B", "gb300", "fp8")
        assert [run.precision_format for run in runs] == ["mxfp8"]
        assert catalogue.training_rates("qwen3-8b") == ()
        assert {run.model_as_published for run in catalogue.training_rates("llama-3.1-70b")} == {
            "Llama-3-70B"
        }


def step_s(row: RateRow, n: float, context_tokens: float, n_experts: float | None = None) -> float:
    """The decode law, written again from the docstring of RateRow."""
    touched: float = 0.0
    if row.experts and row.experts_per_token:
        miss = 1.0 - row.experts_per_token / row.experts
        touched = 1.0 - float(miss ** (n if n_experts is None else n_experts))
    context = row.gamma_s_per_token * n * context_tokens
    return row.alpha_s + row.expert_s * touched + row.beta_s * n + context


def rate_errors(row: RateRow, ranks: int = 1) -> list[float]:
    """Relative errors of the rate at the stored points, the expert term with n / ranks."""
    return [
        p.step_s / step_s(row, p.sequences, p.context_tokens, p.sequences / ranks) - 1
        for p in row.points
    ]


def rms(errors: list[float]) -> float:
    return math.sqrt(statistics.fmean(e * e for e in errors))


class TestRates:
    def test_counts(self, catalogue: Catalogue, rows: tuple[RateRow, ...]) -> None:
        assert len(rows) == 211
        assert len({row.id for row in rows}) == 211
        excluded = [
            rate
            for model in catalogue.model_ids
            for gpu in catalogue.gpu_ids
            for rate in catalogue.excluded_rates(model, gpu)
        ]
        assert len(excluded) == 16
        assert all("points left out" in rate.reasons[0] for rate in excluded)
        assert sum(bool(row.suspect) for row in rows) == 3

    def test_worked_example_of_the_235b_on_h200(self, catalogue: Catalogue) -> None:
        (row,) = (
            row
            for row in catalogue.rates("Qwen3-235B-A22B", "H200", "sglang", "bf16", "bf16")
            if row.ep == 8
        )
        assert (row.tp, row.dp, row.gpus_per_engine) == (8, 1, 8)
        assert (row.alpha_s, row.expert_s) == (6.972e-3, 16.72e-3)
        assert (row.beta_s, row.gamma_s_per_token) == (4.206e-5, 1.187e-8)
        assert step_s(row, 88, 16_000) == pytest.approx(0.044, abs=2e-4)

    def test_a_row_reproduces_its_points_as_well_as_it_claims(
        self, rows: tuple[RateRow, ...]
    ) -> None:
        # The stored error is over all contexts from 1k to 32k, the points are at 4k and 16k.
        worst = 0.0
        for row in rows:
            errors = [abs(error) for error in rate_errors(row)]
            worst = max(worst, statistics.median(errors) / row.rmse_fraction)
            assert max(errors) <= max(1.2 * row.worst_fraction, 0.02), row.id
        assert worst < 1.1

    def test_sequences_are_counted_on_the_whole_engine_also_with_data_parallel_attention(
        self, rows: tuple[RateRow, ...]
    ) -> None:
        parallel = [row for row in rows if row.dp > 1]
        assert len(parallel) == 14
        for row in parallel:
            whole, per_rank = rms(rate_errors(row)), rms(rate_errors(row, row.dp))
            assert whole < 1.15 * row.rmse_fraction, row.id
            assert per_rank > 1.15 * row.rmse_fraction, row.id

    def test_dense_rows_have_no_expert_term(self, catalogue: Catalogue) -> None:
        for row in all_rates(catalogue):
            model = catalogue.model(row.model)
            if model.kind == "dense":
                assert (row.form, row.expert_s, row.experts) == ("three_parameter", 0, None)
                continue
            assert row.form == "four_parameter"
            assert row.experts == model.require("experts").value
            assert row.experts_per_token == model.require("experts_per_token").value

    def test_layouts_use_every_gpu(self, rows: tuple[RateRow, ...]) -> None:
        for row in rows:
            assert row.tp * row.dp == row.gpus_per_engine
            assert row.moe_tp * row.ep in (1, row.gpus_per_engine)

    def test_selection(self, catalogue: Catalogue) -> None:
        fp8 = catalogue.rates("qwen3-235b-a22b", "h200", "auto", weights_dtype="fp8")
        assert {row.weights_format for row in fp8} == {"fp8_block"}
        assert {row.backend for row in fp8} == {"sglang", "vllm", "trtllm"}
        assert catalogue.rates("qwen3-235b-a22b", "mi300x") == ()
        assert catalogue.rates("qwen2.5-7b", "h200") == ()
        with pytest.raises(ScenarioError):
            catalogue.rates("qwen3-235b-a22b", "h2000")
        reasons = catalogue.excluded_rates("qwen3-32b", "b200")
        assert [r.backend for r in reasons] == ["vllm"]

    def test_coefficients_keep_their_origin(self, catalogue: Catalogue) -> None:
        row = catalogue.rates("qwen3-8b", "h200")[0]
        datum = row.datum("gamma_s_per_token")
        assert (datum.unit, datum.kind, datum.as_of) == ("s/token", "fitted", "2026-11-29")
        assert datum.where == f"rates/{row.id}.gamma_s_per_token"
        assert "aiconfigurator" in datum.source


class TestPrefill:
    def test_fits_pass_through_their_points_or_say_by_how_much_they_miss(
        self, rows: tuple[RateRow, ...]
    ) -> None:
        fits = [row.prefill for row in rows if row.prefill is not None]
        assert len(fits) == 201
        assert sum(not fit.exactly_determined for fit in fits) == 10
        for fit in fits:
            law = (fit.p0_s, fit.p1_s_per_token, fit.p2_s_per_token2)
            assert min(law) >= 0
            errors = [
                (law[0] + law[1] * p.tokens + law[2] * p.tokens**2) / p.seconds - 1
                for p in fit.points
            ]
            assert rms(errors) == pytest.approx(fit.rmse_fraction, abs=1e-6)
            assert fit.rmse_fraction < (1e-12 if fit.exactly_determined else 0.06)

    def test_rows_without_points_have_no_fit_and_say_why(self, rows: tuple[RateRow, ...]) -> None:
        without = [row for row in rows if row.prefill is None]
        assert {row.model for row in without} == {"deepseek-r1"}
        assert all(row.prefill_note for row in without)
        assert all(row.prefill_note is None for row in rows if row.prefill is not None)

    def test_rate_is_per_gpu_and_time_is_of_the_engine(self) -> None:
        fit = prefill_fit(
            {"len_1024_tokens": 100.0, "len_4096_tokens": 100.0, "len_16384_tokens": 100.0}, 4
        )
        assert fit["p1_s_per_token"] == pytest.approx(1 / 400)
        assert fit["points"][0] == [1024, 2.56]

    def test_a_negative_coefficient_gives_a_non_negative_fit(self) -> None:
        fit = prefill_fit(
            {"len_1024_tokens": 50.0, "len_4096_tokens": 90.0, "len_16384_tokens": 120.0}, 1
        )
        assert not fit["exactly_determined"]
        assert fit["p2_s_per_token2"] == 0
        assert fit["rmse_fraction"] > 0


class TestUnused:
    def test_the_register_names_fields_that_exist(self) -> None:
        pages = {
            "gpus": set(datum_names(GpuProfile)),
            "models": {field.name for field in fields(ModelProfile)},
            "rates": {field.name for field in fields(RateRow)} | {"other_fits"},
            "measured": set(build_profiles.MEASURED),
            "prices": {"hosted", "capital_split", "spot_index", "on_demand_median"}
            | {"on_demand_low", "on_demand_high", "dedicated"},
        }
        for name, reason in UNUSED_FIELDS.items():
            page, _, field = name.partition(".")
            assert field in pages[page], name
            assert reason

    def test_price_kinds_outside_the_surveys_are_in_the_register(
        self, catalogue: Catalogue
    ) -> None:
        kinds = {price.kind for price in catalogue.prices() if price.vintage is None}
        assert {f"prices.{kind}" for kind in kinds} <= set(UNUSED_FIELDS)
