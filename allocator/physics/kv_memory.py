"""KV cache: bytes a sequence holds, bytes an engine has left for it, sequences that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.physics.decode import Index

#: One-sided 95% normal quantile: the KV cache must hold the context of all but 1 moment in 20;
#: holding only the mean preempts half of the time (design section 2).
CONTEXT_QUANTILE = 1.65

#: Bytes of one stored value; NVFP4 carries an FP8 scale for every 16 values (4.5 bits).
#: MXFP4 one for every 32 (4.25 bits).
BYTES_PER_VALUE = {"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125}


@dataclass(frozen=True, slots=True)
class KvFootprint:
    """Bytes of KV cache that one sequence occupies on one engine.

    Attributes
    ----------
    bytes_per_token : growth per context token, with every copy that the layout makes.
    window_bytes_per_token : growth of sliding-window layers, which stops at `window_tokens`.
    window_tokens : window of those layers; 0 when there are none.
    """

    bytes_per_token: Any
    window_bytes_per_token: Any = 0.0
    window_tokens: float = 0.0

    def take(self, index: Index) -> KvFootprint:
        """Return the footprints of the engine kinds in `index` (shape of `index`)."""
        return KvFootprint(
            np.asarray(self.bytes_per_token)[index],
            np.asarray(self.window_bytes_per_token)[index],
            self.window_tokens,
        )

    def sequence_bytes(self, context_tokens: Any) -> Any:
        """Bytes held by one sequence of `context_tokens` tokens."""
        windowed = np.minimum(context_tokens, self.window_tokens)
        return self.bytes_per_token * context_tokens + self.window_bytes_per_token * windowed


def kv_copies(attention: str, kv_heads: int, tensor_parallel: int) -> float:
    """How many copies of each KV entry a tensor-parallel group keeps.

    Grouped-query attention splits KV heads over ranks and repeats them past `kv_heads`;
    multi-head latent attention keeps the one latent on every rank (hardware_profiles/sources).

    Examples
    --------
    >>> kv_copies("gqa", 4, 8), kv_copies("gqa", 8, 4), kv_copies("mla", 1, 8)
    (2.0, 1.0, 8.0)
    """
    if attention.startswith("mla"):
        return float(tensor_parallel)
    return tensor_parallel / min(tensor_parallel, kv_heads)


def engine_weights_bytes_per_gpu(
    params_total: float,
    expert_params_total: float,
    bytes_per_param: float,
    dense_bytes_per_param: float,
    *,
    tensor_parallel: int,
    pipeline_parallel: int,
    expert_gpus: int,
) -> float:
    """Weight bytes on the fullest GPU of an engine.

    `bytes_per_param` is for experts, `dense_bytes_per_param` for everything else (they differ
    where only the experts are quantised).
    Experts are spread over `expert_gpus` = moe_tp x ep GPUs; everything else over the tensor
    and pipeline ranks (attention data-parallel ranks hold copies of it).
    """
    dense = dense_bytes_per_param * (params_total - expert_params_total) / tensor_parallel
    experts = bytes_per_param * expert_params_total / expert_gpus
    return (dense + experts) / pipeline_parallel


def kv_budget_bytes(
    gpus: int, hbm_bytes: float, memory_fraction: float, weights_bytes_per_gpu: float
) -> float:
    """Bytes an engine may fill with KV cache: its share of HBM less the weights, never below 0.

    Examples
    --------
    Qwen3-235B in BF16 on 8 H200 at 0.88 leaves 596 GB:

    >>> round(kv_budget_bytes(8, 141 * 2**30, 0.88, 235.093e9 * 2 / 8) / 1e9)
    596
    """
    return max(0.0, gpus * (memory_fraction * hbm_bytes - weights_bytes_per_gpu))


def sequences_that_fit(budget_bytes: Any, mean_bytes: Any, sd_bytes: Any) -> Any:
    """Largest number N of sequences whose contexts fit: N c + 1.65 sqrt(N) sd(c) <= budget.

    A quadratic in sqrt(N). Bytes throughout; `mean_bytes` > 0.

    Examples
    --------
    >>> float(sequences_that_fit(1000.0, 10.0, 0.0))
    100.0
    """
    spread = CONTEXT_QUANTILE * np.asarray(sd_bytes, dtype=float)
    root = (np.sqrt(spread * spread + 4.0 * mean_bytes * budget_bytes) - spread) / (
        2.0 * mean_bytes
    )
    return root * root


def sequences_bytes(sequences: Any, mean_bytes: Any, sd_bytes: Any) -> Any:
    """Bytes to reserve for N sequences: N c + 1.65 sqrt(N) sd(c)."""
    return sequences * mean_bytes + CONTEXT_QUANTILE * np.sqrt(sequences) * sd_bytes
