"""Scoring: what one rollout's reward takes in seconds, FLOPs and dollars, and how fast it goes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from allocator.evaluator.columns import Distinct
from allocator.evaluator.rollouts import RolloutState
from allocator.physics.prefill import prefill_s
from allocator.physics.reward import (
    api_usd,
    judge_flops,
    judge_s,
    reward_rate_per_s,
    rule_rate_per_s,
    scoring_flops,
    scoring_s,
)
from allocator.problem.decisions import DecisionArrays
from allocator.problem.system import System


@dataclass(frozen=True, slots=True)
class RewardState:
    """How scoring goes; arrays, one entry a distinct configuration.

    Attributes
    ----------
    scored_per_s : rollouts that can be scored per second; inf where nothing limits it.
    latency_s : seconds from the end of a rollout to its score while no other waits.
    engine_s : seconds of a decode engine per score, where the policy's engines do it.
    flops, usd : of one score.
    """

    scored_per_s: Any
    latency_s: Any
    engine_s: Any
    flops: Any
    usd: Any

    def spread(self, rows: Distinct) -> RewardState:
        """Return the state of every plan from that of the distinct rows."""
        return RewardState(*(rows.spread(getattr(self, f.name)) for f in fields(self)))


def reward_state(
    system: System, plans: DecisionArrays, rollouts: RolloutState, row: Any
) -> RewardState:
    """Resolve scoring by where it happens: processors, engines of its own, the policy's, an API.

    A score of a judge or a reward model reads the whole sequence of a kept rollout unless the
    scenario states what it reads.
    """
    law, work = system.reward, system.workload
    size = len(plans)
    response = rollouts.cut.kept_mean_tokens[row]
    fixed = work.fixed_tokens
    tokens = fixed + response
    second = fixed * fixed + 2.0 * fixed * response + rollouts.cut.kept_second_moment_tokens2[row]
    if law.input_tokens is not None:
        tokens = np.full(size, law.input_tokens)
        second = tokens * tokens
    flops = np.zeros(size)
    if law.forward is not None and law.output_tokens > 0.0:
        flops = judge_flops(law.forward, law.calls, tokens, second, law.output_tokens)
    elif law.forward is not None:
        flops = scoring_flops(law.forward, law.calls, tokens, second)
    rule_s = law.calls * law.cpu_s
    latency = np.full(size, law.latency_s + rule_s)
    rate = np.full(size, rule_rate_per_s(law.workers, law.cpu_s, law.calls))
    engine, usd = np.zeros(size), np.zeros(size)
    if law.placement == "shared_engine":
        reads = system.engines.prefill.take(plans.generator_kind)
        engine = law.calls * prefill_s(reads, tokens, second / tokens)
    elif law.placement == "own_gpus":
        served = _service_s(system, plans, tokens, second, flops)
        latency = latency + served.latency_s
        rate = np.minimum(rate, reward_rate_per_s(plans.reward_engines, served.engine_s))
    elif law.placement == "api":
        rate = np.minimum(rate, law.max_calls_per_s / law.calls)
        usd = np.full(
            size,
            api_usd(
                law.calls, tokens, law.output_tokens, law.usd_per_mtok_in, law.usd_per_mtok_out
            ),
        )
    return RewardState(scored_per_s=rate, latency_s=latency, engine_s=engine, flops=flops, usd=usd)


@dataclass(frozen=True, slots=True)
class _Served:
    """Seconds of one reward engine per rollout, and seconds a rollout waits for its score."""

    engine_s: Any
    latency_s: Any


def _service_s(
    system: System, plans: DecisionArrays, tokens: Any, second: Any, flops: Any
) -> _Served:
    law, kinds = system.reward, system.reward_kinds
    assert kinds is not None
    kind = np.maximum(plans.reward_kind, 0)
    if kinds.decode is None or kinds.prefill is None:
        seconds = scoring_s(
            flops, kinds.gpus_per_engine[kind], kinds.peak_flops_per_s[kind], kinds.hfu
        )
        return _Served(seconds, seconds)
    seconds = judge_s(
        kinds.decode.take(kind),
        kinds.prefill.take(kind),
        law.calls,
        tokens,
        second,
        law.output_tokens,
        kinds.judge_in_flight,
    )
    # A judge writes many verdicts at once: each takes as much longer than its share of the time.
    return _Served(seconds, seconds * kinds.judge_in_flight)
