"""Student's t and the beta distribution, which the standard library does not have."""

from collections.abc import Callable
from functools import lru_cache
from math import exp, isinf, lgamma, log, log1p
from statistics import NormalDist

_TINY = 1e-300
"""Replaces zero in a denominator."""
_TERMS = 500
_PRECISION = 1e-14
_BISECTIONS = 60


def t_cdf(value: float, degrees: float) -> float:
    """Probability that a t variable is at most ``value``."""
    if isinf(degrees):
        return NormalDist().cdf(value)
    tail = _incomplete_beta(degrees / (degrees + value * value), degrees / 2, 0.5) / 2
    return 1 - tail if value > 0 else tail


@lru_cache
def t_quantile(probability: float, degrees: float) -> float:
    """The ``probability`` quantile of the t distribution."""
    if isinf(degrees):
        return NormalDist().inv_cdf(probability)
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    return inverse(lambda value: t_cdf(value, degrees), probability)


def beta_quantile(probability: float, a: float, b: float) -> float:
    """The ``probability`` quantile of the beta distribution."""
    return inverse(lambda value: _incomplete_beta(value, a, b), probability)


def inverse(
    function: Callable[[float], float], result: float, *, bisections: int = _BISECTIONS
) -> float:
    """The positive number at which an increasing function has this result."""
    low, high = 0.0, 1.0
    while function(high) < result:
        low, high = high, 2 * high
    for _ in range(bisections):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < result else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function, by its continued fraction."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only for small x
        return 1 - _incomplete_beta(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    return front / a / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8)."""
    value, upper, lower = 1.0, 1.0, 0.0
    for term in range(1, _TERMS):
        half, is_odd = divmod(term, 2)
        if is_odd:
            top, base = -(a + half) * (a + b + half), a + 2 * half
        else:
            top, base = half * (b - half), a + 2 * half - 1
        factor = top * x / (base * (base + 1))
        lower = 1 / (1 + factor * lower or _TINY)
        upper = 1 + factor / upper or _TINY
        value *= upper * lower
        if abs(upper * lower - 1) < _PRECISION:
            break
    return value
