"""What is simulated: a line of engines, environment, queue and trainer, in plain numbers.

Nothing here is a result of a queueing law: lengths, step laws, seconds and sizes only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from allocator.physics.decode import DecodeLaw
from allocator.physics.lengths import Lengths
from allocator.physics.prefill import PrefillLaw, PrefixCache

Mode = Literal["async", "one_step_off", "disaggregated_sync", "colocated_sync"]
#: A quantity by sandboxes in use: (concurrency, value), ascending.
Table = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class EngineSet:
    """Equal inference engines, each with its own share of the rollouts.

    Attributes
    ----------
    in_flight : most rollouts on one engine, those in tools and rewards included.
    kv_bytes_per_token, kv_bytes_per_sequence : KV cache of one sequence, linear in its context
        (the second holds the windows of sliding-window layers).
    kv_budget_bytes : of one engine; above it the youngest sequence is thrown out and read again.
    kv_free_share : share of the budget that must stay free when a sequence is let in. An assumed
        number: engines keep such a watermark so as not to throw out at once what they let in.
    """

    count: int
    in_flight: int
    decode: DecodeLaw
    prefill: PrefillLaw
    kv_bytes_per_token: float = 0.0
    kv_bytes_per_sequence: float = 0.0
    kv_budget_bytes: float = math.inf
    kv_free_share: float = 0.05


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """Engines that only read prompts and contexts, for all decoding engines together.

    `bytes_per_token` travel to the decoding engine at `bytes_per_s` for every token that it lacks.
    """

    count: int
    prefill: PrefillLaw
    bytes_per_token: float = 0.0
    bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class RolloutKind:
    """Lengths and turns of a rollout.

    Attributes
    ----------
    lengths : law of the response tokens of all turns together.
    cached_prompt_share : of a context found in the cache, with `prefix_cache` "share".
    turns : T; the response is split evenly and a tool call ends each turn, the last one too.
    tool_tokens : context added between two turns.
    tool_call : law of the seconds of one call; None when tools take no time.
    kv_held : whether KV stays in memory while a tool runs.
    """

    lengths: Lengths
    prompt_tokens: float = 0.0
    prefix_cache: PrefixCache = "shared_prompt"
    cached_prompt_share: float = 0.0
    turns: int = 1
    tool_tokens: float = 0.0
    tool_call: Lengths | None = None
    kv_held: bool = True


@dataclass(frozen=True, slots=True)
class Solving:
    """How prompts are solved: p = 1 for `always`, 0 for `never`, else Beta(alpha, beta)."""

    always: float = 0.0
    never: float = 0.0
    alpha: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True, slots=True)
class Groups:
    """How rollouts make groups and batches, and which of them are started beyond those kept.

    Attributes
    ----------
    size, per_batch : S rollouts kept in a group, G groups in a batch.
    whole : whether a group starts at once on one engine, or rollout by rollout on any.
    limit_per_engine : whether the places are those of each engine, or of all together.
    oversampling, by : o rollouts start per rollout kept. In a stream of groups: by "sample" o S
        start and the first S to end are kept; by "group" the share 1/o of groups with the smallest
        maxima is kept. Of a batch that starts as a whole: the first S G samples or G groups.
    solving : None when every group carries a signal; `sampling` says what becomes of the others.
    """

    size: int
    per_batch: int
    whole: bool = True
    limit_per_engine: bool = True
    oversampling: float = 1.0
    by: Literal["sample", "group"] = "group"
    solving: Solving | None = None
    sampling: Literal["off", "drop", "refill"] = "off"

    @property
    def batch(self) -> int:
        """Samples of a batch, B = S G."""
        return self.size * self.per_batch

    @property
    def started(self) -> int:
        """Rollouts that a group of a stream starts with."""
        return round(self.size * self.oversampling) if self.by == "sample" else self.size


@dataclass(frozen=True, slots=True)
class Sandboxes:
    """Sandboxes that a rollout needs from its start to the end of its last tool call.

    Attributes
    ----------
    quota : most sandboxes at a time; rollouts wait for theirs in their order, in their places.
    start_s, failure_share : by sandboxes in use, linear between the entries, constant outside.
        A lost attempt ends after a uniform share of its response tokens.
    retries : times a lost rollout starts anew, with a new length, before it is given up.
    timeout_s : longest life of an attempt, start-up included.
    """

    per_rollout: int = 1
    quota: float = math.inf
    start_s: Table = ((1.0, 0.0),)
    failure_share: Table = ((1.0, 0.0),)
    retries: int = 0
    timeout_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Reward:
    """Scoring of a rollout: `servers` that each take `seconds`, in order of arrival, then a delay.

    `engine_s` is work of the rollout's own engine, which stops decoding for it. `overlap` is
    whether a batch that starts as a whole is scored while it is generated.
    """

    servers: float = math.inf
    seconds: float = 0.0
    latency_s: float = 0.0
    engine_s: float = 0.0
    overlap: bool = True

    @property
    def immediate(self) -> bool:
        """Whether a score takes no time at all."""
        return self.seconds == self.latency_s == self.engine_s == 0.0


@dataclass(frozen=True, slots=True)
class TrainerLine:
    """The trainer: seconds of a batch, versions, weight sync.

    A batch of T sequence tokens takes (fixed_s + s_per_token T) x a gamma factor of mean 1 and
    coefficient of variation `step_cv`.

    Attributes
    ----------
    optimizer_steps : m versions per batch, its groups split evenly over them.
    sync_s, sync_every : weight transfer, after every so many batches.
    trainer_blocks, generator_pauses : whom the transfer stops (async; in the batch modes both).
    switch_s : to change roles and back, once a step (colocated_sync).
    """

    fixed_s: float
    s_per_token: float = 0.0
    step_cv: float = 0.0
    optimizer_steps: int = 1
    sync_s: float = 0.0
    sync_every: int = 1
    trainer_blocks: bool = True
    generator_pauses: bool = True
    switch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules between generator and trainer.

    Attributes
    ----------
    queue_batches : finished groups that may wait besides the batch being trained, in batches.
    overflow : what a full queue does: throw out its oldest group, or stop starts ("block").
    enforce : "reject" throws away groups older than `staleness_limit` when a batch is made up;
        "admission" starts groups only while those not yet trained stay within (limit + 1) batches.
    weight_update : what becomes of rollouts in flight at a sync (async).
    partial : unfinished rollouts are resumed: in the next batch, or after an `abort`.
    exclude_mixed : whether samples that more than one version wrote count as not useful.
    """

    queue_batches: int = 1
    overflow: Literal["drop_oldest", "block"] = "drop_oldest"
    enforce: Literal["design", "reject", "admission"] = "design"
    staleness_limit: float = math.inf
    weight_update: Literal["in_flight", "drain", "abort", "retract"] = "in_flight"
    partial: bool = False
    exclude_mixed: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedLine:
    """Everything that one simulation needs.

    Raises
    ------
    ValueError
        On counts below 1, oversampling below 1, whole groups that no engine has places for, a
        quota below one rollout's sandboxes, or refilling from groups that never have a signal.
    """

    mode: Mode
    engines: EngineSet
    rollouts: RolloutKind
    groups: Groups
    trainer: TrainerLine
    policy: Policy = field(default_factory=Policy)
    reward: Reward = field(default_factory=Reward)
    sandboxes: Sandboxes | None = None
    prefill_pool: PrefillPool | None = None

    def __post_init__(self) -> None:
        """Refuse lines that cannot run."""
        engines, groups = self.engines, self.groups
        counts = (engines.count, engines.in_flight, groups.size, groups.per_batch)
        if min(*counts, self.rollouts.turns, self.trainer.optimizer_steps) < 1:
            raise ValueError("engines, places, groups, turns and optimiser steps are at least 1")
        if groups.oversampling < 1.0:
            raise ValueError(f"oversampling is at least 1, given {groups.oversampling:g}")
        places = engines.in_flight * (1 if groups.limit_per_engine else engines.count)
        if self.mode == "async" and groups.whole and groups.started > places:
            raise ValueError(
                f"a whole group of {groups.started} needs as many places, not {places}"
            )
        solving = groups.solving
        hopeless = solving is not None and (
            groups.size == 1 or solving.always + solving.never >= 1.0
        )
        if groups.sampling == "refill" and hopeless:
            raise ValueError("refill needs at least some groups with a signal")
        if self.policy.staleness_limit < 0.0:
            raise ValueError("a limit of staleness is at least 0")
        if self.sandboxes is not None and self.sandboxes.quota < self.sandboxes.per_rollout:
            raise ValueError("the quota does not hold the sandboxes of one rollout")
