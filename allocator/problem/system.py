"""The resolved system: every number the evaluator needs, after profiles and defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from allocator.physics.decode import DecodeLaw, Floats
from allocator.physics.flops import ForwardShape
from allocator.physics.kv_memory import KvFootprint
from allocator.physics.lengths import Lengths
from allocator.physics.prefill import PrefillLaw, PrefixCache
from allocator.physics.sandbox import StartTable
from allocator.physics.signal import SolveRate
from allocator.physics.trainer import Passes
from allocator.plan import Layout

Flags = NDArray[np.bool_]
RewardType = Literal["sparse", "structured", "dense", "proxy_prm", "prm", "llm_judge"]


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of equal GPUs: how many a plan may use, in units of how many, at what price.

    `spare_gpus` are paid for and kept for failures: no plan uses them.
    """

    name: str
    gpu: str
    gpus: int
    unit_gpus: int
    usd_per_gpu_hour: float
    spare_gpus: int = 0


@dataclass(frozen=True, slots=True)
class EngineLabel:
    """What an engine kind is, for people; `rate_row` names its profile row ('' without one)."""

    pool: int
    backend: str
    backend_version: str
    layout: Layout
    estimate: bool
    rate_row: str
    weights_dtype: str = "bf16"
    kv_dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class EngineKinds:
    """All engine kinds the generator may use; arrays have one entry a kind.

    Attributes
    ----------
    pool : index into `System.pools`.
    weights_bytes_per_gpu : on the fullest GPU.
    kv_budget_bytes : per engine.
    hbm_limit_bytes : per GPU, after the memory fraction.
    kv_token_bytes : one copy of the cache of a token, what a transfer between engines moves.
    network_bytes_per_s : of one engine towards others; NaN where the profile has none, or prefill
        is never apart.
    decodes, prefills : whether the pool of the kind has that role.
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
    kv_token_bytes: Floats
    network_bytes_per_s: Floats
    decodes: Flags
    prefills: Flags


@dataclass(frozen=True, slots=True)
class RewardKinds:
    """Engines of the reward model, one kind a pool that may hold them; arrays, one entry a kind.

    Attributes
    ----------
    hfu : executed FLOPs over the peak while a scoring model reads; NaN for a judge that writes.
    decode, prefill : laws of a judge that writes; None for a model that only reads.
    judge_in_flight : judgements that one engine writes at the same time.
    """

    labels: tuple[EngineLabel, ...]
    pool: Floats
    gpus_per_engine: Floats
    peak_flops_per_s: Floats
    hfu: float
    decode: DecodeLaw | None
    prefill: PrefillLaw | None
    judge_in_flight: float


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
    critic: Critic | None = None


@dataclass(frozen=True, slots=True)
class Critic:
    """The value model of PPO, trained on the trainer's GPUs.

    `passes` are forward-equivalents of its own forward pass.
    """

    forward: ForwardShape
    passes: Passes


@dataclass(frozen=True, slots=True)
class WorkloadLaw:
    """Lengths, prompt, turns and environment of one rollout.

    `lengths` are of all rollouts dispatched; the observed moments of those that the observed run
    kept and trained on.

    Attributes
    ----------
    turns : T, model turns of a rollout; a tool call ends each.
    tool_tokens : context that a tool adds between two turns.
    tool_s : mean seconds of one call.
    tool_call, tool_calls : law of the seconds of one call, and of all T together; None when they
        take no varying time.
    kv_held : whether the KV cache stays in memory while a tool runs between turns.
    """

    prompt_tokens: float
    cached_prompt_share: float
    prefix_cache: PrefixCache
    lengths: Lengths
    observed_mean_tokens: float
    observed_second_moment_tokens2: float
    solve_rate: SolveRate | None
    turns: int = 1
    tool_tokens: float = 0.0
    tool_s: float = 0.0
    tool_call: Lengths | None = None
    tool_calls: Lengths | None = None
    kv_held: bool = True

    @property
    def environment_s(self) -> float:
        """Mean seconds of a rollout's tool calls."""
        return self.turns * self.tool_s

    @property
    def held_s(self) -> float:
        """Mean seconds in which a rollout's cache waits for a tool; none waits for the last."""
        return (self.turns - 1) * self.tool_s if self.kv_held else 0.0

    @property
    def fixed_tokens(self) -> float:
        """Tokens of a sequence that the policy did not write: prompt and tool outputs."""
        return self.prompt_tokens + (self.turns - 1) * self.tool_tokens


