"""What a plan pays for: GPUs by use, and what besides GPUs costs dollars."""

from __future__ import annotations

from allocator.comparison.identity import BESIDES, Use
from allocator.recorded import PlanData


def gpu_uses(plan: PlanData) -> dict[str, Use]:
    """Return GPUs and dollars per GPU-hour by use, of the uses that have any GPU.

    GPUs that train and generate in turn count by the time of each; engines that only prefill are
    the generator's.
    """
    trainer = plan.number("plan.trainer.gpus")
    generator = plan.number("plan.generator.gpus")
    reward = plan.stated("plan.reward.gpus", 0.0)
    trainer_usd = plan.number("prediction.spending.trainer")
    generator_usd = plan.number("prediction.spending.generator")
    in_turn = plan.text("plan.mode") == "colocated_sync"
    if in_turn:
        readers = prefill_gpus(plan)
        generator = max(generator - readers - trainer, 0.0) + readers
    paid = round(plan.number("prediction.run.gpu_hours") / plan.number("prediction.run.hours"))
    unused = paid - trainer - generator - reward
    if in_turn:
        training = plan.number("prediction.train_s") / plan.number("prediction.step_s")
        generator += (1.0 - training) * trainer
        generator_usd += (1.0 - training) * trainer_usd
        trainer, trainer_usd = training * trainer, training * trainer_usd
    found = {
        "trainer": (trainer, trainer_usd),
        "generator": (generator, generator_usd),
        "reward": (reward, plan.number("prediction.spending.reward")),
        "unused": (unused, plan.number("prediction.spending.idle")),
    }
    return {use: Use(gpus, usd / gpus) for use, (gpus, usd) in found.items() if gpus > 0.0}


def prefill_gpus(plan: PlanData) -> float:
    """GPUs of the engines that only prefill."""
    return float(
        sum(
            group["engines"] * group["gpus_per_engine"]
            for group in plan.look_up("plan.generator.groups") or ()
            if group["role"] == "prefill"
        )
    )


def other_usd_per_hour(plan: PlanData) -> dict[str, float]:
    """Return dollars per hour for other things than GPUs, by term."""
    return {term: plan.number(f"prediction.spending.{term}") for term in BESIDES}
