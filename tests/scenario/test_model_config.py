"""Profiles from config.json: counts against the catalogue, refusals that name key and file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allocator.scenario.errors import ScenarioError
from allocator.scenario.model_config import KNOWN, SIZE_LIMIT_BYTES, model_from_config
from allocator.scenario.profiles import ModelProfile, load_catalogue

CATALOGUE = load_catalogue()
# glm-4.5 has no parameter totals: its expert width was not found.
COUNTED = [name for name in CATALOGUE.model_ids if CATALOGUE.model(name).params_total is not None]

QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
    "use_sliding_window": False,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
}


def config_of(model: ModelProfile) -> dict[str, Any]:
    """The config.json keys that the dimensions in `model` stand for."""

    def dim(name: str) -> int:
        return int(model.require(name).value)

    layers = dim("layers")
    config: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": dim("hidden"),
        "intermediate_size": dim("intermediate"),
        "num_attention_heads": dim("attention_heads"),
        "vocab_size": dim("vocab"),
        "tie_word_embeddings": model.tied_embeddings,
    }
    if model.attention == "gqa":
        config |= {"num_key_value_heads": dim("kv_heads"), "head_dim": dim("head_dim")}
    else:
        names = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
        config |= {name: dim(name) for name in (*names, "v_head_dim")}
    if model.kind == "dense":
        return config | {"model_type": "llama" if "llama" in model.id else "qwen3"}
    config["num_experts_per_tok"] = dim("experts_per_token")
    if model.sliding_window_tokens is not None:
        full = dim("full_attention_layers")
        kinds = ["full_attention"] * full + ["sliding_attention"] * (layers - full)
        return config | {
            "model_type": "gpt_oss",
            "num_local_experts": dim("experts"),
            "sliding_window": dim("sliding_window_tokens"),
            "layer_types": kinds,
        }
    config["moe_intermediate_size"] = dim("moe_intermediate")
    if model.attention == "gqa":
        return config | {
            "model_type": "qwen3_moe",
            "num_experts": dim("experts"),
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(range(dim("first_dense_layers"))),
        }
    config |= {
        "model_type": "deepseek_v3",
        "n_routed_experts": dim("experts"),
        "n_shared_experts": dim("shared_experts"),
        "first_k_dense_replace": dim("first_dense_layers"),
        "moe_layer_freq": 1,
    }
    if model.attention == "mla_dsa":
        config |= {
            "model_type": "glm_moe_dsa",
            "index_n_heads": dim("index_heads"),
            "index_head_dim": dim("index_head_dim"),
            "index_topk": dim("index_topk"),
        }
    return config


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    return folder / "config.json"


def write(path: Path, config: object) -> Path:
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", COUNTED)
def test_counts_agree_with_the_catalogue(name: str, config_file: Path) -> None:
    model = CATALOGUE.model(name)
    made = model_from_config(write(config_file, config_of(model)))
    assert (made.kind, made.attention) == (model.kind, model.attention)
    exact = ("kv_elements_per_token", "index_key_elements_per_token", "full_attention_layers")
    for field in ("params_total", "params_active", "params_matmul_active", "expert_params_total"):
        published, counted = getattr(model, field), getattr(made, field)
        assert (published is None) == (counted is None), field
        if published is not None:
            # The catalogue rounds to a million parameters.
            assert counted.value == pytest.approx(published.value, abs=0.51e6), field
    for field in (*exact, "layers", "kv_heads", "experts", "q_lora_rank", "index_topk"):
        published, counted = getattr(model, field), getattr(made, field)
        assert (published and published.value) == (counted and counted.value), field


def test_there_are_22_models_to_compare_with() -> None:
    assert len(COUNTED) == 22


def test_published_totals() -> None:
    totals = {"qwen3-235b-a22b": 235.09e9, "deepseek-v3": 671.03e9, "gpt-oss-120b": 116.8e9}
    for name, total in totals.items():
        assert CATALOGUE.model(name).require("params_total").value == pytest.approx(total, rel=2e-4)


def test_profile_carries_name_and_origin(config_file: Path) -> None:
    made = load_catalogue().model_from_config(write(config_file, QWEN3_8B))
    assert made.id == "My-Model"
    layers = made.require("layers")
    assert (layers.value, layers.kind) == (36, "vendor")
    assert layers.source == "computed from the dimensions in config.json"
    assert layers.where.endswith("config.json: layers")
    other = model_from_config(write(config_file.with_name("eight.json"), QWEN3_8B))
    assert other.id == "eight"


def test_llama_may_leave_the_head_dimension_to_its_rule(config_file: Path) -> None:
    config = {**QWEN3_8B, "model_type": "llama"}
    del config["head_dim"]
    made = model_from_config(write(config_file, config))
    assert made.require("head_dim").value == 128
    with pytest.raises(ScenarioError, match="head_dim"):
        model_from_config(write(config_file, {**config, "model_type": "qwen3"}))
    with pytest.raises(ScenarioError, match="a multiple of num_attention_heads"):
        model_from_config(write(config_file, {**config, "num_attention_heads": 33}))


def test_a_model_without_query_compression(config_file: Path) -> None:
    made = model_from_config(write(config_file, {**DEEPSEEK_V3, "q_lora_rank": None}))
    assert made.q_lora_rank is None
    query = 7168 * 128 * (64 + 128)
    compressed = 7168 * 1536 + 1536 * 128 * (64 + 128)
    full = model_from_config(write(config_file, DEEPSEEK_V3)).require("params_total").value
    assert made.require("params_total").value - full == 61 * (query - compressed)


def test_dense_layers_between_experts(config_file: Path) -> None:
    config = {
        **QWEN3_8B,
        "model_type": "qwen3_moe",
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    }
    made = model_from_config(write(config_file, config))
    assert made.require("first_dense_layers").value == 19
    assert made.require("expert_params_total").value == 17 * 16 * 3 * 4096 * 768


OPTIONAL = {"max_position_embeddings", "head_dim", "use_sliding_window"}


@pytest.mark.parametrize("key", sorted(set(QWEN3_8B) - OPTIONAL))
def test_a_missing_key_is_named_with_the_file(key: str, config_file: Path) -> None:
    config = {name: value for name, value in QWEN3_8B.items() if name != key}
    with pytest.raises(ScenarioError) as error:
        model_from_config(write(config_file, config))
    assert error.value.path == key
    assert error.value.file == str(config_file)
    assert key in str(error.value)


@pytest.mark.parametrize("key", sorted(set(DEEPSEEK_V3) - {"moe_layer_freq"}))
def test_a_missing_key_of_latent_attention_is_named(key: str, config_file: Path) -> None:
    config = {name: value for name, value in DEEPSEEK_V3.items() if name != key}
    with pytest.raises(ScenarioError) as error:
        model_from_config(write(config_file, config))
    assert error.value.path == key


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden_size": "4096"}, "an integer of at least 1"),
        ({"hidden_size": True}, "an integer of at least 1"),
        ({"hidden_size": 0}, "an integer of at least 1"),
        ({"hidden_size": -4096}, "an integer of at least 1"),
        ({"hidden_size": 10**12}, "an integer of at least 1"),
        ({"hidden_size": 4096.5}, "an integer of at least 1"),
        ({"tie_word_embeddings": "no"}, "true or false"),
        ({"model_type": 3}, "a string"),
        ({"use_sliding_window": True}, "false for this architecture"),
        ({"layer_types": ["linear_attention"] * 36}, "36 entries"),
        ({"layer_types": ["full_attention"] * 35}, "36 entries"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    change: dict[str, Any], expected: str, config_file: Path
) -> None:
    with pytest.raises(ScenarioError) as error:
        model_from_config(write(config_file, {**QWEN3_8B, **change}))
    assert error.value.path in change
    assert expected in str(error.value.expected)


@pytest.mark.parametrize(
    "change",
    [{"moe_layer_freq": 2}, {"num_experts_per_tok": 257}, {"first_k_dense_replace": 62}],
)
def test_expert_layouts_that_are_not_known_are_refused(
    change: dict[str, Any], config_file: Path
) -> None:
    with pytest.raises(ScenarioError) as error:
        model_from_config(write(config_file, {**DEEPSEEK_V3, **change}))
    assert error.value.path in change


def test_an_unknown_architecture_is_refused_with_the_nearest(config_file: Path) -> None:
    with pytest.raises(ScenarioError) as error:
        model_from_config(write(config_file, {**QWEN3_8B, "model_type": "qwen3_mo"}))
    assert error.value.nearest == "qwen3_moe"
    assert all(name in str(error.value.expected) for name in KNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "not JSON"),
        (b"[1, 2]", "a JSON object"),
        (b'{"\xff": 1}', "not a JSON text"),
        (b"[" * 200_000, "not a JSON text"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "not a JSON text"),
        (b" " * (SIZE_LIMIT_BYTES + 1), "at most 1 MB"),
    ],
    ids=["cut short", "list", "binary", "deep", "huge number", "large"],
)
def test_files_that_are_no_configuration(text: bytes, message: str, config_file: Path) -> None:
    config_file.write_bytes(text)
    with pytest.raises(ScenarioError, match=message) as error:
        model_from_config(config_file)
    assert error.value.file == str(config_file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ScenarioError, match="cannot read the model configuration"):
            model_from_config(path)
