"""The closed loop of one engine: rollouts in flight, the rate they give, and how long each stays.

A rollout alternates between decoding, prefill and its environment, and is replaced as soon as
it ends, so the number in flight is constant and Little's law ties rate and residence together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.physics.decode import DecodeLaw, decode_step_s

#: Halvings of the bracket on the number decoding; 60 exhaust a double from 2^20 down.
BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class EngineFlow:
    """Steady state of one engine.

    Attributes
    ----------
    samples_per_s : rollouts ended per second.
    decoding : sequences decoding at a random moment (time average).
    step_s : seconds of one decode step at that number.
    token_s : seconds of residence per response token: the step, stretched by prefill that stops
        the decoders.
    fixed_s : seconds of residence that do not depend on the response length: environment, the
        rollout's own prefill, and waiting for KV or for other stations where those bind.
    kv_bound : whether KV capacity, not the cap on rollouts in flight, limits `decoding`.
    station_bound : whether other stations (`rate_limit_per_s`) limit it.
    """

    samples_per_s: Any
    decoding: Any
    step_s: Any
    token_s: Any
    fixed_s: Any
    kv_bound: Any
    station_bound: Any


def resident_sequences(
    decoding: Any, samples_per_s: Any, held_s: Any, held_ratio: Any = 1.0
) -> Any:
    """Sequences whose KV an engine holds, time average, counted in decoding ones: b + X held ratio.

    By Little's law X `held_s` sequences wait in a tool with their KV in memory; `held_ratio` is
    what one of them holds over what a decoding one does (their mean contexts differ: `turns`).

    Examples
    --------
    >>> resident_sequences(50.0, 2.0, 10.0)
    70.0
    """
    return decoding + samples_per_s * held_s * held_ratio


def engine_flow(
    law: DecodeLaw,
    in_flight: Any,
    decoding_limit: Any,
    *,
    response_tokens: Any,
    context_tokens: Any,
    prefill_s: Any,
    environment_s: Any,
    held_s: Any = 0.0,
    held_ratio: Any = 1.0,
    rate_limit_per_s: Any = np.inf,
) -> EngineFlow:
    """Solve the closed loop of one engine that prefills its own prompts.

        X = b / (R t(b) + b p)        N = b + X (env + p)

    X samples/s, b decoding, t(b) = `decode_step_s(law, b, b context)`. Prefill on a shared engine
    stops all b decoders, so it multiplies: charged as mere latency it is 59-175% off on
    prefill-heavy loads, this form is within 1.1% of simulation (design section 2).
    X, N(b) and the KV held all rise with b (t(b)/b falls); b is found by bisection as the largest
    that keeps all three:

        N(b) <= in flight        b + X held_s held_ratio <= decoding limit        X <= rate limit

    What KV or other stations keep from decoding waits outside the engine, without KV: the rate is
    flat in N beyond that knee.

    Parameters
    ----------
    law : decode coefficients, broadcast.
    in_flight : N > 0, time average of rollouts in flight on the engine.
    decoding_limit : most sequences of the mean decoding context whose KV fits, > 0.
    response_tokens : R, mean response tokens a dispatched rollout decodes, > 0.
    context_tokens : mean context of a decoding sequence.
    prefill_s : p, engine-seconds of prefill per rollout on this engine, all turns, >= 0.
    environment_s : seconds a rollout spends outside the engine, >= 0.
    held_s : those of them during which its KV stays in memory (tools between turns), >= 0.
    held_ratio : KV bytes of a sequence in a tool over those of a decoding one, >= 0.
    rate_limit_per_s : rollouts/s that other stations (prefill engines, rewards, links) leave this
        engine, > 0.

    Returns
    -------
    EngineFlow, arrays of the broadcast shape.

    Notes
    -----
    Against an event simulation of one engine (1 and 4 turns, KV free, held and evicted) the rate is
    within 2%. The limits act on time averages: where two bind at once, chance makes the true rate
    lower than either, by up to 3% with 24 rollouts in flight (KV and cap; for stations see
    `disaggregation`).
    Waiting for a station counts as time without KV. Where a sequence waits in the middle of a
    rollout with its KV in memory, that wait belongs into `held_s`.

    Examples
    --------
    >>> law = DecodeLaw(0.01, 0.0, 1e-4, 0.0, 0.0)
    >>> flow = engine_flow(law, 50.0, 1e9, response_tokens=1000.0, context_tokens=0.0,
    ...                    prefill_s=0.0, environment_s=0.0)
    >>> round(float(flow.samples_per_s), 4), round(float(flow.token_s), 4)
    (3.3333, 0.015)
    """
    arguments = (
        in_flight,
        decoding_limit,
        response_tokens,
        context_tokens,
        prefill_s,
        environment_s,
        held_s,
        held_ratio,
        rate_limit_per_s,
    )
    cap, limit, response, context, prefill, environment, held, ratio, rate_limit = (
        np.broadcast_arrays(*(np.asarray(a, dtype=float) for a in arguments))
    )

    def loop(decoding: Any) -> tuple[Any, Any]:
        step = decode_step_s(law, decoding, decoding * context)
        return step, decoding / (response * step + decoding * prefill)

    def exceeded(decoding: Any) -> tuple[Any, Any, Any]:
        """Whether so many decoding exceed the cap, the KV memory, the other stations."""
        rate = loop(decoding)[1]
        return (
            decoding + rate * (environment + prefill) > cap,
            resident_sequences(decoding, rate, held, ratio) > limit,
            rate > rate_limit,
        )

    low, high = np.zeros_like(cap), np.minimum(cap, limit)
    free = ~np.any(exceeded(high), axis=0)
    kv_bound, station_bound = free & (limit < cap), np.zeros_like(free)
    if not np.all(free):
        top = high.copy()
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + top)
            over = np.any(exceeded(middle), axis=0)
            top = np.where(over, middle, top)
            low = np.where(over, low, middle)
        high = np.where(free, high, low)
        over_cap, over_kv, over_rate = exceeded(top)  # just above the root: what binds
        kv_bound = np.where(free, kv_bound, over_kv & ~over_cap)
        station_bound = ~free & over_rate & ~over_cap & ~over_kv
    step, rate = loop(high)
    # Little's law on the whole engine gives the residence; what is not stretched decoding is fixed.
    token_s = step + high * prefill / response
    return EngineFlow(
        samples_per_s=rate,
        decoding=high,
        step_s=step,
        token_s=token_s,
        fixed_s=np.maximum(cap / rate - response * token_s, 0.0),
        kv_bound=kv_bound,
        station_bound=station_bound,
    )
