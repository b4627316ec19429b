"""The workload: prompts, response lengths, environment time and solve rates."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Tag, model_validator
from pydantic_core import PydanticCustomError

from allocator.scenario.errors import nearest_of
from allocator.scenario.quantity import (
    AtLeastOne,
    NonNegative,
    Positive,
    Share,
    assumed,
    real_number,
)
from allocator.scenario.section import Section, Text, key, refuse

LENGTHS_FORMS = (
    "{mean, cv, max}, {p50, p99, max}, {quantiles: {p: tokens}, max} or {file} (max optional)"
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
        if self.max is not None and self.max.value <= self.mean.value:
            raise refuse(f"a number > mean ({self.mean.value:g})", self.max.value, at=("max",))
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
        if self.p99.value <= self.p50.value:
            raise refuse(f"a number > p50 ({self.p50.value:g})", self.p99.value, at=("p99",))
        if self.max is not None and self.max.value < self.p99.value:
            raise refuse(f"a number >= p99 ({self.p99.value:g})", self.max.value, at=("max",))
        return self


def _quantile_table(value: object) -> object:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, Mapping):
        raise refuse("a block of probability: tokens", value)
    pairs: list[tuple[float, float]] = []
    for probability, tokens in value.items():
        place = (str(probability),)
        if isinstance(probability, bool) or not isinstance(probability, (int, float)):
            raise refuse("a probability in (0, 1)", probability, at=place)
        if not 0 < probability < 1:
            raise refuse("a probability in (0, 1)", probability, at=place)
        try:
            number = real_number(tokens)
        except PydanticCustomError as wrong:
            raise refuse("a number > 0", tokens, at=place) from wrong
        if number <= 0:
            raise refuse("a number > 0", tokens, at=place)
        pairs.append((float(probability), number))
    pairs.sort()
    for (_, below), (probability, above) in pairwise(pairs):
        if above <= below:
            raise refuse(
                f"more tokens than at the probability before ({below:g})",
                above,
                at=(f"{probability:g}",),
            )
    if len(pairs) < 2:
        raise refuse("at least two quantiles", value)
    return tuple(pairs)


class LengthsByQuantiles(Section):
    """Response lengths by quantiles, as observed after the cap.

    Attribute `quantiles` holds (probability, tokens) pairs in ascending order; the file states
    them as a block ``{0.5: 4000, 0.9: 9000}``.
    """

    quantiles: Annotated[tuple[tuple[float, float], ...], BeforeValidator(_quantile_table)] = key(
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


LENGTHS_BY_KEY: dict[str, type[Section]] = {
    "mean": LengthsByMean,
    "cv": LengthsByMean,
    "p50": LengthsByPercentiles,
    "p99": LengthsByPercentiles,
    "quantiles": LengthsByQuantiles,
    "file": LengthsFromFile,
}


def _one_form(value: object) -> object:
    if isinstance(value, Section):
        return value
    if not isinstance(value, Mapping):
        raise refuse(LENGTHS_FORMS, value)
    stated = [name for name in value if name in LENGTHS_BY_KEY]
    forms = {LENGTHS_BY_KEY[name] for name in stated}
    if len(forms) > 1:
        raise refuse(f"one form only: {LENGTHS_FORMS}", value)
    if not forms:
        known = [*LENGTHS_BY_KEY, "max"]
        for name in value:
            if name not in known:
                close = nearest_of(name, known)
                raise refuse(LENGTHS_FORMS, str(name), at=(str(name),), nearest=close)
        raise refuse(LENGTHS_FORMS, value)
    return value


def _lengths_form(value: object) -> str:
    if isinstance(value, Mapping):
        form = next(
            (LENGTHS_BY_KEY[name] for name in value if name in LENGTHS_BY_KEY), LengthsByMean
        )
        return f"<{form.__name__}>"
    return f"<{type(value).__name__}>"


Lengths = LengthsByMean | LengthsByPercentiles | LengthsByQuantiles | LengthsFromFile

LengthsChoice = Annotated[
    Annotated[LengthsByMean, Tag("<LengthsByMean>")]
    | Annotated[LengthsByPercentiles, Tag("<LengthsByPercentiles>")]
    | Annotated[LengthsByQuantiles, Tag("<LengthsByQuantiles>")]
    | Annotated[LengthsFromFile, Tag("<LengthsFromFile>")],
    Discriminator(_lengths_form),
    BeforeValidator(_one_form),
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
    turns: Literal[1] = key("Model turns of a rollout", default=1)
    tool_tokens_per_turn: Literal[0] = key("Context a tool adds between turns", default=0)
    prefix_cache: PrefixCache = key(
        "What prefill finds in the cache: nothing, the prompt of its group, everything before this "
        "turn, or this share of the context",
        default="shared_prompt",
    )
    tool_s: NonNegative = key(
        "Time of the environment per rollout",
        unit="s",
        default=assumed(0.0, "default: no environment"),
    )
    solve_rate: SolveRate | None = key(
        "How often prompts are solved; not set: every group is taken to carry signal", default=None
    )
