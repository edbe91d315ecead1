"""Score an episode: the same numbers as τ²-bench's own evaluators."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from math import prod
from typing import Literal, NamedTuple, Protocol

from grpo_cl.domains.base import Domain, Environment, State
from grpo_cl.errors import ModelCallError, TaskDataError
from grpo_cl.rewards.agreement import Goal
from grpo_cl.rewards.criteria import check_actions, check_communication, goal_of, replay
from grpo_cl.rewards.memory import MemoryScorer
from grpo_cl.transcripts import Judgement
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
"""Goals kept: the episodes of a group share one."""

JUDGED_AT_ONCE = 32
"""Episodes whose judgement is waited for; how many calls are under way is for the models to say."""

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

    def judge(self, task: Task, messages: Sequence[Message]) -> Judgement:
        """Whether each of the task's ``nl_assertions`` is met.

        Raises ``ModelCallError`` where no answer is to be had.
        """
        ...


class Scored(NamedTuple):
    """An episode with its reward."""

    trajectory: Trajectory
    reward: Reward


class RewardOracle:
    """Scores trajectories of any of ``domains``; a score depends on task and trajectory alone."""

    def __init__(
        self,
        domains: Mapping[str, Domain],
        *,
        basis: BasisName = "tau2",
        judge: Judge | None = None,
        memory: MemoryScorer | None = None,
    ) -> None:
        self._memory = memory or MemoryScorer()
        self._domains = domains
        self._basis_name: BasisName = basis
        self._judge = judge
        self._goals: dict[tuple[str, str], tuple[Task, Goal]] = {}

    def score(
        self, trajectory: Trajectory, evaluation: EvaluationType = EvaluationType.ALL
    ) -> Reward:
        """The reward with its parts. What cannot be scored is worth zero and says why.

        Raises ``ModelCallError`` where a judge is needed and does not answer.
        """
        if _is_memory(trajectory):
            return _unless_cut_short(self._memory.score(trajectory), trajectory)
        return self._score(trajectory, evaluation, self._judgement(trajectory, evaluation))

    def _score(
        self, trajectory: Trajectory, evaluation: EvaluationType, judgement: Judgement | None
    ) -> Reward:
        criteria = trajectory.task.evaluation_criteria
        try:
            reward = (
                self._composed(trajectory, criteria, evaluation, judgement)
                if criteria
                else Reward(value=1.0, basis=(), basis_name=self._basis_name)
            )
        except TaskDataError as error:
            return self._worthless(f"scoring failed: {error}")
        return _unless_cut_short(reward, trajectory)

    def score_all(self, trajectories: Sequence[Trajectory]) -> list[Scored]:
        """The rewards of many episodes; a judge is asked about them at once.

        Where it does not answer, the episode's ending is an infrastructure error: its reward says
        nothing about the agent.
        """
        with ThreadPoolExecutor(JUDGED_AT_ONCE) as pool:  # threads wait for replies and no more
            verdicts = list(pool.map(self._verdict, trajectories))
        return [self._scored(*pair) for pair in zip(trajectories, verdicts, strict=True)]

    def _verdict(self, trajectory: Trajectory) -> Judgement | Reward | ModelCallError | None:
        try:
            if _is_memory(trajectory):
                return self.score(trajectory)
            return self._judgement(trajectory, EvaluationType.ALL)
        except ModelCallError as error:
            return error

    def _scored(
        self, trajectory: Trajectory, verdict: Judgement | Reward | ModelCallError | None
    ) -> Scored:
        if isinstance(verdict, Reward):
            return Scored(trajectory, verdict)
        if not isinstance(verdict, ModelCallError):
            return Scored(trajectory, self._score(trajectory, EvaluationType.ALL, verdict))
        lost = trajectory.model_copy(update={"termination": Termination.INFRASTRUCTURE_ERROR})
        return Scored(lost, self._worthless(f"the judge did not answer: {verdict}"))

    def _worthless(self, reason: str) -> Reward:
        return Reward(value=0.0, basis=None, basis_name=self._basis_name, reason=reason)

    def _judgement(self, trajectory: Trajectory, evaluation: EvaluationType) -> Judgement | None:
        """What a judge says, where there is one and the reward depends on it."""
        criteria = trajectory.task.evaluation_criteria
        if self._judge is None or criteria is None or not criteria.nl_assertions:
            return None
        is_decisive = RewardType.NL_ASSERTION in self._basis(criteria, evaluation)
        if not is_decisive or trajectory.termination not in SCORED:
            return None
        return self._judge.judge(trajectory.task, trajectory.messages)

    def _composed(
        self,
        trajectory: Trajectory,
        criteria: EvaluationCriteria,
        evaluation: EvaluationType,
        judgement: Judgement | None,
    ) -> Reward:
        task, messages = trajectory.task, trajectory.messages
        domain = self._domains[task.domain]
        environment = replay(domain, task, messages, solo=trajectory.solo)
        held = tuple(environment.holds(check) for check in criteria.env_assertions or ())
        actions = check_actions(environment, task.gold_actions, trajectory.tool_calls)
        told = check_communication(criteria, messages)
        any_world = criteria.actions is None and criteria.env_assertions is None
        goal, end = None if any_world else self._goal(domain, task), environment.state()
        basis = self._basis(criteria, evaluation)
        components = {
            RewardType.DB: float(goal is None or end == goal.end),
            RewardType.ENV_ASSERTION: float(all(held)),
            RewardType.ACTION: float(all(check.match for check in actions)),
            RewardType.COMMUNICATE: float(all(told)),
        }
        if judgement is not None:
            components[RewardType.NL_ASSERTION] = float(all(judgement.met))
        elif RewardType.NL_ASSERTION in basis and not criteria.nl_assertions:
            components[RewardType.NL_ASSERTION] = 1.0
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
            agreement=_agreement(goal, environment, end) if RewardType.DB in basis else None,
            judgement=judgement,
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

    def _goal(self, domain: Domain, task: Task) -> Goal:
        key = (task.domain, task.id)
        known = self._goals.get(key)
        if known is not None and known[0] is task:
            return known[1]
        goal = goal_of(domain, task)
        if len(self._goals) >= REMEMBERED_TASKS:
            self._goals.clear()
        self._goals[key] = (task, goal)
        return goal


def _agreement(goal: Goal | None, environment: Environment, end: State) -> float:
    return 1.0 if goal is None else goal.agreement(environment, end)


def _is_memory(trajectory: Trajectory) -> bool:
    criteria = trajectory.task.evaluation_criteria
    return criteria is not None and RewardType.ANSWERS in criteria.reward_basis


def _unless_cut_short(reward: Reward, trajectory: Trajectory) -> Reward:
    if trajectory.termination in SCORED:
        return reward
    reason = f"the episode ended by {trajectory.termination}"
    steps = tuple(step.model_copy(update={"value": 0.0}) for step in reward.steps)
    unscored = {"value": 0.0, "basis": None, "not_judged": (), "reason": reason, "steps": steps}
    return reward.model_copy(update=unscored)


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
