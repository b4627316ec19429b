"""Checks of option values that several verbs share."""

from __future__ import annotations

from allocator.scenario.errors import ScenarioError, nearest_of


def one_of(option: str, value: str, legal: tuple[str, ...]) -> None:
    """Refuse a value of an option that is none of the legal ones, naming the nearest."""
    if value not in legal:
        raise ScenarioError(
            path=option, expected=f"one of {', '.join(legal)}", given=value,
            nearest=nearest_of(value, legal),
        )  # fmt: skip


def at_least(option: str, value: int, least: int) -> None:
    """Refuse a number of an option below the least that makes sense."""
    if value < least:
        raise ScenarioError(path=option, expected=f"{least} or more", given=str(value))
