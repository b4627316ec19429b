"""Times of tool calls: a number of seconds, a distribution, or calls that were observed."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Tag, model_validator

from allocator.scenario.forms import NUMBER, Forms, check_mean, check_percentiles
from allocator.scenario.quantity import NonNegative, Positive, Quantity
from allocator.scenario.section import Section, Text, key


class LatencyByMean(Section):
    """Times by mean and coefficient of variation, as observed under the time limit."""

    mean: Positive = key("Mean time", unit="s")
    cv: Positive = key("Standard deviation over mean", unit="fraction")
    max: Positive | None = key("Longest time allowed; not set: no limit", unit="s", default=None)

    @model_validator(mode="after")
    def _below_limit(self) -> LatencyByMean:
        check_mean(self.mean, self.max)
        return self


class LatencyByPercentiles(Section):
    """Times by median and 99th percentile, as observed under the time limit."""

    p50: Positive = key("Median time", unit="s")
    p99: Positive = key("99th percentile of the time", unit="s")
    max: Positive | None = key("Longest time allowed; not set: no limit", unit="s", default=None)

    @model_validator(mode="after")
    def _ascending(self) -> LatencyByPercentiles:
        check_percentiles(self.p50, self.p99, self.max)
        return self


class LatencyFromFile(Section):
    """Times observed one by one, in a CSV file with a column `tool_s`."""

    file: Text = key("CSV file, relative to the scenario file")


LATENCY_FORMS = Forms(
    text="a number >= 0, {mean, cv, max}, {p50, p99, max} or {file} (max optional)",
    by_key={
        "mean": LatencyByMean,
        "cv": LatencyByMean,
        "p50": LatencyByPercentiles,
        "p99": LatencyByPercentiles,
        "file": LatencyFromFile,
    },
    or_number=True,
)

Latency = Quantity | LatencyByMean | LatencyByPercentiles | LatencyFromFile

LatencyChoice = Annotated[
    Annotated[NonNegative, Tag(NUMBER)]
    | Annotated[LatencyByMean, Tag("<LatencyByMean>")]
    | Annotated[LatencyByPercentiles, Tag("<LatencyByPercentiles>")]
    | Annotated[LatencyFromFile, Tag("<LatencyFromFile>")],
    Discriminator(LATENCY_FORMS.tag),
    BeforeValidator(LATENCY_FORMS.check),
]
