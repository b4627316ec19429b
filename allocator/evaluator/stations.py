"""Around the engines: prefill engines, rewards and the start of sandboxes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from allocator.evaluator.columns import Distinct
from allocator.evaluator.rewards import RewardState, reward_state
from allocator.evaluator.rollouts import RolloutState
from allocator.physics.disaggregation import (
    kv_transfer_s,
    link_rate_per_s,
    prefill_pool_rate_per_s,
)
from allocator.physics.prefill import prefill_s, prompt_reads_per_rollout
from allocator.physics.sandbox import sandboxes_in_use
from allocator.physics.turns import (
    context_kept_share,
    later_prefill_s,
    later_reads,
    mean_turn_context_tokens,
)
from allocator.problem.decisions import DecisionArrays
from allocator.problem.system import System


@dataclass(frozen=True, slots=True)
class Stations:
    """What surrounds the decode engines; arrays, one entry a distinct configuration.

    Attributes
    ----------
    context_tokens : mean context of a decoding sequence.
    prompt_reads : times the initial prompt is prefilled per rollout, after the cache.
    later_tokens, later_pairs : tokens and pairs that later turns prefill.
    engine_prefill_s : seconds of a decode engine per rollout that are not decoding.
    pool_prefill_s : seconds of a prefill engine per rollout.
    transfer_s : seconds that a rollout's KV travels between engines.
    held_s : seconds in which a rollout keeps its cache in memory without decoding.
    environment_s : seconds per rollout outside the engine.
    start_s : of them, for sandboxes to start.
    read_per_s : rollouts/s that prefill engines and the link behind them let through; inf where
        the decode engines prefill.
    link_bound : whether the link is the narrower of the two.
    sandboxes : in use at the cap of rollouts in flight.
    reward : how scoring goes.
    """

    context_tokens: Any
    prompt_reads: Any
    later_tokens: Any
    later_pairs: Any
    engine_prefill_s: Any
    pool_prefill_s: Any
    transfer_s: Any
    held_s: Any
    environment_s: Any
    start_s: Any
    read_per_s: Any
    link_bound: Any
    sandboxes: Any
    reward: RewardState

    def spread(self, rows: Distinct) -> Stations:
        """Return the state of every plan from that of the distinct rows."""
        return Stations(
            **{
                f.name: rows.spread(np.broadcast_to(getattr(self, f.name), rows.first.shape))
                for f in fields(self)
                if f.name != "reward"
            },
            reward=self.reward.spread(rows),
        )


def stations(
    system: System, plans: DecisionArrays, rollouts: RolloutState, row: Any, places: Any
) -> Stations:
    """Resolve what a rollout meets outside decoding, for distinct configurations.

    Parameters
    ----------
    row : row of `rollouts` of each plan.
    places : time average of rollouts in flight on one engine.
    """
    work, kinds, cut = system.workload, system.engines, rollouts.cut
    mean = cut.dispatched_mean_tokens[row]
    second = cut.dispatched_second_moment_tokens2[row]
    engines = plans.engines.astype(float)
    apart = plans.prefill_kind >= 0
    readers = np.where(apart, plans.prefill_engines, plans.engines).astype(float)
    reads = prompt_reads_per_rollout(
        work.prefix_cache,
        rollouts.started_per_group[row],
        readers,
        whole_groups=system.algorithm.whole_groups,
    )
    fresh = work.prompt_tokens * (1.0 - work.cached_prompt_share)
    later = later_reads(
        work.turns,
        work.prompt_tokens,
        work.tool_tokens,
        mean,
        second,
        kept_share=context_kept_share(
            work.prefix_cache, "hold" if work.kv_held else "evict", work.cached_prompt_share
        ),
        separate_prefill=apart,
    )
    reader = np.where(apart, plans.prefill_kind, plans.generator_kind)
    law = kinds.prefill.take(reader)
    later_s = later_prefill_s(law, later)
    own = reads * prefill_s(law, fresh, work.prompt_tokens) + later_s
    pool_s = np.where(apart, own, 0.0)
    reward = reward_state(system, plans, rollouts, row)
    used, start = np.zeros(len(plans)), np.zeros(len(plans))
    if system.sandbox is not None:
        used = sandboxes_in_use(engines * places, system.sandbox.per_rollout)
        start = system.sandbox.start_s.at(used)
    # With its cache held a decode engine needs only what the tools added; else the whole context
    # of every turn. Response tokens are written there.
    added = work.fixed_tokens - work.prompt_tokens
    if np.any(apart) and not work.kv_held:
        whole = later_reads(
            work.turns, work.prompt_tokens, work.tool_tokens, mean, second, kept_share=0.0
        )
        added = whole.tokens
    moved = kinds.kv_token_bytes[reader] * np.where(apart, work.prompt_tokens + added, 0.0)
    again = added / np.maximum(work.prompt_tokens + added, 1.0)
    links = (plans.prefill_kind, plans.generator_kind)
    bandwidth = np.where(apart, system.kv_link_bytes_per_s[links], np.inf)
    total = np.where(apart, system.kv_link_total_bytes_per_s[links], np.inf)
    transfer = kv_transfer_s(moved, bandwidth)
    pool_rate = prefill_pool_rate_per_s(np.maximum(plans.prefill_engines, 1), pool_s)
    link_rate = link_rate_per_s(moved, np.minimum(total, bandwidth * np.maximum(readers, 1.0)))
    environment = work.environment_s + reward.latency_s + start + pool_s + transfer
    return Stations(
        context_tokens=mean_turn_context_tokens(
            work.turns, work.prompt_tokens, work.tool_tokens, mean, second
        ),
        prompt_reads=reads * (1.0 - work.cached_prompt_share),
        later_tokens=later.tokens,
        later_pairs=later.pairs_tokens2,
        # What is cancelled is not scored.
        engine_prefill_s=np.where(apart, 0.0, own)
        + reward.engine_s / rollouts.started_per_kept[row],
        pool_prefill_s=pool_s,
        transfer_s=transfer,
        # From the first turn's transfer on the decode engine holds the cache.
        held_s=work.held_s + np.where(apart & work.kv_held, later_s + transfer * again, 0.0),
        environment_s=environment * np.ones(len(plans)),
        start_s=start,
        read_per_s=np.where(apart, np.minimum(pool_rate, link_rate), np.inf),
        link_bound=apart & (link_rate < pool_rate),
        sandboxes=used,
        reward=reward,
    )
