"""Keys that are legal by themselves and change nothing beside another key's value."""

from __future__ import annotations

from collections.abc import Collection

from allocator.scenario.quantity import Quantity
from allocator.scenario.section import Section, refuse


def refuse_dead_keys(block: Section, alive: Collection[str], why: str) -> None:
    """Refuse the first key of a block that says something and is not acted on.

    A key that says what holds without it (its default, as a dumped scenario states it) is
    harmless; kind and source of a number do not count.

    Parameters
    ----------
    block : Section
        The validated block.
    alive : collection of str
        Its keys that are acted on.
    why : str
        What decides that, and which keys would be acted on.
    """
    for name, field in type(block).model_fields.items():
        value = getattr(block, name)
        if name not in alive and _says_more(value, field.default):
            raise refuse(f"no {name}: {why}", _bare(value), at=(name,))


def _says_more(value: object, default: object) -> bool:
    if isinstance(value, Quantity) and isinstance(default, Quantity):
        spread = value.has_spread and (value.low, value.high) != (default.low, default.high)
        return spread or value.value != default.value
    if isinstance(value, Section) and isinstance(default, Section):
        names = type(value).model_fields
        return any(_says_more(getattr(value, name), getattr(default, name)) for name in names)
    return value != default


def _bare(value: object) -> object:
    """Return a value in the form errors show."""
    if isinstance(value, Quantity):
        return value.value
    if isinstance(value, Section):
        stated = ((name, getattr(value, name)) for name in type(value).model_fields)
        return {name: _bare(item) for name, item in stated if item is not None}
    if isinstance(value, tuple):
        return dict(value)
    return value
