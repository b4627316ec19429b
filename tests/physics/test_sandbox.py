"""Sandboxes: counts and money by hand; attempts, failures and timeouts against simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from allocator.physics.attempts import attempts, restarted_tail, sandbox_fate
from allocator.physics.lengths import CappedLogNormal, Lengths, capped_lognormal_from_mean_cv
from allocator.physics.sandbox import (
    StartTable,
    calls_concurrency,
    cores_needed,
    credit_hours,
    in_flight_p99,
    in_flight_quota,
    sandbox_usd_per_hour,
    sandboxes_in_use,
    sandboxes_that_fit,
)
from tests.physics.laws import LAWS, NAMES

LENGTHS = capped_lognormal_from_mean_cv(8_000.0, 0.8, 30_000.0)
TOKEN_S = 0.02


class TestTable:
    def test_linear_between_and_constant_outside(self) -> None:
        table = StartTable.of({960.0: 3600.0, 96.0: 8.0, 480.0: 40.0})
        assert table.concurrency == (96.0, 480.0, 960.0)
        assert table.at([1, 96, 288, 480, 720, 960, 5000]).tolist() == [
            8.0, 8.0, 24.0, 40.0, 1820.0, 3600.0, 3600.0,
        ]  # fmt: skip

    def test_one_number_is_a_constant(self) -> None:
        assert StartTable.constant(8.0).at(np.array([[1.0], [1e6]])).tolist() == [[8.0], [8.0]]

    def test_values_may_fall(self) -> None:
        assert float(StartTable.of({10: 0.2, 20: 0.1}).at(15)) == pytest.approx(0.15)

    @pytest.mark.parametrize(
        ("concurrency", "values"),
        [((), ()), ((1.0,), (1.0, 2.0)), ((0.0,), (1.0,)), ((2.0, 1.0), (1.0, 1.0)),
         ((1.0, 1.0), (1.0, 2.0)), ((1.0, np.inf), (1.0, 2.0)), ((1.0,), (-1.0,)),
         ((1.0,), (np.nan,))],
    )  # fmt: skip
    def test_malformed_tables_are_refused(
        self, concurrency: tuple[float, ...], values: tuple[float, ...]
    ) -> None:
        with pytest.raises(ValueError, match=r"needs one value|must be >|must be >= 0"):
            StartTable(concurrency, values)


class TestCounts:
    def test_two_sandboxes_a_rollout(self) -> None:
        assert sandboxes_in_use(np.array([48, 480]), 2).tolist() == [96, 960]

    def test_a_quota_is_held_against_the_percentile(self) -> None:
        # Poisson with a mean of 80: 101 at the 99th percentile, while 80 is under a quota of 100.
        drawn = np.random.default_rng(1).poisson(80.0, 200_000)
        p99 = float(in_flight_p99(80.0, np.sqrt(80.0)))
        assert p99 == pytest.approx(np.quantile(drawn, 0.99), abs=1.0)
        assert p99 > 100

    def test_an_enforced_limit_is_the_percentile(self) -> None:
        assert float(in_flight_p99(80.0, 9.0, 96)) == 96.0
        assert float(in_flight_p99(80.0, 0.0, 96)) == 80.0

    def test_quota_in_whole_rollouts(self) -> None:
        assert in_flight_quota(np.array([100, 99, np.inf]), 4).tolist() == [25.0, 24.0, np.inf]

    def test_the_scarcest_resource_decides(self) -> None:
        host = {"cpus": 192.0, "memory_gib": 768.0, "disk_gib": 4000.0}
        need = {"cpus": 2.0, "memory_gib": 12.0, "disk_gib": 30.0}
        assert sandboxes_that_fit(host, need) == 64.0
        assert sandboxes_that_fit(host, {"cpus": 2.0}) == 96.0
        assert sandboxes_that_fit({}, need) == np.inf


class TestAttempts:
    def test_by_hand(self) -> None:
        # q = 1/2, two retries: 1 + 1/2 + 1/4 attempts, 1/8 given up.
        found = attempts(0.5, 2)
        assert (float(found.attempts), float(found.given_up_share)) == (1.75, 0.125)

    def test_limits(self) -> None:
        found = attempts(np.array([0.0, 1.0, 0.3]), np.array([3, 3, 0]))
        assert found.attempts.tolist() == [1.0, 4.0, 1.0]
        assert found.given_up_share.tolist() == [0.0, 1.0, 0.3]

    def test_more_retries_deliver_more_and_never_change_the_yield_of_an_attempt(self) -> None:
        found = attempts(0.3, np.arange(10))
        assert np.all(np.diff(found.attempts) > 0)
        assert np.all(np.diff(found.given_up_share) < 0)
        assert (1 - found.given_up_share) / found.attempts == pytest.approx(np.full(10, 0.7))


@dataclass(frozen=True)
class Simulated:
    """What simulated rollouts did: averages a rollout, or over attempts or delivered ones."""

    attempts: float
    given_up_share: float
    attempt_moments: np.ndarray[tuple[int], np.dtype[np.float64]]
    kept_moments: np.ndarray[tuple[int], np.dtype[np.float64]]
    lost_token_share: float
    environment_s: float
    lost_s: float


def simulate(
    start_s: float, environment_s: float, failing: float, retries: int, timeout_s: float
) -> Simulated:
    """Play rollouts one attempt after another, by the clock of every attempt.

    After the start-up, tokens and environment pass together, in proportion; a sandbox fails at a
    uniformly random moment of the life that the attempt would otherwise have after its start-up.
    """
    rng = np.random.default_rng(20)
    count = 200_000
    pending = np.arange(count)
    started = np.zeros(count)
    lost_s = np.zeros(count)
    tokens: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    kept: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    besides = lost_tokens = 0.0
    for _ in range(retries + 1):
        wanted = LENGTHS.quantile(rng.random(len(pending)))
        fails = rng.random(len(pending)) < failing
        room = (timeout_s - start_s - environment_s) / TOKEN_S
        late = wanted > room
        moment = np.where(fails, rng.random(len(pending)), 1.0)
        written = moment * np.minimum(wanted, room)
        lost = fails | late
        started[pending] += 1
        lost_s[pending] += np.where(lost, start_s + moment * environment_s + written * TOKEN_S, 0.0)
        besides += float(np.sum(start_s + moment * environment_s))
        lost_tokens += float(np.sum(written[lost]))
        tokens.append(written)
        kept.append(written[~lost])
        pending = pending[lost]
    made, delivered = np.concatenate(tokens), np.concatenate(kept)
    return Simulated(
        attempts=float(started.mean()),
        given_up_share=len(pending) / count,
        attempt_moments=np.array([np.mean(made**m) for m in (1, 2, 3)]),
        kept_moments=np.array([np.mean(delivered**m) for m in (1, 2, 3)]),
        lost_token_share=lost_tokens / float(made.sum()),
        environment_s=besides / float(started.sum()),
        lost_s=float(lost_s.mean()),
    )


class TestFate:
    @pytest.mark.parametrize(
        ("start_s", "environment_s", "failing", "retries", "timeout_s"),
        [
            (8.0, 60.0, 0.15, 3, np.inf),
            (30.0, 20.0, 0.0, 2, 300.0),
            (20.0, 40.0, 0.1, 1, 240.0),
            (20.0, 40.0, 0.3, 0, 500.0),
        ],
    )
    def test_against_simulated_rollouts(
        self, start_s: float, environment_s: float, failing: float, retries: int, timeout_s: float
    ) -> None:
        fate = sandbox_fate(LENGTHS, TOKEN_S, start_s, environment_s, failing, retries, timeout_s)
        seen = simulate(start_s, environment_s, failing, retries, timeout_s)
        assert float(fate.attempts.attempts) == pytest.approx(seen.attempts, rel=0.01)
        assert float(fate.attempts.given_up_share) == pytest.approx(seen.given_up_share, abs=0.003)
        assert fate.attempt_moments == pytest.approx(seen.attempt_moments, rel=0.02)
        assert fate.kept_moments == pytest.approx(seen.kept_moments, rel=0.02)
        assert float(fate.lost_token_share) == pytest.approx(seen.lost_token_share, abs=0.003)
        assert float(fate.environment_s) == pytest.approx(seen.environment_s, rel=0.01)
        assert float(fate.lost_s) == pytest.approx(seen.lost_s, rel=0.02, abs=1e-9)

    def test_half_the_tokens_of_a_failed_attempt_are_lost(self) -> None:
        # 1 of 5 fails half way: lost 0.2/2 of 0.8 + 0.2/2 lengths.
        fate = sandbox_fate(LENGTHS, TOKEN_S, 8.0, 30.0, 0.2, 3)
        assert float(fate.lost_token_share) == pytest.approx(0.1 / 0.9)
        assert float(fate.attempt_moments[0]) == pytest.approx(0.9 * LENGTHS.mean)
        assert float(fate.kept_moments[0]) == pytest.approx(LENGTHS.mean)
        assert float(fate.environment_s) == pytest.approx(8.0 + 0.9 * 30.0)
        lost_attempt_s = 8.0 + 15.0 + TOKEN_S * LENGTHS.mean / 2
        failed = 0.2 + 0.2**2 + 0.2**3 + 0.2**4
        assert float(fate.lost_s) == pytest.approx(failed * lost_attempt_s)

    @pytest.mark.parametrize("law", LAWS, ids=NAMES)
    def test_nothing_happens_without_failures_and_timeout(self, law: Lengths) -> None:
        fate = sandbox_fate(law, TOKEN_S, 8.0, 30.0, 0.0, 3)
        moments = [float(law.limited_moment(m, np.inf)) for m in (1, 2, 3)]
        assert fate.attempt_moments == pytest.approx(np.array(moments))
        assert fate.kept_moments == pytest.approx(np.array(moments))
        assert float(fate.attempts.attempts) == 1.0
        for nothing in (fate.attempts.lost_share, fate.timeout_share, fate.lost_token_share):
            assert float(nothing) == 0.0
        assert float(fate.lost_s) == 0.0
        assert float(fate.environment_s) == 38.0

    @pytest.mark.parametrize("law", LAWS, ids=NAMES)
    def test_tokens_of_attempts_are_delivered_or_lost(self, law: Lengths) -> None:
        cut = np.array([0.3, 1.0, 2.0]) * law.mean
        fate = sandbox_fate(law, TOKEN_S, 5.0, 7.0, 0.1, 2, 12.0 + TOKEN_S * cut)
        made = fate.attempt_moments[0]
        delivered = (1 - fate.attempts.lost_share) * fate.kept_moments[0]
        assert delivered + fate.lost_token_share * made == pytest.approx(made)

    def test_a_timed_out_attempt_lasts_until_the_timeout(self) -> None:
        fate = sandbox_fate(LENGTHS, TOKEN_S, 10.0, 20.0, 0.0, 0, 130.0)
        share = float(LENGTHS.survival(5_000.0))
        assert float(fate.timeout_share) == pytest.approx(share)
        assert float(fate.attempts.given_up_share) == pytest.approx(share)
        assert float(fate.lost_s) == pytest.approx(share * 130.0)

    def test_a_cut_at_the_cap_still_delivers_truncated_rollouts(self) -> None:
        fate = sandbox_fate(LENGTHS, TOKEN_S, 0.0, 0.0, 0.0, 3, TOKEN_S * 30_000.0 * (1 + 1e-12))
        assert float(fate.timeout_share) == 0.0
        assert float(fate.kept_moments[0]) == pytest.approx(LENGTHS.mean)

    def test_a_start_slower_than_the_timeout_delivers_nothing(self) -> None:
        fate = sandbox_fate(LENGTHS, TOKEN_S, 3600.0, 0.0, 0.0, 3, 1800.0)
        assert float(fate.attempts.given_up_share) == 1.0
        assert float(fate.attempts.attempts) == 4.0
        assert float(fate.lost_token_share) == 0.0
        assert np.isnan(fate.kept_moments[0])

    def test_slower_tokens_lose_more(self) -> None:
        fate = sandbox_fate(LENGTHS, np.linspace(0.005, 0.1, 40), 8.0, 10.0, 0.02, 3, 400.0)
        assert fate.attempt_moments.shape == (3, 40)
        assert np.all(np.diff(fate.timeout_share) >= 0)
        assert np.all(np.diff(fate.lost_token_share) >= 0)
        assert np.all(np.diff(fate.kept_moments[0]) <= 0)

    def test_plans_are_independent(self) -> None:
        token_s = np.array([[0.01], [0.03]])
        start_s = np.array([8.0, 100.0, 900.0])
        fate = sandbox_fate(LENGTHS, token_s, start_s, 5.0, 0.05, 2, 600.0)
        assert fate.lost_s.shape == (2, 3)
        one = sandbox_fate(LENGTHS, 0.03, 100.0, 5.0, 0.05, 2, 600.0)
        assert fate.lost_s[1, 1] == one.lost_s
        assert fate.kept_moments[:, 1, 1] == pytest.approx(one.kept_moments)


class TestMoney:
    def test_dollars_and_hours_of_a_credit(self) -> None:
        per_hour = sandbox_usd_per_hour(sandboxes_in_use(np.array([48, 480]), 2), 0.125)
        assert per_hour.tolist() == [12.0, 120.0]
        assert credit_hours(60.0, per_hour).tolist() == [5.0, 0.5]
        assert credit_hours(60.0, 0.0) == np.inf


class TestCores:
    def test_concurrent_calls_are_rate_times_duration(self) -> None:
        # Calls of 1.5 s that start every 25 ms on average: 60 at any time.
        rng = np.random.default_rng(8)
        starts = np.cumsum(rng.exponential(0.025, 40_000))
        lengths = rng.exponential(1.5, 40_000)
        moments = np.linspace(20.0, 900.0, 2000)
        begun = np.searchsorted(starts, moments)
        ended = np.searchsorted(np.sort(starts + lengths), moments)
        assert np.mean(begun - ended) == pytest.approx(calls_concurrency(40.0, 1.5), rel=0.03)

    def test_cores(self) -> None:
        assert cores_needed(np.array([40.0, 40.1]), 1.5).tolist() == [60.0, 61.0]
        assert float(cores_needed(40.0, 1.5, 2)) == 120.0
        assert float(cores_needed(10.0, 0.1 * 3)) == 3.0


def test_a_batch_waits_for_attempts_made_again() -> None:
    """At equal lengths each further attempt ends n/(n + 1) of a life later, where any is lost."""
    equal = CappedLogNormal(np.log(1000.0), 0.0)
    lost, batch = 0.1, 64.0
    expected = 0.0
    for number in (6.4, 0.64):
        any_lost = 1.0 - (1.0 - number / batch) ** batch
        expected += any_lost * 1000.0 * number / (number + 1.0)
    found = restarted_tail(equal, lost, 2, batch, 1000.0)
    assert float(found.tokens) == pytest.approx(expected, rel=1e-9)
    assert float(restarted_tail(equal, 0.0, 3, batch, 1000.0).tokens) == 0.0
    assert float(restarted_tail(equal, lost, 0, batch, 1000.0).restarts) == 0.0


def test_a_long_first_attempt_hides_those_made_again() -> None:
    """Against simulated batches: the end is that of the longest attempt, first or later."""
    lengths = capped_lognormal_from_mean_cv(1000.0, 0.8, 8000.0)
    random = np.random.default_rng(3)
    batch, lost, runs = 128, 0.05, 4000
    draws = lengths.quantile(random.uniform(size=(runs, batch, 3)))
    ends = np.zeros((runs, batch))
    running = np.ones((runs, batch), dtype=bool)
    for attempt in range(3):
        fails = (random.uniform(size=running.shape) < lost) & (attempt < 2) & running
        stay = np.where(fails, random.uniform(size=running.shape), 1.0)
        ends += np.where(running, stay * draws[:, :, attempt], 0.0)
        running = fails
    first = float(lengths.mean * lengths.tailness(batch))
    found = first + float(restarted_tail(lengths, lost, 2, batch, first).tokens)
    assert found == pytest.approx(float(ends.max(axis=1).mean()), rel=0.08)
