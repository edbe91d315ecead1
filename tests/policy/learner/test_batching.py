from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.policy.kernels.prefix_groups import MIN_OUTER_TOKENS
from grpo_cl.policy.learner.batching import (
    ATTENTION_TOKENS,
    TrainingSample,
    balance_over_ranks,
    checksum,
    collate,
    micro_batches,
    plan_micro_batches,
    policy_samples,
    sft_samples,
)
from tiny_learners import group, random_traces, settings, trace

TOKEN_IDS = count(1)


def of_length(length: int) -> TrainingSample:
    """A sample that shares no prefix with others."""
    return TrainingSample(
        trace([next(TOKEN_IDS)] * length, (1, length)), (0.0,) * (length - 1), 1.0
    )


def of_ids(*ids: int) -> TrainingSample:
    return TrainingSample(trace(list(ids), (len(ids) - 1, len(ids))), (0.0,), 1.0)


lengths_of_batches = st.lists(st.integers(2, 60), max_size=30)


def test_dapo_weight_is_one_over_the_tokens_of_the_global_batch():
    batch = [group(trace([1, 2, 3], (1, 3)), trace([1, 2, 3, 4, 5], (1, 2), (3, 5)))]
    samples = policy_samples(batch, [[1.0, -2.0]], settings())
    assert [sample.weight for sample in samples] == [1 / 5, 1 / 5]
    assert [sample.advantages for sample in samples] == [
        (1.0, 1.0),
        (-2.0, -2.0, -2.0),
    ]


def test_each_turn_can_have_its_own_advantage():
    batch = [group(trace([1, 2, 3, 4, 5], (1, 2), (3, 5)))]
    (sample,) = policy_samples(batch, [[(0.5, -1.0)]], settings())
    assert sample.advantages == (0.5, -1.0, -1.0)


def test_trajectories_without_loss_tokens_are_in_no_denominator():
    config = settings(loss={"overlong": "mask"})
    batch = [
        group(
            trace([1, 2, 3], (1, 3)),
            trace([1, 2, 3], (1, 3)),
            trace([1, 2, 3], (1, 3), is_truncated=True),
            trace([1, 2, 3]),
            None,
        )
    ]
    (sample,) = policy_samples(batch, [[1.0, None, 1.0, 1.0, 1.0]], config)
    assert sample.weight == 1 / 2


def test_all_tokens_of_demonstrations_have_the_same_weight():
    samples = sft_samples([trace([1, 2, 3], (1, 3)), trace([1, 2], (1, 2)), trace([1])])
    assert [sample.weight for sample in samples] == [1 / 3, 1 / 3]


def test_sample_ends_at_its_last_loss_token():
    sample = TrainingSample(trace([1, 2, 3, 4, 5], (1, 2), (2, 3)), (0.0, 0.0), 1.0)
    assert sample.length == 3


def test_cost_of_a_long_sequence_includes_attention():
    assert of_length(ATTENTION_TOKENS).cost == 2 * ATTENTION_TOKENS


def test_most_expensive_sample_goes_to_the_least_loaded_rank():
    shares = balance_over_ranks([of_length(length) for length in (2, 3, 10, 4, 5)], 2)
    assert [[sample.length for sample in share] for share in shares] == [[10, 2], [5, 4, 3]]


def test_micro_batches_are_filled_first_fit_decreasing():
    batches = micro_batches([of_length(length) for length in (3, 9, 4, 8, 40)], 18)
    assert [[sample.length for sample in part] for part in batches] == [[40], [9, 8], [4, 3]]
    batches = micro_batches([of_length(length) for length in (3, 9, 4, 8)], 12)
    assert [[sample.length for sample in part] for part in batches] == [[9, 3], [8, 4]]


@given(lengths_of_batches, st.integers(1, 100), st.integers(1, 5))
def test_every_sample_is_in_one_micro_batch_of_one_rank(
    lengths: list[int], budget: int, ranks: int
):
    samples = [of_length(length) for length in lengths]
    batches = [
        part
        for share in balance_over_ranks(samples, ranks)
        for part in micro_batches(share, budget)
    ]
    assert sorted(sample.length for part in batches for sample in part) == sorted(lengths)
    for part in batches:
        assert len(part) == 1 or num_computed_tokens(part) <= budget


