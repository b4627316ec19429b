"""The end of a batch and generation time: closed forms, order statistics, list scheduling."""

import math
from dataclasses import fields
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from allocator.physics.batch_cut import batch_cut
from allocator.physics.batch_generation import BatchGeneration, batch_generation
from allocator.physics.decode import DecodeLaw
from allocator.physics.last_engine import last_engine_delay
from allocator.physics.lengths import Lengths, capped_lognormal_from_mean_cv
from allocator.physics.oversampling import Oversampling, oversampling_cut
from allocator.physics.wave_groups import unfinished_of_groups
from tests.physics.batch_simulation import Batch, simulate
from tests.physics.laws import CAP, FREE, LAWS, NAMES, QWEN

DENSE = DecodeLaw(7e-3, 0.0, 4e-5, 1.2e-8, 0.0)
EXPERTS = DecodeLaw(6.972e-3, 16.72e-3, 4.206e-5, 1.187e-8, 1 - 8 / 128)
BY_TOKEN = DecodeLaw(1e-3, 0.0, 5e-4, 0.0, 0.0)  # time goes with tokens more than with steps
EQUAL = capped_lognormal_from_mean_cv(6000.0, 0.0)
By = Literal["sample", "group"]
Array = NDArray[np.float64]


def generation(
    law: DecodeLaw,
    lengths: Lengths,
    samples: float,
    slots: float,
    engines: int,
    oversampling: float = 1.0,
    prefill_s: float = 0.0,
) -> BatchGeneration:
    batch = samples * engines / oversampling
    return batch_generation(
        law,
        lengths,
        batch_cut(lengths, oversampling, batch, 1, "sample"),
        engines=engines,
        slots=slots,
        prompt_tokens=1000.0,
        prefill_s=prefill_s,
    )


def wide(cv: float, cap: float | None = None) -> Lengths:
    return capped_lognormal_from_mean_cv(6000.0, cv, cap)


# --- the cut --------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
@pytest.mark.parametrize(("factor", "batch"), [(1.0, 64), (1.25, 64), (1.3, 50), (2.0, 8)])
def test_by_group_of_one_is_by_sample_and_that_is_one_large_group(
    law: Lengths, factor: float, batch: int
) -> None:
    one = batch_cut(law, factor, batch, 1, "group")
    sample = batch_cut(law, factor, batch, 1, "sample")
    assert sample.lengths == oversampling_cut(law, factor, batch, "sample")
    for field in fields(Oversampling):
        got, expected = (getattr(cut.lengths, field.name) for cut in (one, sample))
        assert got == pytest.approx(expected, rel=1e-9, abs=1e-11), field.name
    for name in ("end_tokens", "end_second_moment_tokens2", "running_at_end"):
        assert getattr(one, name) == pytest.approx(getattr(sample, name), rel=1e-9), name
    assert sample.end_tokens == pytest.approx(
        float(law.expected_order_statistic(batch, factor * batch)), rel=1e-12
    )


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
@pytest.mark.parametrize(("groups", "more", "size"), [(8, 2, 4), (4, 4, 8), (16, 1, 2)])
def test_by_group_agrees_with_simulated_batches(
    law: Lengths, groups: int, more: int, size: int
) -> None:
    # Latent ranks order samples of equal length (the atom at the cap) at random.
    ranks = np.random.default_rng(7).random((8_000, groups + more, size))
    maxima = np.sort(ranks.max(axis=2), axis=1)
    last = maxima[:, groups - 1, None, None]
    lengths, end = law.quantile(ranks), law.quantile(last)
    kept = ranks.max(axis=2, keepdims=True) <= last
    spent = np.minimum(lengths, end)
    got = batch_cut(law, 1 + more / groups, groups * size, size, "group")

    def agrees(per_batch: Array, expected: Array) -> None:
        error = 5 * float(per_batch.std()) / math.sqrt(per_batch.size)
        # The relative part is for what 8,000 batches may not show at all.
        assert float(per_batch.mean()) == pytest.approx(float(expected), abs=error, rel=1e-4)

    agrees(end[:, 0, 0], got.end_tokens)
    agrees(end[:, 0, 0] ** 2, got.end_second_moment_tokens2)
    agrees((ranks > last).sum(axis=(1, 2)), got.running_at_end)
    agrees((lengths * kept).sum(axis=(1, 2)) / (groups * size), got.lengths.kept_mean_tokens)
    agrees(
        (lengths**2 * kept).sum(axis=(1, 2)) / (groups * size),
        got.lengths.kept_second_moment_tokens2,
    )
    agrees(spent.mean(axis=(1, 2)), got.lengths.dispatched_mean_tokens)
    agrees((spent**2).mean(axis=(1, 2)), got.lengths.dispatched_second_moment_tokens2)
    agrees((spent**3).mean(axis=(1, 2)), got.lengths.dispatched_third_moment_tokens3)


