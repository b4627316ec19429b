"""Where each law is shown: the pages in order of the data, and the links between them."""

from __future__ import annotations

from functools import cache

from tools.docs_docstring import Link
from tools.docs_source import modules

#: The pages, as data flows. A page is a law's module and the numeric modules it stands on.
PLACES: dict[str, tuple[tuple[str, ...], ...]] = {
    "rollout": (
        ("lengths", "length_tables", "order_statistics", "moments"),
        ("length_cut",),
        ("oversampling",),
        ("batch_cut",),
        ("turns",),
    ),
    "generator": (
        ("decode",),
        ("prefill",),
        ("estimate",),
        ("kv_memory",),
        ("closed_loop",),
        ("group_starts",),
        ("disaggregation",),
        ("batch_generation", "one_wave", "last_engine"),
        ("waves", "wave_groups"),
        ("resumed",),
        ("renewal",),
    ),
    "environment": (("sandbox",), ("attempts",), ("reward",), ("signal",)),
    "trainer": (("flops",), ("trainer",), ("packing",), ("weight_sync",), ("weight_update",)),
    "queue": (
        ("residence",),
        ("completions",),
        ("queueing",),
        ("pipeline",),
        ("staleness",),
        ("batch_step",),
    ),
    "accounts": (("economics",), ("availability",)),
}


def title(name: str) -> str:
    """Return the name of a module as a heading."""
    said = name.replace("_", " ")
    return said.replace("kv", "KV", 1) if said.startswith("kv ") else said.capitalize()


@cache
def page_of(module: str) -> str:
    """Return the page on which a module is shown: that of its own name, or of its law."""
    return next((room[0] for rooms in PLACES.values() for room in rooms if module in room), module)


@cache
def anchors() -> dict[str, str]:
    """Return the place of every public name that only one module has, and of every module."""
    found: dict[str, list[str]] = {}
    for module in modules().values():
        page = f"{page_of(module.name)}.md"
        found.setdefault(f"allocator.physics.{module.name}", []).append(page)
        for member in module.members:
            place = f"{page}#{member.name.lower()}"
            found.setdefault(member.name, []).append(place)
            found.setdefault(f"{module.name}.{member.name}", []).append(place)
    for name in modules():
        found.setdefault(name, [f"{page_of(name)}.md"])
    return {name: places[0] for name, places in found.items() if len(places) == 1}


def linker(page: str, taken: frozenset[str] = frozenset()) -> Link:
    """Return a function that links a name in backticks, unless the page means something else."""

    def link(name: str) -> str:
        place = "" if name in taken else anchors().get(name, "")
        if not place or place == f"{page}.md":
            return f"`{name}`"
        return f"[`{name}`]({place.removeprefix(f'{page}.md')})"

    return link
