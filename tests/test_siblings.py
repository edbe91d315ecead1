from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.policy.siblings import SHORTEST, Family, families

LONG = tuple(range(1000, 1000 + SHORTEST))
words = st.integers(0, 2)
sequences = st.lists(
    st.tuples(st.sampled_from([(), LONG, (*LONG, *LONG)]), st.lists(words, min_size=1, max_size=4)),
    min_size=1,
    max_size=8,
).map(lambda parts: [(*start, *end) for start, end in parts])


def test_a_beginning_leaves_every_sequence_a_token():
    (family,) = families([(*LONG, 1), (*LONG, 1)])
    assert family == Family((0, 1), SHORTEST)
    (family,) = families([(*LONG, 1), (*LONG, 1, 2)])
    assert family == Family((0, 1), SHORTEST)
    assert {family.shared for family in families([LONG, LONG])} == {0}


def test_sequences_with_a_long_common_beginning_are_a_family():
    found = families([(*LONG, 1), (7, 8), (*LONG, 2)])
    assert sorted(found) == [Family((0, 2), SHORTEST), Family((1,), 0)]


def test_a_short_beginning_is_not_worth_a_segment():
    assert {family.shared for family in families([(1, 2, 3), (1, 2, 4)])} == {0}


def test_two_who_share_more_with_each_other_leave_the_others():
    longer = (*LONG, *range(500))
    found = families([(*longer, 1), (*longer, 2), (*LONG, 3), (*LONG, 4)])
    # All together 32 + 2 * 501 + 2 = 1036 tokens; in twos (532 + 2) + (32 + 2) = 568.
    assert sorted(found) == [Family((0, 1), SHORTEST + 500), Family((2, 3), SHORTEST)]


@given(sequences)
def test_families_are_a_partition_and_share_what_they_say(given_: list[tuple[int, ...]]):
    found = families(given_)
    assert sorted(number for family in found for number in family.members) == list(
        range(len(given_))
    )
    for family in found:
        beginnings = {given_[number][: family.shared] for number in family.members}
        assert len(beginnings) == 1
        assert all(len(given_[number]) > family.shared for number in family.members)
