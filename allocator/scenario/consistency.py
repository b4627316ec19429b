"""What keys of different blocks have to agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator.scenario.errors import nearest_of
from allocator.scenario.section import refuse

if TYPE_CHECKING:
    from allocator.scenario.hardware import Role
    from allocator.scenario.schema import Scenario

#: The role a pool needs to be fixed for a part of the plan.
_ROLE_OF_POOL: dict[str, Role] = {
    "trainer_pool": "trainer",
    "generator_pool": "decode",
    "prefill_pool": "prefill",
    "reward_pool": "reward",
}


def check_scenario(scenario: Scenario) -> None:
    """Refuse a scenario whose blocks, legal one by one, contradict each other.

    Raises
    ------
    PydanticCustomError
        With the path of the key to change and what would be legal there.
    """
    _bounded(scenario)
    _objective_has_scale(scenario)
    _mode_keeps_its_word(scenario)
    _groups_compare(scenario)
    _every_role_has_a_pool(scenario)
    _fixed_plan_is_possible(scenario)
    _fixed_pools_exist(scenario)


def _bounded(scenario: Scenario) -> None:
    if not scenario.budget.is_stated:
        raise refuse("a limit (usd, gpu_hours, flops or hours) or a target", None, at=("budget",))
    on_demand = scenario.hardware.billing == "on_demand"
    if on_demand and scenario.budget.target is None and scenario.budget.hours is None:
        raise refuse(
            "reserved, or on_demand with budget.target or budget.hours",
            "on_demand alone",
            at=("hardware", "billing"),
        )


def _objective_has_scale(scenario: Scenario) -> None:
    if scenario.objective in ("run.hours", "run.usd") and scenario.budget.target is None:
        raise refuse(
            "usd_per_useful_mtok or useful_tokens_per_s, or a budget.target beside it (without "
            "one the budget, not the plan, ends the run)",
            scenario.objective,
            at=("objective",),
        )


def _groups_compare(scenario: Scenario) -> None:
    said = scenario.algorithm
    least = said.group_size if isinstance(said.group_size, int) else said.group_size.min
    if said.estimator != "ppo" and least < 2:
        raise refuse(
            f"at least 2 rollouts a prompt with {said.estimator}: alone, a rollout has nothing to "
            "be better than",
            least,
            at=("algorithm", "group_size"),
        )


def _mode_keeps_its_word(scenario: Scenario) -> None:
    mode = scenario.algorithm.mode
    if mode == "auto":
        return
    if mode == "async":
        if not scenario.reward.overlap:
            raise refuse(
                "true: in mode async scoring always overlaps generation",
                False,
                at=("reward", "overlap"),
            )
    elif scenario.staleness.enforce != "design":
        versions = 1 if mode == "one_step_off" else 0
        raise refuse(
            f"design: in mode {mode} the staleness of every batch is {versions} by construction",
            scenario.staleness.enforce,
            at=("staleness", "enforce"),
            nearest="design",
        )


def _every_role_has_a_pool(scenario: Scenario) -> None:
    pools = scenario.hardware.pools
    needed: list[tuple[Role, str]] = []
    if scenario.engine.disaggregation == "always":
        needed.append(("prefill", "engine.disaggregation: always"))
    if scenario.reward.resolved_placement == "own_gpus":
        needed.append(("reward", "a reward on own_gpus"))
    for role, why in needed:
        if not any(role in pool.roles for pool in pools):
            raise refuse(
                f"a pool with the role {role}, for {why}",
                [pool.name for pool in pools],
                at=("hardware", "pools"),
            )
    together = "colocated_sync" in (scenario.algorithm.mode, scenario.plan.mode)
    if together and scenario.engine.disaggregation == "always":
        raise refuse(
            "never or auto in mode colocated_sync: GPUs that train and generate in turn prefill on "
            "their decode engines",
            "always",
            at=("engine", "disaggregation"),
            nearest="never",
        )
    if together and not any({"trainer", "decode"} <= set(pool.roles) for pool in pools):
        raise refuse(
            "a pool with the roles trainer and decode, for mode colocated_sync",
            [pool.name for pool in pools],
            at=("hardware", "pools"),
        )


def _fixed_plan_is_possible(scenario: Scenario) -> None:
    plan, said = scenario.plan, scenario.algorithm.mode
    if plan.mode is not None and said not in ("auto", plan.mode):
        raise refuse(
            f"{said}, the algorithm.mode (auto leaves the choice to the plan)",
            plan.mode,
            at=("plan", "mode"),
            nearest=said,
        )
    if scenario.engine.disaggregation == "never":
        _refuse_fixed(scenario, "prefill", "engine.disaggregation: auto or always")
    if scenario.reward.resolved_placement != "own_gpus":
        _refuse_fixed(scenario, "reward", "a reward on own_gpus")
    if (
        "colocated_sync" in (said, plan.mode)
        and None not in (plan.trainer_pool, plan.generator_pool)
        and plan.trainer_pool != plan.generator_pool
    ):
        raise refuse(
            f"{plan.trainer_pool}, the trainer_pool (mode colocated_sync uses the same GPUs)",
            plan.generator_pool,
            at=("plan", "generator_pool"),
        )


def _refuse_fixed(scenario: Scenario, prefix: str, needs: str) -> None:
    for name in type(scenario.plan).model_fields:
        value = getattr(scenario.plan, name)
        if name.startswith(f"{prefix}_") and value is not None:
            raise refuse(f"no {name}: it needs {needs}", value, at=("plan", name))


def _fixed_pools_exist(scenario: Scenario) -> None:
    for name, role in _ROLE_OF_POOL.items():
        given = getattr(scenario.plan, name)
        if given is None:
            continue
        legal = [pool.name for pool in scenario.hardware.pools if role in pool.roles]
        if given not in legal:
            raise refuse(
                f"a pool with the role {role}: {', '.join(legal)}",
                given,
                at=("plan", name),
                nearest=nearest_of(given, legal),
            )
