"""What moves between GPUs: weights, states at a change of roles, KV caches."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hardware_profiles
from allocator.problem.build import build_problem
from allocator.problem.system import System
from allocator.scenario.errors import ScenarioError
from allocator.scenario.profiles import Catalogue
from tests.problem.scenarios import SAME, built, pool, said, value_of

SAMPLES = {"group_size": 8, "prompts_per_step": 16}
APART = [pool("t", roles=["trainer", "decode"]), pool("d", roles=["decode", "prefill"])]
PARAMS = value_of("qwen3-32b", "params_total")


def system_of(links: list[dict[str, Any]], **changes: Any) -> System:
    return built(said(hardware={"pools": APART, "links": links}, **changes)).system


def link(gbit_per_s: float) -> list[dict[str, Any]]:
    return [{"between": ["d", "t"], "gbit_per_s": gbit_per_s}]


# --- weights -------------------------------------------------------------------------------------


def test_a_link_bounds_the_transfer_between_its_pools_alone() -> None:
    weights = 2 * PARAMS
    free, wide, narrow = (system_of(links).sync_s for links in ([], link(400), link(80)))
    # 19.8 GB/s is less than 400 Gbit/s, and more than 80.
    np.testing.assert_allclose(free, [[weights / 19.8e9] * 2], rtol=SAME)
    np.testing.assert_array_equal(wide, free)
    np.testing.assert_allclose(narrow, [[weights / 19.8e9, weights / 10e9]], rtol=SAME)


# --- roles ---------------------------------------------------------------------------------------


def switching(**switch: float) -> System:
    return system_of([], algorithm=SAMPLES | {"mode": "auto", "switch": switch})


def test_a_change_of_roles_moves_weights_out_and_states_in() -> None:
    system = switching()
    # 2 bytes on 2 GPUs an engine; 18 bytes of the trainer on the 32 of its pool; 25 GB/s a GPU.
    expected = (2 * PARAMS / 2 + 18 * PARAMS / 32) / 25e9
    np.testing.assert_allclose(system.switch_s, [[expected, math.inf]], rtol=SAME)


def test_a_stated_part_of_a_change_is_taken_as_it_is() -> None:
    np.testing.assert_array_equal(switching(offload_s=3, onload_s=4).switch_s, [[7, math.inf]])
    half = 18 * PARAMS / 32 / 25e9
    np.testing.assert_allclose(switching(offload_s=3).switch_s, [[3 + half, math.inf]], rtol=SAME)


def test_no_mode_no_change_no_assumption() -> None:
    problem = built(said())
    np.testing.assert_array_equal(problem.system.switch_s, [[math.inf]])
    assert "assumed/host_bytes_per_s" not in [entry.name for entry in problem.provenance]


# --- KV caches -----------------------------------------------------------------------------------


def test_caches_move_at_the_slower_network_or_the_shared_link() -> None:
    engine = said().engine.model_dump(exclude_defaults=True) | {"disaggregation": "auto"}
    free = system_of([], engine=engine)
    # Two GPUs an engine, 50 GB/s each; inside a pool and without a link nothing else limits it.
    np.testing.assert_array_equal(free.kv_link_bytes_per_s, np.full((2, 2), 100e9))
    np.testing.assert_array_equal(free.kv_link_total_bytes_per_s, np.full((2, 2), math.inf))
    linked = system_of(link(200), engine=engine)
    np.testing.assert_array_equal(linked.kv_link_bytes_per_s, [[100e9, 25e9], [25e9, 100e9]])
    total = linked.kv_link_total_bytes_per_s
    np.testing.assert_array_equal(total, [[math.inf, 25e9], [25e9, math.inf]])


def test_the_slower_of_two_engines_decides() -> None:
    pools = [pool("t", "gb300-nvl72"), pool("h")]
    changes = {"hardware": {"pools": pools}, "engine": {"disaggregation": "always"}}
    system = built(said(**changes)).system
    kinds = system.engines
    rate = np.where(kinds.pool == 0, 100e9, 50e9) * kinds.gpus_per_engine
    np.testing.assert_allclose(kinds.network_bytes_per_s, rate, rtol=SAME)
    expected = np.minimum.outer(rate, rate)
    np.testing.assert_allclose(system.kv_link_bytes_per_s, expected, rtol=SAME)
    assert set(kinds.pool) == {0, 1}


def test_an_unknown_network_is_named() -> None:
    index = Path(next(iter(hardware_profiles.__path__))) / "index.json"
    data = json.loads(index.read_text(encoding="utf-8"))
    del data["gpus"]["h200-sxm"]["values"]["network_bytes_per_s"]
    without = Catalogue(data)
    engine = said().engine.model_dump(exclude_defaults=True)
    build_problem(said(engine=engine), without)
    with pytest.raises(ScenarioError, match=r"gpus/h200-sxm\.network_bytes_per_s") as caught:
        build_problem(said(engine=engine | {"disaggregation": "auto"}), without)
    assert caught.value.path == "engine.disaggregation"


def test_no_prefill_apart_no_caches_on_the_way() -> None:
    system = system_of(link(200))
    assert np.all(np.isinf(system.kv_link_bytes_per_s))
    # The ledger is asked for nothing that no plan uses.
    problem = built(said())
    assert not [e for e in problem.provenance if e.name.endswith("network_bytes_per_s")]
