"""Numbers as a reader wants them: three significant digits, units said, sums that add up."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "n/a"


def three(value: float | None) -> str:
    """Return a predicted number with three significant digits and thousands separators.

    None and NaN read ``n/a``; from one million on the suffix M, G, T, P or E is used.

    Examples
    --------
    >>> three(9.3142), three(17_134.0), three(0.41), three(999.7), three(2.5e9)
    ('9.31', '17,100', '0.410', '1,000', '2.50 G')
    """
    return significant(value, 3)


def significant(value: float | None, digits: int) -> str:
    """Return a number with `digits` >= 3 significant digits, as `three` does with three.

    Examples
    --------
    >>> significant(4.00042, 5), significant(1_234_567.0, 4)
    ('4.0004', '1.235 M')
    """
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if exponent >= 21 or exponent < -4:
        return f"{rounded:.{digits - 1}e}"
    if exponent >= 6:
        step = exponent // 3
        scaled = rounded / 10 ** (3 * step)
        return f"{scaled:.{digits - 1 - exponent % 3}f} {'MGTPE'[step - 2]}"
    return f"{rounded:,.{max(0, digits - 1 - exponent)}f}"


def apart(value: float, limit: float) -> tuple[str, str]:
    """Return both numbers with as many digits as it takes to see that they differ.

    A limit broken by a hair would otherwise read ``4.00, at most 4``.

    Examples
    --------
    >>> apart(9.214, 4.0), apart(4.0004, 4.0), apart(256.0, 256.0)
    (('9.21', '4'), ('4.0004', '4'), ('256', '256'))
    """
    if not math.isfinite(value) or value in (limit, int(value)):
        return given(value), given(limit)
    digits = next((n for n in range(3, 16) if float(f"{value:.{n - 1}e}") != limit), 3)
    return significant(value, digits), given(limit)


def enough(start: float, to: float) -> str:
    """Return `to` rounded to three digits away from `start`, so that the printed change suffices.

    Examples
    --------
    >>> enough(4.0, 5.312), enough(64.0, 51.99), enough(8.0, 16.0)
    ('5.32', '51.9', '16')
    """
    if not (math.isfinite(start) and math.isfinite(to)) or to in (0, int(to)):
        return given(to)
    unit = 10.0 ** (math.floor(math.log10(abs(to))) - 2)
    steps = to / unit
    away = math.ceil(steps - 1e-9) if to > start else math.floor(steps + 1e-9)
    return three(away * unit)


def given(value: float | None) -> str:
    """Return a number that somebody stated: whole numbers in full, others to three digits at most.

    Examples
    --------
    >>> given(4.0), given(2_112), given(0.905), given(1.6), given(250_000.0)
    ('4', '2,112', '0.905', '1.6', '250,000')
    """
    if value is not None and math.isfinite(value) and abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    text = three(value)
    return text.rstrip("0").rstrip(".") if "." in text and text[-1].isdigit() else text


def percent(fraction: float | None) -> str:
    """Return a fraction as a percentage with three significant digits.

    Examples
    --------
    >>> percent(0.2912), percent(0.0), percent(1.0), percent(0.00012)
    ('29.1%', '0%', '100%', '0.0120%')
    """
    if fraction is None or not math.isfinite(fraction):
        return MISSING
    return f"{three(100 * fraction)}%"


def money(usd: float | None) -> str:
    """Return dollars with three significant digits, the sign before the dollar.

    Examples
    --------
    >>> money(9.314), money(-17_134.0), money(None)
    ('$9.31', '-$17,100', 'n/a')
    """
    text = three(usd)
    if usd is None or not math.isfinite(usd):
        return text
    return f"-${text[1:]}" if text.startswith("-") else f"${text}"


def change(start: float | None, to: float | None) -> str:
    """Return the relative change from `start` to `to` with its sign, empty where undefined.

    Examples
    --------
    >>> change(2.0, 2.5), change(3.0, 2.4), change(5.0, 5.0), change(0.0, 1.0)
    ('+25.0%', '-20.0%', 'same', '')
    """
    if start is None or to is None or not (math.isfinite(start) and math.isfinite(to)):
        return ""
    if start == to:
        return "same"
    return signed_percent(100 * (to / start - 1)) if start else ""


def points(start: float | None, to: float | None) -> str:
    """Return the change of a fraction in percentage points, empty where undefined.

    Examples
    --------
    >>> points(0.298, 0.02), points(0.1, 0.1)
    ('-27.8 points', 'same')
    """
    if start is None or to is None or not (math.isfinite(start) and math.isfinite(to)):
        return ""
    if start == to:
        return "same"
    return f"{'+' if to > start else ''}{three(100 * (to - start))} points"


def signed_percent(percentage: float) -> str:
    """Return a percentage that already counts in hundredths, with its sign.

    Examples
    --------
    >>> signed_percent(12.5), signed_percent(-3.0)
    ('+12.5%', '-3.00%')
    """
    return f"{'+' if percentage > 0 else ''}{three(percentage)}%"


def plural(count: int, noun: str) -> str:
    """Return `count` with its noun.

    Examples
    --------
    >>> plural(1, "engine"), plural(2_400, "engine")
    ('1 engine', '2,400 engines')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shares_in(units: int, amounts: Sequence[float]) -> list[int]:
    """Divide `units` whole units in proportion to `amounts`, largest remainders first.

    The result sums to `units` (to 0 when all amounts are 0). Used for percentages that add up to
    100 and for the cells of a bar.

    Parameters
    ----------
    units : int
        Whole units to hand out, >= 0.
    amounts : sequence of float
        Finite amounts >= 0.

    Examples
    --------
    >>> shares_in(1000, [1 / 3, 1 / 3, 1 / 3]), shares_in(8, [64, 192])
    ([334, 333, 333], [2, 6])
    """
    total = sum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    exact = [units * amount / total for amount in amounts]
    whole = [math.floor(share + 1e-9) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for index in by_remainder[: units - sum(whole)]:
        whole[index] += 1
    return whole
