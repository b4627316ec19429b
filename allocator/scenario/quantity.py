"""Numbers of a scenario: quantities with origin and spread, counts, ranges, legal bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, GetCoreSchemaHandler, Tag, model_validator
from pydantic_core import CoreSchema, core_schema

from allocator.scenario.section import Section, Text, by_shape, key, refuse

Kind = Literal["measured", "vendor", "fitted", "assumed", "stated"]
# Beyond it a float skips whole numbers, and no law could tell two counts apart.
_LARGEST_WHOLE = 2**53

KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Bounds:
    """Legal range of a number; also checks the ends of a spread or of a range.

    Attributes
    ----------
    low, high : float
        Ends of the range.
    low_open, high_open : bool
        Whether the end itself is outside.
    """

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Check the range after the number itself has been read."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def holds(self, number: float) -> bool:
        """Return whether `number` lies in the range."""
        above = number > self.low if self.low_open else number >= self.low
        below = number < self.high if self.high_open else number <= self.high
        return above and below

    def check(self, value: Any) -> Any:
        """Return `value`, a number, `Quantity` or range, if all its numbers lie in the range."""
        for at, number in _numbers_of(value):
            if number is not None and not self.holds(number):
                raise refuse(f"a number {self.text()}", number, at=at, general=not at)
        return value

    def text(self) -> str:
        """Return the range in words, for example ``in (0, 1]`` or ``>= 1``."""
        if math.isinf(self.high):
            return f"{'>' if self.low_open else '>='} {self.low:g}"
        left, right = "(" if self.low_open else "[", ")" if self.high_open else "]"
        return f"in {left}{self.low:g}, {self.high:g}{right}"


def _numbers_of(value: Any) -> list[tuple[tuple[str, ...], float | None]]:
    if isinstance(value, Quantity):
        ends = [(("low",), value.low), (("high",), value.high)]
        return [((), value.value), *ends]
    if isinstance(value, (IntRange, FloatRange)):
        return [(("min",), value.min), (("max",), value.max)]
    return [((), value)]


def _unlabelled(value: object) -> object:
    """Return the number inside ``{value:, kind:, source:}`` where no spread can be carried.

    The loader keeps kind and source of such a block in the scenario's origin.
    """
    if not isinstance(value, Mapping) or "value" not in value:
        return value
    legal = ("value", "kind", "source")
    for name in value:
        if name not in legal:
            raise refuse(
                "value, kind or source (no spread is acted on here)", str(name), at=(name,)
            )
    if value.get("kind", "stated") not in KINDS:
        raise refuse(f"one of {', '.join(KINDS)}", value["kind"], at=("kind",))
    if not isinstance(value.get("source", ""), str):
        raise refuse("text", value["source"], at=("source",))
    return value["value"]


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refuse("a number", value, general=True)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise refuse("a finite number", value)
    return number


def real_number(value: object) -> float:
    """Return `value` as a float; text, booleans, infinities and NaN are refused."""
    return _real(_unlabelled(value))


def whole_number(value: object) -> int:
    """Return `value` as an int; ``1e3`` is whole, ``2.5``, text and booleans are refused."""
    bare = _unlabelled(value)
    whole = isinstance(bare, int) or (isinstance(bare, float) and bare.is_integer())
    if not whole or isinstance(bare, bool) or not isinstance(bare, (int, float)):
        raise refuse("a whole number", bare, general=True)
    if abs(bare) > _LARGEST_WHOLE:
        raise refuse(f"a whole number up to {_LARGEST_WHOLE:,}", bare)
    return int(bare)


Real = Annotated[float, BeforeValidator(real_number)]
Whole = Annotated[int, BeforeValidator(whole_number)]
Count = Annotated[Whole, Bounds(low=1)]
WholeFromZero = Annotated[Whole, Bounds(low=0)]


class Quantity(Section):
    """A number with its origin: a bare number, or ``{value, low, high, kind, source}``.

    A bare number is of kind ``stated`` and has no spread. `low` and `high` are the ends of an
    80% interval about `value`.
    """

    value: Real = key("The number itself, in the unit of its key")
    low: Real | None = key("Lower end of the 80% interval, in the unit of its key", default=None)
    high: Real | None = key("Upper end of the 80% interval, in the unit of its key", default=None)
    kind: Kind = key("Where the number comes from", default="stated")
    source: Text | None = key("Document, run or person the number is from", default=None)

    @model_validator(mode="before")
    @classmethod
    def _from_bare_number(cls, value: object) -> object:
        if isinstance(value, (Mapping, Quantity)):
            return value
        return {"value": _real(value)}

    @model_validator(mode="after")
    def _ordered(self) -> Quantity:
        if self.low is not None and self.low > self.value:
            raise refuse(f"low <= value ({self.value:g})", self.low, at=("low",))
        if self.high is not None and self.high < self.value:
            raise refuse(f"high >= value ({self.value:g})", self.high, at=("high",))
        return self

    def __float__(self) -> float:
        """Return `value`."""
        return self.value

    @property
    def has_spread(self) -> bool:
        """Whether an interval is stated."""
        return self.low is not None or self.high is not None


def assumed(
    value: float, source: str, *, low: float | None = None, high: float | None = None
) -> Quantity:
    """Return a default of the schema: an assumption, labelled as one."""
    return Quantity.model_construct(value=value, low=low, high=high, kind="assumed", source=source)


Positive = Annotated[Quantity, Bounds(low=0, low_open=True)]
NonNegative = Annotated[Quantity, Bounds(low=0)]
Share = Annotated[Quantity, Bounds(low=0, high=1)]
PositiveShare = Annotated[Quantity, Bounds(low=0, high=1, low_open=True)]
AtLeastOne = Annotated[Real, Bounds(low=1)]


#: Most choices of one range: a domain is enumerated.
MOST_CHOICES = 1000


class IntRange(Section):
    """Whole numbers the solver may choose from: `min`, `min` + `step`, ... up to `max`."""

    min: Whole = key("Smallest choice")
    max: Whole = key("Largest choice; always one of the choices")
    step: Count = key("Distance between choices", default=1)

    @model_validator(mode="after")
    def _ordered(self) -> IntRange:
        if self.min > self.max:
            raise refuse(f"max >= min ({self.min})", self.max, at=("max",))
        if self.max - self.min > (MOST_CHOICES - 1) * self.step:
            raise refuse(
                f"at most {MOST_CHOICES:,} choices: a larger step, or a narrower range",
                self.step,
                at=("step",),
            )
        return self

    def values(self) -> tuple[int, ...]:
        """Return every choice in ascending order, `max` included."""
        regular = tuple(range(self.min, self.max + 1, self.step))
        return regular if regular[-1] == self.max else (*regular, self.max)


class FloatRange(Section):
    """Numbers the solver may choose from: `min`, `min` + `step`, ... up to `max`."""

    min: Real = key("Smallest choice")
    max: Real = key("Largest choice")
    step: Annotated[Real, Bounds(low=0, low_open=True)] = key(
        "Distance between choices", default=0.1
    )

    @model_validator(mode="after")
    def _ordered(self) -> FloatRange:
        if self.min > self.max:
            raise refuse(f"max >= min ({self.min:g})", self.max, at=("max",))
        if (self.max - self.min) / self.step - 1e-9 > MOST_CHOICES - 1:
            raise refuse(
                f"at most {MOST_CHOICES:,} choices: a larger step, or a narrower range",
                self.step,
                at=("step",),
            )
        return self

    def values(self) -> tuple[float, ...]:
        """Return every choice in ascending order, `max` included."""
        steps = math.ceil((self.max - self.min) / self.step - 1e-9)
        return (*(self.min + place * self.step for place in range(steps)), self.max)


_number_or_range = Discriminator(by_shape(mapping="<range>", other="<number>"))

CountOrRange = Annotated[
    Annotated[Count, Tag("<number>")]
    | Annotated[Annotated[IntRange, Bounds(low=1)], Tag("<range>")],
    _number_or_range,
]
FactorOrRange = Annotated[
    Annotated[AtLeastOne, Tag("<number>")]
    | Annotated[Annotated[FloatRange, Bounds(low=1)], Tag("<range>")],
    _number_or_range,
]
