"""One engine: a clock that counts decode steps, and when its next sequence ends.

All sequences that decode advance by one token a step, so one clock serves all: a sequence that
joins at clock v with r tokens to write ends at v + r, whatever else comes and goes. Between two
changes n sequences with K tokens of context take, for d steps,

    (alpha + expert (1 - miss^n) + beta n + gamma K) d + gamma n d^2 / 2

seconds. The steps are taken as a fluid: n d^2/2 stands for n d (d - 1)/2.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush

import numpy as np

from allocator.physics.decode import decode_step_s
from allocator.simulator.line import EngineSet
from allocator.simulator.records import Rollout

#: Tokens of room below which the KV cache counts as full.
_FULL = 1e-6


def step_table(engines: EngineSet, most: int) -> list[float]:
    """Seconds of a step without its context term, by sequences decoding (0 to `most`)."""
    counts = np.arange(most + 1, dtype=float)
    seconds = np.broadcast_to(decode_step_s(engines.decode, counts, 0.0), counts.shape)
    return [float(s) for s in seconds]


class Engine:
    """State of one engine at wall time `at`.

    While it reads or stands still `at` lies ahead of the present: the clock goes on from there.

    Attributes
    ----------
    clock, context, decoding : steps so far, and context tokens and number of those decoding.
    ends : heap of (clock, serial, rollout); an entry counts while the rollout's `entry` is it.
    free : places for further rollouts.
    rollouts : those in flight here, in the order of their starts.
    held_tokens, held : context and number of those whose KV is kept while they do not decode.
    waiting : rollouts (and their life) before a full KV cache.
    version : of its weights.
    exact : whether what `due` said last still holds; else it comes later, and never earlier.
    decoding_s, written, reading_s : sums over time of sequences decoding, of tokens, of stops.
    """

    __slots__ = (
        "at",
        "clock",
        "context",
        "decoding",
        "decoding_s",
        "draining",
        "ends",
        "exact",
        "free",
        "gamma",
        "held",
        "held_tokens",
        "kv_limit",
        "kv_per_sequence",
        "number",
        "reading_s",
        "rollouts",
        "steps_s",
        "version",
        "version_clock",
        "version_sum",
        "waiting",
        "watermark",
        "written",
    )

    def __init__(self, engines: EngineSet, number: int, steps_s: list[float]) -> None:
        self.number = number
        self.steps_s = steps_s
        self.gamma = float(engines.decode.gamma_s_per_token)
        self.free = engines.in_flight
        self.at = self.clock = self.context = 0.0
        self.decoding = 0
        self.ends: list[tuple[float, int, Rollout]] = []
        self.rollouts: dict[Rollout, None] = {}
        self.held_tokens, self.held = 0.0, 0
        self.waiting: deque[tuple[Rollout, int]] = deque()
        limited = math.isfinite(engines.kv_budget_bytes) and engines.kv_bytes_per_token > 0.0
        # In tokens of context; a sequence counts as some more.
        token = engines.kv_bytes_per_token if limited else 1.0
        self.kv_limit = engines.kv_budget_bytes / token if limited else math.inf
        self.kv_per_sequence = engines.kv_bytes_per_sequence / token if limited else 0.0
        self.watermark = self.kv_limit * (1.0 - engines.kv_free_share) if limited else math.inf
        self.version = 0
        self.version_clock = self.version_sum = 0.0
        self.draining = self.exact = False
        self.decoding_s = self.written = self.reading_s = 0.0

    def advance(self, now: float) -> None:
        """Let the engine decode up to `now`; nothing ends before that."""
        seconds = now - self.at
        if seconds <= 0.0:
            return
        self.at = now
        n = self.decoding
        if n:
            first, curve = self.steps_s[n] + self.gamma * self.context, 2.0 * self.gamma * n
            steps = 2.0 * seconds / (first + math.sqrt(first * first + curve * seconds))
            self.clock += steps
            self.context += n * steps
            self.written += n * steps
            self.decoding_s += n * seconds

    def due(self) -> float:
        """Wall time of the next end, or of a full KV cache; infinite when neither comes."""
        ends = self.ends
        while ends and ends[0][2].entry != ends[0][1]:
            heappop(ends)
        self.exact = True
        if not ends:
            return math.inf
        n, steps = self.decoding, ends[0][0] - self.clock
        if self.kv_limit < math.inf and n > 1:
            steps = min(steps, max(self._room() / n, 0.0))
        return self.at + steps * (self.steps_s[n] + self.gamma * (self.context + 0.5 * n * steps))

    def next_end(self, now: float) -> Rollout | None:
        """Advance to `now`, where something was due; return what ends, None if KV is full."""
        end, _, rollout = self.ends[0]
        n, steps = self.decoding, end - self.clock
        if self.kv_limit < math.inf and n > 1 and self._room() < n * (steps - _FULL):
            self.advance(now)
            return None
        heappop(self.ends)
        self.clock = end
        self.context += n * steps
        self.written += n * steps
        if now > self.at:
            self.decoding_s += n * (now - self.at)
            self.at = now
        self._part(rollout)
        return rollout

    def join(
        self, rollout: Rollout, tokens: float, serial: int, now: float, reading_s: float
    ) -> bool:
        """Read for some seconds, then decode `tokens` tokens of a rollout beside the others.

        Returns whether what is due next may now come earlier than was said. Another sequence makes
        every step longer, so that needs one that ends first, or a KV cache that fills.
        """
        if now > self.at:
            self.advance(now)
        if reading_s:
            self.at += reading_s
            self.reading_s += reading_s
        ends, clock, version = self.ends, self.clock, self.version
        rollout.entry = serial
        rollout.joined = clock
        rollout.versions -= self.version_sum + version * (clock - self.version_clock)
        if rollout.first_version < 0:
            rollout.first_version = version
        heappush(ends, (clock + tokens, serial, rollout))
        self.decoding += 1
        self.context += rollout.context
        self.exact = False
        return ends[0][1] == serial or self.kv_limit < math.inf

    def leave(self, rollout: Rollout, now: float) -> None:
        """Stop decoding a rollout before its end."""
        self.advance(now)
        self._part(rollout)

    def _part(self, rollout: Rollout) -> None:
        clock = self.clock
        tokens = clock - rollout.joined
        rollout.entry = 0
        rollout.versions += self.version_sum + self.version * (clock - self.version_clock)
        rollout.written += tokens
        rollout.to_write -= tokens
        rollout.context += tokens
        self.decoding -= 1
        # Nothing in flight is exactly no context: sums of floats do not drift.
        self.context = self.context - rollout.context if self.decoding else 0.0

    def stall(self, now: float, seconds: float) -> None:
        """Stop all decoding for some more seconds: to read, or for new weights."""
        self.advance(now)
        self.at += seconds
        self.reading_s += seconds

    def set_version(self, version: int, now: float) -> None:
        """Write with other weights from `now` on."""
        self.advance(now)
        self.version_sum += self.version * (self.clock - self.version_clock)
        self.version_clock = self.clock
        self.version = version

    def hold(self, rollout: Rollout, held: bool) -> None:
        """Keep the KV of a rollout that does not decode, or give it up."""
        if rollout.held != held:
            sign = 1 if held else -1
            rollout.held = held
            self.held += sign
            self.held_tokens += sign * rollout.context

    def _room(self) -> float:
        """Tokens until the KV cache is full."""
        sequences = self.decoding + self.held
        used = self.context + self.held_tokens + self.kv_per_sequence * sequences
        return self.kv_limit - used

    def fits(self, rollout: Rollout) -> bool:
        """Whether the KV of a rollout may be brought in; anything may into an engine at rest."""
        if self.watermark == math.inf or not self.decoding:
            return True
        used = self.kv_limit - self._room()
        mine = 0.0 if rollout.held else rollout.context + self.kv_per_sequence
        return used + mine <= self.watermark

    def youngest(self) -> Rollout:
        """Return the rollout that joined last."""
        live = (entry for entry in self.ends if entry[2].entry == entry[1])
        return max(live, key=lambda entry: (entry[2].joined, entry[1]))[2]
