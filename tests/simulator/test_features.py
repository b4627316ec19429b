"""Rules of the line against what elementary laws say of them."""

from typing import Any

import numpy as np
import pytest

from allocator.physics.attempts import sandbox_fate
from allocator.physics.batch_cut import batch_cut
from allocator.physics.decode import DecodeLaw
from allocator.physics.oversampling import oversampling_cut
from allocator.physics.prefill import PrefillLaw
from allocator.physics.signal import SolveRate, refill_rounds, signal_fraction
from allocator.simulator import simulate
from allocator.simulator.line import Reward, Sandboxes, SimulatedLine, Solving
from allocator.simulator.stations import interpolated
from tests.physics import batch_simulation
from tests.simulator.lines import MEAN_TOKENS, lengths, line


@pytest.mark.parametrize("by", ["sample", "group"])
def test_oversampling_of_a_stream(by: Any) -> None:
    made = line(cv=0.8, slots=64, size=8, per_batch=4, train_s=0.05,
                groups={"oversampling": 1.5, "by": by})  # fmt: skip
    found = simulate(made, 1000)
    law = oversampling_cut(lengths(0.8), 1.5, 8, by)
    assert found.length_bias.mean == pytest.approx(float(law.length_bias), rel=0.01)
    discarded = found.token_fate["oversampled"].mean
    assert discarded == pytest.approx(float(law.discarded_token_fraction), abs=0.01)


@pytest.mark.parametrize("by", ["sample", "group"])
def test_oversampling_of_a_batch(by: Any) -> None:
    made = line(cv=0.8, slots=64, size=8, per_batch=4, mode="disaggregated_sync",
                groups={"oversampling": 1.5, "by": by})  # fmt: skip
    found = simulate(made, 1000)
    law = batch_cut(lengths(0.8), 1.5, 32.0, 8.0, by).lengths
    assert found.length_bias.mean == pytest.approx(float(law.length_bias), rel=0.01)
    discarded = found.token_fate["oversampled"].mean
    assert discarded == pytest.approx(float(law.discarded_token_fraction), abs=0.01)


@pytest.mark.parametrize("slots", [64, 10])
def test_batches_against_list_scheduling(slots: int) -> None:
    law = DecodeLaw(4e-3, 8e-3, 5e-5, 2e-8, 0.9)
    batch = batch_simulation.Batch(law, lengths(0.7, 4000.0), 2, 32, slots, 500.0, 0.0, None)
    expected, _ = batch_simulation.simulate(batch, 800, seed=2)
    made = line(slots=slots, engines=2, size=8, per_batch=8, mode="disaggregated_sync",
                engine={"decode": law},
                rollouts={"lengths": lengths(0.7, 4000.0), "prompt_tokens": 500.0})  # fmt: skip
    found = simulate(made, 800, seed=3)
    assert found.generation_s.mean == pytest.approx(float(np.mean(expected)), rel=0.015)


@pytest.mark.parametrize("retries", [0, 2])
def test_sandboxes_that_fail(retries: int) -> None:
    law = Sandboxes(start_s=((1.0, 0.2),), failure_share=((1.0, 0.3),), retries=retries)
    found = simulate(line(train_s=0.1, sandboxes=law), 800)
    fate = sandbox_fate(lengths(0.5), 1e-3, 0.2, 0.0, 0.3, retries)
    assert found.lost_attempts_fraction.mean == pytest.approx(0.3, abs=0.01)
    assert found.given_up_fraction.mean == pytest.approx(0.3 ** (retries + 1), abs=0.01)
    assert found.token_fate["failed"].mean == pytest.approx(float(fate.lost_token_share), abs=0.01)


def test_timeouts_end_the_long_ones() -> None:
    law = Sandboxes(start_s=((1.0, 0.2),), retries=50, timeout_s=1.7)
    found = simulate(line(train_s=0.1, sandboxes=law), 800)
    fate = sandbox_fate(lengths(0.5), 1e-3, 0.2, 0.0, 0.0, 50, 1.7)
    lost = float(fate.attempts.lost_share)
    assert found.lost_attempts_fraction.mean == pytest.approx(lost, abs=0.005)
    kept = float(fate.kept_moments[0]) / MEAN_TOKENS
    assert found.length_bias.mean == pytest.approx(kept, rel=0.01)