@pytest.mark.parametrize("law", [QWEN, FREE], ids=["heavy cap", "no cap"])
@pytest.mark.parametrize(("factor", "batch", "size"), [(1.25, 64.0, 8.0), (1.17, 96.0, 4.0)])
def test_by_group_equals_integrals_of_survival(
    law: Lengths, factor: float, batch: float, size: float
) -> None:
    """A second form, over tokens: who still runs at l, from counts of complete groups."""
    groups, more = batch / size, (factor - 1) * batch / size
    levels = 1 - np.array([0.9, 0.5, 0.4, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-6, 1e-9, 1e-12, 1e-15])
    edges = np.unique(np.concatenate([[0.0], law.quantile(levels)]))
    nodes, weights = np.polynomial.legendre.leggauss(200)
    half = np.diff(edges) / 2
    tokens = ((edges[:-1] + half)[:, None] + half[:, None] * nodes).ravel()
    width = (half[:, None] * weights).ravel()
    done = law.max_cdf(tokens, size)
    lasts = 1.0 - special.betainc(groups, more + 1.0, done)
    runs = law.survival(tokens) * (1.0 - special.betainc(groups, more, done))
    got = batch_cut(law, factor, batch, size, "group")
    spent = got.lengths
    for j, expected in ((1, got.end_tokens), (2, got.end_second_moment_tokens2)):
        assert float((j * tokens ** (j - 1) * lasts) @ width) == pytest.approx(expected, rel=1e-8)
    for j, expected in (
        (1, spent.dispatched_mean_tokens),
        (2, spent.dispatched_second_moment_tokens2),
        (3, spent.dispatched_third_moment_tokens3),
    ):
        assert float((j * tokens ** (j - 1) * runs) @ width) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
def test_many_groups_are_the_stream_that_oversampling_knows(law: Lengths) -> None:
    got = batch_cut(law, 1.3, 80_000, 8, "group").lengths
    stream = oversampling_cut(law, 1.3, 8, "group")
    assert float(got.kept_mean_tokens) == pytest.approx(float(stream.kept_mean_tokens), rel=2e-3)
    assert float(got.dispatched_mean_tokens) == pytest.approx(
        float(stream.dispatched_mean_tokens), rel=2e-3
    )


@pytest.mark.parametrize("law", LAWS, ids=NAMES)
def test_the_cut_is_continuous_down_to_no_oversampling(law: Lengths) -> None:
    got = batch_cut(law, [1.0, 1.0 + 1e-7], 64, 8, "group")
    assert got.lengths.cut_tokens[0] == math.inf
    assert got.lengths.cut_tokens[1] == pytest.approx(float(law.expected_order_statistic(64, 64)))
    assert got.end_tokens[1] == pytest.approx(got.end_tokens[0], rel=1e-5)
    assert got.lengths.kept_mean_tokens == pytest.approx([law.mean] * 2, rel=1e-5)
    assert got.lengths.dispatched_mean_tokens == pytest.approx([law.mean] * 2, rel=1e-5)
    assert got.running_at_end == pytest.approx([0.0, 0.0], abs=1e-5)


