"""Places in use where whole groups start."""

from typing import Any

import pytest

from allocator.physics.group_starts import group_places
from allocator.physics.lengths import capped_lognormal_from_mean_cv
from allocator.simulator import simulate
from tests.simulator.lines import line

EVEN = capped_lognormal_from_mean_cv(1000.0, 0.0)


@pytest.mark.parametrize(("places", "full"), [(8, 8), (9, 8), (15, 8), (16, 16), (29, 24)])
def test_groups_of_equal_rollouts_leave_what_no_whole_group_fills(places: int, full: int) -> None:
    assert float(group_places(EVEN, places, 8, 1.0, "group", 0.0)) == pytest.approx(full)


def test_a_constant_stay_is_like_equal_lengths() -> None:
    uneven = capped_lognormal_from_mean_cv(1000.0, 1.0, 12000.0)
    assert float(group_places(uneven, 12, 8, 1.0, "group", 1.0)) == pytest.approx(8.0)


def test_of_many_groups_half_a_group_is_empty() -> None:
    uneven = capped_lognormal_from_mean_cv(1000.0, 0.8, 12000.0)
    few = float(group_places(uneven, 31, 8, 1.0, "group", 0.0))
    assert few == pytest.approx(31 - 3.5, rel=0.01)
    assert float(group_places(uneven, 32, 8, 1.0, "group", 0.0)) == 32 - 3.5


def test_single_rollouts_fill_all_places() -> None:
    assert float(group_places(EVEN, 5, 1, 1.0, "group", 0.0)) == 5.0


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("cv", [0.3, 0.8, 1.5])
@pytest.mark.parametrize("places", [12, 16, 20, 30])
def test_against_simulation(cv: float, places: int, factor: float) -> None:
    cancels = {"groups": {"oversampling": factor, "by": "sample"}}
    parts: dict[str, Any] = cancels if factor > 1.0 else {}
    simulated = line(cv=cv, slots=places, size=8, per_batch=4, train_s=1e-3, **parts)
    seen = simulate(simulated, 400, seed=3).in_flight.mean
    law = group_places(simulated.rollouts.lengths, places, 8, factor, "sample", 0.0)
    assert float(law) == pytest.approx(seen, rel=0.06 if factor == 1.0 else 0.09)
