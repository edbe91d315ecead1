"""Score an episode: the same numbers as τ²-bench's own evaluators."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import prod
from typing import Literal, Protocol

from grpo_cl.domains.base import Domain, State
from grpo_cl.errors import TaskDataError
from grpo_cl.rewards.criteria import check_actions, check_communication, gold_state, replay
from grpo_cl.types import (
    EvaluationCriteria,
    Message,
    Reward,
    RewardType,
    Task,
    Termination,
    Trajectory,
)

SCORED = frozenset({Termination.AGENT_STOP, Termination.USER_STOP})
"""An episode that ended in any other way is worth nothing, whatever its components say."""

REMEMBERED_TASKS = 4096
"""Gold states kept: the episodes of a group share one."""

BasisName = Literal["tau2", "judge_free"]


class EvaluationType(StrEnum):
    """Which components make the value."""

    ENV = "ENV"
    ACTION = "ACTION"
    COMMUNICATE = "COMMUNICATE"
    NL_ASSERTION = "NL_ASSERTION"
    ALL = "ALL"


_ALONE = {
    EvaluationType.ACTION: RewardType.ACTION,
    EvaluationType.COMMUNICATE: RewardType.COMMUNICATE,
    EvaluationType.NL_ASSERTION: RewardType.NL_ASSERTION,
}
_WORLD = (RewardType.DB, RewardType.ENV_ASSERTION)


class Judge(Protocol):
    """Decides statements about a conversation that no rule can."""

    def judge(self, task: Task, messages: Sequence[Message]) -> Sequence[bool]:
        """Whether each of the task's ``nl_assertions`` is met."""
        ...


class RewardOracle:
    """Scores trajectories of any of ``domains``; a score depends on task and trajectory alone."""

    def __init__(
        self,
        domains: Mapping[str, Domain],
        *,
        basis: BasisName = "tau2",
        judge: Judge | None = None,
    ) -> None:
        self._domains = domains
        self._basis_name: BasisName = basis
        self._judge = judge
        self._gold: dict[tuple[str, str], tuple[Task, State]] = {}

    def score(
        self, trajectory: Trajectory, evaluation: EvaluationType = EvaluationType.ALL
    ) -> Reward:
        """The reward with its parts. What cannot be scored is worth zero and says why."""
        criteria = trajectory.task.evaluation_criteria
        try:
            reward = (
                self._judged(trajectory, criteria, evaluation)
                if criteria
                else Reward(value=1.0, basis=(), basis_name=self._basis_name)
            )
        except TaskDataError as error:
            reason = f"scoring failed: {error}"
            return Reward(value=0.0, basis=None, basis_name=self._basis_name, reason=reason)
        if trajectory.termination in SCORED:
            return reward
        reason = f"the episode ended by {trajectory.termination}"
        unscored = {"value": 0.0, "basis": None, "not_judged": (), "reason": reason}
        return reward.model_copy(update=unscored)

    def _judged(
        self, trajectory: Trajectory, criteria: EvaluationCriteria, evaluation: EvaluationType
    ) -> Reward:
        task, messages = trajectory.task, trajectory.messages
        domain = self._domains[task.domain]
        environment = replay(domain, task, messages, solo=trajectory.solo)
        held = tuple(environment.holds(check) for check in criteria.env_assertions or ())
        actions = check_actions(environment, task.gold_actions, trajectory.tool_calls)
        told = check_communication(criteria, messages)
        same = criteria.actions is None and criteria.env_assertions is None
        components = {
            RewardType.DB: float(same or environment.state() == self._gold_state(domain, task)),
            RewardType.ENV_ASSERTION: float(all(held)),
            RewardType.ACTION: float(all(check.match for check in actions)),
            RewardType.COMMUNICATE: float(all(told)),
        }
        basis = self._basis(criteria, evaluation)
        components |= self._natural_language(task, messages, basis)
        return Reward(
            value=prod(components[part] for part in basis if part in components),
            basis=basis,
            basis_name=self._basis_name,
            components=components,
            not_judged=tuple(part for part in basis if part not in components),
            action_checks=actions,
            env_assertions=held,
            communicate_checks=told,
            tool_accuracy=sum(check.match for check in actions) / len(actions) if actions else None,
        )

    def _basis(
        self, criteria: EvaluationCriteria, evaluation: EvaluationType
    ) -> tuple[RewardType, ...]:
        basis = judge_free(criteria) if self._basis_name == "judge_free" else criteria.reward_basis
        if evaluation is EvaluationType.ALL:
            return basis
        if evaluation is EvaluationType.ENV:
            return tuple(part for part in basis if part in _WORLD)
        return (_ALONE[evaluation],)

    def _natural_language(
        self, task: Task, messages: Sequence[Message], basis: tuple[RewardType, ...]
    ) -> dict[RewardType, float]:
        if RewardType.NL_ASSERTION not in basis:
            return {}
        criteria = task.evaluation_criteria
        if criteria is None or not criteria.nl_assertions:
            return {RewardType.NL_ASSERTION: 1.0}
        if self._judge is None:
            return {}
        return {RewardType.NL_ASSERTION: float(all(self._judge.judge(task, messages)))}

    def _gold_state(self, domain: Domain, task: Task) -> State:
        key = (task.domain, task.id)
        known = self._gold.get(key)
        if known is not None and known[0] is task:
            return known[1]
        state = gold_state(domain, task)
        if len(self._gold) >= REMEMBERED_TASKS:
            self._gold.clear()
        self._gold[key] = (task, state)
        return state


def judge_free(criteria: EvaluationCriteria) -> tuple[RewardType, ...]:
    """A basis that needs no judge: COMMUNICATE stands in for natural-language assertions.

    In the current retail tasks the assertions either restate ``communicate_info`` or what the
    database shows, so the stand-in counts only where a task has both.
    """
    kept = tuple(part for part in criteria.reward_basis if part is not RewardType.NL_ASSERTION)
    restated = bool(criteria.nl_assertions and criteria.communicate_info)
    if kept == criteria.reward_basis or not restated or RewardType.COMMUNICATE in kept:
        return kept
    return (*kept, RewardType.COMMUNICATE)