def test_more_oversampling_ends_a_batch_earlier_and_groups_end_it_later_than_samples() -> None:
    factors = np.array([1.0, 1.05, 1.2, 1.5, 2.5])
    group, sample = (batch_cut(QWEN, factors, 64, 8, by) for by in ("group", "sample"))
    for cut in (group, sample):
        assert np.all(np.diff(cut.end_tokens) <= 1e-9 * CAP)
        assert np.all(np.diff(cut.lengths.kept_mean_tokens) < 0)
        assert np.all(cut.lengths.dispatched_mean_tokens <= QWEN.mean * (1 + 1e-12))
    assert np.all(group.end_tokens >= sample.end_tokens * (1 - 1e-12))
    assert np.all(group.running_at_end <= sample.running_at_end)


@pytest.mark.parametrize(
    ("factor", "batch", "size"), [(0.9, 64, 8), (1.2, 4, 8), (1.2, 8, 0.5), (math.inf, 8, 8)]
)
@pytest.mark.parametrize("by", ["sample", "group"])
def test_impossible_batches_are_refused(factor: float, batch: float, size: float, by: By) -> None:
    with pytest.raises(ValueError, match="batch >= group_size"):
        batch_cut(QWEN, factor, batch, size, by)


# --- equal lengths --------------------------------------------------------------------------------


def equal_lengths_s(
    law: DecodeLaw, tokens: float, prompt: float, samples: int, slots: int, wanted: int
) -> tuple[float, float]:
    """Seconds and steps of one engine, wave by wave, until `wanted` of its samples are done."""
    seconds, steps, waiting, done = 0.0, 0.0, samples, 0
    while done < wanted:
        n = min(slots, waiting)
        step = law.alpha_s + law.expert_s * (1 - law.expert_miss**n) + law.beta_s * n
        mean_context = prompt + tokens / 2
        seconds += tokens * (step + law.gamma_s_per_token * n * mean_context)
        steps, waiting, done = steps + tokens, waiting - n, done + n
    return seconds, steps


