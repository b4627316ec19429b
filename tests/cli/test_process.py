"""The program as a process: what `--help` imports, and the real thing from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "qwen3-8b-8gpus.yaml"
HEAVY = ("numpy", "pydantic", "scipy", "pandas", "ruamel", "rich", "matplotlib")

SHOW_IMPORTS = """
import sys
from allocator.cli import app
sys.argv = ["allocator", *{words!r}]
try:
    app()
finally:
    print(*sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python from the project's root, as a pipe sees it."""
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**os.environ, **environment}, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def program(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "allocator.cli", *words, **environment)


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["--help"], ""),
        # typer itself checks options with pydantic, but for a plain --help.
        (["--version"], "pydantic"),
        (["slove"], "pydantic"),
        (["solve", "--help"], "pydantic"),
    ],
)
def test_answers_that_need_no_numbers_import_nothing_heavy(words: list[str], own: str) -> None:
    result = python("-c", SHOW_IMPORTS.format(words=words))
    loaded = set(result.stderr.splitlines()[-1].split())
    assert "typer" in loaded
    assert loaded & set(HEAVY) <= {own}


def test_help_names_verbs_and_exit_codes() -> None:
    result = program("--help")
    assert result.returncode == 0
    for word in ("solve", "evaluate", "profiles", "3 infeasible"):
        assert word in result.stdout


def test_version_is_the_packages() -> None:
    import allocator

    assert program("--version").stdout == f"allocator {allocator.__version__}\n"


def test_solve_then_evaluate_agree(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    solved = program("solve", str(EXAMPLE), "--json", "-o", str(path))
    assert solved.returncode == 0, solved.stderr
    plan = json.loads(solved.stdout)
    assert plan == json.loads(path.read_text())
    again = program("evaluate", str(EXAMPLE), "--plan", str(path), "--json", "--strict")
    assert again.returncode == 0, again.stderr
    evaluated = json.loads(again.stdout)
    assert evaluated["prediction"] == plan["prediction"]
    assert evaluated["plan"] == plan["plan"]


def test_a_budget_that_is_too_small_is_infeasible_also_in_a_pipe_that_speaks_only_ascii() -> None:
    result = program("solve", str(EXAMPLE), "--set", "budget.usd=0.001", PYTHONIOENCODING="ascii")
    assert result.returncode == 3, result.stderr
    assert result.stdout.isascii()
    assert "INFEASIBLE" in result.stdout
    assert "budget.usd" in result.stdout


def test_a_wrong_key_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(EXAMPLE.read_text().replace("workload:", "wrokload:"))
    result = program("solve", str(path), "--json")
    assert result.returncode == 2
    error = json.loads(result.stdout)["error"]
    assert error["file"] == str(path)
    assert error["line"]
    assert error["nearest"] == "workload"


def test_missing_files_are_bad_usage() -> None:
    result = program("solve", "no-such-file.yaml")
    assert result.returncode == 2
    assert result.stderr.startswith("error: no-such-file.yaml:")


def test_a_reader_that_leaves_early_is_no_bug() -> None:
    command = f"{sys.executable} -m allocator.cli profiles show qwen3-235b-a22b | head -n 1"
    result = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, text=True, capture_output=True, timeout=120, check=False
    )
    assert result.stdout == "qwen3-235b-a22b\n"
    assert result.stderr == ""
