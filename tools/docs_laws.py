"""Pages of the laws, made from their docstrings: one a law, and the index in order of the data."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.docs_checks import about, checks, laws_that_use, users
from tools.docs_docstring import markdown, wrapped
from tools.docs_members import members
from tools.docs_places import PLACES, linker, page_of, title
from tools.docs_source import Module, modules
from tools.docs_units import unit_of

MARK = "<!-- Made from docstrings by `make docs`: change those, not this page. -->"
#: A sentence that says where something comes from.
_SOURCE = re.compile(
    r"\b(?:Sources?\b|[Dd]erived here|design section|hardware_profiles|digest|documentation"
    r"|come from|(?:19|20)\d\d\b)"
)
#: A sentence of a module that says in which unit all of it is.
_UNITS = re.compile(
    r"\b(?:[Ll]engths|[Tt]imes|[Mm]oment|[Ee]verything(?: here)?) (?:is|are)\b.*\bin "
    r"(?:tokens|mean lengths|iterations|units|FLOP|seconds)"
)
#: Tests of whole plans, which use every law that the evaluator does.
WHOLE_PLANS = ("tests/evaluator/test_other_hand.py", "tests/evaluator/test_conservation.py")


def law_pages() -> dict[str, str]:
    """Return the index and every page by file name, from the folder of the documents."""
    found = {"laws.md": _index()}
    for place, rooms in PLACES.items():
        for room in rooms:
            parts = [modules()[name] for name in room]
            found[f"laws/{room[0]}.md"] = "\n".join(_page(place, parts)).rstrip() + "\n"
    return found


def without_place() -> set[str]:
    """Return the modules of laws that no page shows."""
    placed = {name for rooms in PLACES.values() for room in rooms for name in room}
    return set(modules()) - placed


def _index() -> str:
    lines = [
        MARK,
        "",
        "# The laws",
        "",
        "Each law stands in one function of `allocator/physics`, and has a page that is made from",
        "its docstring: what it means, its formula, the units, what it holds for, where it comes",
        "from, and which tests check it. The order is that of the data, from a rollout to the",
        "bill. What no law covers is in [what this does not model](not-modelled.md).",
        "",
    ]
    for place, rooms in PLACES.items():
        lines += [f"## {place.capitalize()}", ""]
        for room in rooms:
            summary = modules()[room[0]].doc.summary
            said = f"[{title(room[0])}](laws/{room[0]}.md) - {_after_colon(summary)}"
            lines += wrapped(said, lambda name: f"`{name}`", "-")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _after_colon(summary: str) -> str:
    """Return a summary without the name that it begins with."""
    head, colon, rest = summary.partition(": ")
    return rest[0].upper() + rest[1:] if colon and len(head) < 40 else summary


def _page(place: str, parts: list[Module]) -> Iterator[str]:
    law = parts[0]
    yield from (MARK, "", f"# {title(law.name)}", "")
    yield f"[All laws](../laws.md) / {place}."
    yield f"Code: [{law.path}](../../{law.path})"
    yield from ("", "## Meaning", "")
    yield from markdown(law.doc.prose, linker(law.name))
    yield from ("## Formulas and definitions", "")
    yield from members(law)
    for part in parts[1:]:
        yield from (f"## {title(part.name)}", "")
        yield f"Code: [{part.path}](../../{part.path})"
        yield ""
        yield from markdown(part.doc.prose, linker(law.name))
        yield from members(part)
    yield from _constants(parts)
    yield from _units(parts)
    yield from _sources(parts)
    yield from _checked(parts)


def _constants(parts: list[Module]) -> Iterator[str]:
    constants = [constant for part in parts for constant in part.constants]
    if constants:
        yield from ("## Constants", "")
        for constant in constants:
            head = ", ".join(f"`{name} = {value}`" for name, value in constant.values)
            yield from wrapped(f"{head}: {constant.text}", linker(parts[0].name), "-")
        yield ""


def _units(parts: list[Module]) -> Iterator[str]:
    """Yield the units of the quantities of a page, in order of appearance."""
    found: dict[str, None] = {}
    for part in parts:
        for member in part.members:
            entries = (*member.doc.entries("Parameters"), *member.doc.entries("Attributes"))
            texts = {name: entry.text for entry in entries for name in entry.names}
            for argument in member.arguments:
                text = texts.get(argument.name, argument.text)
                found[unit_of(argument.name, text)] = None
            if not member.is_class:
                found[unit_of(member.name, member.doc.summary)] = None
    found.pop("", None)
    yield from ("## Units", "")
    stated = [
        sentence
        for part in parts
        for sentence in re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(part.doc.prose.split()))
        if _UNITS.search(sentence)
    ]
    if found:
        stated.append(f"On this page: {', '.join(found)}.")
    stated.append("What names no unit is a count, a share or a law.")
    yield from (*wrapped(" ".join(dict.fromkeys(stated)), lambda name: f"`{name}`"), "")


def sources(module: Module) -> list[tuple[str, str]]:
    """Return (member or constant, sentence) of every sentence that states a source."""
    texts = [("", module.doc.text)]
    for member in module.members:
        texts.append((member.name, member.doc.text))
        texts += [(f"{member.name}.{m.name}", m.doc.text) for m in member.methods]
    texts += [(constant.values[0][0], constant.text) for constant in module.constants]
    return [
        (name, sentence)
        for name, text in texts
        for paragraph in re.split(r"\n\s*\n|\n(?=\w[\w, ]* : )", text)
        for sentence in re.split(r"(?<=[.:])\s+(?=[A-Z(])", " ".join(paragraph.split()))
        if _SOURCE.search(sentence)
    ]


def _sources(parts: list[Module]) -> Iterator[str]:
    yield from ("## Source", "")
    found = [(name, sentence) for part in parts for name, sentence in sources(part)]
    if not found:
        yield from ("Derived here: no docstring of this page names another source.", "")
        return
    for name, sentence in found:
        text = f"`{name}`: {sentence}" if name else sentence
        yield from wrapped(text, linker(parts[0].name), "-")
    yield ""


def _checked(parts: list[Module]) -> Iterator[str]:
    """Yield the tests that call the laws of a page, and the ways by which others reach them."""
    yield from ("## Where it is checked", "")
    with_examples = any("Examples" in m.doc.sections for part in parts for m in part.members)
    if with_examples:
        yield "The examples above are run by [test_doctests.py](../../tests/test_doctests.py)."
        yield ""
    merged: dict[str, tuple[str, list[str]]] = {}
    for part in parts:
        for check in checks(part):
            _, tests = merged.setdefault(check.path, (check.about, []))
            tests += [test for test in check.tests if test not in tests]
    for path, (said, tests) in merged.items():
        if tests:
            yield from wrapped(f"{_file(path)}: {said}", str, "-")
            for test in tests:
                yield from wrapped(test, str, "-", indent=2)
    if not any(tests for _, tests in merged.values()):
        yield "- No test calls it directly."
    records = [path for path, (_, tests) in merged.items() if not tests]
    if records:
        text = f"Built, but not called, by {', '.join(map(_file, records))}"
        yield from wrapped(text, str, "-")
    own = {part.name for part in parts}
    through = [name for part in parts for name in laws_that_use(part) if name not in own]
    if through:
        names = dict.fromkeys(page_of(name) for name in through)
        links = ", ".join(f"[{title(name)}]({name}.md)" for name in names)
        yield from wrapped(f"Through laws that use it: {links}", str, "-")
    used = sorted({package for part in parts for package in users(part)})
    if used:
        packages = ", ".join(f"`{package}`" for package in used)
        yield from wrapped(f"In whole plans, through {packages}:", lambda name: f"`{name}`", "-")
        for path in WHOLE_PLANS:
            yield from wrapped(f"{_file(path)}: {about(path)}", str, "-", indent=2)


def _file(path: str) -> str:
    name = path.rpartition("/")[2] if path.startswith("tests/") else path
    return f"[{name}](../../{path})"
