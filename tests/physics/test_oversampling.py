"""Oversampling against simulated groups and streams, its limits, and its identities."""

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from allocator.physics.lengths import (
    Lengths,
    UnreachableLengthsError,
    capped_lognormal_from_mean_cv,
)
from allocator.physics.oversampling import lengths_before_cancelling, oversampling_cut
from tests.physics.laws import CAP, FREE, LAWS, NAMES, QWEN

BY: tuple[Literal["sample", "group"], Literal["sample", "group"]] = ("sample", "group")


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
@pytest.mark.parametrize(("kept", "dispatched"), [(8, 10), (4, 8), (16, 40)])
def test_by_sample_agrees_with_simulated_groups(law: Lengths, kept: int, dispatched: int) -> None:
    groups = np.sort(law.quantile(np.random.default_rng(3).random((60_000, dispatched))), axis=1)
    cut = groups[:, kept - 1 : kept]
    spent = np.minimum(groups, cut)
    got = oversampling_cut(law, dispatched / kept, kept, "sample")

    def agrees(values: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
        error = 5 * float(values.std()) / math.sqrt(values.size)
        assert float(values.mean()) == pytest.approx(float(expected), abs=error, rel=1e-12)

    agrees(cut[:, 0], got.cut_tokens)
    agrees(groups[:, :kept].mean(axis=1), got.kept_mean_tokens)
    agrees((groups[:, :kept] ** 2).mean(axis=1), got.kept_second_moment_tokens2)
    agrees(spent.mean(axis=1), got.dispatched_mean_tokens)
    agrees((spent**2).mean(axis=1), got.dispatched_second_moment_tokens2)
    agrees((spent**3).mean(axis=1), got.dispatched_third_moment_tokens3)


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
@pytest.mark.parametrize(("size", "factor"), [(8, 1.02), (8, 1.25), (4, 2.0)])
def test_by_group_agrees_with_a_simulated_stream(law: Lengths, size: int, factor: float) -> None:
    # Groups ranked by their largest latent rank: the order of finish, ties at the cap at random.
    u = np.random.default_rng(4).random((200_000, size))
    order = np.argsort(u.max(axis=1))
    lengths = law.quantile(u[order])
    kept = lengths[: round(len(u) / factor)]
    cut = float(kept[-1].max())
    spent = np.minimum(lengths, cut)
    got = oversampling_cut(law, factor, size, "group")
    assert float(got.cut_tokens) == pytest.approx(cut, rel=0.02)
    assert float(got.kept_mean_tokens) == pytest.approx(kept.mean(), rel=0.01)
    assert float(got.kept_second_moment_tokens2) == pytest.approx((kept**2).mean(), rel=0.01)
    assert float(got.dispatched_mean_tokens) == pytest.approx(spent.mean(), rel=0.01)
    assert float(got.dispatched_second_moment_tokens2) == pytest.approx((spent**2).mean(), rel=0.01)
    assert float(got.dispatched_third_moment_tokens3) == pytest.approx((spent**3).mean(), rel=0.02)


def test_by_group_conditions_on_the_cut_where_there_is_no_atom() -> None:
    got = oversampling_cut(FREE, 1.5, 8, "group")
    assert FREE.max_cdf(got.cut_tokens, 8) == pytest.approx(1 / 1.5)
    assert got.kept_mean_tokens == pytest.approx(FREE.mean_below(got.cut_tokens))
    assert got.kept_second_moment_tokens2 == pytest.approx(FREE.second_moment_below(got.cut_tokens))
    assert got.tokens_per_kept == pytest.approx(1.5 * FREE.limited_mean(got.cut_tokens))


def test_by_sample_tends_to_the_fixed_cut_for_large_groups() -> None:
    got = oversampling_cut(FREE, 1.25, 100_000, "sample")
    assert got.cut_tokens == pytest.approx(FREE.quantile(0.8), rel=1e-4)
    assert got.kept_mean_tokens == pytest.approx(FREE.mean_below(got.cut_tokens), rel=1e-4)
    assert got.dispatched_mean_tokens == pytest.approx(FREE.limited_mean(got.cut_tokens), rel=1e-4)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("law", LAWS, ids=NAMES)
def test_no_oversampling_keeps_everything_and_is_approached_continuously(
    law: Lengths, by: Literal["sample", "group"]
) -> None:
    got = oversampling_cut(law, [1.0, 1.0 + 1e-9], 8, by)
    assert got.cut_tokens[0] == math.inf
    assert got.cut_tokens[1] < math.inf
    assert got.length_bias == pytest.approx([1, 1], rel=1e-7)
    assert got.kept_second_moment_tokens2 == pytest.approx([law.second_moment] * 2, rel=1e-6)
    assert got.dispatched_mean_tokens == pytest.approx([law.mean] * 2, rel=1e-7)
    assert got.discarded_token_fraction == pytest.approx([0, 0], abs=1e-7)
    assert got.discarded_rollout_fraction == pytest.approx([0, 0], abs=2e-9)


def test_a_cut_at_the_cap_discards_full_length_rollouts() -> None:
    got = oversampling_cut(QWEN, 1.2, 8, "group")  # far more than 1/6 of the groups reach the cap
    assert got.cut_tokens == CAP
    assert got.dispatched_mean_tokens == pytest.approx(QWEN.mean)
    assert 0.9 < got.length_bias < 1
    discarded_mean = (1.2 * QWEN.mean - got.kept_mean_tokens) / 0.2
    assert discarded_mean > QWEN.mean


@pytest.mark.parametrize("by", BY)
def test_oversampling_broadcasts(by: Literal["sample", "group"]) -> None:
    factors, sizes = np.array([1.0, 1.3, 2.0]), np.array([[4], [16]])
    table = oversampling_cut(QWEN, factors, sizes, by)
    assert table.tokens_per_kept.shape == (2, 3)
    one = oversampling_cut(QWEN, 1.3, 16, by)
    assert np.ndim(one.kept_mean_tokens) == 0
    assert table.tokens_per_kept[1, 1] == pytest.approx(float(one.tokens_per_kept))
    assert table.cut_tokens[1, 1] == pytest.approx(float(one.cut_tokens))


@pytest.mark.parametrize(("factor", "size"), [(0.9, 8), (1.5, 0), (math.inf, 8), (math.nan, 8)])
def test_impossible_oversampling_is_refused(factor: float, size: float) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        oversampling_cut(QWEN, factor, size, "sample")


@given(
    law=st.sampled_from(LAWS),
    by=st.sampled_from(BY),
    factor=st.floats(1, 4),
    more=st.floats(1, 2),
    size=st.integers(1, 64),
)
@example(law=FREE, by="group", factor=1.0, more=1.0 + 2**-52, size=4)
@settings(max_examples=120, deadline=None)
def test_oversampling_properties(
    law: Lengths, by: Literal["sample", "group"], factor: float, more: float, size: int
) -> None:
    got = oversampling_cut(law, [factor, factor * more], size, by)
    slack = 1 + 1e-9
    for falling in (got.cut_tokens, got.kept_mean_tokens, got.dispatched_mean_tokens):
        assert falling[1] <= falling[0] * slack
    assert got.tokens_per_kept[0] <= factor * law.mean * slack
    assert np.all(got.kept_mean_tokens <= got.dispatched_mean_tokens * slack)
    assert np.all(got.dispatched_mean_tokens <= law.mean * slack)
    assert np.all((got.length_bias > 0) & (got.length_bias <= slack))
    assert np.all(got.kept_second_moment_tokens2 * slack >= got.kept_mean_tokens**2)
    assert np.all(got.dispatched_second_moment_tokens2 * slack >= got.dispatched_mean_tokens**2)
    assert np.all((got.discarded_token_fraction >= -1e-12) & (got.discarded_token_fraction < 1))
    # Every token is kept or discarded; a cancelled rollout is at least as long as a kept one.
    assert got.discarded_token_fraction == pytest.approx(
        1 - got.length_bias * law.mean / got.tokens_per_kept, abs=1e-12
    )
    assert np.all(got.discarded_token_fraction >= got.discarded_rollout_fraction - 1e-9)


# --- lengths behind those observed ---------------------------------------------------------------


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("cap", [None, 300_000.0])
@pytest.mark.parametrize("cv", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(("factor", "size"), [(1.02, 4), (1.25, 16), (2.5, 16), (4.0, 8)])
def test_lengths_before_cancelling_give_back_the_kept_mean(
    by: Literal["sample", "group"], cap: float | None, cv: float, factor: float, size: int
) -> None:
    law = lengths_before_cancelling(6000.0, cv, cap, oversampling=factor, group_size=size, by=by)
    cut = oversampling_cut(law, factor, size, by)
    assert float(cut.kept_mean_tokens) == pytest.approx(6000.0, rel=1e-9)
    # It is the law of all rollouts: their cv and cap are the stated, and they are longer.
    assert law.mean > 6000.0
    assert math.sqrt(law.second_moment / law.mean**2 - 1.0) == pytest.approx(cv, rel=1e-6)
    assert law.cap == cap


def test_lengths_before_cancelling_agree_with_simulated_groups() -> None:
    """The 16 first of 20 rollouts, drawn from the law behind them, have the mean observed."""
    law = lengths_before_cancelling(
        6000.0, 0.6, 30_000.0, oversampling=1.25, group_size=16, by="sample"
    )
    groups = np.sort(law.quantile(np.random.default_rng(5).random((60_000, 20))), axis=1)
    kept = groups[:, :16].mean(axis=1)
    error = 5 * float(kept.std()) / math.sqrt(kept.size)
    assert float(kept.mean()) == pytest.approx(6000.0, abs=error)


@pytest.mark.parametrize("by", BY)
def test_without_oversampling_all_lengths_are_those_observed(
    by: Literal["sample", "group"],
) -> None:
    before = lengths_before_cancelling(6000.0, 0.6, 30_000.0, oversampling=1.0, group_size=8, by=by)
    plain = capped_lognormal_from_mean_cv(6000.0, 0.6, 30_000.0)
    assert before.mean == pytest.approx(plain.mean, rel=1e-9)
    barely = lengths_before_cancelling(
        6000.0, 0.6, 30_000.0, oversampling=1.0 + 1e-6, group_size=8, by=by
    )
    assert barely.mean == pytest.approx(plain.mean, rel=1e-4)


@pytest.mark.parametrize(("kept", "cv", "cap"), [(12_704.0, 0.6, 27_177.0), (9000.0, 1.0, 20e3)])
def test_a_kept_mean_that_no_lengths_leave_is_refused(kept: float, cv: float, cap: float) -> None:
    """Of 40 rollouts of at most `cap` tokens and this cv, the 16 shortest cannot be so long."""
    most = max(
        float(
            oversampling_cut(
                capped_lognormal_from_mean_cv(share * cap / (1.0 + cv * cv), cv, cap),
                2.5,
                16,
                "sample",
            ).kept_mean_tokens
        )
        for share in np.linspace(0.05, 0.998, 60)
    )
    assert most < kept
    with pytest.raises(UnreachableLengthsError, match="no mean below the cap"):
        lengths_before_cancelling(kept, cv, cap, oversampling=2.5, group_size=16, by="sample")
