"""Lengths cut short: min(L, cut), whatever the family of the law."""

from __future__ import annotations

import numpy as np
import pytest

from allocator.physics.length_cut import cut_at
from allocator.physics.length_tables import empirical_from_samples, from_quantiles
from allocator.physics.lengths import Lengths, capped_lognormal_from_mean_cv

LAWS = {
    "log-normal": capped_lognormal_from_mean_cv(300.0, 0.8, 1000.0),
    "log-normal without cap": capped_lognormal_from_mean_cv(300.0, 0.8),
    "sample": empirical_from_samples([50.0, 100.0, 100.0, 300.0, 900.0], cap=1000.0),
    "table": from_quantiles({0.5: 100.0, 0.75: 300.0}, cap=400.0),
    "table with an atom": from_quantiles({0.25: 100.0, 0.5: 100.0, 0.75: 300.0}, cap=400.0),
    "table with a floor": from_quantiles({0.0: 50.0, 0.5: 100.0, 0.9: 100.0, 1.0: 300.0}),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("cut", [20.0, 50.0, 75.0, 100.0, 250.0, 300.0, 399.0, 2000.0])
def test_every_rollout_ends_at_the_cut(name: str, cut: float) -> None:
    law: Lengths = LAWS[name]
    ended = cut_at(law, cut)
    levels = np.linspace(0.0005, 0.9995, 2001)
    np.testing.assert_allclose(ended.quantile(levels), np.minimum(law.quantile(levels), cut))
    for order in (1, 2, 3):
        expected = float(law.limited_moment(order, cut))
        assert float(ended.limited_moment(order, np.inf)) == pytest.approx(expected, rel=1e-9)
    # The atom at the cut: all that would have been at least as long.
    reached = 1.0 - float(law.cdf(np.nextafter(cut, 0.0)))
    if law.cap is None or cut < law.cap:
        assert ended.cap == cut
        assert ended.truncated_fraction == pytest.approx(reached, abs=1e-12)
    else:
        assert (ended.cap, ended.truncated_fraction) == (law.cap, law.truncated_fraction)


def test_a_cut_is_a_positive_number_of_tokens() -> None:
    with pytest.raises(ValueError, match="positive number of tokens"):
        cut_at(LAWS["table"], 0.0)
