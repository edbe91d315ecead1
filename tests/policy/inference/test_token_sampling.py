import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_cl.errors import TrainingError
from grpo_cl.policy.inference.token_sampling import (
    SampleParams,
    sample,
    sample_rows,
    to_sampled_tokens,
)

BLOCK = 4096
"""Vocabulary entries per block of the fused kernels."""


def sampled(probabilities: Sequence[float], *params: SampleParams) -> list[int]:
    row = torch.tensor(probabilities).log()
    pairs_B2 = sample(row.expand(len(params), -1), params)
    return [token.id for token in to_sampled_tokens(pairs_B2.tolist())]


def test_token_is_the_first_whose_cumulative_probability_exceeds_the_uniform_number() -> None:
    uniforms = [0.0, 0.19, 0.21, 0.49, 0.51, 0.99]
    params = [SampleParams(uniform, 1.0, 1.0) for uniform in uniforms]
    assert sampled([0.2, 0.3, 0.5], *params) == [0, 0, 1, 1, 2, 2]


def test_top_p_keeps_the_smallest_set_of_tokens_that_reaches_it() -> None:
    # 0.5 does not reach 0.6, so 0.3 is kept as well: the quantiles split at 0.3 / 0.8.
    params = [
        SampleParams(0.37, 1.0, 0.6),
        SampleParams(0.38, 1.0, 0.6),
        SampleParams(0.1, 1.0, 0.4),
        SampleParams(0.1, 1.0, 1.0),
    ]
    assert sampled([0.2, 0.3, 0.5], *params) == [1, 2, 2, 0]


def test_temperature_is_applied_before_sampling() -> None:
    # At temperature 1/2 probabilities are squared: 0.04, 0.09, 0.25 of 0.38.
    params = [
        SampleParams(0.1, 0.5, 1.0),
        SampleParams(0.11, 0.5, 1.0),
        SampleParams(0.34, 0.5, 1.0),
        SampleParams(0.35, 0.5, 1.0),
    ]
    assert sampled([0.2, 0.3, 0.5], *params) == [0, 1, 1, 2]
    row = torch.tensor([[0.2, 0.3, 0.5]]).log()
    assert float(sample(row, params[3:])[0, 1]) == pytest.approx(math.log(0.25 / 0.38))


def test_token_of_probability_zero_is_never_sampled() -> None:
    assert sampled(
        [0.0, 1.0, 0.0], SampleParams(0.0, 1.0, 1.0), SampleParams(1 - 2**-53, 1.0, 1.0)
    ) == [1, 1]


def column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.double)[:, None]


def fused(logits_BV: Tensor, uniforms: Sequence[float], temperatures: Sequence[float]) -> Tensor:
    """The result of the GPU kernels, run by Triton's interpreter."""
    pytest.importorskip("triton")
    kernels: Any = import_module("grpo_cl.policy.kernels.triton.sampling")
    assert kernels.BLOCK == BLOCK
    return kernels.sample_rows(logits_BV, column(uniforms), column(temperatures))


def assert_same(
    logits_BV: Tensor, uniforms: Sequence[float], temperatures: Sequence[float]
) -> None:
    actual_B2 = fused(logits_BV, uniforms, temperatures)
    expected_B2 = sample_rows(logits_BV, column(uniforms), column(temperatures), None)
    assert actual_B2[:, 0].tolist() == expected_B2[:, 0].tolist()
    torch.testing.assert_close(actual_B2[:, 1], expected_B2[:, 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [
        (3, torch.float32),
        (1000, torch.float16),
        (BLOCK, torch.bfloat16),
        (3 * BLOCK + 77, torch.float32),
        (3 * BLOCK + 77, torch.bfloat16),
    ],
)
def test_fused_kernels_sample_the_same_tokens(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocabulary)
    flat, peaked = torch.randn(6, vocabulary), 20 * torch.randn(6, vocabulary)
    uniforms = [*torch.rand(4, dtype=torch.double).tolist(), 0.0, 1 - 2**-53]
    uniforms += torch.rand(6, dtype=torch.double).tolist()
    assert_same(torch.cat([flat, peaked]).to(dtype), uniforms, [0.0, 0.7, 1.0, 2.0, 1.0, 0.7] * 2)


def test_fused_kernels_never_sample_a_token_of_probability_zero() -> None:
    logits = torch.full((6, 3 * BLOCK), -math.inf)
    for token in (5, BLOCK + 7, BLOCK + 9):
        logits[:, token] = 0.0
    for variant in (logits, logits - 1000, logits[:, 1:BLOCK]):
        assert_same(variant, [0.0, 0.3, 0.5, 0.9, 1 - 2**-53, 0.9], [1.0] * 5 + [0.0])


def test_fused_kernels_break_argmax_ties_by_the_lowest_token() -> None:
    logits = torch.zeros(2, 2 * BLOCK + 1)
    logits[0, [11, 12, BLOCK + 3]] = 1.0
    logits[1, [BLOCK + 3, 2 * BLOCK]] = 1.0
    assert fused(logits, [0.9, 0.9], [0.0, 0.0])[:, 0].tolist() == [11, BLOCK + 3]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("invalid", [math.nan, math.inf])
def test_fused_kernels_return_nan_for_invalid_logits(invalid: float, uniform: float) -> None:
    one_invalid, all_invalid = torch.zeros(2 * BLOCK + 9), torch.full((2 * BLOCK + 9,), invalid)
    one_invalid[BLOCK + 2] = invalid
    masked = torch.full_like(one_invalid, -math.inf)
    logits = torch.stack([one_invalid, all_invalid, masked])
    actual_B2 = torch.cat(
        [fused(logits, [uniform] * 3, [temperature] * 3) for temperature in (0.0, 1.0)]
    )
    assert actual_B2[:, 1].isnan().all()
    assert ((actual_B2[:, 0] >= 0) & (actual_B2[:, 0] < len(one_invalid))).all()
    with pytest.raises(TrainingError, match="not numbers"):
        to_sampled_tokens(actual_B2.tolist())
