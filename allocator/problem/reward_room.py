"""Memory of a reward model: which GPUs hold it, and how many calls beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocator.physics.kv_memory import (
    BYTES_PER_VALUE,
    KvFootprint,
    engine_weights_bytes_per_gpu,
    kv_budget_bytes,
    kv_copies,
)
from allocator.plan import Layout
from allocator.problem.model_facts import ModelFacts
from allocator.problem.system import Pool

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.profiles import Catalogue, GpuProfile

#: Share of GPU memory that weights and cache of a reward model may fill; kind assumed (engines of
#: policies are run at 0.88; a server that mostly reads needs little room besides).
MEMORY_FRACTION = 0.9
#: Format of weights and cache of reward models.
DTYPE = "bf16"


@dataclass(frozen=True, slots=True)
class Call:
    """One call: tokens it reads, their second moment, tokens it writes and tokens it holds.

    `together` calls should have room on one engine at the same time.
    """

    reads: float
    reads_second: float
    writes: float
    holds: float
    together: float


@dataclass(frozen=True, slots=True)
class Place:
    """A pool that may hold the reward model, with its GPU and what of its memory may be filled."""

    index: int
    pool: Pool
    gpu: GpuProfile
    memory_bytes: float
    node_gpus: int


def reward_place(catalogue: Catalogue, pool: Pool, index: int, ledger: Ledger) -> Place:
    """Return what a pool offers a reward model."""
    gpu = catalogue.gpu(pool.gpu)
    fraction = ledger.number(
        "assumed/reward.memory_fraction",
        MEMORY_FRACTION,
        "1",
        kind="assumed",
        source="room for a reward model (allocator.problem.reward_room)",
    )
    hbm = ledger.datum(gpu.hbm_bytes, f"gpus/{gpu.id}.hbm_bytes")
    node = ledger.datum(gpu.gpus_per_node, f"gpus/{gpu.id}.gpus_per_node")
    return Place(index, pool, gpu, fraction * hbm, int(node))


def calls_that_fit(
    place: Place, model: ModelFacts, layout: Layout, expert_gpus: int, call: Call
) -> float:
    """Calls whose cache one engine holds beside the weights."""
    per_value = BYTES_PER_VALUE[DTYPE]
    weights = engine_weights_bytes_per_gpu(
        model.params_total,
        model.expert_params_total,
        per_value,
        per_value,
        tensor_parallel=layout.tp,
        pipeline_parallel=layout.pp,
        expert_gpus=expert_gpus,
    )
    budget = kv_budget_bytes(layout.tp * layout.dp, place.memory_bytes, 1.0, weights)
    copies = kv_copies(model.attention, model.kv_heads, layout.tp)
    whole = model.kv_values_per_token * per_value * copies
    share = model.window_share
    cache = KvFootprint(whole * (1.0 - share), whole * share, model.kv_window_tokens)
    return budget / float(cache.sequence_bytes(call.holds))


def smallest_engine(place: Place, model: ModelFacts, call: Call) -> tuple[int, float] | None:
    """Fewest GPUs with room for all calls together, else the most of a node with room for one."""
    most = min(place.node_gpus, place.pool.gpus)
    sizes = [2**k for k in range(most.bit_length())]
    rooms = [(gpus, calls_that_fit(place, model, Layout(tp=gpus), gpus, call)) for gpus in sizes]
    enough = [found for found in rooms if found[1] >= call.together]
    some = [found for found in rooms if found[1] >= 1.0]
    return enough[0] if enough else some[-1] if some else None
