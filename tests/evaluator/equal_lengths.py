"""One plan at equal response lengths, by hand: plain numbers, no law of the package.

Where all responses have the same length nothing about a batch is random: its engines run
ceil(m/N) waves, each step of which can be written down, and a stream is a closed loop of one
equation. `scenario_of` and `decisions_of` state a case to the package, `by_hand` computes it from
the same numbers. Only the queue of the asynchronous mode comes from elsewhere (`other_hand`), with
the table of equal lengths made here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from allocator.evaluator import evaluate
from allocator.evaluator.prediction import prediction_of
from allocator.fixed import fixed_decisions
from allocator.plan import Prediction, leaves, plain
from allocator.problem.build import build_problem
from allocator.problem.domain import build_domain
from allocator.scenario.load import from_dict
from allocator.scenario.profiles import load_catalogue
from tests.evaluator.other_hand import Array, LengthTable, queue_and_staleness

Data = dict[str, Any]

# Profile of the one GPU used here, H200 SXM, and bytes of the formats.
BF16_FLOPS, FP8_FLOPS, HBM, NETWORK = 989e12, 1979e12, 141 * 2.0**30, 50e9
BYTES = {"bf16": 2.0, "fp8": 1.0}
MEMORY_FRACTION = 0.88
#: Times a lost rollout is started again, as the scenario has it where nothing is stated.
RETRIES = 3
#: Link to host memory, bytes/s, where a switch of roles is not stated.
HOST = 25e9
#: Parts of a whole, some of them differences that leave rounding in place of 0.
SHARES = frozenset(
    ["trainer_wait_fraction", "generator_wait_fraction", "environment.failed_rollouts_fraction"]
    + ["staleness.environment_state_fraction"]
    + [
        f"availability.{of}"
        for of in ("productive", "evaluation", "checkpoint", "restart", "redone")
    ]
    + [
        f"token_fate.{fate}"
        for fate in (
            "useful",
            "no_signal",
            "rejected_stale",
            "oversampled",
            "dropped_overflow",
            "failed",
            "mixed_environment",
        )
    ]
)


@dataclass(frozen=True)
class Model:
    """A model as its profile has it; `miss` = 1 - experts per token/experts."""

    id: str
    total: float
    active: float
    matmul: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    inner: int
    miss: float = 0.0

    @property
    def pair(self) -> float:
        """FLOP of one (query, key) pair over all layers: two products, keys and values."""
        return self.layers * 2.0 * self.heads * 2 * self.head

    def forward(self, tokens: float) -> float:
        """Forward pass of one sequence: causal, so half of all pairs."""
        return 2.0 * self.matmul * tokens + self.pair * tokens * tokens / 2.0

    @property
    def kv_values(self) -> float:
        return 2.0 * self.layers * self.kv_heads * self.head

    def adapters(self, rank: int) -> float:
        """Parameters of adapters on the four attention and three feed-forward matrices."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        attention = 2 * (self.hidden + queries) + 2 * (self.hidden + keys)
        return rank * self.layers * (attention + 3.0 * (self.hidden + self.inner))


QWEN3_8B = Model("qwen3-8b", 8.19e9, 8.19e9, 7.568e9, 36, 4096, 32, 8, 128, 151_936, 12_288)
QWEN3_06B = Model("qwen3-0.6b", 5.96e8, 5.96e8, 5.96e8, 28, 1024, 16, 8, 128, 151_936, 3072)
#: A mixture: a token visits 8 of 128 experts.
QWEN3_30B = Model(
    "qwen3-30b-a3b", 30.532e9, 3.353e9, 3.042e9, 48, 2048, 32, 4, 128, 151_936, 768, 1 - 8 / 128
)


@dataclass(frozen=True)
class Reward:
    """How a rollout is scored; None: as the type implies.

    `judge_engine`: seconds of one call, verdicts at once and GPUs of a judge on its own engine.
    """

    type: str = "sparse"
    placement: str = "cpu"
    cpu_s: float = 0.0
    calls: float | None = None
    workers: int | None = None
    latency_s: float = 0.0
    model: Model | None = None
    input: float | None = None
    output: float = 0.0
    usd: tuple[float, float] | None = None
    max_per_s: float | None = None
    hfu: float = 0.4
    overlap: bool = True
    gpus: int = 0
    judge_engine: tuple[float, float] | None = None


@dataclass(frozen=True)
class Sandboxes:
    """Start-up seconds and share of rollouts lost by sandboxes running, linear between entries."""

    start_s: tuple[tuple[float, float], ...] = ((1.0, 8.0),)
    lost: tuple[tuple[float, float], ...] = ((1.0, 0.0),)
    per_rollout: int = 1
    usd_per_hour: float = 0.0


