"""Discrete-event twin of a run: lengths are drawn, everything else follows from step laws."""

from allocator.simulator.line import SimulatedLine
from allocator.simulator.measure import simulate
from allocator.simulator.result import Estimate, SimulationResult

__all__ = ["Estimate", "SimulatedLine", "SimulationResult", "simulate"]
