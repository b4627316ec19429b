"""A model profile from a Hugging Face ``config.json``: parameters counted from the dimensions.

Known: dense grouped-query attention (Llama, Qwen2, Qwen3), Qwen3 mixture of experts, gpt-oss,
DeepSeek-V3 latent attention (Kimi K2) and its sparse form (DeepSeek-V3.2, GLM-5). Norms, biases,
router biases and multi-token-prediction layers are left out of the counts, as in the catalogue.
Anything else is refused: a count for an unknown architecture would be a guess.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from allocator.scenario.errors import ScenarioError, nearest_of, shown
from allocator.scenario.records import Datum, ModelProfile

SIZE_LIMIT_BYTES = 1_000_000
"""A config.json is a few kilobytes; what is larger is something else."""

DENSE = ("llama", "qwen2", "qwen3")
MOE = ("qwen3_moe", "gpt_oss")
LATENT = ("deepseek_v3", "kimi_k2")
LATENT_SPARSE = ("deepseek_v32", "glm_moe_dsa")
KNOWN = (*DENSE, *MOE, *LATENT, *LATENT_SPARSE)

_UNITS = {
    "kv_elements_per_token": "element/token",
    "index_key_elements_per_token": "element/token",
    "sliding_window_tokens": "token",
    "max_position_embeddings": "token",
    "index_topk": "token",
}


def model_from_config(path: str | Path) -> ModelProfile:
    """Return the profile of the model that `path`, a Hugging Face config.json, describes.

    Raises
    ------
    ScenarioError
        If the file cannot be read, is larger than 1 MB, is not a JSON object, describes an
        architecture that is not known, or lacks a key; the message names the key and the file.
    """
    return model_from_mapping(_read(Path(path)), file=str(path))


def model_from_mapping(config: Mapping[str, Any], *, file: str) -> ModelProfile:
    """Return the profile that the parsed `config` describes; `file` names it in errors."""
    keys = _Keys(config, file)
    family = keys.text("model_type")
    if family not in KNOWN:
        keys.refuse(
            "model_type",
            expected="one of " + ", ".join(KNOWN),
            given=family,
            nearest=nearest_of(family, KNOWN),
        )
    latent = family in (*LATENT, *LATENT_SPARSE)
    attention = _latent_attention(keys, family) if latent else _grouped_attention(keys, family)
    mlp = _dense_mlp(keys) if family in DENSE else _expert_mlp(keys, family)

    layers, hidden = keys.count("num_hidden_layers"), keys.count("hidden_size")
    vocab = keys.count("vocab_size")
    tied = keys.flag("tie_word_embeddings")
    embedding = vocab * hidden
    total = layers * attention.params_per_layer + mlp.params + embedding * (1 if tied else 2)
    active = total - mlp.expert_params + mlp.active_expert_params
    values: dict[str, int] = {
        "params_total": total,
        "params_active": active,
        "params_matmul_active": active if tied else active - embedding,
        "layers": layers,
        "hidden": hidden,
        "vocab": vocab,
        "attention_heads": keys.count("num_attention_heads"),
        **attention.values,
        **mlp.values,
    }
    if "max_position_embeddings" in config:
        values["max_position_embeddings"] = keys.count("max_position_embeddings")
    if mlp.expert_params:
        values["expert_params_total"] = mlp.expert_params
    name = Path(file)
    source = f"computed from the dimensions in {name.name}"
    data: dict[str, Any] = {
        key: Datum(
            float(value),
            "parameter" if "params" in key else _UNITS.get(key, "1"),
            "vendor",
            source,
            None,
            where=f"{file}: {key}",
        )
        for key, value in values.items()
    }
    return ModelProfile(
        id=(name.parent.name if name.stem == "config" else name.stem) or "config",
        kind="dense" if family in DENSE else "moe",
        attention=attention.kind,
        tied_embeddings=tied,
        **data,
    )


@dataclass(frozen=True, slots=True)
class _Attention:
    kind: str
    params_per_layer: int
    values: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Mlp:
    params: int  # all layers: experts, shared experts, routers, dense layers
    expert_params: int
    active_expert_params: int
    values: dict[str, int]


def _grouped_attention(keys: _Keys, family: str) -> _Attention:
    layers, hidden = keys.count("num_hidden_layers"), keys.count("hidden_size")
    heads, kv_heads = keys.count("num_attention_heads"), keys.count("num_key_value_heads")
    if keys.absent("head_dim"):
        # The rule of the Llama and Qwen2 classes; the others always state it.
        if family not in ("llama", "qwen2"):
            keys.count("head_dim")
        head_dim, rest = divmod(hidden, heads)
        if rest:
            keys.refuse(
                "hidden_size", expected="a multiple of num_attention_heads", given=str(hidden)
            )
    else:
        head_dim = keys.count("head_dim")
    values = {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "kv_elements_per_token": 2 * layers * kv_heads * head_dim,
    }
    full = _full_attention_layers(keys, family, layers)
    if full < layers:
        values["sliding_window_tokens"] = keys.count("sliding_window")
        values["full_attention_layers"] = full
    # Query and output projections, then keys and values.
    params = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    return _Attention("gqa", params, values)


def _full_attention_layers(keys: _Keys, family: str, layers: int) -> int:
    if family != "gpt_oss" and keys.config.get("use_sliding_window"):
        keys.refuse("use_sliding_window", expected="false for this architecture", given="true")
    if family != "gpt_oss" and keys.absent("layer_types"):
        return layers
    kinds = keys.value("layer_types")
    known = ("full_attention", "sliding_attention")
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or any(kind not in known for kind in kinds)
    ):
        keys.refuse(
            "layer_types", expected=f"{layers} entries of {' or '.join(known)}", given=shown(kinds)
        )
    return kinds.count("full_attention")


def _latent_attention(keys: _Keys, family: str) -> _Attention:
    layers, hidden = keys.count("num_hidden_layers"), keys.count("hidden_size")
    heads = keys.count("num_attention_heads")
    kv_rank, v_dim = keys.count("kv_lora_rank"), keys.count("v_head_dim")
    rope, nope = keys.count("qk_rope_head_dim"), keys.count("qk_nope_head_dim")
    values = {
        "kv_lora_rank": kv_rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": v_dim,
        "kv_elements_per_token": layers * (kv_rank + rope),
    }
    query_width = heads * (rope + nope)
    if keys.value("q_lora_rank") is None:
        query, query_input = hidden * query_width, hidden
    else:
        query_input = values["q_lora_rank"] = keys.count("q_lora_rank")
        query = hidden * query_input + query_input * query_width
    params = (
        query
        + hidden * (kv_rank + rope)
        + kv_rank * heads * (nope + v_dim)
        + heads * v_dim * hidden
    )
    if family not in LATENT_SPARSE:
        return _Attention("mla", params, values)
    index_heads, index_dim = keys.count("index_n_heads"), keys.count("index_head_dim")
    values |= {
        "index_topk": keys.count("index_topk"),
        "index_heads": index_heads,
        "index_head_dim": index_dim,
        "index_key_elements_per_token": layers * index_dim,
    }
    # The indexer: queries, one shared key, one weight per head.
    params += query_input * index_heads * index_dim + hidden * index_dim + hidden * index_heads
    return _Attention("mla_dsa", params, values)


def _dense_mlp(keys: _Keys) -> _Mlp:
    layers, hidden = keys.count("num_hidden_layers"), keys.count("hidden_size")
    intermediate = keys.count("intermediate_size")
    return _Mlp(layers * 3 * hidden * intermediate, 0, 0, {"intermediate": intermediate})


def _expert_mlp(keys: _Keys, family: str) -> _Mlp:
    layers, hidden = keys.count("num_hidden_layers"), keys.count("hidden_size")
    intermediate, shared, dense_layers = keys.count("intermediate_size"), 0, 0
    chosen = keys.count("num_experts_per_tok")
    if family == "gpt_oss":
        experts, width = keys.count("num_local_experts"), intermediate
    elif family == "qwen3_moe":
        experts, width = keys.count("num_experts"), keys.count("moe_intermediate_size")
        dense_layers = _qwen_dense_layers(keys, layers)
    else:
        experts, width = keys.count("n_routed_experts"), keys.count("moe_intermediate_size")
        shared = keys.count("n_shared_experts", least=0)
        dense_layers = keys.count("first_k_dense_replace", least=0)
        if keys.config.get("moe_layer_freq", 1) != 1:
            given = shown(keys.value("moe_layer_freq"))
            keys.refuse("moe_layer_freq", expected="1", given=given)
    if chosen > experts:
        keys.refuse("num_experts_per_tok", expected=f"at most {experts}", given=str(chosen))
    if dense_layers > layers:
        keys.refuse("first_k_dense_replace", expected=f"at most {layers}", given=str(dense_layers))
    moe_layers, expert = layers - dense_layers, 3 * hidden * width
    rest = moe_layers * (shared * expert + hidden * experts)
    rest += dense_layers * 3 * hidden * intermediate
    return _Mlp(
        params=moe_layers * experts * expert + rest,
        expert_params=moe_layers * experts * expert,
        active_expert_params=moe_layers * chosen * expert,
        values={
            "intermediate": intermediate,
            "experts": experts,
            "experts_per_token": chosen,
            "shared_experts": shared,
            "moe_intermediate": width,
            "first_dense_layers": dense_layers,
        },
    )


def _qwen_dense_layers(keys: _Keys, layers: int) -> int:
    step = keys.count("decoder_sparse_step")
    listed = keys.value("mlp_only_layers")
    if not isinstance(listed, list) or any(type(entry) is not int for entry in listed):
        keys.refuse("mlp_only_layers", expected="a list of layer numbers", given=shown(listed))
    return sum(1 for layer in range(layers) if layer in listed or (layer + 1) % step)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed access to the keys of one configuration file; errors name the key and the file."""

    config: Mapping[str, Any]
    file: str

    def refuse(
        self, key: str, *, expected: str, given: str | None, nearest: str | None = None
    ) -> NoReturn:
        raise ScenarioError(
            file=self.file, path=key, expected=expected, given=given, nearest=nearest
        )

    def absent(self, key: str) -> bool:
        return self.config.get(key) is None

    def value(self, key: str) -> Any:
        if key not in self.config:
            self.refuse(
                key,
                expected="this key (the parameter count needs it)",
                given="nothing",
                nearest=nearest_of(key, self.config),
            )
        return self.config[key]

    def text(self, key: str) -> str:
        found = self.value(key)
        if not isinstance(found, str):
            self.refuse(key, expected="a string", given=shown(found))
        return found

    def flag(self, key: str) -> bool:
        found = self.value(key)
        if not isinstance(found, bool):
            self.refuse(key, expected="true or false", given=shown(found))
        return found

    def count(self, key: str, least: int = 1) -> int:
        found = self.value(key)
        # A boolean is an int in Python, and a dimension beyond 10 million is no dimension.
        if type(found) is not int or not least <= found <= 10_000_000:
            self.refuse(key, expected=f"an integer of at least {least}", given=shown(found))
        return found


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as stream:
            raw = stream.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ScenarioError(
            f"cannot read the model configuration: {error.strerror}", file=str(path)
        ) from error
    if len(raw) > SIZE_LIMIT_BYTES:
        raise ScenarioError(
            file=str(path), expected="a config.json of at most 1 MB", given="a larger file"
        )
    try:
        parsed = json.loads(raw)
    except json.JSONDecodeError as error:
        raise ScenarioError(
            f"not JSON: {error.msg}", file=str(path), line=error.lineno, column=error.colno
        ) from error
    except (ValueError, RecursionError) as error:
        raise ScenarioError("not a JSON text that can be read", file=str(path)) from error
    if not isinstance(parsed, dict):
        raise ScenarioError(file=str(path), expected="a JSON object", given=shown(parsed))
    return parsed
