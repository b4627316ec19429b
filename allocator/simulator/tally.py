"""Running totals of one replication, and their difference over the time that is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from allocator.simulator.records import Group

#: Where a written token ends; the order of `Tally.fates`.
FATES = (
    "useful",
    "no_signal",
    "rejected_stale",
    "oversampled",
    "dropped_overflow",
    "failed",
    "mixed_environment",
)
USEFUL, NO_SIGNAL, REJECTED, OVERSAMPLED, DROPPED, FAILED, MIXED = range(7)


@dataclass(slots=True)
class Tally:
    """Sums since the start of the run; `over` gives those of a window.

    Attributes
    ----------
    now : wall time. steps, events : batches begun, and events that were no leftovers.
    started, ended, stopped : rollouts begun, done, and ended without being done.
    begun, lost, given_up : attempts; of them those lost to a sandbox, a timeout or a restart; and
        rollouts stopped since their every attempt was lost.
    preempted : sequences thrown out of a full KV cache.
    residence_s : sum of the stays of rollouts that ended or were stopped.
    accepted : samples offered to the trainer. dropped, rejected : of them, those thrown away.
    trained, useful : samples of the batches begun, and those of them that count as useful.
    tokens, useful_tokens, useful_sequence_tokens : response tokens of the trained and the useful
        ones, and the latter with their prompts and tool outputs.
    token_stale : versions between writing and training, summed over the tokens trained.
    resumed, crossed : samples resumed in a later batch; weight updates met while written, summed.
    train_s, busy_s : of the trainer, the second with blocking syncs.
    held_s : in which the generator had places free and was not let (async), or stood still.
    decoding_s, reading_s, written : sums of the engines (`engine.Engine`).
    fates : tokens by fate. stale : trained samples by staleness. at : seconds by number in flight.
    """

    now: float = 0.0
    steps: int = 0
    events: int = 0
    started: int = 0
    ended: int = 0
    stopped: int = 0
    begun: int = 0
    lost: int = 0
    given_up: int = 0
    preempted: int = 0
    residence_s: float = 0.0
    accepted: int = 0
    dropped: int = 0
    rejected: int = 0
    trained: int = 0
    useful: int = 0
    tokens: float = 0.0
    useful_tokens: float = 0.0
    useful_sequence_tokens: float = 0.0
    token_stale: float = 0.0
    resumed: int = 0
    crossed: int = 0
    train_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0
    decoding_s: float = 0.0
    reading_s: float = 0.0
    written: float = 0.0
    fates: list[float] = field(default_factory=lambda: [0.0] * len(FATES))
    stale: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    def age(self, staleness: int, samples: int) -> None:
        """Count trained samples of one staleness."""
        stale = self.stale
        if staleness >= len(stale):
            stale.extend([0] * (staleness + 1 - len(stale)))
        stale[staleness] += samples

    def lose(self, group: Group, fate: int) -> None:
        """Give all tokens of a finished group one fate."""
        self.fates[fate] += group.tokens

    def copy(self) -> Tally:
        """Return the totals as they stand."""
        return Tally(**{name: _kept(getattr(self, name)) for name in self.__slots__})

    def over(self, before: Tally) -> Tally:
        """Return what was added since `before`."""
        return Tally(
            **{n: _difference(getattr(self, n), getattr(before, n)) for n in self.__slots__}
        )


def _kept(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def _difference(after: Any, before: Any) -> Any:
    if not isinstance(after, list):
        return after - before
    padded = before + [0] * (len(after) - len(before))
    return [a - b for a, b in zip(after, padded, strict=True)]
