"""Engines to choose from: formats of weights and cache, roles of pools, network."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from allocator.problem.build import Problem
from allocator.problem.system import EngineKinds
from allocator.scenario.errors import ScenarioError
from tests.problem.scenarios import RATES, SAME, built, pool, said, value_of

BOTH = {"weights_dtype": ["bf16", "fp8"], "kv_dtype": ["bf16", "fp8"]}


def problem_of(engine: dict[str, Any], **changes: Any) -> Problem:
    return built(said(engine=engine, **changes))


def formats(kinds: EngineKinds) -> set[tuple[str, str]]:
    return {(label.weights_dtype, label.kv_dtype) for label in kinds.labels}


def of(problem: Problem, code: str) -> list[str]:
    return [warning.where for warning in problem.warnings if warning.code == code]


# --- formats -------------------------------------------------------------------------------------


def test_a_list_of_formats_is_a_choice_of_the_rows_there_are() -> None:
    problem = problem_of(BOTH)
    kinds = problem.system.engines
    # No profile has BF16 weights with an FP8 cache, or the reverse.
    assert formats(kinds) == {("bf16", "bf16"), ("fp8", "fp8")}
    assert of(problem, "format_without_rates") == ["hardware.pools[0]"]
    each = [problem_of({"weights_dtype": f, "kv_dtype": f}).system.engines for f in ("bf16", "fp8")]
    assert kinds.labels == each[0].labels + each[1].labels
    for name in ("weights_bytes_per_gpu", "kv_budget_bytes", "kv_token_bytes"):
        expected = np.concatenate([getattr(one, name) for one in each])
        np.testing.assert_array_equal(getattr(kinds, name), expected)
    np.testing.assert_array_equal(
        kinds.footprint.bytes_per_token,
        np.concatenate([one.footprint.bytes_per_token for one in each]),
    )


def test_memory_and_transfers_are_those_of_the_format() -> None:
    system = problem_of(BOTH).system
    kinds, params = system.engines, value_of("qwen3-32b", "params_total")
    per_token = value_of("qwen3-32b", "kv_elements_per_token")
    for place, label in enumerate(kinds.labels):
        width = {"bf16": 2.0, "fp8": 1.0}[label.weights_dtype]
        weights = params * width / label.layout.tp
        assert kinds.weights_bytes_per_gpu[place] == pytest.approx(weights, rel=SAME)
        # One copy, whatever the layout repeats.
        assert kinds.kv_token_bytes[place] == per_token * width
        # 19.8 GB/s where nothing is stated.
        sent = params * width / 19.8e9
        assert system.sync_s[0, place] == pytest.approx(sent, rel=SAME)


def test_no_combination_at_all_is_an_error_that_names_what_there_is() -> None:
    engine = {"weights_dtype": ["bf16", "nvfp4"], "kv_dtype": "fp8"}
    with pytest.raises(ScenarioError, match="weights bf16 KV bf16 TP2") as caught:
        problem_of(engine)
    assert "weights bf16, KV fp8 or nvfp4, KV fp8" in str(caught.value.given)
    estimated = problem_of(engine | {"estimate": "allow"}).system.engines
    assert formats(estimated) == {("bf16", "fp8"), ("nvfp4", "fp8")}
    assert all(label.estimate for label in estimated.labels)


def test_own_rates_are_of_one_format() -> None:
    engine = {"layouts": [{"tp": 2}], "rates": RATES}
    for name in ("weights_dtype", "kv_dtype"):
        with pytest.raises(ScenarioError, match=rf"engine\.{name}: .* the one format"):
            problem_of(engine | {name: ["bf16", "fp8"]})
    label = problem_of(engine | {"weights_dtype": "fp8"}).system.engines.labels[0]
    assert (label.weights_dtype, label.kv_dtype) == ("fp8", "bf16")


@pytest.mark.parametrize(
    ("engine", "where"),
    [
        ({}, []),
        ({"weights_dtype": "fp8", "kv_dtype": "fp8"}, ["engine.weights_dtype"]),
        (BOTH, ["engine.weights_dtype[1]"]),
        (
            {"estimate": "allow", "weights_dtype": "nvfp4", "kv_dtype": "fp8"},
            ["engine.weights_dtype", "engine.kv_dtype"],
        ),
    ],
)
def test_each_format_narrower_than_the_trainers_is_warned_of_once(
    engine: dict[str, Any], where: list[str]
) -> None:
    problem = problem_of(engine)
    assert of(problem, "reduced_precision") == where
    assert of(problem, "mismatched_log_probs") == []
    taken = {"group_size": 8, "prompts_per_step": 16, "old_log_probs": "from_engine"}
    wrong = of(problem_of(engine, algorithm=taken), "mismatched_log_probs")
    assert wrong == (["algorithm.old_log_probs"] if where else [])


# --- roles and network ---------------------------------------------------------------------------

SPLIT = {
    "pools": [
        pool("t", roles=["trainer"]),
        pool("d", roles=["decode"]),
        pool("p", "h100-sxm", roles=["prefill"]),
    ]
}


def test_pools_that_only_prefill_have_engines_when_prefill_may_be_apart() -> None:
    never = problem_of({}, hardware=SPLIT).system.engines
    assert set(never.pool) == {1}
    assert np.all(np.isnan(never.network_bytes_per_s))
    kinds = problem_of({"disaggregation": "auto"}, hardware=SPLIT).system.engines
    assert set(kinds.pool) == {1, 2}
    np.testing.assert_array_equal(kinds.decodes, kinds.pool == 1)
    np.testing.assert_array_equal(kinds.prefills, kinds.pool == 2)
    # Both H200 and H100 have 400 Gbit/s a GPU.
    np.testing.assert_allclose(kinds.network_bytes_per_s, 50e9 * kinds.gpus_per_engine, rtol=SAME)


def test_a_pool_of_every_role_does_both() -> None:
    kinds = built(said()).system.engines
    assert kinds.decodes.tolist() == kinds.prefills.tolist() == [True]
    assert math.isnan(kinds.network_bytes_per_s[0])
