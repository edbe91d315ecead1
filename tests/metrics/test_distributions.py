from math import exp, inf, lgamma, pi, sqrt

import pytest

from grpo_cl.metrics.distributions import t_cdf, t_quantile


@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    [
        (0.975, 1, 12.706205),
        (0.975, 2, 4.302653),
        (0.975, 4, 2.776445),
        (0.995, 3, 5.840909),
        (0.9, 30, 1.310415),
        (0.975, 1000, 1.962339),
        (0.025, 2, -4.302653),
        (0.975, inf, 1.959964),
    ],
)
def test_quantiles_match_published_tables(probability: float, degrees: float, value: float):
    assert t_quantile(probability, degrees) == pytest.approx(value, abs=1e-6)
    assert t_cdf(t_quantile(probability, degrees), degrees) == pytest.approx(probability)


def test_one_degree_of_freedom_gives_the_cauchy_distribution():
    assert t_cdf(1.0, 1) == pytest.approx(0.75)
    assert t_cdf(-1.0, 1) == pytest.approx(0.25)
    assert t_cdf(0.0, 1) == t_quantile(0.5, 1) + 0.5


@pytest.mark.parametrize(("value", "degrees"), [(2.3, 2.5), (1.1, 7.7), (0.4, 1.3)])
def test_fractional_degrees_of_freedom_match_the_integrated_density(value: float, degrees: float):
    scale = exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / sqrt(degrees * pi)
    pieces = 2000
    width = value / pieces
    heights = [
        (1 + ((i + 0.5) * width) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(pieces)
    ]
    assert t_cdf(value, degrees) == pytest.approx(0.5 + scale * width * sum(heights), abs=1e-6)
