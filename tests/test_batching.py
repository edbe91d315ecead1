from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.policy.batching import (
    ATTENTION_TOKENS,
    Sample,
    checksum,
    collate,
    imitation_samples,
    micro_batches,
    policy_samples,
    spread,
)
from tiny_learners import group, random_traces, settings, trace

NUMBERS = count(1)


def of_length(length: int) -> Sample:
    """A sample that begins like no other."""
    return Sample(trace([next(NUMBERS)] * length, (1, length)), (0.0,) * length, 1.0)


def of_ids(*ids: int) -> Sample:
    return Sample(trace(list(ids), (len(ids) - 1, len(ids))), (0.0,) * len(ids), 1.0)


lengths_of_batches = st.lists(st.integers(2, 60), max_size=30)


def test_a_token_of_the_global_batch_counts_one_over_all_its_tokens():
    batch = [group(trace([1, 2, 3], (1, 3)), trace([1, 2, 3, 4, 5], (1, 2), (3, 5)))]
    samples = policy_samples(batch, [[1.0, -2.0]], settings())
    assert [sample.weight for sample in samples] == [1 / 5, 1 / 5]
    assert [sample.advantages for sample in samples] == [
        (0.0, 1.0, 1.0),
        (0.0, -2.0, 0.0, -2.0, -2.0),
    ]


def test_each_turn_may_have_its_own_advantage():
    batch = [group(trace([1, 2, 3, 4, 5], (1, 2), (3, 5)))]
    (sample,) = policy_samples(batch, [[(0.5, -1.0)]], settings())
    assert sample.advantages == (0.0, 0.5, 0.0, -1.0, -1.0)


def test_what_cannot_be_learned_from_is_in_no_denominator():
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


def test_demonstrated_tokens_all_count_the_same():
    samples = imitation_samples([trace([1, 2, 3], (1, 3)), trace([1, 2], (1, 2)), trace([1])])
    assert [sample.weight for sample in samples] == [1 / 3, 1 / 3]


def test_nothing_is_read_after_the_last_token_learned_from():
    sample = Sample(trace([1, 2, 3, 4, 5], (1, 2), (2, 3)), (0.0,) * 5, 1.0)
    assert sample.length == 3


def test_attention_makes_a_long_sequence_dearer_than_its_tokens():
    assert of_length(ATTENTION_TOKENS).cost == 2 * ATTENTION_TOKENS


def test_the_dearest_sample_goes_to_the_rank_that_has_least():
    shares = spread([of_length(length) for length in (2, 3, 10, 4, 5)], 2)
    assert [[sample.length for sample in share] for share in shares] == [[10, 2], [5, 4, 3]]


def test_a_pass_is_filled_with_whatever_still_fits():
    passes = micro_batches([of_length(length) for length in (3, 9, 4, 8, 40)], 18)
    assert [[sample.length for sample in part] for part in passes] == [[40], [9, 8], [4, 3]]
    passes = micro_batches([of_length(length) for length in (3, 9, 4, 8)], 12)
    assert [[sample.length for sample in part] for part in passes] == [[9, 3], [8, 4]]


@given(lengths_of_batches, st.integers(1, 100), st.integers(1, 5))
def test_every_sample_is_in_one_pass_of_one_rank(lengths: list[int], budget: int, ranks: int):
    samples = [of_length(length) for length in lengths]
    passes = [part for share in spread(samples, ranks) for part in micro_batches(share, budget)]
    assert sorted(sample.length for part in passes for sample in part) == sorted(lengths)
    for part in passes:
        assert len(part) == 1 or computed(part) <= budget


@given(lengths_of_batches, st.integers(1, 5))
def test_no_rank_has_more_than_its_share_and_one_sample(lengths: list[int], ranks: int):
    samples = [of_length(length) for length in lengths]
    loads = [sum(sample.cost for sample in share) for share in spread(samples, ranks)]
    dearest = max((sample.cost for sample in samples), default=0.0)
    assert max(loads) <= sum(loads) / ranks + dearest + 1e-9


