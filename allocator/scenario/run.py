"""The run: how much may be spent, what is to be reached, and what is already decided."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from allocator.scenario.engine import Layout
from allocator.scenario.quantity import AtLeastOne, Count, Positive
from allocator.scenario.section import Section, Text, key, refuse

Objective = Literal["usd_per_useful_mtok", "run.hours", "useful_tokens_per_s", "run.usd"]


class Target(Section):
    """What the run has to reach: exactly one of these."""

    steps: Positive | None = key("Optimiser batches", unit="steps", default=None)
    samples: Positive | None = key("Trained rollouts", unit="rollouts", default=None)
    useful_tokens: Positive | None = key("Useful trained tokens", unit="tokens", default=None)

    @model_validator(mode="after")
    def _exactly_one(self) -> Target:
        stated = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(stated) != 1:
            raise refuse("exactly one of steps, samples, useful_tokens", stated)
        return self


class Budget(Section):
    """Limits of the run; its length is the least of them."""

    usd: Positive | None = key("Money", unit="USD", default=None)
    gpu_hours: Positive | None = key("GPU time", unit="GPU-hours", default=None)
    flops: Positive | None = key(
        "Executed FLOPs, search and learning together", unit="FLOPs", default=None
    )
    hours: Positive | None = key("Wall-clock time", unit="hours", default=None)
    target: Target | None = key("What the run has to reach", default=None)

    @property
    def is_stated(self) -> bool:
        """Whether there is any limit or target."""
        return any(getattr(self, name) is not None for name in type(self).model_fields)


class Value(Section):
    """What a further epoch, sample or group is worth to learning."""

    model: Literal["none"] = key("Law of diminishing returns", default="none")


class Sandbox(Section):
    """Sandboxes of the environment."""

    provider: Literal["none"] = key("Who runs the sandboxes", default="none")


class FixedPlan(Section):
    """Decisions the user has taken; the rest is left to the solver.

    Every key is also a flat name for ``--set``: ``--set trainer_gpus=64``.
    """

    trainer_gpus: Count | None = key("GPUs of the trainer", unit="GPUs", default=None)
    generator_gpus: Count | None = key("GPUs of the generator", unit="GPUs", default=None)
    engines: Count | None = key("Inference engines", unit="engines", default=None)
    in_flight: Count | None = key(
        "Rollouts in flight over all engines", unit="rollouts", default=None
    )
    in_flight_per_engine: Count | None = key(
        "Rollouts in flight on each engine", unit="rollouts", default=None
    )
    oversampling: AtLeastOne | None = key("Rollouts dispatched per rollout kept", default=None)
    queue_batches: Count | None = key("Batches the queue holds", unit="batches", default=None)
    prompts_per_step: Count | None = key("Prompts per batch", unit="prompts", default=None)
    group_size: Count | None = key("Rollouts per prompt", unit="rollouts", default=None)
    epochs: Count | None = key("Passes over each batch", unit="passes", default=None)
    trainer_pool: Text | None = key("Pool of the trainer", default=None)
    generator_pool: Text | None = key("Pool of the generator", default=None)
    layout: Layout | None = key("Layout of every engine", default=None)

    @model_validator(mode="after")
    def _one_concurrency(self) -> FixedPlan:
        if self.in_flight is not None and self.in_flight_per_engine is not None:
            raise refuse(
                "in_flight or in_flight_per_engine, not both",
                self.in_flight_per_engine,
                at=("in_flight_per_engine",),
            )
        return self
