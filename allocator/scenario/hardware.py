"""Pools of GPUs and what an hour of them costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Tag, field_validator, model_validator

from allocator.scenario.errors import nearest_of
from allocator.scenario.quantity import Count, NonNegative, Positive, Share
from allocator.scenario.section import Section, Text, key, refuse

PublishedKind = Literal["owner_neocloud", "owner_hyperscaler", "rental"]
PRICE_KINDS = (*get_args(PublishedKind), "ownership")

Role = Literal["trainer", "decode"]
ROLES: tuple[Role, ...] = get_args(Role)
# The contract's list of a pool that may do anything; a plan of this version uses the ROLES of it.
EVERY_ROLE = ("trainer", "prefill", "decode", "reward")


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


def _planned_roles(value: object) -> object:
    if isinstance(value, (list, tuple)) and all(isinstance(role, str) for role in value):
        if sorted(value) == sorted(EVERY_ROLE):
            return ROLES
        if not value or len(set(value)) < len(value):
            raise refuse(f"each of {', '.join(ROLES)} at most once, and one at least", value)
    return value


class Pool(Section):
    """GPUs of one kind that may be split between trainer and generator."""

    name: Text = key("Name of the pool in plans and limits; not set: its gpu", default="")
    gpu: Text = key("GPU id or alias of the catalogue")
    gpus: Count = key("GPUs of the pool", unit="GPUs")
    granularity: Literal["node", "gpu"] = key(
        "Smallest piece of the pool a role may take", default="node"
    )
    roles: Annotated[tuple[Role, ...], BeforeValidator(_planned_roles)] = key(
        "What the pool may be used for", default=ROLES
    )
    price: PriceChoice = key(
        "What a GPU-hour costs", default=PublishedPrice.model_construct(kind="rental")
    )

    @model_validator(mode="before")
    @classmethod
    def _named_after_gpu(cls, data: object) -> object:
        if isinstance(data, Mapping) and "name" not in data and isinstance(data.get("gpu"), str):
            return {"name": data["gpu"], **data}
        return data


class Hardware(Section):
    """The pools a plan may draw on."""

    billing: Literal["reserved", "on_demand"] = key(
        "Whether idle GPUs are paid for; on_demand needs a target or budget.hours",
        default="reserved",
    )
    pools: tuple[Pool, ...] = key("At least one pool, with a place for every role")

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
        for role in ROLES:
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

    def pool(self, name: str) -> Pool | None:
        """Return the pool called `name`, or None."""
        return next((pool for pool in self.pools if pool.name == name), None)
