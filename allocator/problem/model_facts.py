"""Models as the laws need them - policy, critic, reward: sizes, forward shape, KV values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocator.physics.flops import ForwardShape
from allocator.physics.kv_memory import BYTES_PER_VALUE
from allocator.scenario.errors import ScenarioError

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue, ModelProfile
    from allocator.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model's numbers, entered in the ledger.

    Attributes
    ----------
    kv_values_per_token : values cached per token on one copy, index keys included.
    window_share, kv_window_tokens : share of those values in layers that keep only a window.
    expert_miss : 1 - experts_per_token / experts; 0 when dense.
    adapter_params_per_rank : parameters of LoRA adapters on all linear layers, every expert
        included, per unit of rank; None where the profile lacks a dimension.
    adapter_active_per_rank : those on one token's path.
    """

    id: str
    in_catalogue: bool
    params_total: float
    params_active: float
    expert_params_total: float
    forward: ForwardShape
    layers: float
    hidden: float
    vocab: float | None
    attention: str
    kv_heads: int
    kv_values_per_token: float
    window_share: float
    kv_window_tokens: float
    experts: float
    experts_per_token: float
    expert_miss: float
    adapter_params_per_rank: float | None
    adapter_active_per_rank: float | None

    def weight_bytes(self, dtype: str) -> float:
        """Bytes of all weights in an engine's format."""
        dense = self.params_total - self.expert_params_total
        return BYTES_PER_VALUE[dtype] * self.expert_params_total + dense_bytes(dtype) * dense


def dense_bytes(dtype: str) -> float:
    """Bytes per parameter outside the experts: MXFP4 checkpoints quantise experts only."""
    return BYTES_PER_VALUE["bf16" if dtype == "mxfp4" else dtype]


def model_facts(scenario: Scenario, catalogue: Catalogue, ledger: Ledger) -> ModelFacts:
    """Resolve the scenario's model from the catalogue, a config.json or an inline block."""
    if not isinstance(scenario.model, str):
        return _inline(scenario, ledger)
    file = scenario.model_file
    if file is not None:
        return _of_profile(catalogue.model_from_config(file), False, ledger)
    return catalogue_model(scenario, catalogue, ledger, "model", scenario.model)


def catalogue_model(
    scenario: Scenario, catalogue: Catalogue, ledger: Ledger, path: str, name: str
) -> ModelFacts:
    """Resolve the catalogue model that the scenario names at `path`.

    Raises
    ------
    ScenarioError
        At that path, when the catalogue has no such model.
    """
    try:
        profile = catalogue.model(name)
    except ScenarioError as error:
        file, line = scenario.origin.locate(path)
        raise error.at(file=file, line=line, path=path) from None
    return _of_profile(profile, True, ledger)


def _of_profile(profile: ModelProfile, in_catalogue: bool, ledger: Ledger) -> ModelFacts:
    place = f"models/{profile.id}"

    def need(name: str) -> float:
        return ledger.datum(getattr(profile, name), f"{place}.{name}")

    def maybe(name: str, otherwise: float = 0.0) -> float:
        return otherwise if getattr(profile, name) is None else need(name)

    attention = profile.attention
    layers, heads = need("layers"), need("attention_heads")
    if attention == "gqa":
        query, value = need("head_dim"), need("head_dim")
    else:
        query = need("qk_nope_head_dim") + need("qk_rope_head_dim")
        value = need("v_head_dim")
    window, full = maybe("sliding_window_tokens"), maybe("full_attention_layers", layers)
    windowed = layers - full if window else 0.0
    index = 0.0
    if attention == "mla_dsa":
        window, full, windowed = need("index_topk"), 0.0, layers
        index = 2.0 * need("index_heads") * need("index_head_dim")
    sparse_kv = attention == "mla_dsa"
    experts, chosen = maybe("experts"), maybe("experts_per_token")
    adapters = _adapter_params_per_rank(profile, layers, heads, experts, chosen, ledger)
    return ModelFacts(
        id=profile.id,
        in_catalogue=in_catalogue,
        params_total=need("params_total"),
        params_active=need("params_active"),
        expert_params_total=maybe("expert_params_total"),
        forward=ForwardShape(
            matmul_params=need("params_matmul_active"),
            full_layers=full,
            window_layers=windowed,
            window_tokens=window,
            flops_per_pair=2.0 * heads * (query + value),
            index_flops_per_pair=index,
        ),
        layers=layers,
        hidden=need("hidden"),
        vocab=None if profile.vocab is None else need("vocab"),
        attention=attention,
        kv_heads=int(maybe("kv_heads", 1.0)),
        kv_values_per_token=need("kv_elements_per_token") + maybe("index_key_elements_per_token"),
        # Sparse selection reads few entries but caches all; only windows forget.
        window_share=0.0 if sparse_kv else windowed / layers,
        kv_window_tokens=0.0 if sparse_kv else window,
        experts=experts,
        experts_per_token=chosen,
        expert_miss=1.0 - chosen / experts if experts else 0.0,
        adapter_params_per_rank=adapters[0],
        adapter_active_per_rank=adapters[1],
    )


