from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from allocator.report.plan_file import plan_json, read_decisions, write_atomically
from allocator.scenario.errors import ScenarioError
from tests.report.plans import good_plan, infeasible_plan


def plan_data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(plan_json(good_plan()))
    return data


def written(folder: Path, data: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def test_json_has_the_keys_of_the_contract_and_comes_back() -> None:
    data = plan_data()
    assert data == good_plan().to_dict()
    for key in ("status", "objective", "plan", "prediction", "intervals", "limits", "warnings",
                "provenance", "infeasibility", "solver", "scenario"):  # fmt: skip
        assert key in data
    assert data["plan"]["trainer"]["gpus"] == 64


def test_numbers_that_json_lacks_become_null() -> None:
    data = json.loads(plan_json(infeasible_plan()))
    assert data["objective"]["value"] is None
    assert data["plan"] is None


def test_a_written_plan_gives_its_decisions(tmp_path: Path) -> None:
    assert read_decisions(written(tmp_path, plan_data())) == {
        "trainer_gpus": 64,
        "trainer_pool": "h200",
        "generator_gpus": 192,
        "engines": 24,
        "in_flight_per_engine": 88,
        "generator_pool": "h200",
        "prompts_per_step": 32,
        "group_size": 16,
        "oversampling": 1.6,
        "epochs": 1,
        "queue_batches": 1,
        "mode": "async",
        "weights_dtype": "bf16",
        "kv_dtype": "bf16",
        "layout": {"tp": 8, "ep": 8, "dp": 1, "pp": 1},
    }


def test_syntax_errors_name_their_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_decisions(written(tmp_path, '{\n "plan": }'))
    assert caught.value.line == 2
    assert caught.value.expected == "JSON"


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"plan": 3}', '{"plans": {}}'])
def test_other_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ScenarioError, match="the decisions of a plan written by `solve`"):
        read_decisions(written(tmp_path, text))


def test_an_infeasible_plan_has_nothing_to_evaluate(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="an infeasible plan, which has none"):
        read_decisions(written(tmp_path, plan_json(infeasible_plan())))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("trainer.gpus", 0),
        ("trainer.gpus", "64"),
        ("generator.engines", 2.5),
        ("generator.gpus", None),
        ("oversampling", True),
        ("queue_batches", -1),
        ("trainer.pool", ""),
    ],
)
def test_a_wrong_decision_is_named(tmp_path: Path, where: str, value: Any) -> None:
    data = plan_data()
    *above, last = where.split(".")
    node = data["plan"]
    for key in above:
        node = node[key]
    node[last] = value
    with pytest.raises(ScenarioError) as caught:
        read_decisions(written(tmp_path, data))
    assert caught.value.path == f"plan.{where}"


def test_two_kinds_of_engines_are_refused(tmp_path: Path) -> None:
    data = plan_data()
    data["plan"]["generator"]["groups"] *= 2
    with pytest.raises(ScenarioError, match="given 2 kinds"):
        read_decisions(written(tmp_path, data))


def test_a_broken_layout_is_refused(tmp_path: Path) -> None:
    data = plan_data()
    data["plan"]["generator"]["groups"][0]["layout"]["tp"] = 0
    with pytest.raises(ScenarioError, match=r"plan\.generator\.groups\[-1\]\.layout"):
        read_decisions(written(tmp_path, data))


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ScenarioError, match="a plan file that can be read"):
        read_decisions(tmp_path / name)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="UTF-8"):
        read_decisions(tmp_path / "plan.json")


def test_writing_replaces_whole_files_and_keeps_permissions(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    path.chmod(0o640)
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_atomically(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ScenarioError, match="No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", "no/such/folder.json"])
def test_places_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ScenarioError, match="expected a file"):
        write_atomically(tmp_path / name, "text")
    assert list(tmp_path.iterdir()) == []
