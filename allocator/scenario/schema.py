"""The scenario: everything a user says about a run. Attribute names are the keys of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, PrivateAttr, Tag, model_validator

from allocator.scenario.algorithm import (
    Algorithm,
    Lora,
    Mode,
    Queue,
    Staleness,
    Switch,
    WeightSync,
)
from allocator.scenario.consistency import check_scenario
from allocator.scenario.engine import (
    DecodeRates,
    Engine,
    KvDtype,
    Layout,
    PrefillRates,
    Rates,
    WeightsDtype,
)
from allocator.scenario.errors import ScenarioError, shown
from allocator.scenario.hardware import (
    Hardware,
    Link,
    OwnershipPrice,
    Pool,
    Price,
    PublishedPrice,
    StatedPrice,
)
from allocator.scenario.inline_model import InlineModel
from allocator.scenario.latency import (
    Latency,
    LatencyByMean,
    LatencyByPercentiles,
    LatencyFromFile,
)
from allocator.scenario.origin import Origin
from allocator.scenario.quantity import FloatRange, IntRange, Quantity, WholeFromZero
from allocator.scenario.references import resolve_reference
from allocator.scenario.reward import Reward, RewardPrice, RewardTokens
from allocator.scenario.run import (
    Budget,
    Checkpoint,
    Evaluation,
    Failures,
    FixedPlan,
    Objective,
    Target,
    Value,
)
from allocator.scenario.sandbox import Sandbox, SandboxHost
from allocator.scenario.section import Section, Text, by_shape, key, nothing_if_empty
from allocator.scenario.trainer import Parallelism, Trainer
from allocator.scenario.workload import (
    BetaRates,
    Lengths,
    LengthsByMean,
    LengthsByPercentiles,
    LengthsByQuantiles,
    LengthsFromFile,
    SolveRate,
    Workload,
)

__all__ = [
    "Algorithm",
    "BetaRates",
    "Budget",
    "Checkpoint",
    "DecodeRates",
    "Engine",
    "Evaluation",
    "Failures",
    "FixedPlan",
    "FloatRange",
    "Hardware",
    "InlineModel",
    "IntRange",
    "KvDtype",
    "Latency",
    "LatencyByMean",
    "LatencyByPercentiles",
    "LatencyFromFile",
    "Layout",
    "Lengths",
    "LengthsByMean",
    "LengthsByPercentiles",
    "LengthsByQuantiles",
    "LengthsFromFile",
    "Link",
    "Lora",
    "Mode",
    "Origin",
    "OwnershipPrice",
    "Parallelism",
    "Pool",
    "PrefillRates",
    "Price",
    "PublishedPrice",
    "Quantity",
    "Queue",
    "Rates",
    "Reward",
    "RewardPrice",
    "RewardTokens",
    "Sandbox",
    "SandboxHost",
    "Scenario",
    "Section",
    "SolveRate",
    "Staleness",
    "StatedPrice",
    "Switch",
    "Target",
    "Trainer",
    "Value",
    "WeightSync",
    "WeightsDtype",
    "Workload",
]

ModelChoice = Annotated[
    Annotated[Text, Tag("<id>")] | Annotated[InlineModel, Tag("<inline>")],
    Discriminator(by_shape(mapping="<inline>", other="<id>")),
]


class Scenario(Section):
    """One RL post-training run to plan.

    Build it with `allocator.load`; `origin` then knows the file and line of every key. Two
    scenarios are equal when all their keys are, wherever they were written.
    """

    scenario_version: Literal[1] = key("Version of this contract", default=1)
    name: Text | None = key("Title of the scenario in reports", default=None)
    seed: WholeFromZero = key("Seed of everything random", default=0)
    model: ModelChoice = key("Catalogue id or alias, path to a config.json, or an inline block")
    engine: Engine = key("Inference engines", default=Engine.model_construct())
    trainer: Trainer = key("Trainer", default=Trainer.model_construct())
    workload: Workload = key("What is generated")
    algorithm: Algorithm = key("What is trained on, and how", default=Algorithm.model_construct())
    queue: Queue = key("Queue between generator and trainer", default=Queue.model_construct())
    staleness: Staleness = key("Limit on staleness", default=Staleness.model_construct())
    reward: Reward = key("Reward", default=Reward.model_construct())
    sandbox: Sandbox = key("Sandboxes of the environment", default=Sandbox.model_construct())
    hardware: Hardware = key("GPUs a plan may use")
    budget: Budget = key(
        "Limits and target of the run; at least one is needed", default=Budget.model_construct()
    )
    objective: Objective = key("What the plan is best at", default="usd_per_useful_mtok")
    value: Value = key("Worth of further learning", default=Value.model_construct())
    evaluation: Annotated[Evaluation | None, BeforeValidator(nothing_if_empty)] = key(
        "Evaluation runs; not set: none", default=None
    )
    checkpoint: Annotated[Checkpoint | None, BeforeValidator(nothing_if_empty)] = key(
        "Checkpoints; not set: none", default=None
    )
    failures: Annotated[Failures | None, BeforeValidator(nothing_if_empty)] = key(
        "Failures that stop the run; not set: none", default=None
    )
    token_basis: Literal["sequence", "response"] = key(
        "Whether tokens are counted with prompts or without", default="sequence"
    )
    plan: FixedPlan = key("Decisions already taken", default=FixedPlan.model_construct())

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        check_scenario(self)
        return self

    def __eq__(self, other: object) -> bool:
        """Return whether every key is equal; the origin does not count."""
        if not isinstance(other, Scenario):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        """Return a hash over every key, so that a scenario can be the key of a cache."""
        return hash(tuple(self.__dict__.values()))

    @property
    def origin(self) -> Origin:
        """File and lines of the keys."""
        return self._origin

    def with_origin(self, origin: Origin) -> Scenario:
        """Return the same scenario with another origin."""
        scenario = self.model_copy()
        scenario._origin = origin
        return scenario

    def error(
        self,
        path: str,
        expected: str,
        given: object = None,
        nearest: str | None = None,
    ) -> ScenarioError:
        """Return the error for a key that is legal by itself and cannot be planned.

        Parameters
        ----------
        path : str
            Dotted path of the key; its line is looked up in the origin.
        expected : str
            What would be legal.
        given : object, optional
            What is there; text is used as it is, anything else is shown as in a file.
        nearest : str, optional
            The legal entry closest to it.
        """
        file, line = self._origin.locate(path)
        text = given if isinstance(given, str) or given is None else shown(given)
        return ScenarioError(
            file=file, line=line, path=path, expected=expected, given=text, nearest=nearest
        )

    @property
    def model_file(self) -> Path | None:
        """The config.json `model` names, checked to lie beside the scenario; None for an id.

        Raises
        ------
        ScenarioError
            If the file is missing or outside the scenario's directory.
        """
        if isinstance(self.model, str) and self.model.endswith(".json"):
            return resolve_reference(self.model, "model", self._origin)
        return None

    @property
    def latency_file(self) -> Path | None:
        """The CSV file of tool times, checked likewise; None for another form.

        Raises
        ------
        ScenarioError
            If the file is missing or outside the scenario's directory.
        """
        times = self.workload.tool_s
        if isinstance(times, LatencyFromFile):
            return resolve_reference(times.file, "workload.tool_s.file", self._origin)
        return None

    @property
    def lengths_file(self) -> Path | None:
        """The CSV file of response lengths, checked likewise; None for another form.

        Raises
        ------
        ScenarioError
            If the file is missing or outside the scenario's directory.
        """
        lengths = self.workload.response_tokens
        if isinstance(lengths, LengthsFromFile):
            return resolve_reference(lengths.file, "workload.response_tokens.file", self._origin)
        return None
