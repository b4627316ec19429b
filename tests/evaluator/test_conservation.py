"""What no formula may break: nothing is lost or counted twice, and no unit is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from allocator import try_solve
from allocator.evaluator import Outcome, evaluate
from allocator.physics.decode import DecodeLaw
from allocator.physics.kv_memory import KvFootprint
from allocator.physics.prefill import PrefillLaw
from allocator.plan import Plan
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import DecisionArrays, Domain
from allocator.problem.domain import build_domain
from allocator.problem.system import System
from allocator.scenario.load import from_dict
from allocator.scenario.profiles import load_catalogue
from solvers.columns import solve_columns
from tests.generated import random_plans, scenario

#: Seeds of generated problems: every sampling mode, dispatch, limit and layout is among them.
SEEDS = range(60)
ROUNDING = 1e-12
#: Products of some ten factors in another order.
SAME = 1e-9


def base(**changes: Any) -> dict[str, Any]:
    """A scenario with the user's own rates on 32 GPUs; `changes` replace whole blocks."""
    return {
        "model": "qwen3-32b",
        "engine": {
            "layouts": [{"tp": 2}],
            "rates": {
                "decode": {"alpha_s": 8e-3, "beta_s": 4e-5, "gamma_s_per_token": 1e-8},
                "prefill": {"p0_s": 5e-3, "p1_s_per_token": 3e-5},
                "gpus_per_engine": 2,
            },
        },
        "trainer": {"hfu": 0.4, "fixed_s": 5},
        "workload": {
            "initial_prompt_tokens": 500,
            "response_tokens": {"mean": 3000, "cv": 0.7, "max": 12000},
            "solve_rate": {"always": 0.1, "never": 0.2},
        },
        "algorithm": {"group_size": 8, "prompts_per_step": 16},
        "hardware": {
            "pools": [
                {"name": "all", "gpu": "h200-sxm", "gpus": 32, "price": {"usd_per_gpu_hour": 2}}
            ]
        },
        "budget": {"hours": 1e5, "target": {"steps": 1000}},
        **changes,
    }


def resolved(data: dict[str, Any]) -> tuple[Problem, Domain]:
    said = from_dict(data)
    problem = build_problem(said, load_catalogue())
    return problem, build_domain(said, problem.system)


@cache
def outcomes() -> tuple[tuple[int, Problem, Outcome], ...]:
    """Judge random plans of every generated problem, those whose KV cache holds a sequence."""
    found = []
    for seed in SEEDS:
        said = scenario(seed)
        problem = build_problem(said, load_catalogue())
        plans = random_plans(build_domain(said, problem.system), 500, seed)
        plans = plans.take(evaluate(problem, plans).generator.sequences_fit >= 1.0)
        if len(plans):
            found.append((seed, problem, evaluate(problem, plans)))
    return tuple(found)


def dispatched_per_s(outcome: Outcome) -> Any:
    """Return rollouts started per second, held back by pauses and admission."""
    return outcome.match.dispatched_per_s


def sampled(problem: Problem, outcome: Outcome) -> tuple[Any, Any]:
    """Return the shares of kept rollouts: with advantage, and left after dynamic sampling."""
    signal = outcome.rollouts.at(outcome.rollouts.signal)
    mode = problem.system.algorithm.dynamic_sampling
    return signal, (1.0 if mode == "off" else signal)


# --- fates ---------------------------------------------------------------------------------------


def test_every_generated_token_has_one_fate() -> None:
    seen = dict.fromkeys(("no_signal", "rejected_stale", "oversampled", "dropped_overflow"), 0.0)
    for seed, _, outcome in outcomes():
        account = outcome.accounts
        fates = {name: getattr(account, name) for name in (*seen, "useful")}
        for name, share in fates.items():
            assert np.all(share >= -ROUNDING), f"{seed} {name}"
            assert np.all(share <= 1 + ROUNDING), f"{seed} {name}"
        total = np.sum([np.broadcast_to(f, outcome.score.shape) for f in fates.values()], axis=0)
        np.testing.assert_allclose(total, 1.0, rtol=0, atol=ROUNDING, err_msg=str(seed))
        for name in seen:
            seen[name] = max(seen[name], float(np.max(fates[name])))
    for name, most in seen.items():
        assert most > 0.1, f"no plan here loses tokens as {name}"


