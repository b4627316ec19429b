"""The run: what may be spent, what is to be reached, what interrupts it, what is decided."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from allocator.scenario.algorithm import Mode
from allocator.scenario.engine import KvDtype, Layout, WeightsDtype
from allocator.scenario.quantity import AtLeastOne, Count, NonNegative, Positive
from allocator.scenario.section import Flag, Section, Text, key, refuse

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


class Evaluation(Section):
    """Evaluation runs between steps, on the generator."""

    every_steps: Count = key("Steps between two evaluations", unit="steps")
    samples: Count = key("Rollouts of one evaluation", unit="rollouts")
    response_tokens: Positive | None = key(
        "Mean response of an evaluation; not set: that of the workload",
        unit="tokens",
        default=None,
    )


class Checkpoint(Section):
    """Writing the trainer's state to storage."""

    every_steps: Count = key("Steps between two checkpoints", unit="steps")
    seconds: NonNegative = key("Time to write one", unit="s")
    blocks: Flag = key("Whether the trainer waits for it", default=True)


class Failures(Section):
    """Failures that stop the run. Each loses half a checkpoint interval of work."""

    mtbf_gpu_hours: Positive = key(
        "Mean GPU time between two failures, over all GPUs of the run", unit="GPU-hours"
    )
    restart_s: NonNegative = key("Time until the run goes on, reload included", unit="s")


class FixedPlan(Section):
    """Decisions the user has taken; the rest is left to the solver.

    Every key is also a flat name for ``--set``: ``--set trainer_gpus=64``.
    """

    mode: Mode | None = key("How generation and training interleave", default=None)
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
    weights_dtype: WeightsDtype | None = key("Format of the engines' weights", default=None)
    kv_dtype: KvDtype | None = key("Format of the engines' KV cache", default=None)
    prefill_engines: Count | None = key("Engines that only prefill", unit="engines", default=None)
    prefill_gpus: Count | None = key("GPUs of engines that only prefill", unit="GPUs", default=None)
    prefill_pool: Text | None = key("Pool of engines that only prefill", default=None)
    reward_gpus: Count | None = key("GPUs of the reward", unit="GPUs", default=None)
    reward_pool: Text | None = key("Pool of the reward", default=None)

    @property
    def fixes_split(self) -> bool:
        """Whether the GPUs of the trainer and of the generator (or its engines) are decided."""
        generator = self.generator_gpus is not None or self.engines is not None
        return self.trainer_gpus is not None and generator

    @model_validator(mode="after")
    def _one_concurrency(self) -> FixedPlan:
        if self.in_flight is not None and self.in_flight_per_engine is not None:
            raise refuse(
                "in_flight or in_flight_per_engine, not both",
                self.in_flight_per_engine,
                at=("in_flight_per_engine",),
            )
        return self
