"""Lines to simulate: engines of constant speed, one thousandth of a mean life a step."""

from dataclasses import replace
from typing import Any

from allocator.physics.decode import DecodeLaw
from allocator.physics.lengths import Lengths, capped_lognormal_from_mean_cv
from allocator.physics.prefill import PrefillLaw
from allocator.simulator.line import (
    EngineSet,
    Groups,
    Policy,
    RolloutKind,
    SimulatedLine,
    TrainerLine,
)

MEAN_TOKENS = 1000.0
#: A step of 1 ms whatever is in flight: a mean life lasts 1 s.
STEADY = DecodeLaw(1e-3, 0.0, 0.0, 0.0, 0.0)
FREE = PrefillLaw(0.0, 0.0, 0.0)


def lengths(cv: float, cap: float | None = None) -> Lengths:
    return capped_lognormal_from_mean_cv(MEAN_TOKENS, cv, cap)


def line(
    *,
    cv: float = 0.5,
    slots: int = 32,
    engines: int = 1,
    size: int = 4,
    per_batch: int = 8,
    train_s: float = 1.0,
    step_cv: float = 0.0,
    **parts: Any,
) -> SimulatedLine:
    """Return a line of slots of fixed speed; a part given as a mapping changes those fields.

    `engine` changes the engines beyond their number and slots.
    """
    base = SimulatedLine(
        mode=parts.pop("mode", "async"),
        engines=EngineSet(engines, slots, STEADY, FREE),
        rollouts=RolloutKind(lengths(cv)),
        groups=Groups(size, per_batch),
        trainer=TrainerLine(train_s, step_cv=step_cv),
        policy=Policy(),
    )
    if "engine" in parts:
        parts["engines"] = parts.pop("engine")
    changes = {
        name: replace(getattr(base, name), **part) if isinstance(part, dict) else part
        for name, part in parts.items()
    }
    return replace(base, **changes)
