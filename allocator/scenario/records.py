"""Records of the profile catalogue: numbers that keep their origin."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from allocator.scenario.errors import ScenarioError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class Datum:
    """One number with its origin.

    Attributes
    ----------
    value : float
        The number, in `unit`.
    unit : str
        SI base (byte, FLOP/s, s, W) or a count (GPU, layer, token); ``1`` for a pure ratio.
    kind : str
        ``vendor`` (data sheet, configuration file), ``measured``, ``fitted`` or ``assumed``.
    source : str
        Title of the source; where there are several, of the first, with the keys of the others
        (``Catalogue.sources`` has all titles).
    as_of : str or None
        Date of the first dated source as the source gives it; None when undated.
    low, high : float or None
        Spread where sources disagree.
    where : str
        Path of the number in the profiles, for example ``gpus/h200-sxm.hbm_bytes``.
    """

    value: float
    unit: str
    kind: str
    source: str
    as_of: str | None
    low: float | None = None
    high: float | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """One GPU type, dense figures per GPU; None where no source gives the number."""

    id: str
    vendor: str
    aliases: tuple[str, ...]
    bf16_flops_per_s: Datum
    hbm_bytes: Datum
    hbm_bytes_per_s: Datum
    scale_up_bytes_per_s: Datum
    scale_up_domain_gpus: Datum
    gpus_per_node: Datum
    tdp_w: Datum
    fp8_flops_per_s: Datum | None = None
    fp4_flops_per_s: Datum | None = None
    network_bytes_per_s: Datum | None = None
    all_in_w: Datum | None = None

    def require(self, name: str) -> Datum:
        """Return the number called `name`; ScenarioError that names the file to fill if absent."""
        found = getattr(self, name)
        if found is None:
            missing(f"gpus/{self.id}.{name}", "gpus.yaml")
        assert isinstance(found, Datum), name
        return found

    def peak_flops_per_s(self, precision: str) -> Datum:
        """Return the dense peak of ``bf16``, ``fp8`` or ``nvfp4`` (alias ``fp4``) arithmetic."""
        return self.require(f"{'fp4' if precision == 'nvfp4' else precision}_flops_per_s")


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Architecture of one model; None where it has no such part or no source gives the number.

    `params_active` counts embedding and output head once each (tied: once);
    `params_matmul_active` drops the input embedding, and is the N of 2 N FLOPs per token.
    `kv_elements_per_token` is one copy of the whole cache, windowed layers included.
    """

    id: str
    kind: str  # dense | moe
    attention: str  # gqa | mla | mla_dsa
    hf_id: str | None = None
    tied_embeddings: bool | None = None
    note: str | None = None
    aliases: tuple[str, ...] = ()
    params_total: Datum | None = None
    params_active: Datum | None = None
    params_matmul_active: Datum | None = None
    expert_params_total: Datum | None = None
    layers: Datum | None = None
    hidden: Datum | None = None
    intermediate: Datum | None = None
    vocab: Datum | None = None
    max_position_embeddings: Datum | None = None
    attention_heads: Datum | None = None
    kv_heads: Datum | None = None
    head_dim: Datum | None = None
    kv_elements_per_token: Datum | None = None
    sliding_window_tokens: Datum | None = None
    full_attention_layers: Datum | None = None
    kv_lora_rank: Datum | None = None
    q_lora_rank: Datum | None = None
    qk_rope_head_dim: Datum | None = None
    qk_nope_head_dim: Datum | None = None
    v_head_dim: Datum | None = None
    index_topk: Datum | None = None
    index_heads: Datum | None = None
    index_head_dim: Datum | None = None
    index_key_elements_per_token: Datum | None = None
    experts: Datum | None = None
    experts_per_token: Datum | None = None
    shared_experts: Datum | None = None
    moe_intermediate: Datum | None = None
    first_dense_layers: Datum | None = None
    mtp_layers_not_counted: Datum | None = None

    def require(self, name: str) -> Datum:
        """Return the number called `name`; ScenarioError that names the file to fill if absent."""
        found = getattr(self, name)
        if found is None:
            missing(f"models/{self.id}.{name}", "models.yaml")
        assert isinstance(found, Datum), name
        return found


class DecodePoint(NamedTuple):
    """One modelled decode step: `step_s` with `sequences` of `context_tokens` on a whole engine."""

    context_tokens: int
    sequences: int
    step_s: float


