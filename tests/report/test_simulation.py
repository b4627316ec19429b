"""The report of a simulation, its files and its timeline."""

from __future__ import annotations

import csv
import functools
import io
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import allocator
from allocator.plan import PlanWarning
from allocator.report.html import report_html
from allocator.report.simulation import (
    LABELS,
    check_simulation_file,
    simulation_content,
    simulation_file,
)
from allocator.report.timeline import cell_means, timeline_png
from allocator.report.trace_file import check_trace_file, trace_file
from allocator.report.tree import Histogram, Section, Table
from allocator.scenario.errors import ScenarioError
from allocator.simulation import Simulation
from allocator.simulation.result import Verdict
from allocator.simulator.trace import Event

EXAMPLES = Path(__file__).parents[2] / "examples"


@functools.cache
def stream() -> Simulation:
    return allocator.simulate(
        EXAMPLES / "qwen3-8b-8gpus.yaml", steps=20, replications=3, trace_steps=4
    )


@functools.cache
def batches() -> Simulation:
    return allocator.simulate(
        EXAMPLES / "slow-code-reward.yaml", steps=10, replications=2, trace_steps=3
    )


def section(simulation: Simulation, name: str) -> Section:
    found = simulation_content(simulation).section(name)
    assert found is not None
    return found


def table(simulation: Simulation) -> Table:
    found = section(simulation, "compared").blocks[0]
    assert isinstance(found, Table)
    return found


def text_of(simulation: Simulation, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(simulation)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("simulation", [stream, batches])
def test_every_quantity_has_words_and_fits_its_line(
    simulation: Callable[[], Simulation],
) -> None:
    assert set(simulation().predicted) <= set(LABELS)
    text = text_of(simulation())
    assert max(map(len, text.splitlines())) <= 80
    header = next(line for line in text.splitlines() if line.startswith("compared"))
    places = [header.index(word) + len(word) for word in ("formula", "simulated", "difference")]
    for row in table(simulation()).rows:
        line = next(each for each in text.splitlines() if each[10:].startswith(row[0]))
        for place, cell in zip(places, (row[1], row[2], row[4]), strict=True):
            assert line[:place].endswith(cell)


def test_rows_without_anything_are_left_out() -> None:
    names = [row[0] for row in table(stream()).rows]
    assert "tokens failed" not in names
    assert "tokens no signal" in names
    assert len(names) == len(set(names))


def shifted(
    path: str, difference: float, half: float, *, verdict: Verdict = "agrees"
) -> Simulation:
    """The stream with one quantity simulated apart from its formula."""
    base = stream()
    value = base.predicted[path] + difference
    agreeing: dict[str, Verdict] = dict.fromkeys(base.verdicts, "agrees")
    return replace(
        base,
        simulated=base.simulated | {path: value},
        difference=base.difference | {path: difference},
        intervals=base.intervals | {path: (value - half, value + half)},
        verdicts={**agreeing, path: verdict},
        outside_noise=(path,) if abs(difference) > half else (),
    )


def row_of(simulation: Simulation, label: str) -> tuple[str, ...]:
    return next(row for row in table(simulation).rows if row[0] == label)


def test_differences_are_in_the_units_of_their_quantity() -> None:
    step = stream().predicted["step_s"]
    slower = shifted("step_s", 0.1 * step, 0.01 * step, verdict="differs")
    assert row_of(slower, "step (s)")[3:] == ("1.00%", "+10.00%", "differs")
    waits = shifted("trainer_wait_fraction", -0.02, 0.004)
    assert row_of(waits, "trainer waits")[3:] == ("0.40 pt", "-2.00 pt", "agrees")
    stale = shifted("staleness.mean", 0.125, 0.05)
    assert row_of(stale, "staleness")[3:] == ("0.050", "+0.125", "agrees")
    same = shifted("step_s", 0.0, 0.01 * step)
    assert row_of(same, "step (s)")[4] == "none"


def test_verdicts_are_said_in_words() -> None:
    step = stream().predicted["step_s"]
    differing = simulation_content(shifted("step_s", 0.1 * step, 0.01 * step, verdict="differs"))
    assert differing.status.startswith("1 of ")
    assert "Differs: step (s)." in report_html(differing)
    agreeing = simulation_content(shifted("step_s", 0.01 * step, 0.001 * step))
    assert (agreeing.status, agreeing.tone) == ("agrees", "good")
    page = report_html(agreeing)
    assert "agree in every quantity" in page
    assert "within what is held to agree: step (s)." in page


def test_both_distributions_have_the_same_bins() -> None:
    charts = [b for b in section(stream(), "staleness").blocks if isinstance(b, Histogram)]
    formula, simulated = charts
    assert formula.labels == simulated.labels
    assert formula.mean == stream().predicted["staleness.mean"]
    assert simulated.mean == stream().simulated["staleness.mean"]
    assert sum(simulated.shares) == pytest.approx(1.0, abs=0.01)


def test_warnings_and_noise_are_told() -> None:
    warned = replace(stream(), warnings=(PlanWarning("version_differs", "other laws", ""),))
    assert "version_differs" in text_of(warned)
    single = replace(stream(), replications=1, intervals={})
    assert "no interval" in " ".join(text_of(single).split())


def test_files_by_their_ending() -> None:
    data = json.loads(simulation_file(stream(), ".json"))
    assert data["simulated"]["step_s"] == stream().simulated["step_s"]
    markdown = simulation_file(stream(), ".MD")
    assert isinstance(markdown, str)
    assert "| step (s) |" in markdown
    page = simulation_file(stream(), ".html")
    assert page == f"{stream()._repr_html_()}\n"
    text = simulation_file(stream(), ".csv")
    assert isinstance(text, str)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["path"] for row in rows] == list(stream().predicted)
    assert float(rows[0]["simulated"]) == stream().simulated["step_s"]
    assert next(row for row in rows if row["path"] == "staleness.p95")["low"] == ""


