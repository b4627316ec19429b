"""Which plan is audited, and how the findings are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from allocator.cli import app
from allocator.preflight import check
from allocator.report.html import report_html
from allocator.report.markdown import report_markdown
from allocator.report.preflight import preflight_content, preflight_data
from allocator.scenario.load import load
from tests.audit.twins import sound

TEXT = """\
name: two batches too many
model: qwen3-8b
engine: {backend: vllm}
trainer: {hfu: 0.4}
workload:
  response_tokens: {mean: 3000, cv: 0.9, max: 16000}
  solve_rate: {rest: {alpha: 3, beta: 3}}
algorithm: {group_size: 8, prompts_per_step: 32}
queue: {capacity_batches: 125}
staleness:
  limit: 5
hardware:
  pools: [{gpu: h200-sxm, gpus: 8, granularity: gpu, price: {usd_per_gpu_hour: 2}}]
budget: {usd: 2000}
plan: {trainer_gpus: 4, generator_gpus: 4, in_flight: 256}
"""
REPAIR = (
    *("--set", "queue.capacity_batches=1"),
    *("--set", "trainer_gpus=5"),
    *("--set", "generator_gpus=3"),
    *("--set", "in_flight=240"),
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, words)])


def test_a_plan_that_is_fixed_is_audited_without_solving() -> None:
    found = sound()
    assert found.audited == "as configured"
    assert found.plan.solver is None
    assert found.plan.decisions is not None
    assert found.plan.decisions.trainer.gpus == 4


def test_without_one_the_scenario_is_solved_and_its_plan_audited() -> None:
    found = sound("plan=null")
    assert found.audited == "solved"
    assert found.plan.status == "optimal"
    assert found.passed


def test_a_block_that_leaves_the_split_open_is_named() -> None:
    found = sound("plan.trainer_gpus=null")
    assert found.audited == "solved"
    (note,) = [f for f in found.findings if f.code == "plan_not_audited"]
    assert "generator_gpus, in_flight" in note.text
    assert note.level == "note"


def test_a_scenario_that_no_plan_meets_fails_with_what_would_help() -> None:
    found = sound("plan=null", "budget={usd: 1, target: {steps: 100}}")
    assert found.audited == "scenario"
    assert not found.passed
    worst = found.findings[0]
    assert (worst.code, worst.level) == ("infeasible", "error")
    assert "budget_usd" in worst.text
    assert "budget.usd: " in worst.remedy


def test_people_read_place_text_and_remedy(config: Path) -> None:
    result = run(config)
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0].split() == ["two", "batches", "too", "many", "FAILED"]
    assert "as configured; nothing was solved" in result.stdout
    assert any("deep_queue [line 9: queue.capacity_batches]" in line for line in lines)
    assert "Change: queue.capacity_batches: 2." in lines
    assert max(map(len, lines)) <= 80


def test_a_key_from_the_command_line_is_placed_there(config: Path) -> None:
    result = run(config, "--set", "queue.capacity_batches=80")
    assert "deep_queue [--set: queue.capacity_batches]" in result.stdout


def test_json_holds_every_finding(config: Path) -> None:
    data = json.loads(run(config, "--json").stdout)
    assert data["status"] == "failed"
    assert data["audited"] == "as configured"
    assert data["counts"]["error"] == sum(f["level"] == "error" for f in data["findings"])
    deep = next(f for f in data["findings"] if f["code"] == "deep_queue")
    assert set(deep) == {"code", "level", "text", "where", "line", "remedy"}
    assert (deep["where"], deep["line"]) == ("queue.capacity_batches", 9)


@pytest.mark.parametrize(
    ("words", "code"),
    [((), 0), (("--strict",), 3), (("--strict", "--json"), 3), (("--strict", *REPAIR), 0)],
)
def test_strict_exits_3_when_something_fails(
    config: Path, words: tuple[str, ...], code: int
) -> None:
    assert run(config, *words).exit_code == code


@pytest.mark.parametrize("change", ["plan.in_flight=0", "plan.trainer_gpus=eight", "queu.x=1"])
def test_a_bad_scenario_is_2(config: Path, change: str) -> None:
    result = run(config, "--set", change)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "error: " in result.stderr


def test_all_views_say_the_same(config: Path) -> None:
    scenario = load(config)
    found = check(scenario)
    content = preflight_content(found, scenario.origin)
    markdown, html = report_markdown(content), report_html(content)
    for finding in preflight_data(found, scenario.origin)["findings"]:
        name = finding["code"].replace("_", "\\_")
        assert name in markdown
        assert finding["code"] in html
    assert "## two batches too many (FAILED)" in markdown


def test_a_clean_check_says_so(config: Path) -> None:
    result = run(config, *REPAIR)
    assert "PASSED" in result.stdout
    assert "Nothing was found that would fail or waste." in result.stdout
