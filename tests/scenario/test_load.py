"""Reading scenarios: files, overrides, references, and the round trip through canonical YAML."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.scenario.dump import dump, scenario_to_dict
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import from_dict, load, loads, override
from allocator.scenario.quantity import IntRange, Quantity
from allocator.scenario.references import read_lengths_file
from allocator.scenario.schema import LengthsByMean, LengthsFromFile, PublishedPrice

# As in the interface, with the values this version plans.
PUBLISHED = """\
scenario_version: 1
name: Qwen3-235B-Thinking on 256 H200, as published
model: qwen3-235b-a22b              # catalogue id or alias
engine:
  backend: sglang
  weights_dtype: bf16
  kv_dtype: bf16
  memory_fraction: 0.88
  layouts: auto
  disaggregation: auto
  kv_during_tools: hold
  max_context_tokens: 32768
  rates: {}
trainer: {precision: bf16, mfu: {value: 0.105, kind: measured}, parallelism: auto,
          recomputation: full, optimizer_bytes_per_param: 12, fixed_s: 5, step_cv: 0.1}
workload:
  initial_prompt_tokens: 5591
  response_tokens: {mean: 12704, cv: 0.8, max: 27000}
  turns: 1
  tool_tokens_per_turn: 0
  prefix_cache: shared_prompt
  tool_s: 0
  solve_rate: {always: 0.10, never: 0.15, rest: {alpha: 1, beta: 1}}
algorithm:
  estimator: grpo
  training: full
  group_size: 16
  prompts_per_step: 32
  optimizer_steps_per_batch: 1
  weight_sync_every_steps: 1
  weight_update: in_flight
  old_log_probs: recompute
  dynamic_sampling: refill
  group_dispatch: group
  mode: auto
  oversampling: {min: 1.0, max: 3.0}
  partial_rollout: false
  epochs: 1
  trained_share: 1.0
queue: {capacity_batches: {min: 1, max: 2}, overflow: drop_oldest}
staleness: {limit: 16, metric: max, enforce: reject}
reward: {type: sparse, cpu_s: 2, workers: 256}
sandbox: {provider: none, per_rollout: 1, max_concurrent: null, start_s: 8, failure_fraction: 0}
hardware:
  billing: reserved
  pools:
    - {name: h200, gpu: h200-sxm, gpus: 256, granularity: node,
       roles: [trainer, prefill, decode, reward],
       price: {kind: owner_neocloud, vintage: 2026-07, usd_per_gpu_hour: 1.59}}
  links: []
budget:
  usd: 250000
  hours: 168
  flops: 989e12
  target: {steps: 1e3}
objective: usd_per_useful_mtok
value: {model: none}
evaluation: {}
calibration: null
token_basis: sequence
phases: []
tenants: null
plan: {}
seed: 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(PUBLISHED, encoding="utf-8")
    return path


def test_the_published_scenario_loads(file: Path) -> None:
    scenario = load(file)
    assert scenario.name == "Qwen3-235B-Thinking on 256 H200, as published"
    assert scenario.trainer.mfu == Quantity(value=0.105, kind="measured")
    assert scenario.workload.response_tokens == LengthsByMean.model_validate(
        {"mean": 12704, "cv": 0.8, "max": 27000}
    )
    price = scenario.hardware.pools[0].price
    assert isinstance(price, PublishedPrice)
    assert price.vintage == "2026-07"
    assert scenario.budget.target is not None
    assert scenario.budget.target.steps == Quantity(value=1000)
    assert scenario.queue.capacity_batches == IntRange(min=1, max=2)


def test_numbers_are_those_of_yaml_1_2(file: Path) -> None:
    budget = load(file).budget
    assert budget.flops == Quantity(value=989e12)
    text = PUBLISHED.replace("fixed_s: 5", "fixed_s: 1e-3").replace("hours: 168", "hours: 1_68")
    scenario = loads(text.replace("dynamic_sampling: refill", "dynamic_sampling: off"))
    assert scenario.trainer.fixed_s.value == 0.001
    assert scenario.budget.hours == Quantity(value=168)
    assert scenario.algorithm.dynamic_sampling == "off"


