"""Why an episode has its reward: its components and gold actions, each with a sentence."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.report.scores import COMPONENTS
from grpo_cl.rewards.advantages import INFRASTRUCTURE
from grpo_cl.rewards.criteria import matches
from grpo_cl.rewards.oracle import SCORED_TERMINATIONS
from grpo_cl.types import (
    SUCCESS,
    Action,
    Reward,
    RewardType,
    Task,
    Termination,
    ToolCall,
    Trajectory,
)

_MEMORY = {
    RewardType.ANSWERS: "answers",
    RewardType.CALLS: "valid calls",
    RewardType.COMPRESSION: "compression",
    RewardType.CONTENT: "content",
}

_UNSCORED = {
    Termination.MAX_STEPS: "The limit rollout.max_turns or rollout.max_steps was reached",
    Termination.TIMEOUT: "The limit rollout.timeout_s was reached",
    Termination.TOO_MANY_ERRORS: "The limit of failed tool calls, rollout.max_errors, was reached",
    Termination.AGENT_ERROR: "The agent's last reply was empty",
    Termination.USER_ERROR: "The user's last message was empty",
    Termination.CONTEXT_WINDOW_EXCEEDED: "The context, sampling.max_context, was full",
}
"""What ended an episode that is not scored and whose policy or user is the reason."""


class RewardPart(NamedTuple):
    """One component of a reward."""

    name: str
    label: str
    value: float | None
    """None if it was not judged."""
    counts: bool
    """Whether it is a factor of the reward."""
    why: str


class GoldAction(NamedTuple):
    """A gold action and what the episode made of it."""

    call: ToolCall
    state: str
    """``called``, ``other arguments`` or ``not called``."""


def outcome(trajectory: Trajectory, reward: Reward) -> str:
    """``success``, ``failure``, ``partial``, or ``error`` for an infrastructure error."""
    if trajectory.termination in INFRASTRUCTURE:
        return "error"
    if reward.value >= SUCCESS:
        return "success"
    return "partial" if reward.value > 0 else "failure"


def reward_parts(task: Task, reward: Reward) -> list[RewardPart]:
    """The components, those that count first."""
    parts = [
        RewardPart(
            name=name.value,
            label=COMPONENTS.get(name.value) or _MEMORY.get(name, name.value),
            value=reward.components.get(name),
            counts=name in (reward.basis or ()) or name in reward.not_judged,
            why=_why(name, task, reward),
        )
        for name in dict.fromkeys((*reward.components, *reward.not_judged))
    ]
    return sorted(parts, key=lambda part: not part.counts)


def reward_reason(trajectory: Trajectory, reward: Reward) -> str:
    """One sentence about the whole reward; empty if its components say everything."""
    ended = trajectory.termination
    if ended is Termination.AGENT_ERROR and trajectory.solo:
        return "The agent's last reply has no tool call that could be parsed: reward 0."
    if ended in _UNSCORED:
        return f"{_UNSCORED[ended]}: reward 0."
    if ended not in SCORED_TERMINATIONS and not reward.reason:
        return f"The episode ended with {ended.value}: reward 0."
    return reward.reason or ""


def gold_actions(task: Task, reward: Reward, calls: Sequence[ToolCall]) -> list[GoldAction]:
    """The gold actions with their checks; without checks, by the calls of the episode."""
    checks = {check.action_id: check for check in reward.action_checks}
    found: list[GoldAction] = []
    for action in task.gold_actions:
        check = checks.get(action.action_id)
        if check.match if check else any(matches(action, call) for call in calls):
            state = "called"
        elif any(call.name == action.name for call in calls):
            state = "other arguments"
        else:
            state = "not called"
        found.append(GoldAction(action.call, state))
    return found


def matched_call(task: Task, call: ToolCall) -> bool:
    """Whether a call of the episode is one of the gold actions."""
    return any(_is_exact(action, call) for action in task.gold_actions)


def _is_exact(action: Action, call: ToolCall) -> bool:
    return matches(action, call) and action.requestor == call.requestor


def _why(name: RewardType, task: Task, reward: Reward) -> str:
    if name in reward.not_judged and name not in reward.components:
        return "it needs a judge, and there was none"
    if name is RewardType.DB:
        return _database(reward)
    if name is RewardType.ANSWERS:
        full = sum(check.score >= SUCCESS for check in reward.answer_checks)
        return f"{full} of {len(reward.answer_checks)} answers are right"
    checks = _checks(name, task, reward)
    if checks is None:
        return ""
    return _count(*checks)


def _database(reward: Reward) -> str:
    if reward.components[RewardType.DB] >= SUCCESS:
        return "the database ends as the gold actions leave it"
    share = "" if reward.agreement is None else f": {reward.agreement:.0%} of the changes agree"
    return f"the database does not end as the gold actions leave it{share}"


class _Checks(NamedTuple):
    none: str
    """The sentence of a task without checks."""
    verb: str
    verdicts: Sequence[tuple[str, bool]]


def _checks(name: RewardType, task: Task, reward: Reward) -> _Checks | None:
    criteria = task.evaluation_criteria
    if criteria is None:
        return None
    match name:
        case RewardType.ENV_ASSERTION:
            texts = [a.message or a.func_name for a in criteria.env_assertions or ()]
            verdicts = list(zip(texts, reward.env_assertions, strict=False))
            return _Checks("the task asserts nothing about the environment", "hold", verdicts)
        case RewardType.ACTION:
            verdicts = [(check.name, check.match) for check in reward.action_checks]
            return _Checks("the solution is to call nothing", "gold actions were called", verdicts)
        case RewardType.COMMUNICATE:
            texts = [repr(text) for text in criteria.communicate_info or ()]
            verdicts = list(zip(texts, reward.communicate_checks, strict=False))
            return _Checks("there is nothing that the agent must say", "were said", verdicts)
        case RewardType.NL_ASSERTION:
            met = reward.judgement.met if reward.judgement else ()
            verdicts = list(zip(criteria.nl_assertions or (), met, strict=False))
            return _Checks("the task has no assertions to judge", "were judged as met", verdicts)
        case _:
            return None


def _count(none: str, verb: str, verdicts: Sequence[tuple[str, bool]]) -> str:
    if not verdicts:
        return none
    missed = [text for text, is_met in verdicts if not is_met]
    met = f"{len(verdicts) - len(missed)} of {len(verdicts)} {verb}"
    return f"{met}; not: {', '.join(missed)}" if missed else met
