"""Plan RL post-training runs: GPU split, concurrency, staleness and dollars per useful token.

    scenario = allocator.load("examples/qwen3-235b-h200.yaml")
    plan = allocator.solve(scenario)

Public names are imported on first use, so that `import allocator` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allocator.comparison import Comparison, compare
    from allocator.facade import InfeasibleError, SolverFailure, evaluate, solve, try_solve
    from allocator.plan import Plan
    from allocator.preflight import check
    from allocator.scenario.errors import ScenarioError
    from allocator.scenario.load import load
    from allocator.simulation import Simulation, simulate

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "allocator.comparison",
    "InfeasibleError": "allocator.facade",
    "Plan": "allocator.plan",
    "ScenarioError": "allocator.scenario.errors",
    "Simulation": "allocator.simulation",
    "SolverFailure": "allocator.facade",
    "check": "allocator.preflight",
    "compare": "allocator.comparison",
    "evaluate": "allocator.facade",
    "load": "allocator.scenario.load",
    "simulate": "allocator.simulation",
    "solve": "allocator.facade",
    "try_solve": "allocator.facade",
}

__all__ = [
    "Comparison",
    "InfeasibleError",
    "Plan",
    "ScenarioError",
    "Simulation",
    "SolverFailure",
    "__version__",
    "check",
    "compare",
    "evaluate",
    "load",
    "simulate",
    "solve",
    "try_solve",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
