"""Units, read from names that end in them and from what is said beside those that do not."""

from __future__ import annotations

import re

#: Words of a name that are units, as they are written and as they are read.
UNITS = {
    "s": "s",
    "hours": "h",
    "hour": "h",
    "years": "years",
    "bytes": "bytes",
    "flops": "FLOP",
    "usd": "US dollars",
    "tokens": "tokens",
    "tokens2": "tokens^2",
    "tokens3": "tokens^3",
    "token": "token",
    "token2": "token^2",
    "mtok": "million tokens",
    "lengths": "mean lengths",
    "versions": "versions",
    "batches": "batches",
}
#: Counted things: units only of a rate (`samples_per_s`) or below a fraction (`per_gpu_hour`).
COUNTED = {
    "samples": "samples",
    "rollouts": "rollouts",
    "failures": "failures",
    "calls": "calls",
    "groups": "groups",
    "gpu": "GPU",
    "gpus": "GPUs",
    "experts": "experts",
    "pair": "pair",
    "param": "parameter",
    "server": "server",
    "hidden": "hidden unit",
    "value": "value",
    "rollout": "rollout",
    "sandbox": "sandbox",
    "batch": "batch",
    "kept": "kept rollout",
}
#: Last words of names of what has no unit, whatever the words beside them say.
WITHOUT = {"ratio", "share", "fraction", "cv"}

#: A unit that the words beside a name begin with, name in brackets, or end a phrase with.
_SAID = re.compile(
    r"^(?:mean )?(tokens|seconds|engine-seconds|bytes|FLOP|dollars)\b(?=,| of| per|;)"
    r"|\((s|tokens|mean lengths|batches(?:\^2)?|versions|samples/s)[,);]"
    r"|(?<=, in )(mean lengths|tokens|seconds)\b",
    re.IGNORECASE,
)
#: What comes so often: a rate that is named in words.
_RATE = re.compile(r"^(?:\w+, )?(\w+/s)\b", re.IGNORECASE)
_SHORT = {"seconds": "s", "engine-seconds": "s", "dollars": "US dollars"}


def unit_of(name: str, text: str = "") -> str:
    """Return the unit of a quantity: its name says it, or the text beside; else nothing.

    Examples
    --------
    >>> unit_of("p1_s_per_token"), unit_of("samples_per_s"), unit_of("ownership_usd_per_gpu_hour")
    ('s/token', 'samples/s', 'US dollars/(GPU h)')
    >>> unit_of("engines"), unit_of("spacing", "Distance of the nodes, in mean lengths.")
    ('', 'mean lengths')
    """
    over, _, under = re.sub("_(in|out)$", "", name.lower()).partition("_per_")
    words, below = over.split("_"), under.split("_") if under else []
    readable = {**UNITS, **COUNTED}
    top = words[-1]
    if below and all(word in readable for word in below):
        bottom = " ".join(readable[word] for word in below)
        bottom = f"({bottom})" if len(below) > 1 else bottom
        if top in readable:
            return f"{readable[top]}/{bottom}"
        said = _RATE.search(text)
        return said[1].lower() if said else f"1/{bottom}"
    if not below and top in UNITS and words != ["lengths"]:
        return f"GPU {UNITS[top]}" if words[-2:-1] == ["gpu"] else UNITS[top]
    said = None if top in WITHOUT else _SAID.search(text)
    if said is None:
        return ""
    word = next(group for group in said.groups() if group)
    return _SHORT.get(word.lower(), word)
