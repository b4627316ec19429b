"""Sandboxes: how many are in use, how long they take to start, and what they cost.

A rollout with an environment lives in its sandboxes; what their failures and timeouts make of it
is in `allocator.physics.attempts`. Derived here, by counting and Little's law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NORMAL_P99 = 2.3263478740408408
"""Standard deviations from the mean to the 99th percentile of a normal law."""


@dataclass(frozen=True, slots=True)
class StartTable:
    """A quantity that depends on how many sandboxes run: start-up seconds, or a failure share.

    Linear between the entries and constant outside them: what nobody measured is not extrapolated.

    Attributes
    ----------
    concurrency : sandboxes in use, ascending (> 0).
    values : the quantity at each of them (>= 0).

    Examples
    --------
    >>> table = StartTable.of({960: 3600.0, 96: 8.0})
    >>> table.at([10, 528, 2000]).tolist()
    [8.0, 1804.0, 3600.0]
    """

    concurrency: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse tables that are empty, unordered or negative."""
        points = np.asarray(self.concurrency, dtype=np.float64)
        if not (len(points) == len(self.values) > 0):
            raise ValueError("a table needs one value for each of at least one concurrency")
        if not (points[0] > 0.0 and np.all(np.diff(points) > 0.0) and math.isfinite(points[-1])):
            raise ValueError(f"concurrencies must be > 0 and ascend, given {self.concurrency}")
        if not all(value >= 0.0 for value in self.values):
            raise ValueError(f"values must be >= 0, given {self.values}")

    @classmethod
    def of(cls, entries: Mapping[float, float]) -> StartTable:
        """Return the table with these entries, in any order."""
        ordered = sorted(entries.items())
        return cls(tuple(key for key, _ in ordered), tuple(value for _, value in ordered))

    @classmethod
    def constant(cls, value: float) -> StartTable:
        """Return the table that says `value` whatever the concurrency."""
        return cls((1.0,), (value,))

    def at(self, sandboxes: Any) -> Array:
        """Return the quantity with `sandboxes` in use (any shape)."""
        return np.asarray(np.interp(sandboxes, self.concurrency, self.values))


def sandboxes_in_use(in_flight: Any, per_rollout: Any) -> Any:
    """Sandboxes of the rollouts in flight; those starting are in flight and count.

    Examples
    --------
    >>> sandboxes_in_use(480, 2)
    960
    """
    return in_flight * per_rollout


def in_flight_p99(mean_in_flight: Any, sd_in_flight: Any, limit: Any = np.inf) -> Any:
    """Rollouts in flight that are exceeded one percent of the time: what a quota must hold.

    min(limit, mean + 2.326 sd). A quota held against the mean is exceeded half of the time. Where
    a limit on in flight is enforced and always refilled, in flight hardly ever leaves it, and the
    limit itself is the percentile.

    Parameters
    ----------
    mean_in_flight, sd_in_flight : time average and standard deviation, normal law (>= 0).
    limit : most that may be in flight (> 0); infinite without an enforced limit.

    Examples
    --------
    >>> round(float(in_flight_p99(100.0, 10.0)), 2), float(in_flight_p99(100.0, 10.0, 104))
    (123.26, 104.0)
    """
    return np.minimum(mean_in_flight + NORMAL_P99 * sd_in_flight, limit)


def in_flight_quota(max_sandboxes: Any, per_rollout: Any) -> Any:
    """Most rollouts in flight under a quota of sandboxes: floor(quota / sandboxes a rollout).

    To be held against `in_flight_p99`; a limit on in flight of this size keeps it always.

    Examples
    --------
    >>> float(in_flight_quota(100, 3))
    33.0
    """
    return np.floor(np.divide(max_sandboxes, per_rollout))


def sandboxes_that_fit(host: Mapping[str, float], need: Mapping[str, float]) -> float:
    """Sandboxes that a host or a pool of resources runs together; infinite if nothing limits it.

    min over the resources named in both of floor(host / need).

    Examples
    --------
    >>> host = {"cpus": 96, "memory_gib": 512}
    >>> sandboxes_that_fit(host, {"cpus": 2, "memory_gib": 16, "disk_gib": 20})
    32.0
    """
    shared = [math.floor(host[name] / need[name]) for name in host if name in need]
    return float(min(shared, default=math.inf))


def sandbox_usd_per_hour(sandboxes: Any, usd_per_sandbox_hour: Any) -> Any:
    """Dollars per hour of the sandboxes in use, billed while they run.

    Examples
    --------
    >>> round(sandbox_usd_per_hour(960, 0.1), 6)
    96.0
    """
    return sandboxes * usd_per_sandbox_hour


def credit_hours(credit_usd: Any, usd_per_hour: Any) -> Array:
    """Hours until a credit is spent; infinite where nothing is paid.

    Examples
    --------
    >>> credit_hours(200.0, [96.0, 0.0]).round(3).tolist()
    [2.083, inf]
    """
    credit, rate = np.broadcast_arrays(
        np.asarray(credit_usd, dtype=np.float64), np.asarray(usd_per_hour, dtype=np.float64)
    )
    hours = np.full(rate.shape, np.inf)
    np.divide(credit, rate, out=hours, where=rate > 0.0)
    return hours


def calls_concurrency(calls_per_s: Any, call_s: Any) -> Any:
    """Mean number of calls being computed at the same time: rate x duration (Little's law).

    Parameters
    ----------
    calls_per_s : tool or scoring calls of the whole run per second (>= 0).
    call_s : seconds of one call when nothing holds it up (>= 0).

    Examples
    --------
    >>> calls_concurrency(40.0, 1.5)
    60.0
    """
    return calls_per_s * call_s


def cores_needed(calls_per_s: Any, call_s: Any, cores_per_call: Any = 1.0) -> Array:
    """Fewest whole CPU cores that keep up with a rate of calls that keep their cores busy.

    ceil(rate x duration x cores a call). A concurrency above the core count only makes every call
    slower; at exactly this many cores calls queue (`reward.waiting_s`).

    Examples
    --------
    >>> cores_needed(np.array([40.0, 40.5]), 1.5).tolist()
    [60.0, 61.0]
    """
    busy = np.multiply(calls_concurrency(calls_per_s, call_s), cores_per_call)
    return np.asarray(np.ceil(busy * (1.0 - 1e-12)))  # 60.00000000000001 cores are 60
