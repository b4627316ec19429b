"""Lessons of the examples with tools: GLM-5, prefill and decode apart, sandboxes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from allocator.plan import Plan
from tools.lesson_runs import (
    best,
    changed,
    decided,
    error,
    example,
    outcome,
    predicted,
    prefill_gpus,
    span,
    table,
)

GLM5 = "glm5-h200-tools.yaml"
PREFILL = "prefill-heavy-tools.yaml"
SANDBOXES = "gb300-sandboxes.yaml"

#: Keys of the scenarios at 51 tool calls; 20 are in the files.
GLM5_END = {
    "workload.turns": 51,
    "workload.tool_tokens_per_turn": 214,
    "workload.response_tokens.mean": 16000,
}
PREFILL_END = {"workload.turns": 51, "workload.response_tokens.mean": 7650}

#: SemiAnalysis, "RL Systems Mind the Gap" (June 2026), cases 2 and 3.
GLM5_WAIT = 0.74
GLM5_RATIO = 5.0
GLM5_ALL_SOLVED = 0.55
GLM5_MODEL_S = (352.0, 1941.0)
FEW, MANY = 96, 960


@dataclass(frozen=True)
class Reading:
    """One published reading of how much faster the trainer is than what reaches it.

    `effective` is what the trainer could take over what carries signal; `raw` over all that is
    generated, of which `1 - all_solved` carries signal.
    """

    effective: float
    raw: float

    @property
    def wait(self) -> float:
        """Share of time the trainer waits: 1 - v/v_T."""
        return 1.0 - 1.0 / self.effective

    @property
    def wait_if_all_had_signal(self) -> float:
        """The same if no group were solved by all its rollouts."""
        return max(0.0, 1.0 - 1.0 / self.raw)


def readings() -> dict[str, Reading]:
    """Return both published readings: five times, and 74% of the time."""
    ratios = {"5 times": GLM5_RATIO, "74% wait": 1.0 / (1.0 - GLM5_WAIT)}
    return {name: Reading(r, r * (1.0 - GLM5_ALL_SOLVED)) for name, r in ratios.items()}


@cache
def glm5() -> tuple[Plan, Plan]:
    """Return GLM-5 as published, at 20 and at 51 tool calls, with intervals."""
    start, end = (predicted(changed(GLM5, c), with_intervals=True) for c in ({}, GLM5_END))
    return start, end


@cache
def glm5_best() -> tuple[Plan, Plan]:
    """Return the best plans at 20 and at 51 tool calls."""
    start, end = (best(changed(GLM5, c)) for c in ({}, GLM5_END))
    return start, end


def glm5_lines() -> list[str]:
    """Return the tables of GLM-5."""
    plans, anew = glm5(), glm5_best()
    moments = []
    for calls, plan, model_s in zip((20, 51), plans, GLM5_MODEL_S, strict=True):
        found = outcome(plan)
        moments.append(
            (
                f"{calls} tool calls",
                f"{model_s:,.0f}",
                span(plan, "generation_s", ",.0f"),
                error(found.generation_s, model_s),
                f"{GLM5_WAIT:.2f}",
                span(plan, "trainer_wait_fraction", ".2f"),
            )
        )
    rates = [
        (
            name,
            f"{r.effective:.2f}",
            f"{r.raw:.2f}",
            f"{r.wait:.0%}",
            f"{r.wait_if_all_had_signal:.0%}",
        )
        for name, r in readings().items()
    ]
    for calls, plan in zip((20, 51), plans, strict=True):
        found = outcome(plan)
        effective = found.trainer_samples_per_s / found.accepted_samples_per_s
        raw = found.trainer_samples_per_s / found.generated_samples_per_s
        rates.append(
            (
                f"predicted, {calls} calls",
                f"{effective:.2f}",
                f"{raw:.2f}",
                f"{found.trainer_wait_fraction:.0%}",
                f"{max(0.0, 1.0 - 1.0 / raw):.0%}",
            )
        )
    splits = []
    for calls, plan, new in zip((20, 51), plans, anew, strict=True):
        splits.append(
            (
                f"{calls} tool calls",
                _split(plan),
                f"{outcome(plan).usd_per_useful_mtok:.2f}",
                _split(new),
                f"{outcome(new).usd_per_useful_mtok:.2f}",
            )
        )
    latency = ("", "model s a rollout, published", "predicted", "error")
    plan_header = ("trainer + prefill + decode GPUs", "as published", "$/useful Mtok")
    return [
        *table((*latency, "wait, published mean", "predicted"), moments),
        "",
        *table(
            ("trainer over generator", "effective", "raw", "wait", "wait if all groups had signal"),
            rates,
        ),
        "",
        *table((*plan_header, "planned anew", "$/useful Mtok"), splits),
    ]


def _split(plan: Plan) -> str:
    reading, generator = prefill_gpus(plan), decided(plan).generator.gpus
    return f"{decided(plan).trainer.gpus} + {reading} + {generator - reading}"


@dataclass(frozen=True)
class Swap:
    """The best plans of 20 and of 51 calls, and each of them forced on the other workload."""

    own: tuple[Plan, Plan]
    forced: tuple[Plan, Plan]

    def loss(self, index: int) -> float:
        """Return what the other's split costs here, as a share of the best objective."""
        mine = self.own[index].objective.value
        return self.forced[index].objective.value / mine - 1.0


