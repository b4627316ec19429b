"""The trainer: numeric format, efficiency, parallelism and memory of an optimiser step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Tag, model_validator

from allocator.scenario.quantity import Count, NonNegative, PositiveShare, Share, assumed
from allocator.scenario.section import Section, by_shape, key, refuse


class Parallelism(Section):
    """Parallelism of one trainer replica; data parallelism takes the remaining GPUs."""

    tp: Count = key("Tensor-parallel width", default=1)
    cp: Count = key("Context-parallel width", default=1)
    pp: Count = key("Pipeline stages", default=1)
    ep: Literal[1] = key("Expert-parallel width", default=1)

    @property
    def gpus(self) -> int:
        """GPUs of one replica; expert parallelism spans replicas."""
        return self.tp * self.cp * self.pp


ParallelismChoice = Annotated[
    Annotated[Literal["auto"], Tag("<auto>")] | Annotated[Parallelism, Tag("<parallelism>")],
    Discriminator(by_shape(mapping="<parallelism>", other="<auto>")),
]


class Trainer(Section):
    """What a training step costs. At most one of `mfu` and `hfu`; neither: the profile's."""

    precision: Literal["bf16", "fp8"] = key("Format of the matrix products", default="bf16")
    mfu: PositiveShare | None = key(
        "6 x active parameters x trained tokens over peak FLOPs while the trainer is busy, with "
        "one epoch, measured in this very configuration (recomputation, log-probabilities, "
        "training); to ask what another configuration would do, state hfu",
        unit="fraction",
        default=None,
    )
    hfu: PositiveShare | None = key(
        "Executed FLOPs over peak FLOPs, while the trainer is busy", unit="fraction", default=None
    )
    mfu_at_gpus: Count | None = key(
        "Trainer GPUs at which mfu was measured; imbalance and fixed time there are taken out of "
        "it",
        unit="GPUs",
        default=None,
    )
    mfu_at_batch: Count | None = key(
        "Samples per batch at which mfu was measured, beside mfu_at_gpus; not set: the scenario's "
        "own batch, which must then be fixed",
        unit="samples",
        default=None,
    )
    parallelism: ParallelismChoice = key(
        "Parallelism of a replica; auto: the smallest that fits memory", default="auto"
    )
    recomputation: Literal["none", "full"] = key(
        "Whether activations are computed again in the backward pass", default="full"
    )
    optimizer_bytes_per_param: NonNegative = key(
        "Optimiser state and master weights",
        unit="bytes per parameter",
        default=assumed(12.0, "default: Adam, two FP32 moments and FP32 master weights"),
    )
    gradient_bytes_per_param: NonNegative = key(
        "Gradient",
        unit="bytes per parameter",
        default=assumed(4.0, "default: FP32 gradient", low=2.0, high=4.0),
    )
    offload: Literal[False] = key("Whether optimiser state is kept off the GPU", default=False)
    fixed_s: NonNegative = key(
        "Time of a step that does not depend on its tokens",
        unit="s",
        default=assumed(
            5.0, "default: optimiser update, logging, data hand-over", low=1.0, high=15.0
        ),
    )
    microbatch_s: NonNegative = key(
        "Time a further micro-batch adds beyond its FLOPs",
        unit="s per micro-batch",
        default=assumed(0.0, "default: launch cost of micro-batches left out"),
    )
    step_cv: Share = key(
        "Coefficient of variation of the step time",
        unit="fraction",
        default=assumed(0.1, "default: batches of like size", low=0.05, high=0.3),
    )
    memory_fraction: PositiveShare = key(
        "Share of GPU memory the trainer may fill",
        unit="fraction",
        default=assumed(0.9, "default: headroom for allocator and NCCL", low=0.85, high=0.95),
    )

    @model_validator(mode="after")
    def _one_efficiency(self) -> Trainer:
        if self.mfu is not None and self.hfu is not None:
            raise refuse("mfu or hfu, not both", self.hfu.value, at=("hfu",))
        for name in ("mfu_at_gpus", "mfu_at_batch"):
            given = getattr(self, name)
            if given is not None and self.mfu is None:
                raise refuse(f"mfu beside {name} (it has no effect alone)", given, at=(name,))
        return self
