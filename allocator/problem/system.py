"""The resolved system: every number the evaluator needs, after profiles and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocator.physics.decode import DecodeLaw, Floats
from allocator.physics.flops import ForwardShape
from allocator.physics.kv_memory import KvFootprint
from allocator.physics.lengths import Lengths
from allocator.physics.prefill import PrefillLaw, PrefixCache
from allocator.physics.signal import SolveRate
from allocator.physics.trainer import Passes
from allocator.plan import Layout

if TYPE_CHECKING:
    from typing import Literal


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of equal GPUs: how many, in units of how many, at what price."""

    name: str
    gpu: str
    gpus: int
    unit_gpus: int
    usd_per_gpu_hour: float


@dataclass(frozen=True, slots=True)
class EngineLabel:
    """What an engine kind is, for people; `rate_row` names its profile row ('' without one)."""

    pool: int
    backend: str
    backend_version: str
    layout: Layout
    estimate: bool
    rate_row: str


@dataclass(frozen=True, slots=True)
class EngineKinds:
    """All engine kinds the generator may use; arrays have one entry a kind.

    Attributes
    ----------
    pool : index into `System.pools`.
    weights_bytes_per_gpu : on the fullest GPU.
    kv_budget_bytes : per engine.
    hbm_limit_bytes : per GPU, after the memory fraction.
    """

    labels: tuple[EngineLabel, ...]
    pool: Floats
    gpus_per_engine: Floats
    decode: DecodeLaw
    prefill: PrefillLaw
    footprint: KvFootprint
    weights_bytes_per_gpu: Floats
    kv_budget_bytes: Floats
    hbm_limit_bytes: Floats


@dataclass(frozen=True, slots=True)
class TrainerKinds:
    """All trainer kinds (one a pool that may train); arrays have one entry a kind.

    Attributes
    ----------
    widths : GPUs of one model replica (tp x cp x pp) to try, ascending; the smallest whose memory
        fits is used.
    hfu : executed FLOPs over the peak while computing.
    """

    labels: tuple[tuple[int, Layout], ...]
    pool: Floats
    peak_flops_per_s: Floats
    hfu: Floats
    hbm_limit_bytes: Floats
    widths: tuple[int, ...]
    state_bytes: float
    activation_bytes: float
    passes: Passes
    fixed_s: float
    microbatch_s: float
    microbatch_tokens: float
    step_cv: float
    optimizer_steps_per_batch: int


@dataclass(frozen=True, slots=True)
class WorkloadLaw:
    """Lengths, prompt, environment and reward of one rollout.

    `lengths` are of all rollouts dispatched; the observed moments of those that the observed run
    kept and trained on.
    """

    prompt_tokens: float
    cached_prompt_share: float
    prefix_cache: PrefixCache
    lengths: Lengths
    observed_mean_tokens: float
    observed_second_moment_tokens2: float
    environment_s: float
    solve_rate: SolveRate | None


@dataclass(frozen=True, slots=True)
class AlgorithmLaw:
    """How rollouts become batches: dispatch, oversampling, filtering, sync, staleness."""

    whole_groups: bool
    limit_per_engine: bool
    oversampling_by: Literal["group", "sample"]
    dynamic_sampling: Literal["off", "drop", "refill"]
    weight_sync_every_steps: int
    sync_s: float
    trainer_blocks: bool
    generator_pauses: bool
    staleness_limit: float | None
    staleness_metric: Literal["mean", "p95", "p99", "max"]
    staleness_enforce: Literal["design", "reject", "admission"]


@dataclass(frozen=True, slots=True)
class Money:
    """Billing, budgets and target; None where the user gave none."""

    reserved: bool
    usd: float | None
    gpu_hours: float | None
    flops: float | None
    hours: float | None
    target_steps: float | None
    target_samples: float | None
    target_useful_tokens: float | None
    sequence_basis: bool


@dataclass(frozen=True, slots=True)
class System:
    """Everything `evaluate` reads. Solver-free, immutable."""

    pools: tuple[Pool, ...]
    engines: EngineKinds
    trainers: TrainerKinds
    workload: WorkloadLaw
    algorithm: AlgorithmLaw
    money: Money
    forward: ForwardShape
    active_params: float
