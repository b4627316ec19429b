"""Figures that sources print, recomputed by the product's own laws."""

import numpy as np
import pytest

from allocator.physics.closed_loop import engine_flow
from allocator.physics.decode import DecodeLaw, decode_step_s, mean_decode_context_tokens
from allocator.physics.economics import hosted_usd, ownership_usd_per_gpu_hour, usd_per_mtok
from allocator.physics.kv_memory import (
    engine_weights_bytes_per_gpu,
    kv_budget_bytes,
    kv_copies,
    sequences_that_fit,
)
from allocator.physics.signal import SolveRate, signal_fraction
from allocator.physics.trainer import hfu_from_mfu, mfu

# Qwen3-235B-A22B in BF16 on one engine of 8 H200, SGLang, TP8 EP8.
SGLANG = DecodeLaw(6.972e-3, 16.72e-3, 4.206e-5, 1.187e-8, 1 - 8 / 128)


def test_busy_mfu_of_the_published_run() -> None:
    busy = mfu(22e9, 18_294 * 2.75, 64, 989e12, 1.0)
    assert 100 * busy == pytest.approx(10.49, abs=0.005)


def test_wait_from_two_rates() -> None:
    generator, trainer = 1.95, 2.75
    assert 1 - generator / trainer == pytest.approx(0.291, abs=5e-4)


def test_hosted_price_of_a_step() -> None:
    usd = hosted_usd(
        64,
        7_932,
        12_232,
        prefill_usd_per_mtok=0.68,
        sample_usd_per_mtok=1.70,
        train_usd_per_mtok=2.04,
    )
    assert usd == pytest.approx(4.31, abs=0.005)
    assert usd / (64 * 20_164) * 1e6 == pytest.approx(3.34, abs=0.005)


@pytest.mark.parametrize(
    ("gpus", "tokens_per_s", "printed"),
    [(96, 64 * 20_164 / 492.2, 16.17), (256, 1.98 * 18_294, 3.12)],
)
def test_own_cost(gpus: int, tokens_per_s: float, printed: float) -> None:
    assert usd_per_mtok(gpus * 1.59, tokens_per_s) == pytest.approx(printed, abs=0.005)


@pytest.mark.parametrize(("years", "rate"), [(5, 0.039), (6, 0.092)])
def test_ownership_is_a_family(years: int, rate: float) -> None:
    assert ownership_usd_per_gpu_hour(361e3, 8, years, rate, 0.275 * 1.59) == pytest.approx(
        1.59, abs=0.01
    )


def test_always_solved_groups_leave_no_signal() -> None:
    for group in (2, 8, 16, 64):
        rate = SolveRate(always=0.55, never=0.0, alpha=1.0, beta=1.0)
        assert float(signal_fraction(rate, group)) <= 0.45


def test_blind_check_of_the_generator() -> None:
    """The worked check of the design: 88 sequences of 16,000 tokens, 44 ms, 560 s, 48,000/s."""
    weights = engine_weights_bytes_per_gpu(
        235.093e9, 227.096e9, 2.0, 2.0, tensor_parallel=8, pipeline_parallel=1, expert_gpus=8
    )
    budget = kv_budget_bytes(8, 141 * 2**30, 0.88, weights)
    per_token = 192_512 * kv_copies("gqa", 4, 8)
    assert per_token == 385_024
    fit = sequences_that_fit(budget, 16_000 * per_token, 9_000 * per_token)
    assert float(fit) == pytest.approx(88, abs=1)
    step = float(decode_step_s(SGLANG, 88.0, 88 * 16_000.0))
    assert step == pytest.approx(0.044, abs=5e-4)
    assert 12_704 * step == pytest.approx(560, rel=0.01)
    assert 24 * 88 / step == pytest.approx(48_000, rel=0.01)


def test_rate_is_flat_past_the_kv_knee() -> None:
    caps = np.arange(1.0, 400.0)
    flow = engine_flow(
        SGLANG,
        caps,
        88.0,
        response_tokens=12_704.0,
        context_tokens=16_000.0,
        prefill_s=0.05,
        environment_s=20.0,
    )
    rate = np.asarray(flow.samples_per_s)
    knee = rate[np.flatnonzero(np.asarray(flow.kv_bound))[0] - 1]
    assert rate.max() <= 1.05 * knee
    assert np.all(np.diff(rate) >= -1e-12)


def test_prefill_on_a_shared_engine_multiplies() -> None:
    """Charging prefill as mere latency overstates a prefill-heavy engine by more than half."""
    flow = engine_flow(
        SGLANG,
        64.0,
        1e9,
        response_tokens=500.0,
        context_tokens=8_000.0,
        prefill_s=0.8,
        environment_s=0.0,
    )
    as_latency = 64.0 / (500.0 * float(decode_step_s(SGLANG, 64.0, 64 * 8_000.0)) + 0.8)
    assert as_latency / float(flow.samples_per_s) > 1.59


def test_length_bias_of_the_context_in_flight() -> None:
    """A long run of slots that each hold one sequence at a time, averaged token by token."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(7.0, 0.8, 200_000)
    over_time = 300.0 + np.sum(lengths**2 / 2.0) / np.sum(lengths)
    law = mean_decode_context_tokens(300.0, lengths.mean(), np.mean(lengths**2))
    assert law == pytest.approx(over_time, rel=1e-12)


def test_hfu_returns_the_measured_mfu() -> None:
    executed, tokens = 9e18, 512 * 18_294.0
    hfu = hfu_from_mfu(
        0.105, executed, 22e9, tokens, gpus=64, peak_flops_per_s=989e12, imbalance=1.2, fixed_s=5.0
    )
    seconds = executed / (64 * 989e12 * hfu) * 1.2 + 5.0
    assert mfu(22e9, tokens, 64, 989e12, seconds) == pytest.approx(0.105, rel=1e-12)
    with pytest.raises(ValueError, match="fixed_s"):
        hfu_from_mfu(0.9, executed, 22e9, 1e6, gpus=64, peak_flops_per_s=989e12, fixed_s=1e6)