def test_shares_are_shares() -> None:
    for seed, _, outcome in outcomes():
        match = outcome.match
        for name in ("wait_fraction", "generator_wait_fraction", "dropped_fraction"):
            share = getattr(match, name)
            assert np.all(share >= -ROUNDING), f"{seed} {name}"
            assert np.all(share < 1), f"{seed} {name}"
        assert np.all(match.accepted_fraction > 0), seed
        assert np.all(match.accepted_fraction <= 1 + ROUNDING), seed
        assert np.all(outcome.generator.prefill_share < 1), seed
        assert np.all(outcome.accounts.update_fraction > 0), seed
        assert np.all(outcome.accounts.update_fraction < 1), seed
        assert np.all(outcome.accounts.mfu_wall <= outcome.accounts.mfu_busy * (1 + SAME)), seed


def test_samples_are_conserved_in_every_sampling_mode() -> None:
    """Trained per second = dispatched per second x kept by each stage it passes."""
    modes = set()
    for seed, problem, outcome in outcomes():
        match, plans = outcome.match, outcome.plans
        _, left = sampled(problem, outcome)
        queued = dispatched_per_s(outcome) / plans.oversampling
        reached = match.accepted_fraction * (1.0 - match.dropped_fraction)
        np.testing.assert_allclose(
            outcome.accounts.trained_samples_per_s,
            queued * left * reached,
            rtol=SAME,
            err_msg=str(seed),
        )
        modes.add(problem.system.algorithm.dynamic_sampling)
        # A step trains one batch.
        np.testing.assert_allclose(
            match.samples_per_s * match.step_s, outcome.trainer.batch_samples, rtol=SAME
        )
        np.testing.assert_allclose(
            outcome.accounts.trained_samples_per_s * match.step_s,
            outcome.trainer.trained_samples,
            rtol=SAME,
        )
    assert modes == {"off", "drop", "refill"}


def test_useful_tokens_are_generated_tokens_by_their_fate() -> None:
    """Two roads to one number: samples x tokens per sample, and generated tokens x useful share."""
    for seed, problem, outcome in outcomes():
        cut, at = outcome.rollouts.cut, outcome.rollouts.at
        generated = dispatched_per_s(outcome) * at(cut.dispatched_mean_tokens)
        response = at(cut.kept_mean_tokens)
        with_prompt = problem.system.money.sequence_basis
        counted = response + (problem.system.workload.prompt_tokens if with_prompt else 0.0)
        np.testing.assert_allclose(
            outcome.accounts.useful_tokens_per_s,
            generated * outcome.accounts.useful * counted / response,
            rtol=SAME,
            err_msg=str(seed),
        )


def test_nothing_trains_faster_than_it_is_offered_or_taken() -> None:
    for seed, _, outcome in outcomes():
        match = outcome.match
        most = np.minimum(match.offered_samples_per_s, outcome.match.trainer_samples_per_s)
        assert np.all(match.samples_per_s <= most * (1 + SAME)), seed
        running = match.dispatched_per_s / outcome.generator.dispatched_per_s
        assert np.all(running > 0), seed
        assert np.all(running <= 1 + ROUNDING), seed
        np.testing.assert_allclose(
            match.wait_fraction,
            1 - match.samples_per_s / outcome.match.trainer_samples_per_s,
            atol=SAME,
            err_msg=str(seed),
        )


# --- the generator -------------------------------------------------------------------------------


