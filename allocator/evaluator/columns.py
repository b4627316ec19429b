"""Computing a law once per distinct combination of its inputs and scattering the result.

A million plans share a few thousand engine and trainer configurations; the laws of those are
computed on the distinct ones only. The result is the same, entry by entry, as without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]

#: Keys are numbered by marking a table instead of sorting while it has at most this many places
#: per row.
TABLE_PLACES_PER_ROW = 8


@dataclass(frozen=True, slots=True)
class Distinct:
    """Distinct rows: `first` picks one plan of each, `inverse` maps plans to rows."""

    first: Index
    inverse: Index

    def pick(self, values: Any) -> Any:
        """Return `values` at one plan of each distinct row."""
        return np.asarray(values)[self.first]

    def spread(self, values: Any) -> Any:
        """Return results of the distinct rows at all plans."""
        return np.asarray(values)[self.inverse]


def distinct_rows(*columns: Any) -> Distinct:
    """Number the distinct rows of equally long integer or float columns."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        codes, count = _codes(np.asarray(column))
        if count > 1:
            key = key * count + codes
            size *= count
    if size <= TABLE_PLACES_PER_ROW * key.size:
        table = np.full(size, -1, dtype=np.intp)
        # The last plan written to a place stays; any plan of the row will do.
        table[key] = np.arange(key.size)
        used = np.flatnonzero(table >= 0)
        first = table[used]
        table[used] = np.arange(used.size)
        return Distinct(first, table[key])
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return Distinct(first, inverse)


def _codes(column: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    low, high = column.min(), column.max()
    if low == high:
        return np.zeros(column.size, dtype=np.int64), 1
    if np.issubdtype(column.dtype, np.integer) and high - low < 1 << 16:
        return column.astype(np.int64) - int(low), int(high - low) + 1
    values, inverse = np.unique(column, return_inverse=True)
    return inverse.astype(np.int64), len(values)
