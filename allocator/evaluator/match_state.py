"""What generator, queue and trainer do together: the common result of all modes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from allocator.physics.pipeline import StalenessLaw
from allocator.physics.residence import ResidenceTables


@dataclass(frozen=True, slots=True)
class AsyncStaleness:
    """Distribution of staleness under `drop_oldest`, after rejection; arrays, one entry a plan."""

    law: StalenessLaw
    tables: ResidenceTables


@dataclass(frozen=True, slots=True)
class MatchState:
    """Steady state of generator, queue and trainer together; arrays, one entry a plan.

    Attributes
    ----------
    samples_per_s : accepted samples that reach the trainer.
    step_s : seconds from one training step to the next, waits included.
    sync_s : seconds of one weight transfer.
    dispatched_per_s : rollouts started per second.
    written_ratio : tokens of a started rollout over those that the cut alone says (some rollouts of
        a batch in waves never begin).
    discarded_token_fraction : share of the tokens written that are in cancelled rollouts.
    life_token_s : seconds in the generator per token where rollouts are resumed, else 0.
    late_share, late_part : share of such rollouts that start when a place comes free, and the part
        of a batch in which they do.
    paused_fraction : share of its free rate that weight updates cost the generator.
    offered_samples_per_s : accepted samples/s the generator could deliver (v_G).
    trainer_samples_per_s : accepted samples/s the trainer could take, blocking syncs included.
    accepted_fraction : share of finished samples that are fresh enough (1 without rejection).
    dropped_fraction : share of accepted samples thrown out of a full queue.
    aborted_fraction : share of generated tokens lost to restarts at a weight update.
    update_length_bias : mean length of what such restarts let finish, over that without them.
    mixed_fraction : share of trained samples that were resumed in a later batch.
    wait_fraction, generator_wait_fraction : share of time that either side is held up.
    load : v_G over what the trainer could take.
    generation_s : mean time from a group's first start to its last end; of a whole batch, until
        the last rollout that it waits for is scored.
    reward_wait_s : of it, what scoring adds after generation (batch modes).
    sample_residence_s : mean time one rollout stays.
    token_end_s : mean time from the writing of a response token to the end of its group.
    staleness_mean : weight versions.
    staleness_metric : the statistic that the scenario limits (the mean where it limits none).
    """

    samples_per_s: Any
    step_s: Any
    sync_s: Any
    dispatched_per_s: Any
    written_ratio: Any
    discarded_token_fraction: Any
    life_token_s: Any
    late_share: Any
    late_part: Any
    paused_fraction: Any
    offered_samples_per_s: Any
    trainer_samples_per_s: Any
    accepted_fraction: Any
    dropped_fraction: Any
    aborted_fraction: Any
    update_length_bias: Any
    mixed_fraction: Any
    wait_fraction: Any
    generator_wait_fraction: Any
    load: Any
    generation_s: Any
    reward_wait_s: Any
    sample_residence_s: Any
    token_end_s: Any
    staleness_mean: Any
    staleness_metric: Any


def taken(state: Any, index: Any) -> Any:
    """Return the plans in `index` (integers, mask or slice) of a state, nested states included."""
    return replace(
        state,
        **{
            field.name: taken(value, index)
            if hasattr(value, "__dataclass_fields__")
            else np.asarray(value)[index]
            for field in fields(state)
            for value in [getattr(state, field.name)]
        },
    )
