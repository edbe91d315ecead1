import asyncio
from collections.abc import Callable, Sequence

import pytest

from grpo_cl.config import RolloutConfig
from grpo_cl.envs import Domain
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import (
    GREETING,
    Episode,
    Scene,
    ScriptedActor,
    ScriptedAgent,
    run_episodes,
    system_prompt,
)
from grpo_cl.types import Message, Task, Termination, ToolCall, Trajectory
from grpo_cl.users.base import User

GetDomain = Callable[[str], Domain]
SOLO = RolloutConfig(user="solo")
SCRIPTED = RolloutConfig(user="scripted")


class Scripted:
    """An agent or a user with given messages; the last one is repeated."""

    def __init__(self, *messages: Message) -> None:
        self.messages = messages
        self.seen: list[Sequence[Message]] = []

    def next(self, seen: Sequence[Message]) -> Message:
        self.seen.append(seen)
        return self.messages[min(len(self.seen), len(self.messages)) - 1]

    async def act(self, messages: Sequence[Message]) -> Message:
        return self.next(list(messages))

    def trace(self) -> None:
        return None


class ScriptedCaller(Scripted, User):
    async def respond(self, messages: Sequence[Message]) -> Message:
        return self.next(messages)


def agent(text: str | None = None, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls or None)


def user(text: str | None = None, *calls: ToolCall) -> Message:
    return Message(role="user", content=text, tool_calls=calls or None)


def call(name: str, requestor: str = "assistant", /, **arguments: object) -> ToolCall:
    fields = {"id": name, "name": name, "arguments": arguments, "requestor": requestor}
    return ToolCall.model_validate(fields)


BAD = call("no_such_tool")
CREATE = call("create_task", user_id="user_1", title="Important Meeting")


def play(
    domain: Domain,
    actor: Scripted,
    other: ScriptedCaller | None,
    task_id: str = "create_task_1",
    **limits: object,
) -> Trajectory:
    task = domain.task(task_id)
    config = RolloutConfig.model_validate(limits)
    episode = Episode(task, domain.environment(task, solo=other is None), other, config)
    return asyncio.run(episode.play(actor))


def test_agent_greets_and_user_answers_first(domain: GetDomain) -> None:
    caller = ScriptedCaller(user("Hello"), user("###STOP###"))
    trajectory = play(domain("mock"), Scripted(agent("Yes?")), caller)
    texts = [message.content for message in trajectory.messages]
    assert texts == [GREETING, "Hello", "Yes?", "###STOP###"]
    assert trajectory.termination is Termination.USER_STOP


def test_tool_results_go_back_to_the_calling_side(domain: GetDomain) -> None:
    inbox = call("check_notifications", "user")
    caller = ScriptedCaller(user(None, inbox), user("Hi"), user("###STOP###"))
    trajectory = play(domain("mock"), Scripted(agent(None, CREATE), agent("Done.")), caller)
    roles = [message.role for message in trajectory.messages]
    # fmt: off
    assert roles == [
        "assistant", "user", "tool", "user", "assistant", "tool", "assistant", "user",
    ]
    # fmt: on
    assert trajectory.messages[2].requestor == "user"


def test_user_sees_no_agent_message_with_tool_calls(domain: GetDomain) -> None:
    caller = ScriptedCaller(user("Hi"), user("###STOP###"))
    play(domain("mock"), Scripted(agent("A secret", CREATE), agent("Done.")), caller)
    assert [message.content for message in caller.seen[1]] == [GREETING, "Hi", "Done."]


@pytest.mark.parametrize("token", ["###STOP###", "bye ###TRANSFER###", "###OUT-OF-SCOPE### what"])
def test_stop_token_ends_the_episode(domain: GetDomain, token: str) -> None:
    trajectory = play(domain("mock"), Scripted(agent("Hm.")), ScriptedCaller(user(token)))
    assert trajectory.termination is Termination.USER_STOP


def test_stop_token_in_a_message_with_tool_calls_is_ignored(domain: GetDomain) -> None:
    both = user("###STOP###", call("check_notifications", "user"))
    trajectory = play(
        domain("mock"), Scripted(agent("Hm.")), ScriptedCaller(both, user("###STOP###"))
    )
    assert len(trajectory.messages) == 4


def test_messages_and_call_batches_are_steps_and_max_steps_overrides_a_stop(
    domain: GetDomain,
) -> None:
    def termination(max_steps: int) -> Termination:
        caller = ScriptedCaller(user("Hi"), user("###STOP###"))  # steps 1 and 5
        actor = Scripted(agent(None, CREATE, CREATE), agent("Done."))  # steps 2, 3 and 4
        return play(domain("mock"), actor, caller, max_steps=max_steps).termination

    assert termination(6) is Termination.USER_STOP
    assert termination(5) is Termination.MAX_STEPS


def test_max_turns_counts_agent_replies(domain: GetDomain) -> None:
    actor = Scripted(agent("Hm."))
    trajectory = play(domain("mock"), actor, ScriptedCaller(user("Hi")), max_turns=3)
    assert trajectory.termination is Termination.MAX_STEPS
    assert len(actor.seen) == 3


def test_agent_may_stop_on_its_last_turn(domain: GetDomain) -> None:
    actor = Scripted(agent(None, CREATE), agent(None, call("done")))
    assert play(domain("mock"), actor, None, max_turns=2).termination is Termination.AGENT_STOP


