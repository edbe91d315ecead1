import math
from collections.abc import Sequence

import pytest
import torch

from grpo_cl.policy.draws import Draw, draw
from grpo_cl.policy.draws import drawn as read


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
