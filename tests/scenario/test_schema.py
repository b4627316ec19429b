"""The schema: numbers, ranges, defaults, and what this version leaves out."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from typing import Any, get_args, get_origin

import pytest
from pydantic import ValidationError

from allocator.scenario import schema
from allocator.scenario.describe import defaults, describe, json_schema, legal_text, step_into
from allocator.scenario.dump import plain_value, scenario_to_dict
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import from_dict, override
from allocator.scenario.not_yet import NOT_YET, NotYet
from allocator.scenario.paths import format_path, is_inside, parent_of, parse_path
from allocator.scenario.quantity import FloatRange, IntRange, Quantity
from allocator.scenario.section import Section


def smallest() -> dict[str, Any]:
    return {
        "model": "qwen3-8b",
        "workload": {"response_tokens": {"mean": 8000, "cv": 0.8}},
        "hardware": {"pools": [{"gpu": "h200-sxm", "gpus": 64}]},
        "budget": {"hours": 24},
    }


def sections() -> list[type[Section]]:
    found = [item for item in vars(schema).values() if isinstance(item, type)]
    return [item for item in found if issubclass(item, Section) and item is not Section]


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bare", [3, 3.0, {"value": 3}, Quantity(value=3)])
def test_a_quantity_is_a_bare_number_or_a_block(bare: object) -> None:
    quantity = Quantity.model_validate(bare)
    assert (quantity.value, quantity.kind, quantity.source) == (3.0, "stated", None)
    assert not quantity.has_spread
    assert float(quantity) == 3.0


def test_a_quantity_keeps_spread_kind_and_source() -> None:
    block = {"value": 0.1, "low": 0.08, "high": 0.2, "kind": "measured", "source": "run 7"}
    quantity = Quantity.model_validate(block)
    assert quantity.has_spread
    assert plain_value(quantity) == block
    assert Quantity.model_validate({"value": 1, "low": 1}).has_spread


@pytest.mark.parametrize(
    "wrong",
    [
        "3",
        True,
        None,
        [3],
        math.inf,
        math.nan,
        10**400,
        {"value": "3"},
        {"low": 1},
        {"value": 3, "low": 4},
        {"value": 3, "high": 2},
        {"value": 3, "high": math.inf},
        {"value": 3, "kind": "guessed"},
        {"value": 3, "source": ""},
        {"value": 3, "unit": "s"},
    ],
)
def test_what_is_no_quantity(wrong: object) -> None:
    with pytest.raises(ValidationError):
        Quantity.model_validate(wrong)


def test_quantities_are_frozen_and_hashable() -> None:
    quantity = Quantity(value=3)
    with pytest.raises(ValidationError):
        setattr(quantity, "value", 4)  # noqa: B010 - mypy would refuse it before pydantic
    assert hash(quantity) == hash(Quantity(value=3.0))


def test_a_range_lists_its_choices_with_both_ends() -> None:
    assert IntRange(min=4, max=10, step=4).values() == (4, 8, 10)
    assert IntRange(min=1, max=2).values() == (1, 2)
    assert FloatRange(min=1, max=2, step=0.4).values() == pytest.approx((1.0, 1.4, 1.8, 2.0))
    assert FloatRange(min=1, max=1.35).values() == pytest.approx((1.0, 1.1, 1.2, 1.3, 1.35))
    assert FloatRange(min=1, max=1).values() == (1.0,)
    assert FloatRange(min=0, max=0.3, step=0.1).values() == pytest.approx((0, 0.1, 0.2, 0.3))


@pytest.mark.parametrize(
    ("data", "least"),
    [({"min": 1, "max": 1000}, 1), ({"min": 1, "max": 2998, "step": 3}, 3)],
)
def test_a_range_has_at_most_a_thousand_choices(data: dict[str, Any], least: int) -> None:
    said = from_dict(smallest() | {"algorithm": {"prompts_per_step": data}})
    assert isinstance(said.algorithm.prompts_per_step, IntRange)
    assert len(said.algorithm.prompts_per_step.values()) == 1000
    with pytest.raises(ScenarioError, match=r"prompts_per_step\.step: expected at most 1,000"):
        override(said, {"algorithm.prompts_per_step.max": data["max"] + 1})
    override(
        said,
        {
            "algorithm.prompts_per_step.max": data["max"] + 1,
            "algorithm.prompts_per_step.step": least + 1,
        },
    )


@pytest.mark.parametrize("step", [0.1, 0.001])
def test_a_range_of_factors_has_at_most_a_thousand_choices(step: float) -> None:
    whole = {"min": 1, "max": 1 + 999 * step, "step": step}
    said = from_dict(smallest() | {"algorithm": {"oversampling": whole}})
    assert isinstance(said.algorithm.oversampling, FloatRange)
    assert len(said.algorithm.oversampling.values()) == 1000
    for wrong in ({"max": 1 + 999.5 * step}, {"step": 1e-320}):
        with pytest.raises(ScenarioError, match=r"oversampling\.step: expected at most 1,000"):
            from_dict(smallest() | {"algorithm": {"oversampling": whole | wrong}})


@pytest.mark.parametrize(
    ("said", "statistic"),
    [
        ({}, "mean"),
        ({"limit": 3}, "mean"),
        ({"limit": 3, "metric": "p95"}, "p95"),
        ({"limit": 3, "metric": "p99", "enforce": "design"}, "p99"),
        ({"limit": 3, "enforce": "reject"}, "max"),
        ({"limit": 3, "metric": "max", "enforce": "reject"}, "max"),
        ({"limit": 0, "enforce": "reject"}, "max"),
        ({"limit": 0, "enforce": "admission"}, "mean"),
        ({"limit": 1, "metric": "mean", "enforce": "admission"}, "mean"),
    ],
)
def test_what_a_staleness_limit_holds_for(said: dict[str, Any], statistic: str) -> None:
    assert from_dict(smallest() | {"staleness": said}).staleness.statistic == statistic


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ({"limit": 3, "metric": "max"}, "metric"),
        ({"limit": 3, "metric": "mean", "enforce": "reject"}, "metric"),
        ({"limit": 3, "metric": "p99", "enforce": "reject"}, "metric"),
        ({"limit": 3, "metric": "p95", "enforce": "admission"}, "metric"),
        ({"limit": 3, "metric": "max", "enforce": "admission"}, "metric"),
        ({"limit": 0.5, "enforce": "admission"}, "limit"),
        ({"enforce": "reject"}, "limit"),
    ],
)
def test_limits_that_nothing_keeps_are_refused(said: dict[str, Any], path: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        from_dict(smallest() | {"staleness": said})
    assert caught.value.path == f"staleness.{path}"


@pytest.mark.parametrize("objective", ["run.hours", "run.usd"])
def test_an_objective_of_a_whole_run_needs_its_end(objective: str) -> None:
    data = smallest() | {"objective": objective}
    with pytest.raises(ScenarioError, match=r"objective: expected .* budget\.target") as caught:
        from_dict(data)
    assert caught.value.path == "objective"
    from_dict(data, {"budget.target": {"steps": 10}})


@pytest.mark.parametrize("given", [16, 16.0, {"value": 16, "kind": "stated"}])
def test_whole_numbers_may_be_written_as_floats_and_blocks(given: object) -> None:
    data = smallest() | {"algorithm": {"group_size": given}}
    assert from_dict(data).algorithm.group_size == 16


def test_the_origin_of_a_count_survives() -> None:
    data = smallest()
    block = {"value": 64, "kind": "measured", "source": "rack list"}
    data["hardware"]["pools"][0]["gpus"] = block
    scenario = from_dict(data)
    assert scenario.hardware.pools[0].gpus == 64
    note = scenario.origin.notes["hardware.pools[0].gpus"]
    assert (note.kind, note.source) == ("measured", "rack list")
    assert scenario_to_dict(scenario)["hardware"]["pools"][0]["gpus"] == block
    smaller = override(scenario, {"hardware.pools[0].gpus": 32})
    assert scenario_to_dict(smaller)["hardware"]["pools"][0]["gpus"] == 32


@pytest.mark.parametrize(
    "block",
    [{"value": 16, "high": 17}, {"value": 16, "kind": "x"}, {"value": 16, "source": 3}],
)
def test_a_count_carries_no_spread(block: object) -> None:
    with pytest.raises(ScenarioError):
        from_dict(smallest() | {"algorithm": {"group_size": block}})


# --- the whole scenario --------------------------------------------------------------------------


def test_the_smallest_legal_scenario() -> None:
    scenario = from_dict(smallest())
    assert scenario.hardware.pools[0].name == "h200-sxm"
    assert scenario.hardware.pools[0].roles == ("trainer", "prefill", "decode", "reward")
    assert scenario.algorithm.mode == "async"
    assert scenario.budget.target is None
    assert scenario.queue.capacity_batches == IntRange(min=1, max=2)
    target_only = smallest() | {"budget": {"target": {"steps": 1000}}}
    assert from_dict(target_only).budget.is_stated


@pytest.mark.parametrize("path", ["model", "workload", "hardware", "budget"])
def test_nothing_of_the_smallest_scenario_can_be_left_out(path: str) -> None:
    data = smallest()
    del data[path]
    with pytest.raises(ScenarioError) as caught:
        from_dict(data)
    assert caught.value.path == path


def test_null_means_not_stated() -> None:
    data = smallest() | {"name": None, "engine": None, "staleness": {"limit": None}}
    data |= {"evaluation": {}, "phases": [], "tenants": None, "calibration": None, "plan": {}}
    data |= {"checkpoint": {}, "failures": {}, "sandbox": {}, "reward": {}}
    data["engine"] = {"rates": {}}
    assert from_dict(data) == from_dict(smallest())


def test_the_users_own_rates_may_state_their_context_beside_or_inside_decode() -> None:
    prefill = {"p0_s": 0.01, "p1_s_per_token": 1e-5}
    inside = {"decode": {"alpha_s": 7e-3, "beta_s": 4e-5, "at_context_tokens": 8000}}
    beside = {"decode": {"alpha_s": 7e-3, "beta_s": 4e-5}, "at_context_tokens": 8000}
    rest = {"prefill": prefill, "gpus_per_engine": 8}
    one, other = (
        from_dict(smallest() | {"engine": {"rates": rates | rest}}) for rates in (inside, beside)
    )
    assert one == other
    assert one.engine.rates is not None
    assert one.engine.rates.decode.at_context_tokens == 8000
    both = {"decode": inside["decode"], "at_context_tokens": 1} | rest
    with pytest.raises(ScenarioError, match="once, here or in decode"):
        from_dict(smallest() | {"engine": {"rates": both}})


def test_forms_of_a_key() -> None:
    data = smallest()
    data["workload"]["response_tokens"] = {"quantiles": {0.9: 9000, 0.5: 4000}, "max": 16000}
    data["workload"]["prefix_cache"] = 0.4
    data["algorithm"] = {"training": {"lora_rank": 32}, "oversampling": {"min": 1, "max": 3}}
    data["trainer"] = {"parallelism": {"tp": 4, "pp": 2}}
    data["engine"] = {"layouts": [{"tp": 8}, {"tp": 4, "dp": 2}]}
    data["model"] = {"params_total": 8e9, "layers": 36, "kv_heads": 8, "head_dim": 128}
    data["hardware"]["pools"][0]["price"] = {
        "kind": "ownership", "capex_usd_per_server": 361e3, "lifetime_years": 5,
        "cost_of_capital": 0.04, "other_usd_per_gpu_hour": 0.4,
    }  # fmt: skip
    scenario = from_dict(data)
    lengths = scenario.workload.response_tokens
    assert isinstance(lengths, schema.LengthsByQuantiles)
    assert lengths.quantiles == ((0.5, 4000.0), (0.9, 9000.0))
    assert scenario.workload.prefix_cache == Quantity(value=0.4)
    assert scenario.algorithm.training == schema.Lora(lora_rank=32)
    assert scenario.algorithm.oversampling == FloatRange(min=1, max=3)
    assert isinstance(scenario.trainer.parallelism, schema.Parallelism)
    assert scenario.trainer.parallelism.gpus == 8
    layouts = scenario.engine.layouts
    assert [layout.gpus for layout in layouts if isinstance(layout, schema.Layout)] == [8, 8]
    assert isinstance(scenario.model, schema.InlineModel)
    assert scenario.model.active.value == 8e9
    price = scenario.hardware.pools[0].price
    assert isinstance(price, schema.OwnershipPrice)
    assert price.gpus_per_server == 8
    hash(scenario)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.params_active", 9e9),
        ("model.experts", 8),
        ("model.experts_per_token", 2),
        ("model.layers", 0),
    ],
)
def test_an_inline_model_has_to_add_up(path: str, value: object) -> None:
    model = {"params_total": 8e9, "layers": 36, "kv_bytes_per_token": 147456}
    scenario = from_dict(smallest() | {"model": model})
    with pytest.raises(ScenarioError):
        override(scenario, {path: value})
    both = override(scenario, {"model.experts": 128, "model.experts_per_token": 8})
    with pytest.raises(ScenarioError, match="<= experts"):
        override(both, {"model.experts_per_token": 200})


def test_equality_is_of_keys_and_not_of_origin() -> None:
    one, other = from_dict(smallest(), file="a.yaml"), from_dict(smallest(), file="b.yaml")
    assert one == other
    assert hash(one) == hash(other)
    assert one.origin.file == "a.yaml"
    assert one != override(one, ["trainer_gpus=16"])
    assert one != "a scenario"


def test_a_scenario_reaches_a_worker_process_with_its_origin() -> None:
    for scenario in (from_dict(smallest(), file="a.yaml"), schema.Scenario(**smallest())):
        copy = pickle.loads(pickle.dumps(scenario))
        assert copy == scenario
        assert copy.origin == scenario.origin


def test_a_scenario_cannot_be_changed() -> None:
    scenario = from_dict(smallest())
    with pytest.raises(ValidationError):
        setattr(scenario, "seed", 3)  # noqa: B010 - mypy would refuse it before pydantic


def test_an_error_found_later_knows_its_line() -> None:
    scenario = from_dict(smallest(), ["seed=3"], file="a.yaml")
    error = scenario.error("hardware.pools[0].gpus", "a multiple of 8", 12)
    assert str(error) == "a.yaml: hardware.pools[0].gpus: expected a multiple of 8, given 12"
    assert str(scenario.error("seed", "an even number", 3)) == (
        "--set: seed: expected an even number, given 3"
    )


# --- what the schema says of itself --------------------------------------------------------------


def test_every_key_is_described() -> None:
    rows = describe()
    assert len({row.path for row in rows}) == len(rows) > 100
    for row in rows:
        assert row.description, row.path
        assert row.legal, row.path
    by_path = {row.path: row for row in rows}
    fraction = by_path["engine.memory_fraction"]
    assert (fraction.legal, fraction.unit) == ("a number in (0, 1]", "fraction")
    assert by_path["hardware.pools[].gpus"].required
    assert "ownership" in by_path["hardware.pools[].price.kind"].legal
    for section in sections():
        assert section.__doc__, section
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"


def test_every_default_is_legal_and_listed() -> None:
    listed = defaults()
    assert listed["algorithm.group_size"] == 16
    assert listed["trainer.mfu"] is None
    assert listed["engine.memory_fraction"]["kind"] == "assumed"
    assert listed["queue.capacity_batches"] == {"min": 1, "max": 2, "step": 1}
    assert "model" not in listed
    # Defaults are built without validation: stating each of them must change nothing.
    implicit = from_dict(smallest())
    assert from_dict(scenario_to_dict(implicit)) == implicit
    for section in sections():
        for name, field in section.model_fields.items():
            if field.default is None or field.is_required() or name == "name":
                continue
            value = getattr(field.default, "value", field.default)
            kind = getattr(field.default, "kind", None)
            assert kind != "stated", f"{section.__name__}.{name}: a default is not stated by anyone"
            assert value is not None


def test_numbers_without_a_statement_are_labelled_as_assumed() -> None:
    scenario = from_dict(smallest())
    assert scenario.trainer.fixed_s.kind == "assumed"
    assert scenario.trainer.fixed_s.source
    stated = override(scenario, {"trainer.fixed_s": 4})
    assert stated.trainer.fixed_s == Quantity(value=4)


def test_the_json_schema_can_be_written() -> None:
    written = json_schema()
    json.dumps(written)
    assert set(written["required"]) == {"model", "workload", "hardware"}


def test_importing_the_schema_imports_pydantic_and_nothing_heavy() -> None:
    script = (
        "import sys, allocator.scenario.schema, allocator.scenario.load\n"
        "heavy = {'numpy', 'scipy', 'pandas', 'ruamel', 'ruamel.yaml', 'typer', 'rich'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- what this version does not act on -----------------------------------------------------------


def _schema_type(row: NotYet) -> Any:
    annotation: Any = schema.Scenario
    for part in parse_path(row.path) or ():
        annotation = step_into(annotation, 0 if part == "*" else part)
    return annotation


@pytest.mark.parametrize("row", NOT_YET, ids=[row.path for row in NOT_YET])
def test_the_table_of_refusals_agrees_with_the_schema(row: NotYet) -> None:
    annotation = _schema_type(row)
    if row.acted_on:
        assert legal_text(annotation) == legal_text(_literal(row.acted_on))
    elif row.refused is None:
        assert annotation is None, "a key the schema knows is acted on"
    else:
        assert annotation is not None


def _literal(values: tuple[Any, ...]) -> Any:
    from typing import Literal

    literal = Literal.__getitem__(values)
    assert get_origin(literal) is Literal
    assert get_args(literal) == values
    return literal


REFUSED: list[tuple[str, Any, str, str | None]] = [
    ("model", ["a", "b"], "this version plans one model", None),
    ("engine", [{"backend": "sglang"}], "one engine description", None),
    ("engine.backend", ["sglang", "vllm"], "not a choice between several", None),
    ("engine.rates", {"decode": {"points": "a.csv"}}, "does not act on points", None),
    ("engine.rates", {"prefill": {"points": "a.csv"}}, "does not act on points", None),
    ("trainer.parallelism", {"tp": 2, "ep": 2}, "1 (in this version", None),
    ("trainer.offload", True, "false (this version", None),
    ("workload.response_tokens", [{"mean": 3}], "this version takes one distribution", None),
    (
        "workload.solve_rate",
        {"rest": {"response_tokens": {"mean": 3}}},
        "keys it acts on: alpha",
        None,
    ),
    ("algorithm.trained_share", 0.5, "1 (this version", None),
    ("queue.overflow", "block", "drop_oldest (in this version", None),
    ("staleness.reference", "first_prefill", "submission (this version", None),
    ("hardware.pools[0].granularity", "engine", "node or gpu (this version", None),
    ("hardware.pools[0].granularity", "nod", "node or gpu (this version", "node"),
    ("hardware.pools[0].engine", {"backend": "vllm"}, "does not act on engine", None),
    ("budget.power_kw", 300, "keys it acts on: usd, gpu_hours", None),
    ("value.model", "returns", "none (this version", None),
    ("calibration", "calibration.yaml", "does not act on calibration", None),
    ("phases", [{"share": 1}], "does not act on phases", None),
    ("replan", {"policy": "never"}, "does not act on replan", None),
    ("tenants", {"count": 3}, "does not act on tenants", None),
]


@pytest.mark.parametrize(("path", "value", "expected", "nearest"), REFUSED)
def test_what_is_not_acted_on_is_refused_by_name(
    path: str, value: Any, expected: str, nearest: str | None
) -> None:
    data = scenario_to_dict(from_dict(smallest()))
    with pytest.raises(ScenarioError) as caught:
        from_dict(data, {path: value})
    error = caught.value
    assert error.path is not None
    assert is_inside(error.path, path)
    assert expected in (error.expected or ""), str(error)
    assert "this version" in (error.expected or "")
    assert error.nearest == nearest
    assert [other.path for other in error.others if other.path == error.path] == []


def test_every_row_of_the_table_is_tested() -> None:
    tested = {path.replace("[0]", "[*]") for path, *_ in REFUSED}
    for row in NOT_YET:
        assert any(is_inside(row.path, path) for path in tested), row.path


def test_a_required_key_that_is_refused_is_reported_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        from_dict(smallest() | {"model": ["a", "b"], "name": ""})
    paths = [error.path for error in (caught.value, *caught.value.others)]
    assert paths == ["model", "name"]


# --- paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a..b", "a[", "a[]", "a]b", ".a", "a.[0]", "[0]x"])
def test_what_is_no_path(text: str) -> None:
    assert parse_path(text) is None


def test_paths_round_trip_and_nest() -> None:
    for parts in [("a",), ("a", 0, "b"), ("quantiles", "0.5"), ("a", "two words", 12)]:
        assert parse_path(format_path(parts)) == parts
    assert parent_of("a.b[0].c") == "a.b[0]"
    assert parent_of("a") == parent_of("") == ""
    assert is_inside("a.b", "a")
    assert is_inside("a[0]", "a")
    assert not is_inside("ab", "a")
