"""The plan a user fixed, completed where it leaves something open, and said so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from allocator.evaluator import evaluate
from allocator.plan import PlanWarning
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays, Domain, Ints
from allocator.problem.limits import TIE
from allocator.scenario.load import override

if TYPE_CHECKING:
    from allocator.scenario.schema import Scenario

WHERE = "plan"
#: Two ways to fix one thing: whichever is given replaces the other of the `plan:` block.
OTHER_WAY = {
    "in_flight": "in_flight_per_engine",
    "in_flight_per_engine": "in_flight",
    "engines": "generator_gpus",
    "generator_gpus": "engines",
}


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
    said = _said(scenario, given)
    completed: list[str] = []
    kinds = _engine_kinds(scenario, problem, said)
    trainer = _trainer_kind(scenario, problem, said)
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
        whole = f"a multiple of an engine's GPUs ({', '.join(map(str, size))})"
        if "engines" in said:
            whole = (
                f"the GPUs of {said['engines']} engines in whole units of their pool, or nothing"
            )
        raise scenario.error(f"{WHERE}.generator_gpus", whole, str(said.get("generator_gpus")))
    outcome = evaluate(problem, DecisionArrays.concatenate(plans))
    broken = np.where(outcome.feasible, 0, 1)
    least = float(np.min(outcome.score[broken == broken.min()]))
    worse = outcome.score > least + TIE * abs(least)
    best = int(np.lexsort((outcome.plans.in_flight_per_engine, worse, broken))[0])
    chosen = outcome.plans.take(np.asarray([best]))
    if len(kinds) > 1:
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
    if not completed:
        return chosen, ()
    text = f"not fixed in the plan and completed: {'; '.join(completed)}"
    return chosen, (PlanWarning("completed_plan", text, WHERE),)


def _said(scenario: Scenario, given: dict[str, Any]) -> dict[str, Any]:
    """Return every decision that is fixed, those given checked like those of the file."""
    known = set(type(scenario.plan).model_fields)
    for name in given:
        if name not in known:
            raise scenario.error(f"{WHERE}.{name}", f"one of {', '.join(sorted(known))}", name)
    changes = {
        f"{WHERE}.{OTHER_WAY[name]}": None
        for name in given
        if name in OTHER_WAY and OTHER_WAY[name] not in given
    }
    # A layout may be given by some of its degrees only; the file states all.
    changes |= {f"{WHERE}.{name}": value for name, value in given.items() if name != "layout"}
    plan = override(scenario, changes).plan if changes else scenario.plan
    said = {name: getattr(plan, name) for name in known}
    said["layout"] = given.get("layout", said["layout"])
    return {name: value for name, value in said.items() if value is not None}


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
    pools = [problem.system.pools[pool] for pool, _ in problem.system.trainers.labels]
    names = [pool.name for pool in pools]
    wanted = said.get("trainer_pool", names[0] if len(names) == 1 else None)
    if wanted not in names:
        raise scenario.error(
            f"{WHERE}.trainer_pool",
            f"a pool that may train ({', '.join(names)})",
            str(wanted) if wanted is not None else "nothing",
        )
    kind = names.index(wanted)
    if "trainer_gpus" not in said:
        raise scenario.error(f"{WHERE}.trainer_gpus", "the GPUs of the trainer", "nothing")
    gpus, unit = int(said["trainer_gpus"]), pools[kind].unit_gpus
    if gpus % unit:
        raise scenario.error(
            f"{WHERE}.trainer_gpus",
            f"whole nodes of {unit} GPUs of pool {wanted} (or granularity: gpu)",
            str(gpus),
            nearest=str(max(unit, round(gpus / unit) * unit)),
        )
    return kind


def _engines(scenario: Scenario, problem: Problem, said: dict[str, Any], kind: int) -> int | None:
    """Return how many engines of a kind are meant, or None when they do not fill the GPUs."""
    if "engines" not in said and "generator_gpus" not in said:
        raise scenario.error(
            f"{WHERE}.generator_gpus", "the GPUs of the generator, or its engines", "nothing"
        )
    kinds = problem.system.engines
    gpus = int(kinds.gpus_per_engine[kind])
    if "engines" not in said:
        engines, rest = divmod(int(said["generator_gpus"]), gpus)
        return engines if rest == 0 and engines > 0 else None
    engines = int(said["engines"])
    unit = problem.system.pools[kinds.labels[kind].pool].unit_gpus
    whole = -(-engines * gpus // unit) * unit
    return engines if said.get("generator_gpus", whole) == whole else None


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
