from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import allocator
from allocator.cli import app
from allocator.plan import Plan
from allocator.scenario.errors import ScenarioError
from tests.report.plans import broken_plan, good_plan, infeasible_plan

FIXED = ("trainer_gpus", "generator_gpus", "layout")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


class Facade:
    """Stands in for loading, solving and evaluating, and remembers what it was asked."""

    def __init__(self) -> None:
        self.plan: Plan | BaseException = good_plan()
        self.evaluated: Plan | BaseException = good_plan(solver=None)
        self.asked: dict[str, Any] = {}
        fields = dict.fromkeys(FIXED)
        self.block = type("Block", (), {"model_fields": fields, **fields})()

    def load(self, path: Path, overrides: tuple[str, ...] = ()) -> Any:
        self.asked |= {"path": path, "overrides": overrides}
        return SimpleNamespace(plan=self.block)

    def try_solve(self, scenario: Any, **options: Any) -> Plan:
        self.asked |= options
        return self.answer(self.plan)

    def evaluate(self, scenario: Any, **fixed: Any) -> Plan:
        self.asked |= {"fixed": fixed}
        return self.answer(self.evaluated)

    @staticmethod
    def answer(plan: Plan | BaseException) -> Plan:
        if isinstance(plan, BaseException):
            raise plan
        return plan


@pytest.fixture
def facade(monkeypatch: pytest.MonkeyPatch) -> Facade:
    fake = Facade()
    for name in ("load", "try_solve", "evaluate"):
        monkeypatch.setattr(allocator, name, getattr(fake, name))
    return fake


def test_solve_prints_the_view(facade: Facade) -> None:
    result = run("solve", "a.yaml", "--set", "budget.usd=5", "--set", "x=y", "--time-limit", "2")
    assert result.exit_code == 0
    assert "$4.27 per million useful tokens" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert result.stderr == ""
    assert facade.asked["overrides"] == ("budget.usd=5", "x=y")
    assert facade.asked["solver"] == "auto"
    assert facade.asked["time_limit_s"] == 2.0


def test_solve_json_is_one_object_and_warnings_go_to_stderr(facade: Facade) -> None:
    result = run("solve", "a.yaml", "--json")
    assert json.loads(result.stdout) == good_plan().to_dict()
    assert "warning: decided_by_range:" in result.stderr


def test_an_objective_replaces_the_scenarios(facade: Facade) -> None:
    run("solve", "a.yaml", "--objective", "run.hours")
    assert facade.asked["overrides"] == ("objective=run.hours",)


def test_a_plan_block_is_compared_with_what_was_solved(facade: Facade) -> None:
    facade.block.trainer_gpus = 64
    facade.evaluated = broken_plan()
    result = run("solve", "a.yaml")
    assert result.exit_code == 0
    assert "as configured in plan:" in result.stdout
    assert "BROKEN as configured in plan: staleness_mean, kv_memory." in result.stdout
    assert json.loads(run("solve", "a.yaml", "--json").stdout)["status"] == "optimal"


def test_a_plan_block_that_cannot_be_evaluated_does_not_spoil_the_plan(facade: Facade) -> None:
    facade.block.trainer_gpus = 64
    facade.evaluated = ScenarioError(path="plan.generator_gpus", expected="the GPUs", given="no")
    result = run("solve", "a.yaml")
    assert result.exit_code == 0
    assert "cannot be compared: plan.generator_gpus" in result.stderr


