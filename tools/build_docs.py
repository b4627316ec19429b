"""Write the pages of docs/ that are made from the code: keys, laws, agreement with simulation.

Run `make docs` after a change of a schema, a law's docstring, a test of a law, the queue laws or
anything that moves a prediction; tests compare what is committed with what this writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import allocator
from allocator.report.figures import plan_picture
from tools.docs_agreement import simulation_agreement
from tools.docs_keys import scenario_keys
from tools.docs_laws import law_pages
from tools.docs_not_modelled import with_refused_keys
from tools.docs_queue import queue_agreement
from tools.example_lessons import with_lessons

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[str, str]:
    """Return all generated pages by file name in docs/."""
    written = (DOCS / "not-modelled.md").read_text(encoding="utf-8")
    return {
        "scenario-keys.md": scenario_keys(),
        "queue-agreement.md": queue_agreement(),
        "simulation-agreement.md": simulation_agreement(),
        "not-modelled.md": with_refused_keys(written),
        **law_pages(),
    }


def write_pages() -> None:
    """Write all generated pages, and remove those of laws that are gone."""
    found = pages()
    (DOCS / "laws").mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    for path in (DOCS / "laws").glob("*.md"):
        if f"laws/{path.name}" not in found:
            path.unlink()


def main() -> int:
    """Write all pages, the lessons of the examples, and the picture of README's example."""
    write_pages()
    lessons = DOCS / "examples.md"
    lessons.write_text(with_lessons(lessons.read_text(encoding="utf-8")), encoding="utf-8")
    example = DOCS.parent / "examples" / "qwen3-235b-h200.yaml"
    plan_picture(allocator.solve(allocator.load(example)), DOCS / "qwen3-235b-h200.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
