"""Which trainers may be used: one kind per pool, with its utilisation, memory and passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from allocator.physics.trainer import activation_bytes, state_bytes
from allocator.plan import Layout
from allocator.problem.model_facts import ModelFacts
from allocator.problem.passes import adapter_params, critic_law, critic_model, policy_passes
from allocator.problem.system import Pool, TrainerKinds, WorkloadLaw
from allocator.problem.utilisation import trainer_hfu

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.schema import Scenario

#: Model-parallel widths that `parallelism: auto` tries, narrowest first: a wider replica saves
#: activation memory and costs communication, so the narrowest that fits is the one people run.
AUTO_WIDTHS = (1, 2, 4, 8)


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
    passes = policy_passes(scenario, model)
    value_model = critic_model(scenario, catalogue, model, ledger)
    critic = None if value_model is None else critic_law(scenario, value_model)
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
            trainer_hfu(
                scenario,
                catalogue,
                pools[index],
                model,
                workload,
                passes,
                critic,
                peak,
                fixed_s,
                width,
                ledger,
            )
        )
    gradient, optimizer = (
        ledger.quantity(f"trainer.{name}", getattr(said, name), "byte")
        for name in ("gradient_bytes_per_param", "optimizer_bytes_per_param")
    )
    states = state_bytes(
        model.params_total,
        gradient,
        optimizer,
        adapter_params=adapters,
        # With adapters the frozen backbone is the reference model.
        reference_params=model.params_total
        if scenario.algorithm.reference_model and adapters is None
        else 0.0,
    )
    activations = _activation_bytes(model, model.vocab, sequence, recompute)
    if value_model is not None:
        states += state_bytes(
            value_model.params_total,
            gradient,
            optimizer,
            adapter_params=adapter_params(scenario, value_model),
        )
        # Policy and critic take turns, so the larger activations count; values are no logits.
        activations = max(activations, _activation_bytes(value_model, 0.0, sequence, recompute))
    return TrainerKinds(
        labels=tuple((i, layout) for i in indices),
        pool=np.asarray(indices, dtype=float),
        peak_flops_per_s=np.asarray(peaks),
        hfu=np.asarray(hfus),
        hbm_limit_bytes=np.asarray(limits),
        widths=AUTO_WIDTHS if fixed_layout is None else (width,),
        state_bytes=states,
        activation_bytes=activations,
        passes=passes,
        fixed_s=fixed_s,
        microbatch_s=ledger.quantity("trainer.microbatch_s", said.microbatch_s, "s"),
        microbatch_tokens=sequence,
        step_cv=ledger.quantity("trainer.step_cv", said.step_cv, "1"),
        optimizer_steps_per_batch=scenario.algorithm.optimizer_steps_per_batch,
        critic=critic,
    )


def _activation_bytes(model: ModelFacts, vocab: float, sequence: float, recompute: bool) -> float:
    return float(
        activation_bytes(
            model.layers, model.hidden, vocab, sequence, recompute_activations=recompute
        )
    )


def _sequence_tokens(scenario: Scenario, workload: WorkloadLaw) -> float:
    if scenario.engine.max_context_tokens is not None:
        return float(scenario.engine.max_context_tokens)
    cap = workload.lengths.cap
    longest = float(workload.lengths.quantile(0.999)) if cap is None else cap
    return workload.fixed_tokens + longest
