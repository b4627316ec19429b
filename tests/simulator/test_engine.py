"""The virtual clock against steps taken one by one."""

import math

import pytest

from allocator.physics.decode import DecodeLaw, decode_step_s
from allocator.physics.prefill import PrefillLaw
from allocator.simulator.engine import Engine, step_table
from allocator.simulator.line import EngineSet
from allocator.simulator.records import Group, Rollout

LAW = DecodeLaw(7e-3, 17e-3, 4e-5, 1.2e-6, 0.9375)


def engine_of(budget_tokens: float = math.inf) -> Engine:
    engines = EngineSet(
        1, 64, LAW, PrefillLaw(0.0, 0.0, 0.0), kv_bytes_per_token=2.0,
        kv_budget_bytes=2.0 * budget_tokens, kv_free_share=0.0,
    )  # fmt: skip
    return Engine(engines, 0, step_table(engines, 64))


def rollout_of(engine: Engine, context: float, tokens: float) -> Rollout:
    rollout = Rollout(Group(1, 0, 0.0, True), engine, 0.0, False)
    rollout.begin(tokens, 1, context)
    return rollout


def test_closed_form_is_the_sum_of_steps_of_mixed_contexts() -> None:
    engine = engine_of()
    given = [(1000.0, 400.0), (3000.0, 700.0), (50.0, 1500.0)]
    for serial, (context, tokens) in enumerate(given, 1):
        engine.join(rollout_of(engine, context, tokens), tokens, serial, 0.0, 0.0)
    ends = []
    while (due := engine.due()) < math.inf:
        ended = engine.next_end(due)
        assert ended is not None
        ends.append(due)
    seconds, expected = 0.0, []
    for step in range(1500):
        alive = [(c, r) for c, r in given if r > step]
        # Half a token per sequence and step is the fluid's.
        context = sum(c + step + 0.5 for c, _ in alive)
        seconds += float(decode_step_s(LAW, len(alive), context))
        expected += [seconds] * sum(r == step + 1 for _, r in alive)
    assert ends == pytest.approx(expected, rel=1e-12)
    assert engine.written == pytest.approx(2600.0)
    assert engine.context == 0.0


def test_stops_on_the_way_change_nothing() -> None:
    whole, halting = engine_of(), engine_of()
    for engine in (whole, halting):
        engine.join(rollout_of(engine, 100.0, 5000.0), 5000.0, 1, 0.0, 0.0)
        engine.join(rollout_of(engine, 9000.0, 8000.0), 8000.0, 2, 0.0, 0.0)
    for moment in (0.1, 3.0, 3.0, 77.0):
        halting.advance(moment)
    assert halting.due() == pytest.approx(whole.due(), rel=1e-12)
    assert halting.clock > 0.0


def test_reading_stops_those_that_decode() -> None:
    engine = engine_of()
    engine.join(rollout_of(engine, 0.0, 100.0), 100.0, 1, 0.0, 0.0)
    alone = engine.due()
    engine.stall(alone / 2.0, 5.0)
    assert engine.due() == pytest.approx(alone + 5.0, rel=1e-12)


def test_leaving_gives_back_context_and_counts_tokens() -> None:
    engine = engine_of()
    first, second = (rollout_of(engine, 100.0, 1000.0) for _ in range(2))
    engine.join(first, 1000.0, 1, 0.0, 0.0)
    engine.join(second, 1000.0, 2, 0.0, 0.0)
    engine.leave(first, engine.due() / 2.0)
    assert 0.0 < first.written < 1000.0
    assert engine.context == pytest.approx(100.0 + first.written)
    assert engine.next_end(engine.due()) is second
    assert second.written == pytest.approx(1000.0)


def test_versions_are_counted_by_token() -> None:
    engine = engine_of()
    rollout = rollout_of(engine, 0.0, 100.0)
    engine.join(rollout, 100.0, 1, 0.0, 0.0)
    engine.set_version(3, engine.due() / 2.0)
    before = engine.clock
    engine.next_end(engine.due())
    assert rollout.first_version == 0
    assert rollout.versions == pytest.approx(3.0 * (100.0 - before))


def test_full_memory_is_due_before_the_end() -> None:
    engine = engine_of(budget_tokens=1000.0)
    first, second = (rollout_of(engine, 400.0, 1000.0) for _ in range(2))
    engine.join(first, 1000.0, 1, 0.0, 0.0)
    engine.join(second, 1000.0, 2, 0.0, 0.0)
    assert engine.next_end(engine.due()) is None
    assert engine.context == pytest.approx(1000.0)
    assert engine.youngest() is second
    assert not engine.fits(rollout_of(engine, 1.0, 1.0))
