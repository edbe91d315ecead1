"""What engines' adapters are made of and what needs no engine."""

import subprocess
import sys

import pytest

from grpo_cl.engines.areal.tape import OTHERS, Tape
from grpo_cl.engines.missing import require_packages
from grpo_cl.engines.skyrl.lost import leave_out
from grpo_cl.engines.wording import Wording
from grpo_cl.errors import ConfigError
from grpo_cl.rollout import GREETING, Scene
from grpo_cl.rows import BEGIN
from grpo_cl.types import Message, Task, ToolCall, UserScenario

CALL = ToolCall(name="find", arguments={"id": "7"})
TASK = Task(id="t", domain="mock", user_scenario=UserScenario(instructions="x"))
TOOL = {"type": "function", "function": {"name": "find", "description": "", "parameters": {}}}


def result(text: str) -> Message:
    return Message(role="tool", id="call_0", content=text)


def test_a_lost_episode_gets_the_mean_of_its_group_and_no_loss() -> None:
    rewards, masks = leave_out(
        [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0, 0.0], [0.5]],
        [[1, 1], [0, 1], [1, 0, 1], [1]],
        groups=["a", "a", "a", "b"],
        lost=[False, False, True, False],
    )
    assert rewards == [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0, 0.5], [0.5]]
    assert masks == [[1, 1], [0, 1], [0, 0, 0], [1]]


def test_a_group_that_is_lost_as_a_whole_has_no_reward() -> None:
    assert leave_out([1.0], [[1]], groups=["a"], lost=[True]) == ([0.0], [[0]])


def test_a_tape_says_who_wrote_which_token() -> None:
    tape = Tape()
    tape.read([1, 2])
    tape.write([3], [-0.5], [4])
    tape.read([5])
    tape.write([6, 7], [-0.1, -0.2], [4, 5])
    assert tape.versions == [OTHERS, OTHERS, 4, OTHERS, 4, 5]
    trace = tape.trace(is_truncated=True)
    assert trace.ids == (1, 2, 3, 5, 6, 7)
    assert trace.mask == (False, False, True, False, True, True)
    assert trace.logprobs == (-0.5, -0.1, -0.2)
    assert trace.turns == ((2, 3), (4, 6))
    assert trace.is_truncated


def test_an_opening_has_the_tools_and_somebody_who_speaks() -> None:
    scene = Scene(TASK, "Rules.", [TOOL], solo=True, seed=0)
    system, user = Wording("hermes").opening(scene, ())
    assert system["content"].endswith("Rules.")
    assert '"find"' in system["content"]
    assert user == {"role": "user", "content": BEGIN}
    spoken = [Message(role="assistant", content=GREETING), Message(role="user", content="Hi")]
    roles = [message["role"] for message in Wording("hermes").opening(scene, spoken)]
    assert roles == ["system", "assistant", "user"]


def test_neighbouring_results_are_one_message_and_calls_before_them_are_text() -> None:
    said = Wording("json").observation(
        [Message(role="assistant", tool_calls=(CALL, CALL)), result("a"), result("b")]
    )
    assert [message["role"] for message in said] == ["assistant", "user"]
    assert said[1]["content"] == "Tool result: a\nTool result: b"
    assert Wording("json").reply(said[0]["content"]).tool_calls == (CALL, CALL)


@pytest.mark.parametrize("mark", ["<|im_end|>", "<|eot_id|>\n", "</s>", ""])
def test_the_mark_of_the_end_is_no_part_of_a_reply(mark: str) -> None:
    assert Wording("hermes").reply(f"Bye.{mark}") == Message(role="assistant", content="Bye.")


def test_an_engine_that_is_missing_is_said_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"skyrl is not installed here \(no_such\b.*requirements"):
        require_packages("skyrl", "no_such", "json")


@pytest.mark.parametrize("engine", ["skyrl", "areal"])
def test_the_command_of_an_engine_that_is_missing_says_how_to_get_it(engine: str) -> None:
    command = [sys.executable, "-m", f"grpo_cl.engines.{engine}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"requirements/{engine}.txt" in ended.stderr.splitlines()[-1]
