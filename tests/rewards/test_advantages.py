import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.rewards.advantages import (
    Baseline,
    action_advantages,
    group_advantages,
    has_variance,
    returns_to_go,
    terminal_rewards,
    token_advantages,
)
from grpo_cl.types import TokenTrace

rewards_of_a_group = st.lists(
    st.floats(-10, 10, allow_subnormal=False, width=32), min_size=2, max_size=9
)


def test_mean_subtracts_the_groups_mean():
    # mean = 2 / 4 = 0.5
    assert group_advantages([1.0, 0.0, 0.0, 1.0], "mean") == (0.5, -0.5, -0.5, 0.5)


def test_std_divides_by_the_population_standard_deviation():
    # mean = 2, squared deviations 4 + 0 + 0 + 4 = 8, population variance 8 / 4 = 2
    scale = 2**0.5 + 1e-6
    expected = (-2 / scale, 0.0, 0.0, 2 / scale)
    assert group_advantages([0.0, 2.0, 2.0, 4.0], "std") == pytest.approx(expected, abs=1e-12)


def test_leave_one_out_subtracts_the_mean_of_the_others():
    # 1 - (0 + 0 + 1) / 3 = 2/3 and 0 - (1 + 0 + 1) / 3 = -2/3
    expected = (2 / 3, -2 / 3, -2 / 3, 2 / 3)
    assert group_advantages([1.0, 0.0, 0.0, 1.0], "leave_one_out") == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["mean", "std", "leave_one_out"])
@pytest.mark.parametrize("rewards", [[0.7] * 5, [1.0, 1.0 + 5e-7], [0.1 + 0.2, 0.3], [2.0]])
def test_equal_rewards_give_exact_zeros(kind: Baseline, rewards: list[float]):
    assert group_advantages(rewards, kind) == (0.0,) * len(rewards)
    assert not has_variance(rewards)


@pytest.mark.parametrize(
    ("kind", "high"), [("mean", 0.5), ("std", 0.5 / (0.5 + 1e-6)), ("leave_one_out", 1.0)]
)
def test_reward_none_is_in_no_baseline_and_has_no_advantage(kind: Baseline, high: float):
    # Among the valid rewards 1 and 0: mean 0.5, population std 0.5, mean of the others 0 and 1.
    assert group_advantages([1.0, None, 0.0], kind) == pytest.approx((high, None, -high))


def test_group_of_rewards_none_has_no_advantages():
    assert group_advantages([None, None], "std") == (None, None)
    assert not has_variance([None, None])
    assert not has_variance([])


def test_variance_ignores_rewards_none():
    assert has_variance([0.0, None, 1.0])
    assert not has_variance([1.0, None, 1.0])


def test_reward_that_is_not_finite_is_an_error():
    with pytest.raises(ValueError, match="reward nan is not finite; score"):
        group_advantages([0.0, float("nan")], "mean")


@given(rewards_of_a_group, st.sampled_from(["mean", "std", "leave_one_out"]))
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(rewards: list[float], kind: Baseline):
    advantages = group_advantages(rewards, kind)
    assert sum(advantages) == pytest.approx(0, abs=1e-9)
    if has_variance(rewards):
        assert advantages.index(max(advantages)) == rewards.index(max(rewards))


@given(rewards_of_a_group)
def test_leave_one_out_equals_its_definition(rewards: list[float]):
    if has_variance(rewards):
        others = [reward - (sum(rewards) - reward) / (len(rewards) - 1) for reward in rewards]
        assert group_advantages(rewards, "leave_one_out") == pytest.approx(others, abs=1e-9)


def test_return_discounts_later_rewards():
    # G2 = 4; G1 = 2 + 4/2 = 4; G0 = 1 + 4/2 = 3
    assert returns_to_go([1.0, 2.0, 4.0], 0.5) == (3.0, 4.0, 4.0)
    assert returns_to_go([], 0.5) == ()


@given(st.floats(0.01, 1), st.floats(-2, 2), st.integers(1, 8))
def test_terminal_reward_is_discounted_by_the_number_of_later_actions(
    gamma: float, reward: float, count: int
):
    returns = returns_to_go(terminal_rewards(reward, count), gamma)
    expected = [gamma ** (count - 1 - index) * reward for index in range(count)]
    assert returns == pytest.approx(expected)


def test_terminal_reward_is_at_the_last_action():
    assert terminal_rewards(0.5, 3) == (0.0, 0.0, 0.5)
    assert terminal_rewards(0.5, 1) == (0.5,)
    assert terminal_rewards(0.5, 0) == ()


def test_action_baseline_is_the_groups_mean_at_the_same_index():
    # Returns with gamma 0.5: (1/4, 1/2, 1) and (0, 0). Baselines: 1/8, 1/4, and 1 for the third
    # action, which only the first episode reaches: its advantage is 0.
    rewards = [terminal_rewards(1.0, 3), terminal_rewards(0.0, 2)]
    assert action_advantages(rewards, 0.5) == ((0.125, 0.25, 0.0), (-0.125, -0.25))


def test_without_discount_and_with_equal_lengths_actions_have_the_episodes_advantage():
    rewards = [terminal_rewards(reward, 2) for reward in (1.0, 0.0, 0.5)]
    assert action_advantages(rewards, 1.0) == ((0.5, 0.5), (-0.5, -0.5), (0.0, 0.0))


def test_episode_without_actions_or_reward_does_not_change_the_others():
    assert action_advantages([[1.0], None, [], [0.0]], 1.0) == ((0.5,), None, (), (-0.5,))
    assert action_advantages([], 1.0) == ()
    assert action_advantages([None], 1.0) == (None,)


def trace_of_two_turns() -> TokenTrace:
    return TokenTrace(
        ids=(7, 1, 2, 8, 3, 9),
        mask=(False, True, True, False, True, False),
        logprobs=(-0.1, -0.2, -0.3),
        turns=((1, 3), (4, 6)),  # the last token of the second turn was not sampled
    )


def test_episode_advantage_is_on_every_sampled_token():
    assert token_advantages(trace_of_two_turns(), 0.5) == (0.5, 0.5, 0.5)


def test_turn_advantage_is_on_the_sampled_tokens_of_its_turn():
    assert token_advantages(trace_of_two_turns(), (0.25, -1.0)) == (0.25, 0.25, -1.0)


def test_wrong_number_of_turn_advantages_is_an_error():
    with pytest.raises(ValueError, match="1 advantages for 2 turns; give one per turn"):
        token_advantages(trace_of_two_turns(), (0.25,))
