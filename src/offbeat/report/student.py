"""Student's t distribution, the sign test and Holm's correction, without SciPy."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

EPSILON, TINY = 1e-16, 1e-300
MOST_TERMS = 10_000


def two_sided(t: float, freedom: float) -> float:
    """Return P(|T| ≥ |t|) for Student's t distribution.

    Args:
        t: The statistic.
        freedom: Degrees of freedom ν > 0; the probability is I_x(ν/2, 1/2) at x = ν/(ν + t²).
    """
    if math.isinf(t):
        return 0.0
    square = t * t
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + square), square / (freedom + square))


@functools.cache
def critical(confidence: float, freedom: float) -> float:
    """Return the t with P(|T| ≤ t) = confidence, by bisection up to rounding."""
    tail, low, high = 1 - confidence, 0.0, 1.0
    while two_sided(high, freedom) > tail:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if two_sided(middle, freedom) > tail else (low, middle)
    return high


def incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b).

    Args:
        a: First parameter, positive.
        b: Second parameter, positive.
        x: Upper limit of the integral, from 0 to 1.
        rest: 1 − x, which the caller may know without cancellation.
    """
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast below the mean only
        return 1.0 - incomplete_beta(b, a, rest, x)
    logarithm = a * math.log(x) + b * math.log(rest) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(logarithm) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < EPSILON:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > TINY else TINY


def sign_test(above: int, below: int) -> float:
    """Return the two-sided p-value of the exact sign test; ties are not counted."""
    count = above + below
    tail = sum(math.comb(count, k) for k in range(min(above, below) + 1))
    return min(1.0, 2 * tail / (1 << count))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for the number of comparisons (Holm, 1979); None stays None and does not count."""
    known = sorted((p, at) for at, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, at) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        adjusted[at] = least
    return adjusted
