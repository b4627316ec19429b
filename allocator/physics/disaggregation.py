"""Prefill apart from decode: what prefill engines and links let through, and what they delay.

Prefill then leaves the decode engine (p = 0 in `closed_loop.engine_flow`) and becomes latency, as
does moving the KV cache; the rates below go into its `rate_limit_per_s` (design section 2).

Taking the smaller of the decode engines' rate and the pool's is optimistic near the knee, where
both stations wait for each other by chance. Against event simulation of 1 and 4 prefill engines and
one decode engine (1 and 4 turns) the rate is at most 2.2% too high with 256 rollouts in flight, 5%
with 64 and 10% with 16. With the wait of `prefill_latency_s` added to the environment, solved
together with the rate, it is at most 2.1%, 3.3% and 8% too low. What counts is all that is in
flight before one pool of prefill engines, which is rarely below some hundreds.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def kv_transfer_s(kv_bytes: Any, bytes_per_s: Any, fixed_s: Any = 0.0) -> Any:
    """Seconds to move the KV cache of one prefill call to a decode engine: fixed + bytes/rate.

    Latency of the rollout, not of an engine: both ends go on meanwhile. `bytes_per_s` > 0 is what
    one transfer gets; what all of them share is `link_rate_per_s`.

    Examples
    --------
    >>> kv_transfer_s(2e9, 50e9, 0.01)
    0.05
    """
    return fixed_s + kv_bytes / bytes_per_s


def link_rate_per_s(bytes_per_rollout: Any, bytes_per_s: Any) -> Any:
    """Rollouts/s that a link lets through; infinite when they move nothing.

    Parameters
    ----------
    bytes_per_rollout : KV bytes of all turns of a rollout together, >= 0.
    bytes_per_s : of all links between the two pools together, > 0.

    Examples
    --------
    >>> float(link_rate_per_s(4e9, 100e9)), float(link_rate_per_s(0.0, 100e9))
    (25.0, inf)
    """
    return _ratio(bytes_per_s, bytes_per_rollout)


def prefill_pool_rate_per_s(engines: Any, prefill_s: Any) -> Any:
    """Rollouts/s that prefill engines let through, all busy; infinite when nothing is read.

    Parameters
    ----------
    engines : prefill engines, > 0.
    prefill_s : p, engine-seconds of prefill of all turns of a rollout, >= 0.

    Examples
    --------
    >>> float(prefill_pool_rate_per_s(6, 0.5))
    12.0
    """
    return _ratio(engines, prefill_s)


def matching_prefill_engines(rollouts_per_s: Any, prefill_s: Any) -> Any:
    """Prefill engines that exactly keep up with a decode engine: X p (usually a fraction).

    With X the decode engine's rate when nothing else limits it, neither side has spare capacity;
    `prefill_latency_s` tells what running a pool that full costs in waiting.

    Examples
    --------
    >>> matching_prefill_engines(1.5, 0.5)
    0.75
    """
    return rollouts_per_s * prefill_s


def prefill_latency_s(prefill_s: Any, engines: Any, utilisation: Any, call_cv: Any = 0.0) -> Any:
    """Seconds a rollout spends in prefill, waiting for one of c engines included.

        p (1 + (1 + cv^2)/2 x rho^(sqrt(2 (c + 1)) - 1) / (c (1 - rho)))

    Allen and Cunneen's form for calls that arrive at random (Poisson) and take a known time, with
    Sakasegawa's (1977) closed form of the queue of M/M/c. The wait of a call is proportional to the
    length of a call, so p may be the sum over a rollout's turns.

    Parameters
    ----------
    prefill_s : p, engine-seconds of prefill of a rollout, >= 0 (0 leaves the pool idle, rho = 0).
    engines : c >= 1, prefill engines fed from one queue.
    utilisation : rho = X p / c of all rollouts/s X; at 1 and above the wait is infinite.
    call_cv : standard deviation over mean of the calls' lengths (first prompts against later
        turns); 0 when all are equal.

    Notes
    -----
    Exact for one engine. Against simulation of 2, 4 and 16 engines the latency is within 2.5% for
    equal calls (utilisation 0.3 to 0.95) and 4.5% for a cv of 0.7. Above the wait in a closed
    system, where no more can queue than are in flight.

    Examples
    --------
    >>> round(float(prefill_latency_s(0.5, 1, 0.8)), 3)  # M/D/1 waits rho/(2 (1 - rho)) calls
    1.5
    """
    servers = np.asarray(engines, dtype=float)
    busy = np.asarray(utilisation, dtype=float)
    waiting = np.power(busy, np.sqrt(2.0 * (servers + 1.0)) - 1.0) * (1.0 + call_cv * call_cv) / 2.0
    calls = _ratio(waiting, servers * np.maximum(1.0 - busy, 0.0))
    return np.asarray(prefill_s, dtype=float) * (1.0 + calls)


def _ratio(above: Any, below: Any) -> Any:
    """Return above / below, infinite where `below` is 0."""
    top, bottom = np.broadcast_arrays(
        np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    )
    return np.divide(top, bottom, out=np.full(top.shape, np.inf), where=bottom > 0.0)
