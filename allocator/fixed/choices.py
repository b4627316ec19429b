"""What a fixed plan means: which kinds, counts and caps fit what the user stated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from allocator.plan import MODES
from allocator.problem.build import Problem
from allocator.problem.decisions import NONE, Domain, Ints
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


def stated(scenario: Scenario, given: dict[str, Any]) -> dict[str, Any]:
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


def engine_kinds(scenario: Scenario, problem: Problem, said: dict[str, Any]) -> list[int]:
    """Return the kinds of decode engines with the pool, formats and layout that are stated."""
    labels, pools = problem.system.engines.labels, problem.system.pools
    kinds = np.flatnonzero(problem.system.engines.decodes).tolist()
    if "generator_pool" in said:
        kinds = [k for k in kinds if pools[labels[k].pool].name == said["generator_pool"]]
        if not kinds:
            decoding = np.flatnonzero(problem.system.engines.decodes)
            names = sorted({pools[labels[k].pool].name for k in decoding})
            raise scenario.error(
                f"{WHERE}.generator_pool",
                f"a pool that may decode ({', '.join(names)})",
                str(said["generator_pool"]),
            )
    for name in ("weights_dtype", "kv_dtype"):
        if name in said:
            legal = sorted({getattr(labels[k], name) for k in kinds})
            kinds = [k for k in kinds if getattr(labels[k], name) == said[name]]
            if not kinds:
                raise scenario.error(f"{WHERE}.{name}", f"one of {', '.join(legal)}", said[name])
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


def trainer_kind(scenario: Scenario, problem: Problem, said: dict[str, Any]) -> int:
    """Return the trainer kind of the stated pool; its GPUs must be stated, in whole units."""
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


def engines_meant(
    scenario: Scenario,
    problem: Problem,
    said: dict[str, Any],
    kind: int,
    readers: dict[str, int],
) -> int | None:
    """Return how many engines of a kind are meant, or None when they do not fill the GPUs.

    The generator's GPUs include those of engines that only prefill.
    """
    if "engines" not in said and "generator_gpus" not in said:
        raise scenario.error(
            f"{WHERE}.generator_gpus", "the GPUs of the generator, or its engines", "nothing"
        )
    kinds = problem.system.engines
    gpus = int(kinds.gpus_per_engine[kind])
    reading = _whole_gpus(problem, readers["prefill_kind"], readers["prefill_engines"])
    if "engines" not in said:
        engines, rest = divmod(int(said["generator_gpus"]) - reading, gpus)
        return engines if rest == 0 and engines > 0 else None
    engines = int(said["engines"])
    whole = _whole_gpus(problem, kind, engines) + reading
    return engines if said.get("generator_gpus", whole) == whole else None


def _whole_gpus(problem: Problem, kind: int, engines: int) -> int:
    """Return the GPUs of some engines in whole units of their pool; 0 without a kind."""
    if kind == NONE:
        return 0
    kinds = problem.system.engines
    unit = problem.system.pools[kinds.labels[kind].pool].unit_gpus
    return int(-(-engines * int(kinds.gpus_per_engine[kind]) // unit) * unit)


def in_flight(domain: Domain, said: dict[str, Any], kind: int, engines: int) -> Ints:
    """Return the cap per engine, or all caps of the domain when none is fixed."""
    if "in_flight_per_engine" in said:
        return np.asarray([int(said["in_flight_per_engine"])])
    if "in_flight" in said:
        return np.asarray([max(1, round(int(said["in_flight"]) / engines))])
    return domain.in_flight_per_engine[kind]


def modes(scenario: Scenario, domain: Domain, said: dict[str, Any]) -> list[int]:
    """Return the stated mode, or all that the scenario allows."""
    legal = [MODES[m] for m in domain.modes]
    if "mode" not in said:
        return [int(m) for m in domain.modes]
    if said["mode"] not in legal:
        raise scenario.error(f"{WHERE}.mode", f"one of {', '.join(legal)}", str(said["mode"]))
    return [MODES.index(said["mode"])]


def prefill_engines(
    scenario: Scenario, problem: Problem, domain: Domain, said: dict[str, Any], kind: int
) -> list[dict[str, Any]]:
    """Return the prefill engines that are meant: those stated, or every choice of the domain."""
    stated = {"prefill_engines", "prefill_gpus", "prefill_pool"} & set(said)
    options, engines = domain.prefill[kind], problem.system.engines
    if said.get("prefill_engines") == 0 or said.get("prefill_gpus") == 0:
        return [{"prefill_kind": NONE, "prefill_engines": 0}]
    if stated:
        options = tuple(option for option in options if option[0] != NONE)
        if "prefill_pool" in said:
            options = tuple(
                option
                for option in options
                if problem.system.pools[engines.labels[option[0]].pool].name == said["prefill_pool"]
            )
    result = []
    for reader, counts in options:
        gpus = int(engines.gpus_per_engine[reader]) if reader != NONE else 1
        chosen = _count_of(said, "prefill", gpus, counts)
        result += [{"prefill_kind": reader, "prefill_engines": int(n)} for n in chosen]
    if not result:
        raise scenario.error(
            f"{WHERE}.prefill_engines",
            "prefill engines that a pool with the role prefill can hold, in whole units",
            str({name: said[name] for name in sorted(stated)}),
        )
    return result


def reward_engines(
    scenario: Scenario, problem: Problem, domain: Domain, said: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the reward engines that are meant: those stated, or every choice of the domain."""
    kinds = problem.system.reward_kinds
    result = []
    for kind, counts in domain.reward:
        if kinds is None:
            return [{"reward_kind": NONE, "reward_engines": 0}]
        pool = problem.system.pools[kinds.labels[kind].pool].name
        if said.get("reward_pool", pool) != pool:
            continue
        chosen = _count_of(said, "reward", int(kinds.gpus_per_engine[kind]), counts)
        result += [{"reward_kind": kind, "reward_engines": int(n)} for n in chosen]
    if not result:
        stated = {name: said[name] for name in ("reward_gpus", "reward_pool") if name in said}
        raise scenario.error(
            f"{WHERE}.reward_gpus",
            "whole reward engines that a pool with the role reward can hold",
            str(stated),
        )
    return result


def _count_of(said: dict[str, Any], role: str, gpus_per_engine: int, counts: Ints) -> Ints:
    """Return the counts of engines of a role that are meant."""
    if f"{role}_engines" in said:
        return np.asarray([int(said[f"{role}_engines"])])
    if f"{role}_gpus" in said:
        engines, rest = divmod(int(said[f"{role}_gpus"]), gpus_per_engine)
        return np.asarray([engines] if rest == 0 and engines > 0 else [], dtype=np.int64)
    return counts


def others(domain: Domain, said: dict[str, Any]) -> dict[str, Any]:
    """Return the decisions that have a range, at their low end where none is stated."""
    names = ("oversampling", "queue_batches", "prompts_per_step", "group_size", "epochs")
    return {name: said.get(name, getattr(domain, name)[0]) for name in names}
