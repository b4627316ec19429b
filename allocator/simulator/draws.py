"""Random numbers of one replication, drawn in blocks, one stream for each purpose."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from allocator.physics.lengths import Lengths
from allocator.simulator.line import Groups, SimulatedLine

_BLOCK = 16_384


class Draws:
    """Streams of a replication; a change of one part of the line leaves the others' alone.

    Attributes
    ----------
    lengths : (tokens, whether the rollout lies beyond the cut of surplus groups).
    tools : seconds of a tool call. uniform : shares in [0, 1). factors : of the trainer's seconds.
    signals : whether a group's rewards differ.
    """

    def __init__(self, line: SimulatedLine, seed: np.random.SeedSequence) -> None:
        random = [np.random.default_rng(child) for child in seed.spawn(5)]
        groups, stream = line.groups, line.mode == "async"
        level = 1.0
        if stream and groups.by == "group" and groups.oversampling > 1.0:
            level = groups.oversampling ** (-1.0 / groups.size)
        self.lengths = _lengths(random[0], line.rollouts.lengths, level)
        self.tools = _seconds(random[1], line.rollouts.tool_call)
        self.uniform = _uniform(random[2])
        self.factors = _factors(random[3], line.trainer.step_cv)
        self.signals = _signals(random[4], groups)


def _lengths(
    random: np.random.Generator, law: Lengths, level: float
) -> Iterator[tuple[float, bool]]:
    """Lengths, stopped at the quantile of `level`, and whether their rank lies beyond it."""
    while True:
        ranks = random.random(_BLOCK)
        tokens = np.asarray(law.quantile(np.minimum(ranks, level)))
        yield from zip(tokens.tolist(), (ranks > level).tolist(), strict=True)


def _seconds(random: np.random.Generator, law: Lengths | None) -> Iterator[float]:
    while law is not None:
        yield from np.asarray(law.quantile(random.random(_BLOCK))).tolist()


def _uniform(random: np.random.Generator) -> Iterator[float]:
    while True:
        yield from random.random(_BLOCK).tolist()


def _factors(random: np.random.Generator, cv: float) -> Iterator[float]:
    while cv == 0.0:
        yield 1.0
    shape = cv**-2.0
    while True:
        yield from (random.gamma(shape, size=_BLOCK) / shape).tolist()


def _signals(random: np.random.Generator, groups: Groups) -> Iterator[bool]:
    solving = groups.solving
    while solving is None:
        yield True
    while True:
        kind, rest = random.random(_BLOCK), random.beta(solving.alpha, solving.beta, _BLOCK)
        rest = np.where(kind < solving.always + solving.never, 0.0, rest)
        solved = random.binomial(groups.size, np.where(kind < solving.always, 1.0, rest))
        yield from ((solved > 0) & (solved < groups.size)).tolist()
