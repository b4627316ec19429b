"""Event simulation of slots, finished-group queue and trainer, apart from any law it checks.

Slots of fixed speed, lengths log-normal with mean 1, samples dispatched one by one in the order of
groups, whole groups queue, the oldest is dropped when the queue is full, the trainer takes the
oldest G groups.  With a limit, stale groups are thrown away when the trainer looks for its batch.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Setting:
    in_flight: int
    batch: int
    group_size: int
    queue_batches: int
    load: float
    length_cv: float
    train_step_cv: float


@dataclass(frozen=True)
class Outcome:
    wait: float
    dropped_share: float
    rejected_share: float
    staleness_mean: float
    staleness_cdf: np.ndarray
    residence_mean: float


def simulate(
    setting: Setting, steps: int, seed: int, limit: int | None = None, versions: int = 41
) -> Outcome:
    rng = np.random.default_rng(seed)
    sigma = math.sqrt(math.log1p(setting.length_cv**2))
    groups = setting.batch // setting.group_size
    capacity = setting.queue_batches * groups
    train = setting.load * setting.batch / setting.in_flight
    shape = 1.0 / setting.train_step_cv**2 if setting.train_step_cv > 0 else 0.0
    lengths: Iterator[float] = iter(())
    started: list[tuple[int, float]] = []  # version and time of each group's first start
    left: list[int] = []
    queue: deque[int] = deque()
    slots: list[tuple[float, int]] = []
    to_dispatch = 0
    free, version, begun = setting.in_flight, 0, 0
    now, step_end, first = 0.0, math.inf, 0.0
    warm = steps // 5
    finished = dropped = rejected = 0
    residence = 0.0
    counts = np.zeros(versions + 1)
    total = 0.0
    while begun < steps:
        while free:
            if to_dispatch == 0:
                started.append((version, now))
                left.append(setting.group_size)
                to_dispatch = setting.group_size
            length = next(lengths, None)
            if length is None:
                lengths = iter(np.exp(sigma * rng.standard_normal(65536) - sigma**2 / 2).tolist())
                length = next(lengths)
            heapq.heappush(slots, (now + length, len(started) - 1))
            to_dispatch -= 1
            free -= 1
        if step_end <= slots[0][0]:
            now, step_end = step_end, math.inf
            version += 1
        else:
            now, group = heapq.heappop(slots)
            free += 1
            left[group] -= 1
            if left[group] == 0:
                finished += begun > warm
                residence += (now - started[group][1]) * (begun > warm)
                if len(queue) == capacity:
                    queue.popleft()
                    dropped += begun > warm
                queue.append(group)
        if step_end == math.inf:
            if limit is not None:
                fresh = deque(g for g in queue if version - started[g][0] <= limit)
                rejected += (len(queue) - len(fresh)) * (begun > warm)
                queue = fresh
            if len(queue) >= groups:
                if begun == warm:
                    first = now
                for _ in range(groups):
                    age = version - started[queue.popleft()][0]
                    if begun >= warm:
                        counts[min(age, versions)] += 1
                        total += age
                begun += 1
                factor = rng.gamma(shape) / shape if shape else 1.0
                step_end = now + train * factor
    trained = counts.sum()
    return Outcome(
        wait=1.0 - (steps - 1 - warm) * train / (now - first),
        dropped_share=dropped / finished,
        rejected_share=rejected / finished,
        staleness_mean=total / trained,
        staleness_cdf=np.cumsum(counts)[:versions] / trained,
        residence_mean=residence / finished,
    )
