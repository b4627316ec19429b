"""The end of the page on what is not modelled: the keys and values that are refused by name."""

from __future__ import annotations

from allocator.scenario.not_yet import NOT_YET, NotYet
from tools.docs_docstring import wrapped

BEGIN = "<!-- Made from allocator/scenario/not_yet.py by `make docs`: change that instead. -->"
END = "<!-- End of what is made. -->"


def with_refused_keys(page: str) -> str:
    """Return the page with the block between the two marks made anew.

    Raises
    ------
    ValueError
        When a mark is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("not-modelled.md has lost a mark of its generated block")
    return f"{before}{BEGIN}\n\n{refused_keys()}\n\n{END}{after}"


def refused_keys() -> str:
    """Return the list of keys and values that a scenario may name and this version refuses."""
    lines = []
    for row in NOT_YET:
        lines += wrapped(f"`{row.path}`{_which(row)}: {row.why}", lambda name: f"`{name}`", "-")
    return "\n".join(lines)


def _which(row: NotYet) -> str:
    """Return which values are refused, where some are not."""
    if row.acted_on:
        return " other than " + " or ".join(f"`{_yaml(value)}`" for value in row.acted_on)
    return ", a list of them" if row.refused is not None else ""


def _yaml(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
