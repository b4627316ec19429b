"""Scenarios of the tests of problems, with rates, prices and utilisation stated."""

from __future__ import annotations

from typing import Any

from allocator.problem.build import Problem, build_problem
from allocator.scenario.load import from_dict
from allocator.scenario.profiles import Datum, load_catalogue
from allocator.scenario.schema import Scenario

SAME = 1e-9
RATES = {
    "decode": {"alpha_s": 8e-3, "beta_s": 4e-5, "gamma_s_per_token": 1e-8},
    "prefill": {"p0_s": 5e-3, "p1_s_per_token": 3e-5, "p2_s_per_token2": 1e-9},
    "gpus_per_engine": 2,
}


def said(**changes: Any) -> Scenario:
    """Return a scenario on 32 H200; `changes` replace whole blocks."""
    return from_dict(
        {
            "model": "qwen3-32b",
            "engine": {"layouts": [{"tp": 2}], "rates": RATES},
            "trainer": {"hfu": 0.4},
            "workload": {
                "initial_prompt_tokens": 1000,
                "response_tokens": {"mean": 3000, "cv": 0.7, "max": 12000},
            },
            "algorithm": {"group_size": 8, "prompts_per_step": 16},
            "hardware": {"pools": [pool("all")]},
            "budget": {"hours": 100},
        }
        | changes
    )


def pool(name: str, gpu: str = "h200-sxm", gpus: int = 32, **more: Any) -> dict[str, Any]:
    price = {"usd_per_gpu_hour": 2}
    return {"name": name, "gpu": gpu, "gpus": gpus, "price": price} | more


def built(scenario: Scenario) -> Problem:
    return build_problem(scenario, load_catalogue())


def value_of(model: str, name: str) -> float:
    datum = getattr(load_catalogue().model(model), name)
    assert isinstance(datum, Datum)
    return datum.value
