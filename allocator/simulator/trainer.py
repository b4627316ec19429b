"""The trainer: what a batch is made of, how long it takes, and how stale it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from allocator.simulator.draws import Draws
from allocator.simulator.line import SimulatedLine
from allocator.simulator.records import Group
from allocator.simulator.tally import MIXED, NO_SIGNAL, USEFUL, Tally


class Trainer:
    """Counts steps and versions, and takes batches.

    Attributes
    ----------
    steps, version : steps begun, and weight versions made (one an optimiser step).
    on_step : called with `steps` whenever a step begins, for whoever shows progress.
    """

    on_step: Callable[[int], None] | None = None

    def __init__(self, line: SimulatedLine, tally: Tally, draws: Draws) -> None:
        self.steps = self.version = 0
        self._line, self._tally, self._draws = line, tally, draws
        kind = line.rollouts
        self._fixed_tokens = kind.prompt_tokens + (kind.turns - 1) * kind.tool_tokens

    @property
    def sync_follows(self) -> bool:
        """Whether weights are sent after the step that was begun last."""
        return self.steps % self._line.trainer.sync_every == 0

    def end_step(self) -> None:
        """Count the versions that a step has made."""
        self.version += self._line.trainer.optimizer_steps

    def train(self, batch: Sequence[Group]) -> float:
        """Begin a step on the groups of a batch, in this order; return its seconds.

        Samples go to the mini-batches in their order, the j-th of which trains weights that are j
        versions on. Groups without a signal are left out of the work where they are dropped.
        """
        line, tally = self._line.trainer, self._tally
        dropping = self._line.groups.sampling == "drop"
        size = sum(group.samples for group in batch)
        trained = before = 0
        work = 0.0
        for group in batch:
            count = group.samples
            after = before + count
            if dropping and not group.signal:
                tally.fates[NO_SIGNAL] += group.tokens
                before = after
                continue
            # A mini-batch may end inside a group.
            later, place = 0, before
            while place < after:
                step = line.optimizer_steps * place // size
                end = min(-(-size * (step + 1) // line.optimizer_steps), after)
                tally.age(self.version + step - group.version, end - place)
                later += step * (end - place)
                place = end
            before = after
            version = self.version + later / max(count, 1)
            tally.tokens += group.tokens
            tally.token_stale += version * group.tokens - group.versions
            tally.resumed += group.resumed
            tally.crossed += group.crossed
            trained += count
            work += group.tokens + count * self._fixed_tokens
            self._value(group)
        tally.trained += trained
        self.steps += 1
        tally.steps += 1
        seconds = (line.fixed_s + line.s_per_token * work) * next(self._draws.factors)
        tally.train_s += seconds
        tally.busy_s += seconds
        if self.on_step is not None:
            self.on_step(self.steps)
        return seconds

    def _value(self, group: Group) -> None:
        """Count what of a trained group is useful."""
        tally = self._tally
        if not group.signal:
            tally.fates[NO_SIGNAL] += group.tokens
            return
        mixed, mixed_tokens = 0, 0.0
        if self._line.policy.exclude_mixed:
            mixed, mixed_tokens = group.resumed, group.resumed_tokens
        useful = group.tokens - mixed_tokens
        tally.fates[USEFUL] += useful
        tally.fates[MIXED] += mixed_tokens
        tally.useful += group.samples - mixed
        tally.useful_tokens += useful
        tally.useful_sequence_tokens += useful + (group.samples - mixed) * self._fixed_tokens
