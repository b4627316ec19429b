"""Queueing theory, conservation and other simulations: nothing here is tuned to the simulator."""

import math
from typing import Any

import numpy as np
import pytest

from allocator.physics.decode import DecodeLaw
from allocator.physics.length_tables import from_quantiles
from allocator.physics.lengths import capped_lognormal_from_mean_cv
from allocator.physics.prefill import PrefillLaw
from allocator.simulator import simulate
from allocator.simulator.batches import BatchRun
from allocator.simulator.draws import Draws
from allocator.simulator.generator import Generator
from allocator.simulator.kernel import AsyncRun
from allocator.simulator.line import PrefillPool, Reward, Sandboxes, SimulatedLine, Solving
from allocator.simulator.stations import Crowd, Servers
from tests.physics import queue_event_simulation as reference
from tests.physics.queue_rows import Row, rows
from tests.simulator.lines import line

#: A call lasts a life on average.
TOOL = capped_lognormal_from_mean_cv(1.0, 1.0)
ROWS = [row for row in rows() if row.setting.batch <= 64 and row.setting.in_flight <= 128]


def reference_line(setting: reference.Setting, **parts: Any) -> SimulatedLine:
    common: dict[str, Any] = {
        "groups": {"whole": False},
        "policy": {"queue_batches": setting.queue_batches},
    }
    return line(
        cv=setting.length_cv,
        slots=setting.in_flight,
        size=setting.group_size,
        per_batch=setting.batch // setting.group_size,
        train_s=setting.load * setting.batch / setting.in_flight,
        step_cv=setting.train_step_cv,
        **(common | parts),
    )


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_evidence_rows(row: Row) -> None:
    steps = min(2000, 40_000 // row.setting.batch)
    found = simulate(reference_line(row.setting), steps, seed=1)
    # Some three standard errors at this many steps; near load 1 the queue wanders for long.
    spread = 0.08 if abs(row.setting.load - 1.0) < 0.05 else 0.03
    assert found.trainer_wait_fraction.mean == pytest.approx(row.wait, abs=0.02)
    assert found.dropped_fraction.mean == pytest.approx(row.dropped_share, abs=0.02)
    assert found.staleness.mean.mean == pytest.approx(row.staleness_mean, rel=spread)
    cdf = np.ones(row.staleness_cdf.size)
    seen = found.staleness.cdf[: cdf.size]
    cdf[: len(seen)] = seen
    assert np.max(np.abs(cdf - row.staleness_cdf)) < max(2.0 * spread, 0.06)


@pytest.mark.parametrize("limit", [None, 3])
def test_agrees_with_the_other_event_simulation(limit: int | None) -> None:
    setting = reference.Setting(32, 16, 4, 2, 1.03, 0.8, 0.1)
    expected = reference.simulate(setting, 4000, seed=3, limit=limit)
    policy: dict[str, Any] = {"queue_batches": 2}
    if limit is not None:
        policy |= {"enforce": "reject", "staleness_limit": float(limit)}
    found = simulate(reference_line(setting, policy=policy), 4000, seed=4)
    assert found.trainer_wait_fraction.mean == pytest.approx(expected.wait, abs=0.015)
    assert found.dropped_fraction.mean == pytest.approx(expected.dropped_share, abs=0.015)
    assert found.rejected_fraction.mean == pytest.approx(expected.rejected_share, abs=0.015)
    assert found.staleness.mean.mean == pytest.approx(expected.staleness_mean, rel=0.03)
    if limit is not None:
        assert len(found.staleness.cdf) == limit + 1


def _served(servers: int, load: float, seconds: np.ndarray) -> Servers:
    random = np.random.default_rng(7)
    arrivals = np.cumsum(random.exponential(np.mean(seconds) / (load * servers), seconds.size))
    station = Servers(servers)
    for now, service in zip(arrivals.tolist(), seconds.tolist(), strict=True):
        station.take(now, service)
    return station


def test_servers_against_erlang() -> None:
    servers, load, count = 4, 0.8, 200_000
    station = _served(servers, load, np.random.default_rng(8).exponential(1.0, count))
    offered = servers * load
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1.0 - load)
    expected = last / (sum(terms) + last) / (servers * (1.0 - load))
    assert station.waited_s / count == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("cv", [0.0, 0.5])
