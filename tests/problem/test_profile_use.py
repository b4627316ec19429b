"""No number of a profile is decoration: it moves a prediction, or is listed as unused, and why.

Every number of the records behind a set of scenarios is changed by a tenth, one at a time, in a
copy of the index; plans that are kept fixed are predicted anew. What moves a prediction must not
be listed in `UNUSED_FIELDS`, what does not must be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hardware_profiles
from allocator.evaluator import evaluate
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import DecisionArrays
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import from_dict, load
from allocator.scenario.profiles import UNUSED_FIELDS, Catalogue, load_catalogue
from allocator.scenario.records import PrefillFit
from allocator.scenario.schema import PublishedPrice, Scenario
from tests.generated import numbers

EXAMPLES = Path(__file__).parents[2] / "examples"
Place = tuple[str | int, ...]
#: Numbers inside one entry of a record, for which the register has no name.
EVIDENCE = {
    "rates.prefill.rmse_fraction": "0 where three points determine three coefficients",
    "rates.prefill.min_tokens": "range of the points behind the fit, shown with the profile",
    "rates.prefill.max_tokens": "range of the points behind the fit, shown with the profile",
    "rates.prefill.points": "used by tests of the fits, not by predictions",
    "training.gpus": "named in the warning that quotes the run",
    "training.sequence_tokens": "shown with the profile",
    "training.tokens_per_s_per_gpu": "what the published MFU was computed from",
    "training.model_flops_per_s_per_gpu": "what the published MFU was computed from",
    "excluded_rates.gpus_per_engine": "rows kept out of the tables, shown with their reasons",
}
#: Registered fields of pages that the program does not read: they are not in the index.
NOT_IN_THE_INDEX = {
    "rates.other_fits",
    "measured.inference",
    "measured.inference_small",
    "measured.rl_end_to_end",
    "measured.modelled_against_published",
    "prices.capital_split",
}


# --- scenarios -----------------------------------------------------------------------------------


def said(model: str, gpu: str, **changes: Any) -> Scenario:
    """Return a scenario on one pool of `gpu`; `changes` replace whole blocks."""
    return from_dict(
        {
            "model": model,
            "workload": {
                "initial_prompt_tokens": 3000,
                "response_tokens": {"mean": 8000, "cv": 0.6, "max": 30000},
            },
            "trainer": {"hfu": 0.3},
            "algorithm": {"group_size": 8, "prompts_per_step": 16},
            "hardware": {"pools": [{"gpu": gpu, "gpus": 144, "price": {"usd_per_gpu_hour": 2}}]},
            "budget": {"hours": 100},
        }
        | changes
    )


ESTIMATE = {"estimate": "allow"}
LORA = {"group_size": 8, "prompts_per_step": 16, "training": {"lora_rank": 32}}
FP8 = {"weights_dtype": "fp8", "kv_dtype": "fp8"}
MXFP4 = {"weights_dtype": "mxfp4"}


@cache
def scenarios() -> Mapping[str, Scenario]:
    found = {
        "example": load(EXAMPLES / "qwen3-235b-h200.yaml"),
        "two pools": load(EXAMPLES / "h200-trainer-gb300-generator.yaml"),
        "minimal": load(EXAMPLES / "minimal.yaml"),
        "any backend": said("qwen3-235b-a22b", "h200-sxm"),
        "any backend, FP8": said("qwen3-235b-a22b", "h200-sxm", engine=FP8),
        "any backend, NVFP4": said(
            "qwen3-235b-a22b", "gb300-nvl72", engine={"weights_dtype": "nvfp4", "kv_dtype": "fp8"}
        ),
        "dense, any backend": said("qwen3-32b", "h200-sxm"),
        "dense, FP8": said("qwen3-32b", "h200-sxm", engine=FP8),
        "LoRA": said("qwen3-235b-a22b", "h200-sxm", algorithm=LORA),
        "dense, LoRA": said("qwen3-32b", "h200-sxm", algorithm=LORA),
        # Combinations without a profile: BF16 weights with FP8 cache, and the reverse.
        "estimate": said("qwen3-32b", "h200-sxm", engine=ESTIMATE | {"kv_dtype": "fp8"}),
        "estimate, FP8": said("qwen3-32b", "h200-sxm", engine=ESTIMATE | {"weights_dtype": "fp8"}),
        "estimate, GB300": said("qwen3-32b", "gb300-nvl72", engine=ESTIMATE | {"kv_dtype": "fp8"}),
        "estimate, GB300, FP8": said(
            "qwen3-32b", "gb300-nvl72", engine=ESTIMATE | {"weights_dtype": "fp8"}
        ),
        "latent attention": said("deepseek-v3", "gb300-nvl72", engine=ESTIMATE),
        "sparse attention": said("glm-5", "gb300-nvl72", engine=ESTIMATE),
        "experts in MXFP4": said("gpt-oss-120b", "h200-sxm", engine=MXFP4),
        "experts in MXFP4, GB300": said("gpt-oss-120b", "gb300-nvl72", engine=MXFP4),
        "windows": said("gpt-oss-120b", "h200-sxm", engine=ESTIMATE),
        "windows, LoRA": said("gpt-oss-120b", "h200-sxm", engine=ESTIMATE, algorithm=LORA),
    }
    for precision in ("bf16", "fp8"):
        for model in ("qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b"):
            # No utilisation given: the published one of this model and GPU.
            found[f"{model} trained in {precision}"] = said(
                model, "gb300-nvl72", engine=ESTIMATE, trainer={"precision": precision}
            )
    found["trained in FP8 on H200"] = said(
        "qwen3-32b", "h200-sxm", trainer={"precision": "fp8", "hfu": 0.3}
    )
    for gpu in ("h200-sxm", "gb300-nvl72"):
        for row in load_catalogue().prices(gpu):
            if row.vintage is not None:
                price = {"kind": row.kind, "vintage": row.vintage}
                found[f"{gpu} {row.kind} {row.vintage}"] = said(
                    "qwen3-32b",
                    gpu,
                    hardware={"pools": [{"gpu": gpu, "gpus": 144, "price": price}]},
                )
    return found


def records(scenario: Scenario) -> tuple[str, set[str]]:
    """Return the model and the GPUs whose records a scenario reads."""
    assert isinstance(scenario.model, str)
    catalogue = load_catalogue()
    gpus = {catalogue.gpu_id(pool.gpu) for pool in scenario.hardware.pools}
    return catalogue.model_id(scenario.model), gpus


# --- what is observed ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What a reader of a plan sees of the profiles: predictions, limits, spreads; or an error."""

    numbers: tuple[tuple[str, float], ...]

    def differs(self, other: Seen) -> bool:
        if len(self.numbers) != len(other.numbers):
            return True
        return any(
            name != other_name or not math.isclose(value, other_value, rel_tol=1e-9)
            for (name, value), (other_name, other_value) in zip(
                self.numbers, other.numbers, strict=True
            )
        )