@dataclass(frozen=True)
class Case:
    """Scenario and plan; engines of one GPU."""

    mode: str = "disaggregated_sync"
    model: Model = QWEN3_8B
    # One rollout
    response: float = 3000.0
    length_cut: int | None = None
    prompt: float = 300.0
    turns: int = 1
    tool_tokens: float = 0.0
    tool_s: float = 0.0
    kv_during_tools: str = "hold"
    cache: str | float = "shared_prompt"
    solve: tuple[float, float, float, float] | None = None  # always, never, alpha, beta
    # Batch and flow
    prompts: int = 32
    group: int = 8
    oversampling: float = 1.0
    by: str = "sample"
    sampling: str = "off"
    partial: bool = False
    exclude_mixed: bool = False
    queue: int = 1
    weight_update: str = "in_flight"
    # Engines: t(n) = alpha + expert (1 - miss^n) + beta n + gamma (context of all n)
    engines: int = 4
    cap: int = 64
    alpha: float = 6e-3
    expert: float = 0.0
    beta: float = 5e-5
    gamma: float = 2e-8
    p0: float = 1e-3
    p1: float = 2e-5
    p2: float = 1e-10
    weights: str = "bf16"
    kv: str = "bf16"
    memory_fraction: float = MEMORY_FRACTION
    prefill_engines: int = 0
    link_gbit: float | None = None  # prefill engines in a pool of their own, behind this link
    # Trainer
    gpus: int = 4
    width: int = 1
    hfu: float = 0.4
    precision: str = "bf16"
    recompute: bool = True
    old_log_probs: bool = True
    reference: bool = False
    lora_rank: int | None = None
    critic: Model | None = None
    epochs: int = 1
    steps: int = 1
    fixed_s: float = 2.0
    microbatch_s: float = 0.0
    step_cv: float = 0.1
    # Weights on their way
    gb_per_s: float = 10.0
    sync_fixed_s: float = 0.5
    sync_every: int = 1
    blocks: bool = True
    pauses: bool = True
    offload_s: float | None = None
    onload_s: float | None = None
    # The rest
    reward: Reward = Reward()
    sandboxes: Sandboxes | None = None
    evaluation: tuple[int, int] | None = None  # every steps, samples
    checkpoint: tuple[int, float, bool] | None = None  # every steps, seconds, blocks
    failures: tuple[float, float] | None = None  # GPU-hours between two, restart
    pool: int = 16
    price: float = 2.0
    on_demand: bool = False
    target_steps: int = 100
    basis: str = "sequence"

    @property
    def length(self) -> float:
        return min(self.response, self.length_cut or math.inf)

    @property
    def fixed_tokens(self) -> float:
        return self.prompt + (self.turns - 1) * self.tool_tokens

    @property
    def streams(self) -> bool:
        return self.mode == "async"

    @property
    def batch(self) -> int:
        return self.prompts * self.group

    @property
    def started_per_kept(self) -> float:
        """Rollouts started per rollout kept: unfinished ones that resume are kept in the end."""
        return 1.0 if self.partial and not self.streams else self.oversampling


# ------------------------------------------------------------------- what the package is told


def scenario_of(case: Case, directory: Path) -> Data:
    """Return the scenario of a case; `directory` takes the file of lengths."""
    (directory / "lengths.csv").write_text(f"response_tokens\n{case.response!r}\n")
    pools = [_pool(case, "node", case.pool)]
    links = []
    if case.link_gbit is not None:
        pools[0]["roles"] = ["trainer", "decode", "reward"]
        pools.append(_pool(case, "readers", case.prefill_engines, roles=["prefill"]))
        links = [{"between": ["node", "readers"], "gbit_per_s": case.link_gbit}]
    hardware: Data = {"pools": pools, "links": links}
    hardware["billing"] = "on_demand" if case.on_demand else "reserved"
    data: Data = {
        "model": case.model.id,
        "engine": _engine(case),
        "trainer": {
            "hfu": case.hfu,
            "precision": case.precision,
            "parallelism": {"tp": case.width},
            "recomputation": "full" if case.recompute else "none",
            "fixed_s": case.fixed_s,
            "microbatch_s": case.microbatch_s,
            "step_cv": case.step_cv,
        },
        "workload": {
            "initial_prompt_tokens": case.prompt,
            "response_tokens": {"file": "lengths.csv"},
            "turns": case.turns,
            "tool_tokens_per_turn": case.tool_tokens,
            "tool_s": case.tool_s,
            "prefix_cache": case.cache,
        },
        "algorithm": _algorithm(case),
        "reward": _reward(case.reward),
        "hardware": hardware,
        "budget": {"target": {"steps": case.target_steps}},
        "token_basis": case.basis,
    }
    if case.solve is not None:
        always, never, alpha, beta = case.solve
        rest = {"alpha": alpha, "beta": beta}
        data["workload"]["solve_rate"] = {"always": always, "never": never, "rest": rest}
    if case.sandboxes is not None:
        data["sandbox"] = {
            "provider": "custom",
            "per_rollout": case.sandboxes.per_rollout,
            "start_s": dict(case.sandboxes.start_s),
            "failure_fraction": dict(case.sandboxes.lost),
            "usd_per_hour": case.sandboxes.usd_per_hour,
        }
    for name, keys in (
        ("evaluation", ("every_steps", "samples")),
        ("checkpoint", ("every_steps", "seconds", "blocks")),
        ("failures", ("mtbf_gpu_hours", "restart_s")),
    ):
        if getattr(case, name) is not None:
            data[name] = dict(zip(keys, getattr(case, name), strict=True))
    return data


def _pool(case: Case, name: str, gpus: int, **more: Any) -> Data:
    price = {"usd_per_gpu_hour": case.price}
    pool = {"name": name, "gpu": "h200-sxm", "gpus": gpus, "granularity": "gpu", "price": price}
    return pool | more


def _engine(case: Case) -> Data:
    decode = {
        "alpha_s": case.alpha,
        "expert_s": case.expert,
        "beta_s": case.beta,
        "gamma_s_per_token": case.gamma,
    }
    prefill = {"p0_s": case.p0, "p1_s_per_token": case.p1, "p2_s_per_token2": case.p2}
    return {
        "backend": "vllm",
        "layouts": [{"tp": 1}],
        "weights_dtype": case.weights,
        "kv_dtype": case.kv,
        "memory_fraction": case.memory_fraction,
        "kv_during_tools": case.kv_during_tools,
        "disaggregation": "always" if case.prefill_engines else "never",
        "rates": {"gpus_per_engine": 1, "decode": decode, "prefill": prefill},
    }


def _algorithm(case: Case) -> Data:
    data: Data = {
        "mode": case.mode,
        "estimator": "grpo" if case.critic is None else "ppo",
        "training": "full" if case.lora_rank is None else {"lora_rank": case.lora_rank},
        "optimizer_steps_per_batch": case.steps,
        "weight_sync_every_steps": case.sync_every,
        "weight_update": case.weight_update,
        "weight_sync": {
            "gb_per_s": case.gb_per_s,
            "fixed_s": case.sync_fixed_s,
            "trainer_blocks": case.blocks,
            "generator_pauses": case.pauses,
        },
        "old_log_probs": "recompute" if case.old_log_probs else "from_engine",
        "reference_model": case.reference,
        "dynamic_sampling": case.sampling,
        "oversampling_by": case.by,
        "partial_rollout": case.partial,
        "mixed_environment": "exclude" if case.exclude_mixed else "keep",
    }
    if case.critic is not None:
        data["critic"] = case.critic.id
    if case.length_cut is not None:
        data["length_cut_tokens"] = case.length_cut
    if case.mode == "colocated_sync":
        data["switch"] = {"offload_s": case.offload_s, "onload_s": case.onload_s}
    return data


