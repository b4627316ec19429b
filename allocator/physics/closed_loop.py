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
        rollout's own prefill, and waiting in the engine's queue when KV is full.
    kv_bound : whether KV capacity, not the cap on rollouts in flight, limits `decoding`.
    """

    samples_per_s: Any
    decoding: Any
    step_s: Any
    token_s: Any
    fixed_s: Any
    kv_bound: Any


def engine_flow(
    law: DecodeLaw,
    in_flight: Any,
    decoding_limit: Any,
    *,
    response_tokens: Any,
    context_tokens: Any,
    prefill_s: Any,
    environment_s: Any,
) -> EngineFlow:
    """Solve the closed loop of one engine that prefills its own prompts.

        X = b / (R t(b) + b p)        N = b + X (env + p)

    X samples/s, b decoding, t(b) = `decode_step_s(law, b, b context)`. Prefill on a shared engine
    stops all b decoders, so it multiplies: charged as mere latency it is 59-175% off on
    prefill-heavy loads, this form is within 1.1% of simulation (design section 2).
    N(b) is increasing wherever t(b)/b falls with b; b is found by bisection on N(b) = N for the
    largest root. Where KV capacity admits only `decoding_limit` < b, b stops there and the rest
    waits in the engine's queue: the rate is flat in N beyond that knee.

    Parameters
    ----------
    law : decode coefficients, broadcast.
    in_flight : N > 0, time average of rollouts in flight on the engine.
    decoding_limit : most sequences whose KV fits, > 0.
    response_tokens : R, mean response tokens a dispatched rollout decodes, > 0.
    context_tokens : mean context of a decoding sequence.
    prefill_s : p, engine-seconds of prefill per rollout, >= 0.
    environment_s : seconds a rollout spends outside the engine, >= 0.

    Returns
    -------
    EngineFlow, arrays of the broadcast shape.

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
    )
    cap, limit, response, context, prefill, environment = np.broadcast_arrays(
        *(np.asarray(a, dtype=float) for a in arguments)
    )

    def loop(decoding: Any) -> tuple[Any, Any, Any]:
        step = decode_step_s(law, decoding, decoding * context)
        rate = decoding / (response * step + decoding * prefill)
        return step, rate, decoding + rate * (environment + prefill)

    low, high = np.zeros_like(cap), np.minimum(cap, limit)
    free = loop(high)[2] <= cap
    if not np.all(free):
        top = high.copy()
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + top)
            over = loop(middle)[2] > cap
            top = np.where(over, middle, top)
            low = np.where(over, low, middle)
        high = np.where(free, high, low)
    step, rate, _ = loop(high)
    # Little's law on the whole engine gives the residence; what is not stretched decoding is fixed.
    token_s = step + high * prefill / response
    return EngineFlow(
        samples_per_s=rate,
        decoding=high,
        step_s=step,
        token_s=token_s,
        fixed_s=np.maximum(cap / rate - response * token_s, 0.0),
        kv_bound=free & (limit < cap),
    )
