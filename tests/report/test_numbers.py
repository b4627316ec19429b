from __future__ import annotations

import doctest
import math

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from allocator.report import numbers
from allocator.report.numbers import (
    apart,
    change,
    enough,
    given,
    money,
    percent,
    points,
    shares_in,
    three,
)


def test_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(numbers).failed == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (math.nan, "n/a"),
        (math.inf, "infinite"),
        (-math.inf, "-infinite"),
        (0.0, "0"),
        (9.996, "10.0"),
        (-0.04567, "-0.0457"),
        (12_345.6, "12,300"),
        (999_999.0, "1.00 M"),
        (3.2e-7, "3.20e-07"),
        (1e30, "1.00e+30"),
    ],
)
def test_three_significant_digits(value: float | None, text: str) -> None:
    assert three(value) == text


@drawn(st.floats(min_value=1e-4, max_value=999_000))
def test_what_is_printed_is_within_half_a_percent(value: float) -> None:
    assert float(three(value).replace(",", "")) == pytest.approx(value, rel=0.00501)


def test_missing_and_infinite_money_carry_no_dollar() -> None:
    assert (money(None), money(math.inf), percent(math.nan)) == ("n/a", "infinite", "n/a")


def test_stated_numbers_gain_no_digits() -> None:
    assert [given(x) for x in (16, 16.0, 0.72, 1e6, 2.5)] == [
        "16",
        "16",
        "0.72",
        "1,000,000",
        "2.5",
    ]


@drawn(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=8))
def test_shares_sum_to_the_whole(amounts: list[float]) -> None:
    shares = shares_in(1000, amounts)
    assert sum(shares) == (1000 if sum(amounts) > 0 else 0)
    assert all(share >= 0 for share in shares)


@drawn(st.floats(min_value=1e-3, max_value=1e6), st.floats(min_value=1e-3, max_value=1e6))
def test_a_printed_relaxation_is_never_too_small(start: float, to: float) -> None:
    text = enough(start, to).replace(",", "")
    if text.endswith("M"):
        return
    assert float(text) >= to * (1 - 1e-8) if to > start else float(text) <= to * (1 + 1e-8)


def test_a_hair_over_the_limit_is_seen() -> None:
    value, limit = apart(4.00004, 4.0)
    assert float(value) > float(limit)


def test_changes_say_same_or_nothing_where_undefined() -> None:
    assert change(2.0, 2.0) == points(0.5, 0.5) == "same"
    assert change(None, 1.0) == points(None, 1.0) == change(0.0, math.inf) == ""
