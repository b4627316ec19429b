"""From a plan to the factors of its dollars per useful token."""

from __future__ import annotations

from dataclasses import dataclass

from allocator.comparison.identity import Factors
from allocator.comparison.paid import gpu_uses, other_usd_per_hour
from allocator.physics.economics import usd_per_mtok
from allocator.recorded import PlanData
from allocator.scenario.errors import ScenarioError, shown


def factors_of(plan: PlanData) -> Factors:
    """Take the dollars per useful token of a plan apart.

    Raises
    ------
    ScenarioError
        When the plan has no prediction, or one without a price or any useful token.
    """
    uses, besides = gpu_uses(plan), other_usd_per_hour(plan)
    paid = plan.number("prediction.usd_per_useful_mtok")
    if not paid > 0.0:
        raise ScenarioError(
            file=plan.name, path="prediction.usd_per_useful_mtok", expected="more than 0",
            given=shown(paid),
        )  # fmt: skip
    share = _shares(plan)
    # Of the whole run, with what stops it.
    usd_per_hour = sum(use.usd_per_hour for use in uses.values()) + sum(besides.values())
    useful_per_s = float(usd_per_mtok(usd_per_hour, 1.0)) / paid
    productive = plan.number("prediction.availability.productive")
    accepted_per_s = plan.number("prediction.accepted_samples_per_s")
    taken_per_s = plan.number("prediction.trainer_samples_per_s")
    trained_per_s = plan.number("prediction.trained_samples_per_s")
    counted = plan.number("prediction.trained_tokens_per_s") / trained_per_s
    response = counted - _fixed_tokens(plan)
    sequence = plan.number("prediction.trained_sequence_tokens")
    generator_gpus = plan.number("plan.generator.gpus")
    trainer_gpus = plan.number("plan.trainer.gpus")
    running_per_s = _never_updated(plan)
    full_per_s = _in_full_flow(plan, running_per_s)
    kept = share.alive * share.tail * share.signal_replaced * share.fresh_enough
    training = taken_per_s * plan.number("prediction.train_s") / plan.number("plan.batch")
    trained = trained_per_s * plan.number("prediction.step_s") / plan.number("plan.batch")
    overflow = share.overflow if accepted_per_s <= taken_per_s else 1.0
    reachable_per_s = min(accepted_per_s, taken_per_s) * overflow * counted
    return Factors(
        uses=uses,
        besides_usd_per_hour=besides,
        generator_gpus=generator_gpus,
        trainer_gpus=trainer_gpus,
        generator={
            "inference_speed": full_per_s / generator_gpus,
            # Restarts lower the rate by the tokens that they throw away, which are among `alive`.
            "weight_sync": accepted_per_s * response / (running_per_s * kept),
            "discards": share.alive,
            "tail": share.tail * running_per_s / full_per_s,
            "signal": share.signal_replaced,
            "staleness": share.fresh_enough,
            "tokens_counted": counted / response,
        },
        trainer={
            "training_speed": taken_per_s / training * trained * sequence / trainer_gpus,
            "weight_sync": training,
            "signal": 1.0 / trained,
            "tokens_counted": counted / sequence,
        },
        common={
            "idle": useful_per_s
            / (reachable_per_s * share.signal_trained * share.not_resumed * productive),
            "discards": overflow,
            "signal": share.signal_trained,
            "staleness": share.not_resumed,
            "availability": productive,
        },
    )


@dataclass(frozen=True, slots=True)
class _Shares:
    """What each fate leaves of the tokens that meet it, in that order."""

    alive: float
    tail: float
    signal_replaced: float
    fresh_enough: float
    overflow: float
    signal_trained: float
    not_resumed: float


def _shares(plan: PlanData) -> _Shares:
    """Follow the tokens: groups without signal leave before the queue only where replaced."""
    fate = {
        name: plan.number(f"prediction.token_fate.{name}")
        for name in ("useful", "no_signal", "rejected_stale", "oversampled", "dropped_overflow",
                     "failed", "mixed_environment")
    }  # fmt: skip
    replaced = plan.text("scenario.algorithm.dynamic_sampling") == "refill"
    left = 1.0
    shares = []
    for lost in (
        fate["failed"],
        fate["oversampled"],
        fate["no_signal"] if replaced else 0.0,
        fate["rejected_stale"],
        fate["dropped_overflow"],
        0.0 if replaced else fate["no_signal"],
        fate["mixed_environment"],
    ):
        shares.append((left - lost) / left if left > 0.0 else 0.0)
        left -= lost
    if not min(shares) > 0.0:
        raise ScenarioError(
            file=plan.name, path="prediction.token_fate.useful", expected="more than 0",
            given=shown(fate["useful"]),
        )  # fmt: skip
    return _Shares(*shares)


def _never_updated(plan: PlanData) -> float:
    """Response tokens/s that the generator writes while it is neither held up nor updated."""
    busy = 1.0 - plan.number("prediction.generator_wait_fraction")
    undisturbed = 1.0 - plan.number("prediction.update_pause_fraction")
    return plan.number("prediction.generated_tokens_per_s") / (busy * undisturbed)


def _in_full_flow(plan: PlanData, running_per_s: float) -> float:
    """Response tokens/s with as many rollouts decoding as a plan ever has.

    A stream always has them. A batch that is written as a whole has fewer towards its end, and all
    along where it does not fill the engines; what that costs (with its prefill) is its tail.
    """
    if plan.text("plan.mode") == "async":
        return running_per_s
    return plan.number("prediction.decoding") / plan.number("prediction.decode_step_s")


def _fixed_tokens(plan: PlanData) -> float:
    """Tokens of a counted sequence that the policy did not write: its prompt, what tools add."""
    if plan.text("scenario.token_basis") != "sequence":
        return 0.0
    prompt = plan.stated("scenario.workload.initial_prompt_tokens", 0.0)
    turns = plan.stated("scenario.workload.turns", 1.0)
    return prompt + (turns - 1.0) * plan.stated("scenario.workload.tool_tokens_per_turn", 0.0)
