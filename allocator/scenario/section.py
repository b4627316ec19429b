"""What every block of a scenario shares: frozen, closed, and able to say what is legal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from allocator.scenario.errors import shown

REFUSED = "refused"


class Section(BaseModel):
    """A block of a scenario. Its attributes are the keys of the file; nothing else is accepted."""

    # Only the scenario is ever validated as a whole: building a validator for each block as well
    # would double the time of the import. Defaults are therefore made by `model_construct`.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def key(description: str, *, unit: str | None = None, default: Any = ...) -> Any:
    """Return the declaration of one scenario key.

    Parameters
    ----------
    description : str
        What the key means. The legal range is not repeated here: it is part of the key's type and
        is put beside the description by `allocator.scenario.describe`.
    unit : str, optional
        Unit of the number, as a user would write it.
    default : Any, optional
        Value when the file does not state the key; without it the key is required.
    """
    extra: JsonDict | None = {"unit": unit} if unit else None
    text = f"{description} [{unit}]" if unit else description
    return Field(default=default, description=text, json_schema_extra=extra)


def refuse(
    expected: str,
    given: object = REFUSED,
    *,
    at: Sequence[str | int] = (),
    nearest: str | None = None,
    general: bool = False,
) -> PydanticCustomError:
    """Return the error a validator raises for a value that cannot be planned.

    Parameters
    ----------
    expected : str
        What would be legal there.
    given : object, optional
        What was found; by default the whole value that was being validated.
    at : sequence of str or int, optional
        Where below the validated value the fault lies.
    nearest : str, optional
        The legal entry closest to what was given.
    general : bool
        Whether what the schema says of the key is more precise than `expected`.
    """
    context: dict[str, Any] = {
        "expected": expected,
        "at": tuple(at),
        "nearest": nearest,
        "general": general,
    }
    if given is not REFUSED:
        context["given"] = shown(given)
    # The template is filled by pydantic from the context when somebody validates without a file.
    return PydanticCustomError(REFUSED, "expected {expected}", context)


def by_shape(*, mapping: str, other: str, sequence: str | None = None) -> Callable[[object], str]:
    """Return a discriminator that tells the forms of a key apart by the shape of its value.

    A block with a ``value:`` key is a number with its origin, so it counts as `other`. Tags are
    written ``<so>``, which no key of a file can be mistaken for.
    """

    def tag(value: object) -> str:
        if isinstance(value, Mapping):
            return other if "value" in value else mapping
        if isinstance(value, BaseModel):
            return other if "value" in type(value).model_fields else mapping
        if sequence is not None and isinstance(value, (list, tuple)):
            return sequence
        return other

    return tag


def nothing_if_empty(value: object) -> object:
    """Return None for an empty block, which says no more than its absence."""
    return None if value == {} else value


def _printable(value: object) -> str:
    if not isinstance(value, str):
        raise refuse("text", value, general=True)
    if not value.strip() or not value.isprintable():
        raise refuse("text on one line, not empty", value)
    return value


Text = Annotated[str, BeforeValidator(_printable)]
Flag = StrictBool
