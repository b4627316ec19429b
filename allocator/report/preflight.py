"""What a preflight check says: as a content tree for people, as plain data for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allocator.audit.finding import LEVELS, Finding, Level
from allocator.report.facts import scenario_name
from allocator.report.numbers import plural
from allocator.report.palette import Tone
from allocator.report.tree import Block, Report, Section, Sentence
from allocator.scenario.origin import OVERRIDE, Origin

if TYPE_CHECKING:
    from allocator.preflight import Preflight

TONES: dict[Level, Tone] = {"error": "bad", "warning": "warn", "note": "plain"}
AUDITED = {
    "as configured": "Audited: the plan in plan:, as configured; nothing was solved.",
    "solved": "Audited: the plan that solving gives, as plan: does not fix the split.",
    "scenario": "Audited: the scenario alone, as no plan meets its limits.",
}


def preflight_content(found: Preflight, origin: Origin) -> Report:
    """Return the findings by level, each with its place in the file and what to change."""
    counts = {level: [f for f in found.findings if f.level == level] for level in LEVELS}
    status = "PASSED" if found.passed else "FAILED"
    if found.findings:
        headline = ", ".join(plural(len(counts[level]), level) for level in LEVELS)
    else:
        headline = "Nothing was found that would fail or waste."
    sections = [
        Section(
            f"{level}s",
            tuple(block for one in counts[level] for block in _finding(one, origin)),
            tone=TONES[level],
        )
        for level in LEVELS
        if counts[level]
    ]
    return Report(
        scenario_name(found.plan),
        status,
        "good" if found.passed else "bad",
        headline,
        AUDITED[found.audited],
        tuple(sections),
    )


def _finding(finding: Finding, origin: Origin) -> tuple[Block, ...]:
    place = place_of(finding, origin)
    head = f"{finding.code} [{place}]" if place else finding.code
    blocks = (Sentence(head, TONES[finding.level]), Sentence(f"{finding.text}."))
    if not finding.remedy:
        return blocks
    return (*blocks, Sentence(f"Change: {finding.remedy}.", "muted"))


def place_of(finding: Finding, origin: Origin) -> str:
    """Return where a finding comes from, such as `line 7: staleness.limit`; '' for nowhere."""
    if not finding.where:
        return ""
    file, line = origin.locate(finding.where)
    # An override has a name instead of a line; a key that is not in the file has neither.
    if line is not None:
        return f"line {line}: {finding.where}"
    return f"{file}: {finding.where}" if file == OVERRIDE else finding.where


def preflight_data(found: Preflight, origin: Origin) -> dict[str, Any]:
    """Return the JSON object of `check`: status, which plan was audited, and every finding."""
    return {
        "status": "passed" if found.passed else "failed",
        "audited": found.audited,
        "counts": {
            level: sum(finding.level == level for finding in found.findings) for level in LEVELS
        },
        "findings": [
            {
                "code": finding.code,
                "level": finding.level,
                "text": finding.text,
                "where": finding.where,
                "line": origin.locate(finding.where)[1] if finding.where else None,
                "remedy": finding.remedy,
            }
            for finding in found.findings
        ],
    }
