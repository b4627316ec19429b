"""Pages of the laws: complete, each with all its pieces, and made from what stands in the code."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

import allocator.physics
from allocator.scenario.not_yet import NOT_YET
from tools.build_docs import DOCS
from tools.docs_checks import checks
from tools.docs_docstring import WIDTH, markdown, parse, wrapped
from tools.docs_laws import law_pages, without_place
from tools.docs_not_modelled import BEGIN, END, with_refused_keys
from tools.docs_places import PLACES
from tools.docs_source import modules
from tools.docs_units import unit_of

PAGES = sorted(name for name in law_pages() if name != "laws.md")
SECTIONS = ("Meaning", "Formulas and definitions", "Units", "Source", "Where it is checked")
#: Pages on which every quantity is a count or a share.
WITHOUT_UNIT = {"laws/group_starts.md", "laws/signal.md"}
#: Pages whose docstrings name no source: definitions and what follows from them.
DERIVED_HERE = {
    "batch_cut",
    "batch_generation",
    "batch_step",
    "length_cut",
    "lengths",
    "renewal",
    "residence",
    "signal",
    "weight_update",
}
NOT_MODELLED = (DOCS / "not-modelled.md").read_text(encoding="utf-8")


def section(page: str, name: str) -> str:
    """Text of a section of a committed page, up to the next one of its level."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def plain(name: str) -> str:
    return name


def test_no_page_of_a_law_that_is_gone() -> None:
    assert sorted(f"laws/{path.name}" for path in (DOCS / "laws").glob("*.md")) == PAGES


def test_every_module_has_a_place_and_every_place_a_module() -> None:
    placed = [name for rooms in PLACES.values() for room in rooms for name in room]
    assert without_place() == set(), "give the new module a place in tools/docs_places.py"
    assert sorted(placed) == sorted(modules())


def test_every_public_name_of_the_laws_is_on_a_page() -> None:
    # Found by importing, where the pages are found by reading.
    written = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    missing = []
    for info in pkgutil.iter_modules(allocator.physics.__path__):
        module = importlib.import_module(f"allocator.physics.{info.name}")
        for name, thing in inspect.getmembers(module):
            own = getattr(thing, "__module__", None) == module.__name__
            public = own and not name.startswith("_")
            if public and callable(thing) and f"\n### {name}\n" not in written:
                missing.append(f"{info.name}.{name}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_all_its_pieces(page: str) -> None:
    for name in SECTIONS:
        assert section(page, name), f"{page}: {name}"
    assert "\n### " in f"\n{section(page, 'Formulas and definitions')}"
    units = section(page, "Units").removesuffix("What names no unit is a count, a share or a law.")
    assert units or page in WITHOUT_UNIT, f"{page}: no quantity of a unit"


def test_pages_without_a_stated_source_are_known() -> None:
    silent = {
        page.removeprefix("laws/").removesuffix(".md")
        for page in PAGES
        if section(page, "Source").startswith("Derived here: no docstring")
    }
    assert silent <= DERIVED_HERE, "say in the docstring where the law comes from"


@pytest.mark.parametrize("page", [*PAGES, "laws.md", "not-modelled.md"])
def test_lines_are_short(page: str) -> None:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > WIDTH] == []


def test_the_index_names_every_page_in_order() -> None:
    text = (DOCS / "laws.md").read_text(encoding="utf-8")
    expected = [f"laws/{room[0]}.md" for rooms in PLACES.values() for room in rooms]
    assert re.findall(r"\((laws/\w+\.md)\)", text) == expected
    assert "not-modelled.md" in text


class TestNotModelled:
    def test_every_refused_key_is_named(self) -> None:
        made = NOT_MODELLED.partition(BEGIN)[2].partition(END)[0]
        assert [row.path for row in NOT_YET if f"`{row.path}`" not in made] == []

    def test_every_item_says_error_and_remedy(self) -> None:
        by_hand = NOT_MODELLED.partition("## Keys that are refused")[0]
        items = re.findall(r"^- \*\*.*?(?=^- |^## |\Z)", by_hand, re.DOTALL | re.MULTILINE)
        assert len(items) > 30
        for item in items:
            words = " ".join(item.split())
            assert "*Error:* " in words, words
            assert "*Instead:* " in words, words

    def test_a_page_without_marks_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="mark"):
            with_refused_keys("# What this does not model\n")


class TestDocstring:
    def test_both_forms_of_an_entry(self) -> None:
        doc = parse(
            """Summary of
            two lines.

            Parameters
            ----------
            a, b : two of
                them (> 0).
            c : array_like
                With a type.

            Returns
            -------
            One.
            """
        )
        assert doc.summary == "Summary of two lines."
        entries = [(entry.names, entry.text) for entry in doc.entries("Parameters")]
        assert entries == [(("a", "b"), "two of\nthem (> 0)."), (("c",), "With a type.")]
        assert doc.sections["Returns"] == "One."

    def test_formulas_become_code_and_sentences_do_not(self) -> None:
        text = "A law.\n\ny = a x\n\nWith the cut::\n\n    z = 1\n\n    w = 2\n\nThe end, f(x) = 1."
        assert markdown(text, plain) == [
            *("A law.", "", "```text", "y = a x", "```", "", "With the cut:", ""),
            *("```text", "z = 1", "", "w = 2", "```", "", "The end, f(x) = 1.", ""),
        ]

    def test_no_line_begins_like_a_list(self) -> None:
        text = " ".join(["x", "- 1 * 2 + 3."] * 200)
        for line in wrapped(text, plain, "-")[1:]:
            assert not re.match(r" *(?:[-+*]|\d+[.)]) ", line), line


@pytest.mark.parametrize(
    ("name", "text", "unit"),
    [
        ("step_s", "", "s"),
        ("gamma_s_per_token", "", "s/token"),
        ("samples_per_s", "", "samples/s"),
        ("ownership_usd_per_gpu_hour", "", "US dollars/(GPU h)"),
        ("usd_per_mtok_in", "", "US dollars/million tokens"),
        ("mtbf_gpu_hours", "", "GPU h"),
        ("rate_limit_per_s", "rollouts/s that others leave", "rollouts/s"),
        ("mean", "tokens, > 0.", "tokens"),
        ("spacing", "Distance of the nodes, in mean lengths.", "mean lengths"),
        ("lengths", "law of the response length L.", ""),
        ("engines", "", ""),
        ("last_ratio", "seconds of a step over those of another", ""),
    ],
)
def test_units_of_names(name: str, text: str, unit: str) -> None:
    assert unit_of(name, text) == unit


def test_checks_are_those_that_call_a_law() -> None:
    found = {check.path: check.tests for check in checks(modules()["decode"])}
    turns = found["tests/physics/test_turns.py"]
    assert "One turn is the law of one turn" in turns
    # These make a DecodeLaw for another law and call none of its functions.
    assert found["tests/physics/test_disaggregation.py"] == ()
    assert "tests/physics/test_lengths.py" not in found
