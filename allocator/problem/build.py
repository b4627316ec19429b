"""From a scenario to a problem: the resolved system, its named limits, the objective."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocator.physics.turns import mean_turn_context_tokens
from allocator.plan import PlanWarning, Provenance
from allocator.problem.domain import values_of
from allocator.problem.engine_kinds import engine_kinds
from allocator.problem.interruptions import interruptions
from allocator.problem.ledger import Ledger
from allocator.problem.limits import LimitSpec, ObjectiveName
from allocator.problem.links import Links, kv_links, switch_s, sync_s
from allocator.problem.model_facts import model_facts
from allocator.problem.money import money, pools
from allocator.problem.reward import reward_law, reward_model
from allocator.problem.reward_kinds import reward_kinds
from allocator.problem.sandbox import quota_path, sandbox_law
from allocator.problem.system import AlgorithmLaw, System
from allocator.problem.trainer_kinds import trainer_kinds
from allocator.problem.workload import workload_law

if TYPE_CHECKING:
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.schema import Scenario


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
    judge = reward_model(scenario, catalogue, model, ledger)
    reward = reward_law(scenario, workload, judge, ledger)
    hardware = pools(scenario, catalogue, ledger)
    lengths = workload.lengths
    context = float(
        mean_turn_context_tokens(
            workload.turns,
            workload.prompt_tokens,
            workload.tool_tokens,
            lengths.mean,
            lengths.second_moment,
        )
    )
    engines = engine_kinds(scenario, catalogue, hardware, model, context, ledger)
    trainers = trainer_kinds(scenario, catalogue, hardware, model, workload, ledger)
    links = Links(scenario, hardware, ledger)
    transfer_s = sync_s(scenario, model, trainers, engines, links, ledger)
    kv_link, kv_link_total = kv_links(scenario, hardware, engines, links)
    system = System(
        pools=hardware,
        engines=engines,
        trainers=trainers,
        workload=workload,
        algorithm=_algorithm(scenario, ledger),
        money=money(scenario, ledger),
        forward=model.forward,
        active_params=model.params_active,
        reward=reward,
        reward_kinds=reward_kinds(scenario, catalogue, hardware, reward, judge, workload, ledger),
        sandbox=sandbox_law(scenario, catalogue, ledger),
        interruptions=interruptions(scenario, workload, ledger),
        sync_s=transfer_s,
        switch_s=switch_s(scenario, hardware, trainers, engines, ledger),
        kv_link_bytes_per_s=kv_link,
        kv_link_total_bytes_per_s=kv_link_total,
    )
    _check_batches(scenario)
    return Problem(
        system=system,
        limits=_limits(scenario, system),
        objective=scenario.objective,
        provenance=ledger.provenance,
        warnings=ledger.warnings,
    )


def _algorithm(scenario: Scenario, ledger: Ledger) -> AlgorithmLaw:
    said, stale = scenario.algorithm, scenario.staleness
    limit = None
    if stale.limit is not None:
        limit = ledger.quantity("staleness.limit", stale.limit, "version")
    return AlgorithmLaw(
        whole_groups=said.group_dispatch == "group",
        limit_per_engine=said.dispatch_scope == "engine",
        oversampling_by=said.oversampling_by,
        dynamic_sampling=said.dynamic_sampling,
        weight_sync_every_steps=said.weight_sync_every_steps,
        trainer_blocks=said.weight_sync.trainer_blocks,
        generator_pauses=said.weight_sync.generator_pauses,
        weight_update=said.weight_update,
        partial_rollout=said.partial_rollout,
        exclude_mixed=said.mixed_environment == "exclude",
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
    if "colocated_sync" in scenario.algorithm.modes:
        specs.append(LimitSpec("shared_pool", "pool", "algorithm.mode", False))
    if system.algorithm.staleness_limit is not None:
        metric = system.algorithm.staleness_metric
        specs.append(LimitSpec(f"staleness_{metric}", "version", "staleness.limit", True))
    sandbox = system.sandbox
    if sandbox is not None and math.isfinite(sandbox.max_concurrent):
        where = quota_path(scenario, sandbox)
        specs.append(LimitSpec("sandbox_quota", "sandbox", where, True))
    if system.sandbox is not None and math.isfinite(system.sandbox.credit_usd):
        specs.append(LimitSpec("sandbox_credit", "USD", "sandbox.credit_usd", True))
    for name, unit in (("usd", "USD"), ("gpu_hours", "GPU h"), ("flops", "FLOP"), ("hours", "h")):
        if getattr(system.money, name) is not None:
            specs.append(LimitSpec(f"budget_{name}", unit, f"budget.{name}", True))
    return tuple(specs)