def test_one_server_against_pollaczek_khinchine(cv: float) -> None:
    load, count = 0.7, 200_000
    shape = cv**-2 if cv else 0.0
    random = np.random.default_rng(9)
    seconds = random.gamma(shape, 1.0 / shape, count) if cv else np.ones(count)
    station = _served(1, load, seconds)
    expected = load * (1.0 + cv**2) / (2.0 * (1.0 - load))
    assert station.waited_s / count == pytest.approx(expected, rel=0.04)


def test_slots_with_a_poisson_stream_before_one_server() -> None:
    # 400 exponential slots feed one server: almost M/D/1, and all of it is in the residence.
    levels = np.linspace(0.0, 1.0, 2001)
    levels = np.concatenate([levels[:-1], 1.0 - np.geomspace(4e-4, 1e-7, 40), [1.0]])
    tokens = -1000.0 * np.log1p(-np.minimum(levels, 1.0 - 5e-8))
    law = from_quantiles(dict(zip(levels.tolist(), tokens.tolist(), strict=True)))
    service = 0.7 / 400.0
    run = AsyncRun(
        line(
            slots=400, size=1, per_batch=100, train_s=0.01, rollouts={"lengths": law},
            reward=Reward(servers=1, seconds=service, latency_s=0.001),
        ),
        Draws(line(rollouts={"lengths": law}), np.random.SeedSequence(5)),
    )  # fmt: skip
    window = run.run(500, 100)
    wait = run.scorers.waited_s / run.scorers.served
    assert wait == pytest.approx(0.7 * service / (2.0 * 0.3), rel=0.08)
    stay = window.residence_s / (window.ended + window.stopped)
    assert stay == pytest.approx(law.mean / 1000.0 + service + 0.001 + wait, rel=0.01)


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "turns": {
        "rollouts": {
            "turns": 3, "tool_tokens": 20.0, "tool_call": TOOL, "prompt_tokens": 9.0,
        },
        "engine": {"prefill": PrefillLaw(0.0, 1e-5, 0.0)},
        "train_s": 2.0,
    },
    "memory": {
        "rollouts": {"prompt_tokens": 300.0},
        "engine": {"kv_bytes_per_token": 1.0, "kv_budget_bytes": 16_000.0,
                   "prefill": PrefillLaw(0.0, 1e-5, 0.0)},
    },
    "memory in tools": {
        "rollouts": {"turns": 3, "tool_tokens": 20.0, "tool_call": TOOL},
        "engine": {"kv_bytes_per_token": 1.0, "kv_budget_bytes": 9_000.0},
        "train_s": 2.0,
    },
    "sandboxes": {
        "sandboxes": Sandboxes(2, 40.0, ((1.0, 0.1), (64.0, 0.5)), ((1.0, 0.2),), 1, 2.5),
    },
    "reward": {"reward": Reward(4.0, 0.12, 0.2)},
    "by sample": {"groups": {"oversampling": 1.5, "by": "sample"}, "reward": Reward(latency_s=0.2)},
    "by group": {"groups": {"oversampling": 1.5}},
    "by sample, at once": {"groups": {"oversampling": 1.5, "by": "sample"}},
    "one by one, by sample": {
        "groups": {"oversampling": 2.0, "by": "sample", "whole": False, "limit_per_engine": False},
        "engines": 3, "slots": 11,
    },
    "refill": {"groups": {"solving": Solving(0.1, 0.3), "sampling": "refill"}},
    "drop": {"groups": {"solving": Solving(0.1, 0.3), "sampling": "drop"}},
    "reject": {"policy": {"enforce": "reject", "staleness_limit": 2.0}},
    "admission": {"policy": {"enforce": "admission", "staleness_limit": 1.0}},
    "block": {"policy": {"overflow": "block"}, "train_s": 2.0},
    "abort": {"policy": {"weight_update": "abort"}, "train_s": 2.0},
    "resume": {"policy": {"weight_update": "abort", "partial": True}, "engines": 2},
    "drain": {"policy": {"weight_update": "drain"}, "engines": 3},
    "apart": {
        "prefill_pool": PrefillPool(2, PrefillLaw(0.01, 1e-5, 0.0), 1.0, 1e4),
        "rollouts": {"prompt_tokens": 200.0},
    },
}  # fmt: skip
BATCHES: dict[str, dict[str, Any]] = {
    "batch": {"mode": "disaggregated_sync", "engines": 2, "slots": 5},
    "batch by sample": {"mode": "one_step_off", "groups": {"oversampling": 1.3, "by": "sample"}},
    "batch by group": {"mode": "colocated_sync", "groups": {"oversampling": 1.5}},
    "batch refill": {
        "mode": "one_step_off",
        "groups": {"solving": Solving(0.1, 0.3), "sampling": "refill"},
    },
    "batch resumed": {
        "mode": "disaggregated_sync",
        "policy": {"partial": True},
        "groups": {"oversampling": 1.5},
        "rollouts": {"turns": 2, "tool_call": TOOL},
    },
    "batch sandboxes": {
        "mode": "disaggregated_sync",
        "sandboxes": Sandboxes(1, 10.0, ((1.0, 0.1),), ((1.0, 0.2),), 2, 4.0),
    },
}


