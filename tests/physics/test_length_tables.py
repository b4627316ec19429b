"""Samples and quantile tables against enumeration and quadrature."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import special
from scipy.integrate import quad

from allocator.physics.length_tables import (
    Empirical,
    QuantileTable,
    empirical_from_samples,
    from_quantiles,
)
from allocator.physics.lengths import UnreachableLengthsError
from allocator.physics.moments import ORDERS
from tests.physics.laws import SAMPLE, TABLE


def test_a_small_sample_agrees_with_enumeration() -> None:
    values = (2.0, 3.0, 3.0, 10.0)
    law = Empirical(values, 10.0)
    triples = np.sort(np.array(list(product(values, repeat=3))), axis=1)
    for k in (1, 2, 3):
        expected = [(triples[:, k - 1] ** order).mean() for order in ORDERS]
        assert law.order_statistic_moments(k, 3) == pytest.approx(expected)
        expected = [(triples[:, :k] ** order).mean() for order in ORDERS]
        assert law.first_finished_moments(k, 3) == pytest.approx(expected)
    assert law.quantile([0, 0.25, 0.26, 0.75, 0.76, 1]).tolist() == [2, 2, 3, 3, 10, 10]
    assert law.cdf([-1, 1.9, 2, 3, 9.9, 10, 11]).tolist() == [0, 0, 0.25, 0.75, 0.75, 1, 1]
    assert law.limited_mean([1, 2.5, 5, math.inf]).tolist() == [1, 2.375, 3.25, 4.5]
    assert law.mean_below([3, 9.9, 10]) == pytest.approx([8 / 3, 8 / 3, 4.5])
    assert np.isnan(law.mean_below(1.0))
    assert law.truncated_fraction == 0.25


def test_a_table_is_exact_piece_by_piece() -> None:
    law = from_quantiles({0.5: 100, 0.75: 300}, 400)
    assert law == QuantileTable((0.0, 0.5, 0.75, 1.0), (0.0, 100.0, 300.0, 400.0), 400)
    assert law.mean == pytest.approx(0.5 * 50 + 0.25 * 200 + 0.25 * 350)
    assert law.cdf([50, 100, 200, 399, 400]) == pytest.approx([0.25, 0.5, 0.625, 0.9975, 1])
    assert law.truncated_fraction == 0

    check_against_quadrature(law, [0.5, 0.75])


def test_a_steep_narrow_piece_does_not_cancel() -> None:
    law = from_quantiles({0.5: 4_000, 0.9: 9_000, 0.999: 20_000, 0.99999: 30_000}, 60_000)
    check_against_quadrature(law, [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999])


def check_against_quadrature(law: QuantileTable, points: list[float]) -> None:
    def integrand(u: float, order: int, a: float, b: float) -> float:
        weight = math.pow(u, a - 1) * math.pow(1 - u, b - 1) / float(special.beta(a, b))
        return math.pow(float(law.quantile(u)), order) * weight

    def expected(order: int, a: float, b: float) -> float:
        parts = (
            quad(integrand, p, q, args=(order, a, b), epsabs=0, epsrel=1e-12)[0]
            for p, q in pairwise([0.0, *points, 1.0])
        )
        return math.fsum(parts)

    for k, n in [(1.0, 1.0), (3.0, 4.0), (8.0, 10.4), (40.0, 40.0)]:
        moments = [expected(order, k, n - k + 1) for order in ORDERS]
        assert law.order_statistic_moments(k, n) == pytest.approx(moments, rel=1e-9)


def test_a_table_may_state_both_ends() -> None:
    law = from_quantiles({0.0: 10, 1.0: 30})
    assert law.mean == pytest.approx(20)
    assert law.quantile(1) == 30
    assert law.cap is None


def test_a_flat_end_at_the_cap_is_an_atom() -> None:
    assert TABLE.truncated_fraction == pytest.approx(0.03)
    assert SAMPLE.truncated_fraction == pytest.approx(37 / 300)


def test_broken_tables_and_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="need a cap"):
        from_quantiles({0.5: 100})
    with pytest.raises(ValueError, match="between 0 and 1"):
        from_quantiles({50: 100}, 200)
    with pytest.raises(ValueError, match="increasing order"):
        from_quantiles({0.5: 100, 0.9: 50}, 200)
    with pytest.raises(UnreachableLengthsError, match="above the cap"):
        empirical_from_samples([1, 2, 300], 200)
    with pytest.raises(ValueError, match="at least one"):
        empirical_from_samples([])
    with pytest.raises(ValueError, match="negative"):
        empirical_from_samples([-1, 2])
    with pytest.raises(ValueError, match="increasing order"):
        Empirical((3.0, 2.0))
    with pytest.raises(ValueError, match="from 0 to 1"):
        QuantileTable((0.1, 1.0), (1.0, 2.0))
    with pytest.raises(ValueError, match="strictly increasing"):
        QuantileTable((0.0, 0.5, 0.5, 1.0), (1.0, 2.0, 3.0, 4.0))
