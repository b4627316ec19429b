"""The share of groups with a learning signal: hand-made cases, limits, sampling."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.physics.signal import SolveRate, signal_fraction

SHARES = st.floats(0, 1)
PARAMETERS = st.floats(0.05, 200)


def test_a_uniform_solve_rate_by_hand() -> None:
    # int p^S + (1 - p)^S dp = 2 / (S + 1)
    sizes = np.array([1, 2, 4, 8, 63])
    assert signal_fraction(SolveRate(), sizes) == pytest.approx((sizes - 1) / (sizes + 1))


def test_beta_2_3_with_groups_of_2_by_hand() -> None:
    # 1 - E[p^2] - E[(1 - p)^2] = 2 E[p (1 - p)] = 2 (2 x 3) / (5 x 6)
    assert signal_fraction(SolveRate(alpha=2, beta=3), 2) == pytest.approx(0.4)


def test_always_solved_prompts_bound_the_signal() -> None:
    rate = SolveRate(always=0.55)
    fractions = signal_fraction(rate, [2, 8, 64, 10**6])
    assert np.all(fractions <= 0.45)
    assert fractions[-1] == pytest.approx(0.45, abs=1e-5)


def test_a_group_of_one_never_carries_signal() -> None:
    for rate in (SolveRate(), SolveRate(0.2, 0.3, 0.7, 5), SolveRate(alpha=1e8, beta=3e8)):
        assert signal_fraction(rate, 1) == 0


@pytest.mark.parametrize("p", [0.03, 0.5, 0.8])
def test_a_fixed_solve_rate_is_the_limit_of_a_narrow_beta(p: float) -> None:
    size = np.array([2, 8, 32])
    narrow = SolveRate(alpha=1e8 * p, beta=1e8 * (1 - p))
    assert signal_fraction(narrow, size) == pytest.approx(1 - p**size - (1 - p) ** size, abs=1e-6)


@pytest.mark.parametrize("rate", [SolveRate(0.2, 0.1, 0.5, 2.0), SolveRate(0.0, 0.4, 6.0, 3.0)])
@pytest.mark.parametrize("size", [2, 8, 16])
def test_simulated_groups_agree(rate: SolveRate, size: int) -> None:
    draws = 400_000
    generator = np.random.default_rng(size)
    p = generator.beta(rate.alpha, rate.beta, draws)
    kind = generator.random(draws)
    p = np.where(kind < rate.always, 1.0, np.where(kind > 1 - rate.never, 0.0, p))
    solved = generator.binomial(size, p)
    share = float(np.mean((solved > 0) & (solved < size)))
    assert float(signal_fraction(rate, size)) == pytest.approx(
        share, abs=5 * 0.5 / math.sqrt(draws)
    )
    assert rate.mean == pytest.approx(float(p.mean()), abs=5 * 0.5 / math.sqrt(draws))


def test_no_solve_rate_means_that_every_group_counts() -> None:
    assert signal_fraction(None, 8) == 1
    assert signal_fraction(None, [[1, 2], [4, 8]]).tolist() == [[1, 1], [1, 1]]


def test_group_sizes_broadcast() -> None:
    sizes = np.array([[2, 4, 8], [16, 32, 64]])
    table = signal_fraction(SolveRate(0.1, 0.2, 0.4, 0.9), sizes)
    assert table.shape == (2, 3)
    assert table[1, 0] == signal_fraction(SolveRate(0.1, 0.2, 0.4, 0.9), 16)


@given(always=SHARES, part=SHARES, alpha=PARAMETERS, beta=PARAMETERS, size=st.floats(1, 1e4))
def test_the_signal_lies_below_the_mixed_share_and_rises_with_the_group(
    always: float, part: float, alpha: float, beta: float, size: float
) -> None:
    rate = SolveRate(always, (1 - always) * part, alpha, beta)
    small, large = signal_fraction(rate, [size, 2 * size])
    assert 0 <= small <= large + 1e-12
    assert large <= rate.mixed + 1e-12
    assert rate.always <= rate.mean + 1e-12
    mirrored = SolveRate(rate.never, rate.always, beta, alpha)
    assert signal_fraction(mirrored, size) == pytest.approx(float(small), abs=1e-9)


@pytest.mark.parametrize(
    ("always", "never", "alpha", "beta"),
    [(0.6, 0.5, 1, 1), (-0.1, 0, 1, 1), (0, 0, 0, 1), (0, 0, 1, math.inf), (math.nan, 0, 1, 1)],
)
def test_impossible_solve_rates_are_refused(
    always: float, never: float, alpha: float, beta: float
) -> None:
    with pytest.raises(ValueError, match="must be"):
        SolveRate(always, never, alpha, beta)


def test_a_group_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        signal_fraction(SolveRate(), [8, 0])
