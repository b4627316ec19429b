"""Lines of equal lengths, whose every moment can be written down."""

from typing import Any

import pytest

from allocator.physics.decode import DecodeLaw
from allocator.physics.lengths import capped_lognormal_from_mean_cv
from allocator.physics.prefill import PrefillLaw
from allocator.simulator import SimulationResult, simulate
from allocator.simulator.line import PrefillPool, Reward, Sandboxes
from tests.simulator.lines import line

#: A tool call of 1 s.
SECOND = capped_lognormal_from_mean_cv(1.0, 0.0)


def batches(steps: int = 10, **parts: Any) -> SimulationResult:
    given: dict[str, Any] = {
        "cv": 0.0,
        "slots": 8,
        "engines": 2,
        "size": 4,
        "per_batch": 4,
        "train_s": 0.5,
    }
    trainer = {"sync_s": 0.25}
    return simulate(line(**{**given, "trainer": trainer, **parts}), steps)


def test_modes_in_turn_add_up() -> None:
    found = batches(mode="disaggregated_sync")
    assert found.step_s.mean == pytest.approx(1.75)
    assert found.generation_s.mean == pytest.approx(1.0)
    assert found.trainer_wait_fraction.mean == pytest.approx(1.0 / 1.75)
    assert found.generator_wait_fraction.mean == pytest.approx(0.75 / 1.75)
    assert found.staleness.mean.mean == 0.0
    assert found.in_flight.mean == pytest.approx(16.0)
    assert found.decoding.mean == pytest.approx(16.0)
    switched = batches(mode="colocated_sync", trainer={"sync_s": 0.25, "switch_s": 0.5})
    assert switched.step_s.mean == pytest.approx(2.25)


@pytest.mark.parametrize(("train_s", "step_s"), [(0.5, 1.25), (3.0, 3.25)])
def test_one_step_off_overlaps_and_is_one_batch_old(train_s: float, step_s: float) -> None:
    found = batches(mode="one_step_off", train_s=train_s)
    assert found.step_s.mean == pytest.approx(step_s)
    assert found.staleness.cdf == (0.0, 1.0)
    assert found.staleness.token_mean.mean == pytest.approx(1.0)
    several = batches(mode="one_step_off", trainer={"optimizer_steps": 4})
    assert several.staleness.cdf == pytest.approx((0, 0, 0, 0, 0.25, 0.5, 0.75, 1.0))


def test_sync_every_other_batch() -> None:
    found = batches(steps=15, mode="disaggregated_sync", trainer={"sync_s": 1.0, "sync_every": 2})
    assert found.step_s.mean == pytest.approx(2.0)
    assert found.staleness.mean.mean == pytest.approx(0.5)


def test_batches_in_waves() -> None:
    found = batches(mode="disaggregated_sync", slots=4)
    assert found.generation_s.mean == pytest.approx(2.0)
    assert found.residence_s.mean == pytest.approx(1.0)


def test_decode_law_and_shared_prompt_of_a_batch() -> None:
    law, reads = DecodeLaw(1e-3, 4e-3, 1e-5, 1e-8, 0.9), PrefillLaw(0.1, 1e-4, 1e-9)
    found = batches(
        mode="disaggregated_sync",
        engine={"decode": law, "prefill": reads},
        rollouts={"prompt_tokens": 500.0},
    )
    read_s = 0.1 + 0.05 + 1e-9 * 500.0**2
    step_s = 1e-3 + 4e-3 * (1 - 0.9**8) + 8e-5 + 8e-8 * (500.0 + 500.0)
    # Two groups an engine, each read once.
    assert found.generation_s.mean == pytest.approx(2 * read_s + 1000.0 * step_s)
    every = batches(
        mode="disaggregated_sync",
        engine={"decode": law, "prefill": reads},
        rollouts={"prompt_tokens": 500.0, "prefix_cache": "none"},
    )
    assert every.generation_s.mean == pytest.approx(8 * read_s + 1000.0 * step_s)


@pytest.mark.parametrize(("overlap", "reward_s"), [(True, 4 * 0.1 + 0.5), (False, 4 * 0.1 + 0.5)])
def test_scores_follow_a_batch(overlap: bool, reward_s: float) -> None:
    reward = Reward(servers=4, seconds=0.1, latency_s=0.5, overlap=overlap)
    found = batches(mode="disaggregated_sync", reward=reward)
    assert found.generation_s.mean == pytest.approx(1.0 + reward_s)
    waves = batches(mode="disaggregated_sync", reward=reward, slots=4)
    first_wave = 2 * 0.1 if overlap else 4 * 0.1
    assert waves.generation_s.mean == pytest.approx(2.0 + first_wave + 0.5)


def test_stream_of_equal_groups() -> None:
    found = simulate(line(cv=0.0, slots=4, size=4, per_batch=1, train_s=0.5), 20)
    assert found.step_s.mean == pytest.approx(1.0)
    assert found.trainer_wait_fraction.mean == pytest.approx(0.5)
    # A group starts as the step of the one before begins, whose version comes half way.
    assert found.staleness.cdf == (0.0, 1.0)
    assert found.staleness.token_mean.mean == pytest.approx(0.5)
    assert found.staleness.versions_per_rollout.mean == pytest.approx(1.0)
    assert found.in_flight.mean == pytest.approx(4.0)


