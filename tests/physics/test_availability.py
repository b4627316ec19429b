"""Availability: shares by hand, and failures against simulated runs."""

from __future__ import annotations

import numpy as np
import pytest

from allocator.physics.availability import (
    RunStretch,
    evaluation_hold_s,
    evaluation_pause_s,
    failures_per_s,
    redone_factor,
    run_stretch,
)


def shares(found: RunStretch) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array(
        [
            found.productive_share,
            found.evaluation_share,
            found.checkpoint_share,
            found.restart_share,
            found.redone_share,
        ]
    )


class TestEvaluation:
    def test_tokens_over_rate(self) -> None:
        # 198 problems x 16 samples x 12,500 tokens at 36,000 tokens/s.
        assert evaluation_pause_s(198 * 16, 12_500.0, 36_000.0) == pytest.approx(1100.0)

    def test_without_a_backlog_or_without_spare_capacity_the_whole_pause_counts(self) -> None:
        assert float(evaluation_hold_s(300.0, 20, 50.0, 0.0, 0.5)) == 300.0
        assert float(evaluation_hold_s(300.0, 20, 50.0, 4.0, 0.0)) == 300.0

    def test_the_smaller_of_stock_and_refill_bridges(self) -> None:
        # Stock 4 batches of 50 s; refill 2%, 10%, 50% of 20 batches.
        held = evaluation_hold_s(300.0, 20, 50.0, 4.0, np.array([0.02, 0.1, 0.5]))
        assert held.tolist() == [280.0, 200.0, 100.0]

    def test_a_short_evaluation_is_free(self) -> None:
        assert float(evaluation_hold_s(120.0, 20, 50.0, 4.0, 0.5)) == 0.0

    @pytest.mark.parametrize(("spare", "capacity"), [(0.0, 3), (0.05, 3), (0.1, 2), (0.4, 6)])
    def test_what_a_simulated_trainer_waits_and_hardly_more(
        self, spare: float, capacity: int
    ) -> None:
        """A generator of constant pace fills a queue, is taken for an evaluation, and recovers."""
        step, every, pause, steps = 50.0, 10, 220.0, 400
        batch_s = step * (1.0 - spare)
        stock, clock, back_at = 1.0, 0.0, 0.0  # the generator is back at `back_at`
        backlogs = []
        for count in range(steps):
            if count and count % every == 0:
                backlogs.append(stock)
                back_at = clock + pause
            missing = max(1.0 - stock, 0.0)
            begin = max(clock, back_at) + missing * batch_s if missing else clock
            clock = begin + step
            made = max(clock - max(begin, back_at), 0.0) / batch_s
            stock = min(stock + missing - 1.0 + made, float(capacity))
        waited = (clock - steps * step) / len(backlogs)
        backlog = float(np.mean(backlogs))
        law = float(evaluation_hold_s(pause, every, step, backlog, spare))
        assert waited - 1e-6 <= law <= waited + step / 4


class TestFailures:
    def test_rate(self) -> None:
        assert failures_per_s(1024, 51_200.0) == pytest.approx(1 / (50 * 3600))
        assert failures_per_s(1024, np.inf) == 0.0

    def test_half_an_interval_each_to_first_order(self) -> None:
        rate, interval = 1e-8, 3600.0
        extra = float(redone_factor(rate, interval)) - 1
        assert extra == pytest.approx(rate * interval / 2, rel=1e-4)
        late = float(redone_factor(rate, interval, 600.0)) - 1
        assert late == pytest.approx(rate * (interval / 2 + 600.0), rel=1e-4)

    def test_limits(self) -> None:
        assert float(redone_factor(0.0, 3600.0)) == 1.0
        assert np.isfinite(redone_factor(1.0, 1e9, 1e6))

    @pytest.mark.parametrize("delay_s", [0.0, 400.0])
    def test_against_simulated_runs(self, delay_s: float) -> None:
        rate, interval, needed = 1 / 3000.0, 1500.0, 40
        rng = np.random.default_rng(5)
        total = 0.0
        for _ in range(600):
            done = clock = safe = 0.0  # work done, time worked, work a failure falls back to
            fail = rng.exponential(1 / rate)
            goal = needed * interval + delay_s  # until the last checkpoint can be used
            while done < goal:
                usable = safe + interval + delay_s
                work = usable - done
                if fail < work:
                    clock, done = clock + fail, safe
                    fail = rng.exponential(1 / rate)
                else:
                    clock, done, safe = clock + work, usable, safe + interval
                    fail -= work
            total += clock - delay_s
        law = float(redone_factor(rate, interval, delay_s))
        assert total / 600 / (needed * interval) == pytest.approx(law, rel=0.02)


