from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from allocator.cli import app


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["profiles", *words])


def test_list_names_gpus_and_models() -> None:
    result = run("list")
    assert result.exit_code == 0
    assert "h200-sxm" in result.stdout
    assert "qwen3-235b-a22b" in result.stdout
    data = json.loads(run("list", "--json").stdout)
    assert "h200-sxm" in [gpu["id"] for gpu in data["gpus"]]
    assert "qwen3-235b-a22b" in [model["id"] for model in data["models"]]


@pytest.mark.parametrize("name", ["h200-sxm", "H200", "h200_sxm"])
def test_show_gives_every_number_with_kind_and_source(name: str) -> None:
    result = run("show", name)
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if "bf16_flops_per_s" in line)
    assert "9.89e+14" in row
    assert "vendor" in row
    data = json.loads(run("show", name, "--json").stdout)
    number = data["gpu"]["bf16_flops_per_s"]
    assert number["value"] == 989e12
    assert number["source"]


def test_show_of_a_model_lists_its_rates() -> None:
    result = run("show", "qwen3-235b-a22b")
    assert result.exit_code == 0
    assert "sglang" in result.stdout
    data = json.loads(run("show", "qwen3-235b-a22b", "--json").stdout)
    assert all(row["source"] and row["kind"] for row in data["rates"])


def test_show_defaults_gives_value_kind_and_source() -> None:
    result = run("show", "defaults")
    row = next(line for line in result.stdout.splitlines() if "engine.memory_fraction" in line)
    assert "0.88" in row
    assert "assumed" in row
    data = json.loads(run("show", "defaults", "--json").stdout)
    assert data["engine.memory_fraction"]["value"] == 0.88


def test_check_passes_and_counts_by_kind() -> None:
    result = run("check")
    assert result.exit_code == 0
    assert "no problem" in result.stdout
    data = json.loads(run("check", "--json").stdout)
    assert data["problems"] == []
    assert data["numbers"]["vendor"] > 0


def test_show_of_a_sandbox_provider_says_who_raises_its_limits() -> None:
    result = run("show", "e2b")
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if "1100" in line)
    assert "concurrent_sandboxes" in row
    assert "enterprise contract" in row
    data = json.loads(run("show", "modal", "--json").stdout)
    assert [start["concurrency"] for start in data["sandbox"]["starts"]] == [960]
    assert all(limit["limit"]["source"] for limit in data["sandbox"]["limits"])
    assert "modal" in run("list").stdout
