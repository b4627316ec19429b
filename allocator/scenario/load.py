"""Reading a scenario: from a file, from text, from a dictionary, or from another scenario."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from allocator.scenario.dump import scenario_to_dict
from allocator.scenario.errors import ScenarioError, join_errors, shown
from allocator.scenario.not_yet import idle, refusals
from allocator.scenario.origin import Note, Origin
from allocator.scenario.overrides import Overrides, apply_overrides
from allocator.scenario.paths import Part, format_path
from allocator.scenario.quantity import KINDS
from allocator.scenario.references import decoded, read_text
from allocator.scenario.schema import Scenario
from allocator.scenario.validation import explain, refusal_error
from allocator.scenario.yaml_text import parse_yaml

SCENARIO_FILE_BYTES = 1_000_000


def load(path: str | PathLike[str], overrides: Overrides = ()) -> Scenario:
    """Return the scenario of a YAML 1.2 file.

    Parameters
    ----------
    path : path-like
        UTF-8 file of at most 1 MB. Files it refers to lie in its directory or below.
    overrides : sequence of str, or mapping
        ``path=value`` texts or values by path, see `apply_overrides`.

    Returns
    -------
    Scenario
        With an `origin` that knows the line of each key.

    Raises
    ------
    ScenarioError
        With file, line and path of the first mistake, and the others in its ``others``.
    """
    text = read_text(path, SCENARIO_FILE_BYTES)
    directory = Path(path).absolute().parent
    return loads(text, overrides, file=str(path), directory=directory)


def loads(
    text: str | bytes,
    overrides: Overrides = (),
    *,
    file: str = "<text>",
    directory: Path | None = None,
) -> Scenario:
    """Return the scenario of a YAML 1.2 text, for example an upload.

    Parameters
    ----------
    text : str or bytes
        At most 1 MB; bytes are read as UTF-8.
    overrides : sequence of str, or mapping
        See `load`.
    file : str
        Name for errors.
    directory : Path, optional
        Where file references start; None: the text may hold none.

    Raises
    ------
    ScenarioError
        As for `load`.
    """
    if isinstance(text, bytes):
        text = decoded(text, file)
    if len(text) > SCENARIO_FILE_BYTES:
        raise ScenarioError(
            file=file, expected=f"at most {SCENARIO_FILE_BYTES:,} bytes", given="a larger text"
        )
    data, lines = parse_yaml(text, file)
    if data is None:
        raise ScenarioError(file=file, line=1, expected="a scenario", given="an empty file")
    if not isinstance(data, dict):
        raise ScenarioError(
            file=file,
            line=lines.get("", 1),
            expected="a block of keys (model, workload, hardware, budget, ...)",
            given=shown(data),
        )
    return _with_overrides(data, overrides, Origin(file=file, directory=directory, lines=lines))


def from_dict(
    data: Mapping[str, Any],
    overrides: Overrides = (),
    *,
    file: str | None = None,
    directory: Path | None = None,
) -> Scenario:
    """Return the scenario of plain data with the keys of a file; the inverse of `scenario_to_dict`.

    Raises
    ------
    ScenarioError
        As for `load`, without lines.
    """
    return _with_overrides(data, overrides, Origin(file=file, directory=directory))


def override(scenario: Scenario, overrides: Overrides) -> Scenario:
    """Return a scenario with some keys changed and everything else as it was.

    Examples
    --------
    >>> scenario = loads(
    ...     "{model: qwen3-8b, workload: {response_tokens: {mean: 4000, cv: 1}},"
    ...     " hardware: {pools: [{gpu: h200-sxm, gpus: 64}]}, budget: {hours: 24}}"
    ... )
    >>> override(scenario, {"hardware.pools[0].gpus": 128}).hardware.pools[0].gpus
    128
    """
    return _with_overrides(scenario_to_dict(scenario), overrides, scenario.origin)


def _with_overrides(data: Mapping[str, Any], overrides: Overrides, origin: Origin) -> Scenario:
    changed, paths = apply_overrides(dict(data), overrides)
    stated: dict[str, Any] = _without_nulls(changed)
    notes = dict(_notes(stated, ()))
    return _build(stated, replace(origin, overridden=(*origin.overridden, *paths), notes=notes))


def _build(data: dict[str, Any], origin: Origin) -> Scenario:
    refused = list(refusals(data))
    errors = [refusal_error(refusal, origin) for refusal in refused]
    places = [refusal.parts for refusal in refused]
    planned = _without(data, [*places, *idle(data)])
    try:
        scenario = Scenario.model_validate(planned).with_origin(origin)
    except ValidationError as invalid:
        raise join_errors(errors + explain(invalid, origin, places)) from None
    if errors:
        raise join_errors(errors)
    # A missing file is found now, with its line, and not when a solver first needs it.
    _ = scenario.model_file, scenario.lengths_file, scenario.latency_file
    return scenario


def _without_nulls(node: Any) -> Any:
    """Return the data without keys that are null: not stated, so the default holds."""
    if isinstance(node, Mapping):
        return {name: _without_nulls(item) for name, item in node.items() if item is not None}
    if isinstance(node, list):
        return [_without_nulls(item) for item in node]
    return node


def _without(node: Any, places: Iterable[tuple[Part, ...]], above: tuple[Part, ...] = ()) -> Any:
    """Return the data without the keys at `places`."""
    gone = set(places)
    if isinstance(node, Mapping):
        kept = ((name, item) for name, item in node.items() if (*above, name) not in gone)
        return {name: _without(item, gone, (*above, str(name))) for name, item in kept}
    if isinstance(node, list):
        return [_without(item, gone, (*above, place)) for place, item in enumerate(node)]
    return node


def _notes(node: Any, parts: tuple[Part, ...]) -> Iterator[tuple[str, Note]]:
    """Yield kind and source of every number that is written as a block."""
    if isinstance(node, Mapping):
        value, kind, source = node.get("value"), node.get("kind", "stated"), node.get("source")
        if (
            isinstance(value, (int, float))
            and kind in KINDS
            and (source is None or isinstance(source, str))
            and (kind != "stated" or source is not None)
        ):
            yield format_path(parts), Note(value, kind, source)
        for name, item in node.items():
            yield from _notes(item, (*parts, str(name)))
    elif isinstance(node, list):
        for place, item in enumerate(node):
            yield from _notes(item, (*parts, place))
