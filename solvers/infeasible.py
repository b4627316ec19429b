"""Why no plan exists: limits nobody meets, limits in conflict, single changes that help."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from allocator.evaluator import evaluate
from allocator.evaluator.limits import ROUNDING
from allocator.evaluator.prediction import decisions_of, limits_of
from allocator.plan import Infeasibility, Relaxation
from allocator.problem.build import Problem
from allocator.problem.decisions import DecisionArrays, Floats, Ints

#: Limits on the size of a pool are called this and the pool's name.
POOL = "gpu_pool_"


@dataclass
class _Tally:
    """What the plans seen so far say about each limit (value over limit, 1 = just met)."""

    names: tuple[str, ...]
    points: int = 0
    least_alone: dict[str, float] = field(default_factory=dict)
    least_when_others_hold: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    nearest: tuple[tuple[int, float], DecisionArrays] | None = None
    patterns: set[frozenset[str]] = field(default_factory=set)


def diagnose(
    problem: Problem, blocks: Iterable[DecisionArrays], wider: Iterable[DecisionArrays]
) -> Infeasibility:
    """Explain an infeasible domain from an evaluation of all its plans.

    `unmeetable` names limits that no plan meets; `conflict` is the smallest set of limits that no
    plan meets together, found over the exact patterns of broken limits; each relaxation is the
    smallest value of one user-changeable limit at which some plan keeps all others. The nearest
    plan breaks the fewest limits, and those by the least. `wider` are plans of larger pools; they
    count only for how large a pool would have to be.
    """
    names = tuple(spec.name for spec in problem.limits)
    tally = _Tally(names)
    for plans in blocks:
        _count(problem, plans, tally)
    for plans in wider:
        _count(problem, plans, tally, pools_only=True)
    unmeetable = tuple(n for n in names if tally.least_alone.get(n, np.inf) > 1.0 + ROUNDING)
    specs = {spec.name: spec for spec in problem.limits}
    relaxations = []
    for name, (_, value, limit) in tally.least_when_others_hold.items():
        if specs[name].relaxable:
            percent = 100.0 * (value / limit - 1.0) if limit > 0 else math.inf
            spec = specs[name]
            relaxations.append(Relaxation(name, limit, value, percent, spec.unit, spec.where))
    nearest = None if tally.nearest is None else tally.nearest[1]
    return Infeasibility(
        conflict=_smallest_conflict(names, tally.patterns),
        unmeetable=unmeetable,
        relaxations=tuple(sorted(relaxations, key=lambda r: r.percent)),
        nearest=None if nearest is None else decisions_of(problem, nearest, 0),
        nearest_limits=() if nearest is None else limits_of(problem, evaluate(problem, nearest), 0),
        points=tally.points,
    )


def _count(
    problem: Problem, plans: DecisionArrays, tally: _Tally, *, pools_only: bool = False
) -> None:
    outcome = evaluate(problem, plans)
    count = len(plans)
    ratios: list[Floats] = []
    for value, limit in outcome.limits.values():
        top = np.broadcast_to(np.asarray(limit, dtype=float), (count,))
        reached = np.broadcast_to(np.asarray(value, dtype=float), (count,))
        # Over a limit of 0 a ratio says nothing: its excess counts in the limit's own unit.
        ratio = np.where(top > 0, reached / np.where(top > 0, top, 1.0), 1.0 + reached)
        ratio = np.where((top <= 0) & (reached <= 0), 0.0, ratio)
        ratios.append(np.where(np.isnan(ratio), np.inf, ratio))
    table = np.asarray(ratios)
    broken = table > 1.0 + ROUNDING
    for i, name in enumerate(tally.names):
        if pools_only and not name.startswith(POOL):
            continue
        tally.least_alone[name] = min(tally.least_alone.get(name, np.inf), float(table[i].min()))
        value, limit = list(outcome.limits.values())[i]
        others = np.flatnonzero(~np.any(np.delete(broken, i, axis=0), axis=0))
        if problem.system.money.reserved and name.startswith(POOL):
            needed = np.broadcast_to(value, (count,))
            others = _affordable(problem, name.removeprefix(POOL), plans, others, needed)
        if others.size:
            at = others[np.argmin(table[i, others])]
            entry = (
                float(table[i, at]),
                float(np.broadcast_to(value, (count,))[at]),
                float(np.broadcast_to(limit, (count,))[at]),
            )
            known = tally.least_when_others_hold.get(name)
            if known is None or entry[0] < known[0]:
                tally.least_when_others_hold[name] = entry
    if pools_only:
        return
    tally.points += count
    patterns = np.unique(broken.T, axis=0)
    tally.patterns |= {
        frozenset(n for n, bad in zip(tally.names, row, strict=True) if bad) for row in patterns
    }
    excess = np.sum(np.where(broken, np.minimum(table, 1e6) - 1.0, 0.0), axis=0)
    many = np.sum(broken, axis=0)
    at = int(np.lexsort((excess, many))[0])
    place = (int(many[at]), float(excess[at]))
    if tally.nearest is None or place < tally.nearest[0]:
        tally.nearest = (place, plans.take(np.asarray([at])))


def _affordable(
    problem: Problem, pool: str, plans: DecisionArrays, candidates: Ints, gpus: Floats
) -> Ints:
    """Return the candidates that keep every limit in a pool of the size they need.

    A reserved pool is paid for whole, so that a larger one may break a budget.
    """
    kept = [np.empty(0, dtype=candidates.dtype)]
    for size in np.unique(gpus[candidates]):
        at = candidates[gpus[candidates] == size]
        pools = tuple(
            replace(p, gpus=int(size)) if p.name == pool else p for p in problem.system.pools
        )
        larger = replace(problem, system=replace(problem.system, pools=pools))
        kept.append(at[evaluate(larger, plans.take(at)).feasible])
    return np.concatenate(kept)


def _smallest_conflict(names: tuple[str, ...], patterns: set[frozenset[str]]) -> tuple[str, ...]:
    """Smallest set of limits of which every plan breaks at least one (a smallest hitting set)."""
    from itertools import combinations

    for size in range(1, len(names) + 1):
        for chosen in combinations(names, size):
            if all(pattern & set(chosen) for pattern in patterns):
                return chosen
    return names
