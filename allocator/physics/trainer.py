"""The trainer: executed FLOPs, time of a batch, utilisation, memory.

Published utilisation (MFU) counts 6 FLOP per active parameter and trained token and nothing
else; the hardware executes more (recomputation, log-probabilities, attention). The law is kept
in executed FLOPs at a hardware utilisation (HFU); `hfu_from_mfu` converts, and confusing the two
is an error of 2 to 4 times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Activation bytes per layer, token and hidden unit without recomputation: 34 (Korthikanti et al.
#: 2022, "Reducing Activation Recomputation", eq. 2 less the attention-matrix term that fused
#: attention does not store); kind assumed for mixture-of-experts layers.
ACTIVATION_BYTES_PER_HIDDEN = 34.0
#: With full recomputation only the layer's BF16 input is kept.
CHECKPOINT_BYTES_PER_HIDDEN = 2.0
#: Logits of one micro-batch in BF16 and their FP32 copy in the loss.
LOGIT_BYTES = 6.0
#: BF16 copy of the weights that forward and backward use.
WEIGHT_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward-equivalents executed per trained token (a forward pass is 1).

    Attributes
    ----------
    update : forward + backward (+ recomputation), once per epoch.
    once : old log-probabilities and reference model, once per batch.
    log_probs : the part of `once` that is log-probabilities of the policy.
    """

    update: float
    once: float
    log_probs: float

    def total(self, epochs: Any) -> Any:
        """Forward-equivalents of a batch that is trained on `epochs` times."""
        return self.update * epochs + self.once


def executed_passes(
    *,
    recompute_activations: bool,
    recompute_log_probs: bool,
    reference_model: bool,
    adapter_share: float | None = None,
) -> Passes:
    """Forward-equivalents of one training configuration.

    Full training: forward 1 + backward 2. LoRA through a frozen backbone: forward 1 + backward 1
    (no weight gradients of the backbone) + 3 x adapters/backbone. Full recomputation adds 1,
    recomputed old log-probabilities 1, a reference model 1.

    Parameters
    ----------
    adapter_share : adapter parameters over active parameters; None for full training.

    Examples
    --------
    >>> executed_passes(recompute_activations=True, recompute_log_probs=True,
    ...                 reference_model=False).total(1)
    5.0
    >>> executed_passes(recompute_activations=False, recompute_log_probs=False,
    ...                 reference_model=False, adapter_share=0.01).total(2)
    4.06
    """
    update = 3.0 if adapter_share is None else 2.0 + 3.0 * adapter_share
    log_probs = 1.0 if recompute_log_probs else 0.0
    return Passes(
        update=update + (1.0 if recompute_activations else 0.0),
        once=log_probs + (1.0 if reference_model else 0.0),
        log_probs=log_probs,
    )


def train_s(
    executed_flops: Any, gpus: Any, peak_flops_per_s: Any, hfu: Any, imbalance: Any, fixed_s: Any
) -> Any:
    """Seconds the trainer is busy with one batch.

    executed / (gpus peak hfu) x imbalance + fixed

    Parameters
    ----------
    executed_flops : FLOP of the batch over all GPUs.
    peak_flops_per_s : dense peak of one GPU in the training precision.
    hfu : executed FLOPs over the peak while computing, in (0, 1].
    imbalance : slowest rank over mean rank, >= 1 (`packing.imbalance`).
    fixed_s : optimiser step, launches, micro-batch overheads.
    """
    return executed_flops / (gpus * peak_flops_per_s * hfu) * imbalance + fixed_s


def mfu(active_params: Any, tokens: Any, gpus: Any, peak_flops_per_s: Any, seconds: Any) -> Any:
    """Model FLOPs utilisation: 6 N tokens / (gpus peak seconds).

    Busy MFU over `train_s`, wall MFU over the step. N are all active parameters.

    Examples
    --------
    The published run: 64 H200, 22e9 active, 18,294 tokens a sample, 2.75 samples/s while busy.

    >>> round(100 * mfu(22e9, 18294 * 2.75, 64, 989e12, 1.0), 2)
    10.49
    """
    return 6.0 * active_params * tokens / (gpus * peak_flops_per_s * seconds)


def hfu_from_mfu(
    mfu_busy: Any,
    executed_flops: Any,
    active_params: Any,
    tokens: Any,
    *,
    gpus: Any,
    peak_flops_per_s: Any,
    imbalance: Any = 1.0,
    fixed_s: Any = 0.0,
) -> Any:
    """Hardware utilisation behind a measured busy MFU.

    A batch of `tokens` took 6 N tokens / (gpus peak mfu) seconds; less `fixed_s`, and over
    `imbalance`, that is the time in which `executed_flops` were computed at full balance. With
    the defaults it is mfu x executed / 6N, the whole measured time laid on computation.

    Raises
    ------
    ValueError
        When the measured time is shorter than `fixed_s`.

    Examples
    --------
    >>> round(hfu_from_mfu(0.1, 8e12, 1e9, 1000.0, gpus=1, peak_flops_per_s=1e15), 4)
    0.1333
    """
    busy = 6.0 * active_params * tokens / (gpus * peak_flops_per_s * mfu_busy)
    if np.any(busy <= fixed_s):
        raise ValueError(f"a batch measured at {float(np.min(busy)):.3g} s has fixed_s {fixed_s}")
    return executed_flops * imbalance / ((busy - fixed_s) * gpus * peak_flops_per_s)


def state_bytes(
    params_total: float,
    gradient_bytes_per_param: float,
    optimizer_bytes_per_param: float,
    *,
    adapter_params: float | None = None,
    reference_params: float = 0.0,
) -> float:
    """Bytes of weights, gradients and optimiser states over all GPUs (fully sharded).

    A reference model adds its BF16 weights.
    Full training: P (2 + gradient + optimiser). LoRA: 2 P + adapters (2 + gradient + optimiser).
    """
    trained = WEIGHT_BYTES + gradient_bytes_per_param + optimizer_bytes_per_param
    reference = reference_params * WEIGHT_BYTES
    if adapter_params is None:
        return params_total * trained + reference
    return params_total * WEIGHT_BYTES + adapter_params * trained + reference


def activation_bytes(
    layers: float, hidden: float, vocab: float, tokens: Any, *, recompute_activations: bool
) -> Any:
    """Activation bytes on one GPU for a micro-batch of `tokens` tokens on it.

    Full recomputation keeps each layer's input (2 bytes per hidden unit) and works on one layer
    at a time; without, all layers keep 34 bytes per hidden unit. Logits add 6 bytes per token and
    vocabulary entry. `tokens` is what one GPU of a tensor- or context-parallel group holds.
    """
    kept = CHECKPOINT_BYTES_PER_HIDDEN if recompute_activations else ACTIVATION_BYTES_PER_HIDDEN
    working = ACTIVATION_BYTES_PER_HIDDEN if recompute_activations else 0.0
    return tokens * (hidden * (kept * layers + working) + LOGIT_BYTES * vocab)


def memory_bytes_per_gpu(states: Any, gpus: Any, activations: Any) -> Any:
    """Bytes on the fullest trainer GPU: sharded states plus activations."""
    return states / gpus + activations
