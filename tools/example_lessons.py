"""The numbers of docs/examples.md: each lesson's tables, made anew between their two marks.

`tools.build_docs` calls `with_lessons`; `python -m tools.example_lessons` writes the page alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from tools.lesson_agents import glm5_lines, prefill_lines, sandbox_lines
from tools.lesson_modes import mode_lines, slime_lines
from tools.lesson_rewards import judge_lines, process_lines, slow_lines

PAGE = Path(__file__).parents[1] / "docs" / "examples.md"

#: Tables by the name in their marks.
LESSONS: dict[str, Callable[[], list[str]]] = {
    "glm5": glm5_lines,
    "prefill": prefill_lines,
    "sandboxes": sandbox_lines,
    "slime": slime_lines,
    "modes": mode_lines,
    "process": process_lines,
    "judge": judge_lines,
    "slow": slow_lines,
}
_BLOCK = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end of what is made -->)", re.DOTALL)


def with_lessons(page: str) -> str:
    """Return the page with every table between marks made anew.

    Raises
    ------
    ValueError
        When a lesson has no mark in the page, or a mark no lesson.
    """
    named = [name for _, name, _ in _BLOCK.findall(page)]
    if sorted(named) != sorted(LESSONS):
        raise ValueError(f"marks of {', '.join(named)} in place of {', '.join(LESSONS)}")
    return _BLOCK.sub(_made, page)


def _made(found: re.Match[str]) -> str:
    return "\n".join([found[1], *LESSONS[found[2]](), "", found[3]])


def main() -> int:
    """Write docs/examples.md anew."""
    PAGE.write_text(with_lessons(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
