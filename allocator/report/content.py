"""From a plan to the content tree: the one place where a report's order and verdict are decided."""

from __future__ import annotations

import math
from collections import Counter

from allocator.plan import Alternative, Infeasibility, Objective, Plan, Relaxation, SolverReport
from allocator.report.facts import broken_limits, interval, scenario_name
from allocator.report.numbers import enough, given, money, percent, plural, signed_percent, three
from allocator.report.palette import Tone
from allocator.report.sections import (
    binds_section,
    compute_section,
    cost_section,
    environment_section,
    limits_table,
    memory_section,
    rates_section,
    split_section,
    staleness_section,
    tokens_section,
)
from allocator.report.tree import Block, Fact, Facts, Notices, Report, Section, Sentence, Table
from allocator.report.words import OBJECTIVES

#: Kinds of numbers that are always counted, in order of trust.
KINDS = ("measured", "vendor", "fitted", "assumed")


def plan_content(plan: Plan) -> Report:
    """Return the content tree of a plan.

    Parameters
    ----------
    plan : Plan
        From `solve` or `evaluate`, of any status.

    Returns
    -------
    Report
        Title, verdict, headline figure and sections in the order of a reader's questions.
    """
    status, tone = _verdict(plan)
    sections: list[Section] = []
    if plan.infeasibility is not None:
        sections += infeasible_sections(plan, plan.infeasibility)
    broken = broken_limits(plan.limits)
    if broken and plan.infeasibility is None:
        sections.append(Section("broken", (limits_table(broken),), tone="bad"))
    if plan.decisions is not None and plan.infeasibility is None:
        sections.append(split_section(plan, plan.decisions))
        if plan.prediction is not None:
            sections += [
                rates_section(plan, plan.decisions, plan.prediction),
                binds_section(plan, plan.prediction),
                staleness_section(plan, plan.prediction),
                tokens_section(plan.prediction),
            ]
            around = environment_section(plan, plan.prediction)
            sections += [] if around is None else [around]
            sections += [
                cost_section(plan, plan.prediction),
                compute_section(plan, plan.prediction),
                memory_section(plan.prediction),
            ]
    if plan.limits and plan.infeasibility is None:
        sections.append(Section("limits", (limits_table(plan.limits),), brief=False))
    sections += _rivals(plan)
    sections += _trust(plan)
    return Report(
        scenario_name(plan), status, tone, _headline(plan), _meaning(plan), tuple(sections)
    )


def _verdict(plan: Plan) -> tuple[str, Tone]:
    broken = broken_limits(plan.limits)
    if plan.status == "error":
        return "ERROR", "bad"
    if plan.infeasibility is not None:
        return "INFEASIBLE", "bad"
    if broken:
        return f"BROKEN: {plural(len(broken), 'limit')}", "bad"
    if plan.status == "infeasible":
        return "INFEASIBLE", "bad"
    if plan.solver is None:
        return "as configured", "good"
    return plan.status, "good" if plan.status == "optimal" else "warn"


def objective_text(objective: Objective, value: float | None) -> str:
    """Return a value of the objective in its own words, such as `$9.31 per million ...`."""
    words = OBJECTIVES.get(objective.name)
    if words is None:
        return f"{three(value)} {objective.name}"
    return f"{(money if words.dollars else three)(value)} {words.per}"


def _headline(plan: Plan) -> str:
    if plan.infeasibility is not None:
        return "No plan meets every limit of this scenario."
    if plan.prediction is None:
        return "No prediction."
    words = OBJECTIVES.get(plan.objective.name)
    number = money if words and words.dollars else three
    between = interval(plan, plan.objective.name, number)
    level = f" ({given(100 * plan.interval_level)}% interval)" if between else ""
    return f"{objective_text(plan.objective, plan.objective.value)}{between}{level}"


def _meaning(plan: Plan) -> str:
    if plan.infeasibility is not None:
        looked = plan.infeasibility.points
        return f"{plural(looked, 'plan')} examined." if looked else ""
    if plan.solver is None:
        return "Evaluated as configured; nothing was optimised."
    objective = plan.objective
    gap = "" if objective.gap is None else f" (gap {percent(objective.gap)})"
    if plan.status == "optimal":
        text = f"Within 0.1% of the best plan of the domain{gap}; ties go to fewer GPUs"
    else:
        bound = (
            ""
            if objective.bound is None
            else f"; bound {objective_text(objective, objective.bound)}"
        )
        text = f"Best plan found, not proven best{bound}{gap}"
    if plan.near_optimal:
        text += f"; {plural(len(plan.near_optimal), 'other')} cannot be told apart from it"
    return f"{text}. {_effort(plan.solver)}"


def _effort(solver: SolverReport) -> str:
    points = f", {solver.evaluated:,} of {solver.points:,} plans" if solver.points else ""
    return f"Solver {solver.name}: {solver.termination}{points}, {three(solver.wall_s)} s."


