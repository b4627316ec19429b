"""Laws of response lengths that the tests of lengths and of oversampling share."""

import numpy as np

from allocator.physics.length_tables import empirical_from_samples, from_quantiles
from allocator.physics.lengths import CappedLogNormal, Lengths, capped_lognormal_from_mean_cv

CAP = 27_000.0
QWEN = capped_lognormal_from_mean_cv(12_704, 0.9, CAP)  # a third of the rollouts is truncated
FREE = CappedLogNormal(8.0, 0.7)
TABLE = from_quantiles({0.1: 900, 0.5: 5_000, 0.9: 15_000, 0.97: CAP}, CAP)
SAMPLE = empirical_from_samples(
    np.minimum(np.random.default_rng(5).lognormal(9.3, 0.8, 300).round(), CAP), CAP
)
LAWS: list[Lengths] = [QWEN, capped_lognormal_from_mean_cv(12_704, 0.3, CAP), FREE, TABLE, SAMPLE]
NAMES = ["heavy cap", "light cap", "no cap", "table", "sample"]
