"""GPUs, models, prices and training runs: from the source files to SI base units with origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.scenario.profiles import fold_id

Row = dict[str, Any]

GIB = 2**30
GPU_FIELDS = {
    # source key: (profile field, unit, factor to SI base)
    "bf16_dense_tflops": ("bf16_flops_per_s", "FLOP/s", 1e12),
    "fp8_dense_tflops": ("fp8_flops_per_s", "FLOP/s", 1e12),
    "fp4_dense_tflops": ("fp4_flops_per_s", "FLOP/s", 1e12),
    "hbm_gib": ("hbm_bytes", "byte", GIB),
    "hbm_tb_per_s": ("hbm_bytes_per_s", "byte/s", 1e12),
    "scale_up_gb_per_s_unidirectional": ("scale_up_bytes_per_s", "byte/s", 1e9),
    "scale_up_domain_gpus": ("scale_up_domain_gpus", "GPU", 1),
    "network_gbit_per_s_per_gpu": ("network_bytes_per_s", "byte/s", 1e9 / 8),
    "tdp_w": ("tdp_w", "W", 1),
    "all_in_kw_per_gpu": ("all_in_w", "W", 1e3),
    "gpus_per_node": ("gpus_per_node", "GPU", 1),
}
# The notes of gpus.yaml: these two network figures are assumptions inside the source's files, and
# the all-in power is an analyst's estimate of the July 2026 vintage.
ASSUMED_NETWORK = ("a100_80gb_sxm", "l40s")
ALL_IN_SOURCE = "inferencex_app_registry_b"

MODEL_UNITS = {
    "params_total_b": ("params_total", "parameter", 1e9),
    "params_active_b": ("params_active", "parameter", 1e9),
    "params_matmul_active_b": ("params_matmul_active", "parameter", 1e9),
    "expert_params_total_b": ("expert_params_total", "parameter", 1e9),
    "kv_elements_per_token": ("kv_elements_per_token", "element/token", 1),
    "index_key_elements_per_token": ("index_key_elements_per_token", "element/token", 1),
    "sliding_window_tokens": ("sliding_window_tokens", "token", 1),
    "max_position_embeddings": ("max_position_embeddings", "token", 1),
    "index_topk": ("index_topk", "token", 1),
}
MODEL_TEXT = ("hf_id", "kind", "attention", "tied_embeddings", "note", "source")

VINTAGES = {"sa_apr2026": "2026-04", "sa_jul2026": "2026-07", "sa_late2026": "2026-late"}
# Survey and index figures are observed in the market; these are the list prices of vendors.
LIST_PRICE_SOURCES = ("fireworks", "gpu_survey_2026")
CAPITAL_SPLIT_SOURCE = "h200_capital_split"
PRICE_ENDING = "_usd_per_gpu_hour"
HOSTED_NAMES = tuple(
    f"{what}_usd_per_mtok" for what in ("prefill", "cached_prefill", "sample", "train")
)


def number(value: float) -> float:
    """Return `value` to 12 significant digits, as an integer where it is one."""
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded.is_integer() else rounded


def date_of(sources: Mapping[str, Row], keys: str) -> str | None:
    """Return the date of the first dated source among `keys` (separated by spaces)."""
    dates = (str(sources[key]["date"]) for key in keys.split())
    return next((date for date in dates if date != "undated"), None)


def datum(value: float, unit: str, kind: str, source: str, spread: Iterable[float] = ()) -> Row:
    """Return one number with its origin; `spread` holds what other sources say."""
    values = [number(v) for v in (value, *spread)]
    row: Row = {"value": values[0], "unit": unit, "kind": kind, "source": source}
    if len(values) > 1:
        row |= {"low": min(values), "high": max(values)}
    return row


class Names:
    """The declared ids and aliases; resolving an undeclared name is an error of the data."""

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self.gpus = self._table(declared["gpus"])
        self.models = self._table(declared["models"])
        self.not_in_catalogue: dict[str, list[str]] = declared["not_in_catalogue"]
        # Rows may use more names than a scenario: see the comments in aliases.yaml.
        self._rows = {**declared["same_dimensions"], **declared["variants"]}

    @staticmethod
    def _table(entries: Mapping[str, list[str]]) -> dict[str, str]:
        table: dict[str, str] = {}
        for key, aliases in entries.items():
            for name in (key, *aliases):
                if table.setdefault(fold_id(name), key) != key:
                    raise ValueError(f"{name} is declared for {table[fold_id(name)]} and {key}")
        return table

    def gpu(self, name: str) -> str | None:
        """Return the GPU id of `name`, None where it is declared as not in the catalogue."""
        return self._find(name, self.gpus, {}, self.not_in_catalogue["gpus"])

    def model(self, name: str) -> str | None:
        """Return the model id of `name`, None where it is declared as not in the catalogue."""
        return self._find(name, self.models, self._rows, self.not_in_catalogue["models"])

    @staticmethod
    def _find(
        name: str, table: Mapping[str, str], more: Mapping[str, str], outside: Iterable[str]
    ) -> str | None:
        found = table.get(fold_id(name)) or more.get(name)
        if found is None and name not in outside:
            raise ValueError(f"{name} occurs in the data and is not declared in aliases.yaml")
        return found


def gpu_profile(key: str, facts: Mapping[str, Any]) -> Row:
    """Return the numbers of one GPU by profile field."""
    sources = " ".join(facts["sources"])
    values: Row = {}
    for name, (profile_field, unit, factor) in GPU_FIELDS.items():
        if name not in facts:
            continue
        kind, source = "vendor", sources
        if profile_field == "all_in_w":
            kind, source = "assumed", ALL_IN_SOURCE
        elif profile_field == "network_bytes_per_s" and key in ASSUMED_NETWORK:
            kind = "assumed"
        other = facts.get(f"{name}_other_source")
        spread = () if other is None else (other * factor,)
        values[profile_field] = datum(facts[name] * factor, unit, kind, source, spread)
    known = {*GPU_FIELDS, *(f"{name}_other_source" for name in GPU_FIELDS), "vendor", "sources"}
    _all_read(key, facts, known)
    return {"vendor": facts["vendor"], "values": values}


def model_profile(key: str, facts: Mapping[str, Any]) -> Row:
    """Return the text and the numbers of one model by profile field."""
    if facts["kv_bytes_per_token_bf16"] != 2 * facts["kv_elements_per_token"]:
        raise ValueError(f"{key}: kv_bytes_per_token_bf16 is not twice kv_elements_per_token")
    profile: Row = {name: facts[name] for name in MODEL_TEXT if name in facts and name != "source"}
    profile["values"] = {}
    for name, value in facts.items():
        if name in MODEL_TEXT or name == "kv_bytes_per_token_bf16":
            continue
        profile_field, unit, factor = MODEL_UNITS.get(name, (name, "1", 1))
        profile["values"][profile_field] = datum(value * factor, unit, "vendor", facts["source"])
    return profile


def price_rows(facts: Mapping[str, Any], names: Names) -> tuple[list[Row], Row]:
    """Return one row for each GPU-hour price, and the unconfirmed capital split."""
    rows: list[Row] = []
    split: Row = {}
    for entry in facts["gpu_hour"]:
        source = entry["source"]
        if source == CAPITAL_SPLIT_SOURCE:
            split = _capital_split(entry, names)
            continue
        kind = "vendor" if source in LIST_PRICE_SOURCES else "measured"
        for name, value in entry.items():
            if not name.endswith(PRICE_ENDING):
                continue
            what = name.removesuffix(PRICE_ENDING)
            gpu = names.gpu(entry["gpu"])
            rows.append(
                {
                    "where": f"prices.{gpu or entry['gpu']}.{what}.{source}",
                    "gpu": gpu,
                    "gpu_as_published": entry["gpu"],
                    "kind": what,
                    "vintage": VINTAGES.get(source),
                    "approximate": entry.get("approximate", False),
                    "usd_per_gpu_hour": datum(value, "USD/GPU-hour", kind, source),
                }
            )
        _all_read(
            source,
            entry,
            {"gpu", "source", "approximate", *(n for n in entry if n.endswith(PRICE_ENDING))},
        )
    return rows, split


def _capital_split(entry: Mapping[str, Any], names: Names) -> Row:
    """Return the unconfirmed split of one price of ownership into capital and the rest."""
    source, usd = entry["source"], "USD/GPU-hour"
    price = "owner_neocloud_usd_per_gpu_hour"
    with_share, bare = "server_with_share_capex_usd", "server_only_capex_usd"
    _all_read(source, entry, {"gpu", "source", price, "capital_share_percent", with_share, bare})
    return {
        "gpu": names.gpu(entry["gpu"]),
        price: datum(entry[price], usd, "measured", source),
        "capital_share": datum(entry["capital_share_percent"] / 100, "1", "assumed", source),
        with_share: datum(entry[with_share], "USD", "assumed", source),
        bare: datum(entry[bare], "USD", "assumed", source),
    }


def hosted_rows(facts: Mapping[str, Any], names: Names) -> list[Row]:
    """Return the list prices of hosted training services."""
    rows: list[Row] = []
    for entry in facts["training_api"]:
        _all_read(entry["model"], entry, {"model", "source", *HOSTED_NAMES})
        row: Row = {
            "where": f"hosted.{entry['source']}.{entry['model']}",
            "model": names.model(entry["model"]),
            "model_as_published": entry["model"],
        }
        for name in HOSTED_NAMES:
            value = entry.get(name)
            row[name] = (
                None if value is None else datum(value, "USD/Mtok", "vendor", entry["source"])
            )
        rows.append(row)
    return rows


def training_rows(facts: Mapping[str, Any], names: Names) -> list[Row]:
    """Return the published training runs with their MFU."""
    rows: list[Row] = []
    for position, entry in enumerate(facts["training_measured"]):
        gpu = names.gpu(entry["gpu"])
        precision = entry["precision"].lower()
        rows.append(
            {
                "where": f"measured.training[{position}]",
                "model": names.model(entry["model"]),
                "model_as_published": entry["model"],
                "gpu": gpu,
                "gpus": entry["gpus"],
                "precision": "fp8" if precision == "mxfp8" else precision,
                "precision_format": precision,
                "task": entry["task"],
                "sequence_tokens": entry["sequence_tokens"],
                "tokens_per_s_per_gpu": entry["tokens_per_s_per_gpu"],
                "model_flops_per_s_per_gpu": number(entry["model_tflops_per_s_per_gpu"] * 1e12),
                "mfu": entry["mfu_of_dense_peak"],
                "kind": "measured",
                "source": entry["source"],
            }
        )
    return rows


def measured_rows(rows: Iterable[Mapping[str, Any]], names: Names) -> list[Row]:
    """Return validation rows as published, with the ids that their names stand for."""
    kept: list[Row] = []
    for entry in rows:
        gpu = entry.get("gpu", entry.get("system", ""))
        kept.append({"model_id": names.model(entry["model"]), "gpu_id": names.gpu(gpu), **entry})
    return kept


def _all_read(where: str, facts: Mapping[str, Any], known: Iterable[str]) -> None:
    unread = set(facts) - set(known)
    if unread:
        raise ValueError(f"{where}: no rule for {', '.join(sorted(unread))}")