@pytest.mark.parametrize("law", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("engines", [1, 2, 24])
@pytest.mark.parametrize(
    ("samples", "slots"),
    [(1, 4), (3, 4), (4, 4), (5, 4), (8, 4), (9, 4), (37, 7), (64, 1), (128, 128), (1000, 64)],
)
def test_equal_lengths_are_exact(law: DecodeLaw, engines: int, samples: int, slots: int) -> None:
    got = generation(law, EQUAL, samples, slots, engines, prefill_s=0.25)
    seconds, steps = equal_lengths_s(law, 6000.0, 1000.0, samples, slots, samples)
    assert float(got.iterations) == pytest.approx(steps, rel=1e-9)
    assert float(got.decode_s) == pytest.approx(seconds, rel=1e-9)
    assert float(got.prefill_s) == pytest.approx(0.25 * samples, rel=1e-12)
    assert float(got.seconds) == pytest.approx(seconds + 0.25 * samples, rel=1e-9)
    assert float(got.decoding_mean) == pytest.approx(samples * 6000.0 / steps, rel=1e-9)


@pytest.mark.parametrize(("samples", "slots"), [(10, 4), (15, 4), (40, 8), (30, 16)])
def test_equal_lengths_with_oversampling_run_the_waves_that_are_needed(
    samples: int, slots: int
) -> None:
    got = generation(EXPERTS, EQUAL, samples, slots, 4, 1.25)
    wanted = math.ceil(samples / 1.25)
    _, steps = equal_lengths_s(EXPERTS, 6000.0, 1000.0, samples, slots, wanted)
    assert float(got.iterations) == pytest.approx(steps, rel=1e-9)


# --- list scheduling ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cv", "cap", "engines", "samples", "slots", "law", "tolerance"),
    [
        (0.2, None, 1, 96, 64, EXPERTS, 0.02),
        (0.2, None, 6, 20, 16, DENSE, 0.03),
        (0.2, None, 6, 8, 4, EXPERTS, 0.06),
        (0.5, 20_000.0, 1, 64, 64, EXPERTS, 0.03),
        (0.5, 20_000.0, 6, 32, 16, EXPERTS, 0.03),
        (0.5, 20_000.0, 4, 256, 128, DENSE, 0.03),
        (0.5, 20_000.0, 2, 128, 16, DENSE, 0.03),
        (0.9, 12_704.0, 6, 16, 16, DENSE, 0.03),
        (0.9, 12_704.0, 6, 64, 64, EXPERTS, 0.04),
        (0.9, 12_704.0, 6, 56, 16, DENSE, 0.05),
        (0.9, 12_704.0, 12, 56, 16, BY_TOKEN, 0.05),
        (1.2, 24_000.0, 6, 160, 64, DENSE, 0.05),
        (1.2, 24_000.0, 6, 64, 16, EXPERTS, 0.06),
        (1.5, 60_000.0, 1, 64, 16, DENSE, 0.06),
        (1.5, 60_000.0, 6, 24, 4, EXPERTS, 0.08),
    ],
)
def test_generation_agrees_with_list_scheduling(
    cv: float,
    cap: float | None,
    engines: int,
    samples: int,
    slots: int,
    law: DecodeLaw,
    tolerance: float,
) -> None:
    lengths = wide(cv, cap)
    batch = Batch(law, lengths, engines, samples, slots, prefill_s=0.2)
    seconds, _ = simulate(batch, runs=max(60, 24_000 // (engines * samples)), seed=11)
    got = float(generation(law, lengths, samples, slots, engines, prefill_s=0.2).seconds)
    noise = 2.5 * float(seconds.std()) / math.sqrt(seconds.size)
    assert got == pytest.approx(float(seconds.mean()), rel=tolerance, abs=noise)
    if samples > slots:  # the tolerance would notice a law without waves
        one_wave = generation(law, lengths, samples, samples, engines, prefill_s=0.2)
        assert float(one_wave.seconds) < (1 - tolerance) * got


@pytest.mark.parametrize(
    ("by", "size", "engines", "samples", "slots", "tolerance"),
    [
        ("sample", 1, 4, 40, 64, 0.03),
        ("sample", 1, 4, 40, 16, 0.04),
        ("sample", 1, 1, 200, 32, 0.03),
        ("group", 8, 4, 40, 64, 0.03),
        ("group", 8, 4, 80, 32, 0.03),
        ("group", 4, 1, 320, 64, 0.03),
    ],
)
def test_oversampling_agrees_with_list_scheduling(
    by: By, size: int, engines: int, samples: int, slots: int, tolerance: float
) -> None:
    lengths, total = wide(0.7), engines * samples
    wanted = int(total / 1.25)
    batch = Batch(EXPERTS, lengths, engines, samples, slots, wanted=wanted, group_size=size)
    seconds, kept = simulate(batch, runs=120, seed=12)
    got = batch_generation(
        EXPERTS,
        lengths,
        batch_cut(lengths, total / wanted, wanted, size, by),
        engines=engines,
        slots=slots,
        prompt_tokens=1000.0,
    )
    noise = 2.5 * float(seconds.std()) / math.sqrt(seconds.size)
    assert float(got.seconds) == pytest.approx(float(seconds.mean()), rel=tolerance, abs=noise)
    noise = 2.5 * float(kept.std()) / math.sqrt(kept.size)
    assert float(got.lengths.kept_mean_tokens) == pytest.approx(
        float(kept.mean()), rel=0.025, abs=noise
    )


def test_the_short_form_of_waves_would_be_noticed() -> None:
    """Stationary residual lives from the start: a third of a wave short for equal lengths."""
    samples, slots = 36, 16
    stationary = (samples - slots) / slots + 0.5 + slots / (slots + 1)
    got = float(generation(DENSE, EQUAL, samples, slots, 1).iterations) / 6000.0
    assert got == pytest.approx(3.0, rel=1e-9)
    assert stationary < 0.9 * got


def test_the_last_of_several_engines_agrees_with_drawn_ones() -> None:
    random, at = np.random.default_rng(3), np.linspace(0.0, 3.0, 121)
    ended = np.clip(at / 3.0, 0.0, 1.0)[None] ** 4
    for engines, sd in ((2, 0.4), (8, 0.2), (24, 1.0)):
        own = 3.0 * random.random((60_000, engines)) ** 0.25
        late = own + sd * random.standard_normal(own.shape)
        drawn = float(late.max(axis=1).mean() - own.max(axis=1).mean())
        got = last_engine_delay(at, ended, np.array([sd]), np.array([float(engines)]))
        assert got.item() == pytest.approx(drawn, abs=0.03 * sd)
    assert last_engine_delay(at, ended, [0.5], [1.0]).tolist() == [0.0]
    assert last_engine_delay(at, ended, [0.0], [8.0]).tolist() == [0.0]


@pytest.mark.parametrize("law", [QWEN, FREE], ids=["heavy cap", "no cap"])
def test_groups_leave_unfinished_what_one_wave_and_single_samples_say(law: Lengths) -> None:
    def left(samples: float, slots: float, size: float) -> float:
        plan = (np.array([x]) for x in (samples, slots, 1.25, size))
        return float(unfinished_of_groups(law, *plan).item())

    for slots in (500.0, 77.0):
        assert left(4000.0, slots, 1.0) == pytest.approx(800.0, abs=0.02 * slots)
    one_wave = batch_cut(law, 1.25, 3200.0, 8, "group")
    within = 0.02 if law.cap is None else 0.3  # the atom at the cap lies on two nodes
    assert left(4000.0, 4000.0, 8.0) == pytest.approx(float(one_wave.running_at_end), rel=within)
    # In many waves complete groups lag by the tail of a group: N (tailness - 1) samples are done
    # beyond those kept.
    lag = 100.0 * (float(law.tailness(8)) - 1.0)
    assert left(4000.0, 100.0, 8.0) == pytest.approx(800.0 - lag, rel=0.02)


# --- bounds, continuity, shapes -------------------------------------------------------------------


@pytest.mark.parametrize("cv", [0.0, 0.05, 0.3, 0.8, 1.5])
@pytest.mark.parametrize("engines", [1, 8])
def test_more_samples_never_end_earlier_and_bounds_hold(cv: float, engines: int) -> None:
    lengths = wide(cv, None if cv < 1 else 60_000.0)
    samples = np.arange(1, 130)
    cut = batch_cut(lengths, 1.0, samples * engines, 1, "sample")
    got = batch_generation(EXPERTS, lengths, cut, engines=engines, slots=12.0, prompt_tokens=1000.0)
    # The first sample of a new wave may be overrated by the spread of its start.
    assert np.all(np.diff(got.seconds) > -0.003 * got.seconds[1:])
    assert np.all(got.iterations >= cut.end_tokens * (1 - 1e-12))
    assert np.all(got.iterations >= samples * lengths.mean / 12.0 * (1 - 1e-12))


def test_waves_begin_where_slots_run_out() -> None:
    lengths, slots = wide(0.6, 20_000.0), np.array([24.0, 32.0, 33.0, 1e6])
    got = batch_generation(
        EXPERTS,
        lengths,
        batch_cut(lengths, 1.25, 128, 8, "group"),
        engines=5.0,
        slots=slots,
        prompt_tokens=0.0,
    )
    one_wave = got.seconds[-1]
    assert got.seconds[0] > 1.02 * one_wave
    assert got.seconds[1:] == pytest.approx([one_wave] * 3, rel=1e-12)
    just = batch_generation(
        EXPERTS,
        lengths,
        batch_cut(lengths, 1.0, 3200, 8, "group"),
        engines=5.0,
        slots=np.array([639.0, 640.0]),
        prompt_tokens=0.0,
    )
    assert just.seconds[0] == pytest.approx(just.seconds[1], rel=0.02)


@pytest.mark.parametrize(("samples", "slots"), [(24, 8), (20, 8), (9, 8)])
def test_waves_are_continuous_in_the_spread_of_lengths(samples: int, slots: int) -> None:
    equal = float(generation(EXPERTS, EQUAL, samples, slots, 3).seconds)
    for cv, apart in ((1e-5, 0.001), (1e-3, 0.02), (1e-2, 0.04)):
        near = float(generation(EXPERTS, wide(cv), samples, slots, 3).seconds)
        assert near == pytest.approx(equal, rel=apart)
    steps = [float(generation(DENSE, wide(cv), samples, slots, 3).seconds) for cv in CVS]
    assert np.all(np.abs(np.diff(np.log(steps))) < 0.04)


CVS = np.linspace(0.0, 1.0, 51).tolist()


def test_more_engines_than_samples_leave_some_idle() -> None:
    lengths = wide(0.6, 20_000.0)
    cut = batch_cut(lengths, 1.0, 16, 4, "group")
    got = batch_generation(
        EXPERTS, lengths, cut, engines=[16.0, 64.0, 1000.0], slots=0.5, prompt_tokens=1000.0
    )
    assert got.seconds == pytest.approx([got.seconds[0]] * 3, rel=1e-12)
    assert got.decoding_mean == pytest.approx([1.0] * 3, rel=1e-12)
    assert got.iterations == pytest.approx([float(cut.end_tokens)] * 3, rel=1e-12)


def test_environment_and_tail_are_added_once() -> None:
    cut = batch_cut(EQUAL, 1.0, 32, 4, "group")
    plain, added = (
        batch_generation(
            DENSE,
            EQUAL,
            cut,
            engines=2,
            slots=4,
            prompt_tokens=0.0,
            environment_s=environment,
            tail_s=tail,
        )
        for environment, tail in ((0.0, 0.0), (20.0, 3.0))
    )
    assert float(added.seconds - plain.seconds) == pytest.approx(23.0)
    assert added.decode_s == plain.decode_s


def test_oversampling_in_waves_keeps_the_accounts() -> None:
    lengths = wide(0.8, 24_000.0)
    cut = batch_cut(lengths, 1.5, 256, 1, "sample")
    got = batch_generation(
        DENSE, lengths, cut, engines=2, slots=[200.0, 120.0, 60.0, 16.0], prompt_tokens=0.0
    )
    after = got.lengths
    assert after.kept_mean_tokens[0] == pytest.approx(float(cut.lengths.kept_mean_tokens))
    # The fewer slots, the more of those cancelled have not even begun, and the kept are as all.
    assert np.all(np.diff(after.discarded_token_fraction) < 0)
    assert np.all(np.diff(after.kept_mean_tokens) > 0)
    assert after.kept_mean_tokens[-1] == pytest.approx(lengths.mean, rel=0.1)
    assert after.tokens_per_kept == pytest.approx(1.5 * after.dispatched_mean_tokens)
    assert after.discarded_token_fraction == pytest.approx(
        1 - after.kept_mean_tokens / after.tokens_per_kept
    )
    assert after.length_bias == pytest.approx(after.kept_mean_tokens / lengths.mean)
    # Two engines write a token a slot and step, but for the tail.
    assert np.all(192 * after.dispatched_mean_tokens <= got.iterations * [192, 120, 60, 16] * 1.001)


def test_plans_are_computed_alike_one_by_one_and_together() -> None:
    lengths, random = QWEN, np.random.default_rng(5)
    count = 40
    factor, batch = random.choice([1.0, 1.2, 1.5], count), random.choice([64.0, 256.0], count)
    engines, slots = random.choice([1.0, 3.0, 8.0], count), random.choice([8.0, 40.0, 500.0], count)
    alpha, expert = random.uniform(5e-3, 1e-2, count), random.choice([0.0, 1e-2], count)
    law = DecodeLaw(alpha, expert, 4e-5, 1e-8, np.where(expert > 0, 0.9, 0.0))
    cut = batch_cut(lengths, factor, batch, 8, "group")
    together = batch_generation(
        law, lengths, cut, engines=engines, slots=slots, prompt_tokens=500.0, prefill_s=0.1
    )
    for i in range(count):
        one = batch_generation(
            DecodeLaw(alpha[i], expert[i], 4e-5, 1e-8, law.expert_miss[i]),
            lengths,
            batch_cut(lengths, factor[i], batch[i], 8, "group"),
            engines=engines[i],
            slots=slots[i],
            prompt_tokens=500.0,
            prefill_s=0.1,
        )
        assert np.ndim(one.seconds) == 0
        assert float(one.seconds) == pytest.approx(together.seconds[i], rel=1e-9)
        assert float(one.lengths.kept_mean_tokens) == pytest.approx(
            together.lengths.kept_mean_tokens[i], rel=1e-9
        )


def test_engines_and_slots_must_be_there() -> None:
    cut = batch_cut(EQUAL, 1.0, 32, 4, "group")
    with pytest.raises(ValueError, match="engines and slots"):
        batch_generation(DENSE, EQUAL, cut, engines=0.0, slots=4.0, prompt_tokens=0.0)