def test_errors_of_both_sides_are_counted(domain: GetDomain) -> None:
    wrong = call("no_such_tool", "user")
    caller = ScriptedCaller(user(None, wrong), user("Hi"))
    trajectory = play(domain("mock"), Scripted(agent(None, BAD, BAD)), caller, max_errors=5)
    assert trajectory.termination is Termination.TOO_MANY_ERRORS
    assert sum(message.error for message in trajectory.messages) == 5


def test_timeout_ends_the_episode(domain: GetDomain) -> None:
    trajectory = play(
        domain("mock"), Scripted(agent("Hm.")), ScriptedCaller(user("Hi")), timeout_s=1e-9
    )
    assert trajectory.termination is Termination.TIMEOUT


@pytest.mark.parametrize("text", [None, ""])
def test_empty_message_is_an_error_of_its_side(domain: GetDomain, text: str | None) -> None:
    empty_agent = play(domain("mock"), Scripted(agent(text)), ScriptedCaller(user("Hi")))
    assert empty_agent.termination is Termination.AGENT_ERROR
    empty_user = play(domain("mock"), Scripted(agent("Hm.")), ScriptedCaller(user(text)))
    assert empty_user.termination is Termination.USER_ERROR


def test_solo_agent_starts_and_ends_with_done(domain: GetDomain) -> None:
    actor = Scripted(agent(None, CREATE), agent(None, call("done")))
    trajectory = play(domain("mock"), actor, None)
    assert trajectory.termination is Termination.AGENT_STOP
    assert trajectory.messages[-1].content == "###STOP###"
    assert trajectory.solo
    assert RewardOracle({"mock": domain("mock")}).score(trajectory).value == 1.0


def test_solo_reply_without_a_call_is_an_error(domain: GetDomain) -> None:
    assert (
        play(domain("mock"), Scripted(agent("Hello?")), None).termination is Termination.AGENT_ERROR
    )


def test_episode_continues_the_message_history_of_the_task(domain: GetDomain) -> None:
    caller = ScriptedCaller(user("###STOP###"))
    mock = domain("mock")
    task = mock.task("update_task_with_message_history")
    trajectory = play(mock, Scripted(agent("Hm.")), caller, task.id)
    assert trajectory.messages[: len(task.message_history)] == task.message_history
    assert len(trajectory.messages) == len(task.message_history) + 1


def gold(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def required_info(task: Task) -> str:
    return " ".join(task.communicate_info)


@pytest.mark.parametrize("user_name", ["scripted", "solo"])
@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "telecom-workflow", "doordash"])
def test_gold_actions_solve_every_test_task(domain: GetDomain, name: str, user_name: str) -> None:
    domains = {name: domain(name)}
    tasks = domain(name).tasks("test")
    actor = ScriptedActor(gold, closing=required_info)
    trajectories = run_episodes(actor, domains, tasks, RolloutConfig(user=user_name))
    oracle = RewardOracle(domains)
    for trajectory in trajectories:
        reward = oracle.score(trajectory)
        silent = user_name == "solo" and required_info(
            trajectory.task
        )  # the solo agent has no user to inform
        assert reward.value == float(not silent), (trajectory.task.id, reward.reason)


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "doordash"])
def test_gold_actions_solve_generated_tasks_with_a_scripted_user(
    domain: GetDomain, name: str
) -> None:
    tasks = domain(name).generate(seed=1, count=50)
    oracle = RewardOracle({name: domain(name)})
    actor = ScriptedActor(gold, closing=required_info)
    trajectories = run_episodes(actor, {name: domain(name)}, tasks, SCRIPTED)
    assert [oracle.score(trajectory).value for trajectory in trajectories] == [1.0] * 50


def test_concurrent_episodes_equal_sequential_ones(domain: GetDomain) -> None:
    names = ("airline", "retail", "telecom")
    domains = {name: domain(name) for name in names}
    tasks = [task for name in names for task in domain(name).tasks("test")] * 10
    actor = ScriptedActor(gold, closing=required_info)
    concurrent = run_episodes(actor, domains, tasks, SCRIPTED)
    assert len(concurrent) == 1000
    sequential = [run_episodes(actor, domains, [task], SCRIPTED)[0] for task in tasks[:100]]
    for index, trajectory in enumerate(concurrent):
        assert trajectory.messages == sequential[index % 100].messages


def test_episodes_are_interleaved(domain: GetDomain) -> None:
    order: list[str] = []

    class RecordingAgent(ScriptedAgent):
        def __init__(self, task: Task) -> None:
            super().__init__(gold(task), "", solo=True)
            self.task = task

        async def act(self, messages: Sequence[Message]) -> Message:
            order.append(self.task.id)
            return await super().act(messages)

    class RecordingActor:
        def join(self, scene: Scene) -> RecordingAgent:
            return RecordingAgent(scene.task)

    tasks = domain("retail").tasks("test")[:3]
    run_episodes(RecordingActor(), {"retail": domain("retail")}, tasks, SOLO)
    assert order[:6] == [task.id for task in tasks] * 2


def test_run_episodes_works_inside_a_running_event_loop(domain: GetDomain) -> None:
    async def notebook() -> list[Trajectory]:
        tasks = domain("mock").tasks("base")[:2]
        return run_episodes(ScriptedActor(gold), {"mock": domain("mock")}, tasks, SOLO)

    assert len(asyncio.run(notebook())) == 2


def test_system_prompt_has_the_policy_and_the_solo_ticket(domain: GetDomain) -> None:
    airline = domain("airline")
    task = airline.tasks("test")[0]
    assert airline.policy_text() in system_prompt(airline, task, solo=False)
    solo_prompt = system_prompt(airline, task, solo=True)
    assert "<ticket>" in solo_prompt
    assert "done" in solo_prompt
