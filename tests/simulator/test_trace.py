"""A trace notes what happens and changes nothing of it."""

from typing import Any

import numpy as np
import pytest

from allocator.simulator.draws import Draws
from allocator.simulator.line import SimulatedLine
from allocator.simulator.measure import warm_steps, window
from allocator.simulator.tally import Tally
from allocator.simulator.trace import TRAINER_KINDS, Trace, _BatchesTraced, _StreamTraced, trace
from tests.simulator.lines import line as steady_line

STEPS, WARM = 10, 2
MODES = ("async", "one_step_off", "disaggregated_sync", "colocated_sync")


def seed() -> np.random.SeedSequence:
    return np.random.SeedSequence(5)


def a_line(mode: str = "async", **parts: Any) -> SimulatedLine:
    parts = {"slots": 16, "engines": 2, "size": 4, "per_batch": 8, **parts}
    return steady_line(mode=mode, cv=0.8, step_cv=0.2, **parts)


def durations(found: Trace, kind: str) -> float:
    """Seconds that the trainer spends with one kind."""
    events = found.of(*TRAINER_KINDS)
    ends = [*(event.time_s for event in events[1:]), found.end_s]
    return sum(
        end - event.time_s for event, end in zip(events, ends, strict=True) if event.kind == kind
    )


def decoding_s(found: Trace) -> float:
    """Integral over time of the rollouts that decode."""
    events = found.of("decoding")
    ends = [*(event.time_s for event in events[1:]), found.end_s]
    return sum(event.value * (end - event.time_s) for event, end in zip(events, ends, strict=True))


def untraced(line: SimulatedLine) -> Tally:
    assert warm_steps(STEPS) == WARM
    return window(line, STEPS, seed())


def traced(line: SimulatedLine) -> Trace:
    return trace(line, seed(), WARM, STEPS - WARM)


@pytest.mark.parametrize("mode", MODES)
def test_a_traced_run_is_the_run_that_is_not_traced(mode: str) -> None:
    line = a_line(mode, trainer={"sync_s": 0.1, "switch_s": 0.05})
    run = (_StreamTraced if mode == "async" else _BatchesTraced)(line, Draws(line, seed()))
    assert run.run(STEPS, WARM) == untraced(line)


@pytest.mark.parametrize("mode", MODES)
def test_the_trainers_time_adds_up(mode: str) -> None:
    line = a_line(mode, trainer={"sync_s": 0.1, "switch_s": 0.05})
    found, tally = traced(line), untraced(line)
    steps = STEPS - WARM
    assert found.end_s == pytest.approx(tally.now)
    assert durations(found, "training") == pytest.approx(tally.train_s)
    assert durations(found, "sending") == pytest.approx(0.1 * steps)
    switching = 0.05 * steps if mode == "colocated_sync" else 0.0
    assert durations(found, "switching") == pytest.approx(switching)
    whole = sum(durations(found, kind) for kind in TRAINER_KINDS)
    assert whole == pytest.approx(found.end_s)
    assert durations(found, "waiting") == pytest.approx(tally.now - tally.busy_s - switching)


@pytest.mark.parametrize("mode", MODES)
def test_decoding_integrates_to_what_the_engines_counted(mode: str) -> None:
    line = a_line(mode)
    assert decoding_s(traced(line)) == pytest.approx(untraced(line).decoding_s, rel=1e-6)


def test_nothing_is_decoded_while_weights_are_sent() -> None:
    line = a_line(trainer={"sync_s": 0.4})
    pauses = [event for event in traced(line).of("decoding") if event.value == 0.0]
    assert len(pauses) == STEPS - WARM
    lasting = a_line(trainer={"sync_s": 0.4, "generator_pauses": False})
    assert not [event for event in traced(lasting).of("decoding") if event.value == 0.0]


def test_versions_and_queue() -> None:
    found = traced(a_line(trainer={"optimizer_steps": 2}))
    versions = [event.value for event in found.of("version")]
    first = 2.0 * WARM
    assert versions == [first + 2.0 * step for step in range(STEPS - WARM + 1)]
    assert [event.value for event in found.of("engine_version")] == versions
    waiting = [event.value for event in found.of("queue")]
    assert min(waiting) >= 0.0
    assert max(waiting) <= 8.0
    starts = [event.value for event in found.of("training")]
    assert starts == [float(step) for step in range(found.first_step, found.first_step + 8)]


def test_events_are_in_order_and_one_a_kind_and_time() -> None:
    found = traced(a_line("one_step_off", policy={"partial": True}))
    times = [event.time_s for event in found.events]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] <= found.end_s
    keys = [(event.time_s, event.kind) for event in found.events]
    assert len(set(keys)) == len(keys)


def test_a_trace_has_at_least_one_step() -> None:
    with pytest.raises(ValueError, match="at least 1 step"):
        trace(a_line(), seed(), 2, 0)
