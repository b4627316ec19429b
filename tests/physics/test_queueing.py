"""The queue law against simulation, exact forms, limits, and what an optimiser relies on."""

import heapq
from dataclasses import fields

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammaincc, gammaln
from scipy.stats import poisson

from allocator.physics.queueing import QueueFlow, completion_dispersion, queue_flow
from allocator.physics.residence import ResidenceTable, residence_table
from tests.physics.queue_event_simulation import Setting, simulate
from tests.physics.queue_rows import Row, lognormal_table, pipeline, rows

WAIT_TOLERANCE = 0.03
TABLE = lognormal_table(0.5, 8)
POISSON = 1e-9  # keeping a tiny share of the groups makes the rest a Poisson stream


def flow_of(setting: Setting) -> QueueFlow:
    line = pipeline(setting)
    return queue_flow(
        line.load,
        line.groups_per_batch,
        line.queue_batches,
        line.train_s / line.load,
        line.step_cv,
        lognormal_table(setting.length_cv, setting.group_size),
    )


@pytest.mark.parametrize("row", rows(), ids=str)
def test_wait_and_drop_of_the_simulated_settings(row: Row) -> None:
    flow = flow_of(row.setting)
    assert float(flow.wait_fraction) == pytest.approx(row.wait, abs=WAIT_TOLERANCE)
    assert float(flow.dropped_fraction) == pytest.approx(row.dropped_share, abs=WAIT_TOLERANCE)


def test_no_simulated_setting_is_off_by_more_than_a_hundredth() -> None:
    """No row is left outside the tolerance; the docs may quote this bound."""
    misfit = [
        max(
            abs(float(flow_of(row.setting).wait_fraction) - row.wait),
            abs(float(flow_of(row.setting).dropped_fraction) - row.dropped_share),
        )
        for row in rows()
    ]
    assert max(misfit) < 0.01


def test_tables_agree_with_the_simulated_tailness() -> None:
    for row in rows():
        table = lognormal_table(row.setting.length_cv, row.setting.group_size)
        assert table.tailness == pytest.approx(row.tailness, rel=0.03)
        assert table.length_mean_tokens == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize(
    ("setting", "seed"),
    [
        (Setting(16, 16, 16, 1, 1.03, 1.3, 0.1), 3),
        (Setting(40, 32, 8, 2, 0.97, 0.5, 0.2), 4),
        (Setting(24, 48, 4, 3, 1.1, 0.8, 0.1), 5),
        (Setting(32, 16, 4, 1, 0.7, 0.4, 0.0), 6),
    ],
)
def test_fresh_simulations(setting: Setting, seed: int) -> None:
    outcome = simulate(setting, 3000, seed)
    flow = flow_of(setting)
    assert float(flow.wait_fraction) == pytest.approx(outcome.wait, abs=0.015)
    assert float(flow.dropped_fraction) == pytest.approx(outcome.dropped_share, abs=0.02)


def test_simulator_reproduces_a_row_of_the_library() -> None:
    row = next(row for row in rows() if row.setting.in_flight == 16 and row.setting.batch == 16)
    outcome = simulate(row.setting, 6000, 1)
    assert outcome.wait == pytest.approx(row.wait, abs=0.01)
    assert outcome.dropped_share == pytest.approx(row.dropped_share, abs=0.01)
    assert outcome.staleness_mean == pytest.approx(row.staleness_mean, abs=0.15)


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("load", [0.3, 0.8, 1.0, 1.3, 2.0])
def test_one_batch_queue_of_poisson_arrivals_is_the_renewal_form(groups: int, load: float) -> None:
    """Wait is that of v = B / E[max(train, Erlang(G))], exact for Poisson arrivals."""
    k = float(groups)
    idle = (1 - load) * gammaincc(k, k * load)
    idle += np.exp(k * np.log(k * load) - k * load - gammaln(k + 1))
    flow = queue_flow(load, groups, 1, 1.0, 0.0, TABLE, kept_share=POISSON)
    assert float(flow.wait_fraction) == pytest.approx(idle / (load + idle), abs=0.003)


