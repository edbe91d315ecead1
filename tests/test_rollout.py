import asyncio
from collections.abc import Callable, Sequence

import pytest

from grpo_cl.config import RolloutConfig
from grpo_cl.domains import Domain
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


class Says:
    """An actor or a user that says given messages in turn, and the last one for ever."""

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


class SaysAsUser(Says, User):
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
    actor: Says,
    other: SaysAsUser | None,
    task_id: str = "create_task_1",
    **limits: object,
) -> Trajectory:
    task = domain.task(task_id)
    config = RolloutConfig.model_validate(limits)
    episode = Episode(task, domain.environment(task, solo=other is None), other, config)
    return asyncio.run(episode.play(actor))


def test_the_agent_greets_and_the_user_answers_first(domain: GetDomain) -> None:
    caller = SaysAsUser(user("Hello"), user("###STOP###"))
    trajectory = play(domain("mock"), Says(agent("Yes?")), caller)
    texts = [message.content for message in trajectory.messages]
    assert texts == [GREETING, "Hello", "Yes?", "###STOP###"]
    assert trajectory.termination is Termination.USER_STOP


def test_tool_results_go_back_to_whoever_called(domain: GetDomain) -> None:
    inbox = call("check_notifications", "user")
    caller = SaysAsUser(user(None, inbox), user("Hi"), user("###STOP###"))
    trajectory = play(domain("mock"), Says(agent(None, CREATE), agent("Done.")), caller)
    roles = [message.role for message in trajectory.messages]
    # fmt: off
    assert roles == [
        "assistant", "user", "tool", "user", "assistant", "tool", "assistant", "user",
    ]
    # fmt: on
    assert trajectory.messages[2].requestor == "user"


def test_the_user_sees_neither_the_agents_calls_nor_words_beside_them(domain: GetDomain) -> None:
    caller = SaysAsUser(user("Hi"), user("###STOP###"))
    play(domain("mock"), Says(agent("A secret", CREATE), agent("Done.")), caller)
    assert [message.content for message in caller.seen[1]] == [GREETING, "Hi", "Done."]


@pytest.mark.parametrize("token", ["###STOP###", "bye ###TRANSFER###", "###OUT-OF-SCOPE### what"])
def test_a_stop_token_ends_the_episode(domain: GetDomain, token: str) -> None:
    trajectory = play(domain("mock"), Says(agent("Hm.")), SaysAsUser(user(token)))
    assert trajectory.termination is Termination.USER_STOP


def test_a_stop_token_beside_a_call_is_no_stop(domain: GetDomain) -> None:
    both = user("###STOP###", call("check_notifications", "user"))
    trajectory = play(domain("mock"), Says(agent("Hm.")), SaysAsUser(both, user("###STOP###")))
    assert len(trajectory.messages) == 4


def test_steps_are_messages_and_batches_of_calls_and_a_stop_on_the_last_step_is_too_late(
    domain: GetDomain,
) -> None:
    def ended(max_steps: int) -> Termination:
        caller = SaysAsUser(user("Hi"), user("###STOP###"))  # steps 1 and 5
        actor = Says(agent(None, CREATE, CREATE), agent("Done."))  # steps 2, 3 and 4
        return play(domain("mock"), actor, caller, max_steps=max_steps).termination

    assert ended(6) is Termination.USER_STOP
    assert ended(5) is Termination.MAX_STEPS


def test_turns_are_replies_of_the_agent(domain: GetDomain) -> None:
    actor = Says(agent("Hm."))
    trajectory = play(domain("mock"), actor, SaysAsUser(user("Hi")), max_turns=3)
    assert trajectory.termination is Termination.MAX_STEPS
    assert len(actor.seen) == 3


def test_an_agent_may_end_on_its_last_turn(domain: GetDomain) -> None:
    actor = Says(agent(None, CREATE), agent(None, call("done")))
    assert play(domain("mock"), actor, None, max_turns=2).termination is Termination.AGENT_STOP


def test_errors_are_counted_over_both_sides_and_the_whole_episode(domain: GetDomain) -> None:
    wrong = call("no_such_tool", "user")
    caller = SaysAsUser(user(None, wrong), user("Hi"))
    trajectory = play(domain("mock"), Says(agent(None, BAD, BAD)), caller, max_errors=5)
    assert trajectory.termination is Termination.TOO_MANY_ERRORS
    assert sum(message.error for message in trajectory.messages) == 5


def test_an_episode_that_takes_too_long_is_ended(domain: GetDomain) -> None:
    trajectory = play(domain("mock"), Says(agent("Hm.")), SaysAsUser(user("Hi")), timeout_s=1e-9)
    assert trajectory.termination is Termination.TIMEOUT


