"""A comparison as a content tree: the chain of dollars, why each link is what it is, what differs.

Amounts are printed as differences of rounded sums, so that the chain adds up on paper too.
"""

from __future__ import annotations

import json
import math
from typing import Any

from allocator.comparison.result import Change, Comparison, Term
from allocator.plan import plain
from allocator.report.comparison_words import percent, sentence, waiting
from allocator.report.numbers import change, money, three
from allocator.report.palette import Role
from allocator.report.tree import (
    Block,
    Fact,
    Facts,
    Notices,
    Report,
    Section,
    Sentence,
    Step,
    Table,
    Waterfall,
)
from allocator.report.words import bottleneck_words, cause_words
from allocator.scenario.errors import shown

#: Terms below this share of the dearer plan's dollars are drawn together.
WORTH_DRAWING = 0.004
#: Longest lists of keys; JSON has all.
MOST_CHANGES = 15
LABELS = {
    "price": "price",
    "split": "split",
    "inference_speed": "inference speed",
    "training_speed": "training speed",
    "weight_sync": "weight sync",
    "idle": "idle",
    "tail": "tail",
    "signal": "signal",
    "staleness": "staleness",
    "discards": "discards",
    "tokens_counted": "tokens counted",
    "availability": "availability",
    "sandboxes": "sandboxes",
    "reward_api": "reward API",
}
ORIGINS = {
    "solved": "solved",
    "evaluated": "evaluated as its plan: fixes it",
    "recorded": "as recorded in the plan",
}


def comparison_content(comparison: Comparison) -> Report:
    """Return the content tree of a comparison.

    Order: both plans, the chain of dollars (what makes B dearer first, then what makes it
    cheaper, each from the largest), a sentence for every link, who sets the pace, and the keys
    and decisions that differ.
    """
    a, b = comparison.a, comparison.b
    drawn, small = _by_weight(comparison)
    why: list[Block] = []
    if drawn:
        facts = tuple(Fact(LABELS[term.name], sentence(term, comparison)) for term in drawn)
        why.append(Facts(facts, inline=False))
    unmoved = ", ".join(LABELS[term.name] for term in small)
    if unmoved:
        why.append(Sentence(f"Little or nothing from: {unmoved}.", "muted"))
    sections = [
        Section("plans", _plans(comparison)),
        Section("dollars", (_chain(comparison, drawn, small),)),
        Section("why", tuple(why)),
        Section("pace", _pace(comparison)),
        Section("given", _keys(comparison.scenario_changes, "The scenarios do not differ.")),
        Section("decided", _keys(comparison.decision_changes, "The decisions do not differ.")),
    ]
    if comparison.warnings:
        notices = tuple(Fact(w.code, w.text, tone="warn") for w in comparison.warnings)
        sections.append(Section("warnings", (Notices(notices),), tone="warn"))
    moved = change(a.usd_per_useful_mtok, b.usd_per_useful_mtok)
    difference = "the same" if moved == "same" else f"{_signed(comparison.difference_usd)}, {moved}"
    return Report(
        title="Where the difference in dollars per useful token comes from",
        status="",
        tone="plain",
        headline=f"B costs {money(b.usd_per_useful_mtok)} per million useful tokens, "
        f"A {money(a.usd_per_useful_mtok)} ({difference}).",
        note="",
        sections=tuple(sections),
    )


def comparison_json(comparison: Comparison) -> str:
    """Return a comparison as one JSON object, each term with its sentence, ending in a newline."""
    data = comparison.to_dict()
    for term, entry in zip(comparison.terms, data["terms"], strict=True):
        entry["text"] = sentence(term, comparison)
    return json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def comparison_file(comparison: Comparison, suffix: str) -> str:
    """Return the text of a file with that suffix: `.html`, `.md`, or JSON for any other."""
    from allocator.report.html import report_html
    from allocator.report.markdown import report_markdown

    match suffix.lower():
        case ".html":
            return report_html(comparison_content(comparison)) + "\n"
        case ".md":
            return report_markdown(comparison_content(comparison))
        case _:
            return comparison_json(comparison)


def _by_weight(comparison: Comparison) -> tuple[list[Term], list[Term]]:
    """Return the terms to draw, increases before savings and large before small, and the rest."""
    dearer = max(comparison.a.usd_per_useful_mtok, comparison.b.usd_per_useful_mtok)

    def large(term: Term) -> bool:
        return abs(term.usd_per_useful_mtok) >= WORTH_DRAWING * dearer

    drawn = [term for term in comparison.terms if large(term)]
    drawn.sort(key=lambda term: (term.usd_per_useful_mtok < 0.0, -abs(term.usd_per_useful_mtok)))
    return drawn, [term for term in comparison.terms if not large(term)]


