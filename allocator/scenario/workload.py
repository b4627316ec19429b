"""The workload: prompts, response lengths, environment time and solve rates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Tag, model_validator

from allocator.scenario.forms import Forms, check_mean, check_percentiles
from allocator.scenario.latency import LatencyChoice
from allocator.scenario.quantity import (
    AtLeastOne,
    Bounds,
    Count,
    NonNegative,
    Positive,
    Share,
    assumed,
)
from allocator.scenario.section import Section, Text, key, refuse
from allocator.scenario.table import Pairs, Table

_QUANTILES = Table(
    "probability",
    "tokens",
    keys=Bounds(low=0, high=1, low_open=True, high_open=True),
    values=Bounds(low=0, low_open=True),
    rising=True,
    least=2,
)


class LengthsByMean(Section):
    """Response lengths by mean and coefficient of variation, as observed after the cap."""

    mean: Positive = key("Mean response", unit="tokens")
    cv: Positive = key("Standard deviation over mean", unit="fraction")
    max: Positive | None = key(
        "Longest response allowed; not set: no cap", unit="tokens", default=None
    )
    at_oversampling: AtLeastOne = key(
        "Oversampling of the run whose kept rollouts were observed, with the scenario's group size "
        "and oversampling_by; 1: all rollouts were observed",
        default=1.0,
    )

    @model_validator(mode="after")
    def _below_cap(self) -> LengthsByMean:
        check_mean(self.mean, self.max)
        return self


class LengthsByPercentiles(Section):
    """Response lengths by median and 99th percentile, as observed after the cap."""

    p50: Positive = key("Median response", unit="tokens")
    p99: Positive = key("99th percentile of the response", unit="tokens")
    max: Positive | None = key(
        "Longest response allowed; not set: no cap", unit="tokens", default=None
    )

    @model_validator(mode="after")
    def _ascending(self) -> LengthsByPercentiles:
        check_percentiles(self.p50, self.p99, self.max)
        return self


class LengthsByQuantiles(Section):
    """Response lengths by quantiles, as observed after the cap.

    Attribute `quantiles` holds (probability, tokens) pairs in ascending order; the file states
    them as a block ``{0.5: 4000, 0.9: 9000}``.
    """

    quantiles: Annotated[Pairs, _QUANTILES] = key(
        "Tokens by probability, at least two, both ascending", unit="tokens"
    )
    max: Positive | None = key(
        "Longest response allowed; not set: no cap", unit="tokens", default=None
    )

    @model_validator(mode="after")
    def _below_cap(self) -> LengthsByQuantiles:
        largest = self.quantiles[-1][1]
        if self.max is not None and self.max.value < largest:
            raise refuse(
                f"a number >= the largest quantile ({largest:g})", self.max.value, at=("max",)
            )
        return self


class LengthsFromFile(Section):
    """Response lengths observed one by one, in a CSV file with a column `response_tokens`."""

    file: Text = key("CSV file, relative to the scenario file")


LENGTHS_FORMS = Forms(
    text="{mean, cv, max}, {p50, p99, max}, {quantiles: {p: tokens}, max} or {file} (max optional)",
    by_key={
        "mean": LengthsByMean,
        "cv": LengthsByMean,
        "p50": LengthsByPercentiles,
        "p99": LengthsByPercentiles,
        "quantiles": LengthsByQuantiles,
        "file": LengthsFromFile,
    },
)


Lengths = LengthsByMean | LengthsByPercentiles | LengthsByQuantiles | LengthsFromFile

LengthsChoice = Annotated[
    Annotated[LengthsByMean, Tag("<LengthsByMean>")]
    | Annotated[LengthsByPercentiles, Tag("<LengthsByPercentiles>")]
    | Annotated[LengthsByQuantiles, Tag("<LengthsByQuantiles>")]
    | Annotated[LengthsFromFile, Tag("<LengthsFromFile>")],
    Discriminator(LENGTHS_FORMS.tag),
    BeforeValidator(LENGTHS_FORMS.check),
]


class BetaRates(Section):
    """Solve rates of the prompts that are neither always nor never solved: Beta(alpha, beta)."""

    alpha: Positive = key("First shape parameter", default=assumed(1.0, "default: uniform"))
    beta: Positive = key("Second shape parameter", default=assumed(1.0, "default: uniform"))


class SolveRate(Section):
    """How often the policy solves a prompt: two atoms and a Beta distribution between them."""

    always: Share = key(
        "Share of prompts that are always solved",
        unit="fraction",
        default=assumed(0.0, "default: no prompt is always solved"),
    )
    never: Share = key(
        "Share of prompts that are never solved",
        unit="fraction",
        default=assumed(0.0, "default: no prompt is never solved"),
    )
    rest: BetaRates = key("Distribution of the other prompts", default=BetaRates.model_construct())

    @model_validator(mode="after")
    def _at_most_all(self) -> SolveRate:
        total = self.always.value + self.never.value
        if total > 1:
            raise refuse("always + never <= 1", round(total, 9), at=("never",))
        return self


PrefixCache = Annotated[
    Annotated[Literal["none", "shared_prompt", "full"], Tag("<name>")]
    | Annotated[Share, Tag("<share>")],
    Discriminator(lambda value: "<name>" if isinstance(value, str) else "<share>"),
]


class Workload(Section):
    """What a rollout is made of."""

    initial_prompt_tokens: NonNegative = key(
        "Context before the first response",
        unit="tokens",
        default=assumed(512.0, "default: a question without attachments", low=128.0, high=2048.0),
    )
    response_tokens: LengthsChoice = key("Length of the whole response, as observed after the cap")
    turns: Count = key("Model turns of a rollout", unit="turns", default=1)
    tool_tokens_per_turn: NonNegative = key(
        "Context that tools add between two turns",
        unit="tokens",
        default=assumed(0.0, "default: tools add no context"),
    )
    prefix_cache: PrefixCache = key(
        "What prefill finds in the cache: nothing, the prompt of its group, everything before this "
        "turn, or this share of the context",
        default="shared_prompt",
    )
    tool_s: LatencyChoice = key(
        "Time of one call of the environment; one call a turn",
        unit="s",
        default=assumed(0.0, "default: no environment"),
    )
    solve_rate: SolveRate | None = key(
        "How often prompts are solved; not set: every group is taken to carry signal", default=None
    )
