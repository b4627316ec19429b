"""A simulation as a content tree: formula beside simulation row by row, with verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from allocator.report.numbers import change, money, plural, three
from allocator.report.palette import Tone
from allocator.report.tree import (
    Block,
    Fact,
    Facts,
    Histogram,
    Notices,
    Report,
    Section,
    Sentence,
    Table,
)
from allocator.scenario.errors import ScenarioError
from allocator.simulation.quantities import is_share, is_versions
from allocator.simulation.result import Row, Simulation, StalenessBeside

#: Tails of a histogram below this share are not worth a bin.
TAIL = 0.002
MOST_BINS = 24
#: Amounts that a reader sees as nothing: a row of two such is left to the JSON.
NOTHING = 5e-7
LABELS = {
    "step_s": "step (s)",
    "train_s": "training (s)",
    "generation_s": "generation (s)",
    "generated_samples_per_s": "generated samples/s",
    "generated_tokens_per_s": "generated tokens/s",
    "accepted_samples_per_s": "accepted samples/s",
    "trained_samples_per_s": "trained samples/s",
    "trainer_samples_per_s": "trainer's samples/s",
    "trainer_wait_fraction": "trainer waits",
    "generator_wait_fraction": "generator waits",
    "staleness.mean": "staleness",
    "staleness.token_mean": "staleness by token",
    "staleness.versions_per_rollout": "updates per rollout",
    "staleness.environment_state_fraction": "resumed samples",
    "staleness.p50": "staleness p50",
    "staleness.p95": "staleness p95",
    "staleness.p99": "staleness p99",
    "staleness.rejected_fraction": "rejected samples",
    "decoding": "rollouts decoding",
    "length_bias": "length bias",
    "token_fate.useful": "useful tokens",
    "token_fate.no_signal": "tokens no signal",
    "token_fate.rejected_stale": "tokens too stale",
    "token_fate.oversampled": "tokens oversampled",
    "token_fate.dropped_overflow": "tokens overflow",
    "token_fate.failed": "tokens failed",
    "token_fate.mixed_environment": "tokens resumed",
    "environment.failed_rollouts_fraction": "failed attempts",
    "trained_tokens_per_s": "trained tokens/s",
    "useful_tokens_per_s": "useful tokens/s",
    "usd_per_mtok": "$ per trained Mtok",
    "usd_per_useful_mtok": "$ per useful Mtok",
}
ORIGINS = {
    "solved": "solved",
    "evaluated": "evaluated as its plan: fixes it",
    "recorded": "as recorded in the plan",
}
#: Endings of the files that a simulation can be written as.
SUFFIXES = (".json", ".html", ".md", ".png", ".csv")
HEADER = ("", "formula", "simulated", "noise", "difference", "verdict")


def simulation_content(simulation: Simulation) -> Report:
    """Return the content tree of a simulation.

    Order: what was simulated, formula beside simulation in every quantity with a verdict, both
    distributions of staleness, rollouts in flight, and what the numbers do and do not say.
    """
    shown = [row for row in simulation.rows if _worth_a_row(row)]
    differing = [row for row in shown if row.verdict == "differs"]
    status = f"{len(differing)} of {len(shown)} differ" if differing else "agrees"
    tone: Tone = "warn" if differing else "good"
    sections = [
        Section("simulated", (Facts(_facts(simulation), inline=False),)),
        Section("compared", (_table(shown), *_reading(simulation, shown))),
        Section("staleness", _staleness(simulation)),
        Section("in flight", _in_flight(simulation)),
    ]
    if simulation.warnings:
        notices = tuple(Fact(w.code, w.text, tone="warn") for w in simulation.warnings)
        sections.append(Section("warnings", (Notices(notices),), tone="warn"))
    sections.append(Section("trust", tuple(Sentence(text, "muted") for text in _trust(simulation))))
    return Report(
        title=f"{simulation.scenario}: simulation beside formula",
        status=status,
        tone=tone,
        headline=_headline(simulation),
        note="",
        sections=tuple(sections),
    )


def simulation_json(simulation: Simulation) -> str:
    """Return a simulation as one JSON object, ending in a newline."""
    return json.dumps(simulation.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def simulation_csv(simulation: Simulation) -> str:
    """Return the rows of a simulation as CSV with a header, one quantity a line."""
    lines = [",".join(Row._fields)]
    for row in simulation.rows:
        lines.append(",".join("" if cell is None else str(cell) for cell in row))
    return "\n".join(lines) + "\n"


def check_simulation_file(path: Path) -> None:
    """Raise ScenarioError if a simulation cannot be written under that name, before it is run."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ScenarioError(
            path="--output", expected=f"a file that ends in {', '.join(SUFFIXES)}", given=str(path)
        )
    if suffix == ".png" and find_spec("matplotlib") is None:
        raise ScenarioError(
            path="--output", expected="another ending than .png, since pictures need matplotlib, "
            "which is not installed", given=str(path),
        )  # fmt: skip


