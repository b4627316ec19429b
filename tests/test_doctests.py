"""Every example in a docstring is run as written."""

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import allocator
import solvers


def modules() -> list[str]:
    names = []
    for package in (allocator, solvers):
        names += [
            info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        ]
    return sorted(names)


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_laws_carry_examples() -> None:
    physics = [name for name in modules() if name.startswith("allocator.physics.")]
    finder = doctest.DocTestFinder()
    bare = [
        name
        for name in physics
        if not any(test.examples for test in finder.find(importlib.import_module(name)))
    ]
    assert bare == []