def _inline(scenario: Scenario, ledger: Ledger) -> ModelFacts:
    """Resolve a model described in the scenario; grouped-query attention is taken."""
    said = scenario.model
    assert not isinstance(said, str)
    absent = [n for n in ("hidden", "attention_heads", "vocab") if getattr(said, n) is None]
    if absent:
        raise scenario.error(f"model.{absent[0]}", "a number: trainer memory and FLOPs need it")
    total = ledger.quantity("model.params_total", said.params_total, "1")
    active = ledger.quantity("model.params_active", said.active, "1")

    def use(name: str) -> float:
        value = getattr(said, name)
        return ledger.number(f"model.{name}", float(value), "1", kind="stated", source="scenario")

    layers, hidden, heads, vocab = map(use, ("layers", "hidden", "attention_heads", "vocab"))
    if active <= hidden * vocab:
        raise scenario.error(
            "model.vocab",
            f"a vocabulary whose embedding is smaller than the {active:g} active parameters",
            f"{vocab:g} entries of width {hidden:g}",
        )
    head = use("head_dim") if said.head_dim is not None else hidden / heads
    if said.kv_bytes_per_token is not None:
        per_token = ledger.quantity("model.kv_bytes_per_token", said.kv_bytes_per_token, "byte")
        # One number of bytes cannot be of two formats: `engine_kinds` refuses a choice beside it.
        values = per_token / BYTES_PER_VALUE[scenario.engine.kv_dtypes[0]]
    else:
        values = 2.0 * layers * use("kv_heads") * head
    experts = use("experts") if said.experts is not None else 0.0
    chosen = use("experts_per_token") if said.experts_per_token is not None else 0.0
    # The parameters that vary with routing: total - active = E (1 - k/X).
    miss = 1.0 - chosen / experts if experts else 0.0
    return ModelFacts(
        id="inline model",
        in_catalogue=False,
        params_total=total,
        params_active=active,
        expert_params_total=(total - active) / miss if miss else 0.0,
        forward=ForwardShape(
            matmul_params=active - hidden * vocab,
            full_layers=layers,
            window_layers=0.0,
            window_tokens=0.0,
            flops_per_pair=4.0 * heads * head,
        ),
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        attention="gqa",
        kv_heads=said.kv_heads or int(heads),
        kv_values_per_token=values,
        window_share=0.0,
        kv_window_tokens=0.0,
        experts=experts,
        experts_per_token=chosen,
        expert_miss=miss,
        adapter_params_per_rank=None,
        adapter_active_per_rank=None,
    )


def _adapter_params_per_rank(
    profile: ModelProfile,
    layers: float,
    heads: float,
    experts: float,
    chosen: float,
    ledger: Ledger,
) -> tuple[float | None, float | None]:
    """Adapter parameters per rank, all and on one token's path: input + output of each matrix."""
    width = profile.moe_intermediate if experts else profile.intermediate
    absent = width is None or profile.head_dim is None or profile.kv_heads is None
    if profile.attention != "gqa" or absent:
        return None, None
    place = f"models/{profile.id}"
    hidden = ledger.datum(profile.hidden, f"{place}.hidden")
    head = ledger.datum(profile.head_dim, f"{place}.head_dim")
    kv = ledger.datum(profile.kv_heads, f"{place}.kv_heads")
    inner = ledger.datum(width, f"{place}.intermediate")
    attention = 2.0 * (hidden + heads * head) + 2.0 * (hidden + kv * head)
    feed_forward = 3.0 * (hidden + inner)
    return (
        layers * (attention + (experts or 1.0) * feed_forward),
        layers * (attention + (chosen or 1.0) * feed_forward),
    )