def _reward(reward: Reward) -> Data:
    stated: Data = {
        "type": reward.type,
        "placement": reward.placement,
        "calls": reward.calls,
        "workers": reward.workers,
        "max_per_s": reward.max_per_s,
        "model": None if reward.model is None else reward.model.id,
    }
    data = {name: value for name, value in stated.items() if value is not None}
    for name in ("cpu_s", "latency_s"):
        if getattr(reward, name):
            data[name] = getattr(reward, name)
    if reward.placement == "own_gpus" and reward.judge_engine is None:
        data["hfu"] = reward.hfu
    if reward.input is not None or reward.output:
        data["tokens"] = {"input": reward.input, "output": reward.output}
    if reward.usd is not None:
        data["usd_per_mtok"] = {"input": reward.usd[0], "output": reward.usd[1]}
    if not reward.overlap:
        data["overlap"] = False
    return data


def decisions_of(case: Case) -> Data:
    """Return the fixed plan of a case."""
    data: Data = {
        "trainer_gpus": case.gpus,
        "engines": case.engines,
        "in_flight_per_engine": case.cap,
        "oversampling": case.oversampling,
        "prompts_per_step": case.prompts,
        "group_size": case.group,
        "epochs": case.epochs,
        "queue_batches": case.queue,
    }
    if case.link_gbit is not None:
        data |= {"trainer_pool": "node", "generator_pool": "node", "prefill_pool": "readers"}
    if case.prefill_engines:
        data["prefill_engines"] = case.prefill_engines
    if case.reward.gpus:
        data["reward_gpus"] = case.reward.gpus
    return data


def told(case: Case, directory: Path) -> Prediction:
    """Return what the package predicts for a case (as `allocator.evaluate`, without intervals)."""
    scenario = from_dict(scenario_of(case, directory), directory=directory)
    problem = build_problem(scenario, load_catalogue())
    domain = build_domain(scenario, problem.system)
    plans, _ = fixed_decisions(scenario, problem, domain, decisions_of(case))
    return prediction_of(problem, evaluate(problem, plans), 0)


def assert_agrees(case: Case, directory: Path, update: Any = None) -> Prediction:
    """Compare every number of `by_hand` to 1e-9; shares of a whole to that much of the whole."""
    prediction, expected = told(case, directory), by_hand(case, update)
    found = dict(leaves(plain(prediction)))
    wrong = {
        name: (found[name], value)
        for name, value in expected.items()
        if abs(found[name] - value) > 1e-9 * max(abs(value), 1.0 if name in SHARES else 0.0)
    }
    assert not wrong, wrong
    return prediction


# ------------------------------------------------------------------- by hand: one rollout


def turn_starts(case: Case) -> list[float]:
    """Context at the start of each turn's response."""
    written = case.length / case.turns
    return [case.prompt + turn * (written + case.tool_tokens) for turn in range(case.turns)]


def read_s(case: Case, tokens: float, context: float) -> float:
    """Engine-seconds of one prefill call; nothing to read takes none."""
    return case.p0 + case.p1 * tokens + case.p2 * tokens * context if tokens > 0 else 0.0


@dataclass(frozen=True)
class Reading:
    """What one rollout has read for it: seconds, FLOP, tokens whose cache moves between engines."""

    first_s: float
    later_s: float
    first_flops: float
    later_flops: float
    moved: float


def reading(case: Case) -> Reading:
    """Follow the prompt and every later turn through the cache."""
    apart, model = case.prefill_engines > 0, case.model
    dispatched = case.group * (case.oversampling if case.by == "sample" else 1.0)
    stated = 0.0 if isinstance(case.cache, str) else case.cache
    reads = 1.0 if case.cache == "none" or stated else 1.0 / dispatched
    fresh = case.prompt * (1.0 - stated)
    held = case.kv_during_tools == "hold" and case.cache != "none"
    kept = 1.0 if held or case.cache == "full" else stated
    written = case.length / case.turns
    seconds = flops = 0.0
    moved = case.prompt
    for start in turn_starts(case)[1:]:
        unseen = case.tool_tokens + (written if apart else 0.0)
        tokens = start - kept * (start - unseen)
        pairs = (start**2 - (kept * (start - unseen)) ** 2) / 2.0
        seconds += read_s(case, tokens, start)
        flops += 2.0 * model.matmul * tokens + model.pair * pairs
        moved += case.tool_tokens if held else start
    first_s = reads * read_s(case, fresh, case.prompt)
    first_flops = reads * (1.0 - stated) * model.forward(case.prompt)
    return Reading(first_s, seconds, first_flops, flops, moved if apart else 0.0)


def write_flops(case: Case) -> float:
    """FLOP to decode one response: each token meets the context before it."""
    written = case.length / case.turns
    pairs = sum(written * start + written**2 / 2.0 for start in turn_starts(case))
    return 2.0 * case.model.matmul * case.length + case.model.pair * pairs


def decode_s(case: Case, together: float) -> float:
    """Seconds in which `together` sequences decode from their first to their last token."""
    written, model = case.length / case.turns, case.model
    step = case.alpha + case.expert * (1.0 - math.pow(model.miss, together)) + case.beta * together
    seconds = case.length * step
    for start in turn_starts(case):
        seconds += case.gamma * together * (written * start + written**2 / 2.0)
    return seconds


def mean_context(case: Case) -> float:
    written = case.length / case.turns
    return sum(start + written / 2.0 for start in turn_starts(case)) / case.turns


def mean_square_context(case: Case) -> float:
    written = case.length / case.turns
    square = sum(s * s + s * written + written * written / 3.0 for s in turn_starts(case))
    return square / case.turns


def read_again_s(case: Case) -> float:
    """Engine-seconds to read the context of a sequence met at a random moment of its decoding."""
    c = mean_context(case)
    return read_s(case, c, mean_square_context(case) / c)


