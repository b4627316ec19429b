"""Generated pages are current, links lead somewhere, and what pages show does run."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from allocator.cli import app
from tools.build_docs import DOCS, pages

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def test_generated_pages_are_current(made: dict[str, str]) -> None:
    stale = [
        name
        for name, text in made.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `make docs`"


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for body in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL):
            found.append((page.name, body))
    return found


@pytest.mark.parametrize(("page", "body"), blocks("python"))
def test_python_blocks_run(page: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(body, page, "exec"), {"__name__": "docs"})


COMMANDS = [
    line
    for _, body in blocks("console")
    for line in body.splitlines()
    if line.startswith("$ allocator ")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_run(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(line.removeprefix("$ allocator "), comments=True)
    if "-o" in words:
        words[words.index("-o") + 1] = str(tmp_path / "out.json")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
