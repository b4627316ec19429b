"""Rules about sandboxes: quota, credit, and the host that runs them.

A sandbox lives as long as its rollout, so as many exist as places in flight are taken, times
`sandbox.per_rollout`. Far fewer are at work at the same time: those whose tool runs right now.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from allocator.audit.finding import Finding, Planned, said
from allocator.physics.sandbox import in_flight_quota

#: Share of sandboxes given out call by call that may be at work on average: calls come at random,
#: and beyond it they wait for each other (assumed; 80% is where queues of a few dozen servers
#: begin to be felt).
BUSY = 0.8
#: Share of rollouts that a timeout may cut before it is worth a word.
CUT_SHARE = 0.01
#: Resources of a host: key, code and unit.
RESOURCES = (
    ("cpus", "sandbox_cpus", "cores"),
    ("memory_gib", "sandbox_memory", "GiB of memory"),
    ("disk_gib", "sandbox_disk", "GiB of disk"),
)


def _places(planned: Planned, sandboxes: float) -> str:
    """Return the key and the largest value at which at most `sandboxes` exist."""
    rollouts = int(in_flight_quota(sandboxes, planned.scenario.sandbox.per_rollout))
    engines = planned.decoders.engines
    if rollouts < engines:
        return f"fewer than {engines:,} engines"
    if planned.in_flight_key == "plan.in_flight":
        return f"plan.in_flight: {rollouts:,}"
    return f"plan.in_flight_per_engine: {rollouts // engines:,}"


def _by_call(planned: Planned, room: float) -> str:
    """Return what sandboxes given out call by call would need; '' where no tool takes time.

    Little's law: rollouts/s x seconds of tools in a rollout = sandboxes at work at the same time.
    """
    seconds = planned.problem.system.workload.environment_s
    rate = planned.prediction.generated_samples_per_s
    at_work = rate * seconds
    if at_work == 0.0:
        return ""
    needed = math.ceil(at_work / BUSY)
    count = (
        f"{said(rate)} rollouts/s x {said(seconds)} s of tools = {said(at_work)} at work at the "
        f"same time, so {needed:,} sandboxes"
    )
    if needed <= room:
        return f"; given out call by call {count} are enough"
    slower = rate * math.floor(room) / needed
    return f"; even given out call by call it takes {count}, or at most {said(slower)} rollouts/s"


def quota_exceeded(planned: Planned) -> Iterator[Finding]:
    """More sandboxes at the same time than the account allows."""
    sandbox = planned.scenario.sandbox
    if sandbox.max_concurrent is None or planned.sandboxes <= sandbox.max_concurrent:
        return
    yield Finding(
        "sandbox_quota",
        "error",
        f"{planned.sandboxes // sandbox.per_rollout:,} rollouts in flight x {sandbox.per_rollout} "
        f"= {planned.sandboxes:,} sandboxes at the same time, and {sandbox.max_concurrent:,} are "
        "allowed: the rest queues at the provider or dies while starting",
        "sandbox.max_concurrent",
        f"{_places(planned, sandbox.max_concurrent)}, or sandbox.max_concurrent: "
        f"{planned.sandboxes:,}{_by_call(planned, sandbox.max_concurrent)}",
    )


def credit_runs_out(planned: Planned) -> Iterator[Finding]:
    """The credit of the account ends before the run does."""
    sandbox, run = planned.scenario.sandbox, planned.prediction.run
    if sandbox.credit_usd is None:
        return
    around = planned.prediction.environment
    needed, credit = around.sandbox_usd_per_hour * run.hours, sandbox.credit_usd.value
    # A run that nothing ends has no cost to compare.
    if not math.isfinite(needed) or needed <= credit:
        return
    yield Finding(
        "sandbox_credit",
        "error",
        f"{said(around.sandboxes)} sandboxes at ${said(sandbox.usd_per_hour.value)} an hour cost "
        f"${said(around.sandbox_usd_per_hour)}/h x {said(run.hours)} h = ${said(needed)}, and the "
        f"credit is ${said(credit)}: it ends after {said(credit / around.sandbox_usd_per_hour)} h",
        "sandbox.credit_usd",
        f"sandbox.credit_usd: {math.ceil(needed):,}, or "
        f"{_places(planned, planned.sandboxes * credit / needed)}",
    )


def host_too_small(planned: Planned) -> Iterator[Finding]:
    """Cores, memory or disk that all sandboxes together need, against those of the host."""
    sandbox = planned.scenario.sandbox
    if sandbox.host is None:
        return
    for key, code, unit in RESOURCES:
        each, whole = getattr(sandbox, key), getattr(sandbox.host, key)
        if each is None or whole is None:
            continue
        needed, room = each.value * planned.sandboxes, math.floor(whole.value / each.value)
        if needed <= whole.value:
            continue
        # Cores are shared between calls; memory and disk are held while a sandbox exists.
        shared = _by_call(planned, room) if key == "cpus" else ""
        yield Finding(
            code,
            "error",
            f"{planned.sandboxes:,} sandboxes x {said(each.value)} = {said(needed)} {unit}, and "
            f"the host has {said(whole.value)}: {room:,} fit",
            f"sandbox.host.{key}",
            f"{_places(planned, room)}, or sandbox.host.{key}: {math.ceil(needed):,}{shared}",
        )


def timeout_cuts(planned: Planned) -> Iterator[Finding]:
    """A timeout that ends rollouts which are merely long."""
    sandbox = planned.scenario.sandbox
    if sandbox.timeout_s is None:
        return
    timeout = sandbox.timeout_s.value
    share, tokens = planned.share_longer_than(timeout)
    if share <= CUT_SHARE:
        return
    lengths = planned.problem.system.workload.lengths
    longest_s = planned.duration_s(float(lengths.quantile(1.0 - CUT_SHARE)))
    yield Finding(
        "sandbox_timeout",
        "error" if share > 0.5 else "warning",
        f"{share:.1%} of rollouts, all of more than {tokens:,.0f} tokens, last longer than "
        f"{said(timeout)} s (mean {said(planned.mean_residence_s)} s): their sandboxes are ended "
        "under them",
        "sandbox.timeout_s",
        f"sandbox.timeout_s: {math.ceil(longest_s):,}, which {1 - CUT_SHARE:.0%} keep",
    )
