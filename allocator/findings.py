"""What a reader must know about a plan beyond its numbers: its warnings."""

from __future__ import annotations

from collections.abc import Iterator

from allocator.plan import Decisions, Limit, PlanWarning, Prediction
from allocator.problem.build import Problem
from allocator.problem.decisions import Domain

#: Contexts and prompts that the rate fits cover, in tokens (hardware_profiles/sources/rates.yaml).
FITTED_CONTEXT_TOKENS = (1_024.0, 32_768.0)
#: Fewer groups per batch than this make the queue law coarse (few arrivals a step).
FEW_GROUPS = 4
#: Share of rollouts rejected from which training is biased, and below which the limit is idle.
BIASED = 0.01
IDLE = 1e-4
#: A share of generated tokens that is wasted in one way and worth a sentence.
WASTE = 0.2
#: Share of the bill for GPUs that are not used, and share of the time that is productive, from
#: which a sentence is due.
IDLE_MONEY, HALF = 0.1, 0.5
#: Executed FLOPs over the peak that no published trainer exceeds (66% in dense pre-training).
PLAUSIBLE_HFU = 0.75
#: Mean staleness from which it matters that nothing limits it.
OLD = 4.0


def findings(
    problem: Problem,
    domain: Domain,
    decisions: Decisions,
    prediction: Prediction,
    limits: tuple[Limit, ...],
) -> list[PlanWarning]:
    """Return all warnings of one plan, those of its resolution first."""
    return [
        *problem.warnings,
        *_ranges(domain, decisions),
        *_regimes(problem, decisions, prediction, limits),
        *_waste(prediction),
        *_money(problem, prediction),
    ]


def slow_reward(workers: tuple[tuple[int, float], ...]) -> Iterator[PlanWarning]:
    """Yield what more reward workers are worth where scoring sets the pace."""
    if workers:
        (first, least), *rest = workers
        more = "".join(f", {count} by {saved:.0%}" for count, saved in rest)
        yield PlanWarning(
            "slow_reward",
            f"scoring sets the pace: with the plan as it is, {first} workers would shorten a step "
            f"by {least:.0%}{more}",
            "reward.workers",
        )


def _ranges(domain: Domain, decisions: Decisions) -> Iterator[PlanWarning]:
    for name, path in domain.ranges:
        values = getattr(domain, name)
        chosen = getattr(decisions, name)
        low, high = float(values[0]), float(values[-1])
        if name in domain.stated_ranges and low < high and chosen in (low, high):
            end = "least" if chosen == low else "largest"
            yield PlanWarning(
                "decided_by_range",
                f"{name} = {chosen:g} is the {end} value the scenario allows ({low:g} to "
                f"{high:g}): the range decided, not the optimum",
                path,
            )


