"""Keys whose value is one of several blocks, such as a distribution by mean or by percentiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allocator.scenario.errors import nearest_of
from allocator.scenario.quantity import Quantity
from allocator.scenario.section import Section, refuse

NUMBER = "<Quantity>"


@dataclass(frozen=True)
class Forms:
    """The forms one key may take.

    Attributes
    ----------
    text : str
        All forms in words, for errors.
    by_key : mapping
        The block that each telling key belongs to.
    shared : tuple of str
        Keys that tell nothing because several forms have them.
    or_number : bool
        Whether the value may also be a number, bare or with its origin.
    """

    text: str
    by_key: Mapping[str, type[Section]]
    shared: tuple[str, ...] = ("max",)
    or_number: bool = False

    def check(self, value: object) -> object:
        """Return `value` if it is of exactly one form; what the form itself holds is left to it."""
        if isinstance(value, Section) or self._is_number(value):
            return value
        if not isinstance(value, Mapping):
            raise refuse(self.text, value)
        forms = {self.by_key[name] for name in value if name in self.by_key}
        if len(forms) > 1:
            raise refuse(f"one form only: {self.text}", value)
        if not forms:
            known = [*self.by_key, *self.shared]
            for name in value:
                if name not in known:
                    close = nearest_of(name, known)
                    raise refuse(self.text, str(name), at=(str(name),), nearest=close)
            raise refuse(self.text, value)
        return value

    def tag(self, value: object) -> str:
        """Return the tag of the form `value` has, for example ``<LengthsByMean>``."""
        if self._is_number(value):
            return NUMBER
        if isinstance(value, Mapping):
            stated = (self.by_key[name] for name in value if name in self.by_key)
            return f"<{next(stated, next(iter(self.by_key.values()))).__name__}>"
        return f"<{type(value).__name__}>"

    def _is_number(self, value: object) -> bool:
        if not self.or_number or isinstance(value, Section):
            return False
        return "value" in value if isinstance(value, Mapping) else True


def check_mean(mean: Quantity, cap: Quantity | None) -> None:
    """Refuse a cap at or below the mean of what was observed under it."""
    if cap is not None and cap.value <= mean.value:
        raise refuse(f"a number > mean ({mean.value:g})", cap.value, at=("max",))


def check_percentiles(p50: Quantity, p99: Quantity, cap: Quantity | None) -> None:
    """Refuse percentiles, and a cap on what was observed, that do not ascend."""
    if p99.value <= p50.value:
        raise refuse(f"a number > p50 ({p50.value:g})", p99.value, at=("p99",))
    if cap is not None and cap.value < p99.value:
        raise refuse(f"a number >= p99 ({p99.value:g})", cap.value, at=("max",))
