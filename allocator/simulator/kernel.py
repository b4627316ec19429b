"""Asynchronous runs: groups stream through a queue of finished groups to the trainer."""

from __future__ import annotations

from collections import deque

from allocator.simulator.draws import Draws
from allocator.simulator.engine import Engine
from allocator.simulator.generator import Generator
from allocator.simulator.line import SimulatedLine
from allocator.simulator.records import Group
from allocator.simulator.stations import Crowd
from allocator.simulator.tally import DROPPED, FAILED, NO_SIGNAL, REJECTED, Tally
from allocator.simulator.trainer import Trainer


class AsyncRun(Generator):
    """A generator that never waits for the trainer, but for what the policy holds back.

    Attributes
    ----------
    queue, queued : finished groups, the oldest first, and their crowd.
    version, synced : of the trainer's weights, and of those last sent to the engines.
    """

    def __init__(self, line: SimulatedLine, draws: Draws) -> None:
        super().__init__(line, draws)
        self.queue: deque[Group] = deque()
        self.queued = Crowd()
        self.trainer = Trainer(line, self.tally, draws)
        self.synced = 0
        policy, groups = line.policy, line.groups
        self._capacity = policy.queue_batches * groups.per_batch
        self._admitting = policy.enforce == "admission"
        self._blocking = policy.overflow == "block"
        self._dropping = not (self._admitting or self._blocking)
        #: Groups not yet trained that admission allows.
        self._allowed = (policy.staleness_limit + 1.0) * groups.per_batch
        self._open_groups = self._training = 0
        self._busy = False
        self._held_since = -1.0
        self._gathering: Group | None = None
        self._to_start = 0
        self._steps = self._warm = 0
        self._before: Tally | None = None

    def run(self, steps: int, warm: int) -> Tally:
        """Run until `steps` steps are over; return the totals after the first `warm`."""
        self._steps, self._warm = steps, warm
        self._fill_all()
        self.run_events()
        assert self._before is not None
        return self.snapshot().over(self._before)

    def snapshot(self) -> Tally:
        """Return all totals up to now, the queue's included."""
        self.queued.until(self.now)
        if self._held_since >= 0.0:
            self.tally.held_s += self.now - self._held_since
            self._held_since = self.now
        return super().snapshot()

    # Starts.

    def fill(self, engine: Engine) -> None:
        """Start groups, or rollouts of the present group, while there are places."""
        if engine.draining:
            if not engine.rollouts:
                self._drained(engine)
            return
        groups = self.line.groups
        need = groups.started if groups.whole else 1
        if groups.limit_per_engine:
            while engine.free >= need and self._may_start():
                self._start(engine, need)
            return
        while self.free >= need and self._may_start():
            ready = [each for each in self.engines if not each.draining]
            if not ready:
                return
            self._start(max(ready, key=lambda each: each.free), need)

    def _fill_all(self) -> None:
        for engine in sorted(self.engines, key=lambda each: -each.free):
            self.fill(engine)

    def _may_start(self) -> bool:
        """Whether the next rollout may start; only the first of a group is ever held back."""
        if self._dropping or self._to_start:
            return True
        waiting = len(self.queue)
        if self._blocking and waiting >= self._capacity:
            held = True
        else:
            untrained = self._open_groups + waiting + self._training + 1
            held = self._admitting and untrained > self._allowed
        if held:
            if self._held_since < 0.0:
                self._held_since = self.now
            return False
        if self._held_since >= 0.0:
            self.tally.held_s += self.now - self._held_since
            self._held_since = -1.0
        return True

    def _start(self, engine: Engine, count: int) -> None:
        groups = self.line.groups
        if not self._to_start:
            self._open_groups += 1
            signal = next(self.draws.signals)
            self._gathering = Group(groups.size, engine.version, self.now, signal)
            self._to_start = groups.started
        group = self._gathering
        assert group is not None
        self._to_start -= count
        if not self._to_start:
            self._gathering = None
        self.start(group, engine, count)

    # Ends.

    def group_written(self, group: Group) -> None:
        """Stop the rollouts beyond those that the group keeps."""
        if self._gathering is group:
            self._gathering, self._to_start = None, 0
        if group.rollouts:
            self.keep_first(group)

    def group_ends(self, group: Group) -> None:
        """Put a finished group into the queue, unless it carries no signal and is replaced."""
        if self._gathering is group:
            self._gathering, self._to_start = None, 0
        group.rollouts = []
        self._open_groups -= 1
        if group.samples:
            if self.line.groups.sampling == "refill" and not group.signal:
                self.tally.lose(group, NO_SIGNAL)
            else:
                self._enqueue(group)
        self._reopen()

    def _enqueue(self, group: Group) -> None:
        tally = self.tally
        tally.accepted += group.samples
        if self._dropping and len(self.queue) >= self._capacity:
            oldest = self.queue.popleft()
            self.queued.leave(self.now, oldest.finished_at)
            tally.dropped += oldest.samples
            tally.lose(oldest, DROPPED)
        group.finished_at = self.now
        self.queue.append(group)
        self.queued.enter(self.now)
        if not self._busy:
            self._begin_step()

    def _reopen(self) -> None:
        """Start what was held back, if it may start now."""
        if self._held_since >= 0.0 and not self.over and self._may_start():
            self._fill_all()

    # Training.

    def _begin_step(self) -> None:
        policy, trainer, tally = self.line.policy, self.trainer, self.tally
        if policy.enforce == "reject":
            self._reject(policy.staleness_limit)
        count = self.line.groups.per_batch
        if len(self.queue) < count:
            return
        if trainer.steps == self._warm and self._before is None:
            self._before = self.snapshot()
        if trainer.steps == self._steps:
            self.over = True
            return
        batch = [self.queue.popleft() for _ in range(count)]
        for group in batch:
            self.queued.leave(self.now, group.finished_at)
        seconds = trainer.train(batch)
        line = self.line.trainer
        if line.trainer_blocks and trainer.sync_follows:
            tally.busy_s += line.sync_s
        self._training, self._busy = count, True
        self.at(self.now + seconds, self._step_ends)
        self._reopen()

    def _reject(self, limit: float) -> None:
        fresh: deque[Group] = deque()
        for group in self.queue:
            if self.trainer.version - group.version <= limit:
                fresh.append(group)
                continue
            self.queued.leave(self.now, group.finished_at)
            self.tally.rejected += group.samples
            self.tally.lose(group, REJECTED)
        self.queue = fresh

    def _step_ends(self, _: None, _serial: int) -> None:
        line, trainer = self.line.trainer, self.trainer
        syncs = trainer.sync_follows
        trainer.end_step()
        self._training = 0
        if syncs:
            self._sync()
        if syncs and line.trainer_blocks and line.sync_s > 0.0:
            self.at(self.now + line.sync_s, self._go_on_training)
            self._reopen()
        else:
            self._go_on_training(None, 0)

    def _go_on_training(self, _: None, _serial: int) -> None:
        self._busy = False
        self._begin_step()
        self._reopen()

    # New weights.

    def _sync(self) -> None:
        """Send the trainer's weights; engines that stand still meanwhile have them at once."""
        line, version = self.line.trainer, self.trainer.version
        self.synced = version
        if self.line.policy.weight_update == "drain":
            for engine in self.engines:
                engine.draining = True
                if not engine.rollouts:
                    self._drained(engine)
        elif line.generator_pauses or line.sync_s == 0.0:
            self._arrived(version, 0)
        else:
            self.at(self.now + line.sync_s, self._arrived, version)

    def _arrived(self, version: int, _serial: int) -> None:
        pause = self.line.trainer.sync_s if self.line.trainer.generator_pauses else 0.0
        policy = self.line.policy
        for engine in self.engines:
            engine.set_version(version, self.now)
            again = 0.0
            if policy.weight_update == "retract" or (
                policy.weight_update == "abort" and policy.partial
            ):
                again = self.reread_s(engine)
            elif policy.weight_update == "abort":
                self._restart_all(engine)
            if pause + again > 0.0:
                engine.stall(self.now, pause + again)
            self.touch(engine)

    def _restart_all(self, engine: Engine) -> None:
        """Throw away what is not yet written and start it anew."""
        for rollout in list(engine.rollouts):
            if not rollout.scoring:
                self.tally.lost += 1
                group = rollout.group
                if group.unwritten == self.line.groups.size:
                    # Nothing of the group is left: it begins anew.
                    group.version = engine.version
                self.interrupt(rollout, FAILED)
                self.restart(rollout)

    def _drained(self, engine: Engine) -> None:
        """Give an empty engine its new weights and let it start again."""
        engine.draining = False
        engine.set_version(self.synced, self.now)
        if self.line.trainer.generator_pauses:
            engine.stall(self.now, self.line.trainer.sync_s)
        self.fill(engine)
