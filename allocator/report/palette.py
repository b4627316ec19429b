"""What a role looks like: colours that colour-blind readers tell apart, and glyphs without colour.

Colours are those of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/. Adjacent parts of a
bar differ in glyph too, so that nothing is said by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal[
    "trainer",
    "generator",
    "prefill",
    "reward",
    "trained",
    "idle",
    "useful",
    "no_signal",
    "rejected_stale",
    "oversampled",
    "dropped_overflow",
    "failed",
    "mixed_environment",
    "total",
    "dearer",
    "cheaper",
]
Tone = Literal["plain", "good", "warn", "bad", "muted"]


@dataclass(frozen=True, slots=True)
class Look:
    """One role's colour (hex), terminal style, glyph, and glyph where only ASCII can be shown."""

    colour: str
    style: str
    glyph: str
    ascii_glyph: str


LOOKS: dict[Role, Look] = {
    "trainer": Look("#0072B2", "blue", "\u2588", "#"),
    "generator": Look("#E69F00", "yellow", "\u2593", "="),
    "prefill": Look("#56B4E9", "cyan", "\u2592", "%"),
    "reward": Look("#CC79A7", "magenta", "\u259e", "+"),
    "trained": Look("#009E73", "green", "\u2588", "#"),
    "idle": Look("#8C8C8C", "bright_black", "\u2591", "."),
    "useful": Look("#009E73", "green", "\u2588", "#"),
    "no_signal": Look("#CC79A7", "magenta", "\u2593", "="),
    "rejected_stale": Look("#D55E00", "red", "\u2592", "%"),
    "oversampled": Look("#56B4E9", "cyan", "\u2591", "-"),
    "dropped_overflow": Look("#F0E442", "bright_yellow", "\u259e", "+"),
    "failed": Look("#555555", "bright_black", "x", "x"),
    "mixed_environment": Look("#0072B2", "blue", "\u259a", "*"),
    "total": Look("#0072B2", "blue", "\u2588", "#"),
    "dearer": Look("#D55E00", "red", "\u2593", "+"),
    "cheaper": Look("#009E73", "green", "\u2591", "-"),
}

TONE_STYLES: dict[Tone, str] = {
    "plain": "",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "muted": "dim",
}
