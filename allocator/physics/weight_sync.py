"""Weight sync: how long new weights take to reach the engines, and whom they stop."""

from __future__ import annotations

from typing import Any

import numpy as np


def weight_sync_s(weights_bytes: Any, bytes_per_s: Any, fixed_s: Any) -> Any:
    """Seconds of one transfer of the policy to all engines: bytes / effective bandwidth + fixed.

    The effective bandwidth is that of the whole transfer, whatever the number of links
    (measured: 235B in BF16 between 64 + 64 H20 in 58.6 s plain and 23.7 s with a checkpoint
    engine, 8.0 and 19.8 GB/s; verl documentation 2026).

    Examples
    --------
    >>> round(weight_sync_s(470e9, 19.8e9, 0.0), 1)
    23.7
    """
    return weights_bytes / bytes_per_s + fixed_s


def rate_with_pauses(
    free_samples_per_s: Any, trainer_samples_per_s: Any, pause_s: Any, sync_batch: Any
) -> Any:
    """Rate of a generator that stops `pause_s` seconds each time `sync_batch` samples are trained.

    v' = v (1 - pause x trained/sync_batch), with trained = min(v', v_T): a root in closed form,
    continuous where generator and trainer match.

    Parameters
    ----------
    free_samples_per_s : v, accepted samples/s without pauses.
    trainer_samples_per_s : v_T, what the trainer could take.
    sync_batch : samples trained between two syncs (batch x versions per sync).

    Examples
    --------
    >>> rate_with_pauses(2.0, 10.0, 0.0, 512.0)
    np.float64(2.0)
    >>> round(float(rate_with_pauses(2.0, 10.0, 25.6, 512.0)), 4)
    1.8182
    """
    starved = free_samples_per_s / (1.0 + free_samples_per_s * pause_s / sync_batch)
    fed = free_samples_per_s * (1.0 - trainer_samples_per_s * pause_s / sync_batch)
    return np.maximum(starved, fed)
