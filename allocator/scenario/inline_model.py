"""A model described in the scenario itself, for models the catalogue does not hold."""

from __future__ import annotations

from pydantic import model_validator

from allocator.scenario.quantity import Count, Positive, Quantity
from allocator.scenario.section import Section, key, refuse


class InlineModel(Section):
    """Architecture of a dense or mixture-of-experts transformer, as far as planning needs it.

    The cache of a token needs either `kv_bytes_per_token`, or `kv_heads` and `head_dim`.
    """

    params_total: Positive = key("All parameters", unit="parameters")
    params_active: Positive | None = key(
        "Parameters used per token; not set: all of them (dense)", unit="parameters", default=None
    )
    layers: Count = key("Transformer layers")
    hidden: Count | None = key("Width of the residual stream", default=None)
    attention_heads: Count | None = key("Query heads per layer", default=None)
    kv_heads: Count | None = key("Key/value heads per layer", default=None)
    head_dim: Count | None = key("Size of one head", default=None)
    kv_bytes_per_token: Positive | None = key(
        "Cache of one token over all layers at the engine's kv_dtype, one copy",
        unit="bytes",
        default=None,
    )
    vocab: Count | None = key("Entries of the vocabulary", default=None)
    experts: Count | None = key("Routed experts per layer; not set: dense", default=None)
    experts_per_token: Count | None = key("Routed experts a token visits", default=None)

    @model_validator(mode="after")
    def _complete(self) -> InlineModel:
        total, active = self.params_total, self.params_active
        if active is not None and active.value > total.value:
            raise refuse(
                f"a number <= params_total ({total.value:g})", active.value, at=("params_active",)
            )
        if self.kv_bytes_per_token is None and (self.kv_heads is None or self.head_dim is None):
            raise refuse("kv_bytes_per_token, or both kv_heads and head_dim")
        if (self.experts is None) != (self.experts_per_token is None):
            raise refuse("experts and experts_per_token together")
        if (self.experts_per_token or 0) > (self.experts or 0):
            raise refuse(
                f"a whole number <= experts ({self.experts})",
                self.experts_per_token,
                at=("experts_per_token",),
            )
        return self

    @property
    def active(self) -> Quantity:
        """Parameters used per token, `params_total` for a dense model."""
        return self.params_total if self.params_active is None else self.params_active