@dataclass(frozen=True, slots=True)
class RewardLaw:
    """How a rollout is scored; rates are `math.inf` where nothing limits them.

    Attributes
    ----------
    cpu_s : processor seconds of one scoring call; `workers` of them run at the same time.
    latency_s : seconds a score takes besides.
    calls : scoring calls of a rollout.
    forward : shape of the model that scores; None for rules.
    input_tokens : that a call reads; None for the whole sequence.
    output_tokens : that a call writes.
    max_calls_per_s : what an API allows.
    usd_per_mtok_in, usd_per_mtok_out : of an API.
    overlap : whether scoring runs beside generation where a batch is generated as a whole.
    """

    type: RewardType
    placement: Literal["cpu", "shared_engine", "own_gpus", "api"]
    cpu_s: float
    workers: float
    latency_s: float
    calls: float
    forward: ForwardShape | None
    input_tokens: float | None
    output_tokens: float
    max_calls_per_s: float
    usd_per_mtok_in: float
    usd_per_mtok_out: float
    overlap: bool


@dataclass(frozen=True, slots=True)
class SandboxLaw:
    """Sandboxes of the environment: how many, how fast they start, how often they are lost.

    Attributes
    ----------
    max_concurrent : sandboxes that may run together; inf without a quota.
    start_s, failure_fraction : by sandboxes running.
    retries : times a lost rollout is started again before it is given up.
    timeout_s : longest life of a rollout in its sandbox; inf without a limit.
    credit_usd : money there is for sandboxes; inf without a limit.
    """

    provider: str
    per_rollout: int
    max_concurrent: float
    start_s: StartTable
    failure_fraction: StartTable
    retries: int
    timeout_s: float
    usd_per_hour: float
    credit_usd: float = math.inf


@dataclass(frozen=True, slots=True)
class Interruptions:
    """What stops the run from time to time; None where it never happens.

    Attributes
    ----------
    evaluation_every_steps, evaluation_tokens : response tokens generated every so many steps.
    checkpoint_every_steps, checkpoint_s, checkpoint_blocks : and what a checkpoint takes.
    mtbf_gpu_hours, restart_s : GPU-hours between failures, and seconds until the run goes on.
    """

    evaluation_every_steps: float | None
    evaluation_tokens: float
    checkpoint_every_steps: float | None
    checkpoint_s: float
    checkpoint_blocks: bool
    mtbf_gpu_hours: float | None
    restart_s: float


@dataclass(frozen=True, slots=True)
class AlgorithmLaw:
    """How rollouts become batches: dispatch, oversampling, filtering, sync, staleness."""

    whole_groups: bool
    limit_per_engine: bool
    oversampling_by: Literal["group", "sample"]
    dynamic_sampling: Literal["off", "drop", "refill"]
    weight_sync_every_steps: int
    trainer_blocks: bool
    generator_pauses: bool
    weight_update: Literal["in_flight", "drain", "abort", "retract"]
    partial_rollout: bool
    exclude_mixed: bool
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
    """Everything `evaluate` reads. Solver-free, immutable.

    Attributes
    ----------
    sync_s : seconds of one weight transfer, by trainer kind (rows) and engine kind (columns).
    switch_s : seconds to offload and reload when one set of GPUs changes roles, alike; inf where
        the two are of different pools or no mode changes roles.
    kv_link_bytes_per_s : KV transfer of one prefill engine (rows) to decode engines (columns);
        inf, like the total, where prefill is never apart.
    kv_link_total_bytes_per_s : of all of them together; inf inside a pool and without a stated
        link.
    sandbox, reward_kinds : None where there are none.
    """

    pools: tuple[Pool, ...]
    engines: EngineKinds
    trainers: TrainerKinds
    workload: WorkloadLaw
    algorithm: AlgorithmLaw
    money: Money
    forward: ForwardShape
    active_params: float
    reward: RewardLaw
    reward_kinds: RewardKinds | None
    sandbox: SandboxLaw | None
    interruptions: Interruptions
    sync_s: Floats
    switch_s: Floats
    kv_link_bytes_per_s: Floats
    kv_link_total_bytes_per_s: Floats
