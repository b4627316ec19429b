"""Lengths of rollouts that are stopped early: the same law with a lower cap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allocator.physics.length_tables import Empirical, QuantileTable
from allocator.physics.lengths import CappedLogNormal, Lengths, check_cap


def cut_at(lengths: Lengths, cut_tokens: float) -> Lengths:
    """Return the law of min(L, cut): every rollout that would be longer ends at the cut.

    What lies below the cut is untouched; all mass above it becomes an atom there, so that
    `truncated_fraction` counts it.

    Parameters
    ----------
    lengths : a log-normal, a sample or a table of quantiles.
    cut_tokens : > 0; at or above the cap it changes nothing.

    Raises
    ------
    ValueError
        A cut that is no positive number, or a law of another family.

    Examples
    --------
    >>> from allocator.physics.length_tables import empirical_from_samples
    >>> law = cut_at(empirical_from_samples([2.0, 4.0, 9.0]), 6.0)
    >>> law.mean, round(law.truncated_fraction, 4)
    (4.0, 0.3333)
    """
    check_cap(cut_tokens)
    cap = cut_tokens if lengths.cap is None else min(cut_tokens, lengths.cap)
    if isinstance(lengths, CappedLogNormal):
        return replace(lengths, cap=cap)
    if isinstance(lengths, Empirical):
        return Empirical(tuple(np.minimum(lengths.values, cap).tolist()), cap)
    if isinstance(lengths, QuantileTable):
        return _cut_table(lengths, cap)
    raise ValueError(f"no rule cuts a {type(lengths).__name__}")


def _cut_table(table: QuantileTable, cap: float) -> QuantileTable:
    """Follow the curve up to where it reaches the cap, and run flat from there."""
    if table.tokens[-1] <= cap:
        return replace(table, cap=cap)
    if table.tokens[0] >= cap:
        return QuantileTable((0.0, 1.0), (cap, cap), cap)
    kept = next(i for i, tokens in enumerate(table.tokens) if tokens >= cap)
    (low, high), (below, above) = (
        table.levels[kept - 1 : kept + 1],
        table.tokens[kept - 1 : kept + 1],
    )
    reached = low + (high - low) * (cap - below) / (above - below)
    levels, tokens = (*table.levels[:kept], reached), (*table.tokens[:kept], cap)
    if reached < 1.0:
        levels, tokens = (*levels, 1.0), (*tokens, cap)
    return QuantileTable(levels, tokens, cap)
