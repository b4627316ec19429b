"""A plan simulated: the discrete-event twin beside the formulas, quantity by quantity."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from allocator.evaluator.prediction import decisions_of
from allocator.facade import InfeasibleError, evaluate, try_solve
from allocator.fixed import fixed_decisions
from allocator.plan import Plan, PlanWarning, plain
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import DecisionArrays
from allocator.problem.domain import build_domain
from allocator.recorded import PlanData, decisions_in, recorded_plan
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import from_dict, load, override
from allocator.scenario.overrides import Overrides
from allocator.scenario.profiles import load_catalogue
from allocator.scenario.schema import Scenario
from allocator.simulation.quantities import measured, tolerance
from allocator.simulation.result import (
    InFlight,
    Origin,
    Row,
    Simulation,
    StalenessBeside,
)
from allocator.simulator.line import SimulatedLine
from allocator.simulator.measure import LEVEL, result_of, warm_steps, window
from allocator.simulator.result import Estimate, SimulationResult
from allocator.simulator.tally import Tally
from allocator.simulator.trace import Trace, trace
from allocator.twin import line_of

__all__ = ["Row", "Simulation", "simulate"]

Source = Plan | Scenario | str | PathLike[str]
#: Called with the steps simulated so far and with all there are.
Progress = Callable[[int, int], None]

#: Fewest steps of a replication, a fifth of which are the warm-up.
FEWEST_STEPS = 5


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan as it is predicted, and its scenario."""

    plan: PlanData
    scenario: Scenario
    origin: Origin


def simulate(
    plan_or_scenario: Source,
    steps: int = 500,
    seed: int = 0,
    replications: int = 4,
    progress: Progress | None = None,
    *,
    overrides: Overrides = (),
    trace_steps: int = 0,
) -> Simulation:
    """Simulate a plan, and lay what is measured beside what the formulas predict.

    Parameters
    ----------
    plan_or_scenario : a plan, a scenario, or the path of a scenario file (YAML) or of a plan that
        `solve` wrote (JSON). A scenario whose `plan:` block fixes the GPUs of trainer and
        generator (or its engines) is evaluated as it stands, any other is solved; a plan counts as
        it was recorded.
    steps : training steps of each replication (>= 5), of which the first fifth is not measured.
    seed : of all random numbers; the same seed gives the same result.
    replications : independent runs (>= 1); intervals need at least 2.
    progress : called with the steps simulated so far and the number of all steps.
    overrides : keys of the scenario to replace, as for `allocator.load`; not of a plan.
    trace_steps : steps of the first replication, after its warm-up, to record in `.trace`.

    Returns
    -------
    Simulation

    Raises
    ------
    ScenarioError
        When the source cannot be read or planned, or its plan cannot run.
    InfeasibleError
        When a scenario to be solved has no plan.
    SolverFailure
        As for `allocator.solve`.
    ValueError
        On too few steps or replications.
    """
    if steps < FEWEST_STEPS or replications < 1 or trace_steps < 0:
        raise ValueError(
            f"at least {FEWEST_STEPS} steps, 1 replication and 0 steps to trace, "
            f"given {steps}, {replications} and {trace_steps}"
        )
    planned = _planned(plan_or_scenario, overrides)
    problem, arrays, warnings = _decided(planned)
    try:
        # The simulator refuses with ValueError what cannot run, or would never train anything.
        line = line_of(problem, arrays)
        windows, wall_s, traced = _run(line, steps, seed, replications, progress, trace_steps)
    except ValueError as error:
        raise ScenarioError(
            f"the plan cannot be simulated: {error}", file=planned.plan.name
        ) from error
    result = result_of(line, windows)
    found = measured(line, result, windows, planned.plan, problem.system.money.sequence_basis)
    rows = [_row(path, value, planned.plan) for path, value in found.items()]
    return Simulation(
        name=planned.plan.name,
        origin=planned.origin,
        scenario=str(planned.scenario.name or planned.plan.name),
        mode=line.mode,
        simulated={row.path: row.simulated for row in rows},
        predicted={row.path: row.predicted for row in rows},
        difference={row.path: row.difference for row in rows},
        intervals={
            row.path: (row.low, row.high)
            for row in rows
            if row.low is not None and row.high is not None
        },
        tolerances={row.path: row.tolerance for row in rows},
        verdicts={row.path: row.verdict for row in rows},
        outside_noise=tuple(row.path for row in rows if row.outside_noise),
        staleness=_staleness(result, planned.plan),
        in_flight=_in_flight(line, result),
        seed=seed,
        steps=steps,
        warm_up_steps=warm_steps(steps),
        replications=replications,
        events=result.events,
        interval_level=LEVEL,
        warnings=warnings,
        wall_s=wall_s,
        events_per_s=result.events * steps / (steps - warm_steps(steps)) / wall_s,
        trace=traced,
    )


