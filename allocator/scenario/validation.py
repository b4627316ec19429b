"""From what the schema rejects to errors with file, line and what would be legal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from allocator.scenario.describe import choices_of, describe, keys_of, legal_text, step_into
from allocator.scenario.errors import ScenarioError, nearest_of, shown
from allocator.scenario.not_yet import Refusal
from allocator.scenario.origin import OVERRIDE, Origin
from allocator.scenario.paths import Part, format_path
from allocator.scenario.run import FixedPlan
from allocator.scenario.schema import Scenario
from allocator.scenario.section import REFUSED

_UNKNOWN_KEY = frozenset({"extra_forbidden", "invalid_key"})


def explain(
    invalid: ValidationError, origin: Origin, refused: Iterable[tuple[Part, ...]] = ()
) -> list[ScenarioError]:
    """Return one error for each thing the schema rejected.

    Parameters
    ----------
    invalid : ValidationError
        Raised by ``Scenario.model_validate``.
    origin : Origin
        Lines of the keys.
    refused : iterable of paths
        Places already refused and taken out of the data; nothing is said of them again.
    """
    found = invalid.errors(include_url=False)
    unknown = [_unknown_key(item, origin) for item in found if item["type"] in _UNKNOWN_KEY]
    # A misspelt required key is one mistake, not an unknown key and a missing one.
    explained = {format_path(parts) for parts in refused}
    explained |= {_sibling(error) for error in unknown if error.nearest is not None}
    others = [_error(item, origin) for item in found if item["type"] not in _UNKNOWN_KEY]
    return unknown + [
        error for error in others if not (error.given == "nothing" and error.path in explained)
    ]


def _sibling(error: ScenarioError) -> str:
    above, dot, _ = (error.path or "").rpartition(".")
    return f"{above}{dot}{error.nearest}"


def refusal_error(refusal: Refusal, origin: Origin) -> ScenarioError:
    """Return the error for a key or value of the contract that this version does not act on."""
    row, parts = refusal.row, refusal.parts
    nearest = nearest_of(refusal.value, [word for word in row.acted_on if isinstance(word, str)])
    if row.acted_on:
        *first, last = (shown(value) for value in row.acted_on)
        legal = f"{', '.join(first)} or {last}" if first else last
        expected = f"{legal} ({row.why})"
    elif row.refused is not None:
        expected = f"{legal_text(_annotation_at(parts))} ({row.why})"
    else:
        siblings = ", ".join(keys_of(_annotation_at(parts[:-1])))
        expected = (
            f"nothing: this version does not act on {parts[-1]} ({row.why}; "
            f"keys it acts on: {siblings})"
        )
    return _located(parts, origin, expected, shown(refusal.value), nearest)


def _located(
    parts: tuple[Part, ...], origin: Origin, expected: str, given: str, nearest: str | None
) -> ScenarioError:
    path = format_path(parts)
    file, line = origin.locate(path)
    return ScenarioError(
        file=file, line=line, path=path, expected=expected, given=given, nearest=nearest
    )


def _annotation_at(location: Iterable[Part]) -> Any:
    annotation: Any = Scenario
    for part in location:
        annotation = step_into(annotation, part)
        if annotation is None:
            break
    return annotation


def _is_tag(part: Part) -> bool:
    return isinstance(part, str) and part.startswith("<")


def _error(item: Mapping[str, Any], origin: Origin) -> ScenarioError:
    location: tuple[Part, ...] = item["loc"]
    context: Mapping[str, Any] = item.get("ctx", {})
    at: tuple[Part, ...] = context.get("at", ())
    parts = (*(part for part in location if not _is_tag(part)), *at)
    # A number that may also be a range is explained by both: leave the tag of the form out.
    typed = location[:-1] if location and _is_tag(location[-1]) else location
    annotation = _annotation_at((*typed, *at))
    nearest = context.get("nearest")
    if item["type"] == REFUSED and not (context["general"] and annotation is not None):
        expected = context["expected"]
    else:
        expected = "a legal value" if annotation is None else legal_text(annotation)
    if item["type"] == "missing":
        given = "nothing"
        meaning = _meaning(format_path(parts))
        expected = f"{expected} ({meaning})" if meaning else expected
    else:
        given = context.get("given", shown(item["input"]))
        nearest = nearest or nearest_of(item["input"], choices_of(annotation))
    return _located(parts, origin, expected, given, nearest)


def _meaning(path: str) -> str | None:
    anywhere = re.sub(r"\[\d+\]", "[]", path)
    return next((row.description for row in describe() if row.path == anywhere), None)


def _unknown_key(item: Mapping[str, Any], origin: Origin) -> ScenarioError:
    location: tuple[Part, ...] = item["loc"]
    # pydantic marks a key that is no text with a last part "[key]".
    above = location[:-2] if item["type"] == "invalid_key" else location[:-1]
    name = str(location[len(above)])
    parts = (*(part for part in above if not _is_tag(part)), name)
    legal = keys_of(_annotation_at(above))
    aliases = [alias for alias in FixedPlan.model_fields if alias not in legal]
    on_command_line = origin.locate(format_path(parts))[0] == OVERRIDE and len(parts) == 1
    nearest = _elsewhere(name) or nearest_of(name, [*legal, *aliases] if on_command_line else legal)
    return _located(
        parts,
        origin,
        f"one of the keys {', '.join(legal)}",
        shown(name),
        nearest,
    )


def _elsewhere(name: str) -> str | None:
    """Return the one path at which a key of exactly this name is legal, if there is one.

    A decision of the plan stands for the key it decides.
    """
    found = [row.path for row in describe() if row.path.rpartition(".")[2] == name]
    if len(found) > 1:
        found = [path for path in found if not path.startswith("plan.")]
    return found[0] if len(found) == 1 else None
