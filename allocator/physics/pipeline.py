"""The asynchronous pipeline as one law: generator, queue, trainer and the staleness they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocator.physics.queueing import completion_dispersion, queue_flow
from allocator.physics.residence import ResidenceTable, ResidenceTables

Array = NDArray[np.float64]
Tables = ResidenceTable | ResidenceTables

BLOCK = 8192
"""Plans worked on at once, so that temporaries stay in the processor's cache."""


@dataclass(frozen=True)
class Pipeline:
    """What decides staleness besides the lengths; fields broadcast against each other.

    Attributes
    ----------
    load : array_like
        u = v_G / v_T, accepted generator rate over trainer rate (> 0).
    groups_per_batch : array_like
        G, groups a training step takes (>= 1).
    queue_batches : array_like
        q, capacity of the queue of finished groups, in batches (> 0).
    train_s : array_like
        Mean time of a training step with blocking weight sync, without waiting (s, > 0).
    step_cv : array_like
        Coefficient of variation of that time (0..1).
    length_s : array_like
        Seconds a sample of mean length takes for its tokens (s, > 0).
    constant_s : array_like
        Residence that does not depend on the length: prefill, environment, reward (s, >= 0).
    late_s : array_like
        Seconds after a weight sync in which rollouts still start with the weights before it (s,
        >= 0): each makes what starts in it a batch older.
    end_sd_s : array_like
        Standard deviation of a group's end that is not that of its lengths: of tools (s, >= 0).
    spread_s : array_like
        Mean delay between the group's first start and the start of the sample that ends last (s,
        >= 0): ``(S - 1)/2 x sample residence / slots of one dispatcher`` when samples are
        dispatched one by one, 0 when whole groups are.
    kept_share : array_like
        Share of finished groups that enter the queue (0..1]; `load` counts only these.
    optimizer_steps : array_like
        m, weight versions made of one batch (>= 1).
    weight_sync_every : array_like
        k, batches trained per weight sync (>= 1).
    group_kind : array_like
        Which table of `ResidenceTables` the groups follow (a whole number; 0 with one table).
    """

    load: Any
    groups_per_batch: Any
    queue_batches: Any
    train_s: Any
    step_cv: Any
    length_s: Any
    constant_s: Any = 0.0
    spread_s: Any = 0.0
    kept_share: Any = 1.0
    optimizer_steps: Any = 1.0
    weight_sync_every: Any = 1.0
    group_kind: Any = 0.0
    late_s: Any = 0.0
    end_sd_s: Any = 0.0


@dataclass(frozen=True)
class StalenessLaw:
    """Distribution of the staleness, and the queue it comes from; arrays of one shape.

    Attributes
    ----------
    batches : numpy.ndarray
        Mean number of batches trained between a group's start and its own training step.
    centre : numpy.ndarray
        mu, the same before rounding up to whole batches: E[z] + 1/2.
    half_width : numpy.ndarray
        h, half width of the uniform kernel (batches).
    lengths_per_batch : numpy.ndarray
        g, residence (mean lengths) that costs one more batch at the margin.
    wait_fraction, dropped_fraction : numpy.ndarray
        See `QueueFlow`.
    optimizer_steps : numpy.ndarray
        m, weight versions per batch.
    group_kind : numpy.ndarray
        Row of the tables, as in the pipeline.
    """

    batches: Array
    centre: Array
    half_width: Array
    lengths_per_batch: Array
    wait_fraction: Array
    dropped_fraction: Array
    optimizer_steps: Array
    group_kind: Array