def sequences_fit(case: Case) -> float:
    """N c + 1.65 sqrt(N) sd = budget, c the context of a sequence at a random moment."""
    c = mean_context(case)
    sd = math.sqrt(max(mean_square_context(case) - c * c, 0.0))
    per_token = case.model.kv_values * BYTES[case.kv]
    budget = (case.memory_fraction * HBM - case.model.total * BYTES[case.weights]) / per_token
    root = (-1.65 * sd + math.sqrt((1.65 * sd) ** 2 + 4.0 * c * budget)) / (2.0 * c)
    return root * root


def linear(table: tuple[tuple[float, float], ...], at: float) -> float:
    """Value of a table: linear between its entries, constant outside."""
    if at <= table[0][0]:
        return table[0][1]
    for (low, below), (high, above) in pairwise(table):
        if at <= high:
            return below + (above - below) * (at - low) / (high - low)
    return table[-1][1]


@dataclass(frozen=True)
class Scored:
    """Scoring of one rollout: latency, engine time of the policy, FLOP, dollars; rollouts/s."""

    latency_s: float
    engine_s: float
    flops: float
    usd: float
    per_s: float


def scored(case: Case) -> Scored:
    said = case.reward
    every_turn = said.type in ("dense", "proxy_prm")
    calls = said.calls if said.calls is not None else (case.turns if every_turn else 1)
    tokens = case.fixed_tokens + case.length if said.input is None else said.input
    model = case.model if said.placement == "shared_engine" else said.model
    flops = 0.0 if model is None else calls * model.forward(tokens + said.output)
    if said.placement == "cpu":
        work = calls * said.cpu_s
        per_s = math.inf if said.workers is None or work == 0 else said.workers / work
        return Scored(said.latency_s + work, 0.0, 0.0, 0.0, per_s)
    if said.placement == "shared_engine":
        engine_s = calls * read_s(case, tokens, tokens)
        return Scored(said.latency_s, engine_s, flops, 0.0, math.inf)
    if said.placement == "api":
        assert said.usd is not None
        usd = calls * (tokens * said.usd[0] + said.output * said.usd[1]) / 1e6
        per_s = math.inf if said.max_per_s is None else said.max_per_s / calls
        return Scored(said.latency_s, 0.0, flops, usd, per_s)
    if said.judge_engine is not None:
        verdict_s, together = said.judge_engine
        busy_s = calls * verdict_s
        return Scored(said.latency_s + busy_s * together, 0.0, flops, 0.0, said.gpus / busy_s)
    busy_s = flops / (BF16_FLOPS * said.hfu)
    return Scored(said.latency_s + busy_s, 0.0, flops, 0.0, said.gpus / busy_s)


# ------------------------------------------------------------------- by hand: the generator


@dataclass(frozen=True)
class Around:
    """What one rollout meets beside decoding, and what its sandboxes make of it."""

    places: float
    engine_s: float
    pool_s: float
    transfer_s: float
    outside_s: float
    held_s: float
    sandboxes: float
    ended: float  # rollouts done, delivered or given up, per attempt
    lost: float
    given_up: float
    tokens: float  # written by an attempt
    lost_tokens: float  # share of them that lost attempts wrote
    station_per_s: float  # rollouts started a second that others let through, all engines
    reading_per_s: float


def around(case: Case) -> Around:
    read, score = reading(case), scored(case)
    apart, started = case.prefill_engines > 0, case.batch * case.oversampling
    dispatched = case.group * (case.oversampling if case.by == "sample" else 1.0)
    if case.streams:
        places = max(case.cap - (dispatched - 1.0) / 2.0, 1.0)
        if case.cap < 4.0 * dispatched:
            # Groups of equal rollouts end as they began, together: there are whole ones.
            places = case.cap // dispatched * dispatched
    else:
        places = min(case.cap, max(started / case.engines, 1.0))
    boxes = start_s = lost = 0.0
    if case.sandboxes is not None:
        boxes = case.engines * places * case.sandboxes.per_rollout
        start_s = linear(case.sandboxes.start_s, boxes)
        lost = linear(case.sandboxes.lost, boxes)
    own_s = read.first_s + read.later_s
    pool_s = own_s if apart else 0.0
    moved = read.moved * case.model.kv_values * BYTES[case.kv]
    link = math.inf if case.link_gbit is None else case.link_gbit * 1e9 / 8.0
    one_engine = min(NETWORK, link)
    transfer_s = moved / one_engine
    held = case.kv_during_tools == "hold" and case.cache != "none"
    held_s = (case.turns - 1) * case.tool_s if held else 0.0
    if apart and held:
        # The cache of the prompt arrives before the rollout holds anything here.
        held_s += read.later_s + transfer_s * (1.0 - case.prompt / read.moved)
    # Only what is kept is scored, by the policy's engines too.
    engine_s = (0.0 if apart else own_s) + score.engine_s / case.started_per_kept
    reading_per_s = math.inf
    if apart and own_s > 0:
        link_per_s = min(link, one_engine * case.prefill_engines) / moved
        reading_per_s = min(case.prefill_engines / own_s, link_per_s)
    # After so many retries a rollout is given up, and its place in the batch stays empty.
    given_up = lost ** (RETRIES + 1)
    ended = (1.0 - lost) / (1.0 - given_up)
    kept_per_s = score.per_s * case.started_per_kept / ended
    return Around(
        places=places,
        engine_s=engine_s,
        pool_s=pool_s,
        transfer_s=transfer_s,
        outside_s=case.turns * case.tool_s + start_s + pool_s + transfer_s,
        held_s=held_s,
        sandboxes=boxes,
        ended=ended,
        lost=lost,
        given_up=given_up,
        tokens=case.length * (1.0 - lost / 2.0),
        lost_tokens=(lost / 2.0) / (1.0 - lost / 2.0),
        station_per_s=min(reading_per_s, kept_per_s),
        reading_per_s=reading_per_s,
    )


