"""Stations beside the engines: servers in order of arrival, counts over time, tables."""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heapify, heapreplace

from allocator.simulator.line import Table


class Servers:
    """`count` equal servers that take customers in the order of their arrival.

    Who is served when is known on arrival, since no one overtakes. A customer that is cancelled
    meanwhile keeps its turn.

    Attributes
    ----------
    served, waited_s, busy_s : customers so far, seconds they waited, and seconds of service.
    """

    __slots__ = ("_free_at", "busy_s", "served", "waited_s")

    def __init__(self, count: float) -> None:
        whole = [] if math.isinf(count) else [(0.0, number) for number in range(int(count))]
        heapify(whole)
        self._free_at: list[tuple[float, int]] = whole
        self.served = 0
        self.waited_s = self.busy_s = 0.0

    def next_server(self) -> int:
        """Return the number of the server that the next arrival gets; 0 without a limit."""
        return self._free_at[0][1] if self._free_at else 0

    def take(self, now: float, seconds: float) -> float:
        """Return when a customer that arrives now and is served for `seconds` is done."""
        begin = now
        if self._free_at:
            free_at, number = self._free_at[0]
            begin = max(now, free_at)
            heapreplace(self._free_at, (begin + seconds, number))
        self.served += 1
        self.waited_s += begin - now
        self.busy_s += seconds
        return begin + seconds


class Crowd:
    """How many are somewhere, over time, and how long those stayed that have left.

    Attributes
    ----------
    inside, entered, left : present number, and all that came and went.
    number_s : integral of the number over time, up to `since`.
    stay_s : sum of the stays of those that left.
    """

    __slots__ = ("entered", "inside", "left", "number_s", "since", "stay_s")

    def __init__(self) -> None:
        self.inside = self.entered = self.left = 0
        self.number_s = self.since = self.stay_s = 0.0

    def enter(self, now: float, count: int = 1) -> None:
        """Count arrivals."""
        self.number_s += self.inside * (now - self.since)
        self.since = now
        self.inside += count
        self.entered += count

    def leave(self, now: float, since: float, count: int = 1) -> None:
        """Count departures of customers that arrived at `since`."""
        self.number_s += self.inside * (now - self.since)
        self.since = now
        self.inside -= count
        self.left += count
        self.stay_s += count * (now - since)

    def until(self, now: float) -> None:
        """Count the present number up to `now`."""
        self.number_s += self.inside * (now - self.since)
        self.since = now


def interpolated(table: Table, x: float) -> float:
    """Value of a table at x: linear between its entries, constant outside.

    Examples
    --------
    >>> interpolated(((10.0, 1.0), (20.0, 3.0)), 15.0), interpolated(((10.0, 1.0),), 99.0)
    (2.0, 1.0)
    """
    after = bisect_right(table, x, key=lambda entry: entry[0])
    if after == 0:
        return table[0][1]
    if after == len(table):
        return table[-1][1]
    (low, below), (high, above) = table[after - 1], table[after]
    return below + (above - below) * (x - low) / (high - low)