def staleness_law(pipeline: Pipeline, table: Tables) -> StalenessLaw:
    r"""Law of the staleness under `drop_oldest`, from the same queue as the throughput.

    A group started at a random moment is trained ``ceil(z)`` batches later, z = x + a, x = W/tau
    its residence in step periods, a its age in the queue less the idle time before its step.  With
    the symbols of `queue_flow`, times in mean lengths, w1 = train/(u length), K the kept share,
    d = 1 - dropped, p = `waiting_steps`, D, sd, M, cv of the table, I the (kept) dispersion:

    * ``fixed = (constant + spread)/length``, ``W = M + fixed``, ``tau = w1 u/(1 - wait)``, ``x =
      W/tau`` (for u < 1 this is Little's law C M a/B), ``age = (E[Y] + 1/2) d``.
    * mean: ``mu = x + age + 1/2 - wait - p (S - 1)/(2 S G)``; the last term because a group starts
      just after a slot was freed.  So u + x for u < 1, x + (2 q - 1 + u)/(2 u) for u > 1.
    * a group in for long sees fewer others finish, by itself (regular starts) and by its slot:
      ``stretch = max(0.2, 1 - K d tau D/(4 G sd^2) (1 - min(1, cv^2/S)) - p min(1, cv)/slots)``,
      ``slots = S G (1 + constant/length)/(K w1)``, and ``g = tau/stretch``.
    * kernel variance: ``d^2 (Var[Y] + 1/12) + 2 d E[Y] wait
      + (1-p)^2 (c^2 (l - 2 r (1 - exp(-l/r))) + d^2 I(age tau) (E[Y] + 1/2)/G l/(l + 2 r))
      + p^2 max(0, W I(W)/(G w1) - (1 - v^2)/(3 G^2))``, l = x + age, r = 2 Var[Y]/sigma^2 (at least
      1e-9): backlog and place in the batch; step times (partly undone by the backlog) and arrivals
      where the trainer sets the pace; arrivals where the generator does.  At least 1e-6; the
      kernel is uniform with this variance, ``h = sqrt(3 variance)``.
    * rounding up moves the mean from mu to mu + ``sum over n = 1, 2 of sin(2 pi n h)/(2 pi^2 n^2 h)
      Im[exp(2 pi i n (mu - 1/2)) T(2 pi n/g)]``, T = `ResidenceTable.transform` (first terms of the
      saw tooth's Fourier series; next to nothing unless z is known to less than a batch).
    * weight sync every k batches: ``+ (k-1)/2`` on mu, ``+ (k^2-1)/12`` on the variance.
    * weights that arrive late: ``+ late/(length tau)`` on mu; ends that tools scatter:
      ``+ (end_sd/(length tau))^2`` on the variance.

    Returns
    -------
    StalenessLaw
        Continuous in every argument.

    Notes
    -----
    Source: derived here; no constant is fitted.  Largest distance of the distribution function
    from 24 event-simulated settings: 0.053.  Fewer slots than a group has samples is outside it.

    Examples
    --------
    >>> from allocator.physics.residence import residence_table
    >>> table = residence_table(lambda t: 1 - np.exp(-t), 40.0, 8)
    >>> law = staleness_law(Pipeline(0.5, 32, 2, 10.0, 0.1, 20.0), table)
    >>> round(float(law.batches), 2), round(float(law.wait_fraction), 2)
    (3.2, 0.5)
    """
    return StalenessLaw(
        *in_blocks(lambda *row: _with_mean(Pipeline(*row), table), *arguments_of(pipeline))
    )


def arguments_of(pipeline: Pipeline) -> tuple[Any, ...]:
    """Fields of a pipeline in order (`dataclasses.astuple` would copy every array)."""
    return tuple(getattr(pipeline, field.name) for field in fields(pipeline))


def _with_mean(line: Pipeline, tables: Tables) -> tuple[Array, ...]:
    """Fields of `StalenessLaw` for one block."""
    centre, half, lengths, *rest = law_of_block(line, tables)
    table = tables.rows(line.group_kind)
    turn = 2.0 * np.pi * (centre - 0.5)
    width = 2.0 * np.pi * half
    sine, cosine = np.sin(turn), np.cos(turn)
    wave, flat = np.sin(width), np.cos(width)
    real, imaginary = table.transform(2.0 * np.pi / lengths)
    first = wave * (sine * real + cosine * imaginary)
    real, imaginary = table.transform(4.0 * np.pi / lengths)
    second = wave * flat * (2.0 * sine * cosine * real + (1.0 - 2.0 * sine * sine) * imaginary)
    rounded = (first + 0.5 * second) / (np.pi * width)
    return (centre + rounded, centre, half, lengths, *rest)