def test_infeasible_is_3_and_its_json_is_the_plan(facade: Facade) -> None:
    facade.plan = infeasible_plan()
    assert run("solve", "a.yaml").exit_code == 3
    result = run("solve", "a.yaml", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["infeasibility"]["conflict"] == [
        "budget_hours",
        "gpu_pool_h200",
    ]


def test_stopped_at_a_limit_with_a_plan_is_4(facade: Facade) -> None:
    facade.plan = good_plan(status="feasible")
    assert run("solve", "a.yaml").exit_code == 4


def test_stopped_without_a_plan_is_5(facade: Facade) -> None:
    facade.plan = allocator.SolverFailure("no plan after 2 s: give more time")
    result = run("solve", "a.yaml")
    assert result.exit_code == 5
    assert result.stderr == "error: no plan after 2 s: give more time\n"
    error = json.loads(run("solve", "a.yaml", "--json").stdout)
    assert error["status"] == "error"
    assert "give more time" in error["error"]["message"]


def test_ctrl_c_is_130(facade: Facade) -> None:
    facade.plan = KeyboardInterrupt()
    assert run("solve", "a.yaml").exit_code == 130


def test_a_bug_is_1_and_keeps_its_traceback(facade: Facade) -> None:
    facade.plan = ZeroDivisionError("a bug")
    result = run("solve", "a.yaml")
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_wrong_scenario_is_2_with_file_line_and_nearest(
    facade: Facade, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> None:
        raise ScenarioError(
            file="a.yaml", line=7, path="engine.backend", expected="auto, sglang or vllm",
            given="sglagn", nearest="sglang",
        )  # fmt: skip

    monkeypatch.setattr(allocator, "load", load)
    result = run("solve", "a.yaml")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: a.yaml:7: engine.backend: expected auto, sglang or vllm, given sglagn"
        " (did you mean sglang?)\n"
    )
    result = run("evaluate", "a.yaml", "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)
    assert error["status"] == "error"
    assert {key: error["error"][key] for key in ("file", "line", "path", "nearest")} == {
        "file": "a.yaml",
        "line": 7,
        "path": "engine.backend",
        "nearest": "sglang",
    }


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (("slove", "a.yaml"), "solve"),
        (("solve", "a.yaml", "--slover", "auto"), "--solver"),
        (("solve", "a.yaml", "--solver", "colums"), "columns"),
        (("solve", "a.yaml", "--objective", "run.hour"), "run.hours"),
        (("profiles", "lst"), "list"),
        (("profiles", "show", "h200-sxn"), "h200-sxm"),
    ],
)
def test_bad_usage_is_2_and_names_the_nearest(words: tuple[str, ...], nearest: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert f"did you mean {nearest}?" in result.stderr
    result = run(*words, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["nearest"] == nearest


@pytest.mark.parametrize(
    "words",
    [
        ("solve",),
        ("solve", "a.yaml", "--time-limit", "soon"),
        ("solve", "a.yaml", "--time-limit", "0"),
        ("solve", "a.yaml", "--time-limit", "nan"),
        ("solve", "a.yaml", "b.yaml"),
        ("solve", "a.yaml", "-o"),
        ("profiles",),
        (),
    ],
)
def test_other_bad_usage_is_2(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr


@pytest.mark.parametrize("verb", ["frontier", "sweep", "ui"])
def test_verbs_that_are_not_there_do_not_appear(verb: str) -> None:
    assert run(verb, "a.yaml").exit_code == 2
    assert f"  {verb} " not in run("--help").stdout


def test_output_is_written_whole(facade: Facade, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    result = run("solve", "a.yaml", "-o", str(path))
    assert result.exit_code == 0
    assert json.loads(path.read_text()) == good_plan().to_dict()
    assert result.stderr == f"wrote {path}\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [".", "missing/plan.json"])
def test_a_bad_output_is_2_before_anything_is_solved(
    facade: Facade, tmp_path: Path, name: str
) -> None:
    result = run("solve", "a.yaml", "-o", str(tmp_path / name))
    assert result.exit_code == 2
    assert facade.asked == {}
    assert list(tmp_path.iterdir()) == []


def test_evaluate_takes_the_decisions_of_a_plan_file(facade: Facade, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    run("solve", "a.yaml", "-o", str(path))
    result = run("evaluate", "a.yaml", "--plan", str(path))
    assert result.exit_code == 0
    assert "as configured" in result.stdout
    assert facade.asked["fixed"]["trainer_gpus"] == 64
    assert facade.asked["fixed"]["layout"] == {"tp": 8, "ep": 8, "dp": 1, "pp": 1}


def test_evaluate_without_a_file_leaves_the_plan_to_the_scenario(facade: Facade) -> None:
    assert run("evaluate", "a.yaml").exit_code == 0
    assert facade.asked["fixed"] == {}


def test_a_broken_limit_is_0_and_strict_makes_it_3(facade: Facade) -> None:
    facade.evaluated = broken_plan()
    result = run("evaluate", "a.yaml")
    assert result.exit_code == 0
    assert "BROKEN" in result.stdout
    assert run("evaluate", "a.yaml", "--strict").exit_code == 3
    assert run("evaluate", "a.yaml", "--strict", "--json").exit_code == 3


def test_strict_is_content_with_a_plan_that_holds(facade: Facade) -> None:
    assert run("evaluate", "a.yaml", "--strict").exit_code == 0


def test_a_plan_file_that_is_none_is_2(facade: Facade, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[]")
    result = run("evaluate", "a.yaml", "--plan", str(tmp_path / "plan.json"), "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["path"] == "plan"


def test_no_colour_in_a_pipe(facade: Facade) -> None:
    assert "\x1b" not in run("solve", "a.yaml").stdout
