"""Rollouts and groups on their way through the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allocator.simulator.engine import Engine
    from allocator.simulator.stations import Crowd

#: `Rollout.life` of one that has left the line.
GONE = -1
#: `Rollout.to_read` before the initial prompt is read: how much depends on who has read it before.
PROMPT = -1.0


class Group:
    """Rollouts of one prompt that are trained together.

    Attributes
    ----------
    unwritten, left : rollouts that the group still waits for, to be written and to be scored.
    alive : rollouts in flight and not yet written.
    samples, tokens, versions : rollouts done, their response tokens, and the sum over these of the
        version that wrote them.
    resumed, resumed_tokens, crossed : of the samples, those resumed in a later batch, their
        tokens, and weight updates met while they were written, summed.
    version : weights of the engine at the first start.
    rollouts : those started, kept only where a group may be cancelled.
    readers, read_at : engines that have read the prompt, and when the last read ended.
    """

    __slots__ = (
        "alive",
        "crossed",
        "finished_at",
        "left",
        "read_at",
        "readers",
        "resumed",
        "resumed_tokens",
        "rollouts",
        "samples",
        "signal",
        "started_at",
        "tokens",
        "unwritten",
        "version",
        "versions",
    )

    def __init__(self, size: int, version: int, now: float, signal: bool) -> None:
        self.unwritten = self.left = size
        self.alive = self.samples = self.resumed = self.crossed = 0
        self.tokens = self.versions = self.resumed_tokens = 0.0
        self.version = version
        self.started_at = self.finished_at = self.read_at = now
        self.signal = signal
        self.rollouts: list[Rollout] = []
        self.readers: set[int] = set()

    def add(self, rollout: Rollout) -> None:
        """Count a rollout that is done."""
        self.samples += 1
        self.tokens += rollout.written
        self.versions += rollout.versions
        self.crossed += rollout.engine.version - rollout.first_version
        if rollout.resumed:
            self.resumed += 1
            self.resumed_tokens += rollout.written


class Rollout:
    """One response, attempted perhaps several times.

    Attributes
    ----------
    entry : serial of its entry among the ends of its engine; 0 while it does not decode.
    life : counts stops, so that a timeout or a queue of an earlier life is recognised.
    pending : serial of the event that it waits for; 0 without any.
    place, since : crowd beside the engines that it is in, and since when.
    to_write, turn_tokens, turns_left : tokens of the attempt still to come, of a turn, and turns.
    written, context : tokens written so far, and in the cache, up to the last stop of decoding.
    joined, versions : clock of the engine at the last join; version x token so far.
    first_version : that wrote its first token; negative before.
    to_read : tokens to prefill before it decodes again.
    held : whether its KV is in memory while it does not decode.
    beyond : whether it makes its group one of those with the largest maxima.
    failing : whether the attempt ends with the loss of its sandbox; tries : attempts lost so far.
    scoring : whether it is written.
    """

    __slots__ = (
        "beyond",
        "context",
        "engine",
        "entry",
        "failing",
        "first_version",
        "group",
        "held",
        "joined",
        "life",
        "pending",
        "place",
        "resumed",
        "sandboxes",
        "scoring",
        "since",
        "started_at",
        "to_read",
        "to_write",
        "tries",
        "turn_tokens",
        "turns_left",
        "versions",
        "written",
    )

    def __init__(self, group: Group, engine: Engine, now: float, beyond: bool) -> None:
        self.group = group
        self.engine = engine
        self.started_at = now
        self.beyond = beyond
        self.entry = self.pending = self.life = self.tries = self.sandboxes = 0
        self.place: Crowd | None = None
        self.since = now
        self.resumed = self.scoring = False

    def begin(self, tokens: float, turns: int, prompt_tokens: float) -> None:
        """Begin an attempt."""
        self.to_write = tokens
        self.turns_left = turns
        self.turn_tokens = tokens / turns
        self.context = prompt_tokens
        self.written = self.versions = self.joined = 0.0
        self.first_version = -1
        self.to_read = PROMPT
        self.held = self.failing = False

    def fail_after(self, share: float, turns: int) -> None:
        """Lose the attempt after a share of its tokens."""
        self.failing = True
        self.turns_left = int(share * turns) + 1
        self.to_write *= share