@dataclass(frozen=True)
class Loop:
    """One engine as a stream: decoding, rollouts/s, residence fixed + token x length."""

    decoding: float
    per_s: float
    token_s: float
    fixed_s: float
    resident: float


def closed_loop(case: Case, near: Around) -> Loop:
    """Rollouts in flight keep N = b + X (environment + prefill), below memory and stations."""
    c, fit = mean_context(case), sequences_fit(case)
    written = case.length / case.turns
    waits = [start + written for start in turn_starts(case)[:-1]]
    in_tool = sum(waits) / len(waits) if waits else c
    outside_s = near.outside_s + scored(case).latency_s

    def rate(b: float) -> float:
        return b / (near.tokens * step_s(case, b) + b * near.engine_s)

    def keeps(b: float) -> bool:
        return (
            b + rate(b) * (outside_s + near.engine_s) <= near.places
            and b + rate(b) * near.held_s * in_tool / c <= fit
            and rate(b) <= near.station_per_s / case.engines
        )

    low, high = 0.0, min(near.places, fit)
    if keeps(high):
        low = high
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if keeps(middle) else (low, middle)
    token_s = step_s(case, low) + low * near.engine_s / near.tokens
    fixed_s = near.places / rate(low) - near.tokens * token_s
    resident = low + rate(low) * near.held_s * in_tool / c
    return Loop(low, rate(low), token_s, fixed_s, resident)


def waves_s(case: Case, samples: float, slots: float) -> float:
    """Decode seconds of `samples` on `slots` of one engine: full waves, then what remains."""
    seconds, left = 0.0, samples
    while left > 1e-9:
        together = min(left, slots)
        seconds += decode_s(case, together)
        left -= together
    return seconds


def refill_rounds(groups: int, signal: float) -> float:
    """Expected batches of groups until that many carry signal: sum of P(not yet filled)."""
    rounds, k, short = 1.0, 1, 1.0
    while short > 1e-13:
        n = k * groups
        short = sum(math.comb(n, i) * signal**i * (1.0 - signal) ** (n - i) for i in range(groups))
        rounds, k = rounds + short, k + 1
    return rounds


def signal_of(case: Case) -> float:
    """Chance that a group has an advantage: w (1 - E[p^S] - E[(1 - p)^S])."""
    if case.solve is None:
        return 1.0
    always, never, a, b = case.solve
    both = [1.0, 1.0]
    for i in range(case.group):
        both = [both[0] * (a + i) / (a + b + i), both[1] * (b + i) / (a + b + i)]
    return (1.0 - always - never) * (1.0 - sum(both))


# ------------------------------------------------------------------- by hand: the trainer


@dataclass(frozen=True)
class Trained:
    seconds: float
    flops: float
    log_prob_flops: float
    memory: float


def trained(case: Case) -> Trained:
    """One batch: passes over every token, the fullest rank, fixed parts, memory of a GPU."""
    signal = signal_of(case)
    samples = case.batch * (signal if case.sampling == "drop" else 1.0)
    tokens, model = case.fixed_tokens + case.length, case.model
    adapters = 0.0 if case.lora_rank is None else model.adapters(case.lora_rank)
    update = 3.0 if case.lora_rank is None else 2.0 + 3.0 * adapters / model.active
    update += 1.0 if case.recompute else 0.0
    once = float(case.old_log_probs) + float(case.reference)
    flops = samples * model.forward(tokens) * (update * case.epochs + once)
    if case.critic is not None:
        again = 1.0 if case.recompute else 0.0
        flops += samples * case.critic.forward(tokens) * ((3.0 + again) * case.epochs + 1.0)
    ranks = case.gpus // case.width
    each = round(samples / case.steps)
    uneven = math.ceil(each / ranks) * ranks / each
    peak = BF16_FLOPS if case.precision == "bf16" else FP8_FLOPS
    micro = max(samples / ranks, case.steps)
    fixed = case.epochs * (case.fixed_s * case.steps + case.microbatch_s * micro)
    # 2 bytes of weights, 4 of gradients and 12 of optimiser; adapters alone are trained in LoRA.
    states = 18.0 * model.total if case.lora_rank is None else 2.0 * model.total + 18.0 * adapters
    states += 2.0 * model.total if case.reference and case.lora_rank is None else 0.0
    kept = 2.0 * model.layers + 34.0 if case.recompute else 34.0 * model.layers
    activations = tokens * (model.hidden * kept + 6.0 * model.vocab)
    if case.critic is not None:
        states += 18.0 * case.critic.total
    return Trained(
        seconds=flops / (case.gpus * peak * case.hfu) * uneven + fixed,
        flops=flops,
        log_prob_flops=samples * model.forward(tokens) * float(case.old_log_probs),
        memory=states / case.gpus + activations / case.width,
    )


def step_cv(case: Case) -> float:
    """Spread of a step: samples are equal, but groups without a signal may be left out."""
    groups = 0.0
    if case.sampling == "drop":
        signal = signal_of(case)
        groups = (1.0 - signal) / (signal * case.prompts)
    work = 1.0 - case.epochs * case.fixed_s * case.steps / trained(case).seconds
    return math.sqrt(case.step_cv**2 + (1.0 + case.step_cv**2) * work**2 * groups)


def sync_s(case: Case) -> float:
    sent = case.model.total * BYTES[case.weights]
    if case.lora_rank is not None:
        sent = 2.0 * case.model.adapters(case.lora_rank)
    return sent / (case.gb_per_s * 1e9) + case.sync_fixed_s


def switch_s(case: Case) -> float:
    """Engine weights leave, trainer states (spread over the pool) come back, over the host link."""
    leaving = case.model.total * BYTES[case.weights] / HOST
    states = 18.0 + (2.0 if case.reference else 0.0)
    coming = case.model.total * states / case.pool / HOST
    return (leaving if case.offload_s is None else case.offload_s) + (
        coming if case.onload_s is None else case.onload_s
    )


# ------------------------------------------------------------------- by hand: the step


