"""A trace: what the sides of a line did during some steps of one replication.

The runs below note what happens beside doing it; runs that are not traced know nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from allocator.simulator.batches import BatchRun
from allocator.simulator.draws import Draws
from allocator.simulator.engine import Engine
from allocator.simulator.generator import Generator
from allocator.simulator.kernel import AsyncRun
from allocator.simulator.line import SimulatedLine
from allocator.simulator.records import Group, Rollout
from allocator.simulator.tally import Tally

Kind = Literal[
    "training",
    "waiting",
    "sending",
    "switching",
    "decoding",
    "in_flight",
    "queue",
    "version",
    "engine_version",
]
KINDS: tuple[str, ...] = get_args(Kind)
#: What the trainer does; each lasts until the next of them.
TRAINER_KINDS = KINDS[:4]


class Event(NamedTuple):
    """From `time_s` on `kind` is `value`, until the next event of that kind.

    The trainer's kinds (training, waiting, sending, switching) carry the number of its step, and
    each lasts until the next of the four. `decoding` and `in_flight` count rollouts of all
    engines (decoding is 0 while a transfer of weights stops them all), `queue` the finished groups
    that wait, `version` the weights of the trainer, `engine_version` the oldest of the engines.
    """

    time_s: float
    kind: Kind
    value: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Events of some steps, in the order of their times.

    Attributes
    ----------
    first_step : number of the first step traced, counted from 1 and with those of the warm-up.
    steps, end_s : steps traced, and where the trace ends; it begins at 0 s.
    """

    line: SimulatedLine
    first_step: int
    steps: int
    end_s: float
    events: tuple[Event, ...]

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of some kinds."""
        return [event for event in self.events if event.kind in kinds]


def trace(line: SimulatedLine, seed: np.random.SeedSequence, warm: int, steps: int) -> Trace:
    """Run a line for `warm` steps, then note what happens during `steps` (>= 1) more.

    With the seed of a replication these are steps of that replication.

    Raises
    ------
    ValueError
        Without steps, or on a line in which nothing can ever be trained.
    """
    if warm < 0 or steps < 1:
        raise ValueError(f"at least 1 step, and no less than none before, given {steps}, {warm}")
    draws = Draws(line, seed)
    run = _StreamTraced(line, draws) if line.mode == "async" else _BatchesTraced(line, draws)
    run.run(warm + steps, warm)
    begin, end = run.opened_at, run.now
    noted = [event._replace(time_s=event.time_s - begin) for event in run.noted]
    return Trace(line, warm + 1, steps, end - begin, _in_order(noted, end - begin))


def _in_order(noted: list[Event], end_s: float) -> tuple[Event, ...]:
    """Return events by time, of those of one kind at one time only the last."""
    last: dict[tuple[float, str], Event] = {}
    for event in noted:
        if event.time_s <= end_s:
            whose = "trainer" if event.kind in TRAINER_KINDS else event.kind
            last[max(event.time_s, 0.0), whose] = event
    return tuple(last[key] for key in sorted(last, key=lambda key: key[0]))


class _Traced(Generator):
    """Notes of engines; they begin with the first snapshot and end with the second."""

    def __init__(self, line: SimulatedLine, draws: Draws) -> None:
        self.noted: list[Event] = []
        self.open, self.opened_at, self._quiet_until = False, -1.0, 0.0
        self._last: dict[Kind, float] = {}
        super().__init__(line, draws)

    def note(self, kind: Kind, value: float, time_s: float | None = None) -> None:
        """Note something, unless it is as it was."""
        if self.open and self._last.get(kind) != value:
            self._last[kind] = value
            self.noted.append(Event(self.now if time_s is None else time_s, kind, value))

    def turn(self, kind: Kind, step: int, time_s: float | None = None) -> None:
        """Note what the trainer does from now on."""
        if self.open:
            self.noted.append(Event(self.now if time_s is None else time_s, kind, step))

    def count(self) -> None:
        """Note how many rollouts decode and are in flight, unless all engines stand still."""
        self.note("in_flight", self.in_flight)
        if self.now >= self._quiet_until:
            self.note("decoding", sum(engine.decoding for engine in self.engines))

    def stand_still(self, seconds: float) -> None:
        """Note that no engine decodes for some seconds."""
        self.note("decoding", 0.0)
        self._quiet_until = self.now + seconds
        after = sum(engine.decoding for engine in self.engines)
        self.note("decoding", after, self._quiet_until)

    def engine_versions(self) -> None:
        """Note the oldest weights."""
        self.note("engine_version", min(engine.version for engine in self.engines))

    def snapshot(self) -> Tally:
        """Begin or end the notes where the time that is measured begins and ends."""
        self.open = self.opened_at < 0.0
        if self.open:
            self.opened_at = self.now
            self.begin_notes()
        return super().snapshot()

    def begin_notes(self) -> None:
        """Note how everything stands at the beginning."""
        raise NotImplementedError

    def touch(self, engine: Engine) -> None:
        """Set an engine's next event anew, and note."""
        super().touch(engine)
        self.count()

    def _join(self, rollout: Rollout) -> None:
        super()._join(rollout)
        self.count()


