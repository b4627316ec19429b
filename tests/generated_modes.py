"""Random small scenarios with modes, prefill engines, rewards, sandboxes, turns and stops.

Like `tests.generated`, whose scenarios they extend: legal by construction, cheap enough to solve
by trying every plan, the same for ever for a seed.
"""

from __future__ import annotations

import random
from typing import Any

from allocator.scenario.load import from_dict
from allocator.scenario.schema import Scenario
from tests.generated import scenario_data

MODES = ("async", "one_step_off", "disaggregated_sync", "colocated_sync", "auto")
#: Generated scenarios are drawn with this offset, so that none of them is one of the others.
OFFSET = 1000


def scenario(seed: int) -> Scenario:
    """Return the scenario of a seed, as the schema reads it."""
    return from_dict(scenario_of_modes(seed), file=f"<generated mode {seed}>")


def scenario_of_modes(seed: int) -> dict[str, Any]:
    """Return the scenario of a seed as plain data with the keys of a file."""
    dice = random.Random(OFFSET + seed)
    data = scenario_data(OFFSET + seed)
    mode = MODES[seed % len(MODES)]
    algorithm = data["algorithm"]
    algorithm["mode"] = mode
    # Few free ranges keep the brute force to seconds: new choices take their place.
    for name, fixed in (("prompts_per_step", 8), ("group_size", 8), ("epochs", 1)):
        if isinstance(algorithm.get(name), dict):
            algorithm[name] = fixed
    if mode not in ("async", "auto"):
        data["staleness"] = {}
    _pools(data, mode)
    _update(dice, algorithm, mode)
    _turns(dice, data)
    _reward(dice, data)
    _sandbox(dice, data)
    _disaggregation(dice, data)
    _stops(dice, data)
    return data


def _pools(data: dict[str, Any], mode: str) -> None:
    pools = data["hardware"]["pools"]
    if mode == "colocated_sync" and not any("roles" not in pool for pool in pools):
        data["hardware"]["pools"] = pools[1:]
        del data["hardware"]["pools"][0]["roles"]
    for pool in data["hardware"]["pools"]:
        pool["gpus"] = min(pool["gpus"], 16)


def _update(dice: random.Random, algorithm: dict[str, Any], mode: str) -> None:
    if mode == "async":
        algorithm["weight_update"] = dice.choice(("in_flight", "drain", "retract", "abort"))
    elif dice.random() < 0.3:
        algorithm["partial_rollout"] = True
        algorithm["mixed_environment"] = dice.choice(("keep", "exclude"))
        if mode == "auto":
            algorithm["weight_update"] = "abort"
    if mode in ("colocated_sync", "auto") and dice.random() < 0.5:
        algorithm["switch"] = {"offload_s": 5, "onload_s": 8}


def _turns(dice: random.Random, data: dict[str, Any]) -> None:
    work, engine = data["workload"], data["engine"]
    if dice.random() < 0.5:
        return
    work["turns"] = dice.choice((2, 5, 12))
    work["tool_tokens_per_turn"] = dice.choice((0, 200, 1500))
    work["tool_s"] = dice.choice((0, 3, {"mean": 4, "cv": 1.0, "max": 60}))
    engine["kv_during_tools"] = dice.choice(("hold", "evict"))
    if work["prefix_cache"] == "none":
        engine["kv_during_tools"] = "evict"


def _reward(dice: random.Random, data: dict[str, Any]) -> None:
    kinds: list[dict[str, Any]] = [
        {"type": "sparse", "cpu_s": 4, "workers": dice.choice((2, 16, 256))},
        {"type": "dense", "cpu_s": 0.5, "workers": 8, "calls": 6},
        {"type": "proxy_prm", "placement": "shared_engine"},
        {"type": "prm", "model": "qwen3-8b"},
        {
            "type": "llm_judge",
            "model": "qwen3-8b",
            "tokens": {"output": 300},
            "usd_per_mtok": {"input": 0.1, "output": 0.4},
            "max_per_s": dice.choice((2, 50)),
        },
        {},
    ]
    data["reward"] = dice.choice(kinds)
    whole_batches = data["algorithm"]["mode"] not in ("async", "auto")
    if whole_batches and data["reward"] and dice.random() < 0.5:
        data["reward"]["overlap"] = False
    if data["reward"].get("type") == "prm":
        # Somebody must have room for it.
        for pool in data["hardware"]["pools"]:
            if "roles" in pool:
                pool["roles"] = [*pool["roles"], "reward"]


def _sandbox(dice: random.Random, data: dict[str, Any]) -> None:
    if dice.random() < 0.5:
        return
    data["sandbox"] = {
        "provider": "custom",
        "per_rollout": dice.choice((1, 2)),
        "max_concurrent": dice.choice((64, 400, 5000)),
        "start_s": dice.choice((5, {16: 4, 256: 60})),
        "failure_fraction": dice.choice((0, 0.1)),
        "usd_per_hour": dice.choice((0, 0.05)),
    }
    if dice.random() < 0.3:
        data["sandbox"]["timeout_s"] = 600


def _disaggregation(dice: random.Random, data: dict[str, Any]) -> None:
    pools = data["hardware"]["pools"]
    own_rates = "rates" in data["engine"] or data["engine"].get("estimate") == "allow"
    if own_rates or dice.random() < 0.5:
        return
    choices = ("auto",) if data["algorithm"]["mode"] == "colocated_sync" else ("auto", "always")
    data["engine"]["disaggregation"] = dice.choice(choices)
    for pool in pools:
        if "decode" in pool.get("roles", []):
            pool["roles"] = [*pool["roles"], "prefill"]
    if len(pools) > 1:
        names = [pool["name"] for pool in pools]
        data["hardware"]["links"] = [{"between": names, "gbit_per_s": dice.choice((100, 3200))}]


def _stops(dice: random.Random, data: dict[str, Any]) -> None:
    if dice.random() < 0.4:
        data["evaluation"] = {"every_steps": 10, "samples": 200}
        data["checkpoint"] = {"every_steps": 20, "seconds": 30, "blocks": dice.random() < 0.5}
        data["failures"] = {"mtbf_gpu_hours": 2000, "restart_s": 600}
