from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.gpu_memory.constants import MIN_SHARED_TOKENS
from grpo_cl.policy.kernels.prefix_groups import (
    MIN_OUTER_TOKENS,
    PrefixGroup,
    group_by_prefix,
    nested_groups,
)

LONG = tuple(range(1000, 1000 + MIN_SHARED_TOKENS))
words = st.integers(0, 2)
sequences = st.lists(
    st.tuples(st.sampled_from([(), LONG, (*LONG, *LONG)]), st.lists(words, min_size=1, max_size=4)),
    min_size=1,
    max_size=8,
).map(lambda parts: [(*start, *end) for start, end in parts])


def test_a_prefix_leaves_every_sequence_a_token():
    (group,) = group_by_prefix([(*LONG, 1), (*LONG, 1)])
    assert group == PrefixGroup((0, 1), MIN_SHARED_TOKENS)
    (group,) = group_by_prefix([(*LONG, 1), (*LONG, 1, 2)])
    assert group == PrefixGroup((0, 1), MIN_SHARED_TOKENS)
    assert {group.prefix_length for group in group_by_prefix([LONG, LONG])} == {0}


def test_sequences_with_a_long_common_prefix_are_a_group():
    groups = group_by_prefix([(*LONG, 1), (7, 8), (*LONG, 2)])
    assert sorted(groups) == [PrefixGroup((0, 2), MIN_SHARED_TOKENS), PrefixGroup((1,), 0)]


def test_a_short_common_prefix_is_not_shared():
    assert {group.prefix_length for group in group_by_prefix([(1, 2, 3), (1, 2, 4)])} == {0}


def test_sequences_with_a_longer_common_prefix_are_split_off():
    longer = (*LONG, *range(500))
    groups = group_by_prefix([(*longer, 1), (*longer, 2), (*LONG, 3), (*LONG, 4)])
    # One group: 32 + 2 * 501 + 2 = 1036 tokens; two groups: (532 + 2) + (32 + 2) = 568.
    assert sorted(groups) == [
        PrefixGroup((0, 1), MIN_SHARED_TOKENS + 500),
        PrefixGroup((2, 3), MIN_SHARED_TOKENS),
    ]


@given(sequences)
def test_groups_are_a_partition_and_their_members_share_the_prefix(batch: list[tuple[int, ...]]):
    groups = group_by_prefix(batch)
    indices = sorted(index for group in groups for index in group.members)
    assert indices == list(range(len(batch)))
    for group in groups:
        prefixes = {batch[index][: group.prefix_length] for index in group.members}
        assert len(prefixes) == 1
        assert all(len(batch[index]) > group.prefix_length for index in group.members)


def test_tasks_with_the_same_policy_are_groups_within_a_group():
    policy, tickets = range(MIN_OUTER_TOKENS), [range(n, n + 40) for n in (5000, 6000)]
    batch = [(*policy, *ticket, end) for ticket in tickets for end in (1, 2)]
    batch.append((*policy, 3))
    parts = (PrefixGroup((0, 1), MIN_OUTER_TOKENS + 40), PrefixGroup((2, 3), MIN_OUTER_TOKENS + 40))
    (group,) = nested_groups(batch)
    assert sorted(group.members) == [0, 1, 2, 3, 4]
    assert (group.prefix_length, sorted(group.inner)) == (MIN_OUTER_TOKENS, list(parts))


def test_short_prefixes_have_no_groups_within():
    batch = [(*LONG, *LONG, 1), (*LONG, *LONG, 2), (*LONG, 3)]
    assert nested_groups(batch) == group_by_prefix(batch)
