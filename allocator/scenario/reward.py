"""The reward: who scores a rollout, where, and what a scoring call costs."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from allocator.scenario.dead_keys import refuse_dead_keys
from allocator.scenario.quantity import Count, NonNegative, Positive, PositiveShare, assumed
from allocator.scenario.section import Flag, Section, Text, key, refuse

RewardType = Literal["sparse", "structured", "dense", "proxy_prm", "prm", "llm_judge"]
Placement = Literal["cpu", "shared_engine", "own_gpus", "api"]

#: Where each type may be computed; the first holds when nothing is stated. Rules need no model;
#: the engines of the generator hold the policy alone, which is what a proxy scores with.
PLACEMENTS: dict[RewardType, tuple[Placement, ...]] = {
    "sparse": ("cpu",),
    "structured": ("cpu",),
    "dense": ("cpu",),
    "proxy_prm": ("shared_engine", "own_gpus"),
    "prm": ("own_gpus", "api"),
    "llm_judge": ("own_gpus", "api"),
}
#: Keys acted on for any type and place.
_ALWAYS = ("type", "placement", "calls", "latency_s", "overlap")
#: Further keys acted on at each place.
_AT: dict[Placement, tuple[str, ...]] = {
    "cpu": ("cpu_s", "workers"),
    "shared_engine": ("tokens",),
    "own_gpus": ("model", "tokens", "hfu"),
    "api": ("model", "tokens", "usd_per_mtok", "max_per_s"),
}
#: Types that score after every turn when the calls are not stated.
_EVERY_TURN = ("dense", "proxy_prm")


class RewardTokens(Section):
    """What one scoring call reads and writes."""

    input: NonNegative | None = key(
        "Tokens a call reads; not set: the whole sequence", unit="tokens", default=None
    )
    output: NonNegative = key(
        "Tokens a call writes", unit="tokens", default=assumed(0.0, "default: a score, no text")
    )


class RewardPrice(Section):
    """What a hosted scoring model costs."""

    input: NonNegative = key("Price of tokens read", unit="USD per million tokens")
    output: NonNegative = key("Price of tokens written", unit="USD per million tokens")


class Reward(Section):
    """The reward of a rollout.

    Rules (`sparse`, `structured`, `dense`) are computed on CPUs. `proxy_prm` scores with the
    policy's own engines, `prm` reads the sequence with a model of its own, `llm_judge` asks a
    model that may also write.
    """

    type: RewardType = key("Kind of reward", default="sparse")
    cpu_s: NonNegative = key(
        "CPU time of one scoring call; placement cpu only",
        unit="s",
        default=assumed(0.0, "default: rule checked at once"),
    )
    calls: Positive | None = key(
        "Scoring calls of a rollout; not set: 1, with dense and proxy_prm one a turn",
        unit="calls",
        default=None,
    )
    workers: Count | None = key(
        "Calls computed at the same time; placement cpu only; not set: no limit",
        unit="calls",
        default=None,
    )
    latency_s: NonNegative = key(
        "Fixed delay of a scoring call besides its computation",
        unit="s",
        default=assumed(0.0, "default: no further delay"),
    )
    model: Text | None = key(
        "Catalogue id of the model that scores; needed by prm, and by proxy_prm and llm_judge on "
        "own_gpus",
        default=None,
    )
    placement: Placement | None = key(
        "Where it is computed; not set: cpu for rules, shared_engine for proxy_prm, api for prm "
        "and llm_judge with usd_per_mtok, own_gpus for them without",
        default=None,
    )
    tokens: RewardTokens = key(
        "Tokens of a scoring call of a model", default=RewardTokens.model_construct()
    )
    usd_per_mtok: RewardPrice | None = key(
        "Price of the hosted model; placement api only, and needed there", default=None
    )
    hfu: PositiveShare = key(
        "Share of peak FLOPs that scoring reaches; placement own_gpus only",
        unit="fraction",
        default=assumed(0.4, "default: prefill-only scoring in large batches", low=0.25, high=0.55),
    )
    max_per_s: Positive | None = key(
        "Rate limit of the hosted model; placement api only; not set: no limit",
        unit="calls per s",
        default=None,
    )
    overlap: Flag = key(
        "Whether scoring overlaps generation in the modes that generate batch by batch (in async "
        "it always does)",
        default=True,
    )

    @model_validator(mode="after")
    def _computable(self) -> Reward:
        legal = PLACEMENTS[self.type]
        if self.placement is not None and self.placement not in legal:
            raise refuse(
                f"{' or '.join(legal)}, where a reward of type {self.type} is computed",
                self.placement,
                at=("placement",),
                nearest=legal[0],
            )
        place = self.resolved_placement
        alive = (*_ALWAYS, *_AT[place])
        refuse_dead_keys(
            self, alive, f"a reward of type {self.type} on {place} acts on {', '.join(alive)}"
        )
        writes = self.tokens.output.value > 0.0 and place == "own_gpus"
        if writes:
            refuse_dead_keys(
                self,
                tuple(name for name in type(self).model_fields if name != "hfu"),
                "a judge that writes runs at the rates of its engine",
            )
        needs_model = place == "own_gpus" or self.type == "prm"
        if needs_model and self.model is None:
            raise refuse(
                f"the id of the model that scores, with type {self.type} on {place}",
                None,
                at=("model",),
            )
        if place == "api" and self.usd_per_mtok is None:
            raise refuse("{input, output}, with placement api", None, at=("usd_per_mtok",))
        return self

    @property
    def resolved_placement(self) -> Placement:
        """Where the reward is computed: as stated, or as its type implies."""
        if self.placement is not None:
            return self.placement
        legal = PLACEMENTS[self.type]
        return "api" if self.usd_per_mtok is not None and "api" in legal else legal[0]

    def resolved_calls(self, turns: int) -> float:
        """Return the scoring calls of a rollout of `turns` turns."""
        if self.calls is not None:
            return self.calls.value
        return float(turns) if self.type in _EVERY_TURN else 1.0
