from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import allocator
from allocator.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLISHED = str(EXAMPLES / "qwen3-235b-h200.yaml")
NODE = str(EXAMPLES / "qwen3-8b-8gpus.yaml")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words])


def test_two_scenarios_are_compared_line_by_line() -> None:
    result = run(PUBLISHED, PUBLISHED, "--set", "oversampling=1")
    assert result.exit_code == 0, result.stderr
    assert "Where the difference in dollars per useful token comes from" in result.stdout
    assert "tail" in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert result.stderr == ""


def test_json_is_one_object_whose_terms_sum() -> None:
    result = run(PUBLISHED, NODE, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    total = sum(term["usd_per_useful_mtok"] for term in data["terms"])
    difference = data["b"]["usd_per_useful_mtok"] - data["a"]["usd_per_useful_mtok"]
    assert total == pytest.approx(difference, rel=1e-9)
    assert (data["a"]["origin"], data["b"]["origin"]) == ("evaluated", "solved")


def test_a_plan_file_and_a_scenario_go_together(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(allocator.solve(allocator.load(PUBLISHED)).to_dict()))
    data = json.loads(run(str(plan), PUBLISHED, "--json").stdout)
    assert (data["a"]["origin"], data["b"]["origin"]) == ("recorded", "evaluated")
    assert not data["scenario_changes"]
    assert data["difference_usd"] > 0
    solved = json.loads(run(str(plan), PUBLISHED, "--solve", "--json").stdout)
    assert solved["difference_usd"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "start"), [("c.json", "{"), ("c.html", "<div"), ("c.md", "## Where")]
)
def test_a_file_is_written_by_its_ending(name: str, start: str, tmp_path: Path) -> None:
    path = tmp_path / name
    result = run(PUBLISHED, PUBLISHED, "-o", str(path))
    assert result.exit_code == 0, result.stderr
    assert path.read_text().startswith(start)
    assert f"wrote {path}" in result.stderr


def test_a_side_without_any_plan_is_3_and_named() -> None:
    result = run(PUBLISHED, NODE, "--set", "budget.usd=0.001")
    assert result.exit_code == 3
    assert f"error: {NODE}: no plan meets" in result.stderr
    told = run(PUBLISHED, NODE, "--set", "budget.usd=0.001", "--json")
    assert told.exit_code == 3
    assert json.loads(told.stdout)["status"] == "error"


@pytest.mark.parametrize(
    "words",
    [(PUBLISHED,), ("no-such.yaml", PUBLISHED), ("no-such.json", PUBLISHED),
     (PUBLISHED, PUBLISHED, "--set", "no_such_key=1"),
     (PUBLISHED, PUBLISHED, "-o", "no/such/folder.json")],
)  # fmt: skip
def test_bad_usage_is_2(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
