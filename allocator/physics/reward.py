"""Reward: what scoring a rollout takes, how fast it goes, and how long a rollout waits for it.

Every type of reward comes down to the same few numbers per scored rollout; what is not named is 0.

==============================  =====================================================
type                            laws
==============================  =====================================================
sparse, structured, dense       CPU-seconds of a pool of workers (`rule_rate_per_s`)
proxy_prm, prm                  FLOP of forward passes over the whole sequence
                                (`scoring_flops`), seconds of one server (`scoring_s`)
llm_judge on GPUs               FLOP of prefill and decode (`judge_flops`), seconds of one
                                judge engine (`judge_s`)
llm_judge behind an API         dollars (`api_usd`), calls/s that the service allows
==============================  =====================================================

Servers (workers, scoring servers, judge engines) are a rate, `reward_rate_per_s`, and a queue,
`waiting_s`. A fixed delay is a plain number of seconds, added by the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, gammaln

from allocator.physics.decode import DecodeLaw, decode_step_s
from allocator.physics.economics import TOKENS_PER_MTOK
from allocator.physics.flops import ForwardShape, forward_flops
from allocator.physics.prefill import PrefillLaw, prefill_s

Array = NDArray[np.float64]


def reward_rate_per_s(servers: Any, seconds: Any) -> Array:
    """Rollouts scored per second by servers that each take `seconds` for one.

    Parameters
    ----------
    servers : servers (>= 0, may be infinite). For a service with a limit of calls per second,
        that limit, with the calls of a rollout as `seconds`.
    seconds : seconds of one server per rollout (>= 0); nothing to do takes no time: infinite rate.

    Examples
    --------
    >>> reward_rate_per_s(4, [2.0, 0.0]).tolist()
    [2.0, inf]
    """
    servers, seconds = np.broadcast_arrays(
        np.asarray(servers, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    )
    rate = np.full(seconds.shape, np.inf)
    np.divide(servers, seconds, out=rate, where=seconds > 0.0)
    return rate


def rule_rate_per_s(workers: Any, cpu_s: Any, calls: Any) -> Array:
    """Rollouts scored per second by a pool of CPU workers.

    workers / (calls cpu_s)

    Parameters
    ----------
    workers : calls computed at the same time (> 0); infinite where nothing limits them.
    cpu_s : CPU-seconds of one call (>= 0).
    calls : scoring calls per rollout (> 0).

    Examples
    --------
    >>> float(rule_rate_per_s(64, 3.2, 5)), float(rule_rate_per_s(np.inf, 3.2, 5))
    (4.0, inf)
    """
    return reward_rate_per_s(workers, np.multiply(cpu_s, calls))


def workers_needed(samples_per_s: Any, cpu_s: Any, calls: Any) -> Array:
    """Fewest whole CPU workers that keep up with a rate of rollouts.

    ceil(rate calls cpu_s): at that number they may be busy all the time, see `waiting_s`.

    Examples
    --------
    >>> workers_needed([2.0, 4.0, 4.1], 3.2, 5).tolist()
    [32.0, 64.0, 66.0]
    """
    busy = np.asarray(samples_per_s, dtype=np.float64) * calls * cpu_s
    return np.asarray(np.ceil(busy * (1.0 - 1e-12)))  # 64.00000000000001 workers are 64


def scoring_flops(shape: ForwardShape, calls: Any, mean_tokens: Any, second_moment: Any) -> Any:
    """FLOP of a reward model that reads a whole sequence of T tokens, per rollout.

    calls x forward(T). A call after every turn reads only what there is of the sequence by then;
    charged as a whole one, it is an upper bound.

    Parameters
    ----------
    shape : the reward model.
    calls : forward passes per rollout (> 0).
    mean_tokens, second_moment : E[T] and E[T^2] of the sequence, prompt and response.

    Examples
    --------
    >>> float(scoring_flops(ForwardShape(1e9, 0.0, 0.0, 0.0, 0.0), 3, 10.0, 100.0))
    60000000000.0
    """
    return calls * forward_flops(shape, mean_tokens, second_moment)


def judge_flops(
    shape: ForwardShape,
    calls: Any,
    input_tokens: Any,
    input_second_moment: Any,
    output_tokens: Any,
) -> Any:
    """FLOP of a judge that reads I tokens and writes a verdict of O tokens, per rollout.

    calls x forward(I + O): reading and writing a text costs what one pass over it does.

    Parameters
    ----------
    shape : the judge.
    calls : verdicts per rollout (> 0).
    input_tokens, input_second_moment : E[I] and E[I^2], nothing of it cached.
    output_tokens : O, the same for every verdict (>= 0).

    Examples
    --------
    >>> float(judge_flops(ForwardShape(1e9, 0.0, 0.0, 0.0, 0.0), 2, 10.0, 100.0, 5.0))
    60000000000.0
    """
    whole = input_tokens + output_tokens
    second = input_second_moment + 2.0 * input_tokens * output_tokens + output_tokens**2
    return calls * forward_flops(shape, whole, second)


def scoring_s(flops: Any, gpus: Any, peak_flops_per_s: Any, hfu: Any) -> Any:
    """Seconds of one server that only prefills: FLOP / (GPUs x peak x utilisation).

    Parameters
    ----------
    flops : FLOP of one rollout (`scoring_flops`).
    gpus : GPUs of one server.
    peak_flops_per_s : dense peak of one GPU in the precision of the reward model.
    hfu : share of the peak reached (0..1].

    Examples
    --------
    >>> scoring_s(1.6e15, 4, 1e15, 0.4)
    1.0
    """
    return flops / (gpus * peak_flops_per_s * hfu)


def judge_s(
    decode: DecodeLaw,
    prefill: PrefillLaw,
    calls: Any,
    input_tokens: Any,
    input_second_moment: Any,
    output_tokens: Any,
    in_flight: Any,
) -> Any:
    """Seconds of one judge engine per rollout, with n verdicts being written at a time.

    calls (prefill(I) + O step(n)/n): the closed loop of the generator solved for 1/rate, prefill
    stopping the decoders. One call takes n times its own share of this from start to verdict.

    Parameters
    ----------
    decode, prefill : laws of the judge's engine.
    calls : verdicts per rollout (> 0).
    input_tokens, input_second_moment : E[I] (> 0) and E[I^2] of what one call reads.
    output_tokens : O (>= 0); with 0 only the reading counts.
    in_flight : n (> 0), verdicts being written on the engine; the context of each is I + O/2.

    Examples
    --------
    >>> steps = DecodeLaw(0.01, 0.0, 0.0, 0.0, 0.0)
    >>> float(judge_s(steps, PrefillLaw(0.0, 1e-4, 0.0), 1, 2000.0, 4e6, 100.0, 10.0))
    0.30000000000000004
    """
    read = prefill_s(prefill, input_tokens, input_second_moment / input_tokens)
    context = in_flight * (input_tokens + output_tokens / 2.0)
    write = output_tokens * decode_step_s(decode, in_flight, context) / in_flight
    return calls * (read + write)


def api_usd(
    calls: Any,
    input_tokens: Any,
    output_tokens: Any,
    usd_per_mtok_in: Any,
    usd_per_mtok_out: Any,
) -> Any:
    """Dollars of the judge calls of one rollout at a price per million tokens.

    Examples
    --------
    >>> round(api_usd(2, 10_000, 500, 0.25, 2.0), 6)
    0.007
    """
    per_call = input_tokens * usd_per_mtok_in + output_tokens * usd_per_mtok_out
    return calls * per_call / TOKENS_PER_MTOK


def waiting_s(samples_per_s: Any, servers: Any, seconds: Any, service_cv: Any = 0.0) -> Array:
    r"""Mean wait of a rollout before one of c servers takes it, Poisson arrivals (M/G/c).

    With a = rate x seconds and rho = a/c, W_M the wait for exponential and W_D for constant
    service times::

        W_M = C(c, a) seconds / (c (1 - rho))          C: the Erlang C probability of waiting
        W_D = W_M min(c/(c + 1), (1 + (1 - rho) (c - 1) (sqrt(4 + 5c) - 2)/(16 rho c))/2)
        W   = cv^2 W_M + (1 - cv^2) W_D

    Parameters
    ----------
    samples_per_s : rollouts that arrive per second (>= 0).
    servers : c (> 0, may be infinite or fractional).
    seconds : mean seconds of one server per rollout (>= 0).
    service_cv : standard deviation over mean of those seconds (0: constant; 1: exponential).

    Returns
    -------
    numpy.ndarray
        Seconds, not counting the service itself; infinite from rho = 1 on.

    Notes
    -----
    W_M is exact, and W_D for c = 1. W_D is Cosmetatos' form (1976) and the mix that of Bjorklund
    and Elldin (1964); c/(c + 1) is the limit of W_D/W_M for rare arrivals. W_D is within 3% of the
    exact queue for c up to 32 and rho from 0.5 on (tested). Completions that come more evenly than
    Poisson wait less.

    Examples
    --------
    >>> [round(float(waiting_s(0.8, 1, 1.0, cv)), 6) for cv in (0, 1)]
    [2.0, 4.0]
    >>> waiting_s([2.0, 1.0], [2, np.inf], 1.0).tolist()
    [inf, 0.0]
    """
    rate, count, service, cv = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (samples_per_s, servers, seconds, service_cv))
    )
    offered = rate * service
    wait = np.where(offered < count, 0.0, np.inf)
    queued = (offered > 0.0) & (offered < count) & np.isfinite(count)
    a, c = offered[queued], count[queued]
    load = a / c
    # Erlang B is P(N = c)/P(N <= c) of a Poisson number N with mean a.
    blocked = np.exp(c * np.log(a) - a - gammaln(c + 1.0)) / gammaincc(c + 1.0, a)
    late = blocked / (1.0 - load * (1.0 - blocked))
    exponential = late * service[queued] / (c * (1.0 - load))
    spread = (1.0 - load) * (c - 1.0) * (np.sqrt(4.0 + 5.0 * c) - 2.0) / (16.0 * load * c)
    constant = exponential * np.minimum(c / (c + 1.0), 0.5 * (1.0 + spread))
    square = np.square(cv[queued])
    wait[queued] = square * exponential + (1.0 - square) * constant
    return wait


def batch_reward_s(
    samples: Any, samples_per_s: Any, latency_s: Any, generation_s: Any, *, overlap: bool
) -> Any:
    """Seconds that scoring adds after the generation of a batch, in the batch modes.

    overlapped: max(0, samples/rate - generation) + latency ; otherwise samples/rate + latency

    Overlapped, rollouts are scored as they finish. Exact where they finish evenly or early, which
    a long tail of lengths makes them do; too short where most finish together at the end.

    Parameters
    ----------
    samples : rollouts of the batch that are scored.
    samples_per_s : what the reward servers can take (`reward_rate_per_s`), may be infinite.
    latency_s : from the end of a rollout to its score, without queue (>= 0).
    generation_s : seconds of the generation of the batch (>= 0).

    Examples
    --------
    >>> float(batch_reward_s(512, 4.0, 3.0, 100.0, overlap=True))
    31.0
    >>> float(batch_reward_s(512, 8.0, 3.0, 100.0, overlap=True))
    3.0
    >>> float(batch_reward_s(512, 8.0, 3.0, 100.0, overlap=False))
    67.0
    """
    work_s = np.divide(samples, samples_per_s)
    left_s = np.maximum(work_s - generation_s, 0.0) if overlap else work_s
    return left_s + latency_s