@given(lengths_of_batches, st.integers(1, 5))
def test_no_rank_exceeds_the_mean_load_by_more_than_one_sample(lengths: list[int], ranks: int):
    samples = [of_length(length) for length in lengths]
    loads = [sum(sample.cost for sample in share) for share in balance_over_ranks(samples, ranks)]
    largest = max((sample.cost for sample in samples), default=0.0)
    assert max(loads) <= sum(loads) / ranks + largest + 1e-9


def num_computed_tokens(part: list[TrainingSample]) -> int:
    layout = collate(part, torch.device("cpu")).layout
    assert layout is not None
    return layout.ids_1N.numel()


PREFIX = tuple(range(100, 140))


def test_samples_with_a_common_prefix_share_a_micro_batch_and_a_rank():
    samples = [of_ids(*PREFIX, 1), of_ids(5, 6), of_ids(*PREFIX, 2, 3), of_ids(7, 8)]
    shares = balance_over_ranks(samples, 2)
    assert [[sample.trace.ids[-1] for sample in share] for share in shares] == [[1, 3], [6, 8]]
    batches = micro_batches(samples, 1000)
    assert [[sample.trace.ids[-1] for sample in part] for part in batches] == [[3, 1, 6, 8]]
    assert [num_computed_tokens(part) for part in batches] == [40 + 1 + 2 + 2 + 2]


def test_tasks_with_the_same_policy_text_are_divided_over_the_ranks():
    samples = [of_ids(*PREFIX, task, episode) for task in range(4) for episode in range(2)]
    shares = balance_over_ranks(samples, 2)
    assert [sorted(sample.trace.ids[-2] for sample in share) for share in shares] == [
        [0, 0, 1, 1],
        [2, 2, 3, 3],
    ]


@pytest.mark.parametrize(("batch", "accumulation"), [(1, 8), (2, 4), (4, 2), (8, 1)])
@pytest.mark.parametrize("prefix", [(), PREFIX])
def test_accumulation_divides_an_update_into_passes_of_a_batch_of_tasks(
    batch: int, accumulation: int, prefix: tuple[int, ...]
):
    samples = [of_ids(*prefix, task, episode) for task in range(8) for episode in range(3)]
    config = settings(
        num_samples_per_prompt=3, batch_size_per_gpu=batch, gradient_accumulation_steps=accumulation
    )
    (plan,) = plan_micro_batches(samples, config, 1)
    assert [len(part) for part in plan] == [batch * 3] * accumulation
    two = plan_micro_batches(samples, config, 2)
    assert [sum(map(len, parts)) for parts in two] == [12, 12]
    assert max(len(part) for parts in two for part in parts) <= batch * 3


def test_token_budget_divides_the_passes_of_accumulation_further():
    samples = [of_length(10) for _ in range(8)]
    config = settings(
        num_samples_per_prompt=2,
        batch_size_per_gpu=2,
        gradient_accumulation_steps=2,
        optimizer={"micro_batch_tokens": 30},
    )
    assert [len(part) for part in plan_micro_batches(samples, config, 1)[0]] == [3, 3, 2]


def test_tasks_beyond_those_of_a_step_are_divided_by_accumulation_too():
    config = settings(num_samples_per_prompt=2, batch_size_per_gpu=2, gradient_accumulation_steps=2)
    samples = [of_length(10) for _ in range(12)]
    assert [len(part) for part in plan_micro_batches(samples, config, 1)[0]] == [6, 6]
    whole = config.model_copy(update={"gradient_accumulation_steps": 1})
    assert [len(part) for part in plan_micro_batches(samples, whole, 1)[0]] == [12]


def test_token_budget_counts_a_common_prefix_once():
    samples = [of_ids(*PREFIX, number, number) for number in range(5)]
    assert sorted(len(part) for part in micro_batches(samples, 40 + 2 * 3)) == [2, 3]