def law_of_block(line: Pipeline, tables: Tables) -> tuple[Array, ...]:
    """Centre, half width, lengths per batch, wait, drop, steps of one block (`staleness_law`)."""
    groups, train, length, kept = (
        line.groups_per_batch,
        line.train_s,
        line.length_s,
        line.kept_share,
    )
    table = tables.rows(line.group_kind)
    train_lengths = train / length
    fill = train_lengths / line.load
    flow = queue_flow(
        line.load, groups, line.queue_batches, fill, line.step_cv, table, kept_share=kept
    )
    wait, paced = flow.wait_fraction, flow.waiting_steps
    trained = 1.0 - flow.dropped_fraction
    residence = table.tailness + (line.constant_s + line.spread_s) / length
    period = train_lengths / (1.0 - wait)
    x = residence / period
    age = (flow.backlog + 0.5) * trained
    size = table.group_size
    start = paced * ((size - 1) / (2.0 * size)) / groups

    regular = 1.0 - np.minimum(1.0, table.length_cv**2 / size)
    own = regular * table.mean_difference / (4.0 * np.maximum(table.sd**2, 1e-6))
    slots = size * groups * (1.0 + line.constant_s / length) / (kept * fill)
    stretch = 1.0 - kept * trained * period * (own / groups)
    stretch = np.maximum(stretch - paced * (np.minimum(1.0, table.length_cv) / slots), 0.2)

    reach = x + age
    memory = np.maximum(2.0 * flow.backlog_variance / flow.step_variance, 1e-9)
    steps = reach - 2.0 * memory * (1.0 - np.exp(-reach / memory))
    queued = completion_dispersion(table, age * period, kept) * (flow.backlog + 0.5) / groups
    queued = trained * trained * queued * reach / (reach + 2.0 * memory)
    counted = completion_dispersion(table, residence, kept) * residence / (groups * fill)
    counted = np.maximum(counted - flow.lattice * (1.0 / 3.0), 0.0)
    unpaced = 1.0 - paced
    variance = (
        trained * trained * (flow.backlog_variance + 1.0 / 12.0)
        + 2.0 * trained * flow.backlog * wait
        + unpaced * unpaced * (line.step_cv * line.step_cv * steps + queued)
        + paced * paced * counted
    )
    versions, sync = line.optimizer_steps, line.weight_sync_every
    variance = variance + np.square(line.end_sd_s / (length * period))
    variance = np.maximum(variance, 1e-6) + (sync * sync - 1.0) / 12.0
    late = line.late_s / (length * period)
    mean = reach + 0.5 - wait - start + 0.5 * (sync - 1.0) + late
    return (
        mean,
        np.sqrt(3.0 * variance),
        period / stretch,
        wait,
        flow.dropped_fraction,
        np.asarray(versions + 0.0 * mean),
        np.asarray(line.group_kind + 0.0 * mean),
    )


def in_blocks(
    function: Callable[..., tuple[Array, ...]], *arguments: Any, block: int = BLOCK
) -> tuple[Array, ...]:
    """Apply an elementwise function to the broadcast arguments, block by block.

    Single values are passed on as they are; every other argument as one-dimensional pieces of at
    most `block` elements, so that temporaries stay in the processor's cache.
    """
    values = [np.asarray(argument, dtype=np.float64) for argument in arguments]
    shape = np.broadcast_shapes(*(value.shape for value in values))
    size = int(np.prod(shape))
    if size <= block:
        return tuple(np.broadcast_to(part, shape) for part in function(*values))
    flat = [
        value if value.ndim == 0 else np.broadcast_to(value, shape).reshape(-1) for value in values
    ]
    results: list[Array] = []
    for start in range(0, size, block):
        part = slice(start, min(start + block, size))
        parts = function(*(value if value.ndim == 0 else value[part] for value in flat))
        if not results:
            results = [np.empty(size) for _ in parts]
        for result, piece in zip(results, parts, strict=True):
            result[part] = piece
    return tuple(result.reshape(shape) for result in results)