def poisson_chain(load: float, groups: int, queue: int) -> tuple[float, float, float]:
    """Wait, drop and mean backlog of the embedded chain with Poisson arrivals, by its matrix."""
    size = (queue - 1) * groups + 1
    arrivals = poisson.pmf(np.arange(40 * groups + 200), load * groups)
    move = np.zeros((size, size))
    idle = np.zeros(size)
    for left in range(size):
        for count, weight in enumerate(arrivals):
            held = min(left + count, queue * groups)
            move[left, max(held, groups) - groups] += weight
            idle[left] += weight * max(groups - held, 0) / groups
    balance = np.vstack([move.T - np.eye(size), np.ones(size)])
    state = np.linalg.lstsq(balance, np.append(np.zeros(size), 1.0), rcond=None)[0]
    waited = float(state @ idle)
    backlog = float(state @ np.arange(size)) / groups
    return waited / (load + waited), (load + waited - 1) / (load + waited), backlog


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("queue", [2, 4])
@pytest.mark.parametrize("load", [0.7, 0.95, 1.0, 1.1, 1.5])
def test_longer_queues_of_poisson_arrivals(groups: int, queue: int, load: float) -> None:
    wait, drop, backlog = poisson_chain(load, groups, queue)
    flow = queue_flow(load, groups, queue, 1.0, 0.0, TABLE, kept_share=POISSON)
    assert float(flow.wait_fraction) == pytest.approx(wait, abs=0.016)
    assert float(flow.dropped_fraction) == pytest.approx(drop, abs=0.016)
    assert float(flow.backlog) == pytest.approx(backlog, abs=0.06 * queue)


def random_plans(
    size: int, seed: int = 0
) -> tuple[
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
]:
    rng = np.random.default_rng(seed)
    return (
        np.exp(rng.uniform(np.log(0.05), np.log(20.0), size)),
        rng.integers(1, 129, size).astype(np.float64),
        rng.integers(1, 9, size).astype(np.float64),
        np.exp(rng.uniform(np.log(0.02), np.log(50.0), size)),
        rng.choice([0.0, 0.05, 0.1, 0.3], size),
    )


@pytest.mark.parametrize(("cv", "size"), [(0.02, 1), (0.3, 64), (1.5, 4)])
def test_throughput_is_below_both_rates(cv: float, size: int) -> None:
    plans = random_plans(20_000)
    flow = queue_flow(*plans, lognormal_table(cv, size))
    rate = 1.0 - flow.wait_fraction
    assert np.all(np.isfinite(rate))
    assert np.all(rate <= np.minimum(plans[0], 1.0) * (1.0 + 1e-12))
    assert np.all((flow.dropped_fraction >= 0.0) & (flow.dropped_fraction < 1.0))
    # what comes in is trained or dropped
    assert np.allclose(plans[0] * (1.0 - flow.dropped_fraction), rate, atol=1e-9)
    assert np.all((flow.backlog >= 0.0) & (flow.backlog <= plans[2] - 1.0 + 1e-9))
    assert np.all(flow.backlog_variance <= (plans[2] - 1.0) ** 2 / 4.0 + 1e-9)
    assert np.all((flow.waiting_steps >= 0.0) & (flow.waiting_steps <= 1.0 + 1e-12))