def test_a_byte_order_mark_and_anchors_are_fine(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + PUBLISHED.encode())
    assert load(str(file)) == loads(PUBLISHED.encode())
    text = PUBLISHED.replace("reference_model", "").replace("epochs: 1", "epochs: &one 1")
    text = text.replace("trained_share: 1.0", "trained_share: *one\n  reference_model: &no false")
    text += "# the anchor is named again\n"
    merged = text.replace("{type: sparse, cpu_s: 2", "&no {type: sparse, cpu_s: 2")
    assert loads(merged).algorithm.reference_model is False
    pools = """\
  pools:
    - &pool {name: a, gpu: h200-sxm, gpus: 8}
    - {<<: *pool, name: b, gpus: 16}
"""
    head, _, tail = PUBLISHED.partition("  pools:\n")
    two = loads(head + pools + "  links: []" + tail.partition("  links: []")[2])
    assert [(pool.name, pool.gpus) for pool in two.hardware.pools] == [("a", 8), ("b", 16)]
    assert two.origin.line_of("hardware.pools[1].gpu") == two.origin.line_of("hardware.pools[1]")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("scenario_version", 1),
        ("trainer.fixed_s", 15),
        ("trainer.mfu.value", 14),
        ("workload.response_tokens.max", 18),
        ("workload.solve_rate.rest.alpha", 23),
        ("hardware.pools[0]", 47),
        ("hardware.pools[0].roles[2]", 48),
        ("hardware.pools[0].price.vintage", 49),
        ("budget.target.steps", 55),
        # Not in the file: the deepest block that is.
        ("hardware.pools[0].price.capex", 49),
        ("budget.gpu_hours", 51),
        ("nothing.of[3].this", 1),
    ],
)
def test_each_key_knows_its_line(file: Path, path: str, line: int) -> None:
    scenario = load(file)
    assert scenario.origin.line_of(path) == line
    error = scenario.error(path, "something else", [1, 2])
    assert str(error) == f"{file}:{line}: {path}: expected something else, given [1, 2]"


# --- overrides -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read", "value"),
    [
        ("hardware.pools[0].gpus=128", lambda s: s.hardware.pools[0].gpus, 128),
        ("hardware.pools[h200].gpus=1.28e2", lambda s: s.hardware.pools[0].gpus, 128),
        ("hardware.pools.h200.gpus=8", lambda s: s.hardware.pools[0].gpus, 8),
        ("hardware.pools.0.gpus=8", lambda s: s.hardware.pools[0].gpus, 8),
        ("workload.response_tokens.mean=8000",
         lambda s: s.workload.response_tokens.mean.value, 8e3),
        ("workload.response_tokens={p50: 4e3, p99: 9e3}",
         lambda s: s.workload.response_tokens.p99.value, 9e3),
        ("trainer.mfu=0.2", lambda s: s.trainer.mfu, Quantity(value=0.2)),
        ("trainer.mfu.value=0.2", lambda s: s.trainer.mfu, Quantity(value=0.2, kind="measured")),
        ("trainer.fixed_s.low=2", lambda s: s.trainer.fixed_s, Quantity(value=5, low=2)),
        ("trainer_gpus=64", lambda s: s.plan.trainer_gpus, 64),
        ("plan.trainer_gpus = 64", lambda s: s.plan.trainer_gpus, 64),
        ("layout.tp=8", lambda s: s.plan.layout.tp, 8),
        ("oversampling=1.5", lambda s: s.plan.oversampling, 1.5),
        ("group_size=8", lambda s: (s.plan.group_size, s.algorithm.group_size), (8, 16)),
        ("algorithm.group_size={min: 8, max: 16, step: 8}",
         lambda s: s.algorithm.group_size, IntRange(min=8, max=16, step=8)),
        ("queue.capacity_batches=2", lambda s: s.queue.capacity_batches, 2),
        ("queue.capacity_batches.max=4",
         lambda s: s.queue.capacity_batches, IntRange(min=1, max=4)),
        ("algorithm.training.lora_rank=32", lambda s: s.algorithm.training.lora_rank, 32),
        ("staleness={}", lambda s: s.staleness.limit, None),
        ("staleness.limit=0", lambda s: s.staleness.limit, Quantity(value=0)),
        ("budget.usd=null", lambda s: s.budget.usd, None),
        ("budget.usd=", lambda s: s.budget.usd, None),
        ("name=a=b", lambda s: s.name, "a=b"),
        ("mode=colocated_sync", lambda s: (s.plan.mode, s.algorithm.mode),
         ("colocated_sync", "auto")),
        ("prefill_gpus=16", lambda s: s.plan.prefill_gpus, 16),
        ("engine.weights_dtype=[bf16, fp8]", lambda s: s.engine.weights_dtypes, ("bf16", "fp8")),
        ('engine.backend_version="0.5"', lambda s: s.engine.backend_version, "0.5"),
        ("hardware.pools[0].price={usd_per_gpu_hour: 2.5}",
         lambda s: s.hardware.pools[0].price.usd_per_gpu_hour, Quantity(value=2.5)),
    ],
)  # fmt: skip
def test_an_override_sets_one_key(
    file: Path, text: str, read: Callable[[Any], object], value: object
) -> None:
    assert read(load(file, [text])) == value


