"""Pools of GPUs and what an hour of them costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Tag,
    field_validator,
    model_validator,
)

from allocator.scenario.errors import nearest_of
from allocator.scenario.quantity import Count, NonNegative, Positive, Share, WholeFromZero
from allocator.scenario.section import Section, Text, key, refuse

PublishedKind = Literal["owner_neocloud", "owner_hyperscaler", "rental"]
PRICE_KINDS = (*get_args(PublishedKind), "ownership")

Role = Literal["trainer", "prefill", "decode", "reward"]
ROLES: tuple[Role, ...] = get_args(Role)
#: Roles that every plan has to place.
NEEDED_ROLES: tuple[Role, ...] = ("trainer", "decode")


class StatedPrice(Section):
    """A price the user knows."""

    usd_per_gpu_hour: Positive = key("Price of a GPU", unit="USD per GPU-hour")


class PublishedPrice(Section):
    """A price of the catalogue, by who pays it and when it was published."""

    kind: PublishedKind = key("Cost of ownership of a cloud, or market rent")
    vintage: Literal["2026-04", "2026-07", "2026-late"] = key(
        "Issue of the price list; one for all pools", default="2026-07"
    )
    usd_per_gpu_hour: Positive | None = key(
        "Price of a GPU; not set: the catalogue's", unit="USD per GPU-hour", default=None
    )


class OwnershipPrice(Section):
    """A price worked out from what a server costs to own."""

    kind: Literal["ownership"] = key("Owned servers")
    capex_usd_per_server: Positive = key(
        "Purchase of a server with its share of network", unit="USD"
    )
    gpus_per_server: Count = key("GPUs of a server", unit="GPUs", default=8)
    lifetime_years: Positive = key("Years until it is written off", unit="years")
    cost_of_capital: Share = key("Yearly cost of the capital in it", unit="fraction per year")
    other_usd_per_gpu_hour: NonNegative = key(
        "Power, colocation, staff and repair", unit="USD per GPU-hour"
    )


def _known_kind(value: object) -> object:
    if isinstance(value, Section):
        return value
    if not isinstance(value, Mapping):
        raise refuse("{usd_per_gpu_hour}, {kind, vintage} or {kind: ownership, ...}", value)
    kind = value.get("kind", "rental")
    if kind not in PRICE_KINDS:
        raise refuse(
            f"one of {', '.join(PRICE_KINDS)}",
            kind,
            at=("kind",),
            nearest=nearest_of(kind, PRICE_KINDS),
        )
    return value


def _price_form(value: object) -> str:
    if isinstance(value, Mapping):
        if value.get("kind") == "ownership":
            return "<OwnershipPrice>"
        return "<PublishedPrice>" if "kind" in value or "vintage" in value else "<StatedPrice>"
    return f"<{type(value).__name__}>"


Price = StatedPrice | PublishedPrice | OwnershipPrice

PriceChoice = Annotated[
    Annotated[StatedPrice, Tag("<StatedPrice>")]
    | Annotated[PublishedPrice, Tag("<PublishedPrice>")]
    | Annotated[OwnershipPrice, Tag("<OwnershipPrice>")],
    Discriminator(_price_form),
    BeforeValidator(_known_kind),
]


def _distinct(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    if not roles or len(set(roles)) < len(roles):
        raise refuse(f"each of {', '.join(ROLES)} at most once, and one at least", roles)
    return roles


class Pool(Section):
    """GPUs of one kind that may be split between the roles of a run."""

    name: Text = key("Name of the pool in plans and limits; not set: its gpu", default="")
    gpu: Text = key("GPU id or alias of the catalogue")
    gpus: Count = key("GPUs of the pool", unit="GPUs")
    granularity: Literal["node", "gpu"] = key(
        "Smallest piece of the pool a role may take", default="node"
    )
    roles: Annotated[tuple[Role, ...], AfterValidator(_distinct)] = key(
        "What the pool may be used for", default=ROLES
    )
    price: PriceChoice = key(
        "What a GPU-hour costs", default=PublishedPrice.model_construct(kind="rental")
    )
    spare_gpus: WholeFromZero = key(
        "GPUs of the pool kept as spares: paid for, and used by no role", unit="GPUs", default=0
    )

    @model_validator(mode="before")
    @classmethod
    def _named_after_gpu(cls, data: object) -> object:
        if isinstance(data, Mapping) and "name" not in data and isinstance(data.get("gpu"), str):
            return {"name": data["gpu"], **data}
        return data

    @model_validator(mode="after")
    def _some_in_use(self) -> Pool:
        if self.spare_gpus >= self.gpus:
            raise refuse(
                f"a whole number < gpus ({self.gpus})", self.spare_gpus, at=("spare_gpus",)
            )
        return self


def _two_pools(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) != 2 or names[0] == names[1]:
        raise refuse("the names of two different pools", names)
    return names


class Link(Section):
    """The network between two pools."""

    between: Annotated[tuple[Text, ...], AfterValidator(_two_pools)] = key(
        "Names of the two pools, in any order"
    )
    gbit_per_s: Positive = key("Bandwidth for all traffic between them", unit="Gbit/s")


class Hardware(Section):
    """The pools a plan may draw on."""

    billing: Literal["reserved", "on_demand"] = key(
        "Whether idle GPUs are paid for; on_demand needs a target or budget.hours",
        default="reserved",
    )
    pools: tuple[Pool, ...] = key("At least one pool, with a place for trainer and decode")
    links: tuple[Link, ...] = key(
        "Bandwidth between pools, where it is less than their own networks carry", default=()
    )

    @field_validator("pools", mode="after")
    @classmethod
    def _usable(cls, pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
        if not pools:
            raise refuse("at least one pool", [])
        seen: set[str] = set()
        for place, pool in enumerate(pools):
            if pool.name in seen:
                raise refuse("a name no other pool has", pool.name, at=(place, "name"))
            seen.add(pool.name)
        for role in NEEDED_ROLES:
            if not any(role in pool.roles for pool in pools):
                raise refuse(f"a pool with the role {role}", [pool.name for pool in pools])
        return pools

    @field_validator("pools", mode="after")
    @classmethod
    def _one_vintage(cls, pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
        first: str | None = None
        for place, pool in enumerate(pools):
            if not isinstance(pool.price, PublishedPrice):
                continue
            first = first or pool.price.vintage
            if pool.price.vintage != first:
                raise refuse(
                    f"{first}, the vintage of the first pool (price lists are not mixed)",
                    pool.price.vintage,
                    at=(place, "price", "vintage"),
                )
        return pools

    @model_validator(mode="after")
    def _known_links(self) -> Hardware:
        names = [pool.name for pool in self.pools]
        linked: set[frozenset[str]] = set()
        for place, link in enumerate(self.links):
            for end, name in enumerate(link.between):
                if name not in names:
                    raise refuse(
                        f"the name of a pool: {', '.join(names)}",
                        name,
                        at=("links", place, "between", end),
                        nearest=nearest_of(name, names),
                    )
            pair = frozenset(link.between)
            if pair in linked:
                raise refuse(
                    "one link for a pair of pools", link.between, at=("links", place, "between")
                )
            linked.add(pair)
        return self

    def pool(self, name: str) -> Pool | None:
        """Return the pool called `name`, or None."""
        return next((pool for pool in self.pools if pool.name == name), None)