@pytest.mark.parametrize("queue", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("groups", [1.0, 4.0, 64.0])
def test_monotone_in_load_and_queue(queue: float, groups: float) -> None:
    """The cube of a normal ripples by a few 1e-6 where waiting is rare; nothing more."""
    load = np.concatenate([np.geomspace(0.02, 0.6, 100), np.linspace(0.6, 2.0, 2001)])
    train = 1.5
    flow = queue_flow(load, groups, queue, train / load, 0.1, TABLE)
    longer = queue_flow(load, groups, queue + 1.0, train / load, 0.1, TABLE)
    assert np.all(np.diff(flow.wait_fraction) < 1e-5)
    assert np.all(np.diff(flow.dropped_fraction) > -1e-5)
    assert np.all(longer.wait_fraction <= flow.wait_fraction + 1e-12)
    assert np.all(longer.dropped_fraction <= flow.dropped_fraction + 1e-12)


@pytest.mark.parametrize("queue", [0.7, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("groups", [1.0, 16.0])
def test_no_jump_at_load_one(queue: float, groups: float) -> None:
    load = 1.0 + np.array([-1e-5, -2e-9, -1e-9, -1e-10, 0.0, 1e-10, 1e-9, 2e-9, 1e-5])
    flow = queue_flow(load, groups, queue, 1.0, 0.1, TABLE)
    for field in fields(flow):
        value = getattr(flow, field.name)
        assert np.ptp(value[1:-1]) < 1e-6
        assert np.ptp(value) < 1e-2


def test_no_jump_where_the_queue_holds_one_batch() -> None:
    below = queue_flow(0.9, 8.0, 1.0 - 1e-9, 1.0, 0.1, TABLE)
    above = queue_flow(0.9, 8.0, 1.0 + 1e-9, 1.0, 0.1, TABLE)
    for field in fields(below):
        assert getattr(below, field.name) == pytest.approx(getattr(above, field.name), abs=1e-6)


def test_less_than_a_batch_always_waits_for_the_rest() -> None:
    flow = queue_flow(50.0, 64.0, 0.6, 0.02, 0.0, TABLE)
    assert float(flow.wait_fraction) == pytest.approx(0.4 / 50.4, rel=1e-3)


def test_limits() -> None:
    light = queue_flow(1e-3, 8.0, 2.0, 1e3, 0.1, TABLE)
    heavy = queue_flow(1e3, 8.0, 2.0, 1e-3, 0.1, TABLE)
    deep = queue_flow(np.array([0.8, 1.25]), 8.0, 500.0, 1.0, 0.1, TABLE)
    assert float(light.wait_fraction) == pytest.approx(0.999, abs=1e-9)
    assert float(light.dropped_fraction) == pytest.approx(0.0, abs=1e-9)
    assert float(light.backlog) == pytest.approx(0.0, abs=1e-9)
    assert float(heavy.wait_fraction) == pytest.approx(0.0, abs=1e-9)
    assert float(heavy.dropped_fraction) == pytest.approx(0.999, abs=1e-9)
    assert float(heavy.backlog) == pytest.approx(1.0, abs=1e-6)
    assert deep.wait_fraction == pytest.approx([0.2, 0.0], abs=1e-9)
    assert deep.dropped_fraction == pytest.approx([0.0, 0.2], abs=1e-9)


def test_array_call_equals_single_calls() -> None:
    plans = random_plans(300, seed=7)
    flow = queue_flow(*plans, TABLE)
    for index in range(0, 300, 7):
        load, groups, queue, fill, cv = (float(part[index]) for part in plans)
        single = queue_flow(load, groups, queue, fill, cv, TABLE)
        for field in fields(flow):
            assert getattr(single, field.name) == getattr(flow, field.name)[index]


def test_dispersion_of_exponential_slots_is_poisson() -> None:
    """Single samples of exponential length from many slots are a Poisson stream, for any window."""
    table = residence_table(lambda lengths: -np.expm1(-lengths), 40.0, 1)
    windows = np.array([0.05, 0.3, 1.0, 5.0, 12.0, 40.0])
    assert completion_dispersion(table, windows) == pytest.approx(np.ones(6), abs=5e-3)


@pytest.mark.parametrize(("cv", "size"), [(0.3, 1), (0.5, 8), (1.3, 16), (0.2, 32)])
def test_dispersion_runs_from_poisson_to_the_slots_own(cv: float, size: int) -> None:
    table = lognormal_table(cv, size)
    short, long = completion_dispersion(table, np.array([1e-3, 1e4]))
    assert float(short) == pytest.approx(1.0, abs=0.05)
    assert float(long) == pytest.approx(table.length_cv**2 / size, abs=2e-3)
    windows = np.linspace(0.01, 60.0, 500)
    assert np.all(completion_dispersion(table, windows) > 0.0)


def dispersion_simulated(cv: float, size: int, slots: int, window: float) -> float:
    """Index of dispersion of the groups finished by slots refilled one by one."""
    rng = np.random.default_rng(5)
    sigma = np.sqrt(np.log1p(cv**2))
    lengths = np.exp(sigma * rng.standard_normal(160_000) - sigma**2 / 2.0)
    free = np.zeros(slots)
    ends = np.empty(lengths.size)
    heap = free.tolist()
    for index, length in enumerate(lengths.tolist()):
        end = heapq.heappop(heap) + length
        ends[index] = end
        heapq.heappush(heap, end)
    done = np.sort(ends.reshape(-1, size).max(axis=1))
    starts = np.arange(0.1 * done[-1], 0.9 * done[-1], window / 5.0)
    counts = np.searchsorted(done, starts + window) - np.searchsorted(done, starts)
    return float(counts.var() / counts.mean())


@pytest.mark.parametrize(
    ("cv", "size", "slots", "window"),
    [
        (0.5, 8, 32, 1.0),
        (1.1, 4, 4, 1.0),
        (0.3, 32, 128, 0.3),
        (1.1, 4, 16, 3.0),
        (0.5, 1, 64, 0.3),
    ],
)
def test_dispersion_against_simulated_slots(
    cv: float, size: int, slots: int, window: float
) -> None:
    """Derived for many slots; holds at four."""
    law = float(completion_dispersion(lognormal_table(cv, size), window))
    assert law == pytest.approx(dispersion_simulated(cv, size, slots, window), rel=0.08)


def test_table_is_the_discrete_law_it_states() -> None:
    """J, tailness and mean difference from the masses one by one."""
    table = residence_table(lambda lengths: -np.expm1(-lengths / 3.0), 200.0, 4)
    step = table.spacing * table.length_mean_tokens
    below = -np.expm1(-(np.arange(4097) + 0.5) * step / 3.0)
    below[-1] = 1.0
    mass = np.diff(below**4, prepend=0.0)
    at = np.arange(4097) * table.spacing
    assert table.tailness == pytest.approx(float(mass @ at), rel=1e-12)
    for c in (-1.0, 0.3, 1.234, 4.0, 100.0):
        assert float(table.integrated_cdf(c)) == pytest.approx(
            float(mass @ np.maximum(c - at, 0.0)), abs=1e-12
        )
        assert float(table.cdf(c)) == pytest.approx(float(mass[at <= c].sum()), abs=1e-12)
    pairs = float(mass @ np.abs(at[:, None] - at[None, :]) @ mass)
    assert table.mean_difference == pytest.approx(pairs, rel=1e-10)


def test_cut_keeps_the_short_ones() -> None:
    def uniform(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip(lengths, 0.0, 1.0)

    whole: ResidenceTable = residence_table(uniform, 1.0, 2)
    cut = residence_table(uniform, 1.0, 2, cut_tokens=0.5)
    assert whole.length_mean_tokens == pytest.approx(0.5, abs=1e-4)
    assert cut.length_mean_tokens == pytest.approx(0.25, abs=1e-4)
    assert cut.tailness == pytest.approx(whole.tailness, rel=1e-6)


@pytest.mark.parametrize(("size", "longest"), [(0, 1.0), (4, 0.0)])
def test_tables_that_cannot_be(size: int, longest: float) -> None:
    with pytest.raises(ValueError, match=r"group_size|length"):
        residence_table(lambda lengths: -np.expm1(-lengths), longest, size)


def test_variance_table_is_the_one_stated() -> None:
    """Lags one by one and the whole complex transform, as the docstring says."""
    size, nodes = 4, 4096
    table = residence_table(lambda lengths: -np.expm1(-((lengths / 3.0) ** 2)), 50.0, size)
    step = table.spacing * table.length_mean_tokens
    below = -np.expm1(-(((np.arange(nodes + 1) + 0.5) * step / 3.0) ** 2))
    below[-1] = 1.0
    mass = np.diff(below, prepend=0.0)
    group = np.diff(below**size, prepend=0.0)
    others = np.diff(below ** (size - 1), prepend=0.0)
    lag = size * np.correlate(others, mass, mode="full")[nodes:]
    lag[0] = size * np.sum(mass * below ** (size - 1))
    points = 1 << int(np.ceil(np.log2(max(16 * nodes, 64.0 / table.spacing))))
    phi, psi, ending = (np.fft.fft(part, points) for part in (mass, group, lag))
    phi[0] = 0.0  # set apart below
    gain = psi / (size * (1.0 - phi))
    spectrum = np.abs(gain) ** 2 * size * (1.0 - np.abs(phi) ** 2) + 1.0 - np.abs(psi) ** 2
    spectrum += 2.0 * np.real(gain * np.conj(ending - size * psi * np.conj(phi)))
    spectrum[0] = table.length_cv**2 / size
    covariance = np.real(np.fft.ifft(spectrum))[: nodes + 1]
    slope = covariance[0] + 2.0 * np.concatenate([[0.0], np.cumsum(covariance[1:])])
    assert table.variance_slope[:-1] == pytest.approx(slope, abs=1e-9)
    variance = np.concatenate([[0.0], np.cumsum(slope[:-1]) * table.spacing])
    assert table.variance[:-1] == pytest.approx(variance, abs=1e-9)
