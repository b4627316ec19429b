"""Sandboxes of the environment: how many, how fast they start, how often they fail."""

from __future__ import annotations

from pydantic import model_validator

from allocator.scenario.dead_keys import refuse_dead_keys
from allocator.scenario.quantity import Count, NonNegative, Positive, WholeFromZero, assumed
from allocator.scenario.section import Section, Text, key, refuse
from allocator.scenario.table import SecondsOrTable, ShareOrTable

NO_SANDBOX = "none"
LOCAL = "local"


class SandboxHost(Section):
    """The machines that run all local sandboxes together."""

    cpus: Positive | None = key("CPU cores; not set: no limit", default=None)
    memory_gib: Positive | None = key("Memory; not set: no limit", unit="GiB", default=None)
    disk_gib: Positive | None = key("Disk; not set: no limit", unit="GiB", default=None)


class Sandbox(Section):
    """Sandboxes of the environment. Without a provider there are none.

    A table ``{concurrency: value}`` is held as (concurrency, value) pairs in ascending order; it
    is linear between its points and constant outside.
    """

    provider: Text = key(
        "Who runs the sandboxes: none, local, custom or a provider of the catalogue",
        default=NO_SANDBOX,
    )
    per_rollout: Count = key("Sandboxes of a rollout", unit="sandboxes", default=1)
    max_concurrent: Count | None = key(
        "Sandboxes that may run at the same time; not set: no quota", unit="sandboxes", default=None
    )
    start_s: SecondsOrTable = key(
        "Time a sandbox takes to start, or a table by sandboxes running",
        unit="s",
        default=assumed(8.0, "default: container with its image at hand", low=2.0, high=30.0),
    )
    failure_fraction: ShareOrTable = key(
        "Share of rollouts lost to their sandbox, or a table by sandboxes running",
        unit="fraction",
        default=assumed(0.0, "default: no sandbox fails"),
    )
    retries: WholeFromZero = key(
        "How often a lost rollout is started again before it is given up", default=3
    )
    timeout_s: Positive | None = key(
        "Longest time of a rollout in its sandbox; not set: no limit", unit="s", default=None
    )
    usd_per_hour: NonNegative = key(
        "Price of a sandbox",
        unit="USD per sandbox-hour",
        default=assumed(0.0, "default: sandboxes are not billed"),
    )
    credit_usd: Positive | None = key(
        "Money there is for sandboxes; not set: no limit", unit="USD", default=None
    )
    cpus: Positive | None = key("CPU cores of one sandbox", default=None)
    memory_gib: Positive | None = key("Memory of one sandbox", unit="GiB", default=None)
    disk_gib: Positive | None = key("Disk of one sandbox", unit="GiB", default=None)
    host: SandboxHost | None = key(
        "Machines that run all sandboxes of provider local; not set: no limit", default=None
    )

    @model_validator(mode="after")
    def _acted_on(self) -> Sandbox:
        if not self.used:
            refuse_dead_keys(
                self,
                ("provider",),
                "provider: none starts no sandbox (name one: local, custom or of the catalogue)",
            )
        if self.host is not None and self.provider != LOCAL:
            raise refuse(f"no host: provider {self.provider} runs no sandboxes on it", at=("host",))
        for name in SandboxHost.model_fields if self.host is not None else ():
            if getattr(self.host, name) is not None and getattr(self, name) is None:
                raise refuse(f"{name} of one sandbox beside host.{name}", None, at=(name,))
        if self.max_concurrent is not None and self.max_concurrent < self.per_rollout:
            raise refuse(
                f"a whole number >= per_rollout ({self.per_rollout})",
                self.max_concurrent,
                at=("max_concurrent",),
            )
        return self

    @property
    def used(self) -> bool:
        """Whether rollouts run in sandboxes."""
        return self.provider != NO_SANDBOX
