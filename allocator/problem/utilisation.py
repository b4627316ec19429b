"""Utilisation of the trainer's GPUs: stated, taken from a measured MFU, published, or assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator.physics.flops import forward_flops
from allocator.physics.packing import imbalance
from allocator.physics.trainer import Passes, hfu_from_mfu
from allocator.problem.model_facts import ModelFacts
from allocator.problem.system import Critic, Pool, WorkloadLaw
from allocator.problem.workload import response_lengths

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue
    from allocator.scenario.schema import Scenario

#: Busy MFU (6N) when neither the scenario nor a measurement gives one, with full recomputation
#: and without log-probability passes: dense 1.5-32B runs lie between 19% and 38% (Hugging Face
#: async GRPO 2026, prime-rl reference run 2025), mixtures of experts between 3% and 20% (prime-rl
#: trainer benchmarks, SemiAnalysis 2026: 10.5%). kind assumed.
ASSUMED_MFU = {"dense": (0.33, 0.19, 0.40), "moe": (0.10, 0.03, 0.20)}
#: Forward-equivalents of the configurations behind that assumption: forward 1, backward 2,
#: recomputation 1.
ASSUMED_MFU_PASSES = 4.0


def trainer_hfu(
    scenario: Scenario,
    catalogue: Catalogue,
    pool: Pool,
    model: ModelFacts,
    workload: WorkloadLaw,
    passes: Passes,
    critic: Critic | None,
    peak: float,
    fixed_s: float,
    width: int,
    ledger: Ledger,
) -> float:
    """Return executed FLOPs over the peak of a trainer while it computes.

    A stated MFU counts 6N of the policy alone; the time it was measured over holds everything that
    the scenario's configuration executes: recomputation, log-probabilities, attention, and with
    PPO the critic. A published or assumed MFU is of runs without a critic, whose work comes on top.

    Parameters
    ----------
    width : GPUs of one model replica, in the configuration of a stated MFU.

    Raises
    ------
    ScenarioError
        When a stated MFU would execute more than the peak, or lacks the batch of its measurement.
    """
    said = scenario.trainer
    if said.hfu is not None:
        return ledger.quantity("trainer.hfu", said.hfu, "1")
    if said.mfu is None:
        return _default_hfu(scenario, catalogue, pool, model, ledger)
    # Without the GPUs of the measurement its batch does not matter: FLOPs and tokens share it.
    samples = 1 if said.mfu_at_gpus is None else _measured_batch(scenario)
    fixed, mean = workload.fixed_tokens, workload.observed_mean_tokens
    tokens = fixed + mean
    second = fixed * fixed + 2.0 * fixed * mean + workload.observed_second_moment_tokens2
    executed = samples * float(forward_flops(model.forward, tokens, second)) * passes.total(1)
    if critic is not None:
        valued = float(forward_flops(critic.forward, tokens, second)) * critic.passes.total(1)
        executed += samples * valued
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
        uncut = scenario.algorithm.length_cut_tokens is None
        lengths = workload.lengths if uncut else response_lengths(scenario, ledger)
        uneven = float(imbalance(lengths, fixed, max(1, samples // steps), max(1, gpus // width)))
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
        source="published RL trainers (allocator.problem.utilisation)",
        low=low,
        high=high,
    )
    return assumed * ASSUMED_MFU_PASSES / 3.0
