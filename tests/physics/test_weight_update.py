"""Retracting, draining and aborting rollouts in flight: closed forms, and slots drawn."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from allocator.physics.decode import DecodeLaw, decode_step_s
from allocator.physics.length_tables import empirical_from_samples
from allocator.physics.lengths import Lengths, capped_lognormal_from_mean_cv
from allocator.physics.renewal import lattice_masses, renewal_masses, renewal_table
from allocator.physics.weight_update import abort_table, drain, drain_lost_s, retract_s
from tests.physics.laws import FREE, LAWS, NAMES

Array = NDArray[np.float64]

EQUAL = capped_lognormal_from_mean_cv(900.0, 0.0)
WIDE = capped_lognormal_from_mean_cv(900.0, 0.8, 3000.0)
NARROW = capped_lognormal_from_mean_cv(900.0, 0.2)
EXPERTS = DecodeLaw(6.972e-3, 16.72e-3, 4.206e-5, 1.187e-8, 1 - 8 / 128)


def drawn_lives(lengths: Lengths, slots: int, until: float, seed: int) -> Array:
    """Lives (columns) of slots (rows) from a common start to beyond `until`."""
    random = np.random.default_rng(seed)
    lives = np.asarray(lengths.quantile(random.random((slots, 16)))) / lengths.mean
    while lives.sum(axis=1).min() <= until:
        more = np.asarray(lengths.quantile(random.random((slots, 16)))) / lengths.mean
        lives = np.concatenate([lives, more], axis=1)
    return lives


# --- the renewal process --------------------------------------------------------------------------


@pytest.mark.parametrize("law", [*LAWS, NARROW, EQUAL], ids=[*NAMES, "narrow", "equal"])
def test_lattice_keeps_the_mean_and_widens_by_half_a_step_at_most(law: Lengths) -> None:
    masses = lattice_masses(law, 64)
    nodes = np.arange(masses.size) / 64
    assert masses.sum() == pytest.approx(1.0)
    assert np.all(masses >= 0)
    assert masses @ nodes == pytest.approx(1.0, rel=1e-6)
    spread = math.sqrt(max(float(masses @ nodes**2 - (masses @ nodes) ** 2), 0.0))
    assert law.cv - 1e-5 <= spread <= math.hypot(law.cv, 0.5 / 64) + 1e-9


def test_renewal_masses_are_the_sum_of_all_convolutions() -> None:
    masses = np.array([0.1, 0.0, 0.5, 0.4])
    expected, power = np.zeros(30), np.array([1.0])
    for _ in range(60):
        power = np.convolve(power, masses)[:30]
        expected[: power.size] += power
    assert renewal_masses(masses, 29) == pytest.approx(expected, rel=1e-9)


def test_variance_of_ended_lives_agrees_with_drawn_slots() -> None:
    ends = np.cumsum(drawn_lives(WIDE, 40_000, 6.0, seed=2), axis=1)
    table = renewal_table(WIDE)
    for until in (0.5, 1.5, 6.0):
        counts = (ends <= until + 0.5 / 64).sum(axis=1)
        node = int(until * 64)
        assert table.completions[node] == pytest.approx(counts.mean(), abs=0.02)
        assert table.variance[node] == pytest.approx(counts.var(), rel=0.03)


# --- retract and drain ----------------------------------------------------------------------------


def test_retracting_reads_every_sequence_again() -> None:
    assert retract_s(np.array([0.0, 12.0]), 0.25).tolist() == [0.0, 3.0]


@pytest.mark.parametrize("slots", [1, 2, 7, 64, 180])
def test_equal_lengths_out_of_step_drain_like_uniform_variables(slots: int) -> None:
    got = drain(EQUAL, slots)
    assert float(got.longest) == pytest.approx(slots / (slots + 1), rel=1e-9)
    assert float(got.mean) == pytest.approx(0.5, rel=1e-9)
    law = DecodeLaw(0.01, 0.0, 1e-4, 1e-8, 0.0)
    lost = 900.0 * 0.01 * (slots / (slots + 1) - 0.5)
    assert float(drain_lost_s(law, EQUAL, slots)) == pytest.approx(lost, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("interval", [0.25, 0.75, 1.5, 3.25, 40.5])
def test_equal_lengths_in_step_lose_nothing_by_draining(interval: float) -> None:
    got = drain(EQUAL, [1.0, 16.0], interval)
    left = math.ceil(interval) - interval
    assert got.longest == pytest.approx([left] * 2, rel=1e-9)
    assert got.mean == pytest.approx([left] * 2, rel=1e-9)
    assert drain_lost_s(EXPERTS, EQUAL, [1.0, 16.0], interval) == pytest.approx([0, 0], abs=1e-9)


@pytest.mark.parametrize("law", [WIDE, NARROW, FREE], ids=["wide", "narrow", "no cap"])
@pytest.mark.parametrize("slots", [4, 32])
@pytest.mark.parametrize("interval", [0.5, 1.25, 3.0, math.inf])
def test_drains_agree_with_drawn_slots(law: Lengths, slots: int, interval: float) -> None:
    engines = 60_000 // slots
    random = np.random.default_rng(8)
    if math.isinf(interval):  # residual lives: a length met in proportion to itself, a part of it
        pool = law.quantile((np.arange(200_000) + 0.5) / 200_000) / law.mean
        picked = random.choice(pool, (engines, slots), p=pool / pool.sum())
        left = picked * random.random(picked.shape)
    else:
        ends = np.cumsum(drawn_lives(law, engines * slots, interval, seed=9), axis=1)
        left = np.where(ends > interval, ends, math.inf).min(axis=1) - interval
        left = left.reshape(engines, slots)
    got = drain(law, slots, interval, EXPERTS.expert_miss)
    error = 4 * float(left.max(axis=1).std()) / math.sqrt(engines)
    assert float(got.longest) == pytest.approx(float(left.max(axis=1).mean()), abs=error + 0.01)
    assert float(got.mean) == pytest.approx(float(left.mean()), abs=0.015)
    # Steps times experts of an engine that empties, slot by slot.
    ordered = np.sort(left, axis=1)
    still = slots - np.arange(slots)
    steps = np.diff(ordered, axis=1, prepend=0.0)
    read = (steps * (1.0 - EXPERTS.expert_miss**still)).sum(axis=1)
    assert float(got.touched) == pytest.approx(float(read.mean()), rel=0.015, abs=error)


def test_what_a_drain_costs_is_what_an_emptying_engine_takes_longer() -> None:
    """Stepped engine: seconds to empty, less its tokens at what they cost in a full engine."""
    slots, prompt, random = 24, 500.0, np.random.default_rng(4)
    pool = WIDE.quantile((np.arange(100_000) + 0.5) / 100_000)
    whole = random.choice(pool, (4000, slots), p=pool / pool.sum())
    left = whole * random.random(whole.shape)
    order = np.argsort(left, axis=1)
    left, age = (np.take_along_axis(a, order, axis=1) for a in (left, whole - left))
    seconds = np.zeros(len(left))
    for i in range(slots):
        begun = left[:, i - 1] if i else np.zeros(len(left))
        n, end = slots - i, left[:, i]
        context = n * prompt + age[:, i:].sum(axis=1) + n * (begun + end) / 2
        seconds += (end - begun) * decode_step_s(EXPERTS, n, context)
    shared = (EXPERTS.alpha_s + EXPERTS.expert_s * (1 - EXPERTS.expert_miss**slots)) / slots
    carried = EXPERTS.gamma_s_per_token * ((prompt + age) * left + left**2 / 2)
    lost = seconds - (left * (shared + EXPERTS.beta_s) + carried).sum(axis=1)
    got = float(drain_lost_s(EXPERTS, WIDE, slots))
    assert got == pytest.approx(float(lost.mean()), rel=0.02)
    # At one time per token the loss would be more: the step gets shorter.
    bound = drain(WIDE, slots)
    step = decode_step_s(EXPERTS, slots, slots * 1500.0)
    assert got < 0.9 * WIDE.mean * step * float(bound.longest - bound.mean)


def test_more_slots_lose_more_and_shapes_broadcast() -> None:
    slots, interval = np.array([1.0, 4.0, 32.0]), np.array([[0.5], [2.0], [math.inf]])
    got = drain(WIDE, slots, interval, 0.9)
    assert got.longest.shape == (3, 3)
    assert np.all(np.diff(got.longest, axis=1) > 0)
    assert np.all(got.longest >= got.mean * (1 - 1e-6))
    assert np.all(got.touched <= got.longest)
    assert got.longest[1, 2] == pytest.approx(float(drain(WIDE, 32.0, 2.0).longest), rel=1e-12)
    assert float(drain(WIDE, 0.3).longest) == pytest.approx(float(drain(WIDE, 1.0).longest))
    assert float(drain(WIDE, 32.0, 200.0).longest) == pytest.approx(got.longest[2, 2], rel=0.01)


@pytest.mark.parametrize(("slots", "interval"), [(0.0, 1.0), (4.0, 0.0), (4.0, -1.0)])
def test_impossible_drains_are_refused(slots: float, interval: float) -> None:
    with pytest.raises(ValueError, match="a drain needs"):
        drain(WIDE, slots, interval)


# --- abort ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [0.1, 0.999, 1.0, 1.5, 2.0, 7.25, 12.0, 12.5, 31.75])
def test_equal_lengths_complete_whole_lives(interval: float) -> None:
    table, whole = abort_table(EQUAL), math.floor(interval)
    assert float(table.completions(interval)) == pytest.approx(whole, rel=1e-9)
    assert float(table.completed_share(interval)) == pytest.approx(whole / interval, rel=1e-9)
    assert float(table.length_ratio(interval)) == pytest.approx(1.0, rel=1e-9)
    assert float(table.second_moment_ratio(interval)) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("law", [WIDE, NARROW, FREE], ids=["wide", "narrow", "no cap"])
@pytest.mark.parametrize("interval", [0.5, 1.0, 2.3, 9.0])
def test_aborted_slots_agree_with_drawn_ones(law: Lengths, interval: float) -> None:
    lives = drawn_lives(law, 60_000, interval, seed=21)
    ended = np.cumsum(lives, axis=1) <= interval
    counts, work = ended.sum(axis=1), (lives * ended).sum(axis=1)
    table = abort_table(law)

    def agrees(got: Array, drawn: Array, scale: float) -> None:
        error = (4 * float(drawn.std()) / math.sqrt(drawn.size) + 0.004) / scale
        assert float(got) == pytest.approx(float(drawn.mean()) / scale, abs=error)

    agrees(table.completions(interval), counts, 1.0)
    agrees(table.completed_share(interval), work, interval)
    if counts.mean() > 0.05:
        ratio = float(work.mean() / counts.mean())
        assert float(table.length_ratio(interval)) == pytest.approx(ratio, rel=0.01)
        squares = float((lives**2 * ended).sum() / ended.sum())
        assert float(table.second_moment_ratio(interval)) == pytest.approx(squares, rel=0.02)


def test_below_the_shortest_rollout_nothing_ever_finishes() -> None:
    table = abort_table(empirical_from_samples([600.0, 900.0, 1500.0], cap=1500.0))
    shortest = np.array([0.0, 0.3, 0.59])
    assert table.completions(shortest).tolist() == [0.0, 0.0, 0.0]
    assert table.completed_share(shortest).tolist() == [0.0, 0.0, 0.0]
    assert table.length_ratio(shortest).tolist() == [1.0, 1.0, 1.0]
    assert float(table.completions(0.61)) == pytest.approx(1 / 3, rel=1e-9)
    assert float(table.length_ratio(0.61)) == pytest.approx(0.6, rel=2e-3)


@pytest.mark.parametrize("law", [*LAWS, NARROW], ids=[*NAMES, "narrow"])
def test_longer_intervals_complete_more_and_longer_ones(law: Lengths) -> None:
    table, intervals = abort_table(law), np.concatenate([np.linspace(0.02, 12, 200), [60, 4e3]])
    counts, share = table.completions(intervals), table.completed_share(intervals)
    assert np.all(np.diff(counts) >= 0)
    assert np.all(counts <= intervals * (1 + law.cv**2) + 1)
    assert np.all((share >= 0) & (share <= 1 + 1e-9))
    assert np.all(table.length_ratio(intervals) <= 1 + 1e-6)
    assert share[-1] == pytest.approx(1.0, abs=1e-3)
    assert float(table.completed_share(math.inf)) == pytest.approx(1.0, abs=2e-6)
    # What is lost in a long interval is the age that a slot has in the mean: E[L^2] / 2 E[L]^2.
    lost = 60.0 * (1.0 - float(table.completed_share(60.0)))
    assert lost == pytest.approx(0.5 * (1 + law.cv**2), abs=0.02 + 0.3 * (law.cv < 0.15))


def test_negative_intervals_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        abort_table(WIDE).completions(-0.1)
