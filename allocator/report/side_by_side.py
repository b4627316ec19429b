"""Two plans side by side, line by line, as a content tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allocator.plan import Decisions, Plan, Prediction
from allocator.report.content import objective_text
from allocator.report.facts import broken_limits
from allocator.report.numbers import MISSING, change, given, money, percent, points, three
from allocator.report.palette import Tone
from allocator.report.tree import Block, Report, Section, Sentence, Table
from allocator.report.words import OBJECTIVES


@dataclass(frozen=True, slots=True)
class Line:
    """One compared quantity: where it stands in a plan and how it is printed."""

    label: str
    value: Callable[[Decisions, Prediction], float]
    text: Callable[[float], str]
    change: Callable[[float | None, float | None], str] = change


LINES = (
    Line("trainer GPUs", lambda d, p: d.trainer.gpus, given),
    Line("generator GPUs", lambda d, p: d.generator.gpus, given),
    Line("engines", lambda d, p: d.generator.engines, given),
    Line("rollouts in flight", lambda d, p: d.generator.in_flight, given),
    Line("oversampling", lambda d, p: d.oversampling, given),
    Line("queue, batches", lambda d, p: d.queue_batches, given),
    Line("could train, samples/s", lambda d, p: p.trainer_samples_per_s, three),
    Line("could generate, samples/s", lambda d, p: p.accepted_samples_per_s, three),
    Line("trained, samples/s", lambda d, p: p.trained_samples_per_s, three),
    Line("trainer waits", lambda d, p: p.trainer_wait_fraction, percent, points),
    Line("generator waits", lambda d, p: p.generator_wait_fraction, percent, points),
    Line("staleness, mean", lambda d, p: p.staleness.mean, three),
    Line("staleness, p95", lambda d, p: p.staleness.p95, given),
    Line("tokens useful", lambda d, p: p.token_fate.useful, percent, points),
    Line("$ / useful Mtok", lambda d, p: p.usd_per_useful_mtok, money),
    Line("$ / hour", lambda d, p: p.usd_per_hour, money),
    Line("run, steps", lambda d, p: p.run.steps, three),
    Line("run, hours", lambda d, p: p.run.hours, three),
    Line("run, $", lambda d, p: p.run.usd, money),
    Line("MFU busy", lambda d, p: p.mfu_busy, percent, points),
    Line("MFU wall", lambda d, p: p.mfu_wall, percent, points),
)


def side_by_side(plan_a: Plan, plan_b: Plan, names: tuple[str, str]) -> Report:
    """Return plans `plan_a` and `plan_b` of one scenario line by line.

    Parameters
    ----------
    plan_a, plan_b : Plan
        Of any status; a plan without prediction shows ``n/a``.
    names : tuple of two str
        Column names, such as ``("as configured in plan:", "solved")``.
    """
    rows: list[tuple[str, ...]] = [_row(line, plan_a, plan_b) for line in LINES]
    layouts = tuple(_layouts(plan) for plan in (plan_a, plan_b))
    rows.insert(3, ("layout", *layouts, "same" if layouts[0] == layouts[1] else ""))
    tones: tuple[Tone, ...] = tuple("muted" if row[3] == "same" else "plain" for row in rows)
    blocks: list[Block] = [Table(("", *names, "change"), tuple(rows), (1, 2, 3), tones)]
    for plan, name in zip((plan_a, plan_b), names, strict=True):
        broken = ", ".join(limit.name for limit in broken_limits(plan.limits))
        if broken:
            blocks.append(Sentence(f"BROKEN {name.rstrip(':')}: {broken}.", "bad"))
    return Report(
        title=f"{names[0].rstrip(':')}, against {names[1].rstrip(':')}",
        status="",
        tone="plain",
        headline=_verdict(plan_a, plan_b, names),
        note="",
        sections=(Section("", tuple(blocks)),),
    )


def _row(line: Line, plan_a: Plan, plan_b: Plan) -> tuple[str, str, str, str]:
    values = [
        None
        if plan.decisions is None or plan.prediction is None
        else line.value(plan.decisions, plan.prediction)
        for plan in (plan_a, plan_b)
    ]
    texts = [MISSING if value is None else line.text(value) for value in values]
    return line.label, texts[0], texts[1], line.change(values[0], values[1])


def _layouts(plan: Plan) -> str:
    if plan.decisions is None:
        return MISSING
    return ", ".join(str(group.layout) for group in plan.decisions.generator.groups)


def _verdict(plan_a: Plan, plan_b: Plan, names: tuple[str, str]) -> str:
    a, b = plan_a.objective, plan_b.objective
    if plan_a.prediction is None or plan_b.prediction is None or a.name != b.name:
        return ""
    first, second = (name.rstrip(":") for name in names)
    words = OBJECTIVES.get(b.name)
    moved = change(a.value, b.value)
    if words is not None and moved not in ("", "same"):
        moved += ", better" if (b.value < a.value) == words.smaller_is_better else ", worse"
    plain = money if words and words.dollars else three
    text = f"{second}: {objective_text(b, b.value)}; {first}: {plain(a.value)}"
    return f"{text} ({moved})" if moved else text
