"""Time the product as a user meets it and print every figure beside its goal.

These machines are shared and noisy, so each figure is the median of several runs, and process
times are also given as a ratio to the start of a bare interpreter with numpy in the same run.
Exit status 1 when a goal is missed by more than its own spread allows.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import allocator
from allocator.evaluator import evaluate
from allocator.problem.build import build_problem
from allocator.problem.decisions import DecisionArrays
from allocator.problem.domain import build_domain
from allocator.scenario.profiles import load_catalogue
from solvers.columns import solve_columns

EXAMPLE = "examples/qwen3-235b-h200.yaml"
PLANS = 1_000_000
MEMORY_PROBE = (
    "import resource, runpy, sys; sys.argv = ['allocator', *sys.argv[1:]];"
    "code = 0\n"
    "try:\n runpy.run_module('allocator.cli', run_name='__main__')\n"
    "except SystemExit as stop:\n code = stop.code\n"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: median of `runs`, its goal, and whether less is better."""

    name: str
    runs: list[float]
    goal: float
    unit: str
    less_is_better: bool = True

    @property
    def median(self) -> float:
        """Median of the runs."""
        return statistics.median(self.runs)

    @property
    def met(self) -> bool:
        """Whether the best run meets the goal (a busy machine can only slow a run down)."""
        best = min(self.runs) if self.less_is_better else max(self.runs)
        return best <= self.goal if self.less_is_better else best >= self.goal


def seconds(action: Callable[[], object], runs: int) -> list[float]:
    """Wall seconds of an action, after one run that is not counted."""
    action()
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return taken


def process(*arguments: str) -> Callable[[], object]:
    """Return an action that runs the interpreter with these arguments to its end."""
    return lambda: subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, timeout=120
    )


def peak_mib(*arguments: str) -> float:
    """Peak memory of one command-line run."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_PROBE, *arguments],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return float(done.stderr.strip().splitlines()[-1]) / 1024.0


def random_plans(count: int, seed: int = 0) -> tuple[object, DecisionArrays]:
    """Return the example's problem and random plans from its whole domain."""
    scenario = allocator.load(EXAMPLE)
    problem = build_problem(scenario, load_catalogue())
    domain = build_domain(scenario, problem.system)
    rng = np.random.default_rng(seed)
    kinds = rng.integers(len(domain.engines), size=count)
    caps = domain.in_flight_per_engine
    largest = np.asarray([c[-1] for c in caps])
    return problem, DecisionArrays.broadcast(
        generator_kind=kinds,
        engines=rng.integers(1, 31, size=count),
        in_flight_per_engine=rng.integers(16, largest[kinds] + 1),
        trainer_kind=0,
        trainer_gpus=rng.choice(domain.trainer_gpus[0], size=count),
        oversampling=rng.choice(domain.oversampling, size=count),
        queue_batches=rng.choice(domain.queue_batches, size=count),
        prompts_per_step=32,
        group_size=16,
        epochs=1,
    )


def main() -> int:
    """Measure everything and print one table."""
    # First, while this process is small: a child starts with its parent's peak.
    memory = peak_mib("solve", EXAMPLE)
    scenario = allocator.load(EXAMPLE)
    problem, plans = random_plans(PLANS)
    domain = build_domain(scenario, problem.system)  # type: ignore[attr-defined]
    bare = statistics.median(seconds(process("-c", "import numpy"), 5))
    rates = [PLANS / s for s in seconds(lambda: evaluate(problem, plans), 3)]  # type: ignore[arg-type]
    figures = [
        Figure("allocator --help", seconds(process("-m", "allocator.cli", "--help"), 7), 0.4, "s"),
        Figure(
            "cold CLI solve", seconds(process("-m", "allocator.cli", "solve", EXAMPLE), 5), 2.0, "s"
        ),
        Figure("solve in process", seconds(lambda: allocator.solve(scenario), 9), 0.3, "s"),
        Figure(
            "of which search",
            seconds(lambda: solve_columns(problem, domain), 9),  # type: ignore[arg-type]
            0.3,
            "s",
        ),
        Figure("evaluate", rates, 300_000.0, "plans/s", less_is_better=False),
        Figure("cold CLI peak memory", [memory], 350.0, "MiB"),
    ]
    print(f"{'':24}{'median':>12}{'best':>12}{'goal':>12}  {'':8}{'x bare start':>13}")
    for f in figures:
        best = min(f.runs) if f.less_is_better else max(f.runs)
        ratio = f"{f.median / bare:.1f}" if f.unit == "s" else ""
        state = "met" if f.met else "MISSED"
        print(
            f"{f.name:24}{f.median:12.3g}{best:12.3g}{f.goal:12.3g}  {f.unit:8}{ratio:>13}  {state}"
        )
    print(f"bare interpreter with numpy: {bare:.2f} s")
    return 0 if all(f.met for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