def simulation_file(simulation: Simulation, suffix: str) -> str | bytes:
    """Return the content of a file with that suffix.

    Parameters
    ----------
    suffix : `.json`, `.csv`, `.html`, `.md`, or `.png` (the timeline, which needs a trace).
    """
    match suffix.lower():
        case ".html":
            from allocator.report.html import report_html

            return report_html(simulation_content(simulation)) + "\n"
        case ".md":
            from allocator.report.markdown import report_markdown

            return report_markdown(simulation_content(simulation))
        case ".csv":
            return simulation_csv(simulation)
        case ".png":
            from allocator.report.timeline import timeline_png

            return timeline_png(simulation)
        case _:
            return simulation_json(simulation)


def _worth_a_row(row: Row) -> bool:
    return max(abs(row.predicted), abs(row.simulated)) >= NOTHING


def _headline(simulation: Simulation) -> str:
    row = next(row for row in simulation.rows if row.path == "useful_tokens_per_s")
    moved = change(row.predicted, row.simulated)
    apart = "the same" if moved in ("same", "") else moved
    return (
        f"{three(row.simulated)} useful tokens/s simulated, {three(row.predicted)} by formula "
        f"({apart})."
    )


def _facts(simulation: Simulation) -> tuple[Fact, ...]:
    times = plural(simulation.replications, "replication")
    warm = f"the first {simulation.warm_up_steps} of each not measured"
    return (
        Fact("plan", f"{simulation.name}, {ORIGINS[simulation.origin]}, {simulation.mode}"),
        Fact("runs", f"{times} of {plural(simulation.steps, 'step')}, {warm}, seed "
                     f"{simulation.seed}"),
        Fact("events", f"{simulation.events:,}, {three(simulation.events_per_s)} per second of "
                       "computing"),
    )  # fmt: skip


def _table(rows: Sequence[Row]) -> Table:
    cells = tuple(
        (
            LABELS[row.path],
            _value(row.path, row.predicted),
            _value(row.path, row.simulated),
            _noise(row),
            _difference(row),
            row.verdict,
        )
        for row in rows
    )
    tones = tuple[Tone, ...]("warn" if row.verdict == "differs" else "plain" for row in rows)
    return Table(HEADER, cells, (1, 2, 3, 4), tones)


def _value(path: str, value: float) -> str:
    if path.startswith("usd"):
        return money(value)
    if is_share(path):
        return f"{100.0 * value:.2f}%"
    return str(round(value)) if _whole(path) else _three(value)


def _three(value: float) -> str:
    """Return three digits, of what is but rounding 0."""
    return three(value) if abs(value) >= NOTHING else "0"


def _whole(path: str) -> bool:
    return path.rpartition(".")[2] in ("p50", "p95", "p99")


def _noise(row: Row) -> str:
    return "" if row.high is None else _distance(row, row.high - row.simulated)


def _difference(row: Row) -> str:
    text = _distance(row, abs(row.difference))
    if not any(digit in text for digit in "123456789"):
        return "none"
    return f"{'+' if row.difference > 0 else '-'}{text}"