@pytest.mark.parametrize("text", [None, ""])
def test_saying_nothing_is_an_error_of_whoever_said_it(domain: GetDomain, text: str | None) -> None:
    quiet = play(domain("mock"), Says(agent(text)), SaysAsUser(user("Hi")))
    assert quiet.termination is Termination.AGENT_ERROR
    gone = play(domain("mock"), Says(agent("Hm.")), SaysAsUser(user(text)))
    assert gone.termination is Termination.USER_ERROR


def test_alone_the_agent_starts_at_once_and_ends_with_done(domain: GetDomain) -> None:
    actor = Says(agent(None, CREATE), agent(None, call("done")))
    trajectory = play(domain("mock"), actor, None)
    assert trajectory.termination is Termination.AGENT_STOP
    assert trajectory.messages[-1].content == "###STOP###"
    assert trajectory.solo
    assert RewardOracle({"mock": domain("mock")}).score(trajectory).value == 1.0


def test_alone_a_reply_without_a_call_reaches_nobody(domain: GetDomain) -> None:
    assert play(domain("mock"), Says(agent("Hello?")), None).termination is Termination.AGENT_ERROR


def test_an_episode_goes_on_from_the_tasks_message_history(domain: GetDomain) -> None:
    caller = SaysAsUser(user("###STOP###"))
    mock = domain("mock")
    task = mock.task("update_task_with_message_history")
    trajectory = play(mock, Says(agent("Hm.")), caller, task.id)
    assert trajectory.messages[: len(task.message_history)] == task.message_history
    assert len(trajectory.messages) == len(task.message_history) + 1


def gold(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def told(task: Task) -> str:
    criteria = task.evaluation_criteria
    return " ".join((criteria.communicate_info or ()) if criteria else ())


@pytest.mark.parametrize("user_name", ["scripted", "solo"])
@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "telecom-workflow", "doordash"])
def test_the_gold_solution_played_as_an_episode_solves_every_test_task(
    domain: GetDomain, name: str, user_name: str
) -> None:
    domains = {name: domain(name)}
    tasks = domain(name).tasks("test")
    actor = ScriptedActor(gold, closing=told)
    trajectories = run_episodes(actor, domains, tasks, RolloutConfig(user=user_name))
    oracle = RewardOracle(domains)
    for trajectory in trajectories:
        reward = oracle.score(trajectory)
        silent = user_name == "solo" and told(trajectory.task)  # nobody to tell
        assert reward.value == float(not silent), (trajectory.task.id, reward.reason)


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "doordash"])
def test_the_gold_solution_of_generated_tasks_works_with_a_scripted_user(
    domain: GetDomain, name: str
) -> None:
    tasks = domain(name).generate(seed=1, count=50)
    oracle = RewardOracle({name: domain(name)})
    actor = ScriptedActor(gold, closing=told)
    played = run_episodes(actor, {name: domain(name)}, tasks, SCRIPTED)
    assert [oracle.score(trajectory).value for trajectory in played] == [1.0] * 50


def test_a_thousand_interleaved_episodes_end_as_they_do_one_by_one(domain: GetDomain) -> None:
    names = ("airline", "retail", "telecom")
    domains = {name: domain(name) for name in names}
    tasks = [task for name in names for task in domain(name).tasks("test")] * 10
    actor = ScriptedActor(gold, closing=told)
    together = run_episodes(actor, domains, tasks, SCRIPTED)
    assert len(together) == 1000
    alone = [run_episodes(actor, domains, [task], SCRIPTED)[0] for task in tasks[:100]]
    for index, trajectory in enumerate(together):
        assert trajectory.messages == alone[index % 100].messages


def test_episodes_really_take_turns(domain: GetDomain) -> None:
    order: list[str] = []

    class Watched(ScriptedAgent):
        def __init__(self, task: Task) -> None:
            super().__init__(gold(task), "", solo=True)
            self.task = task

        async def act(self, messages: Sequence[Message]) -> Message:
            order.append(self.task.id)
            return await super().act(messages)

    class Watching:
        def join(self, scene: Scene) -> Watched:
            return Watched(scene.task)

    tasks = domain("retail").tasks("test")[:3]
    run_episodes(Watching(), {"retail": domain("retail")}, tasks, SOLO)
    assert order[:6] == [task.id for task in tasks] * 2


def test_episodes_can_be_played_where_a_loop_is_running_already(domain: GetDomain) -> None:
    async def notebook() -> list[Trajectory]:
        tasks = domain("mock").tasks("base")[:2]
        return run_episodes(ScriptedActor(gold), {"mock": domain("mock")}, tasks, SOLO)

    assert len(asyncio.run(notebook())) == 2


def test_the_prompt_holds_the_policy_and_alone_the_ticket(domain: GetDomain) -> None:
    airline = domain("airline")
    task = airline.tasks("test")[0]
    assert airline.policy_text() in system_prompt(airline, task, solo=False)
    alone = system_prompt(airline, task, solo=True)
    assert "<ticket>" in alone
    assert "done" in alone