def _planned(source: Source, overrides: Overrides) -> _Planned:
    if isinstance(source, Scenario):
        scenario = override(source, overrides) if overrides else source
        return _predicted(scenario, scenario.name or "scenario")
    if not isinstance(source, Plan):
        path = Path(source)
        recorded = recorded_plan(path)
        if recorded is None:
            return _predicted(load(path, overrides), str(path))
        name, directory = str(path), path.absolute().parent
    else:
        recorded, name, directory = (
            source.to_dict(),
            str(source.scenario.get("name") or "plan"),
            None,
        )
    if overrides:
        raise ScenarioError(
            file=name, expected="a scenario, whose keys can be replaced", given="a plan"
        )
    stated = recorded.get("scenario")
    if not isinstance(stated, Mapping):
        raise ScenarioError(
            file=name, path="scenario", expected="the scenario of the plan", given="nothing"
        )
    scenario = from_dict(stated, file=name, directory=directory)
    return _Planned(PlanData(name, recorded), scenario, "recorded")


def _predicted(scenario: Scenario, name: str) -> _Planned:
    if scenario.plan.fixes_split:
        plan = evaluate(scenario, with_intervals=False)
        return _Planned(PlanData(name, plan.to_dict()), scenario, "evaluated")
    plan = try_solve(scenario)
    if plan.prediction is None:
        raise InfeasibleError(plan)
    return _Planned(PlanData(name, plan.to_dict()), scenario, "solved")


def _decided(planned: _Planned) -> tuple[Problem, DecisionArrays, tuple[PlanWarning, ...]]:
    """Return the problem, the plan's decisions in it, and what is to be said of them."""
    scenario, plan = planned.scenario, planned.plan
    problem = build_problem(scenario, load_catalogue())
    domain = build_domain(scenario, problem.system)
    given = decisions_in(plan.data, plan.name)
    arrays, _ = fixed_decisions(scenario, problem, domain, given)
    warnings = []
    if plain(decisions_of(problem, arrays, 0)) != plan.look_up("plan"):
        text = "the decisions of the plan cannot all be had any more; what is simulated differs"
        warnings.append(PlanWarning("other_decisions", text, "plan"))
    from allocator import __version__

    recorded = plan.text("versions.allocator")
    if recorded != __version__:
        text = (
            f"predicted by version {recorded or 'unknown'} of the allocator, simulated by "
            f"{__version__}: differences may be those of the step laws"
        )
        warnings.append(PlanWarning("version_differs", text, "versions.allocator"))
    return problem, arrays, tuple(warnings)


def _run(
    line: SimulatedLine,
    steps: int,
    seed: int,
    replications: int,
    progress: Progress | None,
    trace_steps: int,
) -> tuple[list[Tally], float, Trace | None]:
    """Return the totals of all replications, the seconds they took, and the trace of the first."""
    seeds = np.random.SeedSequence(seed).spawn(replications)
    whole, windows, begun = steps * replications, [], time.perf_counter()
    for number, child in enumerate(seeds):
        on_step = None if progress is None else _shifted(progress, number * steps, whole)
        windows.append(window(line, steps, child, on_step))
    wall_s = time.perf_counter() - begun
    if not trace_steps:
        return windows, wall_s, None
    # A child of its own state: spawning from a seed a second time would give other numbers.
    first = np.random.SeedSequence(seed).spawn(1)[0]
    return windows, wall_s, trace(line, first, warm_steps(steps), trace_steps)


def _shifted(progress: Progress, done: int, whole: int) -> Callable[[int], None]:
    return lambda steps: progress(done + steps, whole)


def _row(path: str, value: Estimate, plan: PlanData) -> Row:
    predicted = plan.number(f"prediction.{path}")
    allowed = tolerance(path, value.mean)
    difference = value.mean - predicted
    noise = value.half_width
    # Differences of the last digits are rounding, not an effect without noise.
    rounding = 1e-9 * max(abs(value.mean), abs(predicted), 1e-3)
    outside = noise is not None and abs(difference) > noise + rounding
    within = abs(difference) <= max(allowed, rounding) or (noise is not None and not outside)
    return Row(
        path,
        predicted,
        value.mean,
        value.low,
        value.high,
        difference,
        allowed,
        outside,
        "agrees" if within else "differs",
    )


def _staleness(result: SimulationResult, plan: PlanData) -> StalenessBeside:
    stated: Any = plan.look_up("prediction.staleness.cdf") or (1.0,)
    predicted = [float(share) for share in stated]
    simulated = list(result.staleness.cdf)
    longest = max(len(predicted), len(simulated))
    distance = max(
        abs(a - b)
        for a, b in zip(_padded(predicted, longest), _padded(simulated, longest), strict=True)
    )
    return StalenessBeside(
        predicted=_shares(predicted),
        simulated=_shares(simulated),
        cdf_distance=distance,
        predicted_token_mean=plan.number("prediction.staleness.token_mean"),
        simulated_token_mean=result.staleness.token_mean.mean,
    )


def _padded(cdf: list[float], length: int) -> list[float]:
    return cdf + [cdf[-1]] * (length - len(cdf))


def _shares(cdf: list[float]) -> tuple[float, ...]:
    return tuple(max(0.0, b - a) for a, b in zip([0.0, *cdf], cdf, strict=False))


def _in_flight(line: SimulatedLine, result: SimulationResult) -> InFlight:
    per_rollout = None if line.sandboxes is None else line.sandboxes.per_rollout
    p99 = result.in_flight_p99.mean
    return InFlight(
        cap=line.engines.count * line.engines.in_flight,
        mean=result.in_flight.mean,
        p99=p99,
        sandboxes_p99=None if per_rollout is None else per_rollout * p99,
    )
