"""Prefill apart from decode: rates by hand, the wait against a simulated queue, and the knee."""

import heapq

import numpy as np
import pytest

from allocator.physics.closed_loop import engine_flow
from allocator.physics.decode import DecodeLaw
from allocator.physics.disaggregation import (
    kv_transfer_s,
    link_rate_per_s,
    matching_prefill_engines,
    prefill_latency_s,
    prefill_pool_rate_per_s,
)
from allocator.physics.prefill import PrefillLaw
from tests.physics.engine_simulation import Setting, simulate


def test_rates_by_hand() -> None:
    # 10,000 tokens of 96 kB over 50 GB/s after 2 ms.
    assert kv_transfer_s(1e4 * 96e3, 50e9, 2e-3) == pytest.approx(0.0212)
    assert link_rate_per_s(1e4 * 96e3, 50e9) == pytest.approx(52.083333)
    assert prefill_pool_rate_per_s(3, 0.25) == 12.0
    assert matching_prefill_engines(12.0, 0.25) == 3.0


def test_nothing_to_do_limits_nothing() -> None:
    assert link_rate_per_s([0.0, 1.0], 10.0).tolist() == [np.inf, 10.0]
    assert prefill_pool_rate_per_s(np.array([1.0, 2.0]), 0.0).tolist() == [np.inf, np.inf]
    assert prefill_latency_s(np.array([0.0, 2.0]), 4, 0.0).tolist() == [0.0, 2.0]


def test_the_matching_pool_has_the_rate_of_the_engines() -> None:
    rate, prefill = np.array([0.3, 2.0, 17.0]), 0.45
    engines = matching_prefill_engines(rate, prefill)
    assert prefill_pool_rate_per_s(engines, prefill) == pytest.approx(rate)


def test_one_server_waits_as_the_textbook_says() -> None:
    """M/D/1: rho/(2 (1 - rho)) service times; M/G/1 has (1 + cv^2)/2 of M/M/1."""
    load = np.array([0.1, 0.5, 0.9])
    assert prefill_latency_s(2.0, 1, load) == pytest.approx(2.0 + load / (1 - load))
    assert prefill_latency_s(2.0, 1, load, 1.0) == pytest.approx(2.0 / (1 - load))
    assert np.isinf(prefill_latency_s(2.0, 1, [1.0, 1.3])).all()


@pytest.mark.parametrize("servers", [2, 4])
@pytest.mark.parametrize("load", [0.5, 0.8])
@pytest.mark.parametrize("cv", [0.0, 0.7])
def test_several_servers_simulated(servers: int, load: float, cv: float) -> None:
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1.0 / (servers * load), 100_000))
    calls = rng.gamma(1 / cv**2, cv**2, arrivals.size) if cv else np.ones(arrivals.size)
    free, stay = [0.0] * servers, 0.0
    for arrival, seconds in zip(arrivals.tolist(), calls.tolist(), strict=True):
        end = max(free[0], arrival) + seconds
        stay += end - arrival
        heapq.heapreplace(free, end)
    got = float(prefill_latency_s(1.0, servers, load, cv))
    assert got == pytest.approx(stay / arrivals.size, rel=0.035)


@pytest.mark.parametrize(("in_flight", "off"), [(64, 0.055), (256, 0.025)])
@pytest.mark.parametrize("spare", [0.8, 1.0, 1.3])
def test_the_smaller_rate_is_enough(in_flight: int, off: float, spare: float) -> None:
    """One decode engine before two prefill engines, from too slow to ample."""
    decode = DecodeLaw(7e-3, 0.0, 4e-5, 1e-8, 0.0)

    def flow(prefill: float, limit: float) -> float:
        solved = engine_flow(
            decode,
            in_flight,
            1e9,
            response_tokens=2_000.0,
            context_tokens=2_000.0 + 2_000.0 * (1 + 0.8**2) / 2,
            prefill_s=0.0,
            environment_s=10.0 + prefill,
            rate_limit_per_s=limit,
        )
        return float(solved.samples_per_s)

    prefill = 2.0 / (spare * flow(0.0, np.inf))
    got = flow(prefill, float(prefill_pool_rate_per_s(2, prefill)))
    setting = Setting(
        in_flight,
        decode,
        PrefillLaw(prefill, 0.0, 0.0),
        prompt_tokens=2_000.0,
        response_mean=2_000.0,
        response_cv=0.8,
        last_s=10.0,
        prefill_servers=2,
    )
    assert got == pytest.approx(simulate(setting, 6_000, seed=1).samples_per_s, rel=off)
