"""Where a law is checked: the tests that call it, found in their source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tools.docs_source import ROOT, Module, imported, laws_imported, modules

TESTS = ROOT / "tests"

#: A name of a law: module of allocator.physics and name in it.
Law = tuple[str, str]


@dataclass(frozen=True)
class Check:
    """A file of tests that imports a module of laws.

    `tests` are those that call the module, directly or through functions of the tests; none where
    the file only makes records of it.
    """

    path: str
    about: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    """Functions of one file of tests: the names each of them uses, and where names come from."""

    path: str
    about: str
    uses: dict[str, frozenset[str]]
    tests: dict[str, str]
    laws: dict[str, Law]
    helpers: dict[str, tuple[str, str]] = field(default_factory=dict)


def checks(module: Module) -> list[Check]:
    """Return the files of tests that import a module, those that call it most first."""
    computing = {member.name for member in module.members if member.computes}
    found = []
    for file in _files().values():
        if not Path(file.path).name.startswith("test_"):
            continue
        if all(law != module.name for law, _ in file.laws.values()):
            continue
        tests = tuple(
            dict.fromkeys(
                said
                for name, said in file.tests.items()
                if any(law == module.name and what in computing for law, what in _laws(file, name))
            )
        )
        found.append(Check(file.path, file.about, tests))
    return sorted(found, key=lambda check: (-len(check.tests), check.path))


def users(module: Module) -> set[str]:
    """Return the packages of the product that import a module, laws aside."""
    return {
        ".".join(path.split("/")[:2]).removesuffix(".py")
        for path, names in _product().items()
        if module.name in names and not path.startswith("allocator/physics/")
    }


def laws_that_use(module: Module) -> list[str]:
    """Return the other modules of laws that import this one."""
    return [name for name, other in modules().items() if module.name in other.uses]


def about(path: str) -> str:
    """Return the first line of a file's docstring."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")


@cache
def _product() -> dict[str, frozenset[str]]:
    found = {}
    for folder in ("allocator", "solvers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = frozenset(module for module, _, _ in laws_imported(tree))
            found[path.relative_to(ROOT).as_posix()] = names
    return found


@cache
def _files() -> dict[str, _File]:
    """Return every file of tests by its dotted name."""
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        place = path.relative_to(ROOT)
        found[".".join(place.with_suffix("").parts)] = _file(path, place.as_posix())
    return found


def _file(path: Path, place: str) -> _File:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = dict(_functions(tree))
    return _File(
        path=place,
        about=(ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " "),
        uses={name: frozenset(_names(node)) for name, node in functions.items()},
        tests={
            name: _said(node) for name, node in functions.items() if node.name.startswith("test_")
        },
        laws={here: (module, there) for module, there, here in laws_imported(tree)},
        helpers={
            here: (module, there)
            for module, there, here in imported(tree)
            if module.startswith("tests.")
        },
    )


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield f"{node.name}.{method.name}", method


def _names(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the names that the body of a function uses; annotations call nothing."""
    ahead: list[ast.AST] = [*function.body]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Name):
            yield node.id
        skipped = node.annotation if isinstance(node, (ast.AnnAssign, ast.arg)) else None
        ahead += [child for child in ast.iter_child_nodes(node) if child is not skipped]


def _said(test: ast.FunctionDef) -> str:
    doc = ast.get_docstring(test)
    if doc:
        return doc.partition("\n\n")[0].replace("\n", " ").rstrip(".")
    said = test.name.removeprefix("test_").replace("_", " ")
    return said[0].upper() + said[1:]


def _laws(file: _File, function: str) -> set[Law]:
    """Return the laws that a function of the tests reaches, through their own functions too."""
    found: set[Law] = set()
    seen: set[tuple[str, str]] = set()
    ahead = [(file, function)]
    while ahead:
        place, name = ahead.pop()
        if (place.path, name) in seen or name not in place.uses:
            continue
        seen.add((place.path, name))
        for used in place.uses[name]:
            if used in place.laws:
                found.add(place.laws[used])
            elif used in place.helpers:
                module, there = place.helpers[used]
                helper = _files().get(module)
                if helper is not None:
                    ahead.append((helper, there))
            else:
                ahead.append((place, used))
    return found
