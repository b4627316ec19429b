"""Overrides of single keys: ``--set hardware.pools[0].gpus=128``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allocator.scenario.errors import ScenarioError, nearest_of, shown
from allocator.scenario.origin import OVERRIDE
from allocator.scenario.paths import Part, format_path, parse_path
from allocator.scenario.quantity import Quantity
from allocator.scenario.run import FixedPlan
from allocator.scenario.schema import Scenario
from allocator.scenario.yaml_text import parse_yaml

Overrides = Sequence[str] | Mapping[str, Any]

_FORM = "path=value, for example hardware.pools[0].gpus=128"


def apply_overrides(
    data: dict[str, Any], overrides: Overrides
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the data with each override set, and the paths that were set.

    Parameters
    ----------
    data : dict
        Plain data of a scenario; not changed.
    overrides : sequence of str, or mapping
        ``path=value`` texts with the value in YAML, or values by path. A path may name a pool
        (``hardware.pools[h200].gpus``), and a decision by its flat name (``trainer_gpus``). A
        number replaces a block ``{value:, low:, ...}`` as a whole. Null takes a key back to its
        default. The last override of a key counts.

    Raises
    ------
    ScenarioError
        With file ``--set``, if an override is not of this form or leads into nothing. Whether the
        key and value are legal is left to the schema.
    """
    result: dict[str, Any] = _copied(data)
    paths: list[str] = []
    for path, value in _pairs(overrides):
        parts = parse_path(path)
        if parts is None:
            raise ScenarioError(file=OVERRIDE, expected=_FORM, given=shown(path))
        paths.append(format_path(_set(result, _without_alias(parts), value)))
    return result, tuple(paths)


def _pairs(overrides: Overrides) -> list[tuple[str, Any]]:
    if isinstance(overrides, Mapping):
        return [(path, _native(value)) for path, value in overrides.items()]
    if isinstance(overrides, str):
        raise ScenarioError(file=OVERRIDE, expected="a list of overrides", given=shown(overrides))
    pairs: list[tuple[str, Any]] = []
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise ScenarioError(file=OVERRIDE, expected=_FORM, given=shown(text))
        try:
            parsed, _ = parse_yaml(value, OVERRIDE)
        except ScenarioError as wrong:
            raise ScenarioError(
                file=OVERRIDE, path=path.strip(), expected="a YAML value", given=shown(value)
            ) from wrong
        pairs.append((path.strip(), parsed))
    return pairs


def _native(value: Any) -> Any:
    # A sweep over a numpy array hands over numpy scalars.
    return value.item() if hasattr(value, "item") else value


def _copied(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {name: _copied(item) for name, item in node.items()}
    if isinstance(node, (list, tuple)):
        return [_copied(item) for item in node]
    return node


def _without_alias(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    head = parts[0]
    if head in FixedPlan.model_fields and head not in Scenario.model_fields:
        return ("plan", *parts)
    return parts


def _set(root: dict[str, Any], parts: tuple[Part, ...], value: Any) -> tuple[Part, ...]:
    """Set one value in place and return its path with places instead of names."""
    node: Any = root
    walked: tuple[Part, ...] = ()
    for depth, part in enumerate(parts):
        place = _place(node, part, walked)
        walked = (*walked, place if isinstance(place, int) else str(place))
        if depth == len(parts) - 1:
            node[place] = value
            return walked
        below = node[place] if isinstance(node, list) else node.get(place)
        if not isinstance(below, (dict, list)):
            below = _opened(below, parts[depth + 1], walked)
            node[place] = below
        node = below
    return walked


def _opened(value: Any, part: Part, walked: tuple[Part, ...]) -> dict[Any, Any]:
    """Return the block that stands for a value when an override sets a key below it."""
    if isinstance(part, int):
        raise ScenarioError(
            file=OVERRIDE,
            path=format_path((*walked, part)),
            expected="a place in an existing list",
            given=shown(value),
        )
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {"value": value} if number and part in Quantity.model_fields else {}


def _place(node: Any, part: Part, walked: tuple[Part, ...]) -> Any:
    if isinstance(node, dict):
        # Probabilities of a quantile table are numbers in a file and text in a path.
        return next((name for name in node if str(name) == str(part)), str(part))
    names = [_name(item) for item in node]
    place = int(part) if isinstance(part, int) or part.isdecimal() else None
    if place is not None and place < len(node):
        return place
    if place is None and part in names:
        return names.index(part)
    known = [name for name in names if name is not None]
    last = len(node) - 1
    places = f"a place 0 to {last}" if node else "a list with entries"
    raise ScenarioError(
        file=OVERRIDE,
        path=format_path((*walked, part)),
        expected=f"{places} or a name: {', '.join(known)}" if known else places,
        given=shown(part),
        nearest=nearest_of(part, known),
    )


def _name(item: Any) -> str | None:
    if not isinstance(item, Mapping):
        return None
    name = item.get("name", item.get("gpu"))
    return name if isinstance(name, str) else None
