"""Reward oracle: scores trajectories as τ²-bench's evaluators do."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from math import prod
from typing import Literal, NamedTuple, Protocol

from grpo_cl.envs.base import Domain, Environment, EpisodeScorer, State
from grpo_cl.errors import ModelCallError, TaskDataError
from grpo_cl.llm import ModelPool
from grpo_cl.rewards.agreement import GoalState
from grpo_cl.rewards.criteria import check_actions, check_communication, goal_state, replay
from grpo_cl.types import (
    EvaluationCriteria,
    Judgement,
    Message,
    Reward,
    RewardType,
    Task,
    Termination,
    Trajectory,
)

SCORED_TERMINATIONS = frozenset({Termination.AGENT_STOP, Termination.USER_STOP})
"""Episodes that end in any other way have reward 0, whatever their components are."""

GOAL_CACHE_SIZE = 4096
"""Goal states kept; the episodes of a group share one."""

JUDGE_THREADS = 32
"""Episodes judged at once; ``models.concurrency`` limits the model calls."""

BasisName = Literal["tau2", "judge_free"]


class EvaluationType(StrEnum):
    """The components that enter the reward."""

    ENV = "ENV"
    ACTION = "ACTION"
    COMMUNICATE = "COMMUNICATE"
    NL_ASSERTION = "NL_ASSERTION"
    ALL = "ALL"


_SINGLE_COMPONENT = {
    EvaluationType.ACTION: RewardType.ACTION,
    EvaluationType.COMMUNICATE: RewardType.COMMUNICATE,
    EvaluationType.NL_ASSERTION: RewardType.NL_ASSERTION,
}
_ENVIRONMENT_COMPONENTS = (RewardType.DB, RewardType.ENV_ASSERTION)


class Judge(Protocol):
    """Decides natural-language assertions about a conversation."""

    def judge(self, task: Task, messages: Sequence[Message]) -> Judgement:
        """Whether each of the task's ``nl_assertions`` is met.

        Raises ``ModelCallError`` if the model gives no answer.
        """
        ...


class ScoredTrajectory(NamedTuple):
    """A trajectory with its reward."""

    trajectory: Trajectory
    reward: Reward


class RewardOracle:
    """Scores trajectories of ``domains``; a reward depends on task and trajectory only."""

    def __init__(
        self,
        domains: Mapping[str, Domain],
        *,
        basis: BasisName = "tau2",
        judge: Judge | None = None,
        models: ModelPool | None = None,
    ) -> None:
        self._domains = domains
        self._models = models
        self._scorers = {name: domain.scorer(models) for name, domain in domains.items()}
        self._basis_name: BasisName = basis
        self._judge = judge
        self._goals: dict[tuple[str, str], tuple[Task, GoalState]] = {}

    @property
    def calls_models(self) -> bool:
        """Whether scoring may call a model."""
        scorers = self._scorers.values()
        return self._judge is not None or any(scorer and scorer.calls_models for scorer in scorers)

    def score(
        self, trajectory: Trajectory, evaluation: EvaluationType = EvaluationType.ALL
    ) -> Reward:
        """The reward with its components; 0 with a ``reason`` if the trajectory cannot be scored.

        Raises ``ModelCallError`` if a judge is needed and does not answer.
        """
        scorer = self._scorer(trajectory)
        if scorer is not None:
            return _zero_unless_stopped(scorer.score(trajectory), trajectory)
        return self._score(trajectory, evaluation, self._judgement(trajectory, evaluation))

    def _scorer(self, trajectory: Trajectory) -> EpisodeScorer | None:
        """The scorer of the trajectory's domain; None if τ²-bench's evaluation applies."""
        name = trajectory.task.domain
        if name not in self._scorers:  # ``domains`` may grow after the oracle is made
            self._scorers[name] = self._domains[name].scorer(self._models)
        return self._scorers[name]

    def _score(
        self, trajectory: Trajectory, evaluation: EvaluationType, judgement: Judgement | None
    ) -> Reward:
        criteria = trajectory.task.evaluation_criteria
        try:
            reward = (
                self._evaluate_criteria(trajectory, criteria, evaluation, judgement)
                if criteria
                else Reward(value=1.0, basis=(), basis_name=self._basis_name)
            )
        except TaskDataError as error:
            return self._zero_reward(f"scoring failed: {error}")
        return _zero_unless_stopped(reward, trajectory)

    def score_all(self, trajectories: Sequence[Trajectory]) -> list[ScoredTrajectory]:
        """The rewards of many trajectories, judged concurrently.

        If the judge does not answer, the trajectory's termination becomes an infrastructure error,
        which excludes it from baselines and means.
        """
        for trajectory in trajectories:
            self._scorer(trajectory)  # created here and not by several threads at once
        if self.calls_models:
            with ThreadPoolExecutor(JUDGE_THREADS) as pool:  # the threads only wait for replies
                verdicts = list(pool.map(self._verdict, trajectories))
        else:
            verdicts = list(map(self._verdict, trajectories))
        return [self._scored(*pair) for pair in zip(trajectories, verdicts, strict=True)]

    def _verdict(self, trajectory: Trajectory) -> Judgement | Reward | ModelCallError | None:
        try:
            if self._scorer(trajectory) is not None:
                return self.score(trajectory)
            return self._judgement(trajectory, EvaluationType.ALL)
        except ModelCallError as error:
            return error

    def _scored(
        self, trajectory: Trajectory, verdict: Judgement | Reward | ModelCallError | None
    ) -> ScoredTrajectory:
        if isinstance(verdict, Reward):
            return ScoredTrajectory(trajectory, verdict)
        if not isinstance(verdict, ModelCallError):
            return ScoredTrajectory(
                trajectory, self._score(trajectory, EvaluationType.ALL, verdict)
            )
        failed = trajectory.model_copy(update={"termination": Termination.INFRASTRUCTURE_ERROR})
        return ScoredTrajectory(failed, self._zero_reward(f"the judge did not answer: {verdict}"))

    def _zero_reward(self, reason: str) -> Reward:
        return Reward(value=0.0, basis=None, basis_name=self._basis_name, reason=reason)

    def _judgement(self, trajectory: Trajectory, evaluation: EvaluationType) -> Judgement | None:
        """The judge's verdicts; None without a judge or if the reward does not depend on it."""
        criteria = trajectory.task.evaluation_criteria
        if self._judge is None or criteria is None or not criteria.nl_assertions:
            return None
        is_decisive = RewardType.NL_ASSERTION in self._basis(criteria, evaluation)
        if not is_decisive or trajectory.termination not in SCORED_TERMINATIONS:
            return None
        return self._judge.judge(trajectory.task, trajectory.messages)

    def _evaluate_criteria(
        self,
        trajectory: Trajectory,
        criteria: EvaluationCriteria,
        evaluation: EvaluationType,
        judgement: Judgement | None,
    ) -> Reward:
        task, messages = trajectory.task, trajectory.messages
        domain = self._domains[task.domain]
        environment = replay(domain, task, messages, solo=trajectory.solo)
        env_checks = tuple(environment.holds(check) for check in criteria.env_assertions or ())
        actions = check_actions(environment, task.gold_actions, trajectory.tool_calls)
        communicated = check_communication(criteria, messages)
        has_goal = criteria.actions is not None or criteria.env_assertions is not None
        goal, end = self._goal(domain, task) if has_goal else None, environment.state()
        basis = self._basis(criteria, evaluation)
        components = {
            RewardType.DB: float(goal is None or end == goal.end),
            RewardType.ENV_ASSERTION: float(all(env_checks)),
            RewardType.ACTION: float(all(check.match for check in actions)),
            RewardType.COMMUNICATE: float(all(communicated)),
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
            env_assertions=env_checks,
            communicate_checks=communicated,
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
            return tuple(part for part in basis if part in _ENVIRONMENT_COMPONENTS)
        return (_SINGLE_COMPONENT[evaluation],)

    def _goal(self, domain: Domain, task: Task) -> GoalState:
        key = (task.domain, task.id)
        cached = self._goals.get(key)
        if cached is not None and cached[0] is task:
            return cached[1]
        goal = goal_state(domain, task)
        if len(self._goals) >= GOAL_CACHE_SIZE:
            self._goals.clear()
        self._goals[key] = (task, goal)
        return goal


def _agreement(goal: GoalState | None, environment: Environment, end: State) -> float:
    return 1.0 if goal is None else goal.agreement(environment, end)


def _zero_unless_stopped(reward: Reward, trajectory: Trajectory) -> Reward:
    if trajectory.termination in SCORED_TERMINATIONS:
        return reward
    reason = f"the episode ended by {trajectory.termination}"
    steps = tuple(step.model_copy(update={"value": 0.0}) for step in reward.steps)
    unscored = {"value": 0.0, "basis": None, "not_judged": (), "reason": reason, "steps": steps}
    return reward.model_copy(update=unscored)


def judge_free(criteria: EvaluationCriteria) -> tuple[RewardType, ...]:
    """The reward basis without a judge: COMMUNICATE replaces natural-language assertions.

    In the current retail tasks the assertions restate either ``communicate_info`` or the database
    state, so the replacement applies only to tasks with both.
    """
    kept = tuple(part for part in criteria.reward_basis if part is not RewardType.NL_ASSERTION)
    restated = bool(criteria.nl_assertions and criteria.communicate_info)
    if kept == criteria.reward_basis or not restated or RewardType.COMMUNICATE in kept:
        return kept
    return (*kept, RewardType.COMMUNICATE)