class TestStretch:
    def test_by_hand(self) -> None:
        # 10 steps of 100 s, an evaluation of 50 s and a checkpoint of 30 s every ten: 1,080 s.
        found = run_stretch(
            100.0,
            evaluation_hold_s=50.0,
            evaluation_every_steps=10,
            checkpoint_s=30.0,
            checkpoint_every_steps=10,
        )
        assert float(found.stretch) == pytest.approx(1.08)
        expected = np.array([1000, 50, 30, 0, 0]) / 1080
        assert shares(found) == pytest.approx(expected)

    def test_failures_by_hand(self) -> None:
        # One failure in 10,000 working seconds, checkpoints every 1,000, restarts of 500 s.
        found = run_stretch(100.0, checkpoint_every_steps=10, failures_per_s=1e-4, restart_s=500.0)
        redone = np.expm1(0.1) / 0.1
        assert float(found.stretch) == pytest.approx(redone * 1.05)
        assert float(found.restart_share) == pytest.approx(0.05 / 1.05)
        assert float(found.redone_share) == pytest.approx((redone - 1) / (redone * 1.05))
        # Nearly a failure costs its restart and half an interval.
        assert float(found.productive_share) == pytest.approx(1 / (1 + 1e-4 * 1000), rel=0.005)

    def test_nothing_set_is_all_productive(self) -> None:
        found = run_stretch(np.array([50.0, 100.0]))
        assert found.stretch.tolist() == [1.0, 1.0]
        assert shares(found).tolist() == [[1, 1], [0, 0], [0, 0], [0, 0], [0, 0]]

    def test_a_checkpoint_beside_the_work_costs_only_failures(self) -> None:
        beside = run_stretch(100.0, checkpoint_s=30.0, checkpoint_blocks=False)
        assert float(beside.stretch) == 1.0
        plain = run_stretch(100.0, checkpoint_every_steps=10, failures_per_s=1e-5, restart_s=100.0)
        late = run_stretch(
            100.0,
            checkpoint_every_steps=10,
            checkpoint_s=30.0,
            checkpoint_blocks=False,
            failures_per_s=1e-5,
            restart_s=100.0,
        )
        assert float(late.stretch) == pytest.approx(float(plain.stretch) * np.exp(1e-5 * 30.0))
        assert float(late.checkpoint_share) == 0.0

    def test_shares_add_up_whatever_is_set(self) -> None:
        rng = np.random.default_rng(11)
        for blocks in (True, False):
            step, hold, write, restart = rng.uniform(1.0, 900.0, (4, 200))
            found = run_stretch(
                step,
                evaluation_hold_s=hold,
                evaluation_every_steps=rng.integers(1, 50, 200),
                checkpoint_s=write,
                checkpoint_every_steps=rng.integers(1, 50, 200),
                checkpoint_blocks=blocks,
                failures_per_s=rng.uniform(0.0, 1e-4, 200),
                restart_s=restart,
            )
            assert shares(found).sum(axis=0) == pytest.approx(np.ones(200))
            assert np.all(shares(found) >= 0)
            assert found.stretch == pytest.approx(1 / found.productive_share)
            assert np.all(found.stretch >= 1)

    def test_there_is_a_best_checkpoint_interval(self) -> None:
        # Young (1974): sqrt(2 x checkpoint x mean time between failures), here 20 steps.
        every = np.arange(1, 200)
        found = run_stretch(
            100.0, checkpoint_s=20.0, checkpoint_every_steps=every, failures_per_s=1e-5
        )
        assert every[np.argmin(found.stretch)] == pytest.approx(20, abs=1)

    def test_more_gpus_fail_more_often(self) -> None:
        rate = failures_per_s(np.array([64, 512, 4096]), 50_000.0)
        found = run_stretch(100.0, checkpoint_every_steps=20, failures_per_s=rate, restart_s=900.0)
        assert np.all(np.diff(found.stretch) > 0)
