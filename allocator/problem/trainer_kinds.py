"""Which trainers may be used: one kind per pool, with its utilisation, memory and passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from allocator.physics.flops import forward_flops
from allocator.physics.packing import imbalance
from allocator.physics.trainer import (
    Passes,
    activation_bytes,
    executed_passes,
    hfu_from_mfu,
    state_bytes,
)
from allocator.plan import Layout
from allocator.problem.model_facts import ModelFacts
from allocator.problem.system import Pool, TrainerKinds, WorkloadLaw

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.schema import Scenario

#: Model-parallel widths that `parallelism: auto` tries, narrowest first: a wider replica saves
#: activation memory and costs communication, so the narrowest that fits is the one people run.
AUTO_WIDTHS = (1, 2, 4, 8)

#: Busy MFU (6N) when neither the scenario nor a measurement gives one, with full recomputation
#: and without log-probability passes: dense 1.5-32B runs lie between 19% and 38% (Hugging Face
#: async GRPO 2026, prime-rl reference run 2025), mixtures of experts between 3% and 20% (prime-rl
#: trainer benchmarks, SemiAnalysis 2026: 10.5%). kind assumed.
ASSUMED_MFU = {"dense": (0.33, 0.19, 0.40), "moe": (0.10, 0.03, 0.20)}
#: Forward-equivalents of the configurations behind that assumption: forward 1, backward 2,
#: recomputation 1.
ASSUMED_MFU_PASSES = 4.0


def trainer_kinds(
    scenario: Scenario,
    catalogue: Catalogue,
    pools: tuple[Pool, ...],
    model: ModelFacts,
    workload: WorkloadLaw,
    ledger: Ledger,
) -> TrainerKinds:
    """Resolve all trainer kinds.

    Raises
    ------
    ScenarioError
        When no pool may train, or a number that the law needs is missing.
    """
    said = scenario.trainer
    recompute = said.recomputation == "full"
    adapters = adapter_params(scenario, model)
    passes = executed_passes(
        recompute_activations=recompute,
        recompute_log_probs=scenario.algorithm.old_log_probs == "recompute",
        reference_model=scenario.algorithm.reference_model,
        adapter_share=_adapter_share(scenario, model),
    )
    fixed_s = ledger.quantity("trainer.fixed_s", said.fixed_s, "s")
    sequence = _sequence_tokens(scenario, workload)
    if model.vocab is None:
        raise scenario.error("model", "a model whose vocabulary is known", model.id)
    fixed_layout = None if isinstance(said.parallelism, str) else said.parallelism
    layout = (
        Layout()
        if fixed_layout is None
        else Layout(tp=fixed_layout.tp, cp=fixed_layout.cp, pp=fixed_layout.pp, ep=fixed_layout.ep)
    )
    width = layout.tp * layout.cp * layout.pp
    indices = [i for i, p in enumerate(scenario.hardware.pools) if "trainer" in p.roles]
    peaks, hfus, limits = [], [], []
    fraction = ledger.quantity("trainer.memory_fraction", said.memory_fraction, "1")
    for index in indices:
        gpu = catalogue.gpu(pools[index].gpu)
        name = "bf16_flops_per_s" if said.precision == "bf16" else "fp8_flops_per_s"
        peak = ledger.datum(getattr(gpu, name), f"gpus/{gpu.id}.{name}")
        peaks.append(peak)
        limits.append(fraction * ledger.datum(gpu.hbm_bytes, f"gpus/{gpu.id}.hbm_bytes"))
        hfus.append(
            _hfu(
                scenario,
                catalogue,
                pools[index],
                model,
                workload,
                passes,
                peak,
                fixed_s,
                width,
                ledger,
            )
        )
    return TrainerKinds(
        labels=tuple((i, layout) for i in indices),
        pool=np.asarray(indices, dtype=float),
        peak_flops_per_s=np.asarray(peaks),
        hfu=np.asarray(hfus),
        hbm_limit_bytes=np.asarray(limits),
        widths=AUTO_WIDTHS if fixed_layout is None else (width,),
        state_bytes=state_bytes(
            model.params_total,
            ledger.quantity(
                "trainer.gradient_bytes_per_param", said.gradient_bytes_per_param, "byte"
            ),
            ledger.quantity(
                "trainer.optimizer_bytes_per_param", said.optimizer_bytes_per_param, "byte"
            ),
            adapter_params=adapters,
            # With adapters the frozen backbone is the reference model.
            reference_params=model.params_total
            if scenario.algorithm.reference_model and adapters is None
            else 0.0,
        ),
        activation_bytes=float(
            activation_bytes(
                model.layers, model.hidden, model.vocab, sequence, recompute_activations=recompute
            )
        ),
        passes=passes,
        fixed_s=fixed_s,
        microbatch_s=ledger.quantity("trainer.microbatch_s", said.microbatch_s, "s"),
        microbatch_tokens=sequence,
        step_cv=ledger.quantity("trainer.step_cv", said.step_cv, "1"),
        optimizer_steps_per_batch=scenario.algorithm.optimizer_steps_per_batch,
    )


def adapter_params(scenario: Scenario, model: ModelFacts) -> float | None:
    """Parameters of the adapters that are trained and sent to engines; None in full training."""
    training = scenario.algorithm.training
    if isinstance(training, str):
        return None
    if model.adapter_params_per_rank is None:
        raise scenario.error(
            "algorithm.training",
            f"full: the profile of {model.id} lacks the dimensions that size LoRA adapters",
            f"lora_rank {training.lora_rank}",
        )
    return model.adapter_params_per_rank * training.lora_rank


def _adapter_share(scenario: Scenario, model: ModelFacts) -> float | None:
    training = scenario.algorithm.training
    if isinstance(training, str) or model.adapter_active_per_rank is None:
        return None
    return model.adapter_active_per_rank * training.lora_rank / model.params_active


def _sequence_tokens(scenario: Scenario, workload: WorkloadLaw) -> float:
    if scenario.engine.max_context_tokens is not None:
        return float(scenario.engine.max_context_tokens)
    cap = workload.lengths.cap
    longest = float(workload.lengths.quantile(0.999)) if cap is None else cap
    return workload.prompt_tokens + longest


def _hfu(
    scenario: Scenario,
    catalogue: Catalogue,
    pool: Pool,
    model: ModelFacts,
    workload: WorkloadLaw,
    passes: Passes,
    peak: float,
    fixed_s: float,
    width: int,
    ledger: Ledger,
) -> float:
    said = scenario.trainer
    if said.hfu is not None:
        return ledger.quantity("trainer.hfu", said.hfu, "1")
    if said.mfu is None:
        return _default_hfu(scenario, catalogue, pool, model, ledger)
    # Without the GPUs of the measurement its batch does not matter: FLOPs and tokens share it.
    samples = 1 if said.mfu_at_gpus is None else _measured_batch(scenario)
    prompt, mean = workload.prompt_tokens, workload.observed_mean_tokens
    tokens = prompt + mean
    second = prompt * prompt + 2.0 * prompt * mean + workload.observed_second_moment_tokens2
    executed = samples * float(forward_flops(model.forward, tokens, second)) * passes.total(1)
    measured = ledger.quantity("trainer.mfu", said.mfu, "1")
    gpus, uneven, constant = 1, 1.0, 0.0
    if said.mfu_at_gpus is None:
        ledger.warn(
            "mfu_reference_missing",
            "trainer.mfu without trainer.mfu_at_gpus: load imbalance and fixed time are charged on "
            "top of a utilisation that already contains them, so training is predicted too slow",
            "trainer.mfu",
        )
    else:
        steps = scenario.algorithm.optimizer_steps_per_batch
        gpus, constant = said.mfu_at_gpus, fixed_s * steps
        uneven = float(
            imbalance(workload.lengths, prompt, max(1, samples // steps), max(1, gpus // width))
        )
    try:
        hfu = float(
            hfu_from_mfu(
                measured,
                executed,
                model.params_active,
                samples * tokens,
                gpus=gpus,
                peak_flops_per_s=peak,
                imbalance=uneven,
                fixed_s=constant,
            )
        )
    except ValueError as error:
        raise scenario.error(
            "trainer.fixed_s", "less than the measured time of a batch", str(error)
        ) from error
    if hfu > 1.0:
        raise scenario.error(
            "trainer.mfu",
            f"less than {measured / hfu:.2f}: with recomputation, log-probabilities and attention "
            "the hardware would execute more than its peak",
            f"{measured:g}",
        )
    return hfu


def _measured_batch(scenario: Scenario) -> int:
    """Samples per batch of the configuration that the MFU was measured in."""
    said = scenario.algorithm
    if scenario.trainer.mfu_at_batch is not None:
        return scenario.trainer.mfu_at_batch
    if isinstance(said.prompts_per_step, int) and isinstance(said.group_size, int):
        return said.prompts_per_step * said.group_size
    raise scenario.error(
        "trainer.mfu_at_batch",
        "the samples per batch at which trainer.mfu was measured, as the scenario gives ranges",
        "nothing",
    )


def _default_hfu(
    scenario: Scenario,
    catalogue: Catalogue,
    pool: Pool,
    model: ModelFacts,
    ledger: Ledger,
) -> float:
    precision = scenario.trainer.precision
    rows = catalogue.training_rates(model.id, pool.gpu, precision) if model.in_catalogue else ()
    if rows:
        best = max(rows, key=lambda row: row.mfu)
        ledger.warn(
            "pretraining_utilisation",
            f"no trainer.mfu given: using {best.mfu:.1%} measured in {best.task} of "
            f"{model.id} on {best.gpus} {pool.gpu} with balanced routing; RL trainers are slower",
            "trainer.mfu",
        )
        return ledger.datum(best.datum(), f"training/{model.id}/{pool.gpu}.mfu")
    value, low, high = ASSUMED_MFU["moe" if model.experts else "dense"]
    ledger.warn(
        "assumed_utilisation",
        f"no trainer.mfu given and none measured for {model.id} on {pool.gpu}: {value:.0%} is "
        f"assumed (published RL trainers: {low:.0%} to {high:.0%}); measure a few steps first",
        "trainer.mfu",
    )
    assumed = ledger.number(
        f"assumed/trainer.mfu[{pool.name}]",
        value,
        "1",
        kind="assumed",
        source="published RL trainers (allocator.problem.trainer_kinds)",
        low=low,
        high=high,
    )
    return assumed * ASSUMED_MFU_PASSES / 3.0