class PrefillPoint(NamedTuple):
    """Engine-seconds to prefill one prompt of `tokens`."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """Engine-seconds to prefill L fresh tokens: p0 + p1 L + p2 L^2, for L in [min, max].

    Where attention is data-parallel these are engine-seconds per prompt with every rank busy, not
    the wait of one prompt.
    `exactly_determined`: three points, three coefficients, so `rmse_fraction` 0 says nothing
    about the error between the points. Otherwise a non-negative least-squares fit.
    """

    p0_s: float
    p1_s_per_token: float
    p2_s_per_token2: float
    exactly_determined: bool
    rmse_fraction: float
    min_tokens: int
    max_tokens: int
    points: tuple[PrefillPoint, ...]


@dataclass(frozen=True, slots=True)
class RateRow:
    """Fitted rates of one engine: model, GPU, backend, dtypes and layout.

    decode_step_s = alpha + expert (1 - (1 - k/X)^n) + beta n + gamma K, with n sequences and
    K context tokens on the **whole** engine, also where attention is data-parallel (`dp` > 1).

    Attributes
    ----------
    tp, dp, moe_tp, ep : int
        Tensor, attention-data, expert-tensor and expert parallelism; tp dp = `gpus_per_engine`.
    experts, experts_per_token : int or None
        X and k of the expert term; None for a dense model, whose `expert_s` is 0.
    rmse_fraction, worst_fraction : float
        Relative error of the rate over the modelled points of `context_min_tokens` to
        `context_max_tokens`, inside the KV capacity.
    suspect : tuple of str
        Reasons why the row fails the sanity gate; empty for a row that may be used.
    remarks : tuple of str
        What is unusual but not wrong, such as a gap to the fastest other backend.
    """

    id: str
    model: str
    model_as_published: str
    gpu: str
    backend: str
    backend_version: str
    weights_dtype: str
    weights_format: str
    kv_dtype: str
    tp: int
    dp: int
    moe_tp: int
    ep: int
    gpus_per_engine: int
    form: str  # three_parameter | four_parameter
    alpha_s: float
    expert_s: float
    beta_s: float
    gamma_s_per_token: float
    experts: int | None
    experts_per_token: int | None
    rmse_fraction: float
    worst_fraction: float
    context_min_tokens: int
    context_max_tokens: int
    prefill: PrefillFit | None
    prefill_note: str | None
    kv_capacity_tokens: int
    points: tuple[DecodePoint, ...]
    suspect: tuple[str, ...]
    remarks: tuple[str, ...]
    kind: str
    source: str
    as_of: str | None

    def datum(self, name: str) -> Datum:
        """Return the decode or prefill coefficient called `name` with its origin."""
        owner = self.prefill if name.startswith("p") else self
        value = getattr(owner, name)
        return Datum(
            float(value), RATE_UNITS[name], self.kind, self.source, self.as_of,
            where=f"rates/{self.id}.{name}",
        )  # fmt: skip


RATE_UNITS = {
    "alpha_s": "s",
    "expert_s": "s",
    "beta_s": "s/sequence",
    "gamma_s_per_token": "s/token",
    "p0_s": "s",
    "p1_s_per_token": "s/token",
    "p2_s_per_token2": "s/token^2",
}


@dataclass(frozen=True, slots=True)
class ExcludedRate:
    """A rate row of the source that is kept out of the tables, and why."""

    id: str
    model: str
    gpu: str
    backend: str
    backend_version: str
    weights_dtype: str
    kv_dtype: str
    gpus_per_engine: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrainingRate:
    """A published training run: long full sequences, balanced routing, 6 N FLOPs per token.

    `mfu` is of the dense peak of the same `precision`; `precision_format` tells FP8 from MXFP8.
    `model` is None when the published model has no profile.
    """

    model: str | None
    model_as_published: str
    gpu: str
    gpus: int
    precision: str
    precision_format: str
    task: str
    sequence_tokens: int
    tokens_per_s_per_gpu: float
    model_flops_per_s_per_gpu: float
    mfu: float
    kind: str
    source: str
    as_of: str | None
    where: str

    def datum(self) -> Datum:
        """Return the published MFU with its origin."""
        return Datum(self.mfu, "1", self.kind, self.source, self.as_of, where=f"{self.where}.mfu")


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """One price; `gpu` is None when the GPU has no profile, `vintage` outside the surveys."""

    gpu: str | None
    gpu_as_published: str
    kind: str
    vintage: str | None
    usd_per_gpu_hour: Datum


@dataclass(frozen=True, slots=True)
class HostedPrice:
    """List price of a hosted training service, in USD per million tokens; None: not listed."""

    model: str | None
    model_as_published: str
    prefill_usd_per_mtok: Datum
    sample_usd_per_mtok: Datum
    train_usd_per_mtok: Datum | None
    cached_prefill_usd_per_mtok: Datum | None


def datum_names(record: type[DataclassInstance]) -> tuple[str, ...]:
    """Return the names of the numbers that a record may hold."""
    return tuple(field.name for field in fields(record) if "Datum" in str(field.type))


def missing(where: str, source_file: str) -> NoReturn:
    """Raise the ScenarioError for a number that no source gives."""
    raise ScenarioError(
        f"no source gives {where}; add it to hardware_profiles/sources/{source_file}"
        " with its source and run `make profiles`, or state it in the scenario",
    )
