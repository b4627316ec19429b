"""The list of events, and the engines' next ends beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from allocator.simulator.engine import Engine, step_table
from allocator.simulator.line import SimulatedLine
from allocator.simulator.records import Rollout

#: What an event does, with its argument and its serial.
Action = Callable[[Any, int], None]


class Events:
    """Time, engines and what is to happen next.

    Attributes
    ----------
    now, over : present time, and whether the loop is to end.
    engines : all engines, with their next events in `dues`.
    taken : events so far that were no leftovers of an engine.
    """

    def __init__(self, line: SimulatedLine) -> None:
        self.now, self.over, self.taken = 0.0, False, 0
        kinds = line.engines
        places = kinds.count * kinds.in_flight
        steps_s = step_table(kinds, kinds.in_flight if line.groups.limit_per_engine else places)
        self.engines = [Engine(kinds, number, steps_s) for number in range(kinds.count)]
        self.dues = [math.inf] * kinds.count
        self.serial = 0
        self.events: list[tuple[float, int, Action, Any]] = [(math.inf, 0, _nothing, None)]

    def run_events(self) -> None:
        """Take events in the order of their times until `over`.

        Each engine has one event, its next end, in a list apart: engines are few. An entry may be
        too early (`Engine.exact`) and is then set anew when its turn comes.
        """
        events, dues, engines = self.events, self.dues, self.engines
        while not self.over:
            due = min(dues)
            if due > events[0][0]:
                time, serial, action, argument = heappop(events)
                self.now = time
                action(argument, serial)
            else:
                engine = engines[dues.index(due)]
                if not engine.exact:
                    dues[engine.number] = engine.due()
                    continue
                if due == math.inf:
                    raise ValueError("nothing can be trained: no rollout is in flight any more")
                self.now = due
                rollout = engine.next_end(due)
                if rollout is None:
                    self.memory_full(engine)
                else:
                    self.turn_ends(rollout)
                self.touch(engine)
            self.taken += 1

    def at(self, time: float, action: Action, argument: Any = None) -> int:
        """Do something at a later time; return the serial of the event."""
        self.serial += 1
        heappush(self.events, (time, self.serial, action, argument))
        return self.serial

    def delay_events(self, begin: float) -> None:
        """Let nothing beside the engines happen before `begin`."""
        self.events[:] = [(max(event[0], begin), *event[1:]) for event in self.events]
        heapify(self.events)

    def clear_events(self) -> None:
        """Forget all events beside the engines, but the end of time."""
        self.events[:] = [event for event in self.events if event[0] == math.inf]

    def turn_ends(self, rollout: Rollout) -> None:
        """Take a rollout that has just written the tokens of a turn."""
        raise NotImplementedError

    def memory_full(self, engine: Engine) -> None:
        """Make room in an engine whose KV cache is full."""
        raise NotImplementedError

    def touch(self, engine: Engine) -> None:
        """Set an engine's next event anew."""
        raise NotImplementedError


def _nothing(_argument: None, _serial: int) -> None:
    """Stand for the end of time, so that the list of events is never empty."""
