"""The inference engines that write rollouts: which rate law applies, and how they are laid out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag, model_validator

from allocator.scenario.quantity import Count, NonNegative, Positive, PositiveShare, assumed
from allocator.scenario.section import Section, Text, by_shape, key, nothing_if_empty, refuse


class Layout(Section):
    """Parallelism of one inference engine."""

    tp: Count = key("Tensor-parallel width", default=1)
    ep: Count = key("Expert-parallel width", default=1)
    dp: Count = key("Data-parallel attention ranks", default=1)
    pp: Count = key("Pipeline stages", default=1)

    @property
    def gpus(self) -> int:
        """GPUs of one engine; expert parallelism spans the same GPUs."""
        return self.tp * self.dp * self.pp


class DecodeRates(Section):
    """The user's own decode step: alpha + expert (1 - (1 - k/X)^n) + beta n + gamma K seconds.

    n sequences and K context tokens are on one engine, X experts are routed and k visited. Without
    gamma the law holds at one context length only, which must then be stated.
    """

    alpha_s: Positive = key("Time of a step with nothing to decode", unit="s")
    expert_s: NonNegative = key(
        "Time to read every routed expert once",
        unit="s",
        default=assumed(0.0, "default: dense model"),
    )
    beta_s: NonNegative = key("Time a further sequence adds", unit="s per sequence")
    gamma_s_per_token: NonNegative | None = key(
        "Time a further token of context adds", unit="s per token", default=None
    )
    at_context_tokens: Count | None = key(
        "Context per sequence at which the law was measured; needed without gamma",
        unit="tokens",
        default=None,
    )

    @model_validator(mode="after")
    def _context_is_known(self) -> DecodeRates:
        if self.gamma_s_per_token is None and self.at_context_tokens is None:
            raise refuse("gamma_s_per_token, or at_context_tokens where the law was measured")
        return self


class PrefillRates(Section):
    """The user's own prefill law: p0 + p1 tokens + p2 tokens x context seconds."""

    p0_s: NonNegative = key("Time of a prefill whatever its length", unit="s")
    p1_s_per_token: Positive = key("Time per prefilled token", unit="s per token")
    p2_s_per_token2: NonNegative = key(
        "Time per prefilled token and token of context",
        unit="s per token^2",
        default=assumed(0.0, "default: attention part of prefill not measured"),
    )


class Rates(Section):
    """Rate laws measured by the user; they take precedence over every profile."""

    decode: DecodeRates = key("Decode step of one engine")
    prefill: PrefillRates = key("Prefill on one engine")
    gpus_per_engine: Count = key("GPUs of the engine that was measured")

    @model_validator(mode="before")
    @classmethod
    def _context_of_both(cls, data: object) -> object:
        # `at_context_tokens` may stand beside `decode`; it belongs to the decode law.
        if not isinstance(data, Mapping) or "at_context_tokens" not in data:
            return data
        rest = {name: item for name, item in data.items() if name != "at_context_tokens"}
        decode = rest.get("decode")
        if not isinstance(decode, Mapping):
            return rest
        if "at_context_tokens" in decode:
            raise refuse(
                "at_context_tokens once, here or in decode",
                data["at_context_tokens"],
                at=("at_context_tokens",),
            )
        return {**rest, "decode": {**decode, "at_context_tokens": data["at_context_tokens"]}}


Layouts = Annotated[
    Annotated[Literal["auto"], Tag("<auto>")] | Annotated[tuple[Layout, ...], Tag("<layouts>")],
    Discriminator(by_shape(mapping="<layouts>", sequence="<layouts>", other="<auto>")),
]


def _choice(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if not value or len(set(value)) < len(value):
        raise refuse("one format or more, each once", value)
    return value if len(value) > 1 else value[0]


WeightsDtype = Literal["bf16", "fp8", "nvfp4", "mxfp4"]
KvDtype = Literal["bf16", "fp8"]

_one_or_list = Discriminator(by_shape(mapping="<one>", sequence="<list>", other="<one>"))

WeightsDtypes = Annotated[
    Annotated[WeightsDtype, Tag("<one>")] | Annotated[tuple[WeightsDtype, ...], Tag("<list>")],
    _one_or_list,
    AfterValidator(_choice),
]
KvDtypes = Annotated[
    Annotated[KvDtype, Tag("<one>")] | Annotated[tuple[KvDtype, ...], Tag("<list>")],
    _one_or_list,
    AfterValidator(_choice),
]


class Engine(Section):
    """Software and numeric formats of the inference engines."""

    backend: Literal["auto", "sglang", "vllm", "trtllm"] = key(
        "Inference engine; auto: the best documented rate row", default="auto"
    )
    backend_version: Text | None = key(
        "Version of the backend, as its profile names it", default=None
    )
    weights_dtype: WeightsDtypes = key(
        "Format of the weights while generating (mxfp4: experts only, the rest BF16), or formats "
        "to choose from",
        default="bf16",
    )
    kv_dtype: KvDtypes = key("Format of the KV cache, or formats to choose from", default="bf16")
    memory_fraction: PositiveShare = key(
        "Share of GPU memory that weights and KV cache may fill",
        unit="fraction",
        default=assumed(
            0.88, "default: static memory share engines are commonly run with", low=0.8, high=0.92
        ),
    )
    layouts: Layouts = key(
        "Engine layouts to choose from; auto: those with a profile", default="auto"
    )
    disaggregation: Literal["never", "auto", "always"] = key(
        "Whether prefill runs on engines of its own; auto: where that is better", default="never"
    )
    kv_during_tools: Literal["hold", "evict"] = key(
        "What happens to a sequence's cache while a tool runs", default="hold"
    )
    max_context_tokens: Count | None = key(
        "Longest context an engine accepts; not set: the model's own", unit="tokens", default=None
    )
    rates: Annotated[Rates | None, BeforeValidator(nothing_if_empty)] = key(
        "Rate laws measured by the user; not set: profiles", default=None
    )
    estimate: Literal["allow", "refuse"] = key(
        "Whether the physics estimate may stand in where no rate row matches", default="refuse"
    )

    @model_validator(mode="after")
    def _some_layout(self) -> Engine:
        if not self.layouts:
            raise refuse("auto or at least one layout", [], at=("layouts",))
        return self

    @property
    def weights_dtypes(self) -> tuple[WeightsDtype, ...]:
        """Formats of the weights to choose from; one when it is fixed."""
        said = self.weights_dtype
        return said if isinstance(said, tuple) else (said,)

    @property
    def kv_dtypes(self) -> tuple[KvDtype, ...]:
        """Formats of the KV cache to choose from; one when it is fixed."""
        said = self.kv_dtype
        return said if isinstance(said, tuple) else (said,)
