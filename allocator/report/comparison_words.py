"""A plain sentence for every term of a comparison."""

from __future__ import annotations

from collections.abc import Callable

from allocator.comparison.result import Comparison, Measure, Side, Term
from allocator.report import numbers
from allocator.report.numbers import given, money, three

#: Shares below this are rounding.
ROUNDING = 1e-6


def sentence(term: Term, comparison: Comparison) -> str:
    """Return in plain words what changed from A to B behind a term, whatever it comes to."""
    return _SENTENCES[term.name](term, comparison)


def _price(term: Term, comparison: Comparison) -> str:
    trainer = _moved(term.measure("trainer_usd_per_gpu_hour"), money)
    generator = _moved(term.measure("generator_usd_per_gpu_hour"), money)
    scoring = term.measure("reward_usd_per_gpu_hour")
    reward = f", of the reward {_moved(scoring, money)}" if scoring.a and scoring.b else ""
    return f"A GPU-hour of the trainer costs {trainer}, of the generator {generator}{reward}."


def _split(term: Term, comparison: Comparison) -> str:
    names = {"trainer": "trainer", "generator": "generator", "prefill": "of them for prefill only",
             "reward": "reward", "unused": "unused"}  # fmt: skip
    uses = [
        f"{name} {_moved(measure, given)}"
        for use, name in names.items()
        if (measure := term.measure(f"{use}_gpus")).a or measure.b
    ]
    a, b = comparison.a.pace, comparison.b.pace
    paid, own_a, own_b = (term.measure(f"{use}_gpus") for use in ("paid", a, b))
    each = Measure(
        "gpus_per_slower_gpu",
        (paid.a or 0.0) / (own_a.a or 1.0),
        (paid.b or 0.0) / (own_b.b or 1.0),
    )
    whose = f"{a} GPU" if a == b else f"{a} GPU in A and {b} GPU in B"
    return (
        f"GPUs: {', '.join(uses)}. Paid for each {whose}, the slower side: {_moved(each, three)}."
    )


def _inference_speed(term: Term, comparison: Comparison) -> str:
    speed = _moved(term.measure("response_tokens_per_gpu_s"), three)
    flight = _moved(term.measure("in_flight_per_generator_gpu"), three)
    return (
        f"While it runs the generator writes {speed} tokens/s per GPU, with {flight} rollouts in "
        f"flight on each.{_in_part(comparison, 'generator')}"
    )


def _training_speed(term: Term, comparison: Comparison) -> str:
    speed = _moved(term.measure("trained_tokens_per_gpu_s"), three)
    mfu = _moved(term.measure("mfu_busy"), percent)
    epochs = term.measure("epochs")
    passes = "" if epochs.a == epochs.b == 1 else f", {_moved(epochs, given)} passes over a batch"
    return (
        f"While busy the trainer takes {speed} tokens/s per GPU (MFU {mfu}{passes})."
        f"{_in_part(comparison, 'trainer')}"
    )


def _weight_sync(term: Term, comparison: Comparison) -> str:
    paused = _moved(term.measure("generator_paused_fraction"), percent)
    blocked = _moved(term.measure("trainer_blocked_fraction"), percent)
    return (
        f"New weights cost the generator {paused} of its rate and block the trainer {blocked} of "
        "its time."
    )


def _idle(term: Term, comparison: Comparison) -> str:
    held = term.measure("held_fraction")
    return (
        f"{waiting('A', comparison.a, held.a)} {waiting('B', comparison.b, held.b)} Dollars are "
        "those of the side that sets the pace; the other's are in the split."
    )


def waiting(label: str, side: Side, lost: float | None) -> str:
    """Say who waits on one side, and whether that holds up what sets the pace."""
    if side.pace == "generator":
        own = f"the generator sets the pace and is held up {percent(lost)} of its time"
        other = f"the trainer waits {percent(side.trainer_wait_fraction)}"
    else:
        own = f"the trainer sets the pace and waits {percent(lost)} of its time"
        other = _surplus(side)
    turns = f" ({side.mode}: they take turns)" if side.mode.endswith("_sync") else ""
    return f"{label}: {own}, {other}{turns}."


def _surplus(side: Side) -> str:
    if side.generator_wait_fraction > 0.0:
        return f"the generator waits {percent(side.generator_wait_fraction)}"
    spare = 1.0 - side.trainer_tokens_per_s / side.generator_tokens_per_s
    return f"{percent(spare)} of what the generator could deliver is not taken"


