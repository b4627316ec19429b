"""Rules about the outcome itself: broken limits, no plan, and what the plan already warns of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from allocator.audit.finding import Finding, Level, Planned, enough, said

if TYPE_CHECKING:
    from allocator.plan import Infeasibility, PlanWarning

#: Level and remedy of every warning that plans carry, by code.
KNOWN: dict[str, tuple[Level, str]] = {
    "assumed_utilisation": ("warning", "measure trainer.mfu over a few steps and state it"),
    "completed_plan": ("note", "state these decisions in plan: to audit your own"),
    "decided_by_range": ("warning", "widen the range, or state the value if it is meant"),
    "documented_quota": ("note", "sandbox.max_concurrent: the quota of your account"),
    "estimate_only": ("warning", "measure engine.rates, or choose an engine with a profile"),
    "few_groups": ("note", "algorithm.prompts_per_step: 4 or more"),
    "format_without_rates": ("note", "engine.weights_dtype without the formats that lack rates"),
    "idle_gpus": ("warning", "fewer GPUs in the pools"),
    "implausible_utilisation": ("warning", "trainer.mfu_at_gpus and mfu_at_batch of its run"),
    "kv_queueing": ("warning", "plan.in_flight: what fits the KV cache"),
    "length_bias_by_rejection": ("warning", "staleness.enforce: admission, or a larger limit"),
    "mfu_reference_missing": ("warning", "trainer.mfu_at_gpus: the GPUs it was measured on"),
    "mismatched_log_probs": ("warning", "algorithm.old_log_probs: recompute"),
    "no_staleness_limit": ("note", "staleness.limit: what your loss tolerates"),
    "no_solve_rate": ("note", "workload.solve_rate: {always: ..., never: ...}"),
    "nothing_to_resume": ("warning", "algorithm.oversampling: more than 1"),
    "outside_fitted_range": ("warning", "measure engine.rates at this context"),
    "pretraining_utilisation": ("warning", "measure trainer.mfu over a few steps and state it"),
    "reduced_precision": ("warning", "an importance correction in the loss, or BF16 engines"),
    "sandbox_credit": ("error", "sandbox.credit_usd: what the run needs"),
    "sandbox_not_priced": ("note", "sandbox.usd_per_hour: what one sandbox costs"),
    "slow_reward": ("warning", "reward.workers: more"),
    "staleness_limit_idle": ("note", "a smaller staleness.limit, or none"),
    "staleness_upper_bound": ("note", "algorithm.weight_update: in_flight or retract"),
    "suspect_rate_left_out": ("note", "measure engine.rates for this engine if it is the one"),
    "truncated_lengths": ("warning", "workload.response_tokens.max: larger"),
    "waste_dropped_overflow": ("warning", "fewer engines, or more trainer GPUs"),
    "unproductive": ("warning", "checkpoint.every_steps, evaluation.every_steps: see which"),
    "waste_failed": ("warning", "sandbox.failure_fraction, timeout_s or weight_update: see which"),
    "waste_no_signal": ("warning", "a curriculum with fewer solved and hopeless prompts"),
    "waste_oversampled": (
        "warning",
        "algorithm.oversampling: a range, for solve to choose",
    ),
    "waste_rejected_stale": ("warning", "staleness.enforce: admission, or a larger limit"),
}
UNKNOWN: tuple[Level, str] = ("warning", "")


def from_warning(warning: PlanWarning) -> Finding:
    """Return a plan's warning as a finding, with its level and remedy."""
    level, remedy = KNOWN.get(warning.code, UNKNOWN)
    return Finding(warning.code, level, warning.text, warning.where, remedy)


def broken_limits(planned: Planned) -> Iterator[Finding]:
    """Limits that the plan does not keep: memory, budgets, pools, staleness."""
    stated = {spec.name for spec in planned.problem.limits if spec.relaxable}
    for limit in planned.limits:
        # Rules of their own say more.
        if limit.holds or limit.name == "group_in_flight":
            continue
        more = f", or {limit.where}: {enough(limit.value)}" if limit.name in stated else ""
        yield Finding(
            "broken_limit",
            "error",
            f"{limit.name} is {said(limit.value)} and may be {said(limit.limit)} at most "
            f"({limit.unit})",
            limit.where,
            f"a plan that needs {enough(-limit.slack)} less{more}",
        )


def infeasible(why: Infeasibility) -> Finding:
    """Return what keeps every plan of the scenario from existing, as one finding."""
    names = ", ".join(why.conflict)
    ways = [
        f"{change.where}: {enough(change.to)} instead of {said(change.start)} ({change.unit})"
        for change in why.relaxations
    ]
    where = why.relaxations[0].where if why.relaxations else ""
    return Finding(
        "infeasible",
        "error",
        f"no plan meets {names} ({why.points:,} examined)",
        where,
        "any one of: " + "; ".join(ways) if ways else "no change of a single limit is enough",
    )
