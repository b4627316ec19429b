"""Keys of several forms: numeric formats to choose from, and times of tool calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allocator.scenario.dump import dump
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import from_dict, load, loads
from allocator.scenario.quantity import Quantity
from allocator.scenario.references import read_latency_file
from allocator.scenario.schema import (
    LatencyByMean,
    LatencyByPercentiles,
    LatencyFromFile,
    Scenario,
)

TEXT = """\
model: qwen3-8b
workload:
  response_tokens: {mean: 8000, cv: 0.8}
  tool_s: {file: tools.csv}
hardware: {pools: [{gpu: h200-sxm, gpus: 64}]}
budget: {hours: 24}
"""


def scenario(said: dict[str, Any]) -> Scenario:
    data = {
        "model": "qwen3-8b",
        "workload": {"response_tokens": {"mean": 8000, "cv": 0.8}},
        "hardware": {"pools": [{"gpu": "h200-sxm", "gpus": 64}]},
        "budget": {"hours": 24},
    }
    return from_dict(data, said)


# --- formats -------------------------------------------------------------------------------------


def test_a_format_is_one_or_a_choice() -> None:
    one = scenario({"engine.weights_dtype": "fp8"}).engine
    assert (one.weights_dtype, one.weights_dtypes) == ("fp8", ("fp8",))
    assert (one.kv_dtype, one.kv_dtypes) == ("bf16", ("bf16",))
    several = scenario({"engine": {"weights_dtype": ["nvfp4", "fp8"], "kv_dtype": ["fp8"]}}).engine
    assert several.weights_dtype == several.weights_dtypes == ("nvfp4", "fp8")
    assert (several.kv_dtype, several.kv_dtypes) == ("fp8", ("fp8",))
    assert scenario({"engine.weights_dtype": ["fp8"]}) == scenario({"engine.weights_dtype": "fp8"})


@pytest.mark.parametrize(
    ("value", "path", "expected", "nearest"),
    [
        ("fp", "weights_dtype", "mxfp4, or a list of these", "fp8"),
        ([], "weights_dtype", "one format or more, each once", None),
        (["fp8", "fp8"], "weights_dtype", "one format or more, each once", None),
        (["bf16", "fp88"], "weights_dtype[1]", "bf16, fp8, nvfp4 or mxfp4", "fp8"),
        (8, "weights_dtype", "mxfp4, or a list of these", None),
        ({"fp8": 1}, "weights_dtype", "mxfp4, or a list of these", None),
    ],
)
def test_a_wrong_format(value: Any, path: str, expected: str, nearest: str | None) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario({"engine.weights_dtype": value})
    error = caught.value
    assert error.path == f"engine.{path}", str(error)
    assert expected in (error.expected or ""), str(error)
    assert error.nearest == nearest, str(error)


# --- times of tool calls -------------------------------------------------------------------------


def test_a_tool_call_takes_a_time_or_has_a_distribution() -> None:
    default = scenario({}).workload.tool_s
    assert isinstance(default, Quantity)
    assert (default.value, default.kind) == (0, "assumed")
    block = {"value": 3, "low": 2, "high": 9}
    assert scenario({"workload.tool_s": block}).workload.tool_s == Quantity(value=3, low=2, high=9)
    mean = scenario({"workload.tool_s": {"mean": 3, "cv": 1.5, "max": 60}}).workload.tool_s
    assert isinstance(mean, LatencyByMean)
    assert mean.max == Quantity(value=60)
    percentiles = scenario({"workload.tool_s": {"p50": 2, "p99": 40}}).workload.tool_s
    assert isinstance(percentiles, LatencyByPercentiles)
    assert percentiles.max is None
    turns = scenario({"workload.turns": 8, "workload.tool_tokens_per_turn": 400}).workload
    assert (turns.turns, turns.tool_tokens_per_turn) == (8, Quantity(value=400))


FORMS = "a number >= 0, {mean, cv, max}, {p50, p99, max} or {file} (max optional)"
KINDS = "a number >= 0 or {mean, cv, max} or {p50, p99, max} or {file}"


@pytest.mark.parametrize(
    ("value", "path", "expected", "nearest"),
    [
        (-1, "tool_s", KINDS, None),
        ("tools.csv", "tool_s", KINDS, None),
        ([3], "tool_s", KINDS, None),
        ({"mean": 3, "p50": 1}, "tool_s", f"one form only: {FORMS}", None),
        ({"maen": 3}, "tool_s.maen", FORMS, "mean"),
        ({"max": 3}, "tool_s", FORMS, None),
        ({"mean": 3}, "tool_s.cv", "a number > 0", None),
        ({"mean": 3, "cv": 0}, "tool_s.cv", "a number > 0", None),
        ({"mean": 3, "cv": 1, "max": 3}, "tool_s.max", "a number > mean (3)", None),
        ({"p50": 3, "p99": 3}, "tool_s.p99", "a number > p50 (3)", None),
        ({"p50": 3, "p99": 9, "max": 8}, "tool_s.max", "a number >= p99 (9)", None),
        ({"mean": 3, "cv": 1, "at_oversampling": 2}, "tool_s.at_oversampling", "the keys", None),
        ({"value": 3, "hi": 4}, "tool_s.hi", "one of the keys value, low", "high"),
    ],
)
def test_a_wrong_time(value: Any, path: str, expected: str, nearest: str | None) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario({"workload.tool_s": value})
    error = caught.value
    assert error.path == f"workload.{path}", str(error)
    assert expected in (error.expected or ""), str(error)
    assert error.nearest == nearest or path == "tool_s.at_oversampling", str(error)


def test_observed_times_stand_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT, "utf-8")
    with pytest.raises(ScenarioError, match="an existing file") as caught:
        load(tmp_path / "run.yaml")
    assert (caught.value.line, caught.value.path) == (4, "workload.tool_s.file")
    with pytest.raises(ScenarioError, match="this scenario was not read from a file"):
        loads(TEXT)
    (tmp_path / "tools.csv").write_text("tool_s\n0\n2.5\n\n1e2\n", "utf-8")
    said = load(tmp_path / "run.yaml")
    assert isinstance(said.workload.tool_s, LatencyFromFile)
    assert said.latency_file == tmp_path.resolve() / "tools.csv"
    assert said.latency_file is not None
    assert read_latency_file(said.latency_file) == (0.0, 2.5, 100.0)
    assert loads(dump(said), directory=tmp_path) == said
    assert scenario({}).latency_file is None


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("response_tokens\n3\n", 1, "the header tool_s"),
        ("tool_s\n-1\n", 2, "a finite number >= 0"),
        ("tool_s\n1\nfast\n", 3, "a number >= 0"),
        ("tool_s\n0\n0\n", None, "a number > 0 in some row"),
        ("tool_s\n", 1, "at least one number"),
    ],
)
def test_a_wrong_file_of_times(tmp_path: Path, text: str, line: int | None, expected: str) -> None:
    path = tmp_path / "tools.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(ScenarioError) as caught:
        read_latency_file(path)
    assert (caught.value.file, caught.value.line, caught.value.path) == (str(path), line, "tool_s")
    assert expected in (caught.value.expected or "")
