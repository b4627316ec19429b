"""A picture of a trace: who is busy, how full the queue is, and which weights are in use."""

from __future__ import annotations

from io import BytesIO
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocator.report.numbers import three
from allocator.report.palette import LOOKS, Role
from allocator.report.simulation import simulation_content
from allocator.simulation.result import Simulation
from allocator.simulator.trace import TRAINER_KINDS, Event, Trace

INK, SOFT, LINE, LIMIT = "#1c1f23", "#5b6470", "#d9dee4", "#D55E00"
#: What the trainer does: words and look.
TRAINER: dict[str, tuple[str, Role]] = {
    "training": ("training", "trainer"),
    "sending": ("sending weights", "prefill"),
    "switching": ("changing roles", "reward"),
    "waiting": ("waiting", "idle"),
}
#: Cells of time over which rollouts are averaged.
CELLS = 800
#: Shares of the picture: its margin, and where the panels begin and how wide they are.
MARGIN, LEFT, WIDE = 0.035, 0.17, 0.795


def timeline_png(simulation: Simulation) -> bytes:
    """Return a 1600 x 900 PNG of a simulation's trace.

    From above: what the trainer does, how many rollouts decode on an engine, finished groups in the
    queue (async), and the weights of trainer and engines, all over the time of the traced steps.

    Raises
    ------
    ValueError
        If the simulation has no trace.
    ModuleNotFoundError
        If matplotlib is not installed (it is a development dependency).
    """
    if simulation.trace is None:
        raise ValueError("a simulation without trace has no timeline: ask for `trace_steps`")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"text.parse_math": False, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(16.0, 9.0), dpi=100, facecolor="white")
        _draw(figure, simulation, simulation.trace)
        stream = BytesIO()
        figure.savefig(stream, format="png")
    return stream.getvalue()


def _draw(figure: Any, simulation: Simulation, trace: Trace) -> None:
    report = simulation_content(simulation)
    figure.text(MARGIN, 0.945, shorten(simulation.scenario, 80), size=22, weight="bold", color=INK)
    figure.text(MARGIN, 0.9, report.headline, size=17, color=INK)
    last = trace.first_step + trace.steps - 1
    said = f"Steps {trace.first_step} to {last} of the first replication, {simulation.mode}"
    figure.text(MARGIN, 0.865, said, size=13, color=SOFT)
    stream = simulation.mode == "async"
    bottom = 0.075
    heights = (0.06, 0.27, 0.16, 0.13) if stream else (0.06, 0.42, 0.16)
    gap = (0.74 - sum(heights) - bottom + 0.06) / (len(heights) - 1)
    top, axes = 0.8, []
    for height in heights:
        top -= height
        axes.append(figure.add_axes((LEFT, top, WIDE, height)))
        top -= gap
    _trainer(axes[0], trace)
    _decoding(axes[1], trace)
    if stream:
        _queue(axes[2], trace)
    _versions(axes[-1], trace)
    for place in axes:
        _frame(place, trace.end_s, place is axes[-1])


def _frame(axes: Any, end_s: float, lowest: bool) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlim(0.0, end_s)
    axes.tick_params(length=0, labelsize=12, labelcolor=SOFT, labelbottom=lowest)
    axes.grid(axis="x", color=LINE, lw=1)
    axes.set_axisbelow(True)
    if lowest:
        axes.set_xlabel("seconds", size=13, color=SOFT)


def _name(axes: Any, text: str, note: str = "") -> None:
    """Name a panel at its left, a note below the name."""
    left = (MARGIN - LEFT) / WIDE
    axes.text(left, 0.56 if note else 0.5, text, transform=axes.transAxes, size=14,
              weight="bold", color=INK, va="bottom" if note else "center", ha="left")  # fmt: skip
    if note:
        axes.text(left, 0.5, note, transform=axes.transAxes, size=11.5, color=SOFT, va="top",
                  ha="left", linespacing=1.3)  # fmt: skip