@cache
def prefill_swap() -> Swap:
    """Solve both workloads; then evaluate the split of each on the other."""
    scenarios = [changed(PREFILL, c) for c in ({}, PREFILL_END)]
    own = (best(scenarios[0]), best(scenarios[1]))
    forced = (
        predicted(scenarios[0], **_fixed(own[1])),
        predicted(scenarios[1], **_fixed(own[0])),
    )
    return Swap(own, forced)


def _fixed(plan: Plan) -> dict[str, Any]:
    """Return the split of a plan; rollouts in flight stay open, so each workload gets its own."""
    said = decided(plan)
    return {
        "trainer_gpus": said.trainer.gpus,
        "generator_gpus": said.generator.gpus,
        "prefill_gpus": prefill_gpus(plan),
        "queue_batches": said.queue_batches,
    }


def prefill_lines() -> list[str]:
    """Return the table of the two workloads and the two splits."""
    swap = prefill_swap()
    rows = []
    for index, calls in enumerate((20, 51)):
        own, forced = outcome(swap.own[index]), outcome(swap.forced[index])
        rows.append(
            (
                f"{calls} tool calls",
                f"{own.environment.prefill_s:.2f}",
                _split(swap.own[index]),
                f"{own.usd_per_useful_mtok:.3f}",
                _split(swap.forced[index]),
                f"{forced.usd_per_useful_mtok:.3f}",
                f"{swap.loss(index):+.0%}",
            )
        )
    header = ("trainer + prefill + decode GPUs", "prefill s a rollout", "best", "$/useful Mtok")
    return table((*header, "the other's", "$/useful Mtok", "costs"), rows)


@cache
def sandbox_plans() -> dict[int, Plan]:
    """Return plans by rollouts in flight: 96, 960, the best between, and a few more."""
    scenario = example(SANDBOXES)
    free = predicted(changed(SANDBOXES, {"plan.in_flight": None}))
    counts = sorted({FEW, MANY, decided(free).generator.in_flight, 192, 480, 640})
    return {n: predicted(scenario, in_flight=n) for n in counts}


def cheapest_in_flight() -> int:
    """Return the rollouts in flight with the least dollars per useful token."""
    return min(sandbox_plans(), key=lambda n: sandbox_plans()[n].objective.value)


def sandbox_lines() -> list[str]:
    """Return the table over rollouts in flight, and the gain of the best over both ends."""
    plans, chosen = sandbox_plans(), cheapest_in_flight()
    rows = []
    for count, plan in plans.items():
        found = outcome(plan)
        rows.append(
            (
                f"**{count}**" if count == chosen else f"{count}",
                f"{found.environment.sandbox_start_s:,.0f}",
                f"{found.environment.failed_rollouts_fraction:.0%}",
                f"{found.useful_tokens_per_s:,.0f}",
                f"{found.environment.sandbox_usd_per_hour:,.0f} of {found.usd_per_hour:,.0f}",
                f"{found.usd_per_useful_mtok:.2f}",
                f"{found.staleness.mean:.1f}",
            )
        )
    least = plans[chosen].objective.value
    ends = " and ".join(
        f"{1.0 - least / plans[n].objective.value:.0%} cheaper than {n}" for n in (FEW, MANY)
    )
    fastest = max(plans, key=lambda n: outcome(plans[n]).useful_tokens_per_s)
    header = ("in flight", "start s", "lost", "useful tokens/s", "sandboxes' $/h")
    return [
        *table((*header, "$/useful Mtok", "staleness"), rows),
        "",
        f"The best in between is {chosen} in flight: {ends}. By useful tokens per second alone "
        f"{fastest} of these is best.",
    ]
