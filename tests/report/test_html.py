from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from allocator.plan import Plan, PlanWarning
from allocator.report.html import plan_html
from tests.report.plans import (
    broken_plan,
    good_plan,
    infeasible_plan,
    scenario,
    two_pool_plan,
    warning_rich_plan,
)

VOID = {"br", "img", "meta", "link", "input", "hr"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


@pytest.mark.parametrize(
    "build", [good_plan, broken_plan, infeasible_plan, two_pool_plan, warning_rich_plan]
)
def test_it_is_a_balanced_self_contained_fragment(build: Callable[[], Plan]) -> None:
    page = plan_html(build())
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    assert not re.search(r"<script|<link|<img|src=|href=|@import|url\(", page)
    assert "prefers-color-scheme:dark" in page
    assert "max-width:640px" in page


def test_names_and_warnings_are_escaped() -> None:
    evil = "<script>alert('x')</script>"
    plan = good_plan(
        scenario=scenario(evil), warnings=(PlanWarning("code<b>", f"{evil} & more", 'a"b'),)
    )
    page = plan_html(plan)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "code&lt;b&gt;" in page


def test_it_says_what_the_terminal_says_and_more() -> None:
    parser = Balanced()
    parser.feed(plan_html(good_plan()))
    text = " ".join(" ".join(parser.text).split())
    for part in ("29.8% of the time", "oversampled 24.6%", "mean 3.82", "published peak 0.72",
                 "NVIDIA data sheet", "budget_usd", "no oversampling"):  # fmt: skip
        assert part in text


def test_a_notebook_shows_it() -> None:
    assert good_plan()._repr_html_() == plan_html(good_plan())
