"""Records of sandbox providers: what they limit, charge and take to start, with its origin."""

from __future__ import annotations

from dataclasses import dataclass

from allocator.scenario.records import Datum


@dataclass(frozen=True, slots=True)
class SandboxLimit:
    """One limit of one plan of a provider.

    Attributes
    ----------
    name : str
        ``concurrent_sandboxes``, ``starts_per_s``, ``lifetime_s`` (of one sandbox), or the
        resources of all running sandboxes together: ``pool_vcpus``, ``pool_memory_bytes``,
        ``pool_disk_bytes``.
    plan : str
        Plan or tier as the provider calls it; ``all`` where it holds for every one.
    raised_by : str
        Who can raise it, and how.
    limit : Datum
        The limit with its unit and origin.
    """

    name: str
    plan: str
    raised_by: str
    limit: Datum


@dataclass(frozen=True, slots=True)
class SandboxStart:
    """Seconds of start-up that somebody reports; not an average unless `what` says so.

    `concurrency` is the number of sandboxes at that moment, None where it is not told.
    """

    what: str
    concurrency: float | None
    seconds: Datum


@dataclass(frozen=True, slots=True)
class SourcedNote:
    """A fact without a number, and who says so."""

    text: str
    source: str
    as_of: str | None


@dataclass(frozen=True, slots=True)
class SandboxProfile:
    """One provider of sandboxes; None and empty where no source gives the fact.

    Prices are those of the list, per hour that a sandbox runs: its vCPUs, and its GiB of memory
    and disk.
    """

    id: str
    aliases: tuple[str, ...] = ()
    vcpu_usd_per_hour: Datum | None = None
    memory_gib_usd_per_hour: Datum | None = None
    disk_gib_usd_per_hour: Datum | None = None
    limits: tuple[SandboxLimit, ...] = ()
    starts: tuple[SandboxStart, ...] = ()
    notes: tuple[SourcedNote, ...] = ()

    def limits_of(self, name: str) -> tuple[SandboxLimit, ...]:
        """Return the limits called `name`, one or more a plan, in the order of the source."""
        return tuple(limit for limit in self.limits if limit.name == name)
