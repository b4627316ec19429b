"""Generated scenarios with one plan each, on which formulas and simulation are compared.

`case(seed)` gives the same scenario and plan for ever. Seeds are 0 to `COUNT` - 1, none left out.
Every case is small (engines of at most some hundred places) so that simulating it takes about a
second. The speed of its trainer is such that the load, the generator's rate over the trainer's, is
what the seed asks for; it was found once with the formulas, and is kept in `trainers.csv`.
"""

from __future__ import annotations

import csv
import math
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from allocator.evaluator import evaluate
from allocator.plan import MODES
from allocator.problem.build import Problem, build_problem
from allocator.problem.decisions import DecisionArrays
from allocator.scenario.load import from_dict
from allocator.scenario.profiles import load_catalogue

COUNT = 320
TRAINERS = Path(__file__).with_name("trainers.csv")
#: Of ten seeds in a row.
MODE_OF = ("async",) * 6 + ("one_step_off", "disaggregated_sync", "colocated_sync", "async")
REPLICATIONS = 3
#: Rollouts of one turn that a case may simulate, warm-up included; a further turn costs 0.6 of it.
BUDGET, TURN = 60_000, 0.6
STEPS = (200, 3000)
#: Qwen3-8B on one H200: bytes of its weights, of a token's KV, and of the memory.
WEIGHTS_BYTES, TOKEN_BYTES, HBM_BYTES = 16.4e9, 147456.0, 141e9
FIRST_HFU = 0.3


@dataclass(frozen=True)
class Case:
    """A scenario with its plan.

    `strata` are what it belongs to; `load` is what the trainer's speed was chosen for; `work` is
    what simulating it takes, in rollouts of one turn.
    """

    seed: int
    problem: Problem
    plan: DecisionArrays
    strata: frozenset[str]
    steps: int
    load: float
    work: float


def case(seed: int) -> Case:
    """Return the case of a seed."""
    return _case(seed, *trainers()[seed])


@lru_cache(maxsize=1)
def trainers() -> dict[int, tuple[int, float]]:
    """GPUs and hfu of each seed's trainer."""
    with TRAINERS.open(encoding="utf-8", newline="") as file:
        return {
            int(row["seed"]): (int(row["gpus"]), float(row["hfu"])) for row in csv.DictReader(file)
        }


@lru_cache(maxsize=COUNT)
def _case(seed: int, gpus: int, hfu: float) -> Case:
    drawn = _Drawn(seed)
    data = drawn.data
    data["trainer"]["hfu"] = hfu
    problem = build_problem(from_dict(data, file=f"<agreement {seed}>"), load_catalogue())
    plan = DecisionArrays.broadcast(
        generator_kind=0,
        engines=drawn.engines,
        in_flight_per_engine=drawn.slots,
        trainer_kind=0,
        trainer_gpus=drawn.engines if drawn.mode == "colocated_sync" else gpus,
        oversampling=drawn.oversampling,
        queue_batches=drawn.queue_batches,
        prompts_per_step=drawn.groups,
        group_size=drawn.size,
        epochs=1,
        mode=MODES.index(drawn.mode),
    )
    return Case(seed, problem, plan, frozenset(drawn.strata), drawn.steps, drawn.load, drawn.work)


