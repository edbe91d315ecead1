"""What tasks are worth before anyone learns: their gold solution, and policies that do nothing.

A task that is solved by doing nothing, or by handing over at once, tells little about an agent, so
every score is read beside these floors and beside the score over the remaining tasks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_cl.domains.base import Domain
from grpo_cl.recordings import Recording, execute
from grpo_cl.rewards import RewardOracle
from grpo_cl.types import Message, Record, RewardType, Task, Termination, ToolCall
from grpo_cl.users.base import STOP

TRANSFER = "transfer_to_human_agents"


class TaskAudit(Record):
    """Rewards of three fixed policies on one task."""

    task_id: str
    gold: float
    idle: float
    """Of an agent that ends at once."""
    transfer: float
    """Of an agent that hands over to a human at once."""
    not_judged: tuple[RewardType, ...]
    is_refusal: bool

    @property
    def is_telling(self) -> bool:
        """Whether the task must be worked on to be solved."""
        return self.idle < 1 and self.transfer < 1


def audit_task(domain: Domain, task: Task) -> TaskAudit:
    """Play the gold actions, nothing, and a transfer."""
    oracle = RewardOracle({domain.name: domain})
    transfer = ToolCall(id="0", name=TRANSFER, arguments={"summary": ""})
    played = {
        "gold": [action.call for action in task.gold_actions],
        "idle": [],
        "transfer": [transfer],
    }
    rewards = {
        name: oracle.score(
            execute(domain, task, scripted(task, calls, told=name == "gold")).trajectory
        )
        for name, calls in played.items()
    }
    return TaskAudit(
        task_id=task.id,
        **{name: reward.value for name, reward in rewards.items()},
        not_judged=rewards["gold"].not_judged,
        is_refusal=task.is_refusal,
    )


def scripted(task: Task, calls: Sequence[ToolCall], *, told: bool = False) -> Recording:
    """A conversation that makes ``calls``, and says all there is to say if ``told``."""
    criteria = task.evaluation_criteria
    info = " ".join((criteria.communicate_info or ()) if told and criteria else ())
    said = [
        Message(role=call.requestor, tool_calls=(call.model_copy(update={"id": str(number)}),))
        for number, call in enumerate(calls)
    ]
    closing = Message(role="assistant", content=f"{info} Is there anything else?")
    return Recording(
        id=task.id,
        domain=task.domain,
        task_id=task.id,
        termination_reason=Termination.USER_STOP,
        messages=(
            *task.message_history,
            Message(role="user", content="Hello."),
            *said,
            closing,
            Message(role="user", content=STOP),
        ),
    )


def summarize(audits: Sequence[TaskAudit]) -> Mapping[str, Any]:
    """Counts over the tasks of a split."""
    return {
        "tasks": len(audits),
        "gold": sum(audit.gold == 1 for audit in audits),
        "idle": sum(audit.idle == 1 for audit in audits),
        "transfer": sum(audit.transfer == 1 for audit in audits),
        "telling": sum(audit.is_telling for audit in audits),
        "needs_judge": sum(bool(audit.not_judged) for audit in audits),
        "refusals": sum(audit.is_refusal for audit in audits),
        "broken": [audit.task_id for audit in audits if audit.gold < 1],
    }
