"""What a useful token costs as a product of factors, and the exact way from one product to another.

Every plan obeys the identity

    usd per useful token = (sum over uses k of GPUs_k x usd per GPU-hour_k + sandboxes + API calls)
                           / useful tokens per hour
    useful tokens/s = min(V, T) x what of it ends up useful

with V what the generator could deliver and T what the trainer could take, both in useful tokens/s
and each a product with one meaning a factor:

    V = generator GPUs x response tokens per GPU-second x share of it that weight updates leave
        x share of that rate kept while a batch runs out (the modes that write one as a whole)
        x kept share at each fate, in the order tokens meet them (failed or started anew, cancelled,
        group without signal and replaced, stale) x counted tokens per response token
    T = trainer GPUs x trained tokens per busy GPU-second x share of time not blocked by weight sync
        / share of accepted samples that is trained x counted tokens per trained token
    of it: share that finds room in the queue (where the generator is the slower side) x share of
        time the slower side is not held up otherwise x share of samples with signal (where groups
        without are not replaced) x share not resumed from an older batch x share of the run's time
        in steps that count

Two such sums of products are compared by the additive logarithmic mean Divisia index (LMDI-I):

    term_i = sum_k L(C_k, C_k') ln(f_ik' / f_ik),   L(x, y) = (y - x) / ln(y / x)

which leaves no residual, does not depend on an order of changes and turns its sign when the two
are exchanged (B. W. Ang, Energy Policy 32 (2004) 1131 and 33 (2005) 867; a factor that is zero on
one side takes its whole product, Ang and Liu, Energy Policy 35 (2007) 238).

The min is followed along the same path, on which every factor grows at a steady rate: a factor of
V counts for the share of the way on which the generator is the slower side, a factor of T for the
rest. Where one side sets the pace in both plans its factors count in full and the other's not at
all: a faster trainer that waits for rollouts saves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from allocator.physics.economics import usd_per_mtok

#: Names of the terms in reading order; each name is also the JSON value `terms[].name`.
TERMS = (
    "price",
    "split",
    "inference_speed",
    "training_speed",
    "weight_sync",
    "idle",
    "tail",
    "signal",
    "staleness",
    "discards",
    "tokens_counted",
    "availability",
    "sandboxes",
    "reward_api",
)
#: Those of dollars that buy no GPUs.
BESIDES = TERMS[-2:]
#: Two factors closer than this are one: what is left between them is rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Use:
    """GPUs paid for one use (a role, or none) and dollars per GPU-hour of them."""

    gpus: float
    usd_per_gpu_hour: float

    @property
    def usd_per_hour(self) -> float:
        """Dollars per hour."""
        return self.gpus * self.usd_per_gpu_hour


@dataclass(frozen=True, slots=True)
class Factors:
    """Dollars per useful token of one plan, taken apart.

    Attributes
    ----------
    uses : what is paid, by use (`trainer`, `generator`, `reward`, `unused`).
    besides_usd_per_hour : what is paid for other things than GPUs, by term.
    generator_gpus, trainer_gpus : GPUs that work on either side.
    generator, trainer : factors of V and T besides the GPUs, by term.
    common : factors of useful tokens/s over min(V, T), by term.
    """

    uses: Mapping[str, Use]
    besides_usd_per_hour: Mapping[str, float]
    generator_gpus: float
    trainer_gpus: float
    generator: Mapping[str, float]
    trainer: Mapping[str, float]
    common: Mapping[str, float]

    @property
    def generator_tokens_per_s(self) -> float:
        """V: useful tokens/s if the trainer took whatever comes and filtered nothing."""
        return self.generator_gpus * math.prod(self.generator.values())

    @property
    def trainer_tokens_per_s(self) -> float:
        """T: useful tokens/s if the trainer never waited and nothing it trains were in vain."""
        return self.trainer_gpus * math.prod(self.trainer.values())

    @property
    def useful_tokens_per_s(self) -> float:
        """Useful tokens per second."""
        slower = min(self.generator_tokens_per_s, self.trainer_tokens_per_s)
        return slower * math.prod(self.common.values())

    @property
    def lead(self) -> float:
        """ln(T / V): above 0 the generator sets the pace, below 0 the trainer."""
        return math.log(self.trainer_tokens_per_s / self.generator_tokens_per_s)

    def usd_per_mtok(self, usd_per_hour: float) -> float:
        """Dollars of an hour over the useful tokens of an hour, per million tokens."""
        return float(usd_per_mtok(usd_per_hour, self.useful_tokens_per_s))


def logarithmic_mean(x: float, y: float) -> float:
    """Return L(x, y) = (y - x) / ln(y / x) of two positive numbers; L(x, x) = x.

    Between geometric and arithmetic mean, and symmetric. Near x = y the series in
    h = ln(y / x) / 2 is used: sqrt(x y) sinh(h) / h.

    Examples
    --------
    >>> round(logarithmic_mean(1.0, math.e), 6), logarithmic_mean(3.0, 3.0)
    (1.718282, 3.0)
    """
    half = math.log(y / x) / 2.0
    if abs(half) < 1e-4:
        return math.sqrt(x * y) * (1.0 + half * half / 6.0)
    return (y - x) / (2.0 * half)


def generator_share(a: Factors, b: Factors) -> float:
    """Share of the way from `a` to `b` on which the generator sets the pace, from 0 to 1.

    ln(T / V) runs linearly from that of `a` to that of `b`: where both have the same sign there is
    nothing to divide, else the way is divided where it is 0.
    """
    start, end = a.lead, b.lead
    if start >= 0.0 and end >= 0.0:
        return 1.0
    if start <= 0.0 and end <= 0.0:
        return 0.0
    return max(start, end) / (abs(start) + abs(end))


def differences(a: Factors, b: Factors) -> dict[str, float]:
    """Dollars per million useful tokens that each change adds from `a` to `b`, by term.

    The values sum to the difference of the two plans' dollars up to rounding, and those of
    (b, a) are their negatives. A term without any change is 0.
    """
    terms = dict.fromkeys(TERMS, 0.0)
    weight = 0.0
    for name in {**a.uses, **b.uses}:
        first, second = (side.uses.get(name, Use(0.0, 0.0)) for side in (a, b))
        cost_a, cost_b = a.usd_per_mtok(first.usd_per_hour), b.usd_per_mtok(second.usd_per_hour)
        if cost_a <= 0.0 or cost_b <= 0.0:
            appears = "split" if first.gpus <= 0.0 or second.gpus <= 0.0 else "price"
            terms[appears] += cost_b - cost_a
            continue
        mean = logarithmic_mean(cost_a, cost_b)
        terms["price"] += mean * _growth(first.usd_per_gpu_hour, second.usd_per_gpu_hour)
        terms["split"] += mean * _growth(first.gpus, second.gpus)
        weight += mean
    paced = generator_share(a, b)
    for share, gpus in (
        (paced, (a.generator_gpus, b.generator_gpus)),
        (1.0 - paced, (a.trainer_gpus, b.trainer_gpus)),
    ):
        terms["split"] -= weight * share * _growth(*gpus)
    for share, first_chain, second_chain in (
        (paced, a.generator, b.generator),
        (1.0 - paced, a.trainer, b.trainer),
        (1.0, a.common, b.common),
    ):
        for name in {**first_chain, **second_chain}:
            growth = _growth(first_chain.get(name, 1.0), second_chain.get(name, 1.0))
            terms[name] -= weight * share * growth
    for name in BESIDES:
        first_usd, second_usd = (side.besides_usd_per_hour.get(name, 0.0) for side in (a, b))
        terms[name] += b.usd_per_mtok(second_usd) - a.usd_per_mtok(first_usd)
    return terms


def _growth(start: float, end: float) -> float:
    """Return ln(end / start), exactly 0 where the two differ by rounding only."""
    return 0.0 if math.isclose(start, end, rel_tol=ROUNDING) else math.log(end / start)