def seen(scenario: Scenario, catalogue: Catalogue) -> Seen:
    try:
        problem = build_problem(scenario, catalogue)
    except ScenarioError as error:
        return Seen(((str(error), 0.0),))
    return Seen(tuple(observed(problem)))


def observed(problem: Problem) -> Iterator[tuple[str, float]]:
    """Yield the numbers of one fixed plan on every engine kind, and the spreads of inputs."""
    kinds, trainers = problem.system.engines, problem.system.trainers
    plans = DecisionArrays.broadcast(
        generator_kind=np.repeat(np.arange(len(kinds.labels)), len(trainers.labels)),
        trainer_kind=np.tile(np.arange(len(trainers.labels)), len(kinds.labels)),
        engines=2,
        in_flight_per_engine=48,
        trainer_gpus=48,
        oversampling=1.25,
        queue_batches=2,
        prompts_per_step=16,
        group_size=8,
        epochs=1,
    )
    for name, values in numbers(evaluate(problem, plans)).items():
        yield from ((f"{name}[{i}]", value) for i, value in enumerate(values.tolist()))
    # Of the memory that plans report, what is not among the numbers above.
    for name in ("weights_bytes_per_gpu", "kv_budget_bytes", "hbm_limit_bytes"):
        yield from ((name, value) for value in getattr(kinds, name).tolist())
    for label in kinds.labels:
        yield f"{label.backend} {label.layout}", 0.0
    for pool in problem.system.pools:
        yield f"unit of {pool.name}", float(pool.unit_gpus)
    for entry in problem.provenance:
        if entry.low is not None and entry.high is not None:
            yield f"low {entry.name}", entry.low / entry.value
            yield f"high {entry.name}", entry.high / entry.value


# --- the numbers of the index --------------------------------------------------------------------


