"""Laws of scoring: rates, FLOPs, seconds and dollars by hand; the wait against an exact queue."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from allocator.physics.decode import DecodeLaw, decode_step_s
from allocator.physics.flops import ForwardShape, forward_flops, search_flops
from allocator.physics.prefill import PrefillLaw, prefill_s
from allocator.physics.reward import (
    api_usd,
    batch_reward_s,
    judge_flops,
    judge_s,
    reward_rate_per_s,
    rule_rate_per_s,
    scoring_flops,
    scoring_s,
    waiting_s,
    workers_needed,
)

JUDGE = ForwardShape(7e9, 20.0, 12.0, 4096.0, 16384.0)
STEPS = DecodeLaw(7e-3, 17e-3, 4e-5, 1.2e-8, 1 - 8 / 128)
READING = PrefillLaw(2e-3, 4e-5, 5e-10)


class TestRates:
    def test_workers_by_hand(self) -> None:
        # 96 workers, 2 calls of 1.5 CPU-seconds: 3 CPU-seconds a rollout.
        assert float(rule_rate_per_s(96, 1.5, 2)) == 32.0
        assert float(workers_needed(32.0, 1.5, 2)) == 96.0

    def test_without_a_limit_or_without_work_the_rate_is_infinite(self) -> None:
        assert np.isinf(rule_rate_per_s(np.inf, 1.5, 2))
        assert np.isinf(rule_rate_per_s(8, 0.0, 2))
        assert np.isinf(rule_rate_per_s(np.inf, 0.0, 2))

    def test_needed_workers_keep_up_and_one_fewer_does_not(self) -> None:
        rate = np.linspace(0.3, 40.0, 400)
        workers = workers_needed(rate, 0.7, 3)
        assert np.all(rule_rate_per_s(workers, 0.7, 3) >= rate * (1 - 1e-9))
        assert np.all(rule_rate_per_s(workers - 1, 0.7, 3) < rate)

    def test_rounding_of_the_product_does_not_ask_for_a_worker_more(self) -> None:
        assert 0.1 * 3 > 0.3  # what a plain ceiling would round up
        assert float(workers_needed(10.0, 0.1, 3)) == 3.0

    def test_a_limit_of_calls_is_a_number_of_servers(self) -> None:
        assert float(reward_rate_per_s(50.0, 4)) == 12.5


class TestModels:
    def test_scoring_is_a_forward_pass_a_call(self) -> None:
        # 2 x 1e9 x 1,000 + 4 x 3 layers x 1.25e6/2 pairs, three times.
        shape = ForwardShape(1e9, 3.0, 0.0, 0.0, 4.0)
        assert float(scoring_flops(shape, 3, 1000.0, 1.25e6)) == 3 * (2e12 + 7.5e6)

    def test_a_verdict_is_its_prefill_and_its_decode(self) -> None:
        prompt, verdict = 9000.0, 700.0
        parts = search_flops(JUDGE, prompt, 1.0, verdict, verdict**2)
        whole = judge_flops(JUDGE, 1, prompt, prompt**2, verdict)
        assert float(whole) == pytest.approx(float(parts), rel=1e-12)

    def test_a_judge_that_writes_nothing_is_a_reward_model(self) -> None:
        assert judge_flops(JUDGE, 2, 9000.0, 1.2e8, 0.0) == scoring_flops(JUDGE, 2, 9000.0, 1.2e8)

    def test_the_spread_of_what_is_read_costs_attention(self) -> None:
        rng = np.random.default_rng(3)
        full = ForwardShape(7e9, 32.0, 0.0, 0.0, 16384.0)
        read = rng.lognormal(9.0, 0.6, 4000)
        each = [float(forward_flops(full, x + 300.0, (x + 300.0) ** 2)) for x in read]
        law = judge_flops(full, 1, read.mean(), (read**2).mean(), 300.0)
        assert float(law) == pytest.approx(np.mean(each), rel=1e-12)

    def test_seconds_of_a_scoring_server(self) -> None:
        # 4 GPUs of 989 TFLOP/s at 40%: 1.5824 PFLOP/s.
        assert scoring_s(3.1648e15, 4, 989e12, 0.4) == pytest.approx(2.0)

    def test_seconds_of_a_judge_by_hand(self) -> None:
        # Reading 0.002 + 0.08 + 5e-10 x 5e6 = 0.0845 s. Writing 200 tokens, 10 at a time: step
        # 0.007 + 0.017 (1 - 0.9375^10) + 0.0004 + 1.2e-8 x 10 x 2,100 = 0.0157362 s.
        seconds = judge_s(STEPS, READING, 1, 2000.0, 5e6, 200.0, 10.0)
        assert float(seconds) == pytest.approx(0.0845 + 200 * 0.0157362 / 10, rel=1e-5)
        assert judge_s(STEPS, READING, 3, 2000.0, 5e6, 200.0, 10.0) == pytest.approx(3 * seconds)

    def test_a_judge_engine_is_the_closed_loop_of_the_generator(self) -> None:
        # n decoders at X verdicts/s: one verdict lasts R t(n) plus the n reads meanwhile.
        n, prompt, verdict = 12.0, 3000.0, 150.0
        seconds = float(judge_s(STEPS, READING, 1, prompt, prompt**2, verdict, n))
        step = float(decode_step_s(STEPS, n, n * (prompt + verdict / 2)))
        read = float(prefill_s(READING, prompt, prompt))
        stay = verdict * step + n * read
        assert n / stay == pytest.approx(1 / seconds)  # Little: rate = in flight / stay

    def test_more_in_flight_scores_faster_down_to_reading_and_the_rest_of_a_step(self) -> None:
        seconds = judge_s(STEPS, READING, 1, 2000.0, 4e6, 200.0, np.geomspace(1, 1e7, 60))
        assert np.all(np.diff(seconds) < 0)
        rest = 4e-5 + 1.2e-8 * 2100
        assert seconds[-1] == pytest.approx(0.084 + 200 * rest, rel=1e-5)

    def test_a_judge_without_output_only_reads(self) -> None:
        seconds = judge_s(STEPS, READING, 2, 2000.0, 4e6, 0.0, 8.0)
        assert float(seconds) == pytest.approx(2 * (0.002 + 0.08 + 0.002))

    def test_dollars(self) -> None:
        # 3 calls of 12,000 tokens at 0.40 and 800 at 1.60 a million: 3 x (0.0048 + 0.00128).
        assert api_usd(3, 12_000, 800, 0.40, 1.60) == pytest.approx(0.01824)


def exact_wait_s(servers: int, load: float) -> float:
    """Mean wait of M/D/c in service times, from the chain of the number present every service.

    Whoever is served now is gone one service later: N' = max(N - c, 0) + Poisson(arrivals).
    """
    arrivals, states = servers * load, int(servers + 25 / (1 - load) + 50)
    number = stats.poisson.pmf(np.arange(states), arrivals)
    move = np.zeros((states, states))
    for present in range(states):
        left = max(present - servers, 0)
        move[present, left:] = number[: states - left]
        move[present, -1] += 1 - move[present].sum()
    equations = move.T - np.eye(states)
    equations[-1] = 1.0  # instead of a dependent one: the probabilities add up to 1
    law = np.linalg.solve(equations, np.eye(states)[-1])
    return float(np.maximum(np.arange(states) - servers, 0) @ law) / arrivals


class TestWaiting:
    @pytest.mark.parametrize("servers", [1, 2, 4, 16, 32])
    @pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
    def test_constant_service_against_the_exact_queue(self, servers: int, load: float) -> None:
        seconds = 3.0
        wait = float(waiting_s(servers * load / seconds, servers, seconds))
        exact = seconds * exact_wait_s(servers, load)
        assert wait == pytest.approx(exact, rel=1e-6 if servers == 1 else 0.03)

    def test_exponential_service_is_erlang_c(self) -> None:
        # M/M/2 at load 0.75: C = 9/14, wait = C/(2 x 0.25) = 9/7 services.
        assert float(waiting_s(1.5, 2, 1.0, 1.0)) == pytest.approx(9 / 7)
        assert float(waiting_s(15.0, 20, 1.0, 1.0)) == pytest.approx(
            self.erlang_c(20, 15.0) / (20 - 15.0)
        )

    @staticmethod
    def erlang_c(servers: int, offered: float) -> float:
        blocked = 1.0
        for n in range(1, servers + 1):
            blocked = offered * blocked / (n + offered * blocked)
        return blocked / (1 - offered / servers * (1 - blocked))

    def test_one_server_is_pollaczek_khinchine(self) -> None:
        cv = np.array([0.0, 0.5, 1.0, 2.0])
        expected = 0.8 / 0.2 * 5.0 * (1 + cv**2) / 2
        assert waiting_s(0.16, 1, 5.0, cv) == pytest.approx(expected)

    def test_limits(self) -> None:
        wait = waiting_s([0.0, 1.0, 1.0, 4.0, 5.0], [4, np.inf, 4, 4, 4], [1.0, 9.0, 0.0, 1.0, 1.0])
        assert wait.tolist() == [0.0, 0.0, 0.0, np.inf, np.inf]

    def test_more_servers_wait_less_and_more_work_waits_longer(self) -> None:
        servers = np.arange(8, 200)
        assert np.all(np.diff(waiting_s(7.5, servers, 1.0)) <= 0)
        assert np.all(np.diff(waiting_s(np.linspace(0.01, 7.99, 300), 8, 1.0)) > 0)
        assert np.all(np.diff(waiting_s(7.5, 8, 1.0, np.linspace(0, 2, 20))) > 0)

    def test_large_pools_do_not_overflow(self) -> None:
        wait = waiting_s(np.array([99_000.0, 99_990.0]), 100_000, 1.0)
        assert np.all(np.isfinite(wait))
        assert 0 < wait[0] < wait[1] < 0.1


class TestBatchModes:
    def test_overlapped_only_what_generation_does_not_hide(self) -> None:
        # 512 rollouts at 4/s take 128 s, of which 100 pass during generation.
        assert float(batch_reward_s(512, 4.0, 3.0, 100.0, overlap=True)) == 31.0
        assert float(batch_reward_s(512, 4.0, 3.0, 100.0, overlap=False)) == 131.0
        assert float(batch_reward_s(512, np.inf, 3.0, 100.0, overlap=False)) == 3.0

    @pytest.mark.parametrize("rate", [2.0, 4.0, 20.0])
    def test_overlapped_against_a_queue_fed_evenly(self, rate: float) -> None:
        done, count, generation = 0.0, 512, 100.0
        for finished in np.linspace(0.0, generation, count):
            done = max(done, finished) + 1 / rate
        law = float(batch_reward_s(count, rate, 0.0, generation, overlap=True))
        assert done - generation == pytest.approx(law, abs=1.5 / rate)

    def test_overlap_never_loses(self) -> None:
        rates = np.geomspace(0.1, 1e4, 50)
        beside = batch_reward_s(512, rates, 3.0, 100.0, overlap=True)
        after = batch_reward_s(512, rates, 3.0, 100.0, overlap=False)
        assert np.all(beside <= after)
        assert np.all(np.diff(beside) <= 0)
        assert np.all(beside >= 3.0)
