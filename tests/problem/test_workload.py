"""The law of a rollout: turns and tools, lengths that are cut, what PPO has no use for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from allocator.physics.length_tables import Empirical
from allocator.physics.lengths import capped_lognormal_from_mean_cv
from allocator.problem.system import WorkloadLaw
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import load
from tests.problem.scenarios import SAME, built, said

SAMPLES = {"group_size": 8, "prompts_per_step": 16}
LENGTHS = {"mean": 3000, "cv": 0.7, "max": 12000}
AGENT = {
    "initial_prompt_tokens": 1000,
    "response_tokens": LENGTHS,
    "turns": 4,
    "tool_tokens_per_turn": 200,
}


def law_of(workload: dict[str, Any], **changes: Any) -> WorkloadLaw:
    return built(said(workload=workload, **changes)).system.workload


# --- turns ---------------------------------------------------------------------------------------


def test_tools_add_context_between_turns() -> None:
    work = law_of(AGENT)
    assert (work.turns, work.tool_tokens, work.fixed_tokens) == (4, 200, 1000 + 3 * 200)
    # The trainer sees it too: its longest sequence, and the tokens that an MFU counts.
    trainers = built(said(workload=AGENT)).system.trainers
    assert trainers.microbatch_tokens == 1600 + 12000
    agent, longer = (
        built(said(workload=workload, trainer={"mfu": 0.2})).system.trainers.hfu[0]
        for workload in (AGENT, {"initial_prompt_tokens": 1600, "response_tokens": LENGTHS})
    )
    assert agent == pytest.approx(longer, rel=SAME)


def test_nothing_comes_between_the_turns_of_one() -> None:
    with pytest.raises(ScenarioError, match=r"tool_tokens_per_turn: expected 0 with one turn"):
        law_of(AGENT | {"turns": 1})
    engine = said().engine.model_dump(exclude_defaults=True) | {"kv_during_tools": "evict"}
    with pytest.raises(ScenarioError, match=r"kv_during_tools: expected hold with one turn"):
        built(said(engine=engine))


def test_prompt_tools_and_response_fit_the_context() -> None:
    def limited(tokens: int) -> dict[str, Any]:
        engine = said().engine.model_dump(exclude_defaults=True)
        return engine | {"max_context_tokens": tokens}

    law_of(AGENT, engine=limited(13_600))
    with pytest.raises(ScenarioError, match=r"at most 11,999 tokens, .* tool outputs of 1,600"):
        law_of(AGENT, engine=limited(13_599))
    # A cut makes room; one that does not is to blame.
    law_of(AGENT, engine=limited(8_000), algorithm=SAMPLES | {"length_cut_tokens": 6400})
    with pytest.raises(ScenarioError) as caught:
        law_of(AGENT, engine=limited(8_000), algorithm=SAMPLES | {"length_cut_tokens": 6401})
    assert caught.value.path == "algorithm.length_cut_tokens"


@pytest.mark.parametrize(
    ("cache", "during", "held"),
    [
        ("shared_prompt", "hold", True),
        ("full", "hold", True),
        ("none", "hold", False),
        ("full", "evict", False),
    ],
)
def test_a_cache_is_held_while_a_tool_runs(cache: str, during: str, held: bool) -> None:
    engine = said().engine.model_dump(exclude_defaults=True) | {"kv_during_tools": during}
    work = law_of(AGENT | {"prefix_cache": cache, "tool_s": 5}, engine=engine)
    assert work.kv_held is held
    assert work.environment_s == 20
    assert work.held_s == (15 if held else 0)


# --- tools ---------------------------------------------------------------------------------------


def test_a_tool_call_takes_a_number_of_seconds_or_a_law() -> None:
    fixed = law_of(AGENT | {"tool_s": 7})
    assert (fixed.tool_s, fixed.tool_calls) == (7, None)
    varying = law_of(AGENT | {"tool_s": {"mean": 7, "cv": 1.2}})
    assert varying.tool_s == pytest.approx(7, rel=SAME)
    assert varying.tool_calls is not None
    # Four independent calls: four times the mean, half the spread.
    assert varying.tool_calls.mean == pytest.approx(28, rel=SAME)
    assert varying.tool_calls.cv == pytest.approx(0.6, rel=SAME)


def test_a_tool_call_may_have_a_limit() -> None:
    found = law_of(AGENT | {"turns": 1, "tool_tokens_per_turn": 0, "tool_s": {"p50": 2, "p99": 20}})
    assert found.tool_calls is not None
    assert found.tool_calls.quantile([0.5, 0.99]).tolist() == pytest.approx([2, 20])
    sigma = math.log(10) / 2.3263478740408408
    assert found.tool_s == pytest.approx(2 * math.exp(sigma**2 / 2), rel=1e-6)
    with pytest.raises(ScenarioError, match=r"workload\.tool_s: .* cv 3 must lie below"):
        law_of(AGENT | {"tool_s": {"mean": 7, "cv": 3, "max": 20}})


def test_tool_calls_may_be_those_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "tools.csv").write_text("tool_s\n1\n3\n8\n", encoding="utf-8")
    (tmp_path / "scenario.yaml").write_text(
        """
