"""Response-length laws against quadrature, sampling, and their own identities."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special
from scipy.integrate import quad

from allocator.physics.lengths import (
    CappedLogNormal,
    Lengths,
    UnreachableLengthsError,
    capped_lognormal_from_mean_cv,
    capped_lognormal_from_p50_p99,
)
from allocator.physics.moments import ORDERS
from tests.physics.laws import CAP, FREE, LAWS, NAMES, QWEN


def expectation(law: CappedLogNormal, order: int, a: float, b: float) -> float:
    """E[Q(U)^order], U ~ Beta(a, b), by adaptive quadrature on the normal scale."""
    cap = math.inf if law.cap is None else law.cap
    kink = math.inf if law.sigma == 0 else (math.log(cap) - law.mu) / law.sigma

    def integrand(z: float) -> float:
        tokens = order * min(law.mu + law.sigma * z, math.log(cap))
        density = (a - 1) * special.log_ndtr(z) + (b - 1) * special.log_ndtr(-z) - z * z / 2
        constant = special.betaln(a, b) + math.log(2 * math.pi) / 2
        return math.exp(tokens + float(density) - float(constant))

    edges = sorted({*np.arange(-12.0, 17.0, 0.5).tolist(), *([kink] if abs(kink) < 12 else [])})
    parts = (quad(integrand, x, y, epsabs=0, epsrel=1e-13)[0] for x, y in pairwise(edges))
    return math.fsum(parts)


# --- parameters from what is observed ---------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "cv", "cap"),
    [
        (12_704, 0.9, 27_000),
        (12_704, 0.8, 27_000),
        (12_704, 0.01, 27_000),
        (12_704, 1.06, 27_000),
        (26_990, 0.01, 27_000),
        (100, 16.3, 27_000),
        (4_000, 0.9, None),
    ],
)
def test_observed_mean_and_cv_come_back(mean: float, cv: float, cap: float | None) -> None:
    law = capped_lognormal_from_mean_cv(mean, cv, cap)
    assert law.mean == pytest.approx(mean, rel=1e-12)
    assert law.cv == pytest.approx(cv, rel=1e-9)


@given(share=st.floats(0.02, 0.98), of_bound=st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_every_cv_below_the_bound_is_reached(share: float, of_bound: float) -> None:
    cv = of_bound * math.sqrt(1 / share - 1)
    law = capped_lognormal_from_mean_cv(share * CAP, cv, CAP)
    assert law.mean == pytest.approx(share * CAP, rel=1e-9)
    assert law.cv == pytest.approx(cv, rel=1e-9)


def test_uncapped_parameters_are_the_textbook_ones() -> None:
    law = capped_lognormal_from_mean_cv(1_000, 1.0)
    assert law.sigma**2 == pytest.approx(math.log(2))
    assert law.mu == pytest.approx(math.log(1_000) - math.log(2) / 2)


@pytest.mark.parametrize("cap", [None, 1_024, 2_000])
def test_cv_zero_is_a_constant_length(cap: float | None) -> None:
    law = capped_lognormal_from_mean_cv(1_024, 0, cap)
    assert law.mean == pytest.approx(1_024)
    assert law.cv == pytest.approx(0, abs=1e-7)
    assert law.cdf([1_023, 1_024, 1_025]).tolist() == [0, 1, 1]
    assert law.quantile([0, 0.5, 1]) == pytest.approx([1_024] * 3)
    assert law.tailness(64) == pytest.approx(1)
    assert np.isnan(law.mean_below(1_000))
    assert law.mean_below(1_024) == pytest.approx(1_024)
    assert law.truncated_fraction == (1.0 if cap == 1_024 else 0.0)


@pytest.mark.parametrize(
    ("mean", "cv", "bound"),
    [
        (27_000, 0.1, "27000"),
        (30_000, 0, "27000"),
        (12_704, 1.061, "1.06081"),
        (100, 17, "16.4012"),
    ],
)
def test_unreachable_figures_name_the_bound(mean: float, cv: float, bound: str) -> None:
    with pytest.raises(UnreachableLengthsError, match=bound):
        capped_lognormal_from_mean_cv(mean, cv, CAP)


@pytest.mark.parametrize(
    ("mean", "cv", "cap"),
    [(0, 1, None), (math.inf, 1, None), (10, -1, None), (10, 1, -5), (10, 1, 0)],
)
def test_figures_out_of_range_are_refused(mean: float, cv: float, cap: float | None) -> None:
    with pytest.raises(ValueError, match="must be"):
        capped_lognormal_from_mean_cv(mean, cv, cap)


def test_a_negative_sigma_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        CappedLogNormal(1.0, -1.0)


def test_p50_and_p99_come_back() -> None:
    law = capped_lognormal_from_p50_p99(4_000, 20_000, CAP)
    assert law.quantile([0.5, 0.99]) == pytest.approx([4_000, 20_000])


@pytest.mark.parametrize(("p50", "p99"), [(4_000, CAP), (4_000, 30_000), (5_000, 5_000), (0, 10)])
def test_p99_at_the_cap_does_not_identify_the_spread(p50: float, p99: float) -> None:
    with pytest.raises(UnreachableLengthsError, match="does not identify"):
        capped_lognormal_from_p50_p99(p50, p99, CAP)


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
def test_laws_agree_with_two_million_draws(law: Lengths) -> None:
    draws = law.quantile(np.random.default_rng(7).random(2_000_000))

    def agrees(values: NDArray[np.float64], expected: float) -> None:
        # Five standard errors, and ten events where an indicator is too rare for its own spread.
        error = 5 * float(values.std()) / math.sqrt(values.size) + 10 / values.size
        assert float(values.mean()) == pytest.approx(expected, abs=error, rel=1e-12)

    agrees(draws, law.mean)
    agrees(draws**2, law.second_moment)
    agrees((draws == law.cap).astype(float), law.truncated_fraction)
    for cut in (1_500.0, 6_000.0, 20_000.0, CAP):
        agrees((draws <= cut).astype(float), float(law.cdf(cut)))
        agrees(np.minimum(draws, cut), float(law.limited_mean(cut)))
        agrees(np.minimum(draws, cut) ** 2, float(law.limited_second_moment(cut)))
        agrees(np.minimum(draws, cut) ** 3, float(law.limited_moment(3, cut)))
        if np.count_nonzero(draws <= cut) > 1_000:
            agrees(draws[draws <= cut], float(law.mean_below(cut)))
            agrees(draws[draws <= cut] ** 2, float(law.second_moment_below(cut)))
    groups = np.sort(draws.reshape(-1, 8), axis=1)
    agrees(groups[:, 7], float(law.tailness(8)) * law.mean)
    agrees(groups[:, 2], float(law.expected_order_statistic(3, 8)))
    agrees((groups[:, 7] <= 9_000).astype(float), float(law.max_cdf(9_000, 8)))
    agrees((groups[:, :5] ** 2).mean(axis=1), float(law.first_finished_moments(5, 8)[1]))


@pytest.mark.parametrize("law", [QWEN, FREE, CappedLogNormal(9.0, 0.05, CAP)])
@pytest.mark.parametrize("cut", [10.0, 3_000.0, 26_999.0])
def test_lognormal_moments_agree_with_quadrature(law: CappedLogNormal, cut: float) -> None:
    def density(x: float) -> float:
        z = (math.log(x) - law.mu) / law.sigma
        return math.exp(-z * z / 2) / (x * law.sigma * math.sqrt(2 * math.pi))

    scores = np.arange(-36.0, 12.0)
    edges = [*(x for x in np.exp(law.mu + law.sigma * scores).tolist() if x < cut), cut]

    def below(order: int) -> float:
        pieces = (
            quad(lambda x: x**order * density(x), p, q, epsabs=0, epsrel=1e-12)[0]
            for p, q in pairwise(edges)
        )
        return math.fsum(pieces)

    mass = below(0)
    for order in ORDERS:
        limited = below(order) + cut**order * (1 - mass)
        assert law.limited_moment(order, cut) == pytest.approx(limited, rel=1e-10)
        if mass > 1e-200:
            expected = below(order) / mass
            assert law.moment_below(order, cut) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "law",
    [
        QWEN,
        FREE,
        CappedLogNormal(8.0, 2.0),
        CappedLogNormal(8.0, 0.05),
        CappedLogNormal(9.0, 1.0, CAP),
    ],
)
@pytest.mark.parametrize(
    ("k", "n"), [(1, 1), (8, 8), (8, 10.4), (64, 80), (64, 512), (8_192, 8_192), (1.5, 2.5)]
)
def test_order_statistics_agree_with_quadrature(law: CappedLogNormal, k: float, n: float) -> None:
    expected = [expectation(law, order, k, n - k + 1) for order in ORDERS]
    assert law.order_statistic_moments(k, n) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
@pytest.mark.parametrize(("kept", "dispatched"), [(8, 8), (8, 10), (1, 3), (16, 40), (64, 80)])
def test_the_first_finished_are_the_mean_of_their_order_statistics(
    law: Lengths, kept: int, dispatched: int
) -> None:
    each = law.order_statistic_moments(np.arange(1, kept + 1), dispatched)
    together = law.first_finished_moments(kept, dispatched)
    assert together == pytest.approx(each.mean(axis=1), rel=1e-10)


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
def test_order_statistics_add_up_to_the_moments(law: Lengths) -> None:
    moments = [law.mean, law.second_moment, float(law.limited_moment(3, math.inf))]
    each = law.order_statistic_moments(np.arange(1, 12), 11)
    assert each.mean(axis=1) == pytest.approx(moments, rel=1e-11)


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
def test_quantile_inverts_cdf(law: Lengths) -> None:
    p = np.linspace(0.001, 0.999, 997)
    x = law.quantile(p)
    assert np.all(law.cdf(x * (1 + 1e-12)) >= p - 1e-12)
    assert np.all(law.cdf(x * (1 - 1e-9)) <= p + 1e-9)
    assert law.survival(x) + law.cdf(x) == pytest.approx(np.ones_like(p))


def test_the_cap_is_an_atom() -> None:
    assert QWEN.quantile(1) == CAP
    assert QWEN.cdf(CAP) == 1
    assert 1 - QWEN.cdf(CAP * (1 - 1e-12)) == pytest.approx(QWEN.truncated_fraction)
    assert QWEN.truncated_fraction == pytest.approx(0.3290, abs=1e-4)
    assert QWEN.mean_below(CAP) == pytest.approx(QWEN.mean)
    assert QWEN.mean_below(CAP - 1) < 0.5 * QWEN.mean
    assert FREE.truncated_fraction == 0


def test_quantile_one_without_a_cap_is_an_error() -> None:
    with pytest.raises(ValueError, match="no cap"):
        FREE.quantile([0.5, 1.0])
    with pytest.raises(ValueError, match="between 0 and 1"):
        QWEN.quantile(1.5)


@pytest.mark.parametrize(("k", "n"), [(0.5, 3), (4, 3), (1, math.inf)])
def test_ranks_out_of_range_are_refused(k: float, n: float) -> None:
    for law in LAWS:
        with pytest.raises(ValueError, match="1 <= k <= n"):
            law.expected_order_statistic(k, n)


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
def test_methods_broadcast(law: Lengths) -> None:
    cuts = np.array([[100.0, 5_000.0, math.inf], [1.0, 26_000.0, CAP]])
    assert law.limited_mean(cuts).shape == (2, 3)
    assert law.limited_mean(cuts)[0, 2] == pytest.approx(law.mean)
    for index in np.ndindex(2, 3):
        assert law.limited_second_moment(cuts)[index] == law.limited_second_moment(cuts[index])
    ranks, counts = np.array([1.0, 4.0])[:, None], np.array([4.0, 9.0, 20.0])
    table = law.expected_order_statistic(ranks, counts)
    assert table.shape == (2, 3)
    assert table[1, 2] == pytest.approx(float(law.expected_order_statistic(4, 20)), rel=1e-13)
    scalars: list[object] = [law.tailness(4), law.cdf(10.0), law.quantile(0.3), law.survival(9.0)]
    scalars += [law.limited_mean(10.0), law.mean_below(3_000.0), law.max_cdf(3_000.0, 4)]
    assert all(isinstance(value, float) for value in scalars)


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
def test_laws_are_hashable_and_equal_by_value(law: Lengths) -> None:
    assert hash(law) == hash(law)
    assert len({law, law}) == 1


@given(n=st.floats(1, 5_000), more=st.floats(1, 4), law=st.sampled_from(LAWS))
@settings(max_examples=80, deadline=None)
def test_the_expected_maximum_rises_with_n(n: float, more: float, law: Lengths) -> None:
    small, large = (float(law.tailness(x)) for x in (n, n * more))
    assert 1 - 1e-12 <= small <= large * (1 + 1e-12)
    if law.cap is not None:
        assert large * law.mean <= law.cap * (1 + 1e-12)


@given(cut=st.floats(1, 60_000), more=st.floats(1, 3), law=st.sampled_from(LAWS))
@settings(max_examples=80, deadline=None)
def test_limited_moments_are_monotone_and_ordered(cut: float, more: float, law: Lengths) -> None:
    first, second = float(law.limited_mean(cut)), float(law.limited_second_moment(cut))
    assert first <= float(law.limited_mean(cut * more)) * (1 + 1e-12)
    assert first <= min(cut, law.mean) * (1 + 1e-12)
    assert first**2 <= second * (1 + 1e-12)
    below = float(law.mean_below(cut))
    assert math.isnan(below) or below <= min(cut, law.mean) * (1 + 1e-12)