def _tail(term: Term, comparison: Comparison) -> str:
    lost = _moved(term.measure("oversampled_fraction"), percent)
    factor = _moved(term.measure("oversampling"), given)
    text = f"Of written tokens {lost} are of rollouts cancelled by oversampling (factor {factor})."
    end = term.measure("batch_end_fraction")
    if percent(end.a) == percent(end.b) == "0%":
        return text
    return (
        f"{text} Batches written as a whole run with few rollouts towards their end, or never fill "
        f"the engines: {_moved(end, percent)} of the generator's rate is lost to that."
    )


def _signal(term: Term, comparison: Comparison) -> str:
    lost = _moved(term.measure("no_signal_fraction"), percent)
    kept = _moved(term.measure("signal_fraction"), percent)
    return f"Of written tokens {lost} are of groups without signal ({kept} of groups carry it)."


def _staleness(term: Term, comparison: Comparison) -> str:
    lost = _moved(term.measure("rejected_stale_fraction"), percent)
    mean = _moved(term.measure("staleness_mean_versions"), three)
    mixed = term.measure("mixed_environment_fraction")
    resumed = ""
    if mixed.a or mixed.b:
        resumed = f", and {_moved(mixed, percent)} were resumed in a later batch and do not count"
    return (
        f"Of written tokens {lost} are rejected as too stale{resumed} (mean staleness {mean} "
        "versions)."
    )


def _discards(term: Term, comparison: Comparison) -> str:
    full = _moved(term.measure("dropped_overflow_fraction"), percent)
    failed = _moved(term.measure("failed_fraction"), percent)
    return (
        f"Of written tokens {full} find the queue full (which costs only where the generator sets "
        f"the pace) and {failed} are lost to failures and to restarts at new weights."
    )


def _tokens_counted(term: Term, comparison: Comparison) -> str:
    written = _moved(term.measure("counted_per_response_token"), three)
    trained = _moved(term.measure("counted_per_trained_token"), three)
    return f"A written token that is used counts as {written} tokens, a trained one as {trained}."


def _availability(term: Term, comparison: Comparison) -> str:
    share = _moved(term.measure("available_fraction"), percent)
    stops = [
        f"{label} {_moved(measure, percent)}"
        for cause, label in (
            ("evaluation", "evaluations"),
            ("checkpoint", "checkpoints"),
            ("failure", "failures"),
        )
        if (measure := term.measure(f"{cause}_fraction")).a or measure.b
    ]
    lost = f"; the rest goes to {', '.join(stops)}" if stops else ""
    return f"In {share} of its time the run makes steps that count{lost}."


def _sandboxes(term: Term, comparison: Comparison) -> str:
    usd = _moved(term.measure("usd_per_hour"), money)
    return f"Sandboxes cost {usd} per hour, {_moved(term.measure('sandboxes'), three)} at a time."


def _reward_api(term: Term, comparison: Comparison) -> str:
    return f"Reward calls to an API cost {_moved(term.measure('usd_per_hour'), money)} per hour."


_SENTENCES: dict[str, Callable[[Term, Comparison], str]] = {
    "price": _price,
    "split": _split,
    "inference_speed": _inference_speed,
    "training_speed": _training_speed,
    "weight_sync": _weight_sync,
    "idle": _idle,
    "tail": _tail,
    "signal": _signal,
    "staleness": _staleness,
    "discards": _discards,
    "tokens_counted": _tokens_counted,
    "availability": _availability,
    "sandboxes": _sandboxes,
    "reward_api": _reward_api,
}


def _in_part(comparison: Comparison, side: str) -> str:
    """Say where a side's speed does not count in full, since the other one sets the pace."""
    share = comparison.generator_share
    counts = share if side == "generator" else 1.0 - share
    if counts == 1.0:
        return ""
    return f" It sets the pace on {percent(counts)} of the way from A to B."


def _moved(measure: Measure, text: Callable[[float | None], str]) -> str:
    """Return a number on both sides, once where they read alike."""
    first, second = text(measure.a), text(measure.b)
    return first if first == second else f"{first} -> {second}"


def percent(share: float | None) -> str:
    """Return a share as a percentage, what is but rounding as 0%."""
    return numbers.percent(0.0 if share is not None and abs(share) < ROUNDING else share)