def test_overrides_apply_in_order_and_leave_the_rest(file: Path) -> None:
    twice = load(file, ["seed=1", "seed=2"])
    assert twice.seed == 2
    assert override(twice, {"seed": 0}) == load(file)


def test_a_number_takes_the_place_of_a_block_with_its_origin(file: Path) -> None:
    block = "trainer.mfu={value: 0.3, low: 0.2, high: 0.4, kind: fitted, source: run 7}"
    assert load(file, [block]).trainer.mfu == Quantity(
        value=0.3, low=0.2, high=0.4, kind="fitted", source="run 7"
    )
    assert load(file, [block, "trainer.mfu=0.25"]).trainer.mfu == Quantity(value=0.25)


def test_overrides_from_python(file: Path) -> None:
    numpy = pytest.importorskip("numpy")
    scenario = load(file)
    faster = override(
        scenario,
        {"hardware.pools[h200].gpus": numpy.int64(128), "trainer.mfu": numpy.float64(0.2)},
    )
    assert faster.hardware.pools[0].gpus == 128
    assert faster.trainer.mfu == Quantity(value=0.2)
    assert scenario.hardware.pools[0].gpus == 256
    assert faster.origin.locate("trainer.mfu") == ("--set", None)
    assert faster.origin.locate("trainer.fixed_s") == (str(file), 15)
    quantiles = override(
        scenario, {"workload.response_tokens": {"quantiles": {0.5: 4e3, 0.9: 9e3}}}
    )
    longer = override(quantiles, {"workload.response_tokens.quantiles[0.9]": 12e3})
    lengths = scenario_to_dict(longer)["workload"]["response_tokens"]
    assert lengths == {"quantiles": {0.5: 4000, 0.9: 12000}}


