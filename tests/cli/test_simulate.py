"""The verb `simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import allocator
from allocator.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = str(EXAMPLES / "qwen3-8b-8gpus.yaml")
SHORT = ("--steps", "10", "--replications", "2")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *words])


def test_the_view() -> None:
    result = run(NODE, *SHORT)
    assert result.exit_code == 0, result.stderr
    assert "simulation beside formula" in result.stdout
    assert "useful tokens/s" in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert result.stderr == ""


def test_json_is_the_library_s_result() -> None:
    result = run(NODE, *SHORT, "--seed", "3", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    expected = allocator.simulate(NODE, steps=10, seed=3, replications=2).to_dict()
    clock = {"wall_s": 0.0, "events_per_s": 0.0}
    assert data | clock == expected | clock
    assert {"simulated", "predicted", "difference", "intervals"} <= set(data)
    assert (data["seed"], data["steps"], data["warm_up_steps"]) == (3, 10, 2)
    assert data["events_per_s"] > 0.0


def test_keys_of_a_scenario_are_replaced_and_not_those_of_a_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    solved = CliRunner().invoke(app, ["solve", NODE, "-o", str(plan)])
    assert solved.exit_code == 0, solved.stderr
    recorded = json.loads(run(str(plan), *SHORT, "--json").stdout)
    assert recorded["origin"] == "recorded"
    changed = json.loads(run(NODE, *SHORT, "--json", "--set", "algorithm.group_size=4").stdout)
    assert changed["simulated"] != recorded["simulated"]
    refused = run(str(plan), *SHORT, "--set", "algorithm.group_size=4")
    assert refused.exit_code == 2
    assert "a scenario, whose keys can be replaced" in refused.stderr


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("s.json", b"{"),
        ("s.html", b"<div"),
        ("s.md", b"## Qwen3"),
        ("s.csv", b"path,predicted"),
        ("s.png", b"\x89PNG"),
    ],
)
def test_a_file_is_written_by_its_ending(name: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    result = run(NODE, *SHORT, "-o", str(path))
    assert result.exit_code == 0, result.stderr
    assert path.read_bytes().startswith(start)
    assert f"wrote {path}" in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_trace_of_some_steps(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    result = run(NODE, *SHORT, "--trace", str(path), "--trace-steps", "2")
    assert result.exit_code == 0, result.stderr
    lines = path.read_text().splitlines()
    assert lines[0] == "time_s,kind,value"
    steps = [line.split(",")[2] for line in lines if ",training," in line]
    assert steps == ["3", "4"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--steps", "4"), "--steps: expected 5 or more, given 4"),
        (("--replications", "0"), "--replications: expected 1 or more"),
        (("--seed", "-1"), "--seed: expected 0 or more"),
        (("--trace-steps", "0"), "--trace-steps: expected 1 or more"),
        (("-o", "x.pdf"), "--output: expected a file that ends in .json"),
        (("--trace", "x.txt"), "--trace: expected a file that ends in .csv"),
        (("-o", "nowhere/x.json"), "a folder that exists"),
    ],
)
def test_bad_usage(words: tuple[str, ...], told: str) -> None:
    result = run(NODE, *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


def test_no_plan_is_exit_3() -> None:
    result = run(NODE, *SHORT, "--set", "staleness.limit=0.01", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["status"] == "error"
