"""The decisions of a plan, as arrays: one entry a plan, and the values each may take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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

    @classmethod
    def broadcast(cls, **values: Any) -> DecisionArrays:
        """Build from scalars and arrays of one common shape."""
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
    ranges : names of decisions the user gave as a range, with their scenario path; a solution at
        either end of one is reported.
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