def computed(part: list[Sample]) -> int:
    layout = collate(part, torch.device("cpu")).layout
    assert layout is not None
    return layout.ids_1N.numel()


BEGINNING = tuple(range(100, 140))


def test_samples_that_begin_alike_share_a_pass_and_a_rank():
    samples = [of_ids(*BEGINNING, 1), of_ids(5, 6), of_ids(*BEGINNING, 2, 3), of_ids(7, 8)]
    shares = spread(samples, 2)
    assert [[sample.trace.ids[-1] for sample in share] for share in shares] == [[1, 3], [6, 8]]
    passes = micro_batches(samples, 1000)
    assert [[sample.trace.ids[-1] for sample in part] for part in passes] == [[3, 1, 6, 8]]
    assert [computed(part) for part in passes] == [40 + 1 + 2 + 2 + 2]


def test_the_budget_of_a_pass_counts_a_shared_beginning_once():
    samples = [of_ids(*BEGINNING, number, number) for number in range(5)]
    assert sorted(len(part) for part in micro_batches(samples, 40 + 2 * 3)) == [2, 3]


def test_tensors_are_padded_on_the_right_and_log_probs_stand_under_the_mask():
    long = Sample(trace([5, 6, 7, 8], (1, 2), (3, 4)), (0.0, 2.0, 0.0, 3.0), 0.25)
    short = Sample(trace([9, 4, 1], (1, 2)), (0.0, -1.0, 0.0), 0.5)
    batch = collate([long, short], torch.device("cpu"))
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]]
    assert batch.attention_BT.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.mask_BT.tolist() == [[False, True, False, True], [False, True, False, False]]
    assert batch.sampler_logprobs_BT.tolist() == [[0, -4, 0, -4], [0, -4, 0, 0]]
    assert batch.advantages_BT.tolist() == [[0, 2, 0, 3], [0, -1, 0, 0]]
    assert batch.weights_B.tolist() == [0.25, 0.5]


def test_what_a_family_shares_is_in_every_row_and_each_row_has_its_own_log_probs():
    drawn = [(-0.5, -1.5), (-2.5,), (-3.5, -4.5, -5.5)]
    traces = [
        trace([*BEGINNING, *range(len(own))], (40, 40 + len(own))).model_copy(
            update={"logprobs": own}
        )
        for own in drawn
    ]
    batch = collate(imitation_samples(traces), torch.device("cpu"))
    assert batch.ids_BT.tolist() == [
        [*BEGINNING, 0, 1, 0],
        [*BEGINNING, 0, 0, 0],
        [*BEGINNING, 0, 1, 2],
    ]
    assert batch.sampler_logprobs_BT[:, 40:].tolist() == [
        [-0.5, -1.5, 0],
        [-2.5, 0, 0],
        [-3.5, -4.5, -5.5],
    ]
    kinds = [tensor.dtype for tensor in batch[:6]]
    assert kinds == [torch.long, torch.long, torch.bool, *[torch.float] * 3]


def test_log_probs_that_do_not_fit_the_mask_are_refused():
    short = trace([1, 2, 3], (1, 3)).model_copy(update={"logprobs": (-1.0,)})
    with pytest.raises(ValueError, match=r"1 log-probs for 2 tokens .* give one per token"):
        collate(imitation_samples([short]), torch.device("cpu"))


def test_advantages_must_match_the_trajectories():
    with pytest.raises(ValueError, match="shorter"):
        policy_samples([group(*random_traces(2))], [[1.0]], settings())


def test_a_checksum_sees_tokens_and_advantages():
    sample = of_ids(1, 2, 3)
    same, credited = of_ids(1, 2, 3), sample._replace(advantages=(0.0, 1.0, 1.0))
    assert checksum([sample]) == checksum([same])
    assert len({checksum(part) for part in ([], [sample], [credited], [of_length(4)])}) == 4
