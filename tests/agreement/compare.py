"""What formulas and simulation say of a case, and by how much they differ.

`python -m tests.agreement.compare` simulates every case and keeps what it found in
`simulated.csv`. The formulas are evaluated anew whenever they are compared with it.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from allocator.evaluator import evaluate
from allocator.evaluator.prediction import prediction_of
from allocator.plan import Prediction
from allocator.simulator import simulate
from allocator.simulator.result import Estimate, SimulationResult
from allocator.twin import line_of
from tests.agreement.scenarios import COUNT, REPLICATIONS, Case, case

SIMULATED = Path(__file__).with_name("simulated.csv")
FATES = (
    "useful",
    "no_signal",
    "rejected_stale",
    "oversampled",
    "dropped_overflow",
    "failed",
    "mixed_environment",
)
SCALARS = ("trained_samples_per_s", "trainer_wait_fraction", "staleness_mean", *FATES)
#: Most by which formula and simulation may differ.
THROUGHPUT, WAIT, STALENESS, STALENESS_SHARE, DISTANCE, FATE = 0.03, 0.03, 0.15, 0.05, 0.08, 0.02
#: Standard errors of the simulation by which a tolerance is widened.
ERRORS = 2.0
MEASURES = ("throughput", "wait", "staleness", "p95", "distribution", "fates")


@dataclass(frozen=True)
class Seen:
    """What a simulation shows: means, their standard errors, the distribution of staleness."""

    mean: Mapping[str, float]
    error: Mapping[str, float]
    cdf: NDArray[np.float64]
    p95: int


@dataclass(frozen=True)
class Misfit:
    """Formula less simulation.

    Attributes
    ----------
    throughput : relative. wait, staleness, p95 : absolute.
    distribution : largest distance of the two distribution functions of staleness.
    fates : of the fate that differs most.
    error : standard error of the simulation, by measure.
    formula, simulated : the values themselves, by name.
    within : whether a measure keeps its tolerance, by name.
    """

    throughput: float
    wait: float
    staleness: float
    p95: int
    distribution: float
    fates: float
    error: Mapping[str, float]
    formula: Mapping[str, float]
    simulated: Mapping[str, float]
    within: Mapping[str, bool]


def seen(result: SimulationResult) -> Seen:
    """Return what is compared of a simulation."""
    estimates = {name: getattr(result, name) for name in SCALARS[:2]}
    estimates |= {"staleness_mean": result.staleness.mean, **result.token_fate}
    return Seen(
        mean={name: estimates[name].mean for name in SCALARS},
        error={name: _standard_error(estimates[name]) for name in SCALARS},
        cdf=np.asarray(result.staleness.cdf),
        p95=result.staleness.p95,
    )


def _standard_error(estimate: Estimate) -> float:
    from scipy.special import stdtrit

    assert estimate.half_width is not None
    return estimate.half_width / float(stdtrit(estimate.replications - 1, 0.975))


def simulated_case(found: Case) -> Seen:
    """Simulate a case."""
    line = line_of(found.problem, found.plan)
    return seen(simulate(line, found.steps, found.seed, REPLICATIONS))


def predicted(found: Case) -> Prediction:
    """Evaluate a case by the formulas."""
    return prediction_of(found.problem, evaluate(found.problem, found.plan), 0)


def misfit(prediction: Prediction, sim: Seen) -> Misfit:
    """Compare formulas with a simulation."""
    fates = {name: float(getattr(prediction.token_fate, name)) for name in FATES}
    law = {
        "trained_samples_per_s": prediction.trained_samples_per_s,
        "trainer_wait_fraction": prediction.trainer_wait_fraction,
        "staleness_mean": prediction.staleness.mean,
        **fates,
    }
    off = {name: law[name] - sim.mean[name] for name in SCALARS}
    rate = sim.mean["trained_samples_per_s"]
    worst = max(FATES, key=lambda name: abs(off[name]))
    distance = _distance(np.asarray(prediction.staleness.cdf), sim.cdf)
    error = {
        "throughput": sim.error["trained_samples_per_s"] / rate,
        "wait": sim.error["trainer_wait_fraction"],
        "staleness": sim.error["staleness_mean"],
        "fates": sim.error[worst],
    }
    allowed_staleness = max(STALENESS, STALENESS_SHARE * sim.mean["staleness_mean"])
    throughput, p95 = off["trained_samples_per_s"] / rate, prediction.staleness.p95 - sim.p95
    return Misfit(
        throughput=throughput,
        wait=off["trainer_wait_fraction"],
        staleness=off["staleness_mean"],
        p95=p95,
        distribution=distance,
        fates=off[worst],
        error=error,
        formula=law,
        simulated=sim.mean,
        within={
            "throughput": abs(throughput) <= THROUGHPUT + ERRORS * error["throughput"],
            "wait": abs(off["trainer_wait_fraction"]) <= WAIT + ERRORS * error["wait"],
            "staleness": abs(off["staleness_mean"])
            <= allowed_staleness + ERRORS * error["staleness"],
            "p95": p95 == 0,
            "distribution": distance <= DISTANCE,
            "fates": all(abs(off[n]) <= FATE + ERRORS * sim.error[n] for n in FATES),
        },
    )


def _distance(law: NDArray[np.float64], sim: NDArray[np.float64]) -> float:
    last = max(law.size, sim.size)
    law, sim = (np.pad(cdf, (0, last - cdf.size), constant_values=1.0) for cdf in (law, sim))
    return float(np.max(np.abs(law - sim)))


@lru_cache(maxsize=1)
def simulated() -> dict[int, Seen]:
    """Read what was simulated, by seed."""
    with SIMULATED.open(encoding="utf-8", newline="") as file:
        return {int(row["seed"]): _row(row) for row in csv.DictReader(file)}


def _row(row: Mapping[str, str]) -> Seen:
    return Seen(
        mean={name: float(row[name]) for name in SCALARS},
        error={name: float(row[name + "_error"]) for name in SCALARS},
        cdf=np.asarray([float(share) for share in row["cdf"].split()]),
        p95=int(row["p95"]),
    )


def write_simulated(seeds: Iterable[int], path: Path = SIMULATED) -> None:
    """Simulate cases one after the other and keep what they show, a row each as it is found."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ("seed", *(n + end for n in SCALARS for end in ("", "_error")), "p95", "cdf")
        )
        for seed in seeds:
            begin = time.process_time()
            sim = simulated_case(case(seed))
            values = [f"{of[name]:.6g}" for name in SCALARS for of in (sim.mean, sim.error)]
            table.writerow((seed, *values, sim.p95, " ".join(f"{p:.5g}" for p in sim.cdf)))
            file.flush()
            print(f"{seed}: {time.process_time() - begin:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    chosen = [int(seed) for seed in sys.argv[1:]] or range(COUNT)
    write_simulated(chosen)