def test_quota_limits_the_rate() -> None:
    law = Sandboxes(per_rollout=2, quota=16, start_s=((1.0, 0.25),))
    found = simulate(line(slots=32, train_s=0.1, sandboxes=law), 400)
    # Eight of 32 rollouts have sandboxes, each for a start and a life.
    assert found.generated_samples_per_s.mean == pytest.approx(8.0 / 1.25, rel=0.02)


SOLVING = Solving(0.1, 0.3, 0.7, 1.4)
SIGNAL = float(signal_fraction(SolveRate(0.1, 0.3, 0.7, 1.4), 4))


@pytest.mark.parametrize("mode", ["async", "disaggregated_sync"])
@pytest.mark.parametrize("sampling", ["off", "drop"])
def test_groups_without_signal(mode: Any, sampling: Any) -> None:
    made = line(mode=mode, train_s=0.1, groups={"solving": SOLVING, "sampling": sampling})
    found = simulate(made, 1000)
    assert found.token_fate["no_signal"].mean == pytest.approx(1.0 - SIGNAL, abs=0.015)
    trained = found.trained_samples_per_s.mean * found.step_s.mean
    assert trained == pytest.approx(32 * (SIGNAL if sampling == "drop" else 1.0), rel=0.02)
    assert found.useful_tokens_per_s.mean == pytest.approx(
        found.generated_tokens_per_s.mean * found.token_fate["useful"].mean, rel=0.02
    )


def test_refill_takes_rounds() -> None:
    made = line(mode="disaggregated_sync", groups={"solving": SOLVING, "sampling": "refill"})
    found = simulate(made, 800)
    rounds = float(refill_rounds(8.0, SIGNAL))
    started = found.generated_samples_per_s.mean * found.step_s.mean
    assert started == pytest.approx(32 * rounds, rel=0.02)
    assert found.token_fate["useful"].mean == pytest.approx(1.0 / rounds, rel=0.02)
    stream = simulate(line(train_s=0.1, groups={"solving": SOLVING, "sampling": "refill"}), 800)
    assert stream.token_fate["useful"].mean == pytest.approx(SIGNAL, abs=0.015)


@pytest.mark.parametrize("limit", [0.0, 1.0, 3.0])
def test_admission_holds_the_mean(limit: float) -> None:
    policy = {"enforce": "admission", "staleness_limit": limit}
    found = simulate(line(slots=256, size=4, per_batch=8, train_s=0.2, policy=policy), 1200)
    assert found.dropped_fraction.mean == 0.0
    assert found.staleness.mean.mean == pytest.approx(limit, rel=0.02)
    assert found.in_flight.mean <= 32 * (limit + 1.0)
    if limit == 0.0:
        # Batch by batch: the longest of 32, then the trainer.
        longest = lengths(0.5).tailness(32)
        assert found.step_s.mean == pytest.approx(0.2 + float(longest), rel=0.02)
        assert found.generator_wait_fraction.mean > 0.0


def test_a_queue_that_blocks_wastes_nothing() -> None:
    made = line(slots=64, train_s=1.0, policy={"overflow": "block", "queue_batches": 2})
    found = simulate(made, 400)
    assert found.token_fate["useful"].mean == 1.0
    assert found.trainer_wait_fraction.mean < 0.01
    assert found.generated_samples_per_s.mean == pytest.approx(32.0, rel=0.02)
    # Two batches queue, and what was in flight when it filled lands on top.
    assert 2.0 < found.staleness.mean.mean < 5.0


def test_rewards_keep_the_place_in_a_stream_and_limit_the_rate() -> None:
    reward = Reward(servers=2, seconds=0.2)
    found = simulate(line(slots=64, train_s=0.1, reward=reward), 300)
    assert found.trained_samples_per_s.mean == pytest.approx(10.0, rel=0.02)
    assert found.decoding.mean == pytest.approx(10.0, rel=0.05)
    assert found.in_flight.mean > 60.0