def any_line(seed: int) -> SimulatedLine:
    """Return a line with every rule drawn at random."""
    random = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[random.integers(len(choices))]

    turns = one(1, 3)
    return line(
        mode=one("async", "async", "async", "one_step_off", "disaggregated_sync", "colocated_sync"),
        slots=24, engines=3, size=4, per_batch=6, train_s=one(0.2, 1.0), step_cv=0.1,
        engine={
            "prefill": PrefillLaw(1e-3, 1e-6, 0.0), "kv_bytes_per_token": 1.0,
            "kv_budget_bytes": one(math.inf, 12_000.0),
        },
        rollouts={
            "turns": turns, "tool_tokens": 20.0 * (turns > 1), "kv_held": one(True, False),
            "tool_call": one(None, TOOL), "prompt_tokens": 50.0,
            "prefix_cache": one("none", "shared_prompt", "full"),
        },
        groups={
            "whole": one(True, False), "limit_per_engine": one(True, False),
            "oversampling": one(1.0, 1.5), "by": one("sample", "group"),
            "solving": one(None, Solving(0.1, 0.2)), "sampling": one("off", "drop", "refill"),
        },
        trainer={
            "sync_s": one(0.0, 0.1), "sync_every": one(1, 2), "optimizer_steps": one(1, 3),
            "trainer_blocks": one(True, False), "generator_pauses": one(True, False),
        },
        policy={
            "queue_batches": one(1, 2), "overflow": one("drop_oldest", "block"),
            "enforce": one("design", "reject", "admission"), "staleness_limit": 6.0,
            "weight_update": one("in_flight", "drain", "abort", "retract"),
            "partial": one(True, False),
        },
        sandboxes=one(None, Sandboxes(1, 40.0, ((1.0, 0.1),), ((1.0, 0.1),), 2, 30.0)),
        reward=one(Reward(), Reward(4.0, 0.05, 0.1)),
        prefill_pool=one(None, None, PrefillPool(1, PrefillLaw(1e-3, 1e-6, 0.0), 1.0, 1e4)),
    )  # fmt: skip


