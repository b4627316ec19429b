"""The life of rollouts: how they start, how they are scored, and how they are cut short.

What starts when is left to the modes (`kernel`, `batches`): they override the hooks at the end.
"""

from __future__ import annotations

from allocator.simulator.draws import Draws
from allocator.simulator.engine import Engine
from allocator.simulator.line import SimulatedLine
from allocator.simulator.passage import Passage
from allocator.simulator.records import GONE, Group, Rollout
from allocator.simulator.stations import Crowd, Servers
from allocator.simulator.tally import FAILED, OVERSAMPLED, Tally

#: Rollouts given up for each that is done, above which a line never trains anything.
_HOPELESS = 10_000


class Generator(Passage):
    """Engines and stations with the rollouts in flight.

    Attributes
    ----------
    free, in_flight : places of all engines together, and rollouts in flight.
    scoring : crowd in rewards; `scores_at_once` where a score takes no time.
    """

    def __init__(self, line: SimulatedLine, draws: Draws) -> None:
        super().__init__(line, draws)
        places = line.engines.count * line.engines.in_flight
        self.free, self.in_flight, self._counted_at = places, 0, 0.0
        self.tally.at = [0.0] * (places + 1)
        self.scoring, self.scorers = Crowd(), Servers(line.reward.servers)
        self.scores_at_once = line.reward.immediate

    def population(self, change: int) -> None:
        """Count rollouts that came into flight, or left it."""
        self.tally.at[self.in_flight] += self.now - self._counted_at
        self._counted_at = self.now
        self.in_flight += change

    def resume_count(self, now: float) -> None:
        """Leave out of the counts over time what passed until `now`."""
        self._counted_at = now

    def start(self, group: Group, engine: Engine, count: int) -> None:
        """Start `count` rollouts of a group on an engine."""
        self.population(count)
        self.tally.started += count
        self.tally.begun += count
        self.free -= count
        engine.free -= count
        group.alive += count
        lengths, cancels = self.draws.lengths, self.line.groups.oversampling > 1.0
        for _ in range(count):
            tokens, beyond = next(lengths)
            rollout = Rollout(group, engine, self.now, beyond)
            engine.rollouts[rollout] = None
            if cancels:
                group.rollouts.append(rollout)
            rollout.begin(tokens, self.turns, self.prompt_tokens)
            self.admit(rollout)

    def write(self, rollout: Rollout) -> None:
        """Take a rollout whose last turn and tool are over."""
        rollout.scoring = True
        if rollout.sandboxes:
            self.give_sandboxes(rollout)
        group = rollout.group
        group.alive -= 1
        group.unwritten -= 1
        if not group.unwritten:
            self.group_written(group)
        if self.scores_at_once:
            self.scored(rollout)
        else:
            self.score(rollout)

    def score(self, rollout: Rollout) -> None:
        """Score a rollout; it keeps its place meanwhile."""
        reward = self.line.reward
        done = self.scorers.take(self.now, reward.seconds)
        if reward.engine_s > 0.0:
            rollout.engine.stall(self.now, reward.engine_s)
            self.touch(rollout.engine)
            done = max(done, rollout.engine.at)
        self.visit(rollout, self.scoring, done + reward.latency_s, self._score_ends)

    def _score_ends(self, rollout: Rollout, serial: int) -> None:
        if rollout.pending == serial:
            self.come_back(rollout)
            self.scored(rollout)

    def scored(self, rollout: Rollout) -> None:
        """Count a rollout that is done and give its place to others."""
        group = rollout.group
        group.add(rollout)
        group.left -= 1
        self.tally.ended += 1
        self.depart(rollout)
        if not group.left:
            self.group_ends(group)
        self.fill(rollout.engine)

    def depart(self, rollout: Rollout) -> None:
        """Take a rollout out of its place."""
        engine, tally, now, number = rollout.engine, self.tally, self.now, self.in_flight
        rollout.life = GONE
        del engine.rollouts[rollout]
        engine.free += 1
        self.free += 1
        tally.at[number] += now - self._counted_at
        self._counted_at = now
        self.in_flight = number - 1
        tally.residence_s += now - rollout.started_at

    def interrupt(self, rollout: Rollout, fate: int) -> None:
        """Stop what a rollout does and give its tokens a fate; it keeps its place."""
        engine = rollout.engine
        if rollout.entry:
            engine.leave(rollout, self.now)
        if rollout.held:
            engine.hold(rollout, False)
        self.come_back(rollout)
        rollout.pending = 0
        rollout.life += 1
        self.touch(engine)
        self.give_sandboxes(rollout)
        self.tally.fates[fate] += rollout.written

    def stop(self, rollout: Rollout, fate: int) -> None:
        """End a rollout before it is done."""
        self.interrupt(rollout, fate)
        self.tally.stopped += 1
        self.depart(rollout)

    def lose(self, rollout: Rollout) -> None:
        """Start anew a rollout that lost its sandbox, or give it up."""
        group, engine, law = rollout.group, rollout.engine, self.line.sandboxes
        self.tally.lost += 1
        rollout.tries += 1
        if law is not None and rollout.tries <= law.retries:
            self.interrupt(rollout, FAILED)
            self.restart(rollout)
            return
        self.tally.given_up += 1
        if self.tally.given_up > _HOPELESS * (self.tally.ended + 1):
            raise ValueError("nothing can be trained: every attempt is lost")
        self.stop(rollout, FAILED)
        group.alive -= 1
        if group.alive < group.unwritten:
            group.unwritten -= 1
            group.left -= 1
            if not group.unwritten:
                self.group_written(group)
            if not group.left:
                self.group_ends(group)
        self.fill(engine)

    def restart(self, rollout: Rollout) -> None:
        """Begin another attempt, with a length of its own."""
        self.tally.begun += 1
        tokens, rollout.beyond = next(self.draws.lengths)
        rollout.begin(tokens, self.turns, self.prompt_tokens)
        self.admit(rollout)

    def cancel(self, group: Group) -> None:
        """Stop a group whose longest rollout has reached the cut."""
        group.left = 0
        self.tally.fates[OVERSAMPLED] += group.tokens
        group.samples, group.tokens = 0, 0.0
        places = self._stop_rest(group)
        self.group_ends(group)
        for engine in places:
            self.fill(engine)

    def keep_first(self, group: Group) -> None:
        """Stop what a group that has enough rollouts does not wait for."""
        for engine in self._stop_rest(group):
            self.fill(engine)

    def _stop_rest(self, group: Group) -> list[Engine]:
        """Stop whatever of a group is in flight and not waited for; return where."""
        places: dict[int, Engine] = {}
        for rollout in group.rollouts:
            if rollout.life != GONE and (group.left == 0 or not rollout.scoring):
                places[rollout.engine.number] = rollout.engine
                self.stop(rollout, OVERSAMPLED)
        group.alive = 0
        return list(places.values())

    def snapshot(self) -> Tally:
        """Return all totals up to now."""
        self.population(0)
        tally = self.tally
        tally.now, tally.events = self.now, self.taken
        for crowd in (self.starting, self.reading, self.scoring):
            crowd.until(self.now)
        for engine in self.engines:
            engine.advance(self.now)
        tally.decoding_s = sum(engine.decoding_s for engine in self.engines)
        tally.reading_s = sum(engine.reading_s for engine in self.engines)
        tally.written = sum(engine.written for engine in self.engines)
        return tally.copy()

    # Hooks of the modes.

    def fill(self, engine: Engine) -> None:
        """Start what may start now that an engine has a place free."""
        raise NotImplementedError

    def group_written(self, group: Group) -> None:
        """Note that a group waits for no more tokens."""
        raise NotImplementedError

    def group_ends(self, group: Group) -> None:
        """Note that a group waits for nothing any more."""
        raise NotImplementedError
