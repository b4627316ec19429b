"""The plan a user fixed, completed where it leaves something open, and said so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from allocator.evaluator import evaluate
from allocator.plan import PlanWarning
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays, Domain, Ints
from allocator.problem.limits import TIE

if TYPE_CHECKING:
    from allocator.scenario.schema import Scenario

WHERE = "plan"


def fixed_decisions(
    scenario: Scenario, problem: Problem, domain: Domain, given: dict[str, Any]
) -> tuple[DecisionArrays, tuple[PlanWarning, ...]]:
    """Return the one plan that `plan:` and `given` describe, and what was completed in it.

    The trainer's GPUs and the generator's (or its engines) must be fixed. An open in-flight cap
    fills the KV cache, an open engine kind is the one with the best objective, ranges are taken at
    their low end; each is named in a warning.

    Raises
    ------
    ScenarioError
        When a decision is missing, unknown to the scenario, or does not fit its pool or engine.
    """
    known = set(type(scenario.plan).model_fields)
    for name in given:
        if name not in known:
            raise scenario.error(f"{WHERE}.{name}", f"one of {', '.join(sorted(known))}", name)
    said = {name: getattr(scenario.plan, name) for name in known} | given
    said = {name: value for name, value in said.items() if value is not None}
    completed: list[str] = []
    kinds = _engine_kinds(scenario, problem, said)
    trainer = _trainer_kind(scenario, problem, said)
    if "trainer_gpus" not in said:
        raise scenario.error(f"{WHERE}.trainer_gpus", "the GPUs of the trainer", "nothing")
    plans = []
    for kind in kinds:
        engines = _engines(scenario, problem, said, kind)
        if engines is None:
            continue
        plans.append(
            DecisionArrays.broadcast(
                generator_kind=kind,
                engines=engines,
                in_flight_per_engine=_in_flight(domain, said, kind, engines),
                trainer_kind=trainer,
                trainer_gpus=said["trainer_gpus"],
                **_others(domain, said),
            )
        )
    if not plans:
        size = sorted({int(problem.system.engines.gpus_per_engine[k]) for k in kinds})
        raise scenario.error(
            f"{WHERE}.generator_gpus",
            f"a multiple of an engine's GPUs ({', '.join(map(str, size))})",
            str(said.get("generator_gpus")),
        )
    outcome = evaluate(problem, DecisionArrays.concatenate(plans))
    broken = np.where(outcome.feasible, 0, 1)
    tied = outcome.score > np.min(outcome.score[broken == broken.min()]) * (1.0 + TIE)
    best = int(np.lexsort((outcome.plans.in_flight_per_engine, tied, broken))[0])
    chosen = outcome.plans.take(np.asarray([best]))
    if len(kinds) > 1:
        label = problem.system.engines.labels[int(chosen.generator_kind[0])]
        completed.append(f"engine {label.backend} {label.backend_version} {label.layout}")
    if "in_flight" not in said and "in_flight_per_engine" not in said:
        completed.append(
            f"{int(chosen.in_flight_per_engine[0])} rollouts in flight per engine, the fewest that "
            "give the best objective"
        )
    for name, path in domain.ranges:
        if name not in said and getattr(domain, name).size > 1:
            completed.append(f"{name} {getattr(chosen, name)[0]:g}, the low end of {path}")
    if not completed:
        return chosen, ()
    text = f"not fixed in the plan and completed: {'; '.join(completed)}"
    return chosen, (PlanWarning("completed_plan", text, WHERE),)


def _engine_kinds(scenario: Scenario, problem: Problem, said: dict[str, Any]) -> list[int]:
    labels, pools = problem.system.engines.labels, problem.system.pools
    kinds = list(range(len(labels)))
    if "generator_pool" in said:
        kinds = [k for k in kinds if pools[labels[k].pool].name == said["generator_pool"]]
        if not kinds:
            names = sorted({pools[label.pool].name for label in labels})
            raise scenario.error(
                f"{WHERE}.generator_pool",
                f"a pool that may decode ({', '.join(names)})",
                str(said["generator_pool"]),
            )
    if "layout" in said:
        wanted = said["layout"]
        degrees = {
            k: int(wanted[k] if isinstance(wanted, dict) else getattr(wanted, k))
            for k in ("tp", "ep", "dp", "pp")
            if (k in wanted if isinstance(wanted, dict) else hasattr(wanted, k))
        }
        matching = [
            k for k in kinds if all(getattr(labels[k].layout, d) == n for d, n in degrees.items())
        ]
        if not matching:
            have = sorted({str(labels[k].layout) for k in kinds})
            raise scenario.error(
                f"{WHERE}.layout", f"a layout with rates ({'; '.join(have)})", str(degrees)
            )
        kinds = matching
    return kinds


def _trainer_kind(scenario: Scenario, problem: Problem, said: dict[str, Any]) -> int:
    names = [problem.system.pools[pool].name for pool, _ in problem.system.trainers.labels]
    wanted = said.get("trainer_pool")
    if wanted is None and len(names) == 1:
        return 0
    if wanted not in names:
        raise scenario.error(
            f"{WHERE}.trainer_pool",
            f"a pool that may train ({', '.join(names)})",
            str(wanted) if wanted is not None else "nothing",
        )
    return names.index(wanted)


def _engines(scenario: Scenario, problem: Problem, said: dict[str, Any], kind: int) -> int | None:
    if "engines" in said:
        return int(said["engines"])
    if "generator_gpus" not in said:
        raise scenario.error(
            f"{WHERE}.generator_gpus", "the GPUs of the generator, or its engines", "nothing"
        )
    gpus = int(problem.system.engines.gpus_per_engine[kind])
    engines, rest = divmod(int(said["generator_gpus"]), gpus)
    return engines if rest == 0 and engines > 0 else None


def _in_flight(domain: Domain, said: dict[str, Any], kind: int, engines: int) -> Ints:
    """Return the cap per engine, or all caps of the domain when none is fixed."""
    if "in_flight_per_engine" in said:
        return np.asarray([int(said["in_flight_per_engine"])])
    if "in_flight" in said:
        return np.asarray([max(1, round(int(said["in_flight"]) / engines))])
    return domain.in_flight_per_engine[kind]


def _others(domain: Domain, said: dict[str, Any]) -> dict[str, Any]:
    names = ("oversampling", "queue_batches", "prompts_per_step", "group_size", "epochs")
    return {name: said.get(name, getattr(domain, name)[0]) for name in names}
