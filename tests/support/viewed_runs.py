"""Run directories with evaluation episodes, written by hand."""

from collections.abc import Sequence
from pathlib import Path

from grpo_cl.config import GRPOConfig
from grpo_cl.rewards import ScoredTrajectory
from grpo_cl.runs.evaluation_episodes import write_evaluation
from grpo_cl.runs.layout import RunDir
from grpo_cl.types import (
    Action,
    ActionCheck,
    EvaluationCriteria,
    Message,
    Reward,
    RewardType,
    Task,
    Termination,
    ToolCall,
    Trajectory,
    UserScenario,
)

LONG = '{"status": "open", "lines": [' + ", ".join(['"a line of the order"'] * 60) + "]}"


def make_task(domain: str, task_id: str, ticket: str = "Cancel the order.") -> Task:
    """A task whose solution is ``cancel(order="W1")``."""
    action = Action(action_id="0", name="cancel", arguments={"order": "W1"})
    criteria = EvaluationCriteria(actions=(action,), communicate_info=("42",))
    return Task(
        id=task_id,
        domain=domain,
        user_scenario=UserScenario(instructions=ticket),
        ticket=ticket,
        evaluation_criteria=criteria,
    )


def episode(task: Task, order: str, text: str = "You get 42 back.") -> ScoredTrajectory:
    """The agent looks the order up, cancels ``order`` and says ``text``."""
    look, cancel = (
        ToolCall(id="call_0", name="get_order", arguments={"order": "W1"}),
        ToolCall(id="call_1", name="cancel", arguments={"order": order}),
    )
    messages = (
        Message(role="assistant", tool_calls=(look,)),
        Message(role="tool", id="call_0", content=LONG),
        Message(role="assistant", tool_calls=(cancel,)),
        Message(role="tool", id="call_1", content="Cancelled.", error=order != "W1"),
        Message(role="assistant", content=text),
        Message(role="assistant", content="###STOP###"),
    )
    is_right, is_said = order == "W1", "42" in text
    reward = Reward(
        value=float(is_right and is_said),
        basis=(RewardType.DB, RewardType.COMMUNICATE),
        basis_name="tau2",
        components={
            RewardType.DB: float(is_right),
            RewardType.ACTION: float(is_right),
            RewardType.COMMUNICATE: float(is_said),
        },
        action_checks=(
            ActionCheck(
                action_id="0",
                name="cancel",
                requestor="assistant",
                is_write=True,
                match=is_right,
                name_match=True,
                arguments_match=is_right,
            ),
        ),
        communicate_checks=(is_said,),
        agreement=float(is_right),
    )
    trajectory = Trajectory(
        task=task, messages=messages, termination=Termination.AGENT_STOP, solo=True
    )
    return ScoredTrajectory(trajectory, reward)


def write_viewed_run(
    root: Path, *, domains: tuple[str, str] = ("shop", "bank"), payloads: Sequence[str] = ()
) -> Path:
    """Two domains with two tasks, evaluated before training and after each stage.

    Task ``lost`` of the first domain is solved after its stage and not at the end; task ``kept`` is
    solved always. Every payload is the ticket, the order and a message of a task of its own.
    """
    run = RunDir(root)
    run.write_config(GRPOConfig(task_order=domains, model_name_or_path="tiny", log_dir=root))
    for row, after in enumerate(("base", *domains)):
        for domain in domains:
            is_solved = (row, domain) in ((1, domains[0]), (2, domains[1]))
            played = [
                episode(make_task(domain, "lost"), "W1" if is_solved else "W2"),
                episode(make_task(domain, "kept"), "W1"),
            ]
            for text in payloads:
                task = make_task(domain, text, ticket=text)
                played.append(episode(task, text, f"{text} after stage {row}"))
            write_evaluation(run, (row, after, domain), played, limit=100)
    return root