@pytest.mark.parametrize(
    ("text", "path", "expected", "nearest"),
    [
        ("seed", None, "path=value", None),
        ("=3", None, "path=value", None),
        ("a..b=3", None, "path=value", None),
        ("seed=[1", "seed", "a YAML value", None),
        ("seed=!x 1", "seed", "a YAML value", None),
        ("traner.mfu=0.2", "traner", "one of the keys", "trainer"),
        ("trainer.mfuu=0.2", "trainer.mfuu", "one of the keys precision, mfu", "mfu"),
        ("trainer_gpu=64", "trainer_gpu", "one of the keys", "trainer_gpus"),
        ("trainer_gpus=-1", "plan.trainer_gpus", "a whole number >= 1", None),
        ("hardware.pools[1].gpus=8", "hardware.pools[1]", "a place 0 to 0 or a name: h200", None),
        ("hardware.pools[h100].gpus=8", "hardware.pools.h100", "a name: h200", "h200"),
        ("hardware.pools[0].gpuss=8", "hardware.pools[0].gpuss", "one of the keys name", "gpus"),
        ("engine.layouts[0].tp=8", "engine.layouts[0]", "a place in an existing list", None),
        ("mode=asinc", "plan.mode", "async, one_step_off, disaggregated_sync", "async"),
        ("algorithm.mode=sync", "algorithm.mode", "async, one_step_off", "async"),
        ("workload.response_tokens.mean='8000'", "workload.response_tokens.mean", "a number", None),
        ("workload.response_tokens.p50=3", "workload.response_tokens", "one form only", None),
    ],
)
def test_a_wrong_override_is_an_error_of_the_command_line(
    file: Path, text: str, path: str | None, expected: str, nearest: str | None
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(file, [text])
    error = caught.value
    assert error.path == path, str(error)
    assert expected in (error.expected or ""), str(error)
    assert error.nearest == nearest, str(error)
    if path != "workload.response_tokens":
        assert (error.file, error.line) == ("--set", None)
        assert str(error).startswith("--set: ")


def test_an_override_that_breaks_a_key_of_the_file_names_the_key_of_the_file(file: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(file, ["workload.response_tokens.mean=30000"])
    assert (caught.value.line, caught.value.path) == (18, "workload.response_tokens.max")
    with pytest.raises(ScenarioError, match="a list of overrides"):
        load(file, "seed=1")


# --- references ----------------------------------------------------------------------------------


def with_lengths(directory: Path, reference: str) -> Path:
    path = directory / "run.yaml"
    old = "response_tokens: {mean: 12704, cv: 0.8, max: 27000}"
    path.write_text(PUBLISHED.replace(old, f"response_tokens: {{file: '{reference}'}}"), "utf-8")
    return path


def test_files_are_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lengths.csv").write_text("response_tokens\n100\n2.5e3\n\n", "utf-8")
    (tmp_path / "config.json").write_text("{}", "utf-8")
    scenario = load(with_lengths(tmp_path, "data/../data/lengths.csv"), {"model": "config.json"})
    assert isinstance(scenario.workload.response_tokens, LengthsFromFile)
    assert scenario.model_file == tmp_path.resolve() / "config.json"
    assert scenario.lengths_file is not None
    assert read_lengths_file(scenario.lengths_file) == (100.0, 2500.0)
    assert load(with_lengths(tmp_path, "data/lengths.csv")).model_file is None
    # The text of an upload has no directory, so it may name no file.
    with pytest.raises(ScenarioError, match="this scenario was not read from a file"):
        loads((tmp_path / "run.yaml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("missing.csv", "an existing file"),
        ("data", "an existing file"),
        ("../outside.csv", "in the directory of the scenario"),
        ("data/../../outside.csv", "in the directory of the scenario"),
        ("/etc/hostname", "relative to the scenario file"),
        ("data\\lengths.csv", "relative to the scenario file"),
        ("link.csv", "in the directory of the scenario"),
    ],
)
def test_files_elsewhere_are_refused(tmp_path: Path, reference: str, expected: str) -> None:
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    (tmp_path / "outside.csv").write_text("response_tokens\n1\n", "utf-8")
    (home / "link.csv").symlink_to(tmp_path / "outside.csv")
    with pytest.raises(ScenarioError) as caught:
        load(with_lengths(home, reference))
    error = caught.value
    assert (error.line, error.path) == (18, "workload.response_tokens.file")
    assert expected in (error.expected or "")


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("100\n200\n", 1, "the header response_tokens"),
        ("response_tokens,id\n100,1\n", 1, "the header response_tokens"),
        ("response_tokens\n100\n\nabc\n", 4, "a number > 0"),
        ("response_tokens\n100\n-1\n", 3, "a finite number > 0"),
        ("response_tokens\nnan\n", 2, "a finite number > 0"),
        ("response_tokens\n1,2\n", 2, "one number per row"),
        ("response_tokens\n", 1, "at least one number"),
        ("", None, "at least one number"),
        ('response_tokens\n"' + "x" * 200_000 + '"\n', 2, "a CSV row"),
    ],
)
def test_a_wrong_lengths_file_names_its_row(
    tmp_path: Path, text: str, line: int | None, expected: str
) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(ScenarioError) as caught:
        read_lengths_file(path)
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert expected in (caught.value.expected or "")


