"""Sandboxes: how many are in use, how long they take to start, and what they lose.

A rollout with an environment lives in its sandboxes. An *attempt* is one life of a rollout: its
sandboxes start, it is generated, and it is delivered, or lost to a failing sandbox or to the
timeout and started again from the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocator.physics.lengths import Lengths
from allocator.physics.moments import ORDERS

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


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often rollouts are started; every field an array, per rollout asked for.

    Attributes
    ----------
    lost_share : q, share of attempts that are lost.
    attempts : mean number of attempts, (1 - q^(r + 1)) / (1 - q) with r retries.
    given_up_share : share of rollouts whose every attempt is lost, q^(r + 1).
    """

    lost_share: Array
    attempts: Array
    given_up_share: Array


def attempts(lost_share: Any, retries: Any) -> Attempts:
    """Attempts of a rollout that is started again, at most `retries` times, when it is lost.

    Attempts are independent and all alike. Delivered rollouts per attempt are 1 - q whatever the
    number of retries: 1 - given_up_share = attempts (1 - q).

    Parameters
    ----------
    lost_share : q (0..1).
    retries : r, whole (>= 0).

    Examples
    --------
    >>> found = attempts(0.1, 3)
    >>> float(found.attempts), float(found.given_up_share)
    (1.111, 0.00010000000000000002)
    """
    lost, tries = np.broadcast_arrays(
        np.asarray(lost_share, dtype=np.float64), np.asarray(retries, dtype=np.float64) + 1.0
    )
    given_up = lost**tries
    mean = tries.copy()  # every attempt is lost: all of them are made
    np.divide(1.0 - given_up, 1.0 - lost, out=mean, where=lost < 1.0)
    return Attempts(lost, mean, given_up)


@dataclass(frozen=True, slots=True)
class SandboxFate:
    """What failures and the timeout do to rollouts; arrays of the broadcast shape.

    Attributes
    ----------
    attempts : lost share, number and given-up share of attempts.
    timeout_share : share of attempts too long for the timeout, whether or not they fail before.
    attempt_moments : E[A], E[A^2], E[A^3] of the tokens A of an attempt, delivered or not,
        stacked on a first axis of 3: what engines generate and hold.
    kept_moments : the same of the tokens of delivered rollouts; nan where none can be delivered.
    lost_token_share : share of generated tokens that lost attempts wrote (0..1).
    environment_s : mean seconds of an attempt besides its tokens: start-up and environment.
    lost_s : mean seconds a rollout spends in lost attempts.
    """

    attempts: Attempts
    timeout_share: Array
    attempt_moments: Array
    kept_moments: Array
    lost_token_share: Array
    environment_s: Array
    lost_s: Array


def sandbox_fate(
    lengths: Lengths,
    token_s: Any,
    start_s: Any,
    environment_s: Any,
    failure_fraction: Any,
    retries: Any,
    timeout_s: Any = np.inf,
) -> SandboxFate:
    r"""Outcome of attempts that last start + environment + token_s R, R tokens.

    With the cut c = max(0, timeout - start - environment) / token_s, an attempt is too long with
    probability s = P(R > c). It lives for min(R, c) tokens; a share f loses its sandbox at a
    uniformly random moment of that life, whatever its length::

        lost share        q = 1 - (1 - f)(1 - s)
        tokens of an attempt   E[A^m] = E[min(R, c)^m] (1 - f + f/(m + 1))
        kept tokens            E[R^m | R <= c]
        lost tokens            f E[min(R, c)]/2 + (1 - f) s c        of E[A] generated
        besides its tokens     start + environment (1 - f/2)
        time of lost attempts  attempts (f (start + (environment + token_s E[min(R, c)])/2)
                                         + (1 - f) s (start + environment + token_s c))

    Parameters
    ----------
    lengths : law of R.
    token_s : seconds per token of one rollout (> 0).
    start_s : seconds until the sandboxes run (>= 0), paid by every attempt.
    environment_s : mean seconds of tools and scoring per rollout (>= 0), taken as the same for all.
    failure_fraction : f (0..1).
    retries : times a lost rollout is started again (whole, >= 0).
    timeout_s : longest life of a sandbox (> 0), start-up included.

    Returns
    -------
    SandboxFate
        Without failures and timeout: one attempt, moments of `lengths`, nothing lost.

    Notes
    -----
    A retried rollout has the length law of all rollouts. Where length belongs to the prompt, what
    timed out once times out again: the given-up share is then larger, up to f + (1 - f) s. A
    start-up so slow that the cut is 0 loses every attempt.

    Source: elementary probability, checked against simulated attempts (tests).

    Examples
    --------
    >>> from allocator.physics.lengths import CappedLogNormal
    >>> constant = CappedLogNormal(np.log(1000.0), 0.0)
    >>> fate = sandbox_fate(constant, 0.01, 8.0, 0.0, 0.2, 3)
    >>> round(float(fate.attempt_moments[0]), 6), round(float(fate.lost_token_share), 6)
    (900.0, 0.111111)
    """
    token, start, environment, failing, tries, timeout = np.broadcast_arrays(
        *(
            np.asarray(x, dtype=np.float64)
            for x in (token_s, start_s, environment_s, failure_fraction, retries, timeout_s)
        )
    )
    cut = np.maximum(timeout - start - environment, 0.0) / token
    too_long = np.asarray(lengths.survival(cut))
    alive = np.stack([lengths.limited_moment(order, cut) for order in ORDERS])
    mean = alive[0]
    timed_out = (1.0 - failing) * too_long
    with np.errstate(invalid="ignore"):  # 0 x an infinite cut
        cut_tokens = np.where(too_long > 0.0, timed_out * cut, 0.0)
    made = np.stack([alive[m - 1] * (1.0 - failing + failing / (m + 1.0)) for m in ORDERS])
    lost_tokens = failing * mean / 2.0 + cut_tokens
    tried = attempts(failing + timed_out, tries)
    failed_s = failing * (start + (environment + token * mean) / 2.0)
    timed_out_s = timed_out * (start + environment) + token * cut_tokens
    # An attempt without a token (a cut of 0) loses none.
    share = np.divide(lost_tokens, made[0], out=np.zeros(cut.shape), where=made[0] > 0.0)
    return SandboxFate(
        attempts=tried,
        timeout_share=too_long,
        attempt_moments=made,
        kept_moments=np.stack([lengths.moment_below(order, cut) for order in ORDERS]),
        lost_token_share=share,
        environment_s=start + environment * (1.0 - failing / 2.0),
        lost_s=tried.attempts * (failed_s + timed_out_s),
    )


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
