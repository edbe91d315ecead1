from grpo_cl.trainer.effort import Effort
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


def test_effort_counts_what_episodes_take_and_begins_anew_when_it_is_taken() -> None:
    effort = Effort()
    effort.add([trajectory(solo=False), trajectory(solo=False)])
    taken = effort.take()
    assert taken.pop("play_s") == 0.0
    assert taken == {
        "episodes": 2.0,
        "turns": 4.0,
        "tool_calls": 4.0,
        "generated_tokens": 4.0,
        "simulator_calls": 2.0,
    }
    assert set(effort.take().values()) == {0.0}


def test_an_agent_that_works_alone_calls_no_simulator() -> None:
    effort = Effort()
    effort.add([trajectory(solo=True)])
    assert effort.take()["simulator_calls"] == 0.0