def test_episodes_of_a_task_stay_together_within_a_prefix_of_all_tasks():
    policy = [1] * MIN_OUTER_TOKENS
    tickets = [[task] * 40 for task in (2, 3, 4)]
    # A longer episode of each task; without inner groups the three would be in one micro-batch.
    ends = ([5, 5, 5], [6], [7])
    tasks = [[of_ids(*policy, *ticket, *end) for end in ends] for ticket in tickets]
    alone = of_ids(*policy, 8, 8)
    samples = [*(sample for row in zip(*tasks, strict=True) for sample in row), alone]
    # A task is 40 + 3 + 1 + 1 tokens after the policy.
    batches = micro_batches(samples, MIN_OUTER_TOKENS + 2 * 45 + 2)
    expected = [{*map(id, tasks[0] + tasks[1])}, {*map(id, [*tasks[2], alone])}]
    assert [{*map(id, batch)} for batch in batches] == expected
    assert len(micro_batches(samples, MIN_OUTER_TOKENS + 3 * 45 + 2)) == 1
    computed = [collate(batch, torch.device("cpu")).layout for batch in batches]
    assert [layout.ids_1N.numel() for layout in computed if layout] == [
        MIN_OUTER_TOKENS + 90,
        MIN_OUTER_TOKENS + 47,
    ]


def test_tensors_are_padded_on_the_right_and_log_probs_are_under_the_mask():
    long = TrainingSample(trace([5, 6, 7, 8], (1, 2), (3, 4)), (2.0, 3.0), 0.25)
    short = TrainingSample(trace([9, 4, 1], (1, 2)), (-1.0,), 0.5)
    batch = collate([long, short], torch.device("cpu"))
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]]
    assert batch.attention_BT.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.mask_BT.tolist() == [[False, True, False, True], [False, True, False, False]]
    assert batch.sampler_logprobs_BT.tolist() == [[0, -4, 0, -4], [0, -4, 0, 0]]
    assert batch.advantages_BT.tolist() == [[0, 2, 0, 3], [0, -1, 0, 0]]
    assert batch.weights_B.tolist() == [0.25, 0.5]


def test_common_prefix_is_in_every_row_and_each_row_has_its_own_log_probs():
    logprobs = [(-0.5, -1.5), (-2.5,), (-3.5, -4.5, -5.5)]
    traces = [
        trace([*PREFIX, *range(len(own))], (40, 40 + len(own))).model_copy(update={"logprobs": own})
        for own in logprobs
    ]
    batch = collate(sft_samples(traces), torch.device("cpu"))
    assert batch.ids_BT.tolist() == [
        [*PREFIX, 0, 1, 0],
        [*PREFIX, 0, 0, 0],
        [*PREFIX, 0, 1, 2],
    ]
    assert batch.sampler_logprobs_BT[:, 40:].tolist() == [
        [-0.5, -1.5, 0],
        [-2.5, 0, 0],
        [-3.5, -4.5, -5.5],
    ]
    dtypes = [tensor.dtype for tensor in batch[:6]]
    assert dtypes == [torch.long, torch.long, torch.bool, *[torch.float] * 3]


def test_log_probs_that_do_not_match_the_mask_are_an_error():
    short = trace([1, 2, 3], (1, 3)).model_copy(update={"logprobs": (-1.0,)})
    with pytest.raises(ValueError, match=r"1 log-probs for 2 tokens .* pass one per token"):
        collate(sft_samples([short]), torch.device("cpu"))


def test_advantages_must_match_the_trajectories():
    with pytest.raises(ValueError, match="shorter"):
        policy_samples([group(*random_traces(2))], [[1.0]], settings())


def test_checksum_depends_on_tokens_and_advantages():
    sample = of_ids(1, 2, 3)
    same, with_advantages = of_ids(1, 2, 3), sample._replace(advantages=(1.0,))
    assert checksum([sample]) == checksum([same])
    assert len({checksum(part) for part in ([], [sample], [with_advantages], [of_length(4)])}) == 4
