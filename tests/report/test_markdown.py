from __future__ import annotations

from collections.abc import Callable

import pytest

from allocator.plan import Plan
from allocator.report.markdown import escaped, plan_markdown
from tests.report.plans import broken_plan, good_plan, infeasible_plan, scenario, two_pool_plan


@pytest.mark.parametrize("build", [good_plan, broken_plan, infeasible_plan, two_pool_plan])
def test_tables_have_as_many_cells_in_every_row(build: Callable[[], Plan]) -> None:
    text = plan_markdown(build())
    assert text.endswith("\n")
    for table in text.split("\n\n"):
        rows = [line for line in table.splitlines() if line.startswith("| ")]
        assert len({row.replace(r"\|", "").count("|") for row in rows}) <= 1


def test_markup_in_a_name_stays_text() -> None:
    text = plan_markdown(good_plan(scenario=scenario("a | b\n# c *d* <i>")))
    assert text.startswith(r"## a \| b \# c \*d\* \<i\>")
    assert escaped("[x](y)") == r"\[x\](y)"


def test_it_has_verdict_numbers_and_sources() -> None:
    text = plan_markdown(broken_plan())
    assert "BROKEN: 2 limits" in text
    assert r"| BROKEN | staleness\_mean | 9.21, at most 4 | versions |" in text
    assert "| useful | 54.1% |" in text
    assert "NVIDIA data sheet" in text
