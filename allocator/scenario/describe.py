"""What the schema says of each key: legal values in words, unit, default and meaning.

Error texts, the documentation of the scenario and the page are all generated from here.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Tag
from pydantic.fields import FieldInfo

from allocator.scenario.dump import plain_value
from allocator.scenario.errors import shown
from allocator.scenario.quantity import Bounds, FloatRange, IntRange, Quantity
from allocator.scenario.schema import Scenario
from allocator.scenario.section import Section
from allocator.scenario.table import Table

_PLAIN_TEXT: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


@dataclass(frozen=True)
class KeyDescription:
    """One key of the scenario.

    Attributes
    ----------
    path : str
        Dotted path; ``[]`` stands for any place in a list.
    legal : str
        Legal values in words, with their range.
    unit : str or None
        Unit of the number.
    required : bool
        Whether the key must be stated (once the block it stands in is).
    default : Any
        Value when it is not, as it would stand in a file; None for none.
    description : str
        Meaning.
    """

    path: str
    legal: str
    unit: str | None
    required: bool
    default: Any
    description: str


def describe() -> tuple[KeyDescription, ...]:
    """Return every key of the scenario in the order of the schema."""
    return tuple(_describe(Scenario, ""))


def defaults() -> dict[str, Any]:
    """Return the default of every key that has one, by path, as it would stand in a file.

    None stands for "not set". Keys of a block that is itself not set by default (a target, the
    user's own rates) hold once the block is stated.
    """
    return {row.path: row.default for row in describe() if not row.required}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file, for editors."""
    for section in _sections(Section):
        # Blocks build their serialisers only on demand, and the schema shows their defaults.
        section.model_rebuild()
    return Scenario.model_json_schema()


def _sections(base: type[Section]) -> Iterator[type[Section]]:
    for section in base.__subclasses__():
        yield section
        yield from _sections(section)


def _describe(section: type[Section], prefix: str) -> Iterator[KeyDescription]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        annotation = field_annotation(field)
        if not _is_one_block(annotation):
            yield _row(path, field, annotation)
        below = f"{path}[]." if _is_list(annotation) else f"{path}."
        rows: dict[str, KeyDescription] = {}
        for block in _blocks(annotation):
            for row in _describe(block, below):
                rows[row.path] = _merged(rows[row.path], row) if row.path in rows else row
        yield from rows.values()


def _merged(one: KeyDescription, other: KeyDescription) -> KeyDescription:
    """Return the description of a key that two forms of a block share."""
    legal = one.legal if one.legal == other.legal else f"{one.legal} or {other.legal}"
    return replace(one, legal=legal, required=one.required and other.required)


def _row(path: str, field: FieldInfo, annotation: Any) -> KeyDescription:
    extra = field.json_schema_extra
    unit = extra.get("unit") if isinstance(extra, dict) else None
    required = field.is_required()
    return KeyDescription(
        path=path,
        legal=legal_text(annotation),
        unit=str(unit) if unit is not None else None,
        required=required,
        default=None if required else plain_value(field.default),
        description=field.description or "",
    )


def field_annotation(field: FieldInfo) -> Any:
    """Return the annotation of a field together with its metadata."""
    if not field.metadata:
        return field.annotation
    return Annotated[(field.annotation, *field.metadata)]


def _unwrapped(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    metadata: tuple[Any, ...] = ()
    while get_origin(annotation) is Annotated:
        annotation, *rest = get_args(annotation)
        metadata = (*rest, *metadata)
    return annotation, metadata


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the forms a value may take, None aside; one form for anything but a union."""
    base, metadata = _unwrapped(annotation)
    if get_origin(base) in {Union, types.UnionType}:
        members = [member for member in get_args(base) if member is not type(None)]
        if len(members) == 1 and metadata:
            return _members(Annotated[(members[0], *metadata)])
        return tuple(form for member in members for form in _members(member))
    return (annotation,)


def _is_section(base: Any) -> bool:
    return isinstance(base, type) and issubclass(base, Section)


def _blocks(annotation: Any) -> list[type[Section]]:
    found: list[type[Section]] = []
    for member in _members(annotation):
        base, _ = _unwrapped(member)
        if get_origin(base) is tuple:
            found += _blocks(get_args(base)[0])
        elif _is_section(base) and base not in {Quantity, IntRange, FloatRange}:
            found.append(base)
    return found


def _is_list(annotation: Any) -> bool:
    return any(get_origin(_unwrapped(member)[0]) is tuple for member in _members(annotation))


def _is_one_block(annotation: Any) -> bool:
    members = _members(annotation)
    base, _ = _unwrapped(members[0])
    return len(members) == 1 and _is_section(base) and base is not Quantity


def legal_text(annotation: Any) -> str:
    """Return in words what a value of this type may be, for example ``a number in (0, 1]``."""
    texts = list(dict.fromkeys(_form_text(member) for member in _members(annotation)))
    if len(texts) == 2 and texts[1] == f"a list of {texts[0]}":
        return f"{texts[0]}, or a list of these"
    return " or ".join(texts)


def _form_text(member: Any) -> str:
    base, metadata = _unwrapped(member)
    bounds = next((item for item in reversed(metadata) if isinstance(item, Bounds)), None)
    if get_origin(base) is Literal:
        return _choice_text(get_args(base))
    if get_origin(base) is tuple:
        table = next((item for item in metadata if isinstance(item, Table)), None)
        return table.text() if table else f"a list of {legal_text(get_args(base)[0])}"
    if base in {IntRange, FloatRange}:
        return "{min, max, step}"
    if base is Quantity:
        text = "a number"
    elif _is_section(base):
        return "{" + ", ".join(base.model_fields) + "}"
    else:
        text = _PLAIN_TEXT[base]
    return f"{text} {bounds.text()}" if bounds else text


def _choice_text(choices: tuple[Any, ...]) -> str:
    *first, last = (shown(choice) for choice in choices)
    return f"{', '.join(first)} or {last}" if first else last


def choices_of(annotation: Any) -> list[str]:
    """Return the words a value of this type may be, for a suggestion."""
    words: list[str] = []
    for member in _members(annotation):
        base, _ = _unwrapped(member)
        if get_origin(base) is Literal:
            words += [choice for choice in get_args(base) if isinstance(choice, str)]
    return words


def step_into(annotation: Any, part: str | int) -> Any:
    """Return the type one step below: a key of a block, a place of a list or a form's tag.

    None if the schema has no such step.
    """
    for member in _members(annotation):
        base, metadata = _unwrapped(member)
        if any(isinstance(item, Tag) and item.tag == part for item in metadata):
            return member
    for member in _members(annotation):
        base, _ = _unwrapped(member)
        if isinstance(part, int) and get_origin(base) is tuple:
            return get_args(base)[0]
        if _is_section(base) and part in base.model_fields:
            return field_annotation(base.model_fields[part])
    return None


def keys_of(annotation: Any) -> list[str]:
    """Return the keys a block of this type may have, over all its forms."""
    names: dict[str, None] = {}
    for member in _members(annotation):
        base, _ = _unwrapped(member)
        if _is_section(base):
            names.update(dict.fromkeys(base.model_fields))
    return list(names)
