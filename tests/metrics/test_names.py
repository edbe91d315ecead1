from grpo_cl.metrics.names import time_names


def test_shares_of_waiting_are_of_the_episodes_and_of_the_step() -> None:
    times = {"step_s": 20.0, "episode_s": 14.0, "user_wait_s": 7.0, "policy_idle_s": 5.0}
    named = time_names(times)
    assert named["train/user_wait_share"] == 0.5
    assert named["train/policy_idle_share"] == 0.25
    assert time_names({"step_s": 20.0}) == {"train/step_time": 20.0}
    assert "train/user_wait_share" not in time_names({"episode_s": 0.0, "user_wait_s": 0.0})