def _regimes(
    problem: Problem, decisions: Decisions, prediction: Prediction, limits: tuple[Limit, ...]
) -> Iterator[PlanWarning]:
    low, high = FITTED_CONTEXT_TOKENS
    if not low <= prediction.in_flight_context_tokens <= high:
        yield PlanWarning(
            "outside_fitted_range",
            f"the mean context in flight, {prediction.in_flight_context_tokens:,.0f} tokens, lies "
            f"outside the {low:,.0f} to {high:,.0f} tokens that decode rates were fitted on",
            "workload.response_tokens",
        )
    groups = decisions.prompts_per_step
    if groups < FEW_GROUPS:
        yield PlanWarning(
            "few_groups",
            f"a batch of {groups} groups fills in large pieces: waits and staleness vary more "
            "than these means say",
            "algorithm.prompts_per_step",
        )
    engines = decisions.generator.engines
    group = decisions.generator.groups[0]
    fit = next(limit.limit for limit in limits if limit.name == "kv_memory")
    if group.in_flight_per_engine > fit + decisions.group_size:
        yield PlanWarning(
            "kv_queueing",
            f"{group.in_flight_per_engine} rollouts in flight per engine, about {fit:.0f} fit its "
            f"KV cache: the rest waits in the engines' queues ({engines} engines)",
            "plan.in_flight",
        )
    update = problem.system.algorithm.weight_update
    if decisions.mode == "async" and update in ("drain", "abort"):
        yield PlanWarning(
            "staleness_upper_bound",
            f"with weight_update: {update} no rollout meets an update while it is generated; "
            "staleness is predicted as if it did, hence too high",
            "algorithm.weight_update",
        )
    resumes = problem.system.algorithm.partial_rollout
    if decisions.mode != "async" and resumes and decisions.oversampling == 1.0:
        yield PlanWarning(
            "nothing_to_resume",
            "partial_rollout resumes what a batch leaves unfinished, and with oversampling 1 every "
            "batch waits for all its rollouts",
            "algorithm.oversampling",
        )
    limit = problem.system.algorithm.staleness_limit
    enforce = problem.system.algorithm.staleness_enforce
    rejected = prediction.staleness.rejected_fraction
    if enforce == "reject" and rejected > BIASED:
        yield PlanWarning(
            "length_bias_by_rejection",
            f"{rejected:.1%} of finished rollouts are rejected as stale, mostly long ones: training"
            " is biased towards short rollouts; the lengths predicted here are not shortened",
            "staleness.limit",
        )
    if enforce == "reject" and limit is not None and rejected < IDLE:
        yield PlanWarning(
            "staleness_limit_idle",
            f"the limit of {limit:g} versions rejects almost nothing: 99% of rollouts are at most "
            f"{prediction.staleness.p99} versions old anyway",
            "staleness.limit",
        )


def _money(problem: Problem, prediction: Prediction) -> Iterator[PlanWarning]:
    """Yield what is paid and brings nothing, and numbers that no run is known to reach."""
    spent, total = prediction.spending, prediction.usd_per_hour
    if spent.idle > IDLE_MONEY * total:
        yield PlanWarning(
            "idle_gpus",
            f"${spent.idle:,.2f} of ${total:,.2f} an hour pay for GPUs that the plan does not use: "
            "more would not help it, fewer would cost less",
            "hardware.pools",
        )
    if prediction.availability.productive < HALF:
        yield PlanWarning(
            "unproductive",
            f"only {prediction.availability.productive:.0%} of the run's time is in steps that "
            "count: evaluations, checkpoints, restarts and redone work take the rest",
            "failures",
        )
    if prediction.hfu > PLAUSIBLE_HFU:
        yield PlanWarning(
            "implausible_utilisation",
            f"the trainer would execute {prediction.hfu:.0%} of its peak while computing: no run "
            "is known to; trainer.mfu may be of another configuration",
            "trainer.mfu",
        )
    sandbox = problem.system.sandbox
    boxes_usd = prediction.environment.sandbox_usd_per_hour * prediction.run.hours
    if sandbox is not None and sandbox.credit_usd < boxes_usd:
        yield PlanWarning(
            "sandbox_credit",
            f"the sandboxes of the run cost ${boxes_usd:,.0f}, the credit is "
            f"${sandbox.credit_usd:,.0f}",
            "sandbox.credit_usd",
        )
    limit = problem.system.algorithm.staleness_limit
    if limit is None and prediction.staleness.mean > OLD:
        yield PlanWarning(
            "no_staleness_limit",
            f"samples are {prediction.staleness.mean:.1f} versions old on average and no limit is "
            "stated: how much staleness your loss tolerates decides what such a plan is worth",
            "staleness.limit",
        )


def _waste(prediction: Prediction) -> Iterator[PlanWarning]:
    fate = prediction.token_fate
    reasons = {
        "no_signal": "groups without advantage (all solved or none): a harder or easier "
        "curriculum is the cheapest remedy",
        "rejected_stale": "rejection of stale rollouts, which also biases training towards short "
        "ones",
        "oversampled": "cancelling rollouts that oversampling started",
        "dropped_overflow": "a full queue: the generator is faster than the trainer",
        "failed": "rollouts that a sandbox, a timeout or a restart at a weight update ended",
    }
    for name, reason in reasons.items():
        share = getattr(fate, name)
        if share > WASTE:
            yield PlanWarning(
                f"waste_{name}", f"{share:.0%} of generated tokens are lost to {reason}"
            )