def run_of(made: SimulatedLine, steps: int = 60) -> Generator:
    draws = Draws(made, np.random.SeedSequence(11))
    run = AsyncRun(made, draws) if made.mode == "async" else BatchRun(made, draws)
    run.run(steps, steps // 5)
    return run


@pytest.mark.parametrize("name", [*FEATURES, *BATCHES])
def test_rollouts_and_tokens_are_conserved(name: str) -> None:
    conserved(run_of(line(**(FEATURES | BATCHES)[name])))


@pytest.mark.parametrize("seed", range(40))
def test_any_rules_together_conserve_them(seed: int) -> None:
    conserved(run_of(any_line(seed), 12))


def conserved(run: Generator) -> None:
    tally = run.tally
    flying = [rollout for engine in run.engines for rollout in engine.rollouts]
    assert tally.started == tally.ended + tally.stopped + len(flying)
    assert run.in_flight == len(flying)
    assert run.free == run.line.engines.count * run.line.engines.in_flight - len(flying)
    waiting = {id(rollout.group): rollout.group for rollout in flying}
    if isinstance(run, AsyncRun):
        waiting |= {id(group): group for group in run.queue}
        if run._gathering is not None:
            waiting[id(run._gathering)] = run._gathering
    if isinstance(run, BatchRun):
        waiting |= {id(group): group for group in [*run.ahead, *run._open]}
    kept = sum(group.tokens for group in waiting.values())
    unfinished = sum(r.written + (r.engine.clock - r.joined if r.entry else 0.0) for r in flying)
    assert tally.written == pytest.approx(sum(tally.fates) + kept + unfinished, rel=1e-9)


@pytest.mark.parametrize("name", [*FEATURES, *BATCHES])
def test_a_seed_gives_one_result(name: str) -> None:
    made = line(**(FEATURES | BATCHES)[name])
    assert simulate(made, 10, 5) == simulate(made, 10, 5)
    assert simulate(made, 10, 5) != simulate(made, 10, 6)


def _little(crowd: Crowd, rel: float) -> None:
    assert crowd.left > 1000
    # What is still inside has stayed, but not left.
    assert crowd.number_s == pytest.approx(crowd.stay_s, rel=rel)


@pytest.mark.parametrize("name", list(FEATURES))
def test_little_s_law_at_every_station(name: str) -> None:
    run = run_of(line(**FEATURES[name]), 400)
    run.snapshot()
    tally = run.tally
    number_s = float(np.asarray(tally.at) @ np.arange(len(tally.at)))
    assert number_s == pytest.approx(tally.residence_s, rel=0.02)
    assert isinstance(run, AsyncRun)
    _little(run.queued, 0.02)
    for crowd in (run.starting, run.reading, run.scoring):
        if crowd.entered:
            _little(crowd, 0.02)


def test_memory_is_never_exceeded() -> None:
    made = line(**FEATURES["memory"])
    run = AsyncRun(made, Draws(made, np.random.SeedSequence(1)))
    largest = 0.0
    take = run.turn_ends

    def watched(rollout: Any) -> None:
        nonlocal largest
        largest = max(largest, run.engines[0].context + rollout.context)
        take(rollout)

    run.turn_ends = watched  # type: ignore[method-assign]
    run.run(60, 12)
    assert 14_000.0 < largest <= 16_000.0 * (1.0 + 1e-9)
    assert run.tally.preempted > 0


def test_law_of_the_step_sets_the_rate() -> None:
    # Equal lengths in step: the mean context is the prompt and half the response.
    law = DecodeLaw(1e-3, 5e-3, 1e-5, 1e-8, 0.9)
    found = simulate(
        line(cv=0.0, slots=16, size=16, per_batch=1, train_s=0.1, engine={"decode": law},
             rollouts={"prompt_tokens": 400.0}), 30,
    )  # fmt: skip
    step_s = 1e-3 + 5e-3 * (1.0 - 0.9**16) + 16e-5 + 16e-8 * 900.0
    assert found.step_s.mean == pytest.approx(1000.0 * step_s)
