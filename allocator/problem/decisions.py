"""The decisions of a plan, as arrays: one entry a plan, and the values each may take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocator.plan import MODES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ASYNC, ONE_STEP_OFF, DISAGGREGATED_SYNC, COLOCATED_SYNC = range(len(MODES))
#: No engines of that role: prefill runs on the decode engines, rewards need no GPUs.
NONE = -1

#: What a decision is where a plan does not say.
UNSAID = {
    "mode": ASYNC,
    "prefill_kind": NONE,
    "prefill_engines": 0,
    "reward_kind": NONE,
    "reward_engines": 0,
}


@dataclass(frozen=True, slots=True)
class DecisionArrays:
    """Plans to evaluate, one entry each; all arrays have one shape (n,).

    Attributes
    ----------
    generator_kind, trainer_kind : index into `System.engines` / `System.trainers`.
    engines : engines of that kind.
    in_flight_per_engine : cap of rollouts in flight on one engine.
    trainer_gpus : GPUs of the trainer.
    oversampling : rollouts dispatched per rollout kept, >= 1.
    queue_batches : batches of finished groups that may wait.
    prompts_per_step, group_size, epochs : as in the scenario, when not fixed there.
    mode : place in `allocator.plan.MODES`.
    prefill_kind, prefill_engines : engines that only prefill, index into `System.engines`; NONE
        and 0 where the decode engines do it.
    reward_kind, reward_engines : engines of the reward model, index into `System.reward_kinds`;
        NONE and 0 where it has no GPUs of its own.
    """

    generator_kind: Ints
    engines: Ints
    in_flight_per_engine: Ints
    trainer_kind: Ints
    trainer_gpus: Ints
    oversampling: Floats
    queue_batches: Ints
    prompts_per_step: Ints
    group_size: Ints
    epochs: Ints
    mode: Ints
    prefill_kind: Ints
    prefill_engines: Ints
    reward_kind: Ints
    reward_engines: Ints

    @classmethod
    def broadcast(cls, **values: Any) -> DecisionArrays:
        """Build from scalars and arrays of one common shape; `UNSAID` fills what is not given."""
        values = UNSAID | values
        arrays = np.broadcast_arrays(*(np.atleast_1d(values[f.name]) for f in fields(cls)))
        kinds = {f.name: float if f.name == "oversampling" else np.int64 for f in fields(cls)}
        return cls(
            *(
                np.ascontiguousarray(a, dtype=kinds[f.name])
                for f, a in zip(fields(cls), arrays, strict=True)
            )
        )

    def __len__(self) -> int:
        """Return the number of plans."""
        return int(self.engines.size)

    def take(self, index: Any) -> DecisionArrays:
        """Return the plans in `index` (integers, mask or slice)."""
        return DecisionArrays(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def concatenate(cls, parts: list[DecisionArrays]) -> DecisionArrays:
        """Join several sets of plans."""
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))


@dataclass(frozen=True, slots=True)
class Domain:
    """The values every decision may take; what a solver enumerates and an oracle may not exceed.

    Attributes
    ----------
    engines : per engine kind, the counts that fill whole units of its pool (ascending).
    in_flight_per_engine : per engine kind, ascending.
    trainer_gpus : per trainer kind, ascending.
    ranges : names of decisions that have a range, with their scenario path.
    stated_ranges : those whose range the user wrote: a solution at either end of one is reported.
    modes : that may be chosen, places in `allocator.plan.MODES`.
    prefill : per engine kind, the kinds and counts of prefill engines that may serve it; kind NONE
        with count 0 leaves prefill on the decode engines.
    reward : kinds and counts of reward engines; one entry (NONE, 0) where rewards need no GPUs.
    """

    engines: tuple[Ints, ...]
    in_flight_per_engine: tuple[Ints, ...]
    trainer_gpus: tuple[Ints, ...]
    oversampling: Floats
    queue_batches: Ints
    prompts_per_step: Ints
    group_size: Ints
    epochs: Ints
    ranges: tuple[tuple[str, str], ...]
    stated_ranges: frozenset[str]
    modes: Ints
    prefill: tuple[tuple[tuple[int, Ints], ...], ...]
    reward: tuple[tuple[int, Ints], ...]

    def prefill_of(self, kind: int, mode: int) -> tuple[tuple[int, Ints], ...]:
        """Return the prefill engines that may serve an engine kind in a mode.

        One set of GPUs that trains and generates in turn prefills on its decode engines.
        """
        options = self.prefill[kind]
        if mode != COLOCATED_SYNC:
            return options
        return tuple(option for option in options if option[0] == NONE)

    def queues_of(self, mode: int) -> Ints:
        """Return the queue capacities of a mode; without a queue one stands for all."""
        return self.queue_batches if mode == ASYNC else self.queue_batches[:1]

    @property
    def points(self) -> int:
        """Number of plans of the domain."""
        shared = self.oversampling.size * self.prompts_per_step.size
        shared *= self.group_size.size * self.epochs.size
        trainers = sum(gpus.size for gpus in self.trainer_gpus)
        scorers = sum(counts.size for _, counts in self.reward)
        columns = 0
        for mode in self.modes.tolist():
            for kind, counts in enumerate(self.engines):
                readers = sum(n.size for _, n in self.prefill_of(kind, mode))
                caps = self.in_flight_per_engine[kind].size
                columns += counts.size * caps * readers * self.queues_of(mode).size
        return int(shared * trainers * scorers * columns)


def in_flight_grid(largest: int) -> Ints:
    """Caps of rollouts in flight worth telling apart: every integer to 150, then steps of 1%.

    Examples
    --------
    >>> in_flight_grid(5).tolist()
    [1, 2, 3, 4, 5]
    >>> in_flight_grid(40).tolist()[-4:]
    [37, 38, 39, 40]
    """
    values = [1]
    while values[-1] < largest:
        values.append(max(values[-1] + 1, round(values[-1] * 1.01)))
    return np.asarray([v for v in values if v < largest] + [max(largest, 1)], dtype=np.int64)