@dataclass(frozen=True)
class Step:
    """What both sides do together; rates of rollouts started and of samples trained."""

    step_s: float
    generation_s: float
    reward_wait_s: float
    started_per_s: float
    per_s: float
    offered_per_s: float
    taken_per_s: float
    staleness: float
    busy: float  # share of time in which the generator generates
    begun: float = 1.0  # share of rollouts started that get a place before the batch ends
    mixed: float = 0.0
    dropped: float = 0.0
    aborted: float = 0.0


def batch_step(case: Case) -> Step:
    """A batch as a whole: waves, then scoring, then the trainer - or beside it."""
    near, score, batch = around(case), scored(case), float(case.batch)
    rounds = 1.0
    if case.sampling == "refill":
        rounds = refill_rounds(case.prompts, signal_of(case))
    met = mixed = 0.0
    begun = 1.0
    if case.partial and case.oversampling > 1.0:
        again = resumed(case, near)
        generation_s, met, mixed = again.seconds, again.met, again.mixed
    else:
        attempts = batch * case.oversampling / near.ended
        slots = min(case.cap, sequences_fit(case))
        each = attempts / case.engines
        # Wave by wave until there are enough; all are read, in time.
        waves = math.ceil(each / case.oversampling / slots - 1e-9)
        begun = min(waves * slots / each, 1.0)
        written_s = each * near.engine_s + waves_s(case, each * begun, slots) + near.outside_s
        written_s += started_again_s(case, near)
        generation_s = max(written_s, attempts / near.reading_per_s)
    generation_s *= rounds
    work_s = batch * rounds / score.per_s
    late_s = max(work_s - generation_s, 0.0) if case.reward.overlap else work_s
    whole_s = generation_s + late_s + score.latency_s
    train_s, sync = trained(case).seconds, sync_s(case) / case.sync_every
    if case.mode == "one_step_off":
        # Of equal lengths the generation is certain; the step is not.
        spread = step_cv(case) * train_s
        z = (whole_s - train_s) / spread
        normal = NormalDist()
        stepped_s = train_s + (whole_s - train_s) * normal.cdf(z) + spread * normal.pdf(z) + sync
    else:
        stepped_s = whole_s + train_s + sync
        stepped_s += switch_s(case) if case.mode == "colocated_sync" else 0.0
    # What was begun `met` batches before its own is so much older.
    lag = met + (1.0 if case.mode == "one_step_off" else 0.0)
    stale = case.steps * (lag + (case.sync_every - 1) / 2.0) + (case.steps - 1) / 2.0
    return Step(
        step_s=stepped_s,
        generation_s=whole_s,
        reward_wait_s=late_s + score.latency_s,
        started_per_s=batch * case.started_per_kept * rounds / near.ended / stepped_s,
        per_s=batch / stepped_s,
        offered_per_s=batch / whole_s,
        taken_per_s=batch / (train_s + sync),
        staleness=stale,
        busy=whole_s / stepped_s,
        begun=begun,
        mixed=mixed,
    )


def step_s(case: Case, b: float) -> float:
    """Seconds of a decode step of b sequences met at random moments."""
    touched = 1.0 - math.pow(case.model.miss, b)
    return case.alpha + case.expert * touched + (case.beta + case.gamma * mean_context(case)) * b


def started_again_s(case: Case, near: Around) -> float:
    """What the last of a batch's lost rollouts, three times lost again at most, add to its end.

    Of n rollouts that are lost at random moments of equal lives the last one is n/(n + 1) through.
    """
    lost, more_s = near.lost, 0.0
    few = max(case.batch * lost / case.engines, 1.0)
    for times in range(1, RETRIES + 1):
        number = case.batch * lost**times
        any_lost = 1.0 - (1.0 - lost**times) ** case.batch
        write_s = case.length * number / (number + 1.0) * step_s(case, few)
        more_s += any_lost * (write_s + near.outside_s + near.engine_s)
    return more_s


@dataclass(frozen=True)
class Again:
    """A batch that resumes: seconds, ends that a rollout meets, share of those that meet one."""

    seconds: float
    met: float
    mixed: float


def resumed(case: Case, near: Around) -> Again:
    """k of m on an engine end while s of those with a place decode; what was left is read again.

    s N/L end a step while m - N wait. Then d go until m - k are left, all those of one age at once:
    of b there are floor(b/d) ages, 1/floor(b/d) of a life apart.
    """
    k, slots = case.batch / near.ended / case.engines, min(case.cap, sequences_fit(case))
    again = (case.oversampling - 1.0) * case.batch / case.engines
    write_s = near.tokens * step_s(case, closed_loop(case, near).decoding)
    s = write_s / (write_s + near.outside_s)
    life = near.tokens / s
    waiting = min(max(k + again - slots, 0.0), k)
    full, begin = life * waiting / slots, min(k + again, slots)
    steps, ages = full, 0
    if again < begin:
        ages = math.floor(begin / (begin - again) + 1e-9)
        steps += life / ages
    steps = min(steps, max(case.length / s, k * near.tokens / slots))
    touched = min(full, steps) * (1.0 - case.model.miss ** (s * slots))
    few = s * ages * max(begin - again, 0.0)
    touched += max(steps - full, 0.0) * (1.0 - case.model.miss**few)
    seconds = case.alpha * steps + case.expert * touched
    seconds += (case.beta + case.gamma * mean_context(case)) * k * near.tokens
    seconds += k * near.engine_s + min(again, slots) * read_again_s(case)
    # Those that wait start at any moment of the first part of a batch.
    lives, part = life / steps, full / steps
    late = (min(lives, 1.0) - min(lives, 1.0 - part)) / part if part else 0.0
    early = 1.0 if lives > 1.0 + 1e-9 else 0.0
    mixed = (late * waiting + early * (k - waiting)) / k
    whole_s = max(seconds, k * case.engines / near.reading_per_s)
    return Again(whole_s, min(again, slots) / k, mixed)


class Even(LengthTable):
    """Equal lengths: every group ends one length after its start; slots keep step to 0.15."""

    def V(self, w: float) -> float:  # noqa: N802
        inside = float(np.interp(w, self.nodes, self.V_nodes))
        return inside + max(0.0, w - float(self.nodes[-1])) * 0.15**2 / self.S