model: qwen3-32b
trainer: {hfu: 0.4}
workload:
  response_tokens: {mean: 3000, cv: 0.7, max: 12000}
  tool_s: {file: tools.csv}
hardware: {pools: [{gpu: h200-sxm, gpus: 32, price: {usd_per_gpu_hour: 2}}]}
budget: {hours: 100}
""",
        encoding="utf-8",
    )
    work = built(load(tmp_path / "scenario.yaml")).system.workload
    assert work.tool_s == 4
    assert isinstance(work.tool_calls, Empirical)
    assert work.tool_calls.values == (1, 3, 8)


# --- cut lengths ---------------------------------------------------------------------------------


def test_a_cut_ends_the_planned_rollouts_and_not_those_observed() -> None:
    plain = built(said()).system.workload
    cut = built(said(algorithm=SAMPLES | {"length_cut_tokens": 4000})).system.workload
    assert cut.lengths.cap == 4000
    assert cut.lengths.mean == pytest.approx(float(plain.lengths.limited_mean(4000)), rel=SAME)
    assert cut.lengths.truncated_fraction == pytest.approx(float(plain.lengths.survival(4000)))
    assert cut.observed_mean_tokens == plain.observed_mean_tokens == pytest.approx(3000)
    assert cut.observed_second_moment_tokens2 == plain.observed_second_moment_tokens2


def test_the_measured_run_is_taken_apart_at_its_own_lengths() -> None:
    trainer = {"mfu": 0.3, "mfu_at_gpus": 16}
    plain, cut = (
        built(said(trainer=trainer, algorithm=SAMPLES | more)).system.trainers.hfu[0]
        for more in ({}, {"length_cut_tokens": 4000})
    )
    assert cut == plain


def test_a_cut_that_cuts_nothing_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"fewer than the 12,000 tokens") as caught:
        built(said(algorithm=SAMPLES | {"length_cut_tokens": 12_000}))
    assert caught.value.path == "algorithm.length_cut_tokens"
    built(said(algorithm=SAMPLES | {"length_cut_tokens": 11_999}))


def test_many_cut_answers_are_warned_of() -> None:
    law = capped_lognormal_from_mean_cv(3000.0, 0.7, 12_000.0)
    for cut in (3000, 9000):
        problem = built(said(algorithm=SAMPLES | {"length_cut_tokens": cut}))
        found = [w.where for w in problem.warnings if w.code == "truncated_lengths"]
        assert (found == ["algorithm.length_cut_tokens"]) is (float(law.survival(cut)) > 0.2)


# --- PPO -----------------------------------------------------------------------------------------


def test_a_critic_needs_no_solve_rates() -> None:
    workload = {"response_tokens": LENGTHS, "solve_rate": {"never": 0.2}}
    with pytest.raises(ScenarioError, match=r"workload\.solve_rate: .* nothing with .* ppo"):
        law_of(workload, algorithm=SAMPLES | {"estimator": "ppo"})
    with pytest.raises(ScenarioError, match=r"dynamic_sampling: expected off with .* ppo"):
        built(said(algorithm=SAMPLES | {"estimator": "ppo", "dynamic_sampling": "refill"}))
    problem = built(said(algorithm=SAMPLES | {"estimator": "ppo"}))
    assert problem.system.workload.solve_rate is None
    assert "no_solve_rate" not in [w.code for w in problem.warnings]
