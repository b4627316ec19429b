"""From a scenario to a problem: the resolved system, its named limits, the objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocator.physics.decode import mean_decode_context_tokens
from allocator.physics.kv_memory import BYTES_PER_VALUE
from allocator.physics.weight_sync import weight_sync_s
from allocator.plan import PlanWarning, Provenance
from allocator.problem.domain import values_of
from allocator.problem.engine_kinds import engine_kinds
from allocator.problem.ledger import Ledger
from allocator.problem.limits import LimitSpec, ObjectiveName
from allocator.problem.model_facts import ModelFacts, model_facts
from allocator.problem.money import money, pools
from allocator.problem.system import AlgorithmLaw, System
from allocator.problem.trainer_kinds import adapter_params, trainer_kinds
from allocator.problem.workload import workload_law

if TYPE_CHECKING:
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.schema import Scenario

#: Effective bandwidth of a weight transfer when the scenario gives none: 470 GB of Qwen3-235B in
#: 23.7 s between 64 + 64 H20 with a checkpoint engine; 58.6 s plain (low), 11.4 s as a delta over
#: NCCL (high). verl documentation 2026 and Marin issues 2026; kind measured.
SYNC_BYTES_PER_S = (19.8e9, 8.0e9, 41.0e9)


@dataclass(frozen=True, slots=True)
class Problem:
    """A solver-free description: what is fixed, what limits a plan, what is sought."""

    system: System
    limits: tuple[LimitSpec, ...]
    objective: ObjectiveName
    provenance: tuple[Provenance, ...]
    warnings: tuple[PlanWarning, ...]


def build_problem(
    scenario: Scenario, catalogue: Catalogue, shifts: Mapping[str, float] | None = None
) -> Problem:
    """Resolve a scenario against the profiles.

    Parameters
    ----------
    shifts : values that replace those of the named ledger entries, for intervals and what-ifs.

    Raises
    ------
    ScenarioError
        Where the scenario, with its profiles, does not describe a system.
    """
    ledger = Ledger(shifts)
    model = model_facts(scenario, catalogue, ledger)
    workload = workload_law(scenario, ledger)
    hardware = pools(scenario, catalogue, ledger)
    lengths = workload.lengths
    context = float(
        mean_decode_context_tokens(workload.prompt_tokens, lengths.mean, lengths.second_moment)
    )
    engines = engine_kinds(scenario, catalogue, hardware, model, context, ledger)
    trainers = trainer_kinds(scenario, catalogue, hardware, model, workload, ledger)
    system = System(
        pools=hardware,
        engines=engines,
        trainers=trainers,
        workload=workload,
        algorithm=_algorithm(scenario, model, ledger),
        money=money(scenario, ledger),
        forward=model.forward,
        active_params=model.params_active,
    )
    _check_batches(scenario)
    return Problem(
        system=system,
        limits=_limits(scenario, system),
        objective=scenario.objective,
        provenance=ledger.provenance,
        warnings=ledger.warnings,
    )


def _algorithm(scenario: Scenario, model: ModelFacts, ledger: Ledger) -> AlgorithmLaw:
    said, stale = scenario.algorithm, scenario.staleness
    value, low, high = SYNC_BYTES_PER_S
    if said.weight_sync.gb_per_s is None:
        rate = ledger.number(
            "default/weight_sync_bytes_per_s",
            value,
            "byte/s",
            kind="measured",
            source="235B weight transfers, verl documentation and Marin issues 2026",
            low=low,
            high=high,
        )
    else:
        path = "algorithm.weight_sync.gb_per_s"
        rate = 1e9 * ledger.quantity(path, said.weight_sync.gb_per_s, "GB/s")
    adapters = adapter_params(scenario, model)
    if adapters is None:
        payload = model.weight_bytes(scenario.engine.weights_dtype)
    else:
        payload = adapters * BYTES_PER_VALUE["bf16"]
    fixed = ledger.quantity("algorithm.weight_sync.fixed_s", said.weight_sync.fixed_s, "s")
    limit = None
    if stale.limit is not None:
        limit = ledger.quantity("staleness.limit", stale.limit, "version")
    return AlgorithmLaw(
        whole_groups=said.group_dispatch == "group",
        limit_per_engine=said.dispatch_scope == "engine",
        oversampling_by=said.oversampling_by,
        dynamic_sampling=said.dynamic_sampling,
        weight_sync_every_steps=said.weight_sync_every_steps,
        sync_s=float(weight_sync_s(payload, rate, fixed)),
        trainer_blocks=said.weight_sync.trainer_blocks,
        generator_pauses=said.weight_sync.generator_pauses,
        staleness_limit=limit,
        staleness_metric=stale.statistic,
        staleness_enforce=stale.enforce,
    )


def _check_batches(scenario: Scenario) -> None:
    said = scenario.algorithm
    steps, prompts, group = said.optimizer_steps_per_batch, said.prompts_per_step, said.group_size
    batches = {int(p * g) for p in values_of(prompts) for g in values_of(group)}
    uneven = sorted(batch for batch in batches if batch % steps)
    if uneven:
        raise scenario.error(
            "algorithm.optimizer_steps_per_batch",
            f"a divisor of every batch ({uneven[0]} samples is one)",
            str(steps),
        )


def _limits(scenario: Scenario, system: System) -> tuple[LimitSpec, ...]:
    specs = [
        LimitSpec(f"gpu_pool_{pool.name}", "GPU", f"hardware.pools[{i}].gpus", True)
        for i, pool in enumerate(system.pools)
    ]
    specs += [
        LimitSpec("kv_memory", "sequence", "engine.memory_fraction", False),
        LimitSpec("trainer_memory", "GiB", "trainer.memory_fraction", False),
        LimitSpec("group_in_flight", "rollout", "algorithm.group_size", False),
        LimitSpec("trainer_replica", "GPU", "trainer.parallelism", False),
    ]
    if system.algorithm.staleness_limit is not None:
        metric = system.algorithm.staleness_metric
        specs.append(LimitSpec(f"staleness_{metric}", "version", "staleness.limit", True))
    for name, unit in (("usd", "USD"), ("gpu_hours", "GPU h"), ("flops", "FLOP"), ("hours", "h")):
        if getattr(system.money, name) is not None:
            specs.append(LimitSpec(f"budget_{name}", unit, f"budget.{name}", True))
    return tuple(specs)
