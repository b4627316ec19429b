"""Every class of mistake in a scenario file ends in one error with file, line and path."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import NamedTuple

import pytest

from allocator.scenario.errors import ScenarioError, join_errors, nearest_of, shown
from allocator.scenario.load import load, loads

GOOD = """\
model: qwen3-8b
workload:
  response_tokens: {mean: 8000, cv: 0.8, max: 16000}
hardware:
  pools:
    - {name: h200, gpu: h200-sxm, gpus: 64}
budget: {hours: 24}
"""


class Bad(NamedTuple):
    """A wrong file and the error it has to end in."""

    name: str
    text: str
    line: int | None
    path: str | None
    expected: str
    given: str
    nearest: str | None = None


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def added(text: str) -> str:
    return GOOD + text


BAD = [
    Bad("unknown_key", added("algorithm:\n  grup_size: 8\n"), 9, "algorithm.grup_size",
        "one of the keys estimator, critic, training, group_size", "grup_size", "group_size"),
    Bad("unknown_top_level_key", added("bugdet: {usd: 3}\n"), 8, "bugdet",
        "one of the keys scenario_version", "bugdet", "budget"),
    Bad("key_of_another_block", added("mfu: 0.4\n"), 8, "mfu",
        "one of the keys", "mfu", "trainer.mfu"),
    Bad("unknown_key_in_a_pool", changed("gpus: 64", "gpus: 64, granlarity: gpu"), 6,
        "hardware.pools[0].granlarity", "one of the keys name, gpu", "granlarity", "granularity"),
    Bad("unknown_key_in_a_quantity", added("reward:\n  cpu_s: {value: 1, hi: 2}\n"),
        9, "reward.cpu_s.hi", "one of the keys value, low, high, kind, source", "hi", "high"),
    Bad("key_that_is_no_text", added("3: x\n"), 8, "[3]", "one of the keys", '"3"'),
    Bad("missing_model", GOOD.partition("\n")[2], 1, "model", "text or {params_total", "nothing"),
    Bad("misspelt_required_key", changed("model:", "modle:"), 1, "modle",
        "one of the keys", "modle", "model"),
    Bad("missing_lengths", changed("  response_tokens: {mean: 8000, cv: 0.8, max: 16000}",
                                   "  turns: 1"),
        2, "workload.response_tokens", "{mean, cv, max, at_oversampling} or {p50, p99, max}",
        "nothing"),
    Bad("missing_pool_size", changed(", gpus: 64", ""), 6, "hardware.pools[0].gpus",
        "a whole number >= 1", "nothing"),
    Bad("no_budget", changed("budget: {hours: 24}\n", ""), 1, "budget",
        "a limit (usd, gpu_hours, flops or hours) or a target", "null"),
    Bad("empty_budget", changed("{hours: 24}", "{}"), 7, "budget", "a limit", "null"),
    Bad("numeric_string", changed("gpus: 64", 'gpus: "64"'), 6, "hardware.pools[0].gpus",
        "a whole number >= 1", '"64"'),
    Bad("numeric_string_quantity", changed("mean: 8000", 'mean: "8000"'), 3,
        "workload.response_tokens.mean", "a number > 0", '"8000"'),
    Bad("fraction_of_a_gpu", changed("gpus: 64", "gpus: 2.5"), 6, "hardware.pools[0].gpus",
        "a whole number >= 1", "2.5"),
    Bad("count_past_all_floats", changed("gpus: 64", "gpus: 1e300"), 6, "hardware.pools[0].gpus",
        "a whole number up to 9,007,199,254,740,992", "1e+300"),
    Bad("boolean_as_number", changed("gpus: 64", "gpus: true"), 6, "hardware.pools[0].gpus",
        "a whole number >= 1", "true"),
    Bad("not_positive", changed("mean: 8000", "mean: -3"), 3, "workload.response_tokens.mean",
        "a number > 0", "-3"),
    Bad("share_above_one", added("engine:\n\n  memory_fraction: 88\n"), 10,
        "engine.memory_fraction", "a number in (0, 1]", "88"),
    Bad("infinite", changed("cv: 0.8", "cv: .inf"), 3, "workload.response_tokens.cv",
        "a finite number", "inf"),
    Bad("not_a_number", changed("cv: 0.8", "cv: .nan"), 3, "workload.response_tokens.cv",
        "a finite number", "nan"),
    Bad("overflow", changed("hours: 24", "hours: 1e999"), 7, "budget.hours",
        "a finite number", "inf"),
    Bad("choice", added("engine: {backend: sglnag}\n"), 8, "engine.backend",
        "auto, sglang, vllm or trtllm", "sglnag", "sglang"),
    Bad("objective", added("objective: usd_per_useful_mtoken\n"), 8, "objective",
        "usd_per_useful_mtok, run.hours", "usd_per_useful_mtoken", "usd_per_useful_mtok"),
    Bad("text_for_a_flag", added("algorithm: {reference_model: yes}\n"), 8,
        "algorithm.reference_model", "true or false", "yes"),
    Bad("number_for_a_name", changed("name: h200", "name: 200"), 6, "hardware.pools[0].name",
        "text", "200"),
    Bad("block_for_a_number", changed("cv: 0.8", "cv: [0.8, 0.9]"), 3,
        "workload.response_tokens.cv", "a number > 0", "[0.8, 0.9]"),
    Bad("number_for_a_block", changed("{hours: 24}", "24"), 7, "budget",
        "{usd, gpu_hours, flops, hours, target}", "24"),
    Bad("block_for_a_list", changed("    - {name: h200, gpu: h200-sxm, gpus: 64}",
                                    "    h200: {gpu: h200-sxm, gpus: 64}"),
        5, "hardware.pools", "a list of {name, gpu", "{h200: {gpu: h200-sxm, gpus: 64}}"),
    Bad("low_above_value", changed("mean: 8000", "mean: {value: 8000, low: 9000}"), 3,
        "workload.response_tokens.mean.low", "low <= value (8000)", "9000"),
    Bad("high_below_value", changed("mean: 8000", "mean: {value: 8000, high: 7000}"), 3,
        "workload.response_tokens.mean.high", "high >= value (8000)", "7000"),
    Bad("spread_out_of_range", added("trainer:\n  mfu: {value: 0.9, high: 1.1}\n"), 9,
        "trainer.mfu.high", "a number in (0, 1]", "1.1"),
    Bad("kind", changed("mean: 8000", "mean: {value: 8000, kind: mesured}"), 3,
        "workload.response_tokens.mean.kind", "measured, vendor, fitted, assumed or stated",
        "mesured", "measured"),
    Bad("spread_on_a_count", changed("gpus: 64", "gpus: {value: 64, low: 32}"), 6,
        "hardware.pools[0].gpus.low", "value, kind or source (no spread", "low"),
    Bad("cap_below_mean", changed("max: 16000", "max: 8000"), 3, "workload.response_tokens.max",
        "a number > mean (8000)", "8000"),
    Bad("p99_below_p50", changed("{mean: 8000, cv: 0.8, max: 16000}", "{p50: 9000, p99: 8000}"), 3,
        "workload.response_tokens.p99", "a number > p50 (9000)", "8000"),
    Bad("two_forms_of_lengths", changed("cv: 0.8", "p50: 7000"), 3, "workload.response_tokens",
        "one form only: {mean, cv, max}", "{mean: 8000, p50: 7000, max: 16000}"),
    Bad("misspelt_lengths", changed("{mean: 8000, cv: 0.8, max: 16000}", "{maen: 8000}"), 3,
        "workload.response_tokens.maen", "{mean, cv, max}", "maen", "mean"),
    Bad("bare_lengths", changed("{mean: 8000, cv: 0.8, max: 16000}", "8000"), 3,
        "workload.response_tokens", "{mean, cv, max}", "8000"),
    Bad("quantiles_fall", changed("{mean: 8000, cv: 0.8, max: 16000}",
                                  "\n    quantiles:\n      0.5: 9000\n      0.9: 8000"), 6,
        "workload.response_tokens.quantiles[0.9]", "more tokens than at the probability before",
        "8000"),
    Bad("quantile_probability", changed("{mean: 8000, cv: 0.8, max: 16000}",
                                        "{quantiles: {50: 9000, 0.9: 8000}}"), 3,
        "workload.response_tokens.quantiles[50]", "a probability in (0, 1)", "50"),
    Bad("mfu_and_hfu", added("trainer: {mfu: 0.3, hfu: 0.4}\n"), 8, "trainer.hfu",
        "mfu or hfu, not both", "0.4"),
    Bad("mfu_at_gpus_alone", added("trainer: {mfu_at_gpus: 64}\n"), 8, "trainer.mfu_at_gpus",
        "mfu beside mfu_at_gpus", "64"),
    Bad("mfu_at_gpus_beside_hfu", added("trainer: {hfu: 0.4, mfu_at_gpus: 64}\n"), 8,
        "trainer.mfu_at_gpus", "mfu beside mfu_at_gpus", "64"),
    Bad("mfu_at_batch_beside_hfu", added("trainer: {hfu: 0.4, mfu_at_batch: 512}\n"), 8,
        "trainer.mfu_at_batch", "mfu beside mfu_at_batch", "512"),
    Bad("solve_rates_above_one",
        changed("hardware:", "  solve_rate: {always: 0.6, never: 0.5}\nhardware:"), 4,
        "workload.solve_rate.never", "always + never <= 1", "1.1"),
    Bad("group_of_none", added("algorithm: {group_size: 0}\n"), 8, "algorithm.group_size",
        "a whole number >= 1 or {min, max, step}", "0"),
    Bad("range_reversed", added("algorithm:\n  group_size: {min: 16,\n    max: 8}\n"), 10,
        "algorithm.group_size.max", "max >= min (16)", "8"),
    Bad("undersampling", added("algorithm: {oversampling: {min: 0.5, max: 2}}\n"), 8,
        "algorithm.oversampling.min", "a number >= 1", "0.5"),
    Bad("limit_to_enforce", added("staleness: {enforce: reject}\n"), 8, "staleness.limit",
        "a limit beside enforce: reject", "null"),
    Bad("no_pools", changed("\n    - {name: h200, gpu: h200-sxm, gpus: 64}", " []"), 5,
        "hardware.pools", "at least one pool", "[]"),
    Bad("pool_name_twice", changed("budget", "    - {name: h200, gpu: b200, gpus: 8}\nbudget"), 7,
        "hardware.pools[1].name", "a name no other pool has", "h200"),
    Bad("no_pool_for_a_role", changed("gpus: 64", "gpus: 64, roles: [trainer]"), 5,
        "hardware.pools", "a pool with the role decode", "[h200]"),
    Bad("role", changed("gpus: 64", "gpus: 64, roles: [trainer, decoder]"), 6,
        "hardware.pools[0].roles[1]", "trainer, prefill, decode or reward", "decoder", "decode"),
    Bad("role_twice", changed("gpus: 64", "gpus: 64, roles: [decode, decode]"), 6,
        "hardware.pools[0].roles", "at most once", "[decode, decode]"),
    Bad("price_kind", changed("gpus: 64", "gpus: 64, price: {kind: rentl}"), 6,
        "hardware.pools[0].price.kind", "owner_neocloud, owner_hyperscaler, rental, ownership",
        "rentl", "rental"),
    Bad("price_vintage", changed("gpus: 64", "gpus: 64, price: {kind: rental, vintage: 2026-08}"),
        6, "hardware.pools[0].price.vintage", "2026-04, 2026-07 or 2026-late", "2026-08",
        "2026-07"),
    Bad("vintages_mixed",
        changed("budget", "    - {name: b, gpu: b200, gpus: 8, price: {kind: rental, "
                          "vintage: 2026-04}}\nbudget"),
        7, "hardware.pools[1].price.vintage", "2026-07, the vintage of the first pool", "2026-04"),
    Bad("bare_price", changed("gpus: 64", "gpus: 64, price: 2"), 6, "hardware.pools[0].price",
        "{usd_per_gpu_hour}, {kind, vintage} or {kind: ownership, ...}", "2"),
    Bad("on_demand_without_end", changed("{hours: 24}", "{usd: 1000}").replace(
        "  pools:", "  billing: on_demand\n  pools:"), 5, "hardware.billing",
        "reserved, or on_demand with budget.target or budget.hours", '"on_demand alone"'),
    Bad("two_targets", changed("{hours: 24}", "{target: {steps: 3, samples: 4}}"), 7,
        "budget.target", "exactly one of steps, samples, useful_tokens", "[steps, samples]"),
    Bad("plan_pool", added("plan: {trainer_pool: h20}\n"), 8, "plan.trainer_pool",
        "a pool with the role trainer: h200", "h20", "h200"),
    Bad("two_concurrencies", added("plan: {in_flight: 64, in_flight_per_engine: 8}\n"), 8,
        "plan.in_flight_per_engine", "in_flight or in_flight_per_engine, not both", "8"),
    Bad("rates_without_context",
        added("engine:\n  rates:\n    decode: {alpha_s: 0.007, beta_s: 4e-5}\n"
              "    prefill: {p0_s: 0.01, p1_s_per_token: 1e-5}\n    gpus_per_engine: 8\n"), 10,
        "engine.rates.decode", "gamma_s_per_token, or at_context_tokens", "{alpha_s: 0.007"),
    Bad("inline_model_without_cache",
        changed("model: qwen3-8b", "model:\n  params_total: 8e9\n  layers: 36"), 1, "model",
        "kv_bytes_per_token, or both kv_heads and head_dim", "{params_total: 8000000000"),
    Bad("scenario_version", added("scenario_version: 2\n"), 8, "scenario_version", "1", "2"),
    Bad("empty", "", 1, None, "a scenario", "an empty file"),
    Bad("only_a_comment", "# later\n", 1, None, "a scenario", "an empty file"),
    Bad("list_at_the_top", "\n- model: a\n", 2, None, "a block of keys", "[{model: a}]"),
    Bad("text_at_the_top", "model\n", 1, None, "a block of keys", "model"),
    Bad("key_given_twice", added("budget: {usd: 10}\n"), 8, "budget", "each key once",
        "budget twice"),
    Bad("tag_of_an_object", changed("qwen3-8b", "!!python/object/apply:os.getcwd []"), 1, "model",
        "a value without a tag", "tag:yaml.org,2002:python/object/apply:os.getcwd"),
    Bad("own_tag", changed("hours: 24", "hours: !days 1"), 7, "budget.hours",
        "a value without a tag", "!days"),
    Bad("alias_of_itself", added("name: &a\n  b: {c: *a}\n"), 8, "name", "text", "{b: "),
    Bad("tag_on_a_number", added("name: !!str 5\n"), 8, "name", "a value without a tag", "tag:"),
    Bad("old_yaml", "%YAML 1.1\n---\n" + GOOD, 1, None, "YAML 1.2", "1.1"),
    Bad("control_character", changed("qwen3-8b", "qwen\x073"), 1, None, "YAML text",
        "the character"),
    Bad("two_documents", added("---\nmodel: b\n"), 8, None, "YAML 1.2",
        "but found another document at column 1"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=[bad.name for bad in BAD])
def test_a_wrong_file_is_refused_where_it_is_wrong(tmp_path: Path, bad: Bad) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(bad.text, encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load(path)
    error = caught.value
    assert (error.file, error.line, error.path) == (str(path), bad.line, bad.path), str(error)
    assert bad.expected in (error.expected or ""), str(error)
    assert (error.given or "").startswith(bad.given), str(error)
    assert error.nearest == bad.nearest, str(error)
    assert error.others == (), str(error)


def test_the_text_of_an_error_is_one_line_with_file_line_and_path(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(added("engine: {backend: sglnag}\n"), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}:8: engine.backend: expected auto, sglang, vllm or trtllm, given sglnag "
        "(did you mean sglang?)"
    )
    assert caught.value.to_dict() == {
        "file": str(path),
        "line": 8,
        "path": "engine.backend",
        "expected": "auto, sglang, vllm or trtllm",
        "given": "sglnag",
        "nearest": "sglang",
        "message": str(caught.value),
    }


def test_all_mistakes_are_reported_in_file_order() -> None:
    text = added("queue: {capacity: 2}\nmfu: 0.3\nphases: [{share: 1}]\n")
    text = text.replace("mean: 8000", "mean: 0").replace("gpus: 64", "gpus: 0")
    with pytest.raises(ScenarioError) as caught:
        loads(text, file="a.yaml")
    error = caught.value
    paths = [(one.line, one.path) for one in (error, *error.others)]
    assert paths == [
        (3, "workload.response_tokens.mean"),
        (6, "hardware.pools[0].gpus"),
        (8, "queue.capacity"),
        (9, "mfu"),
        (10, "phases"),
    ]
    assert str(error).count("\n") == 4
    assert all(line.startswith("a.yaml:") for line in str(error).splitlines())
    assert len(error.to_dict()["others"]) == 4


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("model: a\nworkload: {response_tokens: {mean: 1\nbudget: 3\n", 3, 7),
        ("model: a\n\tname: b\n", 2, 1),
        ("model: a: b\n", 1, 9),
        ("model: *missing\n", 1, 8),
        ('model: "open\n', 2, 1),
    ],
)
def test_a_syntax_error_has_line_and_column(text: str, line: int, column: int) -> None:
    with pytest.raises(ScenarioError) as caught:
        loads(text, file="a.yaml")
    assert (caught.value.line, caught.value.column) == (line, column), str(caught.value)
    assert caught.value.expected == "YAML 1.2"
    assert f"at column {column}" in str(caught.value)
    assert caught.value.to_dict()["column"] == column


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ScenarioError) as caught:
        load(missing)
    assert str(caught.value) == f"{missing}: expected a readable file, given no such file"
    with pytest.raises(ScenarioError, match="expected a file, given a directory"):
        load(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"model: a\nname: caf\xe9\n")
    with pytest.raises(ScenarioError) as caught:
        load(latin)
    assert (caught.value.line, caught.value.given) == (2, "the byte 0xe9")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * 1_000_001)
    with pytest.raises(ScenarioError, match="expected at most 1,000,000 bytes"):
        load(large)
    with pytest.raises(ScenarioError, match="expected at most 1,000,000 bytes"):
        loads("#" * 1_000_001)
    with pytest.raises(ScenarioError, match="given the byte 0xff"):
        loads(b"model: \xff")
    with pytest.raises(ScenarioError, match="readable file"):
        load("a\0b")


def test_hostile_files_end_in_an_error_and_in_finite_time() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    with pytest.raises(ScenarioError, match="at most 100,000 values"):
        loads(laughs)
    with pytest.raises(ScenarioError, match="levels"):
        loads("a: " + "[" * 5000 + "]" * 5000)
    with pytest.raises(ScenarioError, match="levels"):
        loads("a: " + "[" * 80 + "]" * 80)
    with pytest.raises(ScenarioError, match="YAML values"):
        loads("seed: " + "9" * 5000)
    with pytest.raises(ScenarioError, match="a number, text, a block or a list"):
        loads("? [a, b]\n: 3\n")


def test_errors_survive_a_worker_process() -> None:
    error = ScenarioError(
        "m", file="f", line=2, path="p", expected="e", given="g", nearest="n", column=4,
        others=(ScenarioError("other"),),
    )  # fmt: skip
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "f:2: p: expected e, given g (did you mean n?); m\nother"
    assert copy.to_dict() == error.to_dict()


def test_an_error_without_a_place_takes_one_and_keeps_its_own() -> None:
    bare = ScenarioError(expected="a GPU id", given="h20x", nearest="h200-sxm")
    placed = bare.at(file="a.yaml", line=6, path="hardware.pools[0].gpu")
    assert str(placed) == (
        "a.yaml:6: hardware.pools[0].gpu: expected a GPU id, given h20x (did you mean h200-sxm?)"
    )
    assert placed.at(file="b.yaml", line=1, path="x").to_dict() == placed.to_dict()
    assert str(ScenarioError()) == "not a legal scenario"
    assert str(ScenarioError("no such run", file="a")) == "a: no such run"


def test_joined_errors_come_in_order_and_without_loss() -> None:
    errors = [ScenarioError("c"), ScenarioError("b", line=9), ScenarioError("a", line=2)]
    assert str(join_errors(errors)).splitlines() == ["2: a", "9: b", "c"]
    with pytest.raises(ValueError, match="at least one"):
        join_errors([])


def test_suggestions_ignore_case_and_dashes() -> None:
    assert nearest_of("H200_SXM", ["b200", "h200-sxm"]) == "h200-sxm"
    assert nearest_of("x", ["b200"]) is None
    assert nearest_of(8, ["8"]) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("sglang", "sglang"),
        ("8", '"8"'),
        ("0x1F", '"0x1F"'),
        ("true", '"true"'),
        ("2026-07", "2026-07"),
        ("two words", '"two words"'),
        (True, "true"),
        (None, "null"),
        (8.0, "8"),
        (1e-3, "0.001"),
        ({"a": [1, {"b": {"c": [2]}}]}, "{a: [1, {b: {c: [...]}}]}"),
        (["long entry"] * 20, '["long entry", "long entry", "long entry", "long entry", ...'),
        (object(), "object"),
        ([10**5000], "[a very large number]"),
    ],
)
def test_values_are_shown_as_in_a_file(value: object, text: str) -> None:
    assert shown(value) == text
    assert len(shown(value)) <= 60