def test_littles_law_ties_rollouts_in_flight_to_their_residence() -> None:
    """Time average in flight = dispatched per second x mean residence of a dispatched rollout."""
    for seed, _, outcome in outcomes():
        generator = outcome.generator
        tokens = outcome.rollouts.at(outcome.rollouts.cut.dispatched_mean_tokens)
        residence = generator.residence_fixed_s + generator.residence_token_s * tokens
        np.testing.assert_allclose(
            generator.in_flight,
            generator.dispatched_per_s * residence,
            rtol=SAME,
            err_msg=str(seed),
        )
        # The average is no more than the cap; those decoding are among those in flight.
        cap = outcome.plans.engines * outcome.plans.in_flight_per_engine
        assert np.all(generator.in_flight <= cap * (1 + ROUNDING)), seed
        decoding = outcome.plans.engines * generator.decoding
        assert np.all(decoding <= generator.in_flight * (1 + SAME)), seed
        assert np.all(generator.decoding <= generator.sequences_fit * (1 + SAME)), seed


def test_a_rollout_decodes_prefills_waits_for_its_environment_and_for_nothing_else() -> None:
    """Unless KV memory is full: then it queues besides, at the door of the engine."""
    queued = 0
    for seed, _, outcome in outcomes():
        generator, engines = outcome.generator, outcome.plans.engines
        rate = generator.dispatched_per_s / engines
        prefill = generator.prefill_share / rate
        expected = generator.stations.environment_s + prefill
        full = generator.kv_bound
        fixed = generator.residence_fixed_s
        np.testing.assert_allclose(
            fixed[~full], expected[~full], rtol=1e-6, atol=SAME, err_msg=str(seed)
        )
        assert np.all(fixed[full] >= expected[full] * (1 - 1e-6)), seed
        queued += int(np.count_nonzero(fixed[full] > 2 * expected[full] + 1))
        # Little's law again, on those decoding.
        tokens = outcome.rollouts.at(outcome.rollouts.cut.dispatched_mean_tokens)
        np.testing.assert_allclose(
            generator.decoding, rate * tokens * generator.residence_token_s, rtol=SAME
        )
    assert queued > 100


def by_in_flight(problem: Problem, kind: int) -> Outcome:
    """Judge plans that differ in rollouts in flight only, 16 (a group) to 4,096 on each engine."""
    plans = DecisionArrays.broadcast(
        generator_kind=kind,
        engines=2,
        in_flight_per_engine=np.arange(16, 4097),
        trainer_kind=0,
        trainer_gpus=8,
        oversampling=1.0,
        queue_batches=1,
        prompts_per_step=16,
        group_size=8,
        epochs=1,
    )
    return evaluate(problem, plans)


def test_the_rate_rises_with_rollouts_in_flight_to_the_kv_knee_and_no_further() -> None:
    knees = 0
    for seed, problem, _ in outcomes():
        for kind in range(len(problem.system.engines.labels)):
            outcome = by_in_flight(problem, kind)
            generator = outcome.generator
            if generator.sequences_fit[0] < 1:
                continue
            rate = generator.dispatched_per_s
            assert np.all(np.diff(rate) >= -SAME * rate[1:]), seed
            knee = int(np.argmax(generator.kv_bound)) if np.any(generator.kv_bound) else None
            if knee is None:
                continue
            knees += 1
            assert np.all(generator.kv_bound[knee:]), seed
            assert np.max(rate[knee:]) <= 1.05 * rate[knee], seed
            # What more in flight does is wait: staleness grows, the rate does not.
            waiting = generator.residence_fixed_s[-1] - generator.residence_fixed_s[knee]
            assert waiting > 0, seed
    assert knees >= 20


# --- both sides of load 1 ------------------------------------------------------------------------