def infeasible_sections(plan: Plan, why: Infeasibility) -> list[Section]:
    """Return what conflicts, what nobody meets, what would help, and the nearest plan."""
    sections = []
    if set(why.conflict) - set(why.unmeetable):
        sections.append(_named("conflict", "These limits cannot hold together:", why.conflict))
    if why.unmeetable:
        sections.append(
            _named("unmet", "No plan meets these, whatever else is chosen:", why.unmeetable)
        )
    sections.append(Section("to fix", _relaxations(why.relaxations)))
    if why.nearest is not None:
        nearest = split_section(plan, why.nearest, "nearest")
        broken = broken_limits(why.nearest_limits)
        blocks: tuple[Block, ...] = nearest.blocks
        if broken:
            blocks += (Sentence("The nearest plan breaks:"), limits_table(broken))
        sections.append(Section("nearest", blocks))
    return sections


def _named(name: str, sentence: str, limits: tuple[str, ...]) -> Section:
    return Section(name, (Sentence(f"{sentence} {', '.join(limits)}."),), tone="bad")


def _relaxations(relaxations: tuple[Relaxation, ...]) -> tuple[Block, ...]:
    if not relaxations:
        return (Sentence("No change of a single limit makes a plan possible."),)
    rows = tuple(
        (
            change.name,
            f"{given(change.start)} -> {enough(change.start, change.to)} {change.unit}".strip(),
            signed_percent(change.percent) if math.isfinite(change.percent) else "",
            change.where,
        )
        for change in relaxations
    )
    header = ("limit", "from -> to", "change", "in the scenario")
    return (Sentence("Each of these changes alone is enough:"), Table(header, rows, (2,)))


def _rivals(plan: Plan) -> list[Section]:
    """Return the other plans worth knowing; in brief only that some cannot be told apart."""
    sections = []
    if plan.near_optimal:
        text = f"{plural(len(plan.near_optimal), 'other plan')} within the interval of this one."
        sections.append(
            Section(
                "as good", (Sentence(text), _alternatives(plan, plan.near_optimal)), brief=False
            )
        )
    choices = [other for other in plan.alternatives if _other_choice(plan, other)]
    if choices:
        facts = tuple(Fact(other.differs, _price(plan, other)) for other in choices)
        sections.append(Section("instead", (Facts(facts, inline=False),)))
    if plan.alternatives:
        sections.append(
            Section("alternatives", (_alternatives(plan, plan.alternatives),), brief=False)
        )
    return sections


def _other_choice(plan: Plan, other: Alternative) -> bool:
    """Return whether an alternative takes another mode, number format or place of prefill."""
    assert plan.decisions is not None
    ours, theirs = plan.decisions, other.decisions
    writing, other_writing = ours.generator.groups[-1], theirs.generator.groups[-1]
    return (
        ours.mode != theirs.mode
        or len(ours.generator.groups) != len(theirs.generator.groups)
        or (writing.weights_dtype, writing.kv_dtype)
        != (other_writing.weights_dtype, other_writing.kv_dtype)
    )


def _price(plan: Plan, other: Alternative) -> str:
    """Return the objective of an alternative and how far it is from the plan's."""
    text = objective_text(plan.objective, other.objective)
    return f"{text} ({signed_percent(100 * (other.objective / plan.objective.value - 1))})"


def _alternatives(plan: Plan, plans: tuple[Alternative, ...]) -> Table:
    header = ("differs in", "trainer", "generator", "samples/s", "trainer waits", "staleness",
              "$ / useful Mtok", plan.objective.name)  # fmt: skip
    by_cost = plan.objective.name == "usd_per_useful_mtok"
    rows = tuple(
        (
            other.differs,
            f"{other.decisions.trainer.gpus:,}",
            f"{other.decisions.generator.gpus:,}",
            three(other.trained_samples_per_s),
            percent(other.trainer_wait_fraction),
            three(other.staleness_mean),
            money(other.usd_per_useful_mtok),
            "" if by_cost else three(other.objective),
        )
        for other in plans
    )
    return Table(header, rows, (1, 2, 3, 4, 5, 6, 7))


def _trust(plan: Plan) -> list[Section]:
    """Return warnings, how many numbers are of which kind, and every number with its source."""
    sections = []
    if plan.warnings:
        facts = tuple(Fact(w.code, w.text, note=w.where, tone="warn") for w in plan.warnings)
        sections.append(Section("warnings", (Notices(facts),), tone="warn"))
    if plan.provenance:
        kinds = Counter(item.kind for item in plan.provenance)
        named = (*KINDS, *sorted(set(kinds) - set(KINDS)))
        counts = ", ".join(f"{kinds[kind]:,} {kind}" for kind in named)
        sections.append(Section("numbers", (Sentence(f"{counts}."),)))
        rows = tuple(
            (item.name, three(item.value), item.unit, item.kind, item.source)
            for item in plan.provenance
        )
        table = Table(("name", "value", "unit", "kind", "source"), rows, (1,))
        sections.append(Section("sources", (table,), brief=False))
    return sections
