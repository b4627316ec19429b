"""Blocks of numbers by number, such as ``{0.5: 4000, 0.9: 9000}``, read as ascending pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Discriminator, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from allocator.scenario.quantity import Bounds, NonNegative, Quantity, real_number
from allocator.scenario.section import by_shape, refuse

#: A table as the scenario holds it: (key, value) pairs in ascending order of the keys.
Pairs = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Table:
    """How a block of numbers by number is read.

    Attributes
    ----------
    key, value : str
        What the keys and the values are, in words.
    keys, values : Bounds
        Their legal ranges.
    rising : bool
        Whether a greater key needs a greater value.
    least : int
        Fewest entries.
    """

    key: str
    value: str
    keys: Bounds
    values: Bounds
    rising: bool = False
    least: int = 1

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Turn the block into pairs before they are checked as such."""
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def text(self) -> str:
        """Return the form in words, for example ``a block of probability: tokens``."""
        return f"a block of {self.key}: {self.value}"

    def read(self, block: object) -> object:
        """Return the block as pairs in ascending order of its keys; pairs are returned as is."""
        if isinstance(block, tuple):
            return block
        if not isinstance(block, Mapping):
            raise refuse(self.text(), block, general=True)
        pairs = sorted(self._pair(key, value) for key, value in block.items())
        if len(pairs) < self.least:
            raise refuse(f"{self.text()}, {self.least} or more", block)
        for (key, below), (above_key, above) in pairwise(pairs):
            if above_key == key:
                raise refuse(f"each {self.key} once", key, at=(f"{key:g}",))
            if self.rising and above <= below:
                raise refuse(
                    f"more {self.value} than at the {self.key} before ({below:g})",
                    above,
                    at=(f"{above_key:g}",),
                )
        return tuple(pairs)

    def _pair(self, key: object, value: object) -> tuple[float, float]:
        at = (str(key),)
        where = _number(key)
        if where is None or not self.keys.holds(where):
            raise refuse(f"a {self.key} {self.keys.text()}", key, at=at)
        expected = f"a number {self.values.text()}"
        try:
            number = real_number(value)
        except PydanticCustomError as wrong:
            raise refuse(expected, value, at=at) from wrong
        if not self.values.holds(number):
            raise refuse(expected, number, at=at)
        return where, number


def _number(key: object) -> float | None:
    # Keys of JSON, and of a path on the command line, are text.
    if isinstance(key, bool) or not isinstance(key, (int, float, str)):
        return None
    try:
        number = float(key)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


#: Shares below 1: of what is tried again, some has to succeed.
ShareBelowOne = Annotated[Quantity, Bounds(low=0, high=1, high_open=True)]

_number_or_table = Discriminator(by_shape(mapping="<table>", sequence="<table>", other="<number>"))
_concurrencies = Bounds(low=0, low_open=True)

SecondsOrTable = Annotated[
    Annotated[NonNegative, Tag("<number>")]
    | Annotated[
        Pairs, Table("concurrency", "seconds", _concurrencies, Bounds(low=0)), Tag("<table>")
    ],
    _number_or_table,
]
ShareOrTable = Annotated[
    Annotated[ShareBelowOne, Tag("<number>")]
    | Annotated[
        Pairs,
        Table("concurrency", "share", _concurrencies, Bounds(low=0, high=1, high_open=True)),
        Tag("<table>"),
    ],
    _number_or_table,
]