@cache
def index() -> dict[str, Any]:
    path = Path(next(iter(hardware_profiles.__path__))) / "index.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def numbers_of(model: str, gpus: set[str]) -> Iterator[tuple[str, Place]]:
    """Yield the field and the place of every number of the records of a model and its GPUs."""
    data = index()
    entries = [("gpus", gpu) for gpu in sorted(gpus)] + [("models", model)]
    for page, name in entries:
        for field, entry in data[page][name]["values"].items():
            for place, value in enumerate(entry):
                if is_number(value):
                    yield f"{page}.{field}", (page, name, "values", field, place)
    if "tied_embeddings" in data["models"][model]:
        yield "models.tied_embeddings", ("models", model, "tied_embeddings")
    columns = data["rate_columns"]
    for at, row in enumerate(data["rates"].get(model, ())):
        if dict(zip(columns, row, strict=True))["gpu"] in gpus:
            yield from numbers_of_rate(model, at, row)
    for page in ("prices", "training", "excluded_rates", "hosted"):
        for at, record in enumerate(data[page]):
            if record.get("model", model) == model and (
                "gpu" not in record or record["gpu"] in gpus
            ):
                yield from numbers_of_record(page, at, record)


def numbers_of_rate(model: str, at: int, row: list[Any]) -> Iterator[tuple[str, Place]]:
    for column, (name, value) in enumerate(zip(index()["rate_columns"], row, strict=True)):
        place: Place = ("rates", model, at, column)
        if is_number(value) or name == "points":
            yield f"rates.{name}", place
        elif name == "prefill" and value is not None:
            for part, (field, inner) in enumerate(zip(fields(PrefillFit), value, strict=True)):
                if is_number(inner) or field.name == "points":
                    yield f"rates.prefill.{field.name}", (*place, part)


def numbers_of_record(page: str, at: int, record: dict[str, Any]) -> Iterator[tuple[str, Place]]:
    for name, value in record.items():
        entry = isinstance(value, list) and value and is_number(value[0])
        if not (is_number(value) or entry):
            continue
        field = {"prices": f"prices.{record.get('kind')}", "hosted": "prices.hosted"}.get(
            page, f"{page}.{name}"
        )
        yield field, (page, at, name, 0) if entry else (page, at, name)


def value_at(place: Place) -> Any:
    node: Any = index()
    for step in place:
        node = node[step]
    return node


def with_value(node: Any, place: Place, value: Any) -> Any:
    """Return a copy of nested data with another value at a place; the rest is shared."""
    if not place:
        return value
    copy = node.copy()
    copy[place[0]] = with_value(copy[place[0]], place[1:], value)
    return copy


def changed(places: Iterable[Place], *, up: bool) -> Catalogue:
    """Return the catalogue with the numbers at some places a tenth higher or lower.

    A whole number moves to the next whole one, and stays at 1; a coefficient fitted as 0 moves to a
    billionth; the reverse of a flag is the flag turned over; all of a list of points moves.
    """
    data = index()
    for place in places:
        data = with_value(data, place, moved(value_at(place), up=up))
    return Catalogue(data)


def moved(value: Any, *, up: bool) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [[moved(number, up=up) for number in point] for point in value]
    if isinstance(value, int):
        step = max(1, math.ceil(value * 0.1))
        return value + step if up else max(value - step, min(value, 1))
    return value * (1.1 if up else 0.9) if value != 0.0 else 1e-9


@cache
def before() -> Mapping[str, Seen]:
    return {name: seen(scenario, load_catalogue()) for name, scenario in scenarios().items()}


def moves(name: str, places: Iterable[Place]) -> bool:
    """Whether a change of the numbers at some places moves anything in a scenario."""
    kept = tuple(places)
    return any(
        seen(scenarios()[name], changed(kept, up=up)).differs(before()[name])
        for up in (True, False)
    )


def readers(place: Place) -> list[str]:
    """Return the scenarios that could read the number at a place, the quickest first."""
    names = [name for name, scenario in scenarios().items() if could_read(scenario, place)]
    return sorted(names, key=lambda name: len(before()[name].numbers))


