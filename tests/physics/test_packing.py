"""Packing and load imbalance against hand-made cases, bounds, and random batches."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.physics.length_tables import empirical_from_samples, from_quantiles
from allocator.physics.lengths import (
    CappedLogNormal,
    Lengths,
    capped_lognormal_from_mean_cv,
)
from allocator.physics.packing import imbalance, lpt_makespan

CAP = 27_000.0
LAWS: dict[str, Lengths] = {
    "cv .3": capped_lognormal_from_mean_cv(12_704, 0.3, CAP),
    "cv .9, a third truncated": capped_lognormal_from_mean_cv(12_704, 0.9, CAP),
    "cv .9, no cap": capped_lognormal_from_mean_cv(12_704, 0.9),
    "cv 1.5, far cap": capped_lognormal_from_mean_cv(4_000, 1.5, 64_000),
    "table": from_quantiles({0.1: 900, 0.5: 5_000, 0.9: 15_000, 0.97: CAP}, CAP),
    "sample": empirical_from_samples(np.random.default_rng(1).lognormal(8, 0.8, 500)),
}


def simulated(law: Lengths, constant: float, samples: int, ranks: int) -> tuple[float, float]:
    """Mean LPT makespan x ranks / expected total over random batches, and its standard error."""
    generator = np.random.default_rng(29)
    batches = law.quantile(generator.random((max(400, 40_000 // samples), samples))) + constant
    spans = np.array([lpt_makespan(batch, ranks) for batch in batches])
    total = samples * (constant + law.mean)
    # The makespan moves with the longest sample and the total, whose means are known.
    longest = constant + float(law.tailness(samples)) * law.mean
    known = np.stack([batches.sum(axis=1) - total, batches.max(axis=1) - longest], axis=1)
    known = known[:, known.std(axis=0) > 1e-9 * law.mean]
    design = np.concatenate([known, np.ones((len(spans), 1))], axis=1)
    slopes = np.linalg.lstsq(design, spans, rcond=None)[0][:-1]
    adjusted = spans - known @ slopes
    scale = ranks / total
    return float(adjusted.mean()) * scale, float(adjusted.std()) / math.sqrt(len(spans)) * scale


def test_makespans_by_hand() -> None:
    assert lpt_makespan([7, 6, 5, 4, 3], 2) == 14  # 7 + 4 + 3, 6 + 5
    assert lpt_makespan([3, 3, 2, 2, 2], 2) == 7  # the optimum is 6
    assert lpt_makespan([5, 1, 1], 8) == 5
    assert lpt_makespan([1, 2, 3], 1) == 6


@pytest.mark.parametrize(("loads", "ranks"), [([], 2), ([1.0], 0)])
def test_packing_nothing_is_refused(loads: list[float], ranks: int) -> None:
    with pytest.raises(ValueError, match="needs a load and a rank"):
        lpt_makespan(loads, ranks)


@given(loads=st.lists(st.floats(0, 1e5), min_size=1, max_size=7), ranks=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_makespan_is_within_grahams_bound_of_the_best(loads: list[float], ranks: int) -> None:
    span = lpt_makespan(loads, ranks)
    places = np.array(list(product(range(ranks), repeat=len(loads))))
    per_rank = [(places == rank) @ np.array(loads) for rank in range(ranks)]
    best = float(np.max(per_rank, axis=0).min())
    assert best * (1 - 1e-9) <= span <= best * (4 / 3 - 1 / (3 * ranks)) * (1 + 1e-9)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("per_rank", [2, 3, 4, 16])
@pytest.mark.parametrize("ranks", [4, 32])
def test_random_batches_agree_within_two_percent(name: str, per_rank: int, ranks: int) -> None:
    law = LAWS[name]
    expected, error = simulated(law, 0.0, per_rank * ranks, ranks)
    got = float(imbalance(law, 0.0, per_rank * ranks, ranks))
    assert got == pytest.approx(expected, abs=0.02 * expected + 3 * error)


def test_a_prompt_levels_the_ranks() -> None:
    law = LAWS["cv .9, a third truncated"]
    for samples, ranks in [(16, 8), (96, 32)]:
        expected, error = simulated(law, 5_000.0, samples, ranks)
        got = float(imbalance(law, 5_000.0, samples, ranks))
        assert got == pytest.approx(expected, abs=0.02 * expected + 3 * error)
        assert got < imbalance(law, 0.0, samples, ranks)


@pytest.mark.parametrize("name", LAWS)
def test_idle_ranks_wait_for_the_longest_sample(name: str) -> None:
    law = LAWS[name]
    for samples, ranks in [(8, 8), (8, 32), (1, 4)]:
        expected = ranks * (100 + float(law.tailness(samples)) * law.mean)
        expected /= samples * (100 + law.mean)
        assert imbalance(law, 100.0, samples, ranks) == pytest.approx(expected)


def test_equal_samples_pack_into_whole_numbers() -> None:
    law = CappedLogNormal(math.log(1_000), 0.0)
    assert imbalance(law, 0.0, [64, 65, 12], [8, 8, 8]) == pytest.approx(
        [1, 9 * 8 / 65, 2 * 8 / 12]
    )


def test_arrays_broadcast_and_scatter() -> None:
    law = LAWS["cv .3"]
    samples, ranks = np.array([64, 128, 64])[:, None], np.array([8, 16, 8, 1])
    table = imbalance(law, 500.0, samples, ranks)
    assert table.shape == (3, 4)
    for row, column in np.ndindex(3, 4):
        one = imbalance(law, 500.0, int(samples[row, 0]), int(ranks[column]))
        assert np.ndim(one) == 0
        assert table[row, column] == one
    assert table[:, 3] == pytest.approx([1, 1, 1])


@given(
    name=st.sampled_from(sorted(LAWS)),
    samples=st.integers(1, 200),
    ranks=st.integers(1, 200),
    constant=st.floats(0, 20_000),
)
@settings(max_examples=40, deadline=None)
def test_more_ranks_never_slow_a_step_down(
    name: str, samples: int, ranks: int, constant: float
) -> None:
    pair = imbalance(LAWS[name], constant, samples, [ranks, ranks + 1])
    assert np.all(pair >= 1)
    # Step time goes with imbalance / ranks; packing anomalies and the finite number of batches
    # leave a little.
    assert pair[1] / (ranks + 1) <= pair[0] / ranks * 1.002
    longest = constant + float(LAWS[name].tailness(samples)) * LAWS[name].mean
    assert pair[0] >= ranks * longest / (samples * (constant + LAWS[name].mean)) * 0.98


@pytest.mark.parametrize(
    ("constant", "samples", "ranks"), [(0, 0, 4), (0, 8, 0), (0, 8.5, 4), (0, 8, 2.5), (-1, 8, 4)]
)
def test_impossible_batches_are_refused(constant: float, samples: float, ranks: float) -> None:
    with pytest.raises(ValueError, match="whole samples and ranks"):
        imbalance(LAWS["cv .3"], constant, samples, ranks)
