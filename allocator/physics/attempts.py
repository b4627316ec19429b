"""Attempts: what failures and timeouts of sandboxes make of rollouts, and what they cost.

An *attempt* is one life of a rollout: its sandboxes start, it is generated, and it is delivered, or
lost to a failing sandbox or to the timeout and started again from the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocator.physics.lengths import Lengths
from allocator.physics.moments import ORDERS

Array = NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class RestartedTail:
    """What a batch that starts as a whole waits for at its end; arrays of one shape.

    Attributes
    ----------
    tokens : decode steps beyond the longest of its first attempts.
    restarts : attempts after each other that are waited for, on average.
    """

    tokens: Any
    restarts: Any


def restarted_tail(
    lengths: Lengths, lost_share: Any, retries: int, batch: Any, end_tokens: Any
) -> RestartedTail:
    r"""What attempts that are lost and made again add to the end of a batch.

    Of B rollouts n_k = B f^k lose k attempts in a row, at least one of them with the probability
    p_k = 1 - (1 - f^k)^B. The last loss comes n_k/(n_k + 1) through a life, and a whole life
    follows, the longest of n_k::

        tokens = sum over k = 1..r of p_k max(0, E[R] n_k/(n_k + 1) + E[max of n_k] - e_(k-1))

    with e_0 = q, the longest first attempt, and e_k = E[max of n_k]: at equal lengths n_k/(n_k + 1)
    of a life each time.

    Parameters
    ----------
    lengths : law of R.
    lost_share : f (0..1), of attempts.
    retries : r >= 0.
    batch : B, rollouts that are waited for (>= 1).
    end_tokens : q, expected longest first attempt.

    Examples
    --------
    >>> from allocator.physics.lengths import CappedLogNormal
    >>> equal = CappedLogNormal(np.log(1000.0), 0.0)
    >>> found = restarted_tail(equal, 0.5, 1, 2.0, 1000.0)
    >>> float(round(found.tokens, 6)), float(found.restarts)
    (375.0, 0.75)
    """
    lost, size, end = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (lost_share, batch, end_tokens))
    )
    tokens, restarts = np.zeros(lost.shape), np.zeros(lost.shape)
    before = end
    for attempt in range(1, retries + 1):
        often = lost**attempt
        number = size * often
        any_lost = -np.expm1(size * np.log1p(-np.minimum(often, 1.0 - 1e-12)))
        longest = lengths.mean * lengths.tailness(np.maximum(number, 1.0))
        later = lengths.mean * number / (number + 1.0) + longest - before
        tokens = tokens + any_lost * np.maximum(later, 0.0)
        restarts = restarts + any_lost
        before = longest
        if np.all(number < 1e-6):
            break
    return RestartedTail(tokens, restarts)