def could_read(scenario: Scenario, place: Place) -> bool:
    model, gpus = records(scenario)
    page, record = place[:2]
    if page in ("gpus", "models"):
        return record in {model, *gpus}
    pools, engine, trainer = scenario.hardware.pools, scenario.engine, scenario.trainer
    if page == "rates":
        row = rate_row(place)
        decoding = {load_catalogue().gpu_id(p.gpu) for p in pools if "decode" in p.roles}
        return (
            record == model
            and row["gpu"] in decoding
            and engine.backend in ("auto", row["backend"])
            and (engine.weights_dtype, engine.kv_dtype) == (row["weights_dtype"], row["kv_dtype"])
        )
    row = value_at(place[:2])
    if page == "prices":
        return any(
            isinstance(pool.price, PublishedPrice)
            and load_catalogue().gpu_id(pool.gpu) == row["gpu"]
            and (pool.price.kind, pool.price.vintage) == (row["kind"], row["vintage"])
            for pool in pools
        )
    if page == "training":
        stated = trainer.mfu is not None or trainer.hfu is not None
        return not stated and row["model"] == model and row["precision"] == trainer.precision
    return True


def rate_row(place: Place) -> dict[str, Any]:
    return dict(zip(index()["rate_columns"], value_at(place[:3]), strict=True))


# --- the tests -----------------------------------------------------------------------------------

#: Numbers of single records that cannot matter, though the same field of other records does.
IDLE = {
    ("gpus.scale_up_domain_gpus", "gb300-nvl72"): "72 GPUs, more than any layout of `auto`",
    ("models.intermediate", "qwen3-235b-a22b"): "every layer has experts",
    ("models.intermediate", "gpt-oss-120b"): "every layer has experts",
    ("models.intermediate", "deepseek-v3"): "adapters are not sized for latent attention",
    ("models.intermediate", "glm-5"): "adapters are not sized for latent attention",
    ("models.moe_intermediate", "deepseek-v3"): "adapters are not sized for latent attention",
    ("models.moe_intermediate", "glm-5"): "adapters are not sized for latent attention",
    ("rates.moe_tp", "qwen3-32b"): "no experts to spread",
}


def all_numbers() -> dict[Place, str]:
    """Return the field of every number of every record, by its place."""
    data = index()
    return {
        place: field
        for model in data["models"]
        for field, place in numbers_of(model, set(data["gpus"]))
    }


def numbers_behind_scenarios() -> dict[Place, str]:
    return {
        place: field
        for scenario in scenarios().values()
        for field, place in numbers_of(*records(scenario))
        if could_read(scenario, place)
    }


def test_scenarios_are_plans_and_not_errors() -> None:
    for name, result in before().items():
        assert len(result.numbers) > 50, f"{name}: {result.numbers}"


def test_every_number_moves_a_prediction_or_is_listed_as_unused() -> None:
    idle = {
        (field, str(place[1]))
        for place, field in numbers_behind_scenarios().items()
        if field not in UNUSED_FIELDS
        and field not in EVIDENCE
        and not any(moves(name, [place]) for name in readers(place))
    }
    assert idle == set(IDLE)


def test_nothing_listed_as_unused_moves_anything() -> None:
    found: dict[str, list[Place]] = {}
    for place, field in all_numbers().items():
        if field in UNUSED_FIELDS or field in EVIDENCE:
            found.setdefault(field, []).append(place)
    assert set(found) == (set(UNUSED_FIELDS) | set(EVIDENCE)) - NOT_IN_THE_INDEX
    together = [place for places in found.values() for place in places]
    for name in scenarios():
        if moves(name, together):
            guilty = [field for field, places in found.items() if moves(name, places)]
            pytest.fail(f"listed as unused, and used in {name}: {guilty}")


def test_every_format_of_a_rate_row_can_be_asked_for() -> None:
    columns = index()["rate_columns"]
    rows = [
        dict(zip(columns, row, strict=True)) for rows in index()["rates"].values() for row in rows
    ]
    formats = {(row["weights_dtype"], row["kv_dtype"]) for row in rows}
    assert ("mxfp4", "bf16") in formats
    for weights, kv in formats:
        engine = {"weights_dtype": weights, "kv_dtype": kv}
        assert said("qwen3-32b", "h200-sxm", engine=engine).engine.weights_dtype == weights


def test_pages_that_are_not_in_the_index_are_not_read() -> None:
    """`NOT_IN_THE_INDEX` can move nothing: the program reads the index alone."""
    pages = {"gpus", "models", "prices", "hosted", "training", "rates", "excluded_rates"}
    about = {"schema", "gpu_aliases", "model_aliases", "not_in_catalogue", "sources"}
    sandboxes = {"sandboxes", "sandbox_aliases"}
    assert set(index()) == pages | about | sandboxes | {"rate_columns"}
    assert set(UNUSED_FIELDS) >= NOT_IN_THE_INDEX
