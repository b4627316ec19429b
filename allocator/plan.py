"""What comes out: frozen results of `solve` and `evaluate`, one attribute per JSON key.

Nothing here computes a prediction; `allocator.evaluator` does. A result knows only how to turn
itself into plain data (`Plan.to_dict`), a table (`Plan.to_frame`) and, through
`allocator.report`, into a terminal view or HTML.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, ConsoleOptions, RenderResult

Status = Literal["optimal", "feasible", "infeasible", "error"]

#: How generation and training interleave, in the order of the codes that plans carry.
MODES = ("async", "one_step_off", "disaggregated_sync", "colocated_sync")

#: Attribute names that differ from their JSON key.
JSON_KEYS = {"decisions": "plan", "start": "from"}


@dataclass(frozen=True, slots=True)
class Layout:
    """How one engine or one trainer replica is spread over GPUs (degrees, each >= 1)."""

    tp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    cp: int = 1

    def __str__(self) -> str:
        """Return the degrees above one, such as `TP8 EP8`; `1 GPU` when there is none."""
        named = [(f.name, getattr(self, f.name)) for f in fields(self)]
        return (
            " ".join(f"{name.upper()}{degree}" for name, degree in named if degree > 1) or "1 GPU"
        )


@dataclass(frozen=True, slots=True)
class TrainerPlan:
    """Where the trainer runs: pool, number of GPUs and data-parallel ranks."""

    pool: str
    gpu: str
    gpus: int
    parallelism: Layout
    ranks: int


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """Engines of one kind: role, count, layout and cap of rollouts in flight on each."""

    pool: str
    gpu: str
    role: Literal["aggregated", "prefill", "decode"]
    engines: int
    gpus_per_engine: int
    layout: Layout
    in_flight_per_engine: int
    share: float
    backend: str
    backend_version: str
    weights_dtype: str = "bf16"
    kv_dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class GeneratorPlan:
    """The generator: GPUs, decode engines, total cap of rollouts in flight, and the engine kinds.

    `gpus` counts those of prefill engines too.
    """

    gpus: int
    engines: int
    in_flight: int
    groups: tuple[EngineGroup, ...]


@dataclass(frozen=True, slots=True)
class RewardPlan:
    """Who scores rollouts: type, place, and the GPUs or workers that it has (0 without any)."""

    type: str
    placement: str
    pool: str | None
    gpu: str | None
    gpus: int
    engines: int
    gpus_per_engine: int
    workers: int | None


@dataclass(frozen=True, slots=True)
class Decisions:
    """Everything that was decided (JSON key `plan`)."""

    mode: str
    trainer: TrainerPlan
    generator: GeneratorPlan
    reward: RewardPlan | None
    prompts_per_step: int
    group_size: int
    batch: int
    oversampling: float
    epochs: int
    trained_share: float
    queue_batches: int


@dataclass(frozen=True, slots=True)
class Staleness:
    """Weight versions between the start of a group's generation and of its training step.

    `max` is None when nothing bounds it. `cdf[k]` is the probability of at most k versions.
    """

    mean: float
    p50: int
    p95: int
    p99: int
    max: float | None
    token_mean: float
    versions_per_rollout: float
    environment_state_fraction: float
    rejected_fraction: float
    cdf: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TokenFate:
    """Shares of all generated response tokens; they sum to 1.

    `failed` were in rollouts lost to a sandbox, a timeout or a restart; `mixed_environment` in
    samples that are trained on but not counted as useful, since they were resumed in a later batch.
    """

    useful: float
    no_signal: float
    rejected_stale: float
    oversampled: float
    dropped_overflow: float
    failed: float
    mixed_environment: float = 0.0


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOP per optimiser step, by purpose."""

    search: float
    learning: float
    reward: float
    total: float


@dataclass(frozen=True, slots=True)
class Memory:
    """GiB per GPU of the trainer and the engines, and the KV bytes in use, against their limits."""

    trainer_gib: float
    trainer_limit_gib: float
    generator_gib: float
    generator_limit_gib: float
    kv_gib: float
    kv_limit_gib: float


@dataclass(frozen=True, slots=True)
class Run:
    """The whole run: what ends it, steps, hours, GPU-hours and dollars."""

    steps: float
    hours: float
    gpu_hours: float
    usd: float
    ended_by: str


@dataclass(frozen=True, slots=True)
class Environment:
    """Prefill engines, tools, sandboxes and rewards around the engines.

    Rates are None where nothing limits them. `tool_s`, `sandbox_start_s`, `reward_s` and
    `kv_transfer_s` are seconds of one rollout; `rewards_per_s` and `prefills_per_s` rollouts per
    second that those stations let through.
    """

    tool_s: float
    sandboxes: float
    sandbox_start_s: float
    sandbox_usd_per_hour: float
    failed_rollouts_fraction: float
    reward_s: float
    reward_wait_s: float
    rewards_per_s: float | None
    reward_usd_per_hour: float
    prefills_per_s: float | None
    prefill_s: float
    kv_transfer_s: float


@dataclass(frozen=True, slots=True)
class Spending:
    """Dollars per hour by what they pay for; they sum to `usd_per_hour`.

    `generator` includes engines that only prefill; `idle` are GPUs that are paid and not used,
    spare ones included.
    """

    trainer: float
    generator: float
    reward: float
    idle: float
    sandboxes: float
    reward_api: float


