"""What an attempt goes through until it is written: sandbox, prefill, decoding, tools."""

from __future__ import annotations

import math
from collections import deque
from heapq import heappush

from allocator.physics.prefill import PrefillLaw
from allocator.simulator.draws import Draws
from allocator.simulator.engine import Engine
from allocator.simulator.events import Action, Events
from allocator.simulator.line import SimulatedLine
from allocator.simulator.records import PROMPT, Group, Rollout
from allocator.simulator.stations import Crowd, Servers, interpolated
from allocator.simulator.tally import Tally


class Passage(Events):
    """Engines and what stands before them.

    Attributes
    ----------
    starting, reading : crowds before and in sandbox starts, and at prefill engines.
    admit : first station of an attempt.
    """

    def __init__(self, line: SimulatedLine, draws: Draws) -> None:
        super().__init__(line)
        self.line, self.draws, self.tally = line, draws, Tally()
        self.starting, self.reading = Crowd(), Crowd()
        kind = line.rollouts
        self.turns, self.prompt_tokens = kind.turns, kind.prompt_tokens
        self._added, self._has_tools = kind.tool_tokens, kind.tool_call is not None
        #: Held KV matters where memory is short, or where it may be lost and read again.
        short = any(engine.kv_limit < math.inf for engine in self.engines)
        lost = line.policy.partial or line.policy.weight_update == "retract"
        self._holds = kind.kv_held and (short or lost)
        self._enter = self._enter_if_fits if short else self._join
        self._shared = kind.prefix_cache in ("shared_prompt", "full")
        self._fresh = kind.prompt_tokens
        self._kept = 1.0 if kind.kv_held or kind.prefix_cache == "full" else 0.0
        if kind.prefix_cache == "share":
            self._fresh *= 1.0 - kind.cached_prompt_share
            self._kept = 1.0 if kind.kv_held else kind.cached_prompt_share
        self._calls = draws.tools
        self._own_reads = _coefficients(line.engines.prefill)
        pool = line.prefill_pool
        self._readers = None if pool is None else Servers(pool.count)
        self._pool_reads = None if pool is None else _coefficients(pool.prefill)
        self._read = self._enter if pool is None else self._read_apart
        self.admit = self._read if line.sandboxes is None else self._boot_first
        self._move_s = 0.0 if pool is None else pool.bytes_per_token / pool.bytes_per_s
        self._sandboxes_used = 0
        self._sandbox_queue: deque[tuple[Rollout, int]] = deque()

    def touch(self, engine: Engine) -> None:
        """Set an engine's next event anew, and let in what its KV cache holds now."""
        while engine.waiting:
            rollout, life = engine.waiting[0]
            if rollout.life == life:
                if not engine.fits(rollout):
                    break
                self._join(rollout)
            engine.waiting.popleft()
        self.dues[engine.number] = engine.due()

    def visit(self, rollout: Rollout, place: Crowd, time: float, action: Action) -> None:
        """Keep a rollout somewhere beside the engines until `time`."""
        place.enter(self.now)
        rollout.place, rollout.since = place, self.now
        rollout.pending = self.at(time, action, rollout)

    def come_back(self, rollout: Rollout) -> None:
        """Take a rollout back from where it was."""
        if rollout.place is not None:
            rollout.place.leave(self.now, rollout.since)
            rollout.place = None

    def memory_full(self, engine: Engine) -> None:
        """Throw the youngest sequence out of a full KV cache; it is read again later."""
        rollout = engine.youngest()
        engine.leave(rollout, self.now)
        rollout.to_read = rollout.context
        engine.waiting.appendleft((rollout, rollout.life))
        self.tally.preempted += 1

    def _boot_first(self, rollout: Rollout) -> None:
        """Wait for sandboxes, and until they run."""
        self.starting.enter(self.now)
        rollout.place, rollout.since = self.starting, self.now
        self._sandbox_queue.append((rollout, rollout.life))
        self._boot()

    def _boot(self) -> None:
        """Start the sandboxes of whoever waits longest, as far as the quota goes."""
        law, queue = self.line.sandboxes, self._sandbox_queue
        assert law is not None
        while queue:
            rollout, life = queue[0]
            if rollout.life == life:
                if self._sandboxes_used + law.per_rollout > law.quota:
                    return
                self._sandboxes_used += law.per_rollout
                rollout.sandboxes = law.per_rollout
                if next(self.draws.uniform) < interpolated(law.failure_share, self._sandboxes_used):
                    rollout.fail_after(next(self.draws.uniform), self.turns)
                start_s = interpolated(law.start_s, self._sandboxes_used)
                rollout.pending = self.at(self.now + start_s, self._booted, rollout)
                if law.timeout_s < math.inf:
                    self.at(self.now + law.timeout_s, self._timed_out, (rollout, life))
            queue.popleft()

    def _booted(self, rollout: Rollout, serial: int) -> None:
        if rollout.pending == serial:
            self.come_back(rollout)
            self._read(rollout)

    def _timed_out(self, argument: tuple[Rollout, int], _: int) -> None:
        rollout, life = argument
        if rollout.life == life and not rollout.scoring:
            self.lose(rollout)

    def give_sandboxes(self, rollout: Rollout) -> None:
        """Give the sandboxes of a rollout to those that wait."""
        if rollout.sandboxes:
            self._sandboxes_used -= rollout.sandboxes
            rollout.sandboxes = 0
            if self._sandbox_queue:
                self._boot()

    def _read_apart(self, rollout: Rollout) -> None:
        """Read on a prefill engine, move the cache, and go on to the decoding engine."""
        assert self._readers is not None
        assert self._pool_reads is not None
        group, whole, fresh = rollout.group, rollout.context, rollout.to_read == PROMPT
        tokens = rollout.to_read
        if fresh:
            tokens = self._prompt_tokens(
                group, -1 if self.line.groups.whole else self._readers.next_server()
            )
        done = self.now
        if tokens > 0.0:
            done = self._readers.take(self.now, _reading_s(self._pool_reads, tokens, whole))
        if fresh:
            done = group.read_at = max(done, group.read_at)
        # A decoding engine that held the cache lacks only what the tool added.
        moved = self._added if self.line.rollouts.kv_held and not fresh else whole
        rollout.to_read = 0.0
        self.visit(rollout, self.reading, done + moved * self._move_s, self._arrive)

    def _arrive(self, rollout: Rollout, serial: int) -> None:
        if rollout.pending == serial:
            self.come_back(rollout)
            self._enter(rollout)

    def _prompt_tokens(self, group: Group, reader: int) -> float:
        """Tokens of the initial prompt that a reader must prefill for one more rollout."""
        if self._shared:
            if reader in group.readers:
                return 0.0
            group.readers.add(reader)
        return self._fresh

    def _enter_if_fits(self, rollout: Rollout) -> None:
        engine = rollout.engine
        if not engine.waiting and engine.fits(rollout):
            self._join(rollout)
        else:
            engine.waiting.append((rollout, rollout.life))
            self.touch(engine)

    def _join(self, rollout: Rollout) -> None:
        engine, to_read = rollout.engine, rollout.to_read
        if to_read == PROMPT:
            to_read = self._prompt_tokens(rollout.group, engine.number)
        reading_s, context = 0.0, rollout.context
        if to_read > 0.0:
            fixed, per_token, per_pair = self._own_reads
            reading_s = fixed + to_read * (per_token + per_pair * context)
        if rollout.held:
            engine.hold(rollout, False)
        tokens = rollout.to_write
        if rollout.turns_left > 1 and rollout.turn_tokens < tokens:
            tokens = rollout.turn_tokens
        self.serial = serial = self.serial + 1
        if engine.join(rollout, tokens, serial, self.now, reading_s):
            self.dues[engine.number] = engine.due()

    def turn_ends(self, rollout: Rollout) -> None:
        """Call the tool that ends a turn, or end what comes to nothing."""
        rollout.turns_left -= 1
        if not rollout.turns_left:
            if rollout.failing:
                self.lose(rollout)
                return
            if rollout.beyond:
                self.cancel(rollout.group)
                return
        if not self._has_tools:
            if rollout.turns_left:
                self._go_on(rollout)
            else:
                self.write(rollout)
            return
        if self._holds and rollout.turns_left:
            rollout.engine.hold(rollout, True)
        self.serial = rollout.pending = serial = self.serial + 1
        end = self.now + next(self._calls)
        heappush(self.events, (end, serial, self._tool_ends, rollout))

    def _tool_ends(self, rollout: Rollout, serial: int) -> None:
        if rollout.pending == serial:
            self._go_on(rollout)

    def _go_on(self, rollout: Rollout) -> None:
        """Go into the next turn, or to the reward."""
        if not rollout.turns_left:
            self.write(rollout)
            return
        added, kept = self._added, self._kept
        context = rollout.context = rollout.context + added
        if rollout.held:
            rollout.engine.held_tokens += added
        unseen = added if self._readers is None else rollout.turn_tokens + added
        rollout.to_read = unseen if kept == 1.0 else context - kept * (context - unseen)
        self._read(rollout)

    def reread_s(self, engine: Engine) -> float:
        """Seconds to read again all contexts that the KV cache of an engine holds."""
        seconds = 0.0
        for rollout in engine.rollouts:
            if rollout.entry or rollout.held:
                written = engine.clock - rollout.joined if rollout.entry else 0.0
                context = rollout.context + written
                seconds += _reading_s(self._own_reads, context, context)
        return seconds

    def write(self, rollout: Rollout) -> None:
        """Take a rollout whose last turn and tool are over."""
        raise NotImplementedError

    def lose(self, rollout: Rollout) -> None:
        """Take a rollout whose attempt is lost."""
        raise NotImplementedError

    def cancel(self, group: Group) -> None:
        """Take a group whose longest rollout has reached the cut."""
        raise NotImplementedError


def _coefficients(law: PrefillLaw) -> tuple[float, float, float]:
    return float(law.p0_s), float(law.p1_s_per_token), float(law.p2_s_per_token2)


def _reading_s(law: tuple[float, float, float], tokens: float, context: float) -> float:
    """`prefill.prefill_s` of some tokens, as plain numbers."""
    return law[0] + law[1] * tokens + law[2] * tokens * context