def _trainer(axes: Any, trace: Trace) -> None:
    from matplotlib.patches import Patch

    events = trace.of(*TRAINER_KINDS)
    ends = [*(event.time_s for event in events[1:]), trace.end_s]
    used = {}
    for event, end in zip(events, ends, strict=True):
        words, role = TRAINER[event.kind]
        if end > event.time_s:
            used[words] = LOOKS[role].colour
            axes.barh(0.5, end - event.time_s, left=event.time_s, height=1.0,
                      color=LOOKS[role].colour, edgecolor="white", lw=0.5)  # fmt: skip
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    _name(axes, "trainer")
    order = [words for words, _ in TRAINER.values() if words in used]
    axes.legend(
        handles=[Patch(color=used[words], label=words) for words in order], ncols=len(order),
        loc="lower right", bbox_to_anchor=(1.0, 1.02), frameon=False, fontsize=13,
        handlelength=1, handleheight=1, borderaxespad=0,
    )  # fmt: skip


def _decoding(axes: Any, trace: Trace) -> None:
    engines = trace.line.engines
    edges = np.linspace(0.0, trace.end_s, CELLS + 1)
    means = cell_means(trace.of("decoding"), edges) / engines.count
    look = LOOKS["generator"]
    axes.fill_between(edges[:-1], means, step="post", color=look.colour, lw=0, alpha=0.9)
    axes.axhline(engines.in_flight, color=LIMIT, lw=2, ls=(0, (3, 2)))
    axes.set_ylim(0, 1.12 * engines.in_flight)
    _ticks(axes)
    each = (
        "on the engine" if engines.count == 1 else f"on each of {engines.count:,}\nengines (mean)"
    )
    _name(axes, "decoding", f"rollouts {each}\ndashed: {engines.in_flight:,} places")


def _queue(axes: Any, trace: Trace) -> None:
    line = trace.line
    batch = line.groups.per_batch
    times, values = _steps(trace.of("queue"), trace.end_s)
    depth = values / batch
    axes.fill_between(times, depth, step="post", color=LOOKS["trained"].colour, lw=0, alpha=0.9)
    note = "finished groups,\nin batches"
    top = float(depth.max())
    if line.policy.enforce != "admission":
        capacity = line.policy.queue_batches
        axes.axhline(capacity, color=LIMIT, lw=2, ls=(0, (3, 2)))
        note += f"\ndashed: capacity, {capacity}"
        top = max(top, capacity)
    axes.set_ylim(0, 1.15 * top or 1.0)
    _ticks(axes)
    _name(axes, "queue", note)


def _versions(axes: Any, trace: Trace) -> None:
    both = (("version", "trainer", "trainer", "-"), ("engine_version", "oldest engine", "dearer",
                                                     (0, (2, 1))))  # fmt: skip
    for kind, label, role, dashes in both:
        times, values = _steps(trace.of(kind), trace.end_s)
        colour = LOOKS[role].colour  # type: ignore[index]
        axes.step(times, values, where="post", color=colour, lw=2.5, ls=dashes, label=label)
    axes.legend(loc="upper left", frameon=False, fontsize=12, ncols=2, borderaxespad=0)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))
    _ticks(axes, whole=True)
    _name(axes, "weights", "version of trainer\nand engines")


def _ticks(axes: Any, whole: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(4, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.grid(axis="y", color=LINE, lw=1)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else three(value).rstrip("0").rstrip(".")


def _steps(events: list[Event], end_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return times and values of a step function, carried on to the end."""
    times = np.array([*(event.time_s for event in events), end_s])
    values = np.array([*(event.value for event in events), events[-1].value], dtype=float)
    return times, values


def cell_means(events: list[Event], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over time of a step function in each cell between ascending edges.

    Examples
    --------
    >>> half = [Event(0.0, "decoding", 4.0), Event(0.5, "decoding", 0.0)]
    >>> cell_means(half, np.array([0.0, 1.0, 2.0])).tolist()
    [2.0, 0.0]
    """
    times, values = _steps(events, float(edges[-1]))
    sums = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times))])
    at = np.interp(edges, times, sums)
    means: NDArray[np.float64] = np.diff(at) / np.diff(edges)
    return means
