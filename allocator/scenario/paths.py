"""Dotted paths of scenario keys: ``hardware.pools[0].gpus``."""

from __future__ import annotations

import re
from collections.abc import Iterable

Part = str | int

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_PLACE = re.compile(r"[0-9]{1,9}\Z")
_TOKEN = re.compile(r"(?:\A|\.)(?P<key>[^.\[\]]+)|\[(?P<index>[^\[\]]+)\]")


def format_path(parts: Iterable[Part]) -> str:
    """Return the dotted text of a path; list places and unusual keys stand in brackets.

    Examples
    --------
    >>> format_path(("hardware", "pools", 0, "gpus"))
    'hardware.pools[0].gpus'
    >>> format_path(("workload", "response_tokens", "quantiles", "0.5"))
    'workload.response_tokens.quantiles[0.5]'
    """
    text = ""
    for part in parts:
        if isinstance(part, int) or not _PLAIN_KEY.match(part):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def parse_path(text: str) -> tuple[Part, ...] | None:
    """Return the parts of a dotted path, or None when `text` is not one.

    A bracket holds a place in a list (digits), or a name.

    Examples
    --------
    >>> parse_path("hardware.pools[0].gpus"), parse_path("hardware.pools[h200].gpus")
    (('hardware', 'pools', 0, 'gpus'), ('hardware', 'pools', 'h200', 'gpus'))
    >>> parse_path("a..b") is None
    True
    """
    if text.startswith("."):
        return None
    parts: list[Part] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return None
        key, index = token.group("key"), token.group("index")
        if key is not None:
            parts.append(key.strip())
        else:
            parts.append(int(index) if _PLACE.match(index) else index.strip())
        position = token.end()
    return tuple(parts) or None


def is_inside(path: str, prefix: str) -> bool:
    """Return whether `path` is `prefix` itself or a key below it."""
    return path == prefix or (
        path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in {".", "["}
    )


def parent_of(path: str) -> str:
    """Return the path one level up; the empty text above a top-level key."""
    parts = parse_path(path)
    return format_path(parts[:-1]) if parts else ""
