"""Discrete-event twin of a run: lengths are drawn, everything else follows from step laws."""

from allocator.simulate.line import SimulatedLine
from allocator.simulate.measure import simulate
from allocator.simulate.result import Estimate, SimulationResult

__all__ = ["Estimate", "SimulatedLine", "SimulationResult", "simulate"]
