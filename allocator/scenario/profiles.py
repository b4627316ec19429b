"""The catalogue of hardware, models, prices, rates and sandboxes: one index file, frozen records.

The data lives in ``hardware_profiles`` and is generated from ``hardware_profiles/sources`` by
``tools/build_profiles.py``. Only ``index.json`` is read at run time; records are built when asked
for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import hardware_profiles
from allocator.scenario.errors import ScenarioError, nearest_of, shown
from allocator.scenario.providers import SandboxLimit, SandboxProfile, SandboxStart, SourcedNote
from allocator.scenario.records import (
    Datum,
    DecodePoint,
    ExcludedRate,
    GpuPrice,
    GpuProfile,
    HostedPrice,
    ModelProfile,
    PrefillFit,
    PrefillPoint,
    RateRow,
    TrainingRate,
)

__all__ = [
    "PRICE_KINDS",
    "PRICE_VINTAGES",
    "UNUSED_FIELDS",
    "Catalogue",
    "Datum",
    "DecodePoint",
    "ExcludedRate",
    "GpuPrice",
    "GpuProfile",
    "HostedPrice",
    "ModelProfile",
    "PrefillFit",
    "PrefillPoint",
    "RateRow",
    "SandboxLimit",
    "SandboxProfile",
    "SandboxStart",
    "SourcedNote",
    "TrainingRate",
    "fold_id",
    "load_catalogue",
]

PRICE_KINDS = ("owner_neocloud", "owner_hyperscaler", "rental")
PRICE_VINTAGES = ("2026-04", "2026-07", "2026-late")

UNUSED_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "gpus.tdp_w": "no power budget or energy cost in this version",
        "gpus.all_in_w": "no power budget or energy cost in this version",
        "gpus.network_bytes_per_s": "a weight sync without a stated bandwidth takes a measured one"
        " of whole transfers",
        "gpus.fp4_flops_per_s": "only the physics fallback reads peaks of the generator, and it"
        " is not validated for FP4",
        "models.max_position_embeddings": "the scenario states max_context_tokens",
        "models.mtp_layers_not_counted": "no speculative decoding in this version",
        "models.tied_embeddings": "already counted in the parameter totals",
        "models.shared_experts": "already counted in the parameter totals",
        "models.first_dense_layers": "already counted in the parameter totals",
        "models.q_lora_rank": "already counted in the parameter totals",
        "models.kv_lora_rank": "already counted in kv_elements_per_token",
        "rates.experts": "the model's own count is used",
        "rates.experts_per_token": "the model's own count is used",
        "rates.context_min_tokens": "shown with the profile; plans are warned outside the range"
        " that all fits share",
        "rates.context_max_tokens": "shown with the profile; plans are warned outside the range"
        " that all fits share",
        "rates.kv_capacity_tokens": "the KV limit is computed from bytes, at the scenario's"
        " memory_fraction",
        "rates.points": "used by tests of the fits, not by predictions",
        "rates.other_fits": "two- and three-parameter fits, superseded by the fit in use",
        "rates.worst_fraction": "shown with the profile; intervals use rmse_fraction",
        "measured.inference": "maximum-load points for validation, mixed prefill and decode",
        "measured.inference_small": "experimental points for validation",
        "measured.rl_end_to_end": "published runs for validation",
        "measured.modelled_against_published": "accuracy of the source of the fits",
        "prices.hosted": "hosted services are not compared with in this version",
        "prices.capital_split": "not confirmed by any stored source",
        "prices.spot_index": "prices without a survey vintage are shown, never looked up",
        "prices.on_demand_median": "prices without a survey vintage are shown, never looked up",
        "prices.on_demand_low": "prices without a survey vintage are shown, never looked up",
        "prices.on_demand_high": "prices without a survey vintage are shown, never looked up",
        "prices.dedicated": "prices without a survey vintage are shown, never looked up",
    }
)
"""Profile numbers that no prediction of this version uses, and why."""


def fold_id(name: str) -> str:
    """Return `name` as ids and aliases are compared: case, ``_`` and spaces do not matter."""
    return name.strip().casefold().replace("_", "-").replace(" ", "-")


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Profiles by id or alias; unknown ids raise ScenarioError with the nearest known one.

    Errors carry no file or line: the caller knows them (``ScenarioError.at``).
    """

    _index: Mapping[str, Any] = field(repr=False)

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """Ids of all GPU profiles."""
        return tuple(self._index["gpus"])

    @property
    def model_ids(self) -> tuple[str, ...]:
        """Ids of all model profiles."""
        return tuple(self._index["models"])

    @property
    def sandbox_ids(self) -> tuple[str, ...]:
        """Ids of all providers of sandboxes."""
        return tuple(self._index["sandboxes"])

    @property
    def aliases(self) -> Mapping[str, str]:
        """Every accepted name in folded form (see `fold_id`), ids included, to its id."""
        tables = ("gpu_aliases", "model_aliases", "sandbox_aliases")
        return MappingProxyType(
            {name: key for table in tables for name, key in self._index[table].items()}
        )

    @property
    def sources(self) -> Mapping[str, Mapping[str, str | None]]:
        """Title and date of every source by its key."""
        return MappingProxyType(self._index["sources"])

    @property
    def not_in_catalogue(self) -> Mapping[str, tuple[str, ...]]:
        """Names (``gpus``, ``models``) that occur in data rows and have no profile."""
        return {kind: tuple(names) for kind, names in self._index["not_in_catalogue"].items()}

    def gpu_id(self, name: str) -> str:
        """Return the id that `name` (an id or alias) stands for."""
        return self._resolve("GPU", name, self._index["gpu_aliases"])

    def model_id(self, name: str) -> str:
        """Return the id that `name` (an id or alias) stands for."""
        return self._resolve("model", name, self._index["model_aliases"])

    @cache  # noqa: B019  (one catalogue lives as long as the process)
    def gpu(self, name: str) -> GpuProfile:
        """Return the profile of GPU `name`."""
        key = self.gpu_id(name)
        entry = self._index["gpus"][key]
        return GpuProfile(
            id=key,
            vendor=entry["vendor"],
            aliases=tuple(entry["aliases"]),
            **self._data(f"gpus/{key}", entry["values"]),
        )

    @cache  # noqa: B019  (one catalogue lives as long as the process)
    def model(self, name: str) -> ModelProfile:
        """Return the profile of model `name`."""
        key = self.model_id(name)
        entry = self._index["models"][key]
        return ModelProfile(
            id=key,
            kind=entry["kind"],
            attention=entry["attention"],
            hf_id=entry["hf_id"],
            tied_embeddings=entry.get("tied_embeddings"),
            note=entry.get("note"),
            aliases=tuple(entry["aliases"]),
            **self._data(f"models/{key}", entry["values"]),
        )

    @cache  # noqa: B019  (one catalogue lives as long as the process)
    def sandbox(self, name: str) -> SandboxProfile:
        """Return the profile of the sandbox provider `name` (an id or alias)."""
        key = self._resolve("sandbox provider", name, self._index["sandbox_aliases"])
        entry, where = self._index["sandboxes"][key], f"sandboxes/{key}"
        return SandboxProfile(
            id=key,
            aliases=tuple(entry["aliases"]),
            limits=tuple(
                SandboxLimit(
                    row["name"],
                    row["plan"],
                    row["raised_by"],
                    self._datum(f"{where}.limits[{position}]", row["limit"]),
                )
                for position, row in enumerate(entry["limits"])
            ),
            starts=tuple(
                SandboxStart(
                    row["what"],
                    row["concurrency"],
                    self._datum(f"{where}.starts[{position}]", row["seconds"]),
                )
                for position, row in enumerate(entry["starts"])
            ),
            notes=tuple(
                SourcedNote(row["text"], self._title(row["source"]), self._date(row["source"]))
                for row in entry["notes"]
            ),
            **self._data(where, entry["values"]),
        )

    def model_from_config(self, path: str | Path) -> ModelProfile:
        """Return a profile computed from a Hugging Face ``config.json``."""
        from allocator.scenario.model_config import model_from_config

        return model_from_config(path)

    @cache  # noqa: B019  (one catalogue lives as long as the process)
    def rates(
        self,
        model: str,
        gpu: str,
        backend: str | None = None,
        weights_dtype: str | None = None,
        kv_dtype: str | None = None,
    ) -> tuple[RateRow, ...]:
        """Return the rate rows that match; None (or ``auto``) matches every value.

        Rows that fail the sanity gate are among them, with their reasons in `suspect`.
        """
        wanted = {
            "gpu": self.gpu_id(gpu),
            "backend": None if backend == "auto" else backend,
            "weights_dtype": weights_dtype,
            "kv_dtype": kv_dtype,
        }
        columns = self._index["rate_columns"]
        rows = (
            dict(zip(columns, row, strict=True))
            for row in self._index["rates"].get(self.model_id(model), ())
        )
        return tuple(self._rate_row(row) for row in rows if _matches(row, wanted))

    def excluded_rates(self, model: str, gpu: str) -> tuple[ExcludedRate, ...]:
        """Return the rate rows of the source that are kept out of the tables, with reasons."""
        wanted = {"model": self.model_id(model), "gpu": self.gpu_id(gpu)}
        rows = (row for row in self._index["excluded_rates"] if _matches(row, wanted))
        return tuple(ExcludedRate(**{**row, "reasons": tuple(row["reasons"])}) for row in rows)

    def training_rates(
        self, model: str | None = None, gpu: str | None = None, precision: str | None = None
    ) -> tuple[TrainingRate, ...]:
        """Return the published training runs that match; None matches every value.

        `precision` is ``bf16`` or ``fp8`` (MXFP8 included, see `TrainingRate.precision_format`).
        """
        wanted = {
            "model": None if model is None else self.model_id(model),
            "gpu": None if gpu is None else self.gpu_id(gpu),
            "precision": precision,
        }
        rows = (row for row in self._index["training"] if _matches(row, wanted))
        return tuple(
            TrainingRate(
                **{**row, "source": self._title(row["source"]), "as_of": self._date(row["source"])}
            )
            for row in rows
        )

    def price(self, gpu: str, kind: str, vintage: str) -> Datum:
        """Return USD per GPU-hour of `gpu` in one survey.

        Parameters
        ----------
        gpu : GPU id or alias.
        kind : ``owner_neocloud`` | ``owner_hyperscaler`` (cost of ownership) | ``rental``.
        vintage : ``2026-04`` | ``2026-07`` | ``2026-late``; vintages are never mixed.

        Raises
        ------
        ScenarioError
            Where the survey has no such price; names the vintages that do.
        """
        for name, given, legal in (
            ("kind", kind, PRICE_KINDS),
            ("vintage", vintage, PRICE_VINTAGES),
        ):
            if given not in legal:
                raise ScenarioError(
                    path=name,
                    expected="one of " + ", ".join(legal),
                    given=shown(given),
                    nearest=nearest_of(given, legal),
                )
        key = self.gpu_id(gpu)
        found = {row.vintage: row for row in self.prices(key, kind) if row.vintage is not None}
        if vintage in found:
            return found[vintage].usd_per_gpu_hour
        others = ", ".join(sorted(found)) or "none"
        raise ScenarioError(
            f"no {kind} price of {key} in the {vintage} survey (surveys that have one: {others});"
            " state usd_per_gpu_hour, or add the price to hardware_profiles/sources/prices.yaml",
            path="vintage",
        )

    def prices(self, gpu: str | None = None, kind: str | None = None) -> tuple[GpuPrice, ...]:
        """Return the price rows that match, surveys and all other kinds; None matches all."""
        wanted = {"gpu": None if gpu is None else self.gpu_id(gpu), "kind": kind}
        return tuple(
            GpuPrice(
                row["gpu"],
                row["gpu_as_published"],
                row["kind"],
                row["vintage"],
                self._datum(row["where"], row["usd_per_gpu_hour"]),
            )
            for row in self._index["prices"]
            if _matches(row, wanted)
        )

    def hosted_prices(self, model: str | None = None) -> tuple[HostedPrice, ...]:
        """Return list prices of hosted training services; None returns all of them."""
        wanted = {"model": None if model is None else self.model_id(model)}
        rows = (row for row in self._index["hosted"] if _matches(row, wanted))
        return tuple(
            HostedPrice(row["model"], row["model_as_published"], **self._hosted(row))
            for row in rows
        )

    def _hosted(self, row: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for name in row if name.endswith("_usd_per_mtok")]
        return {
            name: None if row[name] is None else self._datum(f"{row['where']}.{name}", row[name])
            for name in names
        }

    def _resolve(self, what: str, name: str, aliases: Mapping[str, str]) -> str:
        found = aliases.get(fold_id(name))
        if found is None:
            nearest = nearest_of(fold_id(name), aliases)
            raise ScenarioError(
                expected=f"a known {what} id or alias",
                given=shown(name),
                nearest=None if nearest is None else aliases[nearest],
            )
        return found

    def _data(self, where: str, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        return {name: self._datum(f"{where}.{name}", entry) for name, entry in values.items()}

    def _datum(self, where: str, entry: Sequence[Any]) -> Datum:
        value, unit, kind, source, *spread = entry
        low, high = map(float, spread) if spread else (None, None)
        title, date = self._title(source), self._date(source)
        return Datum(float(value), unit, kind, title, date, low, high, where=where)

    def _title(self, source: str) -> str:
        first, *others = source.split()
        title: str = self._index["sources"][first]["title"]
        return f"{title} (also {', '.join(others)})" if others else title

    def _date(self, source: str) -> str | None:
        dates = (self._index["sources"][key]["date"] for key in source.split())
        return next((date for date in dates if date), None)

    def _rate_row(self, row: Mapping[str, Any]) -> RateRow:
        prefill = row["prefill"]
        if prefill is not None:
            prefill = PrefillFit(*[*prefill[:-1], _points(PrefillPoint, prefill[-1])])
        return RateRow(
            **{
                **row,
                "prefill": prefill,
                "points": _points(DecodePoint, row["points"]),
                "suspect": tuple(row["suspect"]),
                "remarks": tuple(row["remarks"]),
                "source": self._title(row["source"]),
                "as_of": self._date(row["source"]),
            }
        )


def _points(record: Any, rows: Iterable[Sequence[float]]) -> tuple[Any, ...]:
    return tuple(record(*row) for row in rows)


def _matches(row: Mapping[str, Any], wanted: Mapping[str, str | None]) -> bool:
    return all(value is None or row[name] == value for name, value in wanted.items())


@cache
def load_catalogue() -> Catalogue:
    """Return the catalogue that ships with the program, read once (a few milliseconds)."""
    index = Path(next(iter(hardware_profiles.__path__))) / "index.json"
    return Catalogue(json.loads(index.read_text(encoding="utf-8")))