def faster_and_slower(problem: Problem, alphas: NDArray[np.float64]) -> Problem:
    """Return the problem with one engine kind for each alpha of the user's decode law."""
    kinds, count = problem.system.engines, alphas.size
    assert len(kinds.labels) == 1

    def each(law: Any) -> tuple[Any, ...]:
        return tuple(np.repeat(getattr(law, f.name), count) for f in fields(law))

    _, expert, beta, gamma, miss = each(kinds.decode)
    growth, windowed, _ = each(kinds.footprint)
    arrays = ["pool", "gpus_per_engine", "weights_bytes_per_gpu"]
    arrays += ["kv_budget_bytes", "hbm_limit_bytes", "kv_token_bytes", "network_bytes_per_s"]
    arrays += ["decodes", "prefills"]
    many = replace(
        kinds,
        labels=kinds.labels * count,
        decode=DecodeLaw(alphas, expert, beta, gamma, miss),
        prefill=PrefillLaw(*each(kinds.prefill)),
        footprint=KvFootprint(growth, windowed, kinds.footprint.window_tokens),
        **{name: np.repeat(getattr(kinds, name), count) for name in arrays},
    )
    said = problem.system
    system: System = replace(
        said,
        engines=many,
        sync_s=np.repeat(said.sync_s, count, axis=1),
        switch_s=np.repeat(said.switch_s, count, axis=1),
        # No plan here has engines that only prefill.
        kv_link_bytes_per_s=np.ones((1, count)),
        kv_link_total_bytes_per_s=np.ones((1, count)),
    )
    return replace(problem, system=system)


CROSSINGS: dict[str, dict[str, Any]] = {
    "design": {"staleness": {}},
    "one batch": {"queue": {"capacity_batches": 1}},
    "four batches": {"queue": {"capacity_batches": 4}},
    "few groups": {"algorithm": {"group_size": 16, "prompts_per_step": 2}},
    "refill": {
        "algorithm": {"group_size": 8, "prompts_per_step": 16, "dynamic_sampling": "refill"}
    },
    "reject": {"staleness": {"limit": 2, "metric": "max", "enforce": "reject"}},
    "admission": {"staleness": {"limit": 2, "metric": "mean", "enforce": "admission"}},
    "no pauses": {
        "algorithm": {
            "group_size": 8,
            "prompts_per_step": 16,
            "weight_sync": {"generator_pauses": False, "trainer_blocks": False},
        }
    },
}


@pytest.mark.parametrize("case", CROSSINGS)
def test_nothing_jumps_where_generator_and_trainer_match(case: str) -> None:
    """Ten times finer steps of the engines' speed give about ten times smaller differences.

    A jump would stay as large as it is. (Staleness quantiles are whole versions and do jump.)
    """
    problem, _ = resolved(base(**CROSSINGS[case]))
    group, prompts = 16 if case == "few groups" else 8, 2 if case == "few groups" else 16
    most: dict[str, list[float]] = {}
    for count in (401, 4001):
        alphas = np.geomspace(1e-3, 6e-2, count)
        plans = DecisionArrays.broadcast(
            generator_kind=np.arange(count),
            engines=4,
            in_flight_per_engine=48,
            trainer_kind=0,
            trainer_gpus=16,
            oversampling=1.0,
            queue_batches={"one batch": 1, "four batches": 4}.get(case, 2),
            prompts_per_step=prompts,
            group_size=group,
            epochs=1,
        )
        outcome = evaluate(faster_and_slower(problem, alphas), plans)
        match, account = outcome.match, outcome.accounts
        assert match.load.min() < 0.9, match.load
        assert match.load.max() > 1.1, match.load
        curves = {
            "rate": match.samples_per_s / outcome.match.trainer_samples_per_s,
            "wait": match.wait_fraction,
            "accepted": match.accepted_fraction,
            "dropped": match.dropped_fraction,
            "staleness": match.staleness_mean,
            "useful": account.useful,
        }
        for name, values in curves.items():
            most.setdefault(name, []).append(float(np.max(np.abs(np.diff(values)))))
    for name, (coarse, fine) in most.items():
        assert fine <= 0.2 * coarse + 1e-6, f"{name}: {fine} in fine steps, {coarse} in coarse"


