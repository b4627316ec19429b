"""Money: what a GPU-hour costs to own, what a token costs, what a hosted service would charge."""

from __future__ import annotations

from typing import Any

HOURS_PER_YEAR = 8760.0
SECONDS_PER_HOUR = 3600.0
TOKENS_PER_MTOK = 1e6


def ownership_usd_per_gpu_hour(
    capex_usd_per_server: float,
    gpus_per_server: int,
    lifetime_years: float,
    cost_of_capital: float,
    other_usd_per_gpu_hour: float,
) -> float:
    """Dollars per GPU-hour of an owned server: annuity of its capital plus running costs.

    annuity = capex r / (1 - (1 + r)^-years), spread over every hour of the year and GPU;
    r = 0 spreads the capital evenly. `other_usd_per_gpu_hour` is power, colocation and staff.

    Examples
    --------
    $361k per 8-GPU H200 server, 72.5% of $1.59 being capital (SemiAnalysis 2026), is reached with
    5 years at 3.9% or 6 years at 9.2%: a family, not one answer.

    >>> round(ownership_usd_per_gpu_hour(361e3, 8, 5, 0.039, 0.275 * 1.59), 2)
    1.59
    >>> round(ownership_usd_per_gpu_hour(361e3, 8, 6, 0.092, 0.275 * 1.59), 2)
    1.59
    """
    rate = cost_of_capital
    share = rate / (1.0 - (1.0 + rate) ** -lifetime_years) if rate > 0 else 1.0 / lifetime_years
    return (
        capex_usd_per_server * share / (HOURS_PER_YEAR * gpus_per_server) + other_usd_per_gpu_hour
    )


def usd_per_mtok(usd_per_hour: Any, tokens_per_s: Any) -> Any:
    """Dollars per million tokens at a steady rate.

    Examples
    --------
    96 H200 at $1.59 that train 64 x 20,164 tokens in 492.2 s, and 256 at 1.98 samples/s of 18,294
    (SemiAnalysis 2026; the first is printed there as 16.23):

    >>> round(usd_per_mtok(96 * 1.59, 64 * 20164 / 492.2), 2)
    16.17
    >>> round(usd_per_mtok(256 * 1.59, 1.98 * 18294), 2)
    3.12
    """
    return usd_per_hour / (tokens_per_s * SECONDS_PER_HOUR) * TOKENS_PER_MTOK


def hosted_usd(
    samples: Any,
    prompt_tokens: Any,
    response_tokens: Any,
    *,
    prefill_usd_per_mtok: float,
    sample_usd_per_mtok: float,
    train_usd_per_mtok: float,
) -> Any:
    """Dollars that a hosted training service charges for `samples` samples.

    samples (P prefill + R sample + (P + R) train) / 1e6

    Examples
    --------
    Tinker's January 2026 prices for Qwen3-235B on the trace of a published run:

    >>> usd = hosted_usd(64, 7932, 12232, prefill_usd_per_mtok=0.68, sample_usd_per_mtok=1.70,
    ...                  train_usd_per_mtok=2.04)
    >>> round(usd, 2), round(usd / (64 * 20164) * 1e6, 2)
    (4.31, 3.34)
    """
    per_sample = (
        prompt_tokens * prefill_usd_per_mtok
        + response_tokens * sample_usd_per_mtok
        + (prompt_tokens + response_tokens) * train_usd_per_mtok
    )
    return samples * per_sample / TOKENS_PER_MTOK
