"""The staleness law against simulation, a re-implementation in plain numbers, and its limits."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq

from allocator.physics.pipeline import Pipeline, StalenessLaw, staleness_law
from allocator.physics.residence import ResidenceTable, residence_table
from allocator.physics.staleness import (
    accepted_fraction,
    accepted_staleness_mean,
    admission_rate_per_s,
    after_rejection,
    staleness_cdf,
    staleness_mean,
    staleness_quantile,
)
from tests.physics.queue_event_simulation import Setting, simulate
from tests.physics.queue_rows import Row, lognormal_table, pipeline, rows

CDF_TOLERANCE = 0.06
TABLE = lognormal_table(0.5, 8)
VERSIONS = np.arange(41)


def law_of(setting: Setting) -> tuple[StalenessLaw, ResidenceTable]:
    table = lognormal_table(setting.length_cv, setting.group_size)
    return staleness_law(pipeline(setting), table), table


@pytest.mark.parametrize("row", rows(), ids=str)
def test_staleness_of_the_simulated_settings(row: Row) -> None:
    law, table = law_of(row.setting)
    distance = np.abs(staleness_cdf(VERSIONS, law, table) - row.staleness_cdf)
    assert np.max(distance) < CDF_TOLERANCE
    assert float(staleness_mean(law)) == pytest.approx(row.staleness_mean, abs=0.1)


@pytest.mark.parametrize(
    ("setting", "seed"),
    [
        (Setting(64, 64, 8, 1, 0.6, 0.5, 0.1), 1),
        (Setting(40, 32, 8, 2, 0.97, 0.5, 0.2), 2),
        (Setting(64, 32, 4, 2, 1.3, 0.8, 0.2), 3),
        (Setting(48, 24, 8, 1, 1.05, 1.1, 0.1), 4),
    ],
)
def test_fresh_simulations(setting: Setting, seed: int) -> None:
    outcome = simulate(setting, 2500, seed)
    law, table = law_of(setting)
    assert np.max(np.abs(staleness_cdf(VERSIONS, law, table) - outcome.staleness_cdf)) < 0.05
    assert float(staleness_mean(law)) == pytest.approx(outcome.staleness_mean, abs=0.12)
    spread = (setting.group_size - 1) / 2.0 / setting.in_flight
    assert table.tailness + spread == pytest.approx(outcome.residence_mean, rel=0.03)


def by_hand(line: Pipeline, table: ResidenceTable, versions: int) -> tuple[float, float, float]:
    """Wait, mean and P(<= versions) of one plan with nothing but `math`: the stated formulas."""
    n, h = 4096, table.spacing

    def look(values: NDArray[np.float64], c: float) -> float:
        i = min(int(max(c / h, 0.0)), n)
        return float(values[i] + (max(c / h, 0.0) - i) * (values[i + 1] - values[i]))

    def dispersion(w: float) -> float:
        return float(1.0 - line.kept_share * (1.0 - look(table.variance, w) / w))

    q1 = min(line.queue_batches, 1.0)
    span, c = max(line.queue_batches - 1.0, 0.0), line.step_cv
    w1 = line.train_s / line.length_s / line.load
    u, g, w = line.load / q1, line.groups_per_batch * q1, w1 * q1
    mu = u - 1.0 if abs(u - 1.0) >= 1e-9 else 1e-9
    v = min(max(1.0 - line.kept_share * (1.0 - look(table.variance_slope, w)), 0.0), 1.0)
    near = dispersion(w)
    fill = max(near / g - (1.0 - v * v) / (6.0 * g * g), near / (10.0 * g))
    s = math.sqrt(fill + c * c * u * u)
    skew = 2.0 * (fill**2 - c**4 * u**3) / s**3
    skew = skew if abs(skew) >= 1e-4 else 1e-4
    z = 6.0 / skew * (math.cbrt(max(1.0 + skew * mu / (2.0 * s), 1e-12)) - 1.0) + skew / 6.0
    f, a, b = math.erfc(z / math.sqrt(2.0)) / 2.0, 1.0 - skew**2 / 36.0, skew / 6.0
    density = s * math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
    i = max(density * (a * a + a * b * z + b * b * (z * z + 2.0) / 3.0) - mu * f, 1e-15, 1e-15 - mu)
    lost = min(f * (1.0 - f) * (1.0 - v) / (2.0 * g), f * (i + mu), (1.0 - f) * i)
    i1, o1 = i - lost, i + mu - lost
    s1 = u * near / g + c * c * u * u
    k = span + math.sqrt(math.pi * s1 / 2.0)
    r = 1.0 / (mu * mu / (2.0 * s1) + math.pi**2 * s1 / (2.0 * k * k))
    sigma2 = u * dispersion((1.0 + 2.0 * r) * w) / g + c * c * u * u
    theta = min(max(2.0 * mu * span / sigma2, -60.0), 60.0)
    rise = math.expm1(theta)
    total = o1 / i1 * rise + mu / i1
    idle, p = mu / total, min(f * mu / total / i1, 1.0)
    root, edge = math.sqrt(o1 / i1), mu / i1 / (1.0 + math.sqrt(o1 / i1)) / total
    top, inside = (1.0 + rise) * root * edge, root * rise / total
    mean = 0.5 + theta / 12.0 - theta**3 / 720.0
    var = 1.0 / 12.0 - theta**2 / 240.0
    if abs(theta) >= 0.05:
        mean, var = 1.0 + 1.0 / rise - 1.0 / theta, 1.0 / theta**2 - (1.0 + rise) / rise**2
    y = span * (inside * mean + top)
    vary = span * span * (inside * (mean * mean + var) + top) - y * y
    idle, p = q1 * idle + 1.0 - q1, q1 * p + 1.0 - q1
    sigma2 *= q1 * q1

    u, g = line.load, line.groups_per_batch
    wait, d = idle / (u + idle), 1.0 - max((u + idle - 1.0) / (u + idle), 0.0)
    size, cv = table.group_size, table.length_cv
    tau = w1 * u / (1.0 - wait)
    w = table.tailness + (line.constant_s + line.spread_s) / line.length_s
    x, age, m = w / tau, (y + 0.5) * d, line.optimizer_steps
    slots = size * g * (1.0 + line.constant_s / line.length_s) / (line.kept_share * w1)
    own = line.kept_share * d * tau * table.mean_difference / (4.0 * g * table.sd**2)
    stretch = 1.0 - own * (1.0 - min(1.0, cv * cv / size)) - p * min(1.0, cv) / slots
    ell, r = x + age, max(2.0 * vary / sigma2, 1e-9)
    step = c * c * (ell - 2.0 * r * (1.0 - math.exp(-ell / r)))
    step += d * d * dispersion(age * tau) * (y + 0.5) / g * ell / (ell + 2.0 * r)
    count = max(w * dispersion(w) / (g * w1) - (1.0 - v * v) / (3.0 * g * g), 0.0)
    kernel = d * d * (vary + 1.0 / 12.0) + 2.0 * d * y * wait + (1.0 - p) ** 2 * step
    kernel = max(kernel + p * p * count, 1e-6)
    kernel += (line.weight_sync_every**2 - 1.0) / 12.0
    mean = x + age + 0.5 - wait - p * (size - 1) / (2.0 * size * g)
    mean += (line.weight_sync_every - 1.0) / 2.0
    half, scale = math.sqrt(3.0 * kernel), tau / max(stretch, 0.2)

    rounded = mean
    for order in (1, 2):
        where = 2.0 * math.pi * order / scale * 8.0 * 4096 * h / math.pi
        cell = min(int(where), 8 * 4096)
        part = min(where - cell, 1.0)
        real, imaginary = (
            float(values[cell] + part * (values[cell + 1] - values[cell]))
            for values in (table.transform_cos, table.transform_sin)
        )
        turn = 2.0 * math.pi * order * (mean - 0.5)
        wave = math.sin(2.0 * math.pi * order * half) / (2.0 * math.pi**2 * order * order * half)
        rounded += wave * (math.sin(turn) * real + math.cos(turn) * imaginary)

    def batches(n: int) -> float:
        at = n + 0.5 - mean
        high = look(table.integrated, table.tailness + scale * (at + half))
        low = look(table.integrated, table.tailness + scale * (at - half))
        return min((high - low) / (2.0 * scale * half), 1.0) if n >= 0 else 0.0

    b, rest = divmod(versions, int(m))
    share = ((rest + 1) * batches(b) + (m - 1 - rest) * batches(b - 1)) / m
    return wait, m * rounded + (m - 1.0) / 2.0, share


def random_pipeline(size: int, seed: int) -> Pipeline:
    rng = np.random.default_rng(seed)
    return Pipeline(
        load=np.exp(rng.uniform(np.log(0.2), np.log(4.0), size)),
        groups_per_batch=rng.integers(1, 65, size).astype(np.float64),
        queue_batches=rng.choice([0.6, 1.0, 2.0, 3.0, 4.0], size),
        train_s=np.exp(rng.uniform(np.log(5.0), np.log(300.0), size)),
        step_cv=rng.choice([0.0, 0.1, 0.3], size),
        length_s=rng.uniform(10.0, 100.0, size),
        constant_s=rng.uniform(0.0, 30.0, size),
        spread_s=rng.uniform(0.0, 5.0, size),
        kept_share=rng.uniform(0.4, 1.0, size),
        optimizer_steps=rng.choice([1.0, 4.0], size),
        weight_sync_every=rng.choice([1.0, 3.0], size),
    )


def single(line: Pipeline, index: int) -> Pipeline:
    return Pipeline(
        *(
            float(np.broadcast_to(value, (index + 1,))[-1])
            if np.ndim(value) == 0
            else float(value[index])
            for value in astuple(line)
        )
    )


@pytest.mark.parametrize("table", [TABLE, lognormal_table(1.3, 1)], ids=["S8", "S1"])
def test_third_person_gets_the_same_numbers(table: ResidenceTable) -> None:
    lines = random_pipeline(60, seed=1)
    law = staleness_law(lines, table)
    for index in range(60):
        wait, mean, share = by_hand(single(lines, index), table, 5)
        assert float(law.wait_fraction[index]) == pytest.approx(wait, abs=1e-9)
        assert float(staleness_mean(law)[index]) == pytest.approx(mean, abs=1e-9, rel=1e-9)
        assert float(staleness_cdf(5, law, table)[index]) == pytest.approx(share, abs=1e-9)


def test_array_call_equals_single_calls() -> None:
    lines = random_pipeline(9000, seed=2)  # more than one block
    law = staleness_law(lines, TABLE)
    shares = staleness_cdf(4, law, TABLE)
    accepted = accepted_fraction(4, lines, TABLE)
    for index in [*range(0, 9000, 900), 8191, 8192, 8999]:
        line = single(lines, index)
        alone = staleness_law(line, TABLE)
        assert float(alone.batches) == law.batches[index]
        assert float(staleness_cdf(4, alone, TABLE)) == shares[index]
        assert float(accepted_fraction(4, line, TABLE)) == accepted[index]


def test_shapes_broadcast() -> None:
    line = Pipeline(np.array([[0.5], [1.5]]), 8, np.array([1.0, 2.0, 3.0]), 20.0, 0.1, 30.0)
    law = staleness_law(line, TABLE)
    assert law.batches.shape == (2, 3)
    assert staleness_cdf(np.arange(5)[:, None, None], law, TABLE).shape == (5, 2, 3)
    assert accepted_fraction(2, line, TABLE).shape == (2, 3)
    assert staleness_quantile(0.95, law, TABLE).shape == (2, 3)


def test_generator_bound_mean_is_littles_law_and_the_load() -> None:
    """u < 1 and many groups: C M / B + u."""
    line = Pipeline(0.5, 512.0, 2.0, 30.0, 0.05, 40.0)
    in_flight_over_batch = 40.0 / (30.0 / 0.5)
    assert float(staleness_mean(staleness_law(line, TABLE))) == pytest.approx(
        in_flight_over_batch * TABLE.tailness + 0.5, abs=2e-3
    )


@pytest.mark.parametrize("queue", [1.0, 2.0, 4.0])
def test_trainer_bound_mean_is_the_age_of_a_full_queue(queue: float) -> None:
    """u > 1: x + (2 q - 1 + u) / (2 u)."""
    line = Pipeline(2.5, 512.0, queue, 30.0, 0.05, 40.0)
    x = TABLE.tailness * 40.0 / 30.0
    assert float(staleness_law(line, TABLE).centre) == pytest.approx(
        x + (2.0 * queue - 1.0 + 2.5) / 5.0, abs=2e-3
    )


@pytest.mark.parametrize("queue", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("groups", [1.0, 16.0, 512.0])
def test_mean_has_no_jump_an_optimiser_could_harvest(queue: float, groups: float) -> None:
    """Between 0.9 and 1.1 the mean climbs to the full queue's, by no more per step than the width
    of the climb allows; at load 1 itself it is continuous."""
    load = np.linspace(0.9, 1.1, 20_001)
    line = Pipeline(load, groups, queue, 30.0, 0.1, 40.0)
    mean = staleness_mean(staleness_law(line, TABLE))
    assert np.max(np.abs(np.diff(mean))) < 2e-3 * queue
    close = replace(line, load=1.0 + np.array([-1e-9, -1e-10, 0.0, 1e-10, 1e-9]))
    law = staleness_law(close, TABLE)
    assert np.ptp(staleness_mean(law)) < 1e-6
    assert np.ptp(staleness_cdf(3, law, TABLE)) < 1e-6


def test_distribution_is_one() -> None:
    lines = random_pipeline(500, seed=3)
    law = staleness_law(lines, TABLE)
    versions = np.arange(-1, 400)
    share = staleness_cdf(versions[:, None], law, TABLE)
    assert np.all(share[0] == 0.0)
    assert np.all(np.diff(share, axis=0) >= -1e-12)
    assert np.all((share >= 0.0) & (share <= 1.0))
    far = law.batches < 10.0
    assert np.all(share[-1][far] > 1.0 - 1e-6)
    # the mean is that of the distribution, up to the sawtooth of a nearly fixed residence
    by_sum = np.sum(1.0 - share[1:], axis=0)
    assert np.max((np.abs(by_sum - staleness_mean(law)) / law.optimizer_steps)[far]) < 0.1


@pytest.mark.parametrize("probability", [0.0, 0.5, 0.95, 0.99, 1.0])
def test_quantile_is_the_smallest_version_that_suffices(probability: float) -> None:
    lines = random_pipeline(300, seed=4)
    law = staleness_law(lines, TABLE)
    versions = staleness_quantile(probability, law, TABLE)
    wanted = min(probability, 1.0 - 1e-12)
    assert np.all(staleness_cdf(versions, law, TABLE) >= wanted)
    assert np.all((versions == 0) | (staleness_cdf(versions - 1.0, law, TABLE) < wanted))


def test_optimizer_steps_and_sparse_sync() -> None:
    line = Pipeline(0.8, 16.0, 2.0, 30.0, 0.1, 40.0)
    plain = staleness_law(line, TABLE)
    four = staleness_law(replace(line, optimizer_steps=4.0), TABLE)
    sparse = staleness_law(replace(line, weight_sync_every=3.0), TABLE)
    assert float(staleness_mean(four)) == pytest.approx(4.0 * float(plain.batches) + 1.5)
    assert float(sparse.centre) == pytest.approx(float(plain.centre) + 1.0)
    assert float(staleness_cdf(11, four, TABLE)) == pytest.approx(
        float(staleness_cdf(2, plain, TABLE))
    )
    assert float(sparse.half_width) ** 2 / 3.0 == pytest.approx(
        float(plain.half_width) ** 2 / 3.0 + 8.0 / 12.0
    )


def test_reject_root_solves_its_equation() -> None:
    lines = random_pipeline(3000, seed=5)
    for limit in (1, 4, 12):
        accepted = accepted_fraction(limit, lines, TABLE)
        law = staleness_law(after_rejection(lines, accepted), TABLE)
        assert np.all((accepted > 0.0) & (accepted <= 1.0))
        misfit = staleness_cdf(limit, law, TABLE) - accepted
        # where the distribution turns steeply at load 1 the root is sharper than its equation
        assert np.quantile(np.abs(misfit), 0.99) < 1e-8
        assert np.max(np.abs(misfit)) < 1e-5


def test_reject_root_against_bracketing() -> None:
    lines = random_pipeline(40, seed=6)
    accepted = accepted_fraction(3, lines, TABLE)
    for index in range(40):
        line = single(lines, index)

        def excess(share: float, line: Pipeline = line) -> float:
            law = staleness_law(after_rejection(line, share), TABLE)
            return float(staleness_cdf(3, law, TABLE)) - share

        if excess(1.0) < -1e-9:
            assert accepted[index] == pytest.approx(brentq(excess, 1e-6, 1.0, xtol=1e-13), abs=1e-9)
        else:
            assert accepted[index] == pytest.approx(1.0, abs=1e-9)


def test_a_wider_limit_accepts_more() -> None:
    lines = random_pipeline(500, seed=8)
    shares = [accepted_fraction(limit, lines, TABLE) for limit in range(1, 12)]
    assert np.all(np.diff(shares, axis=0) > -1e-9)
    assert np.all(accepted_fraction(10_000, lines, TABLE) == 1.0)


@pytest.mark.parametrize(
    ("setting", "limit", "seed"),
    [
        (Setting(64, 64, 8, 1, 0.6, 0.5, 0.1), 1, 1),
        (Setting(64, 32, 4, 2, 0.9, 0.5, 0.1), 3, 2),
        (Setting(64, 32, 8, 1, 1.5, 1.0, 0.1), 3, 3),
        (Setting(64, 64, 4, 2, 1.0, 1.2, 0.2), 2, 4),
    ],
)
def test_rejection_against_simulation(setting: Setting, limit: int, seed: int) -> None:
    outcome = simulate(setting, 2500, seed, limit=limit)
    table = lognormal_table(setting.length_cv, setting.group_size)
    accepted = accepted_fraction(limit, pipeline(setting), table)
    law = staleness_law(after_rejection(pipeline(setting), accepted), table)
    share = 1.0 - outcome.rejected_share / (1.0 - outcome.dropped_share)
    assert float(accepted) == pytest.approx(share, abs=0.03)
    assert float(law.wait_fraction) == pytest.approx(outcome.wait, abs=0.015)
    assert float(accepted_staleness_mean(limit, law, table)) == pytest.approx(
        outcome.staleness_mean, abs=0.1
    )


def test_constant_latency_adds_residence_without_tail() -> None:
    quick = Pipeline(0.6, 64.0, 2.0, 30.0, 0.1, 40.0)
    slow = replace(quick, constant_s=25.0)
    extra = 25.0 / (30.0 / 0.6)
    assert float(staleness_law(slow, TABLE).centre) == pytest.approx(
        float(staleness_law(quick, TABLE).centre) + extra, abs=1e-6
    )


def test_residence_without_spread_is_finite() -> None:
    """Lengths all equal: every number stays finite and the mean is that of the pipeline."""
    table = residence_table(lambda lengths: (lengths >= 7.0).astype(np.float64), 7.0, 4)
    law = staleness_law(Pipeline(np.array([0.5, 1.0, 2.0]), 8.0, 2.0, 10.0, 0.0, 20.0), table)
    assert table.tailness == pytest.approx(1.0)
    assert np.all(np.isfinite(law.batches))
    assert np.all(np.isfinite(staleness_cdf(3, law, table)))


SIX_RUNS = (  # in flight, batch, queue, load, tailness, measured mean staleness
    (120, 240, 2, 0.63, 1.42, 1.26),
    (240, 120, 2, 0.92, 1.43, 3.59),
    (128, 128, 2, 1.07, 1.44, 3.09),
    (240, 120, 1, 0.86, 1.42, 3.40),
    (120, 120, 1, 0.67, 1.42, 1.92),
    (128, 128, 1, 1.14, 1.45, 2.01),
)


@pytest.mark.parametrize(
    ("engines", "low", "high"), [(0, 0.05, 0.08), (1, 0.03, 0.06), (4, 0.0, 0.025)]
)
def test_six_measured_runs(engines: int, low: float, high: float) -> None:
    """Applied Compute's Qwen3-8B runs; group size 8 is assumed, the load is measured.

    0 engines: samples dispatched one by one; else whole groups under that many limits, each
    leaving (S - 1)/2 slots empty.  The rows cannot decide between them; nothing is fitted.
    """
    errors = []
    for in_flight, batch, queue, load, tailness, measured in SIX_RUNS:
        cv = brentq(lambda c, t=tailness: lognormal_table(round(c, 4), 8).tailness - t, 0.1, 0.6)
        table = lognormal_table(round(cv, 4), 8)
        busy = in_flight - engines * 3.5
        line = Pipeline(
            load,
            batch / 8.0,
            queue,
            load * batch / busy,
            0.1,
            1.0,
            spread_s=0.0 if engines else 3.5 / in_flight,
        )
        errors.append(float(staleness_mean(staleness_law(line, table))) / measured - 1.0)
    assert low < float(np.mean(np.abs(errors))) < high


def test_admission() -> None:
    """(L + 1/2) B / (E[W] + train), and the whole batch for L = 0."""
    assert admission_rate_per_s(2, 64, 20.0, 40.0, 12.0) == pytest.approx(5.0)
    assert admission_rate_per_s([0, 1], 64, 20.0, 40.0, 24.0) == pytest.approx([1.0, 96.0 / 44.0])
