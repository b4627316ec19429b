"""The table of rules, and the audit that runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from allocator.audit.batches import idle_ranks, low_signal
from allocator.audit.engines import far_off_roofline
from allocator.audit.finding import LEVELS, Finding, Planned, Rule
from allocator.audit.knobs import dead_knobs, no_scale, one_engine_scope
from allocator.audit.outcome import broken_limits, from_warning
from allocator.audit.sandboxes import (
    credit_runs_out,
    host_too_small,
    quota_exceeded,
    timeout_cuts,
)
from allocator.audit.staleness import (
    deep_queue,
    limit_of_nothing,
    limit_out_of_reach,
    never_fresh,
    no_group_fits,
)
from allocator.scenario.paths import is_inside

if TYPE_CHECKING:
    from allocator.plan import PlanWarning
    from allocator.scenario.schema import Scenario

#: Rules that read a scenario alone.
SCENARIO_RULES: tuple[Rule[Scenario], ...] = (
    Rule("zero_concurrency", limit_of_nothing, "TRL PR #5650: limit 0 x batch = 0 in flight"),
    Rule("dead_knob", dead_knobs, "a key without effect is said, never silent"),
    Rule("no_scale", no_scale, "without a target the cheapest plan is the smallest"),
)

#: Rules that read one plan of it with its prediction.
PLAN_RULES: tuple[Rule[Planned], ...] = (
    Rule("broken_limit", broken_limits, "limits of the plan"),
    Rule("zero_concurrency", no_group_fits, "TRL PR #5650: a plan that starts nothing"),
    Rule("never_accepted", never_fresh, "tinker-cookbook PR #822: slow tasks regenerated for ever"),
    Rule("deep_queue", deep_queue, "miles PR #2030: 125 steps of backlog"),
    Rule(
        "staleness_limit_idle",
        limit_out_of_reach,
        "prime-rl #2812: max_off_policy_steps 8 is never reached",
        replaces="staleness_limit_idle",
    ),
    Rule("low_signal", low_signal, "DAPO #22: 10 batches did not fill one", "waste_no_signal"),
    Rule("idle_ranks", idle_ranks, "samples go to ranks whole"),
    Rule("far_off_roofline", far_off_roofline, "verl #3114, slime #385, rLLM #292"),
    Rule("sandbox_quota", quota_exceeded, "SemiAnalysis 2026: 960 hosted sandboxes"),
    Rule(
        "sandbox_credit",
        credit_runs_out,
        "credit for the whole run",
        replaces="sandbox_credit",
    ),
    Rule("sandbox_host", host_too_small, "ToRL #17: what max_concurrency? the host's cores"),
    Rule("sandbox_timeout", timeout_cuts, "ToRL #17: sandbox timeouts"),
    Rule("dead_knob", one_engine_scope, "a key without effect is said, never silent"),
)


def audit(
    scenario: Scenario,
    planned: Planned | None,
    warnings: Iterable[PlanWarning] = (),
    besides: Iterable[Finding] = (),
) -> tuple[Finding, ...]:
    """Run every rule on a scenario and, where there is one, on a plan of it.

    Parameters
    ----------
    planned : the plan to audit; None leaves out the rules that need one.
    warnings : of the plan. Those that a rule says better here are left out.
    besides : findings of the caller, put in their place among the others.

    Returns
    -------
    Findings, worst first, in the order of the tables within a level.
    """
    found = [finding for rule in SCENARIO_RULES for finding in rule.find(scenario)]
    replaced = set()
    if planned is not None:
        for rule in PLAN_RULES:
            new = list(rule.find(planned))
            found += new
            if new:
                replaced.add(rule.replaces)
    # A broken limit that a rule already explains at the same key is not said twice.
    explained = [one.where for one in found if one.code != "broken_limit" and one.level == "error"]
    found = [
        one
        for one in found
        if one.code != "broken_limit" or not any(is_inside(key, one.where) for key in explained)
    ]
    found += [from_warning(one) for one in warnings if one.code not in replaced]
    found += besides
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level)))
