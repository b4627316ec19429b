"""Docstrings in NumPy form, taken apart and written as Markdown.

Two forms of an entry are read: ``name : meaning`` on one line, and ``name : type`` with the
meaning indented below.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

WIDTH = 100

#: Replaces a name in backticks by a link to its page, or returns it as it is.
Link = Callable[[str], str]

_BULLET = re.compile(r"(?:[*-]|\d+\.) ")
#: A line must not begin with these: Markdown would see a list.
_LIST_LIKE = re.compile(r" (?=(?:[-+*]|\d+[.)]) )")
_GLUE = "\0"


@dataclass(frozen=True)
class Entry:
    """One parameter, attribute or error: its names and what is said of them."""

    names: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Docstring:
    """A docstring: what stands before its first section, and its sections by name."""

    prose: str = ""
    sections: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """First paragraph, on one line."""
        return " ".join(self.prose.partition("\n\n")[0].split())

    @property
    def text(self) -> str:
        """All of it but the code of examples, for searching."""
        parts = [self.prose, *self.sections.values()]
        lines = "\n\n".join(parts).splitlines()
        return "\n".join(line for line in lines if not line.startswith((">>>", "...")))

    def entries(self, section: str) -> tuple[Entry, ...]:
        """Return the entries of a section, empty when it is not there."""
        return tuple(_entries(self.sections.get(section, "")))


def parse(docstring: str | None) -> Docstring:
    """Split a docstring at the underlined names of its sections."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    marks = [
        i for i, (name, rule) in enumerate(pairwise(lines)) if name and rule == "-" * len(name)
    ]
    ends = [*marks[1:], len(lines)]
    sections = {
        lines[start]: "\n".join(lines[start + 2 : end]).strip("\n")
        for start, end in zip(marks, ends, strict=False)
    }
    return Docstring("\n".join(lines[: marks[0] if marks else None]).strip(), sections)


def _entries(section: str) -> Iterator[Entry]:
    for block in re.split(r"\n(?=\S)", section):
        if not block.strip():
            continue
        first, _, rest = block.partition("\n")
        names, _, text = first.partition(" : ")
        rest = textwrap.dedent(rest)
        if rest and re.fullmatch(r"[\w.]*(, optional)?", text):
            text = rest  # what stood after the colon was a type
        elif rest:
            text = f"{text}\n{rest}"
        yield Entry(tuple(names.split(", ")), text.strip())


def markdown(text: str, link: Link) -> list[str]:
    """Return prose as lines of Markdown, with formulas and examples as blocks of code."""
    lines: list[str] = []
    blocks = list(_blocks(text))
    for block, after in zip(blocks, [*blocks[1:], [""]], strict=True):
        first = block[0]
        if first.startswith(">>>"):
            lines += ["```pycon", *block, "```", ""]
        elif first.startswith((" ", "===")) or _is_formula(block, after):
            code = textwrap.dedent("\n".join(block)).splitlines()
            lines += ["```text", *code, "```", ""]
        elif _BULLET.match(first):
            for item in re.split(r"\n(?=(?:[*-]|\d+\.) )", "\n".join(block)):
                mark, _, said = item.partition(" ")
                lines += wrapped(said, link, "-" if mark == "*" else mark)
            lines.append("")
        else:
            lines += [*wrapped(re.sub("::$", ":", "\n".join(block)), link), ""]
    return lines


def wrapped(text: str, link: Link, mark: str = "", indent: int = 0) -> list[str]:
    """Return a paragraph or, with a mark, an item of a list in lines of at most `WIDTH`."""
    text = re.sub(r"``?([^`]+)``?", lambda found: link(found[1]), " ".join(text.split()))
    start = " " * indent + (f"{mark} " if mark else "")
    broken = textwrap.wrap(
        _LIST_LIKE.sub(_GLUE, text),
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in broken]


def _blocks(text: str) -> Iterator[list[str]]:
    """Yield paragraphs, and code with the empty lines inside it."""
    block: list[str] = []
    for line in text.splitlines():
        code = bool(block) and block[0].startswith(" ")
        if not line.strip():
            if code:
                block.append("")
            elif block:
                yield block
                block = []
            continue
        if code and not line.startswith(" "):
            yield _without_end(block)
            block = []
        elif block and not code and line.startswith("    ") and block[-1].endswith("::"):
            yield block
            block = []
        block.append(line)
    if block:
        yield _without_end(block)


def _without_end(block: list[str]) -> list[str]:
    while not block[-1].strip():
        block = block[:-1]
    return block


def _is_formula(block: list[str], after: list[str]) -> bool:
    """Whether a paragraph is a formula on its own: no sentence, or broken with an indent."""
    text = block[-1]
    broken = len(block) > 1 and all(line.startswith("    ") for line in block[1:])
    leads_to_code = after[0].startswith(" ")
    sentence = text.endswith((".", ":", ";", ".)")) or leads_to_code or _BULLET.match(block[0])
    return broken or (not sentence and bool(re.search(r"[=/^(]", text)))