class _StreamTraced(_Traced, AsyncRun):
    """A stream with notes."""

    def begin_notes(self) -> None:
        """Note engines, queue and versions."""
        self.count()
        self.note("queue", len(self.queue))
        self.note("version", self.trainer.version)
        self.engine_versions()

    def _enqueue(self, group: Group) -> None:
        super()._enqueue(group)
        self.note("queue", len(self.queue))

    def _begin_step(self) -> None:
        before = self.trainer.steps
        super()._begin_step()
        self.note("queue", len(self.queue))
        if self.trainer.steps > before:
            self.turn("training", self.trainer.steps)

    def _step_ends(self, argument: None, serial: int) -> None:
        line, trainer = self.line.trainer, self.trainer
        self.note("version", trainer.version + line.optimizer_steps)
        blocks = line.trainer_blocks and trainer.sync_follows and line.sync_s > 0.0
        self.turn("sending" if blocks else "waiting", trainer.steps)
        super()._step_ends(argument, serial)

    def _go_on_training(self, argument: None, serial: int) -> None:
        self.turn("waiting", self.trainer.steps)
        super()._go_on_training(argument, serial)

    def _arrived(self, version: int, serial: int) -> None:
        super()._arrived(version, serial)
        self.engine_versions()
        if self.line.trainer.generator_pauses and self.line.trainer.sync_s > 0.0:
            self.stand_still(self.line.trainer.sync_s)

    def _drained(self, engine: Engine) -> None:
        super()._drained(engine)
        self.engine_versions()


class _BatchesTraced(_Traced, BatchRun):
    """Batches with notes."""

    def begin_notes(self) -> None:
        """Note versions, and that between two batches nobody does anything."""
        self.turn("waiting", self.trainer.steps)
        self.note("decoding", 0.0)
        self.note("version", self.trainer.version)
        self.engine_versions()

    def note_step(self, begin: float, trained: float, end: float) -> None:
        """Note what the trainer did during a step, which is over at `end` but for the sync."""
        line, step = self.line.trainer, self.trainer.steps
        self.turn("training", step, begin)
        if end > trained:
            self.turn("waiting", step, trained)
        if self.trainer.sync_follows and line.sync_s > 0.0:
            self.turn("sending", step, end)
            end += line.sync_s
        if self.line.mode == "colocated_sync" and line.switch_s > 0.0:
            self.turn("switching", step, end)
            end += line.switch_s
        self.turn("waiting", step, end)
        self.note("version", self.trainer.version + line.optimizer_steps, trained)

    def _one_round(self, begin: float) -> None:
        super()._one_round(begin)
        self.note("decoding", 0.0)
        self.note("in_flight", self.in_flight)

    def fill(self, engine: Engine) -> None:
        """Start what may start, and note with which weights."""
        super().fill(engine)
        self.engine_versions()
