"""The physics fallback: decode and prefill coefficients from data sheets alone. An estimate.

Used only where no measured or fitted profile matches and the scenario allows it by name. Median
error of the step 6% (dense BF16) and 8% (mixture of experts BF16); worse in FP8 (11-22%), not
validated for latent attention with sparse selection. Constants fitted to the dense SGLang rows of
H200 and checked on H100, B200 and GB300 (hardware digest, section 1.6).
"""

from __future__ import annotations

from allocator.physics.decode import DecodeLaw
from allocator.physics.prefill import PrefillLaw

#: Seconds per layer of a step: kernel launches and small collectives.
LAYER_S = 0.06e-3
#: Passes over HBM of weights, KV cache and experts, per byte read.
WEIGHT_READS = 0.9
KV_READS = 1.12
EXPERT_READS = 1.0
#: Time of the arithmetic over FLOP/peak; it overlaps with the reads, hence below 1.
COMPUTE_SHARE = 0.45
#: Passes over the scale-up link of the two all-reduces a layer makes.
LINK_PASSES = 7.0
#: Bytes of a BF16 activation.
ACTIVATION_BYTES = 2.0
#: Share of the dense peak a long prefill reaches (assumed; measured prefill rates of 8B-32B
#: models on H200 lie between 0.4 and 0.65 of it).
PREFILL_PEAK_SHARE = 0.5
#: Median relative errors of the step time, used as the spread of an estimate.
MEDIAN_ERROR_DENSE = 0.06
MEDIAN_ERROR_MOE = 0.08


def estimated_decode_law(
    *,
    layers: float,
    hidden: float,
    dense_weight_bytes: float,
    expert_weight_bytes: float,
    experts: float,
    experts_per_token: float,
    matmul_params: float,
    kv_bytes_per_token: float,
    gpus: int,
    hbm_bytes_per_s: float,
    peak_flops_per_s: float,
    scale_up_bytes_per_s: float,
) -> DecodeLaw:
    """Decode coefficients of one engine from its model and data sheet.

    step = 0.06 ms layers + 0.9 dense/HBM + experts(n)/HBM + 1.12 KV/HBM + 0.45 FLOP/peak
           + 7 (2 layers n hidden 2 bytes)/link, each per GPU.

    Parameters
    ----------
    dense_weight_bytes, expert_weight_bytes : of the whole model; spread over `gpus`.
    kv_bytes_per_token : with the copies the layout makes, over all GPUs.

    Examples
    --------
    Qwen3-8B in BF16 on one H200: one decode step of 64 sequences with 4,096 tokens of context
    each (fitted profile: 14.0 ms).

    >>> from allocator.physics.decode import decode_step_s
    >>> law = estimated_decode_law(
    ...     layers=36, hidden=4096, dense_weight_bytes=16.38e9, expert_weight_bytes=0.0,
    ...     experts=0, experts_per_token=0, matmul_params=7.568e9, kv_bytes_per_token=147456,
    ...     gpus=1, hbm_bytes_per_s=4.8e12, peak_flops_per_s=989e12, scale_up_bytes_per_s=450e9)
    >>> round(1e3 * float(decode_step_s(law, 64.0, 64 * 4096.0)), 1)
    14.7
    """
    links = LINK_PASSES * 2.0 * layers * hidden * ACTIVATION_BYTES / scale_up_bytes_per_s
    return DecodeLaw(
        alpha_s=LAYER_S * layers + WEIGHT_READS * dense_weight_bytes / gpus / hbm_bytes_per_s,
        expert_s=EXPERT_READS * expert_weight_bytes / gpus / hbm_bytes_per_s,
        beta_s=COMPUTE_SHARE * 2.0 * matmul_params / gpus / peak_flops_per_s
        + (links if gpus > 1 else 0.0),
        gamma_s_per_token=KV_READS * kv_bytes_per_token / gpus / hbm_bytes_per_s,
        expert_miss=1.0 - experts_per_token / experts if experts else 0.0,
    )


def estimated_prefill_law(
    *, matmul_params: float, attention_flops_per_pair: float, gpus: int, peak_flops_per_s: float
) -> PrefillLaw:
    """Prefill coefficients of one engine: arithmetic at half of the dense peak.

    `attention_flops_per_pair` is over all layers; causality halves the pairs of a fresh prompt.

    Examples
    --------
    An 8B model on one GPU of 989 TFLOP/s reads about 33,000 tokens a second.

    >>> law = estimated_prefill_law(matmul_params=7.568e9, attention_flops_per_pair=0.0, gpus=1,
    ...                             peak_flops_per_s=989e12)
    >>> round(1 / law.p1_s_per_token, -3)
    33000.0
    """
    rate = PREFILL_PEAK_SHARE * gpus * peak_flops_per_s
    return PrefillLaw(
        p0_s=0.0,
        p1_s_per_token=2.0 * matmul_params / rate,
        p2_s_per_token2=attention_flops_per_pair / 2.0 / rate,
    )
