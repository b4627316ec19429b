"""The trainer's side of a plan: FLOPs and seconds of a batch, ranks, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allocator.evaluator.columns import distinct_rows
from allocator.evaluator.rollouts import RolloutState
from allocator.physics.flops import forward_flops
from allocator.physics.packing import imbalance
from allocator.physics.trainer import memory_bytes_per_gpu, train_s
from allocator.problem.decisions import DecisionArrays
from allocator.problem.system import System


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What the trainer of each plan does when it never waits; arrays, one entry a plan.

    Attributes
    ----------
    batch_samples : accepted samples that make a batch.
    trained_samples : of them, those that the optimiser sees (fewer when dead groups are dropped).
    sequence_tokens : mean tokens of one trained sample, prompt included.
    train_s : seconds busy with one batch.
    step_cv : coefficient of variation of that time: stated, and of the tokens of a batch.
    learning_flops, log_prob_flops : executed per batch; the second is part of the first.
    width : GPUs of one model replica; ranks = gpus // width.
    """

    batch_samples: Any
    trained_samples: Any
    sequence_tokens: Any
    train_s: Any
    step_cv: Any
    learning_flops: Any
    log_prob_flops: Any
    imbalance: Any
    width: Any
    ranks: Any
    memory_bytes: Any


def trainer_state(
    system: System, plans: DecisionArrays, rollouts: RolloutState, *, balanced: bool = False
) -> TrainerState:
    """Time one batch of every plan's trainer (once per distinct configuration).

    `balanced` leaves load imbalance out: a lower bound of the time, without packing any batch.

    Imbalance is taken over the lengths before any cancelling of slow rollouts, which can only
    shorten the longest sample: on the safe side for oversampling above 1.
    """
    kinds, algorithm, work = system.trainers, system.algorithm, system.workload
    rows = distinct_rows(
        plans.trainer_kind,
        plans.trainer_gpus,
        plans.prompts_per_step,
        plans.epochs,
        rollouts.row,
    )
    kind, row = rows.pick(plans.trainer_kind), rows.pick(rollouts.row)
    gpus = rows.pick(plans.trainer_gpus).astype(float)
    epochs = rows.pick(plans.epochs)
    batch = rows.pick(plans.prompts_per_step) * rows.pick(plans.group_size)
    kept = rollouts.signal[row] if algorithm.dynamic_sampling == "drop" else 1.0
    trained = batch * kept
    mean = rollouts.cut.kept_mean_tokens[row]
    fixed_tokens = work.fixed_tokens
    tokens = fixed_tokens + mean
    second = (
        fixed_tokens * fixed_tokens
        + 2.0 * fixed_tokens * mean
        + rollouts.cut.kept_second_moment_tokens2[row]
    )
    width = replica_width(system, kind, gpus)
    ranks = np.maximum(gpus // width, 1.0)
    steps = kinds.optimizer_steps_per_batch
    uneven: Any = np.ones(gpus.shape)
    if not balanced:
        uneven = imbalance(
            work.lengths,
            fixed_tokens,
            np.maximum(np.rint(trained / steps), 1).astype(np.int64),
            ranks.astype(np.int64),
        )
    once = trained * forward_flops(system.forward, tokens, second)
    executed = once * kinds.passes.total(epochs)
    if kinds.critic is not None:
        values = trained * forward_flops(kinds.critic.forward, tokens, second)
        executed = executed + values * kinds.critic.passes.total(epochs)
    microbatches = np.maximum(trained * tokens / (ranks * kinds.microbatch_tokens), float(steps))
    fixed = epochs * (kinds.fixed_s * steps + kinds.microbatch_s * microbatches)
    seconds = train_s(executed, gpus, kinds.peak_flops_per_s[kind], kinds.hfu[kind], uneven, fixed)
    step_cv = _step_cv(
        kinds.step_cv,
        1.0 - epochs * kinds.fixed_s * steps / seconds,
        second / tokens**2 - 1.0,
        trained,
        rows.pick(plans.prompts_per_step),
        kept,
    )
    memory = memory_bytes_per_gpu(kinds.state_bytes, gpus, kinds.activation_bytes / width)
    spread = rows.spread
    return TrainerState(
        batch_samples=spread(batch),
        trained_samples=spread(trained),
        sequence_tokens=spread(tokens),
        train_s=spread(seconds),
        step_cv=spread(step_cv),
        learning_flops=spread(executed),
        log_prob_flops=spread(once * kinds.passes.log_probs),
        imbalance=spread(uneven),
        width=spread(width),
        ranks=spread(ranks),
        memory_bytes=spread(memory),
    )


def _step_cv(
    stated: float, work_share: Any, token_cv2: Any, trained: Any, groups: Any, kept: Any
) -> Any:
    """Spread of a step: what is stated, and how much work the batches bring.

    Work is in proportion to tokens: of `trained` samples of squared cv `token_cv2`, and of a
    binomial number of groups where those without a signal (1 - `kept`) are left out.
    """
    tokens = token_cv2 / np.maximum(trained, 1.0) + (1.0 - kept) / (groups * kept)
    return np.minimum(np.sqrt(stated**2 + (1.0 + stated**2) * work_share**2 * tokens), 1.0)


def replica_width(system: System, kind: Any, gpus: Any) -> Any:
    """Narrowest model replica whose memory fits, the widest when none does."""
    kinds = system.trainers
    limit = kinds.hbm_limit_bytes[kind]
    width = np.full(gpus.shape, float(kinds.widths[-1]))
    for candidate in reversed(kinds.widths):
        memory = memory_bytes_per_gpu(kinds.state_bytes, gpus, kinds.activation_bytes / candidate)
        fits = (memory <= limit) & (gpus % candidate == 0)
        width = np.where(fits, float(candidate), width)
    return width
