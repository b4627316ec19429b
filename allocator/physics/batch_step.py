"""The step of the modes that generate a batch as a whole, and how stale its samples are.

In turn (`disaggregated_sync`, `colocated_sync`) a batch is generated, scored and trained on before
the next begins. Overlapped (`one_step_off`), the next batch is generated while this one is trained
on, and both sides meet for the weight sync.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr


def step_in_turn_s(generation_s: Any, train_s: Any, sync_s: Any, switch_s: Any = 0.0) -> Any:
    """Seconds of a step whose parts follow each other: generation + train + sync + switch.

    Parameters
    ----------
    generation_s : until the batch is generated and scored.
    train_s : of the optimiser batch.
    sync_s : weight transfer a step; blocking, since generation needs the new weights.
    switch_s : offload and reload where one set of GPUs does both (0 with two sets).

    Examples
    --------
    >>> step_in_turn_s(100.0, 60.0, 2.0, 8.0)
    170.0
    """
    return generation_s + train_s + sync_s + switch_s


def step_overlapped_s(
    generation_s: Any, train_s: Any, sync_s: Any, generation_sd_s: Any = 0.0, train_sd_s: Any = 0.0
) -> Any:
    """Seconds of a step in which the next batch is generated meanwhile: E[max] + sync.

    Each step waits for the later of the two, which on average is later than either: with both
    normal and independent, s^2 = sd_g^2 + sd_t^2 and z = (g - t)/s,

        E[max] = t + (g - t) Phi(z) + s phi(z)              (Clark 1961)

    Parameters
    ----------
    generation_s, train_s : means, s.
    sync_s : weight transfer a step, s.
    generation_sd_s, train_sd_s : standard deviations of both over the batches (>= 0), s.

    Examples
    --------
    >>> float(step_overlapped_s(100.0, 60.0, 2.0))
    102.0
    >>> round(float(step_overlapped_s(100.0, 100.0, 2.0, 8.0, 6.0)), 2)
    105.99
    """
    ahead = np.asarray(generation_s, dtype=float) - train_s
    spread = np.hypot(generation_sd_s, train_sd_s)
    z = np.clip(ahead / np.where(spread > 0.0, spread, 1.0), -40.0, 40.0)
    uncertain = ahead * ndtr(z) + spread * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    gained = np.where(spread > 0.0, uncertain, np.maximum(ahead, 0.0))
    return train_s + np.maximum(gained, np.maximum(ahead, 0.0)) + sync_s


def batch_staleness_mean(
    lag_batches: Any, optimizer_steps: Any, sync_every: Any, resumed_batches: Any = 0.0
) -> Any:
    """Mean staleness in weight versions: (lag + resumed) m + (m - 1)/2 + m (k - 1)/2.

    A batch is trained in m optimiser steps, each a version; of samples generated with the weights
    from before the batch the j-th mini-batch is j versions behind. The lag is 0 in turn and 1
    overlapped; weights synced every k batches are on average (k - 1)/2 batches older; a rollout
    that is resumed was begun some batches earlier.

    Parameters
    ----------
    lag_batches : 0 or 1.
    optimizer_steps, sync_every : m and k.
    resumed_batches : ends of batches that a rollout meets on average (`resumed.ResumedBatch`).

    Examples
    --------
    >>> float(batch_staleness_mean(1, 1, 1)), float(batch_staleness_mean(0, 4, 1))
    (1.0, 1.5)
    """
    m = np.asarray(optimizer_steps, dtype=float)
    lag = lag_batches + np.asarray(resumed_batches)
    return lag * m + (m - 1.0) / 2.0 + m * (np.asarray(sync_every) - 1.0) / 2.0


def batch_staleness_cdf(
    lag_batches: int,
    optimizer_steps: int,
    sync_every: int,
    resumed_cdf: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Probability of at most 0, 1, 2, ... versions: uniform over mini-batches and sync phases.

    `resumed_cdf` is the probability of at most 0, 1, 2, ... batches resumed, if any can be.

    Examples
    --------
    >>> batch_staleness_cdf(1, 2, 1).tolist()
    [0.0, 0.0, 0.5, 1.0]
    >>> batch_staleness_cdf(0, 1, 1, np.asarray([0.25, 1.0])).tolist()
    [0.25, 1.0]
    """
    resumed = np.asarray([1.0]) if resumed_cdf is None else np.diff(resumed_cdf, prepend=0.0)
    older = np.zeros(optimizer_steps * (lag_batches + resumed.size - 1) + 1)
    older[optimizer_steps * lag_batches :: optimizer_steps] = resumed
    count = optimizer_steps * sync_every
    shares = np.convolve(older, np.full(count, 1.0 / count))
    return np.asarray(np.minimum(np.cumsum(shares), 1.0))
