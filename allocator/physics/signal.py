"""How many groups carry a learning signal under a binary reward."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

FloatArray = NDArray[np.float64]

#: Rounds after which a batch counts as never filled.
MOST_ROUNDS = 10_000


@dataclass(frozen=True)
class SolveRate:
    """Distribution over prompts of the probability p that a rollout is rewarded.

    Parameters
    ----------
    always : share of prompts with p = 1, in [0, 1].
    never : share of prompts with p = 0, in [0, 1]; always + never <= 1.
    alpha, beta : the rest of the prompts has p ~ Beta(alpha, beta), both > 0 (1, 1 is uniform).

    Raises
    ------
    ValueError
        A share or parameter outside its range.
    """

    always: float = 0.0
    never: float = 0.0
    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        """Refuse shares that are no shares, and a Beta law that is none."""
        if not (self.always >= 0 and self.never >= 0 and self.always + self.never <= 1 + 1e-12):
            raise ValueError(
                f"always and never must be shares, 1 at most together: {self.always}, {self.never}"
            )
        if not (0 < self.alpha < math.inf and 0 < self.beta < math.inf):
            raise ValueError(f"alpha {self.alpha} and beta {self.beta} must be positive")

    @property
    def mixed(self) -> float:
        """Share w of prompts that are solved sometimes, 1 - always - never."""
        return max(1.0 - self.always - self.never, 0.0)

    @property
    def mean(self) -> float:
        """Mean solve rate E[p] over all prompts."""
        return self.always + self.mixed * self.alpha / (self.alpha + self.beta)


def signal_fraction(solve_rate: SolveRate | None, group_size: ArrayLike) -> FloatArray:
    """Return the share of groups whose rollouts do not all have the same reward.

    With p the solve rate a group of S has no advantage with probability p^S + (1 - p)^S. Over
    prompts, with w = `solve_rate.mixed` and B the Beta function::

        w (1 - [B(alpha + S, beta) + B(alpha, beta + S)] / B(alpha, beta))

    Parameters
    ----------
    solve_rate : None means that every group carries signal (dense rewards, or nothing known: the
        caller must say so).
    group_size : S >= 1, real; arrays broadcast.

    Returns
    -------
    In [0, w]: 0 at S = 1, rising to w with S.

    Raises
    ------
    ValueError
        group_size < 1.

    Examples
    --------
    A uniform solve rate leaves (S - 1)/(S + 1):

    >>> float(round(signal_fraction(SolveRate(), 8), 6))
    0.777778
    """
    size = np.asarray(group_size, dtype=np.float64)
    if not np.all(size >= 1):
        raise ValueError("group_size must be at least 1")
    if solve_rate is None:
        return size * 0.0 + 1.0
    alpha, beta = solve_rate.alpha, solve_rate.beta
    whole = special.betaln(alpha, beta)
    all_solved = np.exp(special.betaln(alpha + size, beta) - whole)
    none_solved = np.exp(special.betaln(alpha, beta + size) - whole)
    # At S = 1 the two add up to 1 but for rounding.
    decided = np.where(size == 1.0, 1.0, np.minimum(all_solved + none_solved, 1.0))
    return solve_rate.mixed * (1.0 - decided)


def refill_rounds(groups: ArrayLike, signal: ArrayLike) -> FloatArray:
    """Return the expected rounds of G groups until G of them carry signal.

    Where a batch is generated as a whole, dead groups are replaced by a further round of G
    groups, all of them: E[K], the least K with Binomial(K G, f) >= G, which is
    1 + sum over K >= 1 of P(Binomial(K G, f) < G). Between 1/f (large batches of an asynchronous
    run) and far more: at G = 32, f = .66 it is 2.0, not 1.52.

    Parameters
    ----------
    groups : G >= 1, real (rounded to whole groups).
    signal : f in (0, 1], share of groups with an advantage; arrays broadcast.

    Returns
    -------
    Rounds, >= 1; inf where no group carries signal.

    Examples
    --------
    >>> float(refill_rounds(32, 1.0)), round(float(refill_rounds(32, 0.66)), 3)
    (1.0, 2.003)
    """
    size, share = np.broadcast_arrays(
        np.maximum(np.rint(np.asarray(groups, dtype=np.float64)), 1.0),
        np.asarray(signal, dtype=np.float64),
    )
    rounds = np.ones(size.shape)
    alive = share > 0.0
    k = 1.0
    while np.any(alive):
        # P(Binomial(n, f) <= G - 1), as a regularised incomplete Beta function.
        short = special.betainc(k * size - size + 1.0, size, 1.0 - share)
        rounds = rounds + np.where(alive, short, 0.0)
        alive = alive & (short > 1e-12) & (k < MOST_ROUNDS)
        k += 1.0
    return np.where(share > 0.0, rounds, math.inf)