def test_scoring_on_the_engine_stops_it() -> None:
    made = line(cv=0.0, slots=4, size=4, per_batch=1, train_s=0.1, reward=Reward(engine_s=0.1))
    found = simulate(made, 20)
    assert found.step_s.mean == pytest.approx(1.4)


def test_memory_costs_rate_gently() -> None:
    engine = {"prefill": PrefillLaw(0.0, 1e-6, 0.0), "kv_bytes_per_token": 1.0}
    short = line(slots=64, size=4, train_s=0.1, engine=engine | {"kv_budget_bytes": 20_000.0})
    found = simulate(short, 400)
    # A sequence met while decoding holds E[R^2]/2E[R] = 625 tokens.
    assert 0.85 * 32.0 < found.decoding.mean < 32.0
    assert found.trained_samples_per_s.mean == pytest.approx(found.decoding.mean, rel=0.1)
    assert found.preempted_per_rollout.mean > 0.0


def test_mixed_samples_count_as_one_chooses() -> None:
    common: dict[str, Any] = {"mode": "disaggregated_sync", "groups": {"oversampling": 1.5}}
    kept = simulate(line(**common, policy={"partial": True}), 300)
    out = simulate(line(**common, policy={"partial": True, "exclude_mixed": True}), 300)
    share = kept.staleness.environment_state_fraction.mean
    assert 0.2 < share < 1.0
    assert kept.token_fate["useful"].mean == pytest.approx(1.0)
    assert out.token_fate["mixed_environment"].mean > share  # the long ones
    assert out.token_fate["useful"].mean + out.token_fate["mixed_environment"].mean == (
        pytest.approx(1.0)
    )
    assert kept.staleness.mean.mean > 0.0


def test_trainer_takes_longer_for_longer_samples() -> None:
    found = simulate(
        line(train_s=0.5, trainer={"s_per_token": 1e-4}, rollouts={"prompt_tokens": 100.0}), 400
    )
    assert found.train_s.mean == pytest.approx(0.5 + 1e-4 * 32 * 1100.0, rel=0.01)


def test_intervals_cover() -> None:
    made = line(slots=16, size=4, per_batch=2, train_s=0.5)
    long = simulate(made, 4000, seed=1)
    short = [simulate(made, 150, seed=seed, replications=4) for seed in range(20)]
    covered = [
        abs(r.trainer_wait_fraction.mean - long.trainer_wait_fraction.mean)
        <= (r.trainer_wait_fraction.half_width or 0.0)
        for r in short
    ]
    assert sum(covered) >= 16
    assert short[0].trainer_wait_fraction.low is not None
    assert long.trainer_wait_fraction.high is None


@pytest.mark.parametrize(
    "parts",
    [
        {"slots": 0},
        {"size": 8, "slots": 4},
        {"groups": {"oversampling": 0.5}},
        {"sandboxes": Sandboxes(per_rollout=4, quota=2)},
        {"policy": {"enforce": "admission", "staleness_limit": -1.0}},
        {"groups": {"sampling": "refill", "solving": Solving(0.4, 0.6)}},
    ],
)
def test_lines_that_cannot_run_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least|places|quota"):
        line(**parts)


def test_a_line_that_trains_nothing_says_so() -> None:
    law = Sandboxes(failure_share=((1.0, 1.0),))
    with pytest.raises(ValueError, match="every attempt is lost"):
        simulate(line(sandboxes=law), 5)
    lost: SimulatedLine = line(sandboxes=law, mode="disaggregated_sync")
    with pytest.raises(ValueError, match="at least 5 steps"):
        simulate(lost, 4)
    assert simulate(lost, 5).trained_samples_per_s.mean == 0.0


def test_tables_are_linear_between_and_constant_outside() -> None:
    table = ((2.0, 1.0), (4.0, 3.0))
    values = [interpolated(table, x) for x in (1.0, 2.0, 3.0, 4.0, 9.0)]
    assert values == [1.0, 1.0, 2.0, 3.0, 3.0]
