"""Availability: how evaluation, checkpoints and failures stretch the hours of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class RunStretch:
    """Where the time of a run goes; arrays of the broadcast shape.

    The five shares add up to 1.

    Attributes
    ----------
    stretch : run time over the time of its training steps alone (>= 1).
    productive_share : share of run time in training steps that count, 1/stretch.
    evaluation_share : the run stands still for an evaluation.
    checkpoint_share : the run stands still for a checkpoint.
    restart_share : the run comes back after a failure.
    redone_share : work since the last checkpoint, done again.
    """

    stretch: Array
    productive_share: Array
    evaluation_share: Array
    checkpoint_share: Array
    restart_share: Array
    redone_share: Array


def evaluation_pause_s(samples: Any, response_tokens: Any, tokens_per_s: Any) -> Any:
    """Seconds the generator needs for one evaluation: samples x tokens / token rate.

    The rate is that of the plan with its engines full; the last rollouts, on engines that run
    empty, take longer.

    Examples
    --------
    >>> evaluation_pause_s(500, 8000.0, 40_000.0)
    100.0
    """
    return samples * response_tokens / tokens_per_s


def evaluation_hold_s(
    pause_s: Any, every_steps: Any, step_s: Any, backlog_batches: Any, spare_share: Any
) -> Any:
    """Seconds the run stands still for one evaluation, during which the generator is taken.

    max(0, pause - step min(backlog, spare x every))

    While the generator evaluates, training goes on from finished batches alone. A batch helps only
    if it lies in the queue when the evaluation starts, and if the generator has the capacity to
    replace it before the next one: `spare` is its idle or thrown-out share. Both bounds hold, so
    the smaller one counts; one batch bridges one step. Conservative: what the trainer is working
    on and what is half generated bridge nothing.

    Where trainer and generator take turns (the sync modes), and where the generator is the
    bottleneck, the backlog is 0 and the whole pause counts.

    Parameters
    ----------
    pause_s : seconds of one evaluation (`evaluation_pause_s`).
    every_steps : training steps between two evaluations (>= 1).
    step_s : seconds of one training step of the run.
    backlog_batches : batches left in the queue when a training step starts (>= 0).
    spare_share : 1 - rate of the run / rate of the generator alone (0..1).

    Examples
    --------
    Five batches in the queue bridge 250 s; a generator 5% too fast replaces one in 20 steps.

    >>> float(evaluation_hold_s(300.0, 20, 50.0, 5.0, 0.5))
    50.0
    >>> float(evaluation_hold_s(300.0, 20, 50.0, 5.0, 0.05))
    250.0
    """
    bridged = np.minimum(backlog_batches, np.multiply(spare_share, every_steps))
    return np.maximum(pause_s - step_s * bridged, 0.0)


def failures_per_s(gpus: Any, mtbf_gpu_hours: Any) -> Any:
    """Failures per second that stop the run: GPUs / mean GPU-seconds between failures.

    Parameters
    ----------
    gpus : GPUs of the run; any of them stops it.
    mtbf_gpu_hours : mean GPU-hours between such failures (> 0, infinite for none).

    Examples
    --------
    1,000 GPUs of 50,000 hours each: one failure in 50 hours.

    >>> round(float(1 / failures_per_s(1000, 50_000.0)) / 3600, 6)
    50.0
    """
    return np.divide(gpus, mtbf_gpu_hours) / SECONDS_PER_HOUR


def redone_factor(failures: Any, interval_s: Any, delay_s: Any = 0.0) -> Array:
    r"""Working time over the time of the work itself, when failures throw back to a checkpoint.

    exp(lambda d) (exp(lambda I) - 1) / (lambda I)

    Failures are Poisson and undo the work since the last checkpoint: to first order
    1 + lambda (I/2 + d), half an interval and the delay each.

    Parameters
    ----------
    failures : lambda, failures per second of working time (>= 0).
    interval_s : I, working seconds between two checkpoints (> 0).
    delay_s : d, seconds until a checkpoint that is written beside the work can be used (0..I).

    Returns
    -------
    numpy.ndarray
        At least 1; finite also where hardly any checkpoint is reached (exponents end at 300).

    Notes
    -----
    Exact: the renewal argument of Daly (2006), with the state written at a checkpoint usable d
    seconds later.

    Examples
    --------
    >>> round(float(redone_factor(1e-5, 2000.0)), 5)
    1.01007
    """
    lost = np.minimum(np.multiply(failures, interval_s), 300.0)
    factor = np.divide(np.expm1(lost), lost, out=np.ones(np.shape(lost)), where=lost > 0.0)
    return np.asarray(factor * np.exp(np.minimum(np.multiply(failures, delay_s), 300.0)))


def run_stretch(
    step_s: Any,
    *,
    evaluation_hold_s: Any = 0.0,
    evaluation_every_steps: Any = 1.0,
    checkpoint_s: Any = 0.0,
    checkpoint_every_steps: Any = 1.0,
    checkpoint_blocks: bool = True,
    failures_per_s: Any = 0.0,
    restart_s: Any = 0.0,
) -> RunStretch:
    """Shares of the run's time, from what stops it.

    With h = hold/every and b = checkpoint/every (0 unless it blocks), a step needs
    n = step + h + b seconds; I = every_checkpoint n between checkpoints; phi the redone factor of
    I; lambda failures per working second, each followed by a restart::

        time per step  T = n phi (1 + lambda restart)
        shares         step/T, h/T, b/T, n phi lambda restart/T, n (phi - 1)/T

    Parameters
    ----------
    step_s : seconds of one training step (> 0).
    evaluation_hold_s, evaluation_every_steps : standstill of one evaluation (see
        `evaluation_hold_s`) and the steps between two.
    checkpoint_s, checkpoint_every_steps : seconds of one checkpoint and the steps between two.
    checkpoint_blocks : whether the run stands still meanwhile. Charged in full, also where the
        generator, which goes on, is the bottleneck (conservative). Otherwise it costs no time, but
        a failure meanwhile falls back to the one before.
    failures_per_s : failures per second of working time (see `failures_per_s`); nothing fails
        during a restart.
    restart_s : seconds from a failure to the next working second, reloading included.

    Returns
    -------
    RunStretch
        All of the time is productive (stretch 1) when nothing is set.

    Examples
    --------
    An evaluation of 300 s and a checkpoint of 60 s every 20 steps of 282 s, and a failure in
    50 hours with a restart of 15 minutes:

    >>> found = run_stretch(282.0, evaluation_hold_s=300.0, evaluation_every_steps=20,
    ...                     checkpoint_s=60.0, checkpoint_every_steps=20,
    ...                     failures_per_s=1 / 180_000, restart_s=900.0)
    >>> round(float(found.stretch), 4), round(float(found.evaluation_share), 4)
    (1.0872, 0.0489)
    """
    step = np.asarray(step_s, dtype=np.float64)
    hold = np.divide(evaluation_hold_s, evaluation_every_steps)
    write = np.divide(checkpoint_s, checkpoint_every_steps) if checkpoint_blocks else 0.0
    needed = step + hold + write
    delay = 0.0 if checkpoint_blocks else checkpoint_s
    worked = needed * redone_factor(failures_per_s, needed * checkpoint_every_steps, delay)
    restarting = worked * failures_per_s * restart_s
    whole = worked + restarting
    shares = [
        np.asarray(part / whole, dtype=np.float64)
        for part in (step, hold, write, restarting, worked - needed)
    ]
    return RunStretch(np.asarray(whole / step), *np.broadcast_arrays(*shares))
