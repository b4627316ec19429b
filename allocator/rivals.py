"""What the choices not taken would cost: the best plan of every other mode, format and layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from allocator.problem.build import Problem
from allocator.problem.decisions import NONE, DecisionArrays, Domain
from solvers.base import SolverOutcome
from solvers.columns import solve_columns


def rivals(
    problem: Problem, domain: Domain, found: SolverOutcome, time_limit_s: float | None
) -> DecisionArrays | None:
    """Return the best plan of every choice that the scenario leaves open and the plan did not take.

    The choices are modes, number formats of the engines, and prefill apart or not; each is solved
    with that choice made and all else open. Plans of other pairs of engine and trainer kinds that
    the search came across are kept too, best of each. None where there is neither.

    Parameters
    ----------
    time_limit_s : of each of the searches, as in the search for the plan.
    """
    if found.best is None:
        return None
    parts = [] if found.alternatives is None else [found.alternatives]
    for narrower in _narrower(problem, domain, found.best):
        other = solve_columns(problem, narrower, time_limit_s, explain=False)
        if other.best is not None:
            parts.append(other.best)
    return DecisionArrays.concatenate(parts) if parts else None


def _narrower(problem: Problem, domain: Domain, best: DecisionArrays) -> Iterator[Domain]:
    """Yield the domain with every choice that the plan did not take."""
    for mode in domain.modes.tolist():
        if mode != int(best.mode[0]):
            yield replace(domain, modes=np.asarray([mode]))
    labels = problem.system.engines.labels
    formats = [(label.weights_dtype, label.kv_dtype) for label in labels]
    for other in sorted(set(formats) - {formats[int(best.generator_kind[0])]}):
        kept = tuple(
            counts if spoken == other else counts[:0]
            for counts, spoken in zip(domain.engines, formats, strict=True)
        )
        if any(counts.size for counts in kept):
            yield replace(domain, engines=kept)
    apart = int(best.prefill_kind[0]) != NONE
    prefill = tuple(
        tuple(option for option in options if (option[0] == NONE) == apart)
        for options in domain.prefill
    )
    if any(prefill):
        yield replace(domain, prefill=prefill)
