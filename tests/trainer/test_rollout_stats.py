from grpo_cl.llm import ModelUse
from grpo_cl.trainer.rollout_stats import RolloutStats
from grpo_cl.types import (
    Message,
    Task,
    Termination,
    TokenTrace,
    ToolCall,
    Trajectory,
    UserScenario,
)


def trajectory(*, solo: bool) -> Trajectory:
    call = ToolCall(name="look")
    trace = TokenTrace(ids=(1, 2, 3, 4), mask=(False, True, False, True), logprobs=(0, 0), turns=())
    return Trajectory(
        task=Task(id="t", domain="d", user_scenario=UserScenario(instructions="help")),
        messages=(
            Message(role="user", content="help"),
            Message(role="assistant", tool_calls=(call, call)),
            Message(role="tool", content="seen"),
            Message(role="assistant", content="done"),
        ),
        termination=Termination.AGENT_STOP,
        solo=solo,
        tokens=trace,
    )


def test_counts_of_episodes_restart_when_they_are_taken() -> None:
    stats = RolloutStats(ModelUse())
    stats.add([trajectory(solo=False), trajectory(solo=False)])
    taken = stats.take()
    assert taken.pop("play_s") == 0.0
    assert taken == {
        "episodes": 2.0,
        "turns": 4.0,
        "tool_calls": 4.0,
        "generated_tokens": 4.0,
        "simulator_calls": 2.0,
    }
    assert set(stats.take().values()) == {0.0}


def test_solo_episodes_have_no_simulator_calls() -> None:
    stats = RolloutStats(ModelUse())
    stats.add([trajectory(solo=True)])
    assert stats.take()["simulator_calls"] == 0.0
