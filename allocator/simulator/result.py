"""What a simulation shows; names are those of `allocator.plan.Prediction` where that has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over replications; `half_width` of its 95% interval, None with one replication."""

    mean: float
    half_width: float | None
    replications: int

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.half_width is None else self.mean + self.half_width

    def __repr__(self) -> str:
        """Return the numbers with four digits, as far as they are ever meaningful."""
        half = None if self.half_width is None else float(f"{self.half_width:.4g}")
        return (
            f"Estimate(mean={float(f'{self.mean:.6g}')}, half_width={half}, "
            f"replications={self.replications})"
        )


@dataclass(frozen=True, slots=True)
class StalenessSeen:
    """Versions between the start of a group and that of its training, over trained samples.

    Attributes
    ----------
    token_mean : mean over tokens, from the version that wrote each.
    environment_state_fraction : share of samples that were resumed in a later batch.
    versions_per_rollout : weight updates that a sample meets while it is written.
    cdf : share of at most 0, 1, 2, ... versions, pooled; p50, p95 and p99 are read off it.
    """

    mean: Estimate
    token_mean: Estimate
    environment_state_fraction: Estimate
    versions_per_rollout: Estimate
    cdf: tuple[float, ...]
    p50: int
    p95: int
    p99: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Steady state of a line, means over the time after the warm-up.

    Attributes
    ----------
    step_s, train_s, generation_s : of a step; the last without what the generator stood still.
    generated_samples_per_s : attempts begun. accepted_samples_per_s : offered to the trainer.
    trained_samples_per_s, trainer_samples_per_s : trained, and what a busy trainer would take.
    trainer_wait_fraction : share of the time in which the trainer neither trains nor sends.
    generator_wait_fraction : share in which the policy (async) or the other side held it.
    in_flight, in_flight_p99, decoding : all engines, over the time in which they write (all of it
        in async, the generation of batches without a wait for scores else).
    reading_fraction : share of an engine's time in which it reads or waits for weights.
    residence_s : mean stay of a rollout in its place.
    dropped_fraction, rejected_fraction : of accepted samples.
    lost_attempts_fraction, given_up_fraction, preempted_per_rollout : of attempts and rollouts.
    length_bias : mean length of trained samples over that of the law.
    token_fate : shares of the tokens whose fate fell into the time measured; they sum to 1.
    steps, events, replications : counted over all replications, after the warm-up.
    """

    step_s: Estimate
    train_s: Estimate
    generation_s: Estimate
    generated_samples_per_s: Estimate
    generated_tokens_per_s: Estimate
    accepted_samples_per_s: Estimate
    trained_samples_per_s: Estimate
    trainer_samples_per_s: Estimate
    trainer_wait_fraction: Estimate
    generator_wait_fraction: Estimate
    in_flight: Estimate
    in_flight_p99: Estimate
    decoding: Estimate
    reading_fraction: Estimate
    residence_s: Estimate
    dropped_fraction: Estimate
    rejected_fraction: Estimate
    lost_attempts_fraction: Estimate
    given_up_fraction: Estimate
    preempted_per_rollout: Estimate
    length_bias: Estimate
    trained_tokens_per_s: Estimate
    useful_tokens_per_s: Estimate
    useful_sequence_tokens_per_s: Estimate
    staleness: StalenessSeen
    token_fate: Mapping[str, Estimate]
    steps: int
    events: int
    replications: int
