"""The 24 simulated settings of the evidence library, and the tables of their lengths."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from allocator.physics.pipeline import Pipeline
from allocator.physics.residence import ResidenceTable, residence_table
from tests.physics.queue_event_simulation import Setting

CSV = Path(__file__).parents[1] / "data" / "queue_simulated.csv"


@dataclass(frozen=True)
class Row:
    setting: Setting
    wait: float
    dropped_share: float
    tailness: float
    staleness_mean: float
    staleness_cdf: NDArray[np.float64]

    def __str__(self) -> str:
        s = self.setting
        return (
            f"C{s.in_flight}-B{s.batch}-S{s.group_size}-q{s.queue_batches}"
            f"-u{s.load}-cv{s.length_cv}-t{s.train_step_cv}"
        )


@cache
def rows() -> tuple[Row, ...]:
    with CSV.open() as file:
        return tuple(
            Row(
                Setting(
                    int(line["in_flight"]),
                    int(line["batch"]),
                    int(line["group_size"]),
                    int(line["queue_batches"]),
                    float(line["load"]),
                    float(line["length_cv"]),
                    float(line["train_step_cv"]),
                ),
                float(line["wait"]),
                float(line["dropped_share"]),
                float(line["tailness"]),
                float(line["staleness_mean"]),
                np.array([float(p) for p in line["staleness_cdf_0_40"].split()]),
            )
            for line in csv.DictReader(file)
        )


@cache
def lognormal_table(length_cv: float, group_size: int) -> ResidenceTable:
    """Table of log-normal lengths of mean 1, without cap."""
    sigma = np.sqrt(np.log1p(length_cv**2))
    return residence_table(
        lambda lengths: ndtr(np.log(lengths) / sigma + sigma / 2.0), 1e6, group_size
    )


def pipeline(setting: Setting) -> Pipeline:
    """Setting in the law's terms; the unit of time is the mean length."""
    return Pipeline(
        load=setting.load,
        groups_per_batch=setting.batch / setting.group_size,
        queue_batches=setting.queue_batches,
        train_s=setting.load * setting.batch / setting.in_flight,
        step_cv=setting.train_step_cv,
        length_s=1.0,
        spread_s=(setting.group_size - 1) / 2.0 / setting.in_flight,
    )
