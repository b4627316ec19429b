"""Rules about keys: those that are set and change nothing, and scenarios without a scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocator.audit.finding import Finding, Planned
from allocator.plan import MODES

if TYPE_CHECKING:
    from allocator.scenario.schema import Scenario

#: Modes that hand over batch by batch.
BY_BATCH = tuple(mode for mode in MODES if mode != "async")


@dataclass(frozen=True, slots=True)
class Knob:
    """A key that has no effect beside others.

    Attributes
    ----------
    path : of the key.
    dead : whether it is set, away from its default, and without effect.
    because : why.
    remedy : what gives it an effect, as a request; leaving it out is always the other way.
    """

    path: str
    dead: Callable[[Scenario], bool]
    because: str
    remedy: str


def _not_default(scenario: Scenario, path: str) -> bool:
    """Whether a key differs from what it is when a file does not state it."""
    node: object = scenario
    *above, last = path.split(".")
    for name in above:
        node = getattr(node, name)
        if node is None:
            return False
    default = type(node).model_fields[last].default  # type: ignore[attr-defined]
    return bool(getattr(node, last) != default)


def _stated(path: str, without_effect: Callable[[Scenario], bool]) -> Callable[[Scenario], bool]:
    return lambda scenario: _not_default(scenario, path) and without_effect(scenario)


def _knob(path: str, without_effect: Callable[[Scenario], bool], because: str, remedy: str) -> Knob:
    return Knob(path, _stated(path, without_effect), because, remedy)


def _in_step(scenario: Scenario) -> bool:
    return scenario.algorithm.mode in BY_BATCH


def _nothing_cancelled(scenario: Scenario) -> bool:
    return scenario.algorithm.oversampling == 1.0 and scenario.plan.oversampling in (None, 1.0)


def _nothing_lost(scenario: Scenario) -> bool:
    lost = scenario.sandbox.failure_fraction
    return scenario.sandbox.timeout_s is None and not isinstance(lost, tuple) and lost.value == 0.0


def _host_lacks(name: str) -> Callable[[Scenario], bool]:
    return lambda s: s.sandbox.host is None or getattr(s.sandbox.host, name) is None


KNOBS: tuple[Knob, ...] = (
    _knob(
        "algorithm.oversampling_by",
        _nothing_cancelled,
        "oversampling is 1, so no surplus is dispatched",
        "state algorithm.oversampling: more than 1",
    ),
    _knob(
        "algorithm.dynamic_sampling",
        lambda s: s.workload.solve_rate is None,
        "without workload.solve_rate every group carries signal, so none is dropped or replaced",
        "state workload.solve_rate",
    ),
    _knob(
        "queue.capacity_batches",
        lambda s: s.staleness.enforce == "admission",
        "with staleness.enforce: admission new rollouts are paced by the limit, and the queue "
        "holds what that leaves",
        "use staleness.enforce: design",
    ),
    _knob(
        "queue.capacity_batches",
        _in_step,
        "this mode hands each batch over as a whole, without a queue",
        "use algorithm.mode: async",
    ),
    _knob(
        "engine.backend",
        lambda s: s.engine.rates is not None,
        "engine.rates are used whatever the backend is called",
        "leave engine.rates out to take the backend's profile",
    ),
    _knob(
        "engine.backend_version",
        lambda s: s.engine.rates is not None,
        "engine.rates are used whatever the version is called",
        "leave engine.rates out to take the version's profile",
    ),
    _knob(
        "engine.estimate",
        lambda s: s.engine.rates is not None,
        "engine.rates are given, so nothing is estimated",
        "leave engine.rates out",
    ),
    _knob(
        "sandbox.retries",
        _nothing_lost,
        "no sandbox fails and no timeout ends one: there is nothing to start again",
        "state sandbox.failure_fraction",
    ),
    _knob(
        "sandbox.credit_usd",
        lambda s: s.sandbox.usd_per_hour.value == 0.0,
        "sandbox.usd_per_hour is 0: no credit is used up",
        "state the price of a sandbox in sandbox.usd_per_hour",
    ),
    _knob(
        "sandbox.memory_gib",
        _host_lacks("memory_gib"),
        "the memory of the host is not stated, so nothing is compared with it",
        "state sandbox.host.memory_gib",
    ),
    _knob(
        "sandbox.disk_gib",
        _host_lacks("disk_gib"),
        "the disk of the host is not stated, so nothing is compared with it",
        "state sandbox.host.disk_gib",
    ),
    _knob(
        "sandbox.cpus",
        _host_lacks("cpus"),
        "the processors of the host are not stated, so nothing is compared with them",
        "state sandbox.host.cpus",
    ),
)


def dead_knobs(scenario: Scenario) -> Iterator[Finding]:
    """Keys away from their default that have no effect beside the other keys."""
    for knob in KNOBS:
        if knob.dead(scenario):
            yield Finding(
                "dead_knob",
                "warning",
                f"{knob.path} has no effect: {knob.because}",
                knob.path,
                f"leave it out, or {knob.remedy}",
            )


def one_engine_scope(planned: Planned) -> Iterator[Finding]:
    """A limit over all engines where there is one engine."""
    if planned.scenario.algorithm.dispatch_scope == "engine":
        return
    if planned.decisions.generator.engines > 1:
        return
    yield Finding(
        "dead_knob",
        "note",
        "algorithm.dispatch_scope has no effect: this plan has one engine",
        "algorithm.dispatch_scope",
        "leave it out",
    )


def no_scale(scenario: Scenario) -> Iterator[Finding]:
    """A cost per token that falls with the size of the plan, and nothing that asks for a size."""
    if scenario.hardware.billing != "on_demand" or scenario.budget.target is not None:
        return
    if scenario.objective != "usd_per_useful_mtok":
        return
    yield Finding(
        "no_scale",
        "warning",
        "on demand only GPUs in use are paid for and no target is stated, so the cheapest token "
        "comes from the smallest plan: size is decided by what fits memory, not by the run",
        "budget.target",
        "budget.target: {steps: ...} beside budget.hours, or hardware.billing: reserved",
    )
