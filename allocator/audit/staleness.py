"""Rules about staleness: limits that cannot bind, deep queues, rollouts that are never fresh."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from allocator.audit.finding import Finding, Planned, counted, said

if TYPE_CHECKING:
    from allocator.scenario.schema import Scenario

#: A limit so many times beyond what the plan can reach does nothing, whatever the error of the
#: prediction (the staleness law is within a fifth of six measured runs).
FAR = 2.0
#: Batches waiting that still smooth an uneven generator; more only age (miles PR #2030 went from
#: 125 to 2).
DEEPEST_QUEUE = 4
SOUND_QUEUE = 2
#: Shares of rollouts that are never fresh enough: from which the plan is refused, and named.
REFUSED_SHARE = 0.10
NAMED_SHARE = 0.01


def limit_out_of_reach(planned: Planned) -> Iterator[Finding]:
    """A staleness limit that no queue and no rollout of this plan can reach.

    In flight C M a / B = residence/step batches pass while a group is generated; the queue can
    hold `queue_batches` more. The least of limit and that sum is the bound that acts.
    """
    stale = planned.scenario.staleness
    if stale.limit is None or planned.decisions.mode != "async":
        return
    limit, prediction = stale.limit.value, planned.prediction
    versions = planned.versions_per_batch
    flight = versions * prediction.generation_s / prediction.step_s
    queue = float(versions * planned.decisions.queue_batches)
    now = _metric(planned)
    # Pacing counts the queue itself, so a queue does not come on top of it.
    filling = 0.0 if stale.enforce == "admission" else flight + queue
    reach = max(now, now + filling - prediction.staleness.mean)
    if limit <= FAR * reach:
        return
    total = planned.decisions.generator.in_flight
    needed = math.ceil(total * (1.0 + (limit - reach) / flight))
    tail = "" if stale.statistic == "mean" else ", the rest from long rollouts"
    binding = "the rollouts in flight" if flight >= queue else "the queue"
    yield Finding(
        "staleness_limit_idle",
        "warning",
        f"the limit of {counted(limit, 'version')} cannot bind: staleness ({stale.statistic}) "
        f"reaches about {said(reach)} at most, {said(flight)} from {total:,} rollouts in flight, "
        f"{said(queue)} from a full queue{tail}; what binds is {binding}",
        "staleness.limit",
        f"staleness.limit: {math.ceil(reach)}, the bound that acts; to reach {limit:g} this plan "
        f"needs at least about {needed:,} rollouts in flight",
    )


def _metric(planned: Planned) -> float:
    """Return the statistic that the scenario limits, as predicted."""
    stale = planned.prediction.staleness
    name = planned.scenario.staleness.statistic
    if name == "max":
        # The distribution ends with the oldest samples that occur.
        return float(len(stale.cdf) - 1)
    return float(getattr(stale, name))


def deep_queue(planned: Planned) -> Iterator[Finding]:
    """A queue of many batches: all of them are staleness once the trainer is the slower side."""
    decisions, stale = planned.decisions, planned.scenario.staleness
    depth = decisions.queue_batches
    # Pacing holds the generator before the queue fills, and other modes have no queue.
    if decisions.mode != "async" or stale.enforce == "admission" or depth <= DEEPEST_QUEUE:
        return
    backlog = depth * planned.versions_per_batch
    bound = planned.prediction.load >= 1.0
    limit = None if stale.limit is None else stale.limit.value
    broken = limit is not None and limit < backlog
    against = f", beyond the limit of {limit:g}" if broken else ""
    fate = (
        "the trainer is the slower side here, so training runs on old samples, "
        f"{said(planned.prediction.staleness.mean)} versions in the mean"
        if bound
        else "it fills as soon as the trainer is the slower side, which it is not here"
    )
    yield Finding(
        "deep_queue",
        "error" if broken and bound else "warning",
        f"the queue holds {depth:,} batches ({depth * decisions.prompts_per_step:,} groups), a "
        f"backlog of {backlog:,} versions{against}; {fate}",
        "queue.capacity_batches",
        f"queue.capacity_batches: {SOUND_QUEUE}",
    )


def never_fresh(planned: Planned) -> Iterator[Finding]:
    """Rollouts so slow that every one of them is rejected as stale.

    A rollout that lasts longer than L + 1 steps sees more than L versions pass, whenever it
    starts (steps of mean length; with m versions a batch, floor(L/m) + 1 steps).
    """
    stale, prediction = planned.scenario.staleness, planned.prediction
    if stale.enforce != "reject" or stale.limit is None or planned.decisions.mode != "async":
        return
    batches = math.floor(stale.limit.value / planned.versions_per_batch) + 1
    longest_s = batches * prediction.step_s
    share, tokens = planned.share_longer_than(longest_s)
    if share < NAMED_SHARE:
        return
    lengths = planned.problem.system.workload.lengths
    slow_s = planned.duration_s(float(lengths.quantile(1.0 - NAMED_SHARE)))
    # Once nothing is rejected steps come faster, down to what either side can do.
    step_s = max(
        prediction.train_s, prediction.step_s * (1.0 - prediction.staleness.rejected_fraction)
    )
    batch = math.ceil(planned.decisions.batch * slow_s / (batches * step_s))
    limit = math.ceil(slow_s / step_s) * planned.versions_per_batch
    yield Finding(
        "never_accepted",
        "error" if share >= REFUSED_SHARE else "warning",
        f"P(accepted) = 0 for {share:.1%} of rollouts, those of more than {tokens:,.0f} tokens: "
        f"they last longer than {said(longest_s)} s, {counted(batches, 'step')} of "
        f"{said(prediction.step_s)} s, and the limit is {counted(stale.limit.value, 'version')}; "
        f"they are generated for nothing (the slowest {NAMED_SHARE:.0%} last {said(slow_s)} s)",
        "staleness.limit",
        "staleness.enforce: admission (paces new rollouts and rejects none), or a batch of about "
        f"{batch:,} samples instead of {planned.decisions.batch:,}, or staleness.limit: {limit}",
    )


def no_group_fits(planned: Planned) -> Iterator[Finding]:
    """Fewer places in flight than one group needs: nothing is ever dispatched."""
    limit = next((one for one in planned.limits if one.name == "group_in_flight"), None)
    if limit is None or limit.holds:
        return
    engines = planned.decoders.engines
    scope = engines if planned.scenario.algorithm.dispatch_scope == "engine" else 1
    yield Finding(
        "zero_concurrency",
        "error",
        f"no rollout is ever in flight: a group dispatches {limit.value:g} rollouts at once and "
        f"only {limit.limit:g} places are allowed "
        + ("on an engine" if scope > 1 else "in flight"),
        planned.in_flight_key,
        f"plan.in_flight: at least {math.ceil(limit.value * scope):,}, {limit.value:g} on each of "
        f"{engines} engines"
        if scope > 1
        else f"plan.in_flight: at least {math.ceil(limit.value):,}",
    )


def limit_of_nothing(scenario: Scenario) -> Iterator[Finding]:
    """A mean staleness of 0 in an asynchronous run: only an idle generator keeps it.

    Frameworks that compute rollouts in flight as limit x batch then start none (TRL PR #5650).
    """
    stale, mode = scenario.staleness, scenario.algorithm.mode
    if stale.limit is None or stale.limit.value > 0.0 or stale.enforce != "design":
        return
    if mode != "async":
        return
    yield Finding(
        "zero_concurrency",
        "error",
        "a staleness limit of 0 by design leaves 0 rollouts in flight: in an asynchronous run "
        "whatever is generated while the trainer works is a version old",
        "staleness.limit",
        "staleness.enforce: admission (a batch starts after the step before it has ended), or "
        "staleness.limit: 1 or more",
    )