def _distance(row: Row, distance: float) -> str:
    """Return a distance >= 0 in the words of its quantity: points, versions, or % of the formula.

    Where the formula has nothing there is no share of it, only the bare distance.
    """
    if is_share(row.path):
        return f"{100.0 * distance:.2f} pt"
    if _whole(row.path):
        return f"{distance:.0f}"
    if is_versions(row.path) or not row.predicted:
        return f"{distance:.3f}"
    return f"{100.0 * distance / abs(row.predicted):.2f}%"


def _reading(simulation: Simulation, rows: Sequence[Row]) -> list[Block]:
    """Say what lies outside the noise, and how much of it matters."""
    differing = [LABELS[row.path] for row in rows if row.verdict == "differs"]
    small = [LABELS[row.path] for row in rows if row.outside_noise and row.verdict == "agrees"]
    blocks: list[Block] = []
    if differing:
        blocks.append(Sentence(f"Differs: {', '.join(differing)}.", "warn"))
    else:
        blocks.append(Sentence("Formula and simulation agree in every quantity.", "good"))
    if small:
        level = f"{100 * simulation.interval_level:.0f}%"
        blocks.append(
            Sentence(
                f"Outside the noise of the simulation ({level}) but within what is held to agree: "
                f"{', '.join(small)}.",
                "muted",
            )
        )
    return blocks


def _staleness(simulation: Simulation) -> tuple[Block, ...]:
    stale = simulation.staleness
    first, last = _bins(stale)
    facts = (
        Fact("largest distance of the distributions", _three(stale.cdf_distance)),
        Fact("by token, formula", _three(stale.predicted_token_mean)),
        Fact("by token, simulated", _three(stale.simulated_token_mean)),
    )
    means = (simulation.predicted["staleness.mean"], simulation.simulated["staleness.mean"])
    sides = (("formula", stale.predicted), ("simulated", stale.simulated))
    charts = [
        _histogram(shares, first, last, mean, f"{label}: mean {_three(mean)}")
        for (label, shares), mean in zip(sides, means, strict=True)
    ]
    return (*charts, Facts(facts))


def _bins(stale: StalenessBeside) -> tuple[int, int]:
    """Return the first and the last bin that either distribution needs."""
    firsts, lasts = [], []
    for shares in (stale.predicted, stale.simulated):
        above = [i for i, share in enumerate(shares) if share > TAIL]
        firsts.append(above[0] if above else 0)
        lasts.append(above[-1] if above else 0)
    return min(firsts), min(max(lasts), min(firsts) + MOST_BINS - 1)


def _histogram(
    shares: tuple[float, ...], first: int, last: int, mean: float, text: str
) -> Histogram:
    shown = [shares[i] if i < len(shares) else 0.0 for i in range(first, last + 1)]
    rest = 1.0 - sum(shares[: last + 1])
    beyond = rest > TAIL
    if beyond:
        shown[-1] += rest
    return Histogram(tuple(shown), first, beyond, "versions", mean, text, None, "")


def _in_flight(simulation: Simulation) -> tuple[Block, ...]:
    found = simulation.in_flight
    facts = [
        Fact("mean", three(found.mean)),
        Fact("p99", three(found.p99)),
        Fact("cap", f"{found.cap:,}"),
    ]
    if found.sandboxes_p99 is not None:
        needed = f"{found.sandboxes_p99:,.0f} at p99"
        facts.append(Fact("sandboxes to hold", needed))
    return (Facts(tuple(facts)),)


def _trust(simulation: Simulation) -> list[str]:
    level = f"{100 * simulation.interval_level:.0f}%"
    noise = (
        f"Noise is the half-width of the {level} interval of the simulated mean over replications."
        if simulation.replications > 1
        else "One replication has no interval: verdicts go by the tolerances alone."
    )
    return [
        "A row agrees within the noise, or within 3% of a rate, time or price, 3 points of a wait, "
        "2 points of another share, 0.15 versions or 5% of a mean staleness; percentiles agree "
        "when equal.",
        noise,
        "Simulated dollars are those of the plan per hour over the simulated rate; evaluations, "
        "checkpoints and failures count in them as the plan has them.",
    ]
