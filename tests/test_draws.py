import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_cl.policy.draws import Draw, draw, draw_rows
from grpo_cl.policy.draws import drawn as read

BLOCK = 4096
"""Of the vocabulary, at a time, in fused kernels."""


def drawn(probabilities: Sequence[float], *draws: Draw) -> list[int]:
    row = torch.tensor(probabilities).log()
    return [token.id for token in read(draw(row.expand(len(draws), -1), draws).tolist())]


def test_tokens_are_drawn_where_the_cumulative_probability_passes_the_number() -> None:
    numbers = [0.0, 0.19, 0.21, 0.49, 0.51, 0.99]
    draws = [Draw(number, 1.0, 1.0) for number in numbers]
    assert drawn([0.2, 0.3, 0.5], *draws) == [0, 0, 1, 1, 2, 2]


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    # 0.5 is not enough for 0.6, so 0.3 stays as well: numbers are cut at 0.3 / 0.8.
    draws = [Draw(0.37, 1.0, 0.6), Draw(0.38, 1.0, 0.6), Draw(0.1, 1.0, 0.4), Draw(0.1, 1.0, 1.0)]
    assert drawn([0.2, 0.3, 0.5], *draws) == [1, 2, 2, 0]


def test_temperature_sharpens_before_the_draw() -> None:
    # At temperature 1/2 probabilities are squared: 0.04, 0.09, 0.25 of 0.38.
    draws = [Draw(0.1, 0.5, 1.0), Draw(0.11, 0.5, 1.0), Draw(0.34, 0.5, 1.0), Draw(0.35, 0.5, 1.0)]
    assert drawn([0.2, 0.3, 0.5], *draws) == [0, 1, 1, 2]
    row = torch.tensor([[0.2, 0.3, 0.5]]).log()
    assert float(draw(row, draws[3:])[0, 1]) == pytest.approx(math.log(0.25 / 0.38))


def test_a_token_without_probability_is_never_drawn() -> None:
    assert drawn([0.0, 1.0, 0.0], Draw(0.0, 1.0, 1.0), Draw(1 - 2**-53, 1.0, 1.0)) == [1, 1]


def column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.double)[:, None]


def fused(logits_BV: Tensor, numbers: Sequence[float], temperatures: Sequence[float]) -> Tensor:
    """What the kernels of a GPU draw, run by Triton's interpreter."""
    pytest.importorskip("triton")
    kernels: Any = import_module("grpo_cl.policy.fused_draws")
    assert kernels.BLOCK == BLOCK
    return kernels.draw_rows(logits_BV, column(numbers), column(temperatures))


def assert_same(logits_BV: Tensor, numbers: Sequence[float], temperatures: Sequence[float]) -> None:
    found_B2 = fused(logits_BV, numbers, temperatures)
    expected_B2 = draw_rows(logits_BV, column(numbers), column(temperatures), None)
    assert found_B2[:, 0].tolist() == expected_B2[:, 0].tolist()
    torch.testing.assert_close(found_B2[:, 1], expected_B2[:, 1], rtol=1e-5, atol=1e-5)


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
def test_fused_kernels_draw_the_same_tokens(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocabulary)
    flat, peaked = torch.randn(6, vocabulary), 20 * torch.randn(6, vocabulary)
    numbers = [*torch.rand(4, dtype=torch.double).tolist(), 0.0, 1 - 2**-53]
    numbers += torch.rand(6, dtype=torch.double).tolist()
    assert_same(torch.cat([flat, peaked]).to(dtype), numbers, [0.0, 0.7, 1.0, 2.0, 1.0, 0.7] * 2)


def test_fused_kernels_draw_none_without_probability() -> None:
    logits = torch.full((6, 3 * BLOCK), -math.inf)
    for token in (5, BLOCK + 7, BLOCK + 9):
        logits[:, token] = 0.0
    for some in (logits, logits - 1000, logits[:, 1:BLOCK]):
        assert_same(some, [0.0, 0.3, 0.5, 0.9, 1 - 2**-53, 0.9], [1.0] * 5 + [0.0])


def test_fused_kernels_take_the_first_of_equally_likely_tokens() -> None:
    logits = torch.zeros(2, 2 * BLOCK + 1)
    logits[0, [11, 12, BLOCK + 3]] = 1.0
    logits[1, [BLOCK + 3, 2 * BLOCK]] = 1.0
    assert fused(logits, [0.9, 0.9], [0.0, 0.0])[:, 0].tolist() == [11, BLOCK + 3]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_fused_kernels_show_logits_that_are_not_numbers(wrong: float, number: float) -> None:
    some, all_of_them = torch.zeros(2 * BLOCK + 9), torch.full((2 * BLOCK + 9,), wrong)
    some[BLOCK + 2] = wrong
    none = torch.full_like(some, -math.inf)
    logits = torch.stack([some, all_of_them, none])
    found_B2 = torch.cat([fused(logits, [number] * 3, [one] * 3) for one in (0.0, 1.0)])
    assert found_B2[:, 1].isnan().all()
    assert ((found_B2[:, 0] >= 0) & (found_B2[:, 0] < len(some))).all()
    with pytest.raises(FloatingPointError, match="not numbers"):
        read(found_B2.tolist())
