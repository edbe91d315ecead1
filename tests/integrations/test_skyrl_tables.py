"""Tables and batch sizes of a SkyRL run; SkyRL itself is not needed."""

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.integrations.skyrl.tables import BatchSizes, fit_batch_sizes


@pytest.mark.parametrize(
    ("num_rows", "num_gpus", "train", "mini", "expected"),
    [
        (94, 1, None, None, BatchSizes(32, 32)),
        (94, 4, None, None, BatchSizes(32, 32)),
        (94, 5, None, None, BatchSizes(30, 30)),
        (94, 64, None, None, BatchSizes(64, 64)),
        (7, 4, None, None, BatchSizes(4, 4)),
        (3, 4, None, None, BatchSizes(3, 3)),
        (94, 4, 64, None, BatchSizes(64, 64)),
        (94, 4, 64, 16, BatchSizes(64, 16)),
        (94, 4, None, 12, BatchSizes(24, 12)),
        (94, 4, None, 48, BatchSizes(48, 48)),
    ],
)
def test_batch_is_complete_and_divides_into_mini_batches_and_gpus(
    num_rows: int, num_gpus: int, train: int | None, mini: int | None, expected: BatchSizes
) -> None:
    assert fit_batch_sizes(num_rows, train=train, mini=mini, num_gpus=num_gpus) == expected


@pytest.mark.parametrize("train", [0, 95, 1024])
def test_batch_that_the_table_cannot_fill_is_refused_with_both_numbers(train: int) -> None:
    with pytest.raises(ConfigError, match=f"train_batch_size={train} .*between 1 and the 94 rows"):
        fit_batch_sizes(94, train=train, mini=None, num_gpus=1)


@pytest.mark.parametrize("mini", [-1, 0, 7, 64])
def test_mini_batch_that_does_not_divide_the_batch_is_refused(mini: int) -> None:
    with pytest.raises(ConfigError, match=f"mini_batch_size={mini} must divide .*=32"):
        fit_batch_sizes(94, train=32, mini=mini, num_gpus=1)
