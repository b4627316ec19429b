"""Runs that generate a batch as a whole: in turn with the trainer, or one step ahead of it."""

from __future__ import annotations

from collections import deque

from allocator.simulator.draws import Draws
from allocator.simulator.engine import Engine
from allocator.simulator.generator import Generator
from allocator.simulator.line import SimulatedLine
from allocator.simulator.records import Group, Rollout
from allocator.simulator.tally import NO_SIGNAL, OVERSAMPLED, Tally
from allocator.simulator.trainer import Trainer


class BatchRun(Generator):
    """A generator that starts a batch, ends it when enough is written, and stands still.

    Where single samples end a batch (oversampling by sample, resumed rollouts) each is a group of
    its own here; those of one prompt share their readers and their signal.

    Attributes
    ----------
    version : weights that the engines have.
    ahead : batch that waits for the trainer (one_step_off).
    """

    def __init__(self, line: SimulatedLine, draws: Draws) -> None:
        super().__init__(line, draws)
        groups, policy = line.groups, line.policy
        more = groups.oversampling > 1.0
        self._singly = policy.partial or (more and groups.by == "sample")
        self._unit = 1 if self._singly else groups.size
        self._wanted = groups.batch // self._unit
        self._started = round(groups.oversampling * self._wanted)
        self._resumes = policy.partial
        self._missing = 0
        self._done: list[Group] = []
        self._open: list[Group] = []
        self._backlog: list[deque[Group]] = [deque() for _ in self.engines]
        self._scored_at = 0.0
        self.trainer = Trainer(line, self.tally, draws)
        self.version = 0
        self.ahead: list[Group] = []

    def run(self, steps: int, warm: int) -> Tally:
        """Train `steps` batches; return the totals after the first `warm`."""
        line, overlapped = self.line.trainer, self.line.mode == "one_step_off"
        begin, before = 0.0, None
        if overlapped:
            self.ahead, begin = self._generate(0.0)
        for step in range(steps + 1):
            self.now = begin
            self.resume_count(begin)
            if step == warm:
                before = self.snapshot()
            if step == steps:
                break
            if overlapped:
                trained = begin + self.trainer.train(self.ahead)
                self.ahead, ready = self._generate(begin)
                end = max(ready, trained)
            else:
                batch, ready = self._generate(begin)
                end = trained = ready + self.trainer.train(batch)
            self.note_step(begin if overlapped else ready, trained, end)
            if self.trainer.sync_follows:
                end += line.sync_s
                self.tally.busy_s += line.sync_s
            self.trainer.end_step()
            if self.trainer.sync_follows:
                self.version = self.trainer.version
            if self.line.mode == "colocated_sync":
                end += line.switch_s
            self.tally.held_s += end - ready
            begin = end
        assert before is not None
        return self.snapshot().over(before)

    def _generate(self, begin: float) -> tuple[list[Group], float]:
        """Generate and score one batch from `begin` on; return it and when it is ready."""
        groups = self.line.groups
        kept: list[Group] = []
        while True:
            self._one_round(begin)
            begin = self._scored_at
            if groups.sampling != "refill":
                kept = self._done
                break
            for group in self._done:
                if not group.signal:
                    self.tally.lose(group, NO_SIGNAL)
                elif len(kept) == self._wanted:
                    self.tally.lose(group, OVERSAMPLED)
                else:
                    kept.append(group)
            if len(kept) == self._wanted:
                break
        self.tally.accepted += sum(group.samples for group in kept)
        return kept, begin

    def _one_round(self, begin: float) -> None:
        """Start what is to start at `begin` and run until enough is written, and scored."""
        self._resume(begin)
        self.now, self.over = begin, False
        self._done, self._missing = [], self._wanted
        self._scored_at = begin
        self._deal(self._started - len(self._open))
        for engine in self.engines:
            engine.set_version(self.version, begin)
            self.fill(engine)
            self.touch(engine)
        self.run_events()
        self._end_round()

    def _deal(self, count: int) -> None:
        """Give each engine its share of the batch, neighbours together."""
        groups, size = self.line.groups, self.line.groups.size
        fresh: list[Group] = []
        for number in range(count):
            if self._singly and number % size:
                twin = Group(1, self.version, self.now, fresh[-1].signal)
                twin.readers = fresh[-1].readers
                fresh.append(twin)
            else:
                fresh.append(Group(self._unit, self.version, self.now, next(self.draws.signals)))
        self._open += fresh
        # Samples in the order of their groups; a group may lie across two engines.
        samples = [group for group in fresh for _ in range(self._unit)]
        whole = self._started * self._unit
        loads = [len(e.rollouts) + len(b) for e, b in zip(self.engines, self._backlog, strict=True)]
        given = 0
        for number, load in enumerate(loads):
            share = whole * (number + 1) // len(loads) - whole * number // len(loads)
            take = max(min(share - load, len(samples) - given), 0)
            self._backlog[number].extend(samples[given : given + take])
            given += take
        for place, group in enumerate(samples[given:]):
            self._backlog[place % len(loads)].append(group)
        assert groups.batch >= self._wanted

    def note_step(self, begin: float, trained: float, end: float) -> None:
        """Be told when a step was trained, and when both sides were done (for a trace)."""

    def fill(self, engine: Engine) -> None:
        """Start the engine's next samples while it has places."""
        backlog = self._backlog[engine.number]
        while engine.free > 0 and backlog and not self.over:
            group = backlog.popleft()
            if not group.alive and not group.samples:
                group.version = engine.version
            self.start(group, engine, 1)

    def score(self, rollout: Rollout) -> None:
        """Count a rollout as done; its score comes when servers and delay let it."""
        reward = self.line.reward
        if reward.engine_s > 0.0:
            rollout.engine.stall(self.now, reward.engine_s)
            self.touch(rollout.engine)
        if reward.overlap:
            self._await_score(max(self.now, rollout.engine.at) if reward.engine_s else self.now)
        self.scored(rollout)

    def _await_score(self, now: float) -> None:
        reward = self.line.reward
        done = self.scorers.take(now, reward.seconds) + reward.latency_s
        self._scored_at = max(self._scored_at, done)

    def group_written(self, group: Group) -> None:
        """Count a group; the last one wanted ends the batch."""
        if self.over:
            return
        self._done.append(group)
        self._missing -= 1
        if not self._missing:
            self.over = True

    def group_ends(self, group: Group) -> None:
        """Do nothing: a batch waits for tokens, and for all scores together."""

    def _end_round(self) -> None:
        """Stop the clock, and cancel or keep what is not done."""
        self.population(0)
        done = set(map(id, self._done))
        self._open = [group for group in self._open if id(group) not in done]
        if self._resumes:
            for engine in self.engines:
                engine.advance(self.now)
        else:
            for engine in self.engines:
                for rollout in list(engine.rollouts):
                    self.stop(rollout, OVERSAMPLED)
            for group in self._open:
                self.tally.lose(group, OVERSAMPLED)
            for backlog in self._backlog:
                backlog.clear()
            self._open = []
            self.clear_events()
        if not self.line.reward.overlap:
            for _ in range(sum(group.samples for group in self._done)):
                self._await_score(self.now)
        self._scored_at = max(self._scored_at, self.now)

    def _resume(self, begin: float) -> None:
        """Let what is unfinished go on at `begin`, its contexts read again."""
        self.delay_events(begin)
        self.resume_count(begin)
        for engine in self.engines:
            engine.at = begin
            again = 0.0
            for rollout in engine.rollouts:
                rollout.resumed = True
            if engine.rollouts:
                again = self.reread_s(engine)
            engine.stall(begin, again)
