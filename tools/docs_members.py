"""A function or class of a law as Markdown: meaning, formula, arguments, range, errors, example."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.docs_docstring import Link, markdown, wrapped
from tools.docs_places import linker, page_of
from tools.docs_source import Argument, Member, Module
from tools.docs_units import unit_of


def members(module: Module) -> Iterator[str]:
    """Yield the lines of every public function and class of a module."""
    for member in module.members:
        yield from _member(module, member)


def _member(module: Module, member: Member) -> Iterator[str]:
    doc = member.doc
    taken = frozenset({member.name, *(argument.name for argument in member.arguments)})
    link = linker(page_of(module.name), taken)
    yield from (f"### {member.name}", "")
    yield from markdown(doc.prose, link)
    said = _arguments(member, link)
    if said:
        yield from ("Fields:" if member.is_class else "Takes:", "", *said, "")
    if member.methods:
        yield from ("Methods:", "")
    for method in member.methods:
        names = ", ".join(argument.name for argument in method.arguments)
        text = f"`{method.name}({names})`: {' '.join(method.doc.prose.split())}"
        yield from wrapped(text, link, "-")
    if member.methods:
        yield ""
    if not member.is_class:
        yield from _returned(member, link)
    errors = doc.entries("Raises")
    if errors:
        yield from ("Errors:", "")
        for error in errors:
            yield from wrapped(f"`{error.names[0]}`: {error.text}", link, "-")
        yield ""
    if "Notes" in doc.sections:
        yield from ("Notes:", "")
        yield from markdown(doc.sections["Notes"], link)
    if "Examples" in doc.sections:
        yield from ("Example:", "")
        yield from markdown(doc.sections["Examples"], link)


def _arguments(member: Member, link: Link) -> list[str]:
    """Return the arguments or fields of a member, those that are explained together as one."""
    entries = {
        name: entry
        for section in ("Parameters", "Attributes")
        for entry in member.doc.entries(section)
        for name in entry.names
    }
    said: list[str] = []
    told: set[str] = set()
    for argument in member.arguments:
        if argument.name in told:
            continue
        entry = entries.get(argument.name)
        text = entry.text if entry else argument.text
        names = entry.names if entry else (argument.name,)
        told.update(names)
        group = [a for a in member.arguments if a.name in names]
        head = ", ".join(_named(a, text) for a in group)
        how = _how(group, member.is_class)
        said += wrapped(f"{head}{how}{': ' + text if text else ''}", link, "-")
    return said


def _named(argument: Argument, text: str) -> str:
    unit = unit_of(argument.name, text)
    return f"`{argument.name}`" + (f" [{unit}]" if unit else "")


def _how(group: list[Argument], is_class: bool) -> str:
    said = []
    if not is_class and all(argument.by_name for argument in group):
        said.append("by name")
    defaults = {argument.default for argument in group}
    if len(defaults) == 1 and None not in defaults:
        said.append(f"{defaults.pop()} when left out")
    return f" ({', '.join(said)})" if said else ""


def _returned(member: Member, link: Link) -> Iterator[str]:
    text = member.doc.sections.get("Returns", "")
    head, _, rest = text.partition("\n")
    if rest.startswith(" ") and re.fullmatch(r"[\w.]+", head):
        kind = "" if head == "numpy.ndarray" else f"`{head}`: "
        text = kind + " ".join(rest.split())
    if not text:
        unit = unit_of(member.name, member.doc.summary)
        text = f"a value in {unit}." if unit else ""
    if text:
        yield from (*wrapped(f"Returns: {text}", link), "")