def _plans(comparison: Comparison) -> tuple[Block, ...]:
    facts = tuple(
        Fact(label, f"{side.name}: {side.scenario}, {ORIGINS[side.origin]} ({side.status})"
             if side.name != side.scenario
             else f"{side.name}, {ORIGINS[side.origin]} ({side.status})")
        for label, side in (("A", comparison.a), ("B", comparison.b))
    )  # fmt: skip
    blocks: list[Block] = [Facts(facts, inline=False)]
    for label, side in (("A", comparison.a), ("B", comparison.b)):
        if side.broken_limits:
            broken = ", ".join(side.broken_limits)
            blocks.append(Sentence(f"BROKEN in {label}: {broken}.", "bad"))
    return tuple(blocks)


def _chain(comparison: Comparison, drawn: list[Term], small: list[Term]) -> Waterfall:
    a, b = comparison.a.usd_per_useful_mtok, comparison.b.usd_per_useful_mtok
    magnitude = math.floor(math.log10(max(a, b)))
    decimals = max(0, 2 - (magnitude if magnitude < 0 else max(0, magnitude - 1)))
    links = [(LABELS[term.name], term.usd_per_useful_mtok) for term in drawn]
    rest = sum(term.usd_per_useful_mtok for term in small)
    if round(rest, decimals):
        links.append(("the rest", rest))
    steps = [Step("A", 0.0, a, f"${a:,.{decimals}f}", "total")]
    at = a
    for label, amount in links:
        text = round(at + amount, decimals) - round(at, decimals)
        role: Role = "dearer" if amount > 0 else "cheaper"
        sign = "+" if amount > 0 else "-"
        steps.append(Step(label, at, at + amount, f"{sign}${abs(text):,.{decimals}f}", role))
        at += amount
    steps.append(Step("B", 0.0, b, f"${b:,.{decimals}f}", "total"))
    return Waterfall(tuple(steps), "$ per million useful tokens")


def _pace(comparison: Comparison) -> tuple[Block, ...]:
    a, b, share = comparison.a, comparison.b, comparison.generator_share
    blocks: list[Block] = []
    if a.pace == b.pace:
        blocks.append(Sentence(f"The {a.pace} sets the pace in both: what makes the other side "
                               "faster or slower moves no dollars."))  # fmt: skip
    else:
        part = share if a.pace == "generator" else 1.0 - share
        blocks.append(
            Sentence(
                f"The {a.pace} sets the pace in A, the {b.pace} in B: they change places after "
                f"{percent(part)} of the way, and what either does counts for its part of it."
            )
        )
    idle = comparison.term("idle").measure("held_fraction")
    for label, side, lost in (("A", a, idle.a), ("B", b, idle.b)):
        words = f"{bottleneck_words(side.bottleneck)} {cause_words(side.cause)}".strip()
        blocks.append(Sentence(f"{waiting(label, side, lost)} {words}"))
    rows = (
        ("generator could deliver, useful tokens/s", three(a.generator_tokens_per_s),
         three(b.generator_tokens_per_s)),
        ("trainer could take, useful tokens/s", three(a.trainer_tokens_per_s),
         three(b.trainer_tokens_per_s)),
        ("useful tokens/s", three(a.useful_tokens_per_s), three(b.useful_tokens_per_s)),
        ("generator waits", percent(a.generator_wait_fraction), percent(b.generator_wait_fraction)),
        ("trainer waits", percent(a.trainer_wait_fraction), percent(b.trainer_wait_fraction)),
        ("$ per hour", money(a.usd_per_hour), money(b.usd_per_hour)),
    )  # fmt: skip
    return (*blocks, Table(("", "A", "B"), rows, (1, 2)))


def _keys(changes: tuple[Change, ...], none: str) -> tuple[Block, ...]:
    if not changes:
        return (Sentence(none, "muted"),)
    listed = tuple(
        Fact(change.path, f"{_stated(change.a)} -> {_stated(change.b)}")
        for change in changes[:MOST_CHANGES]
    )
    blocks: tuple[Block, ...] = (Facts(listed, inline=False),)
    if len(changes) > MOST_CHANGES:
        more = f"and {len(changes) - MOST_CHANGES} more in the JSON"
        blocks += (Sentence(more, "muted"),)
    return blocks


def _stated(value: Any) -> str:
    return "not set" if value is None else shown(value)


def _signed(usd: float) -> str:
    return f"+{money(usd)}" if usd > 0 else money(usd)