@pytest.mark.parametrize("simulation", [stream, batches])
def test_the_timeline_is_1600_by_900(simulation: Callable[[], Simulation]) -> None:
    picture = simulation_file(simulation(), ".png")
    assert isinstance(picture, bytes)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24]) == (1600, 900)


def test_no_timeline_without_a_trace() -> None:
    with pytest.raises(ValueError, match="trace_steps"):
        timeline_png(replace(stream(), trace=None))


def test_means_of_cells_keep_the_integral() -> None:
    found = stream().trace
    assert found is not None
    edges = np.linspace(0.0, found.end_s, 50)
    fine = np.linspace(0.0, found.end_s, 7351)
    events = found.of("decoding")
    coarse_sum = float(np.sum(cell_means(events, edges) * np.diff(edges)))
    assert coarse_sum == pytest.approx(float(np.sum(cell_means(events, fine) * np.diff(fine))))
    two = [Event(0.0, "queue", 1.0), Event(3.0, "queue", 5.0)]
    assert cell_means(two, np.array([2.0, 4.0])).tolist() == [3.0]


def test_a_trace_as_csv() -> None:
    found = stream().trace
    assert found is not None
    text = trace_file(found, ".csv")
    assert isinstance(text, str)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(found.events)
    assert list(rows[0]) == ["time_s", "kind", "value"]
    assert [float(row["value"]) for row in rows] == [event.value for event in found.events]


def test_names_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"\.csv or \.parquet"):
        check_trace_file(tmp_path / "trace.txt")
    with pytest.raises(ScenarioError, match=r"\.json, \.html"):
        check_simulation_file(tmp_path / "simulation.pdf")
    check_trace_file(tmp_path / "trace.CSV")
    check_simulation_file(tmp_path / "simulation.PNG")


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allocator.report.trace_file.find_spec", lambda _: None)
    with pytest.raises(ScenarioError, match="needs pyarrow"):
        check_trace_file(tmp_path / "trace.parquet")
    monkeypatch.setattr("allocator.report.simulation.find_spec", lambda _: None)
    with pytest.raises(ScenarioError, match="need matplotlib"):
        check_simulation_file(tmp_path / "timeline.png")


def test_a_trace_as_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    found = stream().trace
    assert found is not None
    check_trace_file(tmp_path / "trace.parquet")
    content = trace_file(found, ".parquet")
    assert isinstance(content, bytes)
    frame = pd.read_parquet(io.BytesIO(content))
    assert list(frame.itertuples(index=False, name=None)) == list(map(tuple, found.events))