# --- the round trip ------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(min_value=1, max_value=10**15),
    st.floats(min_value=1e-9, max_value=1e25, allow_nan=False),
)
shares = st.floats(min_value=1e-6, max_value=1.0)
counts = st.integers(min_value=1, max_value=4096)
texts = st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable() and text.strip())
words = st.sampled_from(["off", "null", "1e3", "2026-07", "a: b", "#", "- x", "{", "yes", "0x1"])


def quantities(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def block(value: float, low: bool, high: bool, kind: str, source: str | None) -> dict[str, Any]:
        stated: dict[str, Any] = {"value": value, "kind": kind, "source": source}
        return stated | ({"low": value} if low else {}) | ({"high": value} if high else {})

    kinds = st.sampled_from(["measured", "vendor", "fitted", "assumed", "stated"])
    sources = st.none() | texts | words
    return values | st.builds(block, values, st.booleans(), st.booleans(), kinds, sources)


def ranges(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    # A range has at most a thousand choices.
    pair = st.tuples(values, values).map(sorted).filter(lambda ends: ends[1] - ends[0] < 99)
    return values | pair.map(lambda ends: {"min": ends[0], "max": ends[1]})


lengths = st.one_of(
    st.fixed_dictionaries({"mean": quantities(numbers), "cv": quantities(numbers)}),
    numbers.map(lambda mean: {"mean": mean, "cv": 0.8, "max": mean * 2.5}),
    numbers.map(lambda p50: {"p50": p50, "p99": p50 * 3, "max": p50 * 3}),
    st.lists(shares.filter(lambda p: p < 1), min_size=2, max_size=5, unique=True).map(
        lambda ps: {"quantiles": {p: 10 + 1e4 * p for p in ps}}
    ),
)
times = quantities(numbers) | st.one_of(
    numbers.map(lambda mean: {"mean": mean, "cv": 1.2, "max": mean * 2.5}),
    st.fixed_dictionaries({"p50": st.just(2.5), "p99": quantities(st.just(30))}),
)


def tables(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return quantities(values) | st.dictionaries(numbers, values, min_size=1, max_size=4)


prices = st.fixed_dictionaries({"input": quantities(numbers), "output": numbers})
rewards = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["sparse", "structured", "dense"])},
        optional={"cpu_s": quantities(numbers), "workers": counts, "calls": quantities(numbers)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("proxy_prm")},
        optional={"tokens": st.fixed_dictionaries({}, optional={"input": quantities(numbers)})},
    ),
    st.fixed_dictionaries(
        {"type": st.just("prm"), "model": texts | words},
        optional={"hfu": quantities(shares), "latency_s": quantities(numbers)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("llm_judge"), "usd_per_mtok": prices},
        optional={
            "max_per_s": quantities(numbers),
            "placement": st.just("api"),
            "tokens": st.fixed_dictionaries({"output": numbers}),
        },
    ),
)
sandboxes = st.fixed_dictionaries(
    {"provider": st.just("local")},
    optional={
        "per_rollout": st.just(2),
        "max_concurrent": counts.map(lambda count: count + 1),
        "start_s": tables(numbers),
        "failure_fraction": tables(shares.map(lambda share: share / 2)),
        "retries": st.integers(min_value=0, max_value=9),
        "timeout_s": quantities(numbers),
        "usd_per_hour": quantities(numbers),
        "credit_usd": quantities(numbers),
        "cpus": quantities(numbers),
        "host": st.just({}) | st.just({"cpus": None}),
    },
)
flows = st.sampled_from(
    [
        {"mode": "auto", "weight_update": "drain", "switch": {"offload_s": 3.5}},
        {"mode": "one_step_off", "partial_rollout": True, "mixed_environment": "exclude"},
        {"mode": "colocated_sync", "switch": {"offload_s": 0, "onload_s": {"value": 4, "low": 2}}},
        {"weight_update": "abort", "partial_rollout": True, "length_cut_tokens": 9000},
        {"estimator": "ppo", "critic": "qwen3-8b", "group_size": 1},
    ]
)
pools = st.lists(
    st.fixed_dictionaries(
        {"name": texts | words, "gpu": st.sampled_from(["h200-sxm", "b200"]), "gpus": counts},
        optional={
            "granularity": st.sampled_from(["node", "gpu"]),
            "spare_gpus": st.just(0),
            "price": st.fixed_dictionaries({"usd_per_gpu_hour": quantities(numbers)})
            | st.just({"kind": "rental", "vintage": "2026-07"}),
        },
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda pool: pool["name"],
)


def linked(hardware: dict[str, Any]) -> dict[str, Any]:
    names = [pool["name"] for pool in hardware["pools"]]
    links = [{"between": [names[0], name], "gbit_per_s": 400} for name in names[1:]]
    return hardware | {"links": links}


scenarios = st.fixed_dictionaries(
    {
        "model": texts.filter(lambda text: not text.endswith(".json"))
        | words
        | st.fixed_dictionaries(
            {"params_total": quantities(numbers), "layers": counts,
             "kv_bytes_per_token": quantities(numbers)}
        ),
        "workload": st.fixed_dictionaries(
            {"response_tokens": lengths},
            optional={
                "initial_prompt_tokens": quantities(numbers),
                "prefix_cache": quantities(shares) | st.sampled_from(["none", "full"]),
                "solve_rate": st.just({"always": 0.1, "rest": {"alpha": 0.5}}),
                "turns": counts,
                "tool_tokens_per_turn": quantities(numbers),
                "tool_s": times,
            },
        ),
        "hardware": st.fixed_dictionaries({"pools": pools}).flatmap(
            lambda hardware: st.sampled_from([hardware, linked(hardware)])
        ),
        "budget": st.fixed_dictionaries({"hours": quantities(numbers)},
                                        optional={"flops": quantities(numbers)}),
    },
    optional={
        "name": texts | words,
        "seed": st.integers(min_value=0, max_value=2**53),
        "engine": st.fixed_dictionaries({}, optional={
            "memory_fraction": quantities(shares),
            "layouts": st.lists(st.fixed_dictionaries({"tp": counts}), min_size=1, max_size=3),
            "backend_version": texts | words,
            "weights_dtype": st.sampled_from(["nvfp4", ["bf16"], ["fp8", "bf16"]]),
            "kv_dtype": st.sampled_from(["fp8", ["bf16", "fp8"]]),
            "disaggregation": st.sampled_from(["never", "auto", "always"]),
            "kv_during_tools": st.sampled_from(["hold", "evict"]),
        }),
        "trainer": st.fixed_dictionaries({}, optional={
            "mfu": quantities(shares), "fixed_s": quantities(numbers),
        }),
        "algorithm": st.fixed_dictionaries({}, optional={
            "group_size": ranges(counts.map(lambda count: count + 1)),
            "oversampling": ranges(st.floats(min_value=1, max_value=8)),
            "training": st.sampled_from(["full", {"lora_rank": 8}]),
            "reference_model": st.booleans(),
            "dynamic_sampling": st.sampled_from(["off", "drop", "refill"]),
        }) | flows,
        "reward": rewards,
        "sandbox": sandboxes,
        "evaluation": st.fixed_dictionaries(
            {"every_steps": counts, "samples": counts},
            optional={"response_tokens": quantities(numbers)},
        ),
        "checkpoint": st.fixed_dictionaries(
            {"every_steps": counts, "seconds": quantities(numbers)},
            optional={"blocks": st.booleans()},
        ),
        "failures": st.fixed_dictionaries({"mtbf_gpu_hours": numbers, "restart_s": numbers}),
        "plan": st.fixed_dictionaries({}, optional={
            "trainer_gpus": counts, "layout": st.just({"tp": 8, "ep": 8}),
        }),
    },
)  # fmt: skip


def possible(data: dict[str, Any]) -> bool:
    """Whether blocks that are drawn apart agree: GPUs that take turns have no prefill engines."""
    mode = data.get("algorithm", {}).get("mode")
    return bool(
        mode != "colocated_sync" or data.get("engine", {}).get("disaggregation") != "always"
    )


@given(scenarios.filter(possible))
@settings(max_examples=80, deadline=None)
def test_loading_what_was_dumped_gives_the_same_scenario(data: dict[str, Any]) -> None:
    scenario = from_dict(data)
    text = dump(scenario)
    again = loads(text)
    assert again == scenario
    assert hash(again) == hash(scenario)
    assert dump(again) == text
    assert max(len(line) for line in text.splitlines()) < 200
    plain = scenario_to_dict(scenario)
    assert from_dict(plain) == scenario
    # JSON has no numbers for keys: those of a table come back as text.
    assert from_dict(json.loads(json.dumps(plain, allow_nan=False))) == scenario


def test_the_new_forms_are_dumped_as_they_are_written(file: Path) -> None:
    text = dump(
        load(
            file,
            {
                "sandbox": {"provider": "local", "start_s": {64: 20, 8: 2.5}},
                "engine.kv_dtype": ["fp8", "bf16"],
                "workload.tool_s": {"p50": 2, "p99": 30},
                "algorithm.switch.offload_s": 3,
            },
        )
    )
    assert "  start_s: {8: 2.5, 64: 20}\n" in text
    assert "  kv_dtype: [fp8, bf16]\n" in text
    assert "  tool_s: {p50: 2, p99: 30}\n" in text
    assert "  switch: {offload_s: 3}\n" in text
    assert "  links: []\n" in text
    assert "evaluation" not in text


def test_canonical_yaml_is_short_where_nothing_is_to_say(file: Path) -> None:
    text = dump(load(file))
    line = "response_tokens: {mean: 12704, cv: 0.8, max: 27000, at_oversampling: 1}"
    assert line in text
    assert "mfu: {value: 0.105, kind: measured}" in text
    assert "flops: 989000000000000\n" in text
    assert "roles: [trainer, prefill, decode, reward]" in text
    assert "null" not in text
    assert 'dynamic_sampling: "off"' in dump(load(file, ["algorithm.dynamic_sampling=off"]))


def test_a_cold_load_is_fast(file: Path) -> None:
    script = (
        "import sys, time, pydantic.main, pydantic.types\n"
        "start = time.process_time()\n"
        "from allocator.scenario.load import load\n"
        "load(sys.argv[1])\n"
        "print(time.process_time() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True
    )
    # 0.1 to 0.2 s on a slow core; the limit is loose so that a busy machine does not fail it.
    assert float(done.stdout) < 1.0
    scenario = load(file)
    start = time.perf_counter()
    for mean in range(8000, 8020):
        override(scenario, {"workload.response_tokens.mean": mean})
    assert (time.perf_counter() - start) / 20 < 0.05