# --- more is not less ----------------------------------------------------------------------------


def grown(kind: str) -> Iterator[dict[str, Any]]:
    """The same scenario on pools of 16, 24 and 32 GPUs."""
    for gpus in (16, 24, 32):
        data = base()
        data["hardware"]["pools"][0]["gpus"] = gpus
        match kind:
            case "throughput of a reserved pool":
                data["objective"] = "useful_tokens_per_s"
            case "hours of a reserved pool":
                data["objective"] = "run.hours"
            case "hours under a staleness limit":
                data |= {"objective": "run.hours", "staleness": {"limit": 2, "metric": "mean"}}
            case "dollars of what is used":
                data["hardware"]["billing"] = "on_demand"
                data |= {"objective": "run.usd", "budget": {"target": {"steps": 200}}}
            case _:
                data["hardware"]["billing"] = "on_demand"
                data["budget"] = {"hours": 200, "target": {"steps": 200}}
        yield data


@pytest.mark.parametrize(
    "kind",
    [
        "throughput of a reserved pool",
        "hours of a reserved pool",
        "hours under a staleness limit",
        "dollars of what is used",
        "dollars per token of what is used",
    ],
)
def test_more_gpus_never_hurt_the_optimum(kind: str) -> None:
    best = []
    for data in grown(kind):
        found = solve_columns(*resolved(data))
        assert found.termination == "optimal"
        # The bound is the best score itself; the plan may be a tie of it.
        best.append(found.bound)
    assert best[0] >= best[1] >= best[2]
    if "reserved" in kind:
        assert best[0] > best[2], "sixteen more GPUs train faster"


# --- units and words -----------------------------------------------------------------------------


def decided(plan: Plan) -> tuple[Any, ...]:
    """Return what a plan decides, without names."""
    found = plan.decisions
    assert found is not None
    generator, trainer = found.generator, found.trainer
    return (
        *(trainer.gpu, trainer.gpus, trainer.ranks),
        *(generator.gpus, generator.engines, generator.in_flight, generator.groups[0].gpu),
        *(found.prompts_per_step, found.group_size, found.epochs),
        *(found.oversampling, found.queue_batches),
    )


def assert_same_plan(one: dict[str, Any], other: dict[str, Any]) -> tuple[Plan, Plan]:
    plans = try_solve(from_dict(one)), try_solve(from_dict(other))
    assert plans[0].status == plans[1].status == "optimal"
    assert decided(plans[0]) == decided(plans[1])
    return plans


def test_a_limit_in_other_units_is_the_same_limit() -> None:
    """Ten hours of 32 reserved GPUs at $2 are 320 GPU-hours and $640."""
    words: list[dict[str, Any]] = [{"hours": 10}, {"gpu_hours": 320}, {"usd": 640}]
    plans = [assert_same_plan(base(budget=words[0]), base(budget=other)) for other in words[1:]]
    for one, other in plans:
        assert one.prediction is not None
        assert other.prediction is not None
        assert other.prediction.run.hours == pytest.approx(10)
        assert other.prediction.run.usd == pytest.approx(one.prediction.run.usd)


def test_a_target_in_other_units_is_the_same_target() -> None:
    """A thousand steps of 16 groups of 8 are 128,000 samples."""
    steps = {"hours": 1e5, "target": {"steps": 1000}}
    samples = {"hours": 1e5, "target": {"samples": 128_000}}
    one, other = assert_same_plan(
        base(budget=steps, objective="run.hours"), base(budget=samples, objective="run.hours")
    )
    assert one.objective.value == pytest.approx(other.objective.value, rel=SAME)


def test_a_price_in_other_words_is_the_same_price() -> None:
    """Five years without interest: 8 x 5 x 8,760 GPU-hours share $350,400, and $1 each besides."""
    stated, owned = base(), base()
    owned["hardware"]["pools"][0]["price"] = {
        "kind": "ownership",
        "capex_usd_per_server": 350_400,
        "lifetime_years": 5,
        "cost_of_capital": 0,
        "other_usd_per_gpu_hour": 1,
    }
    one, other = assert_same_plan(stated, owned)
    assert one.objective.value == pytest.approx(other.objective.value, rel=SAME)