class Line(Even):
    """The kernel's place: with J(x) = x, P(n) would be M + g (n + 1/2 - mu)."""

    def J(self, x: float) -> float:  # noqa: N802
        return x * x / 2.0


class Square(Even):
    """The kernel's width: with J(x) = x^2, P(n) grows by (g h)^2/3 beside the square."""

    def J(self, x: float) -> float:  # noqa: N802
        return x**3 / 6.0


@cache
def even_table(kind: type[Even], group: int) -> Even:
    """Count of groups out of slots with a jitter of 0.15: a damped comb of period one length."""
    nodes, points = 4096, 64 * 4096
    w = 2.0 * np.pi * np.arange(points // 2 + 1) / 64.0
    damped = np.exp(-0.5 * 0.15**2 * w**2)
    spectrum: Array = np.full(w.shape, 0.15**2 / group)
    turn = np.exp(-1j * w[1:])
    spectrum[1:] = (1.0 - damped[1:] ** 2) / (group * np.abs(1.0 - damped[1:] * turn) ** 2)
    covariance = np.fft.irfft(spectrum, points)[: nodes + 1]
    slope = covariance[0] + 2.0 * np.append(0.0, np.cumsum(covariance[1:]))
    variance = np.append(0.0, np.cumsum(slope[:-1]) / nodes)
    at = np.arange(nodes + 1.0) / nodes
    return kind(1.0, 0.0, 1.0, 1e-3, 0.0, group, at, np.zeros(nodes + 1), slope, variance)


def stream_step(case: Case, update: Any = None) -> Step:
    """Groups come one by one; `update` says what a change of weights leaves of the rate."""
    near, batch = around(case), float(case.batch)
    loop, signal = closed_loop(case, near), signal_of(case)
    kept = signal if case.sampling == "refill" else 1.0
    sync, train_s = sync_s(case), trained(case).seconds
    taken = batch / (train_s + (sync / case.sync_every if case.blocks else 0.0))
    free = case.engines * loop.per_s * near.ended * kept / case.oversampling
    stay_s = loop.fixed_s + loop.token_s * case.length
    pause_s = sync if case.pauses else 0.0
    offered, aborted = paused(free, taken, pause_s, batch * case.sync_every), 0.0
    if update is not None:
        offered, aborted = update(case, loop, stay_s, free, taken, pause_s)
    # As many are in flight as without pauses: each stays longer.
    if case.weight_update in ("in_flight", "retract") or case.partial:
        unpaused = offered / free
    else:
        unpaused = 1.0 - pause_s * min(offered, taken) / (batch * case.sync_every)
    stay_s, token_s = stay_s / unpaused, loop.token_s / unpaused
    given: dict[str, Any] = {
        "u": offered / taken,
        "groups": case.prompts,
        "queue": case.queue,
        "train": batch / taken / (token_s * case.length),
        "constant": loop.fixed_s / (loop.token_s * case.length),
        "kept": kept / (case.oversampling if case.by == "group" else 1.0),
        "step_cv": step_cv(case),
        "late": 0.0 if case.pauses else sync / (token_s * case.length),
    }
    wait, dropped, _ = queue_and_staleness(even_table(Even, case.group), **given)
    line = queue_and_staleness(even_table(Line, case.group), **given)[2]
    square = queue_and_staleness(even_table(Square, case.group), **given)[2]
    g = line(1) - line(0)
    mu = (1.0 - line(0)) / g + 0.5
    half = math.sqrt(6.0 * (square(0) - line(0) ** 2 / 2.0)) / g
    # A sync every k batches makes what is in flight (k - 1)/2 batches older, (k^2 - 1)/12 wider.
    mu += (case.sync_every - 1) / 2.0
    half = math.sqrt(half**2 + (case.sync_every**2 - 1) / 4.0)
    batches = mu
    for n in (1, 2):
        turn = 2.0 * math.pi * n
        batches += math.sin(turn * half) * math.sin(turn * (mu - 0.5)) / (turn * n * math.pi * half)
    rate = taken * (1.0 - wait)
    return Step(
        step_s=batch / rate,
        generation_s=stay_s,
        reward_wait_s=0.0,
        # What restarts lose is written all the same.
        started_per_s=case.engines * loop.per_s * offered / free / (1.0 - aborted),
        per_s=rate,
        offered_per_s=offered,
        taken_per_s=taken,
        staleness=case.steps * batches + (case.steps - 1) / 2.0,
        busy=1.0,
        dropped=dropped,
        aborted=aborted,
    )


def paused(free: float, taken: float, pause_s: float, per_sync: float) -> float:
    """Rate of a generator that stands still each time so many samples are trained."""
    starved = free / (1.0 + free * pause_s / per_sync)
    return starved if starved < taken else free * (1.0 - taken * pause_s / per_sync)


# ------------------------------------------------------------------- by hand: the accounts


def by_hand(case: Case, update: Any = None) -> dict[str, float]:
    """Return the predicted numbers of a case by the names of `told`."""
    step = stream_step(case, update) if case.streams else batch_step(case)
    near, read, score, train = around(case), reading(case), scored(case), trained(case)
    signal, tokens = signal_of(case), case.fixed_tokens + case.length
    refill = case.sampling == "refill"
    seen_per_s = step.per_s * (signal if case.sampling == "drop" else 1.0)
    trained_per_s = seen_per_s * (1.0 - near.given_up)
    useful_per_s = step.per_s * (1.0 - near.given_up) * (1.0 if refill else signal)
    useful_per_s *= 1.0 - step.mixed if case.exclude_mixed else 1.0
    counted = tokens if case.basis == "sequence" else case.length
    delivered = near.ended * (1.0 - near.given_up)
    scores_per_s = step.started_per_s * (1.0 - step.aborted) * delivered / case.started_per_kept
    # A lost attempt has read its prompt and, as it has written, a part of all that follows.
    each = read.first_flops + near.tokens / case.length * (read.later_flops + write_flops(case))
    search = each * step.begun * step.started_per_s * step.step_s
    reward = score.flops * scores_per_s * step.step_s
    gpus = used_gpus(case)
    paid = gpus if case.on_demand else case.pool
    if case.link_gbit is not None and not case.on_demand:
        paid += case.prefill_engines
    boxes_usd = 0.0
    if case.sandboxes is not None:
        boxes_usd = step.busy * near.sandboxes * case.sandboxes.usd_per_hour
    usd = paid * case.price + score.usd * scores_per_s * 3600.0 + boxes_usd
    stretch, shares = stretched(case, step, near, gpus)
    peak = BF16_FLOPS if case.precision == "bf16" else FP8_FLOPS
    # What the trainer makes of its own FLOPs: 6 N of every token of every pass.
    model_flops = 6.0 * case.model.active * tokens * case.epochs
    model_flops *= case.batch * seen_per_s / step.per_s
    hours = case.target_steps * step.step_s * stretch / 3600.0
    return {
        "step_s": step.step_s,
        "train_s": train.seconds,
        "generation_s": step.generation_s,
        "weight_sync_s": sync_s(case),
        "generated_samples_per_s": step.started_per_s,
        "accepted_samples_per_s": step.offered_per_s,
        "trained_samples_per_s": trained_per_s,
        "trainer_samples_per_s": step.taken_per_s,
        "trainer_wait_fraction": 1.0 - step.per_s / step.taken_per_s,
        "generator_wait_fraction": 1.0 - step.busy,
        "load": step.offered_per_s / step.taken_per_s,
        "staleness.mean": step.staleness,
        "staleness.environment_state_fraction": step.mixed,
        "mfu_busy": model_flops / (case.gpus * peak * train.seconds),
        "mfu_wall": model_flops / (case.gpus * peak * step.step_s),
        "flops.search": search,
        "flops.learning": train.flops,
        "flops.reward": reward,
        "update_fraction": train.flops / (train.flops + search + reward),
        "update_fraction_without_log_probs": 1.0
        - (search + reward) / (train.flops - train.log_prob_flops + search + reward),
        "trained_tokens_per_s": trained_per_s * counted,
        "useful_tokens_per_s": useful_per_s * counted,
        "usd_per_hour": usd,
        "usd_per_mtok": usd * stretch / (trained_per_s * counted * 3600.0) * 1e6,
        "usd_per_useful_mtok": usd * stretch / (useful_per_s * counted * 3600.0) * 1e6,
        "memory.trainer_gib": train.memory / 2.0**30,
        "environment.reward_s": score.latency_s,
        "environment.reward_wait_s": step.reward_wait_s,
        "environment.reward_usd_per_hour": score.usd * scores_per_s * 3600.0,
        "environment.sandbox_usd_per_hour": boxes_usd,
        "environment.sandboxes": near.sandboxes,
        "environment.failed_rollouts_fraction": near.lost,
        "environment.kv_transfer_s": near.transfer_s,
        "run.hours": hours,
        "run.gpu_hours": hours * paid,
        "run.usd": hours * usd,
        **shares,
        **fates(case, step, near),
    }


def used_gpus(case: Case) -> int:
    both = case.gpus + case.engines
    if case.mode == "colocated_sync":
        both = max(case.gpus, case.engines)
    return both + case.prefill_engines + case.reward.gpus


def fates(case: Case, step: Step, near: Around) -> dict[str, float]:
    """Follow 1 token through losses, cancelling, signal, the queue and the trainer.

    Equal lengths: of o rollouts started one is kept, and all that begin are written to the end.
    """
    signal, refill = signal_of(case), case.sampling == "refill"
    alive = (1.0 - near.lost_tokens) * (1.0 - step.aborted)
    kept = alive / (case.started_per_kept * step.begun)
    queued = kept * (signal if refill else 1.0)
    surplus = 0.0
    if refill and not case.streams:
        rounds = refill_rounds(case.prompts, signal)
        surplus = queued - kept / rounds  # of all rounds one batch is trained
    reached = (queued - surplus) * (1.0 - step.dropped)
    carrying = reached * (1.0 if refill else signal)
    mixed = carrying * step.mixed if case.exclude_mixed else 0.0
    return {
        "token_fate.failed": 1.0 - alive,
        "token_fate.oversampled": alive - kept + surplus,
        "token_fate.no_signal": kept - queued + reached - carrying,
        "token_fate.dropped_overflow": (queued - surplus) * step.dropped,
        "token_fate.mixed_environment": mixed,
        "token_fate.useful": carrying - mixed,
        "token_fate.rejected_stale": 0.0,
    }


def stretched(case: Case, step: Step, near: Around, gpus: int) -> tuple[float, dict[str, float]]:
    """Run time over the time of its steps, and where the rest goes; failures are Poisson."""
    hold = write = delay = 0.0
    if case.evaluation is not None:
        every, samples = case.evaluation
        loop = closed_loop(case, near)
        pause_s = samples * case.length / (case.engines * loop.per_s * near.tokens)
        batches = case.queue - 1 if case.streams and step.offered_per_s > step.taken_per_s else 0
        spare = 1.0 - step.per_s / max(step.offered_per_s, step.per_s)
        hold = max(pause_s - step.step_s * min(batches, spare * every), 0.0) / every
    interval = 1
    if case.checkpoint is not None:
        interval, seconds, blocks = case.checkpoint
        write, delay = (seconds / interval, 0.0) if blocks else (0.0, seconds)
    needed = step.step_s + hold + write
    failing = restart_s = 0.0
    if case.failures is not None:
        failing, restart_s = gpus / case.failures[0] / 3600.0, case.failures[1]
    between = failing * needed * interval
    worked = needed
    if between > 0:
        worked = needed * math.expm1(between) / between * math.exp(failing * delay)
    restarting = worked * failing * restart_s
    whole = worked + restarting
    return whole / step.step_s, {
        "availability.productive": step.step_s / whole,
        "availability.evaluation": hold / whole,
        "availability.checkpoint": write / whole,
        "availability.restart": restarting / whole,
        "availability.redone": (worked - needed) / whole,
    }


def with_reward(case: Case, **reward: Any) -> Case:
    """Return the case with another reward."""
    return replace(case, reward=Reward(**reward))
