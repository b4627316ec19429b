"""The algorithm and its flow control: estimator, groups, mode, oversampling, queue, staleness."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Discriminator, Tag, model_validator

from allocator.scenario.quantity import (
    Count,
    CountOrRange,
    FactorOrRange,
    IntRange,
    NonNegative,
    Positive,
    assumed,
)
from allocator.scenario.section import Flag, Section, Text, by_shape, key, refuse

#: How generation and training may interleave. `async` streams rollouts through a queue; the others
#: generate batch by batch.
Mode = Literal["async", "one_step_off", "disaggregated_sync", "colocated_sync"]


class Lora(Section):
    """Training of low-rank adapters on a frozen backbone."""

    lora_rank: Count = key("Rank of the adapters")


Training = Annotated[
    Annotated[Literal["full"], Tag("<full>")] | Annotated[Lora, Tag("<lora>")],
    Discriminator(by_shape(mapping="<lora>", other="<full>")),
]


class WeightSync(Section):
    """How new weights reach the engines."""

    gb_per_s: Positive | None = key(
        "Effective bandwidth of the transfer, trainer to all engines; not set: 19.8 (8.0 to 41), "
        "measured for 235B models",
        unit="GB/s",
        default=None,
    )
    fixed_s: NonNegative = key(
        "Time of a sync that does not depend on its bytes",
        unit="s",
        default=assumed(0.0, "default: no fixed part"),
    )
    trainer_blocks: Flag = key("Whether the trainer waits for the transfer", default=True)
    generator_pauses: Flag = key("Whether engines stop decoding during the transfer", default=True)


class Switch(Section):
    """What a GPU pays when it changes between generating and training."""

    offload_s: NonNegative | None = key(
        "Time to move the engine's weights and cache off the GPU; not set: estimated from bytes",
        unit="s",
        default=None,
    )
    onload_s: NonNegative | None = key(
        "Time to bring the trainer's state back; not set: estimated from bytes",
        unit="s",
        default=None,
    )


class Algorithm(Section):
    """The optimiser's view of a step: what is sampled, kept and trained on."""

    estimator: Literal["grpo", "gspo", "rloo", "ppo"] = key("Advantage estimator", default="grpo")
    critic: Text | None = key(
        "Catalogue id of the value model; ppo only; not set: as large as the policy", default=None
    )
    training: Training = key("All weights, or adapters of some rank", default="full")
    group_size: CountOrRange = key("Rollouts per prompt", unit="rollouts", default=16)
    prompts_per_step: CountOrRange = key(
        "Prompts (groups) per batch of the trainer", unit="prompts", default=32
    )
    optimizer_steps_per_batch: Count = key("Mini-batches a batch is split into", default=1)
    weight_sync_every_steps: Count = key(
        "Optimiser batches between weight syncs", unit="steps", default=1
    )
    weight_update: Literal["in_flight", "drain", "abort", "retract"] = key(
        "What happens to rollouts in flight when weights change", default="in_flight"
    )
    weight_sync: WeightSync = key("Cost of a weight sync", default=WeightSync.model_construct())
    old_log_probs: Literal["recompute", "from_engine"] = key(
        "Where the old log-probabilities come from", default="recompute"
    )
    reference_model: Flag = key("Whether a reference model scores every rollout", default=False)
    dynamic_sampling: Literal["off", "drop", "refill"] = key(
        "Groups without advantage: kept, dropped from the batch, or replaced", default="off"
    )
    group_dispatch: Literal["group", "sample"] = key(
        "Whether a group starts as a whole or sample by sample", default="group"
    )
    dispatch_scope: Literal["engine", "global"] = key(
        "Whether the limit on rollouts in flight holds per engine or over all", default="engine"
    )
    mode: Literal[Mode, "auto"] = key(
        "How generation and training interleave; auto: whichever is best", default="async"
    )
    switch: Switch = key(
        "Cost of turning GPUs over between generation and training; mode colocated_sync only",
        default=Switch.model_construct(),
    )
    oversampling: FactorOrRange = key("Rollouts dispatched per rollout kept", default=1.0)
    oversampling_by: Literal["group", "sample"] = key(
        "Whether surplus groups or surplus samples are discarded", default="group"
    )
    partial_rollout: Flag = key(
        "Whether unfinished rollouts resume in a later batch", default=False
    )
    mixed_environment: Literal["keep", "exclude"] = key(
        "Whether samples resumed in a later batch count as useful", default="keep"
    )
    length_cut_tokens: Count | None = key(
        "Response tokens at which a rollout is stopped, to be trained on as it stands; not set: "
        "no cut",
        unit="tokens",
        default=None,
    )
    epochs: CountOrRange = key("Passes over each batch", unit="passes", default=1)
    trained_share: Literal[1] = key("Share of a group's samples that is trained on", default=1)

    @model_validator(mode="after")
    def _nothing_dead(self) -> Algorithm:
        if self.critic is not None and self.estimator != "ppo":
            raise refuse(f"no critic: {self.estimator} trains none", self.critic, at=("critic",))
        if self.mode not in ("colocated_sync", "auto"):
            for name in Switch.model_fields:
                if getattr(self.switch, name) is not None:
                    raise refuse(
                        f"no switch: in mode {self.mode} no GPU changes its role",
                        getattr(self.switch, name).value,
                        at=("switch", name),
                    )
        if self.mode not in ("async", "auto") and self.weight_update != "in_flight":
            raise refuse(
                f"in_flight: in mode {self.mode} no rollout is in flight when weights change",
                self.weight_update,
                at=("weight_update",),
                nearest="in_flight",
            )
        if self.mode == "async" and self.partial_rollout and self.weight_update != "abort":
            raise refuse(
                "false, or weight_update: abort beside it (in mode async other rollouts are never "
                "stopped)",
                True,
                at=("partial_rollout",),
            )
        if self.mixed_environment == "exclude" and not self.partial_rollout:
            raise refuse(
                "keep, or partial_rollout: true beside it",
                self.mixed_environment,
                at=("mixed_environment",),
                nearest="keep",
            )
        return self

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Modes to choose from; one when it is fixed."""
        return get_args(Mode) if self.mode == "auto" else (self.mode,)


class Queue(Section):
    """The queue of finished rollouts between generator and trainer."""

    capacity_batches: CountOrRange = key(
        "Batches the queue holds", unit="batches", default=IntRange.model_construct(min=1, max=2)
    )
    overflow: Literal["drop_oldest"] = key("What happens when it is full", default="drop_oldest")


class Staleness(Section):
    """How many weight versions may lie between the start of a rollout and its training step."""

    limit: NonNegative | None = key(
        "Largest staleness by `metric`; not set: no limit", unit="versions", default=None
    )
    metric: Literal["mean", "p95", "p99", "max"] | None = key(
        "What the limit holds for; not set: max with enforce reject, else mean", default=None
    )
    enforce: Literal["design", "reject", "admission"] = key(
        "Who keeps the limit: the plan, rejection at the trainer, or pacing of new rollouts",
        default="design",
    )
    reference: Literal["submission"] = key("Moment staleness is counted from", default="submission")

    @model_validator(mode="after")
    def _something_to_enforce(self) -> Staleness:
        if self.enforce != "design" and self.limit is None:
            raise refuse(
                f"a limit beside enforce: {self.enforce} (it has no effect alone)",
                None,
                at=("limit",),
            )
        serves = {"reject": ("max",), "admission": ("mean",), "design": ("mean", "p95", "p99")}
        legal = serves[self.enforce]
        if self.limit is not None and self.statistic not in legal:
            raise refuse(
                f"{' or '.join(legal)}, what enforce: {self.enforce} keeps",
                self.metric,
                at=("metric",),
            )
        limit = None if self.limit is None else self.limit.value
        if self.enforce == "admission" and limit is not None and 0 < limit < 1:
            raise refuse("0, or a number >= 1, with enforce: admission", limit, at=("limit",))
        return self

    @property
    def statistic(self) -> Literal["mean", "p95", "p99", "max"]:
        """The metric, or the one that the enforcement implies."""
        if self.metric is not None:
            return self.metric
        return "max" if self.enforce == "reject" else "mean"
