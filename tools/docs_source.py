"""The laws as their source states them: modules, functions, classes, constants. Read, not run."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.docs_docstring import Docstring, parse

ROOT = Path(__file__).parents[1]
PHYSICS = ROOT / "allocator" / "physics"
PACKAGE = "allocator.physics"


@dataclass(frozen=True)
class Argument:
    """An argument or field: its name, its default as written, whether it goes by name only."""

    name: str
    default: str | None = None
    by_name: bool = False
    text: str = ""


@dataclass(frozen=True)
class Member:
    """A public function or class of a module.

    `arguments` are those of a function or the fields of a class; `methods` have a docstring.
    """

    name: str
    is_class: bool
    doc: Docstring
    arguments: tuple[Argument, ...]
    methods: tuple[Member, ...] = ()

    @property
    def computes(self) -> bool:
        """Whether it is more than a record of numbers."""
        return not self.is_class or any(method.name != "take" for method in self.methods)


@dataclass(frozen=True)
class Constant:
    """Public constants that stand together, as (name, value), with the words beside them."""

    values: tuple[tuple[str, str], ...]
    text: str


@dataclass(frozen=True)
class Module:
    """One module of allocator.physics; `uses` are the other ones that it imports."""

    name: str
    doc: Docstring
    members: tuple[Member, ...]
    constants: tuple[Constant, ...]
    uses: frozenset[str]

    @property
    def path(self) -> str:
        """Place of the file, from the root of the project."""
        return f"allocator/physics/{self.name}.py"


@cache
def modules() -> dict[str, Module]:
    """Return the modules of allocator.physics by name, in alphabetical order."""
    paths = sorted(path for path in PHYSICS.glob("*.py") if path.stem != "__init__")
    return {path.stem: _module(path) for path in paths}


def imported(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield (module, name there, name here) of every name that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name


def laws_imported(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield (module of allocator.physics, name there, name here) of what a file imports."""
    for module, there, here in imported(tree):
        if module == PACKAGE:
            yield there, "", here
        elif module.startswith(f"{PACKAGE}."):
            yield module.removeprefix(f"{PACKAGE}."), there, here


def _module(path: Path) -> Module:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    return Module(
        name=path.stem,
        doc=parse(ast.get_docstring(tree)),
        members=tuple(_members(tree.body)),
        constants=tuple(_constants(tree.body, source.splitlines())),
        uses=frozenset(module for module, _, _ in laws_imported(tree)),
    )


def _members(body: list[ast.stmt]) -> Iterator[Member]:
    for node in body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        doc = parse(ast.get_docstring(node))
        if isinstance(node, ast.FunctionDef):
            yield Member(node.name, False, doc, tuple(_arguments(node.args)))
        else:
            methods = tuple(member for member in _members(node.body) if member.doc.prose)
            yield Member(node.name, True, doc, tuple(_fields(node.body)), methods)


def _arguments(arguments: ast.arguments) -> Iterator[Argument]:
    placed = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(placed) - len(arguments.defaults)), *arguments.defaults]
    for argument, default in zip(placed, defaults, strict=True):
        if argument.arg not in ("self", "cls"):
            yield Argument(argument.arg, _written(default))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield Argument(argument.arg, _written(default), by_name=True)


def _fields(body: list[ast.stmt]) -> Iterator[Argument]:
    """Yield the fields of a class with the strings below them."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id.startswith("_") or "ClassVar" in ast.unparse(node.annotation):
            continue
        yield Argument(node.target.id, _written(node.value), text=_string(after))


def _written(value: ast.expr | None) -> str | None:
    return None if value is None else ast.unparse(value)


def _constants(body: list[ast.stmt], lines: list[str]) -> list[Constant]:
    """Return constants with the comment above them (``#:``) or the string below.

    A constant in the line below another shares its comment.
    """
    found: list[Constant] = []
    last_line = 0
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if not re.fullmatch("[A-Z][A-Z0-9_]*", name):
            continue
        told = (name, ast.unparse(value))
        text = _comment(lines, node.lineno - 1) or _string(after)
        if text:
            found.append(Constant((told,), text))
        elif node.lineno == last_line + 1:
            found[-1] = Constant((*found[-1].values, told), found[-1].text)
        else:
            continue
        last_line = node.end_lineno or node.lineno
    return found


def _comment(lines: list[str], line: int) -> str:
    said: list[str] = []
    while lines[line - 1].startswith("#:"):
        line -= 1
        said.insert(0, lines[line].removeprefix("#:").strip())
    return " ".join(said)


def _string(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
    return ""