class _Drawn:
    """Everything that the dice of a seed decide."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(40_000 + seed)
        self.dice, self.strata = dice, set[str]()
        self.mode = MODE_OF[seed % 10]
        self.strata.add(self.mode)
        near, few, tools = (dice.random() < 0.34 for _ in range(3))
        self.load = dice.uniform(0.9, 1.1) if near else math.exp(dice.uniform(-1.1, 1.1))
        self.mark(0.9 <= self.load <= 1.1, "near load 1")
        self._sizes(few, tools)
        workload = self._workload(tools)
        algorithm = self._algorithm()
        self.data: dict[str, Any] = {
            "name": f"agreement {seed}",
            "model": "qwen3-8b",
            "engine": self._engine(tools),
            "trainer": {
                "fixed_s": 0,
                "step_cv": dice.choice((0.02, 0.1, 0.2)),
                "recomputation": "full",
            },
            "workload": workload,
            "algorithm": algorithm,
            "queue": {"capacity_batches": self.queue_batches},
            "staleness": self._staleness(),
            "hardware": {"pools": self._pools()},
            "budget": {"usd": 1000},
        }
        self._reward()
        self._sandbox()
        turns = 1.0 + TURN * (self.turns - 1)
        each = BUDGET / (self.batch * self.oversampling * turns * REPLICATIONS)
        # The warm-up, 20% of the steps, is to be longer than three stays of a group.
        stay = self.slots * self.engines / self.batch * (1.0 + self.cv)
        least = max(STEPS[0], math.ceil(15.0 * min(stay, 20.0)))
        self.steps = int(min(max(each, least), STEPS[1]))
        self.work = BUDGET * self.steps / each

    def mark(self, holds: bool, stratum: str) -> bool:
        if holds:
            self.strata.add(stratum)
        return holds

    @property
    def batch(self) -> int:
        return self.size * self.groups

    def _sizes(self, few: bool, tools: bool) -> None:
        dice = self.dice
        # Large batches with many turns take long to simulate.
        most = 40 if tools else 120
        self.size = dice.choice(
            [s for s in (1, 2, 4, 4, 8, 8, 8, 16, 16, 32, 64) if few or 5 * s <= 1.4 * most]
        )
        if few:
            self.groups = dice.choice((1, 2, 2, 3, 4, 4))
        else:
            most = max(most // self.size, 5)
            self.groups = round(math.exp(dice.uniform(math.log(4.6), math.log(most + 0.4))))
        self.mark(self.groups <= 4, "at most 4 groups")
        self.mark(self.size == 1, "groups of 1")
        self.mark(self.size >= 32, "groups of 32 or more")
        self.queue_batches = dice.choice((1, 1, 2, 3, 4))
        self.engines = dice.choice((1, 1, 2, 4))
        self.oversampling, self.by = 1.0, "group"
        if dice.random() < 0.2 and self.size * self.groups >= 8:
            self.oversampling, self.by = dice.choice((1.25, 1.5)), dice.choice(("group", "sample"))
            if self.size < 4:
                self.by = "group"
            # Whole numbers are started.
            units = self.size if self.by == "sample" else self.groups
            if (self.oversampling * units) % 1.0:
                self.oversampling = 1.5 if units % 2 == 0 else 2.0
            self.mark(True, "oversampling")
        self.whole = dice.random() < 0.7
        places = self.batch * math.exp(dice.uniform(math.log(0.4), math.log(4)))
        started = self.size * (self.oversampling if self.by == "sample" else 1.0)
        least = max(math.ceil(started), 2) if self.whole else 2
        self.slots = min(max(round(places / self.engines), least), 400)

    def _workload(self, tools: bool) -> dict[str, Any]:
        dice = self.dice
        self.tokens = dice.choice((400, 1000, 3000))
        self.cv = round(dice.uniform(0.2, 1.5), 2)
        self.mark(self.cv < 0.4, "cv below 0.4")
        self.mark(self.cv > 1.1, "cv above 1.1")
        self.turns, self.tool_s, self.prompt = 1, 0.0, dice.choice((0, 200, 1000))
        workload: dict[str, Any] = {
            "initial_prompt_tokens": self.prompt,
            "response_tokens": {"mean": self.tokens, "cv": self.cv, "max": 12 * self.tokens},
            "prefix_cache": dice.choice(("none", "shared_prompt", "shared_prompt", "full", 0.5)),
        }
        self.tool_tokens = 0
        if self.mark(tools, "tools"):
            self.turns = dice.choice((2, 3, 5, 8, 12))
            self.tool_s = round(dice.choice((0.05, 0.3, 1.0)) * self.tokens * 0.01 / self.turns, 3)
            self.tool_tokens = dice.choice((0, 50, 200))
            workload |= {
                "turns": self.turns,
                "tool_tokens_per_turn": self.tool_tokens,
                "tool_s": {"mean": self.tool_s, "cv": dice.choice((0.5, 1.0, 2.0))},
            }
        if dice.random() < 0.35 and self.size > 1:
            workload["solve_rate"] = {
                "always": round(dice.uniform(0, 0.3), 2),
                "never": round(dice.uniform(0, 0.2), 2),
                "rest": {"alpha": 1, "beta": dice.choice((1, 2))},
            }
        self.solved = "solve_rate" in workload
        return workload

    def _algorithm(self) -> dict[str, Any]:
        dice = self.dice
        stream = self.mode == "async"
        sampling = dice.choice(("refill", "drop", "off")) if self.solved else "off"
        self.mark(sampling != "off", sampling)
        every = dice.choice((1, 1, 1, 1, 2, 4))
        steps = dice.choice((1, 1, 1, 1, 2, 4))
        steps = steps if self.groups >= 4 and self.batch % steps == 0 else 1
        self.every, self.steps_per_batch = every, steps
        self.mark(every > 1, "sync every k")
        self.mark(steps > 1, "several optimiser steps")
        algorithm = {
            "mode": self.mode,
            "estimator": "grpo" if self.size > 1 else "ppo",
            "group_size": self.size,
            "prompts_per_step": self.groups,
            "oversampling": self.oversampling,
            "oversampling_by": self.by,
            "dynamic_sampling": sampling,
            "optimizer_steps_per_batch": steps,
            "weight_sync_every_steps": every,
            "weight_sync": {
                "gb_per_s": dice.choice((200, 20)),
                "trainer_blocks": dice.random() < 0.5,
                "generator_pauses": dice.random() < 0.5,
            },
        }
        if stream:
            algorithm["group_dispatch"] = "group" if self.whole else "sample"
            algorithm["dispatch_scope"] = dice.choice(("engine", "engine", "global"))
            update = dice.choice(("in_flight",) * 12 + ("drain", "abort", "retract"))
            algorithm["weight_update"] = update
            self.mark(update != "in_flight", update)
            self.mark(not self.whole, "one by one")
        elif self.oversampling > 1.0 and self.by == "sample" and dice.random() < 0.5:
            algorithm["partial_rollout"] = True
            self.mark(True, "resumed")
        if self.mode == "colocated_sync":
            algorithm["switch"] = {"offload_s": 1, "onload_s": 1}
        return algorithm

    def _engine(self, tools: bool) -> dict[str, Any]:
        dice = self.dice
        self.alpha_s = dice.choice((3e-3, 6e-3, 1.2e-2))
        self.beta_s = dice.choice((1e-5, 5e-5, 2e-4))
        gamma = dice.choice((0.0, 5e-9, 2e-8))
        engine: dict[str, Any] = {
            "layouts": [{"tp": 1}],
            "rates": {
                "decode": {
                    "alpha_s": self.alpha_s,
                    "beta_s": self.beta_s,
                    "gamma_s_per_token": gamma,
                },
                "prefill": {"p0_s": 1e-3, "p1_s_per_token": dice.choice((5e-6, 2e-5))},
                "gpus_per_engine": 1,
            },
        }
        if tools:
            engine["kv_during_tools"] = dice.choice(("hold", "hold", "evict"))
        context = self.prompt + self.tool_tokens * self.turns / 2 + self.tokens / 2
        if self.mark(dice.random() < 0.08 and self.slots >= 16, "short KV memory"):
            kept = dice.uniform(0.5, 0.9) * self.slots * context * (1 + self.cv**2)
            share = (WEIGHTS_BYTES + TOKEN_BYTES * kept) / HBM_BYTES
            engine["memory_fraction"] = round(min(share, 0.9), 4)
        return engine

    def _staleness(self) -> dict[str, Any]:
        draw, limit = self.dice.random(), self.dice.choice((1, 2, 3, 5))
        if self.mode != "async" or draw > 0.14:
            return {}
        enforce = "reject" if draw < 0.07 else "admission"
        self.mark(True, enforce)
        if enforce == "reject":
            # Weights are this old before the next sync; with less nothing would ever be trained.
            limit += self.steps_per_batch * (self.every - 1)
        return {"limit": limit, "enforce": enforce}

    def _pools(self) -> list[dict[str, Any]]:
        pool = {"gpu": "h200-sxm", "granularity": "gpu", "price": {"usd_per_gpu_hour": 2}}
        if self.mode == "colocated_sync":
            return [pool | {"name": "all", "gpus": self.engines}]
        return [
            pool | {"name": "trainer", "gpus": 64, "roles": ["trainer"]},
            pool | {"name": "decode", "gpus": self.engines, "roles": ["decode"]},
        ]

    @property
    def _rate_per_s(self) -> float:
        """Rollouts per second, roughly."""
        step_s = self.alpha_s + self.beta_s * self.slots
        life_s = self.tokens * step_s + self.turns * self.tool_s
        return self.slots * self.engines / life_s

    def _reward(self) -> None:
        dice = self.dice
        draw, use, workers = dice.random(), dice.uniform(0.3, 1.1), dice.choice((2, 8, 32))
        if draw > 0.25:
            return
        reward: dict[str, Any] = {"type": "sparse"}
        if self.mark(draw < 0.15, "reward with capacity"):
            reward["workers"] = workers
            reward["cpu_s"] = round(use * workers / self._rate_per_s, 4)
        else:
            reward["cpu_s"] = round(0.2 * self.tokens * 0.01, 2)
            self.mark(True, "constant reward")
        if self.mode != "async" and dice.random() < 0.4:
            reward["overlap"] = False
        self.data["reward"] = reward

    def _sandbox(self) -> None:
        dice = self.dice
        draw, quota = dice.random(), dice.choice((1.0, 1.2, 3.0))
        if not self.mark(draw < 0.12, "sandboxes"):
            return
        self.data["sandbox"] = {
            "provider": "custom",
            "max_concurrent": max(round(quota * self.slots * self.engines), 2),
            "start_s": round(dice.choice((0.02, 0.2)) * self.tokens * 0.01, 3),
            "failure_fraction": dice.choice((0, 0.05)),
        }


def write_trainers() -> None:
    """Find for each seed the trainer that makes the load what is wanted, and keep it."""
    with TRAINERS.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("seed", "gpus", "hfu"))
        for seed in range(COUNT):
            table.writerow((seed, *_trainer(seed)))


def _trainer(seed: int) -> tuple[int, float]:
    gpus, hfu = 1, FIRST_HFU
    for _ in range(6):
        _case.cache_clear()
        found = _case(seed, gpus, hfu)
        load = float(np.asarray(evaluate(found.problem, found.plan).match.load)[0])
        hfu = hfu * load / found.load
        # Trainers of two GPUs and more wait for their fullest rank: as few as will do.
        while hfu > 0.9 and gpus < 64 and "colocated_sync" not in found.strata:
            gpus, hfu = gpus * 2, hfu / 2
        hfu = float(f"{min(max(hfu, 1e-4), 1.0):.4g}")
    return gpus, hfu


if __name__ == "__main__":
    write_trainers()