@dataclass(frozen=True, slots=True)
class Availability:
    """Shares of the run's time: steps that count, and what stops or undoes them; they sum to 1."""

    productive: float
    evaluation: float
    checkpoint: float
    restart: float
    redone: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Steady-state prediction of one plan. Units are in the names; see docs for the laws.

    `decoding` and `decode_step_s` are those of engines with all their rollouts in flight; a batch
    that is generated as a whole has fewer towards its end.
    """

    step_s: float
    train_s: float
    generation_s: float
    weight_sync_s: float
    decode_step_s: float
    generated_samples_per_s: float
    generated_tokens_per_s: float
    accepted_samples_per_s: float
    trained_samples_per_s: float
    trainer_samples_per_s: float
    trainer_wait_fraction: float
    generator_wait_fraction: float
    update_pause_fraction: float
    load: float
    bottleneck: str
    cause: str
    mfu_busy: float
    mfu_wall: float
    hfu: float
    imbalance: float
    update_fraction: float
    update_fraction_without_log_probs: float
    staleness: Staleness
    decoding: float
    in_flight_context_tokens: float
    discarded_rollouts_fraction: float
    discarded_tokens_fraction: float
    length_bias: float
    truncated_fraction: float
    signal_fraction: float
    token_fate: TokenFate
    trained_sequence_tokens: float
    trained_tokens_per_s: float
    useful_tokens_per_s: float
    usd_per_hour: float
    usd_per_mtok: float
    usd_per_useful_mtok: float
    flops: Flops
    memory: Memory
    environment: Environment
    availability: Availability
    spending: Spending
    run: Run


@dataclass(frozen=True, slots=True)
class Limit:
    """One named limit at the plan: `slack` >= 0 when it holds, `binding` when little is left."""

    name: str
    value: float
    limit: float
    unit: str
    slack: float
    binding: bool
    where: str
    elasticity: float | None = None
    value_of_one_more: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the limit is met."""
        return self.slack >= 0


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """Something a reader must know before trusting or running the plan."""

    code: str
    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where one number that the prediction used comes from."""

    name: str
    value: float
    unit: str
    kind: str
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective at the plan; `bound` is the best any plan of the domain could reach."""

    name: str
    value: float
    bound: float | None
    gap: float | None


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best plan of another kind, and what it costs."""

    differs: str
    decisions: Decisions
    objective: float
    trained_samples_per_s: float
    trainer_wait_fraction: float
    staleness_mean: float
    usd_per_useful_mtok: float


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The smallest change of one limit that alone would make the problem feasible."""

    name: str
    start: float
    to: float
    percent: float
    unit: str
    where: str


@dataclass(frozen=True, slots=True)
class Infeasibility:
    """Why no plan exists: limits in conflict, single changes that help, the nearest plan."""

    conflict: tuple[str, ...]
    unmeetable: tuple[str, ...]
    relaxations: tuple[Relaxation, ...]
    nearest: Decisions | None
    nearest_limits: tuple[Limit, ...]
    points: int


@dataclass(frozen=True, slots=True)
class SolverReport:
    """Who found the plan, how long it took and why it stopped."""

    name: str
    version: str
    wall_s: float
    termination: str
    points: int = 0
    evaluated: int = 0


@dataclass(frozen=True)
class Plan:
    """One scenario's answer: decisions, prediction, limits and where every number comes from."""

    status: Status
    objective: Objective
    decisions: Decisions | None
    prediction: Prediction | None
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    interval_level: float = 0.8
    limits: tuple[Limit, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    near_optimal: tuple[Alternative, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()
    provenance: tuple[Provenance, ...] = ()
    infeasibility: Infeasibility | None = None
    solver: SolverReport | None = None
    calibration_used: str | None = None
    scenario: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with the JSON keys of the contract; infinities become None."""
        data = plain(self)
        assert isinstance(data, dict)
        return data

    def to_frame(self) -> pd.DataFrame:
        """Return one row a quantity: `path`, `value`, `low`, `high` (pandas DataFrame)."""
        import pandas as pd

        rows = [
            {
                "path": path,
                "value": value,
                "low": self.intervals.get(path, (math.nan, math.nan))[0],
                "high": self.intervals.get(path, (math.nan, math.nan))[1],
            }
            for section, root in (("plan", self.decisions), ("", self.prediction))
            for path, value in leaves(plain(root), section)
        ]
        return pd.DataFrame(rows, columns=["path", "value", "low", "high"])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the plan in a terminal (rich protocol)."""
        from allocator.report.terminal import plan_view

        yield plan_view(self)

    def _repr_html_(self) -> str:
        """Draw the plan in a notebook (IPython protocol)."""
        from allocator.report.html import plan_html

        return plan_html(self)


def plain(value: Any) -> Any:
    """Turn nested results into dicts, lists and JSON scalars (non-finite floats become None)."""
    if is_dataclass(value) and not isinstance(value, type):
        return {JSON_KEYS.get(f.name, f.name): plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Flatten plain data into (dotted path, scalar) pairs; lists of scalars stay whole."""
    if isinstance(value, dict):
        dot = f"{path}." if path else ""
        return [leaf for key, item in value.items() for leaf in leaves(item, dot + key)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, f"{path}[{i}]")]
    return [(path, value)]
