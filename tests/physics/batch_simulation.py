"""List scheduling of a batch on engines with slots, apart from any law it checks.

Every engine starts as many samples as it has slots; each decode step costs what the decode law
says at the number and the contexts of that moment; where a sample ends the next one waiting starts
after its prefill, which stops the others. The batch ends when enough samples, or groups of
neighbours, are done on all engines together.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocator.physics.decode import DecodeLaw
from allocator.physics.lengths import Lengths

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """A batch: engines with `samples` each, as many at once as there are `slots`."""

    law: DecodeLaw
    lengths: Lengths
    engines: int
    samples: int
    slots: int
    prompt_tokens: float = 1000.0
    prefill_s: float = 0.0
    wanted: int | None = None  # samples that end the batch; all by default
    group_size: int = 1


def engine_ends(batch: Batch, tokens: Array) -> tuple[Array, Array]:
    """Seconds and steps after which each sample of one engine ends."""
    law, waiting = batch.law, min(batch.slots, len(tokens))
    seconds, step = waiting * batch.prefill_s, 0.0
    running = [(float(tokens[i]), i) for i in range(waiting)]
    heapq.heapify(running)
    begun = dict.fromkeys(range(waiting), 0.0)
    written = 0.0  # tokens of those running
    ends, steps = np.zeros(len(tokens)), np.zeros(len(tokens))
    while running:
        n, ahead = len(running), running[0][0] - step
        fixed = law.alpha_s + law.expert_s * (1.0 - law.expert_miss**n) + law.beta_s * n
        context = n * batch.prompt_tokens * ahead + written * ahead + n * ahead**2 / 2.0
        seconds += ahead * fixed + law.gamma_s_per_token * context
        written += n * ahead
        step = running[0][0]
        while running and running[0][0] == step:
            _, ended = heapq.heappop(running)
            ends[ended], steps[ended] = seconds, step
            written -= step - begun.pop(ended)
            if waiting < len(tokens):
                heapq.heappush(running, (step + float(tokens[waiting]), waiting))
                begun[waiting] = step
                seconds += batch.prefill_s
                waiting += 1
    return ends, steps


def simulate(batch: Batch, runs: int, seed: int) -> tuple[Array, Array]:
    """Return the seconds of `runs` batches, and the mean length of the samples each keeps."""
    random, total = np.random.default_rng(seed), batch.engines * batch.samples
    wanted = total if batch.wanted is None else batch.wanted
    seconds, kept = np.zeros(runs), np.zeros(runs)
    for run in range(runs):
        tokens = np.asarray(batch.lengths.quantile(random.random((batch.engines, batch.samples))))
        ends = np.concatenate([engine_ends(batch, row)[0] for row in tokens])
        groups = ends.reshape(-1, batch.group_size).max(axis=1)
        first = np.argsort(groups)[: wanted // batch.group_size]
        seconds[run] = groups[first[-1]]
        kept[run] = tokens.reshape(-1, batch.group_size)[first].mean()
    return seconds, kept
