"""The plan a user fixed, completed where it leaves something open, and said so."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from allocator.evaluator import evaluate
from allocator.fixed.choices import (
    WHERE,
    engine_kinds,
    engines_meant,
    in_flight,
    modes,
    others,
    prefill_engines,
    reward_engines,
    stated,
    trainer_kind,
)
from allocator.plan import MODES, PlanWarning
from allocator.problem.build import Problem
from allocator.problem.decisions import COLOCATED_SYNC, NONE, DecisionArrays, Domain
from allocator.problem.limits import TIE

if TYPE_CHECKING:
    from allocator.scenario.schema import Scenario


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
    said = stated(scenario, given)
    plans = _plans(scenario, problem, domain, said)
    outcome = evaluate(problem, plans)
    broken = np.where(outcome.feasible, 0, 1)
    least = float(np.min(outcome.score[broken == broken.min()]))
    worse = outcome.score > least + TIE * abs(least)
    best = int(np.lexsort((outcome.plans.in_flight_per_engine, worse, broken))[0])
    chosen = outcome.plans.take(np.asarray([best]))
    completed = _completed(problem, domain, said, plans, chosen)
    if not completed:
        return chosen, ()
    text = f"not fixed in the plan and completed: {'; '.join(completed)}"
    return chosen, (PlanWarning("completed_plan", text, WHERE),)


def _plans(
    scenario: Scenario, problem: Problem, domain: Domain, said: dict[str, Any]
) -> DecisionArrays:
    """Return every plan that fits what is fixed.

    Raises
    ------
    ScenarioError
        When there is none.
    """
    kinds = engine_kinds(scenario, problem, said)
    trainer = trainer_kind(scenario, problem, said)
    plans = []
    for kind, mode in itertools.product(kinds, modes(scenario, domain, said)):
        for readers, scorers in itertools.product(
            prefill_engines(scenario, problem, domain, said, kind),
            reward_engines(scenario, problem, domain, said),
        ):
            if mode == COLOCATED_SYNC and readers["prefill_kind"] != NONE:
                # One set of GPUs that takes turns prefills on its decode engines.
                continue
            engines = engines_meant(scenario, problem, said, kind, readers)
            if engines is None:
                continue
            plans.append(
                DecisionArrays.broadcast(
                    generator_kind=kind,
                    engines=engines,
                    in_flight_per_engine=in_flight(domain, said, kind, engines),
                    trainer_kind=trainer,
                    trainer_gpus=said["trainer_gpus"],
                    mode=mode,
                    **readers,
                    **scorers,
                    **others(domain, said),
                )
            )
    if plans:
        return DecisionArrays.concatenate(plans)
    size = sorted({int(problem.system.engines.gpus_per_engine[k]) for k in kinds})
    whole = f"a multiple of an engine's GPUs ({', '.join(map(str, size))})"
    if "engines" in said:
        whole = f"the GPUs of {said['engines']} engines in whole units of their pool, or nothing"
    raise scenario.error(f"{WHERE}.generator_gpus", whole, str(said.get("generator_gpus")))


def _completed(
    problem: Problem,
    domain: Domain,
    said: dict[str, Any],
    plans: DecisionArrays,
    chosen: DecisionArrays,
) -> list[str]:
    """Return in words what was not fixed and is completed."""
    completed: list[str] = []
    if np.unique(plans.mode).size > 1:
        completed.append(f"mode {MODES[int(chosen.mode[0])]}")
    for role, counts in (("prefill", chosen.prefill_engines), ("reward", chosen.reward_engines)):
        is_open = f"{role}_engines" not in said and f"{role}_gpus" not in said
        if is_open and int(counts[0]) > 0:
            completed.append(f"{int(counts[0])} {role} engines")
    if np.unique(plans.generator_kind).size > 1:
        label = problem.system.engines.labels[int(chosen.generator_kind[0])]
        completed.append(f"engine {label.backend} {label.backend_version} {label.layout}")
    if "in_flight" not in said and "in_flight_per_engine" not in said:
        completed.append(
            f"{int(chosen.in_flight_per_engine[0])} rollouts in flight per engine, the fewest that "
            "give the best objective"
        )
    engines, each = int(chosen.engines[0]), int(chosen.in_flight_per_engine[0])
    if "in_flight" in said and engines * each != int(said["in_flight"]):
        completed.append(f"in_flight {engines * each}, {each} on each of {engines} engines")
    for name, path in domain.ranges:
        if name not in said and getattr(domain, name).size > 1:
            completed.append(f"{name} {getattr(chosen, name)[0]:g}, the low end of {path}")
    return completed