def test_pauses_of_a_blocking_sync() -> None:
    trainer = {"sync_s": 0.25, "sync_every": 2}
    found = simulate(line(cv=0.0, slots=4, per_batch=1, train_s=0.5, trainer=trainer), 45)
    # Two groups take two lives and the pause that falls into them.
    assert found.step_s.mean == pytest.approx(1.125)
    assert found.trainer_wait_fraction.mean == pytest.approx(1.0 - 0.625 / 1.125)


def turns(**parts: Any) -> SimulationResult:
    rollouts = {"turns": 2, "tool_tokens": 10.0, "tool_call": SECOND, "prompt_tokens": 100.0}
    given: dict[str, Any] = {"cv": 0.0, "slots": 1, "size": 1, "per_batch": 1, "train_s": 0.1}
    engines = {"prefill": PrefillLaw(0.0, 1e-3, 0.0)}
    return simulate(
        line(
            **given,
            **{"engine": engines, **parts, "rollouts": rollouts | parts.get("rollouts", {})},
        ),
        20,
    )


def test_turns_read_what_is_not_in_the_cache() -> None:
    # Prompt, two halves, two calls, and the tool's answer or the whole context.
    assert turns().step_s.mean == pytest.approx(0.1 + 1.0 + 2.0 + 0.01)
    assert turns(rollouts={"kv_held": False}).step_s.mean == pytest.approx(3.1 + 0.61)
    share = {"kv_held": False, "prefix_cache": "share", "cached_prompt_share": 0.5}
    assert turns(rollouts=share).step_s.mean == pytest.approx(3.05 + 0.61 - 0.5 * 0.6)


def test_prefill_engines_read_what_the_decoder_wrote_too() -> None:
    pool = PrefillPool(1, PrefillLaw(0.0, 1e-3, 0.0), bytes_per_token=1.0, bytes_per_s=100.0)
    held_s = (0.1 + 1.0) + 3.0 + (0.51 + 10 / 100)
    found = turns(prefill_pool=pool)
    # Held KV need not travel again: only what the tool added does.
    assert found.step_s.mean == pytest.approx(held_s)
    whole = turns(prefill_pool=pool, rollouts={"kv_held": False})
    assert whole.step_s.mean == pytest.approx(1.1 + 3.0 + 0.61 + 6.1)


def test_sandboxes_start_and_wait_for_the_quota() -> None:
    law = Sandboxes(per_rollout=2, quota=4, start_s=((2.0, 1.0), (4.0, 3.0)))
    found = simulate(line(cv=0.0, slots=4, size=1, per_batch=1, train_s=0.01, sandboxes=law), 100)
    # Two of four run at a time; the later one starts at four sandboxes, in 3 s.
    assert found.generated_samples_per_s.mean == pytest.approx(2.0 / 4.0, rel=0.15)


def test_restarts_throw_away_the_half_life() -> None:
    # 2.5 lives between two syncs: two are completed, a fifth of all tokens is thrown away.
    found = simulate(
        line(cv=0.0, slots=8, size=1, per_batch=4, train_s=2.5,
             policy={"weight_update": "abort", "queue_batches": 2}), 20,
    )  # fmt: skip
    assert found.token_fate["failed"].mean == pytest.approx(0.2, abs=0.02)
    assert found.step_s.mean == pytest.approx(2.5)


def test_draining_puts_slots_in_step() -> None:
    # Lives of 1 s and a sync every 2.5 s: engines end their third life before they take it.
    found = simulate(
        line(cv=0.0, slots=4, size=4, per_batch=1, train_s=2.5,
             policy={"weight_update": "drain"}), 20,
    )  # fmt: skip
    assert found.token_fate["failed"].mean == 0.0
    assert found.generated_samples_per_s.mean == pytest.approx(4.0)


def test_retraction_reads_everything_again() -> None:
    engines = {"prefill": PrefillLaw(0.0, 1e-4, 0.0)}
    common: dict[str, Any] = {
        "cv": 0.0,
        "slots": 4,
        "size": 4,
        "per_batch": 1,
        "train_s": 0.5,
        "engine": engines,
    }
    plain = simulate(line(**common), 40)
    again = simulate(line(**common, policy={"weight_update": "retract"}), 40)
    assert plain.step_s.mean == pytest.approx(1.0)
    # At half a life four contexts of 500 tokens.
    assert again.step_s.mean == pytest.approx(1.2)


def test_partial_rollout_resumes_and_reads_again() -> None:
    found = batches(
        steps=40,
        mode="disaggregated_sync",
        slots=16,
        groups={"oversampling": 2.0},
        policy={"partial": True},
    )
    assert found.token_fate["oversampled"].mean == 0.0
    assert found.trained_samples_per_s.mean == pytest.approx(16 / found.step_s.mean)
    assert found.length_bias.mean == pytest.approx(1.0)
