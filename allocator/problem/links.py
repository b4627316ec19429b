"""What moves between GPUs: weights to the engines, states at a change of roles, KV caches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from allocator.physics.decode import Floats
from allocator.physics.kv_memory import BYTES_PER_VALUE
from allocator.physics.weight_sync import weight_sync_s
from allocator.problem.engine_kinds import disaggregated
from allocator.problem.model_facts import ModelFacts
from allocator.problem.passes import adapter_params
from allocator.problem.system import EngineKinds, Pool, TrainerKinds

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.schema import Scenario

#: Effective bandwidth of a weight transfer when the scenario gives none: 470 GB of Qwen3-235B in
#: 23.7 s between 64 + 64 H20 with a checkpoint engine; 58.6 s plain (low), 11.4 s as a delta over
#: NCCL (high). verl documentation 2026 and Marin issues 2026; kind measured.
SYNC_BYTES_PER_S = (19.8e9, 8.0e9, 41.0e9)
#: Bandwidth of one GPU to the memory of its host, value, low, high: PCIe 5.0 x16 carries 64 GB/s
#: each way, copies of many small tensors and shared roots reach less; kind assumed.
HOST_BYTES_PER_S = (25e9, 10e9, 50e9)
#: Bytes/s of one Gbit/s.
GBIT_BYTES_PER_S = 1e9 / 8.0


class Links:
    """Stated bandwidths between pools, each entered in the ledger when it is first used."""

    def __init__(self, scenario: Scenario, pools: tuple[Pool, ...], ledger: Ledger) -> None:
        self._stated = {
            frozenset(link.between): (f"hardware.links[{place}].gbit_per_s", link.gbit_per_s)
            for place, link in enumerate(scenario.hardware.links)
        }
        self._names = [pool.name for pool in pools]
        self._ledger = ledger

    def bytes_per_s(self, first: float, second: float) -> float:
        """Bandwidth between two pools, by their places; inf inside one and where none is stated."""
        stated = self._stated.get(frozenset((self._names[int(first)], self._names[int(second)])))
        if first == second or stated is None:
            return math.inf
        path, rate = stated
        return GBIT_BYTES_PER_S * self._ledger.quantity(path, rate, "Gbit/s")


def sync_s(
    scenario: Scenario,
    model: ModelFacts,
    trainers: TrainerKinds,
    engines: EngineKinds,
    links: Links,
    ledger: Ledger,
) -> Floats:
    """Seconds of one weight transfer, by trainer kind (rows) and engine kind (columns).

    What is sent is what the engine holds, or the adapters alone in BF16; the link between the two
    pools bounds the effective bandwidth of the whole transfer.
    """
    said = scenario.algorithm.weight_sync
    if said.gb_per_s is None:
        value, low, high = SYNC_BYTES_PER_S
        rate = ledger.number(
            "default/weight_sync_bytes_per_s",
            value,
            "byte/s",
            kind="measured",
            source="235B weight transfers, verl documentation and Marin issues 2026",
            low=low,
            high=high,
        )
    else:
        rate = 1e9 * ledger.quantity("algorithm.weight_sync.gb_per_s", said.gb_per_s, "GB/s")
    adapters = adapter_params(scenario, model)
    fixed = ledger.quantity("algorithm.weight_sync.fixed_s", said.fixed_s, "s")

    def payload(weights_dtype: str) -> float:
        if adapters is None:
            return model.weight_bytes(weights_dtype)
        return adapters * BYTES_PER_VALUE["bf16"]

    return np.asarray(
        [
            [
                float(
                    weight_sync_s(
                        payload(label.weights_dtype),
                        min(rate, links.bytes_per_s(trainer, label.pool)),
                        fixed,
                    )
                )
                for label in engines.labels
            ]
            for trainer, _ in trainers.labels
        ]
    )


def switch_s(
    scenario: Scenario,
    pools: tuple[Pool, ...],
    trainers: TrainerKinds,
    engines: EngineKinds,
    ledger: Ledger,
) -> Floats:
    """Seconds a step loses when its GPUs change roles, by trainer kind and engine kind.

    offload + onload, as stated or else over the link to host memory: the engine's weights leave
    (its cache is dropped), the trainer's state comes back. The way there runs beside the weight
    sync, which is charged by itself. The state is taken to be spread over the whole pool; on part
    of it there is more of it on each GPU. Infinite where trainer and engine are of different
    pools, or no mode of the scenario changes roles.
    """
    shape = (len(trainers.labels), len(engines.labels))
    if "colocated_sync" not in scenario.algorithm.modes:
        return np.full(shape, math.inf)
    said = scenario.algorithm.switch
    offload, onload = (
        None
        if getattr(said, name) is None
        else ledger.quantity(f"algorithm.switch.{name}", getattr(said, name), "s")
        for name in ("offload_s", "onload_s")
    )
    host = math.inf
    if offload is None or onload is None:
        value, low, high = HOST_BYTES_PER_S
        host = ledger.number(
            "assumed/host_bytes_per_s",
            value,
            "byte/s",
            kind="assumed",
            source="a GPU's link to host memory (allocator.problem.links)",
            low=low,
            high=high,
        )
    gpus = np.asarray([pools[index].gpus for index, _ in trainers.labels], dtype=float)
    leaving = engines.weights_bytes_per_gpu / host if offload is None else offload
    coming = trainers.state_bytes / gpus[:, None] / host if onload is None else onload
    seconds = np.broadcast_to(leaving + coming, shape)
    same = trainers.pool[:, None] == engines.pool[None, :]
    return np.where(same, seconds, math.inf)


def kv_links(
    scenario: Scenario, pools: tuple[Pool, ...], engines: EngineKinds, links: Links
) -> tuple[Floats, Floats]:
    """Bytes/s of one prefill engine (rows) to decode engines (columns), and of all of them.

    One engine sends at the network rate of the slower of the two, at most at that of the link
    between their pools, which all engines share. Infinite where prefill is never apart.

    Raises
    ------
    ScenarioError
        When prefill may be apart and a profile has no network rate.
    """
    shape = (len(engines.labels), len(engines.labels))
    if not disaggregated(scenario):
        return np.full(shape, math.inf), np.full(shape, math.inf)
    for label, rate in zip(engines.labels, engines.network_bytes_per_s, strict=True):
        if math.isnan(rate):
            gpu = pools[label.pool].gpu
            raise scenario.error(
                "engine.disaggregation",
                f"never: KV caches would move at gpus/{gpu}.network_bytes_per_s, which no source "
                "gives",
                scenario.engine.disaggregation,
            )
    total = np.asarray(
        [[links.bytes_per_s(a.pool, b.pool) for b in engines.labels] for a in engines.labels]
    )
    network = engines.network_bytes_per_s
    return np.minimum(np.minimum(network[:, None], network[None, :]), total), total