def test_names_blocks_and_order_do_not_matter() -> None:
    plain, wordy = base(), base()
    wordy["name"] = "the same in other words"
    wordy["trainer"] = {
        "hfu": {"value": 0.4, "kind": "measured", "source": "a run"},
        "fixed_s": 5.0,
    }
    pool = wordy["hardware"]["pools"][0]
    wordy["hardware"]["pools"] = [pool | {"name": "another", "gpu": "H200", "gpus": 32.0}]
    one, other = assert_same_plan(plain, wordy)
    assert one.objective.value == other.objective.value
    apart = base()
    trainer, decode = pool | {"name": "t", "roles": ["trainer"]}, pool | {"name": "d", "gpus": 16}
    decode["roles"] = ["decode"]
    apart["hardware"]["pools"] = [trainer, decode]
    turned = base()
    turned["hardware"]["pools"] = [decode, trainer]
    one, other = assert_same_plan(apart, turned)
    assert one.objective.value == pytest.approx(other.objective.value, rel=SAME)


def test_the_unit_of_money_does_not_matter() -> None:
    """In cents everything costs a hundred times as much, and the plan is the same."""
    dollars, cents = base(budget={"usd": 5000}), base(budget={"usd": 500_000})
    cents["hardware"]["pools"][0]["price"] = {"usd_per_gpu_hour": 200}
    one, other = assert_same_plan(dollars, cents)
    assert other.objective.value == pytest.approx(100 * one.objective.value, rel=SAME)


def slowed(times: float) -> dict[str, Any]:
    """The base scenario in a world where everything takes `times` as long, and costs as much."""
    data = base(
        workload={
            "initial_prompt_tokens": 500,
            "response_tokens": {"mean": 3000, "cv": 0.7, "max": 12000},
            "tool_s": 4 * times,
        },
        reward={"cpu_s": 2 * times},
        trainer={"hfu": 0.4 / times, "fixed_s": 5 * times, "microbatch_s": 0.05 * times},
        staleness={"limit": 3, "metric": "mean"},
        budget={"hours": 100 * times, "target": {"steps": 200}},
    )
    data["algorithm"]["weight_sync"] = {"gb_per_s": 10 / times, "fixed_s": 1 * times}
    data["engine"]["rates"] |= {
        "decode": {
            "alpha_s": 8e-3 * times,
            "beta_s": 4e-5 * times,
            "gamma_s_per_token": 1e-8 * times,
        },
        "prefill": {"p0_s": 5e-3 * times, "p1_s_per_token": 3e-5 * times},
    }
    data["hardware"]["pools"][0]["price"] = {"usd_per_gpu_hour": 2 / times}
    return data


def test_no_law_hides_a_unit_of_time() -> None:
    one, other = assert_same_plan(slowed(1.0), slowed(2.0))
    fast, slow = one.prediction, other.prediction
    assert fast is not None
    assert slow is not None
    for name in ("step_s", "train_s", "generation_s", "weight_sync_s", "decode_step_s"):
        assert getattr(slow, name) == pytest.approx(2 * getattr(fast, name), rel=1e-6), name
    assert slow.run.hours == pytest.approx(2 * fast.run.hours, rel=1e-6)
    same = ("trainer_wait_fraction", "load", "imbalance", "update_fraction", "decoding")
    for name in (*same, "usd_per_useful_mtok", "signal_fraction", "in_flight_context_tokens"):
        assert getattr(slow, name) == pytest.approx(getattr(fast, name), rel=1e-6), name
    assert slow.staleness.mean == pytest.approx(fast.staleness.mean, rel=1e-6)
    assert slow.run.usd == pytest.approx(fast.run.usd, rel=1e-6)
