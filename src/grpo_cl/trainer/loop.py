"""The loop: learn the domains of an order one after another, and measure all of them after each."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from grpo_cl.algorithms import CLAlgorithm, algorithm_for
from grpo_cl.buffer import TrajectoryBuffer
from grpo_cl.config import GRPOConfig
from grpo_cl.evaluation import Play, evaluate
from grpo_cl.metrics.rmatrix import BASE, Cell, Drift
from grpo_cl.rewards import RewardOracle, Scored
from grpo_cl.rollout import Actor, run_episodes
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer.cast import Cast
from grpo_cl.trainer.effort import Effort
from grpo_cl.trainer.interruption import STATUS, Interruption
from grpo_cl.trainer.record import Position, RunRecord
from grpo_cl.trainer.rollouts import (
    Batch,
    Credit,
    collect,
    collect_varied,
    credit,
    is_telling,
    summary,
    told_rewards,
)
from grpo_cl.types import SUCCESS, Task, TokenTrace, Trajectory, TrajectoryGroup


class Policy(Protocol):
    """What the loop needs from a policy: act, learn, and be written down."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes files."""
        ...

    def actor(self, *, temperature: float) -> Actor:
        """An actor that writes with today's weights."""
        ...

    def frozen_actor(self, *, temperature: float) -> Actor:
        """An actor that writes with the weights the run started from."""
        ...

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        advantages: Sequence[Credit],
        *,
        auxiliary: Callable[[Any], Any] | None,
        transform: Callable[[Sequence[tuple[str, Any]]], None] | None,
    ) -> dict[str, float]:
        """Learn from groups and return what to log."""
        ...

    def spread(self, count: int, run: Callable[[Sequence[int]], Sequence[Any]]) -> list[Any]:
        """``run`` over the numbers below ``count``, each by one process; all get all results."""
        ...

    def drift(self, domain: str, traces: Sequence[TokenTrace]) -> Drift | None:
        """How far the policy is from earlier ones in a domain, if the run asks for it."""
        ...

    def remember(self, domain: str) -> None:
        """Be what the drift in a domain is measured from during the next stage."""
        ...

    def agree(self, *, flag: bool) -> bool:
        """Whether any process says so."""
        ...

    def save(self, folder: Path) -> None:
        """Write a model that others can load."""
        ...

    def save_state(self, folder: Path) -> None:
        """Write what an exact resume needs."""
        ...

    def load_state(self, folder: Path) -> None:
        """Go on from ``save_state``."""
        ...


class GRPOTrainer:
    """Learns the domains of ``config.task_order`` one after another."""

    def __init__(self, config: GRPOConfig, *, policy: Policy | None = None) -> None:
        self.config = config
        self.cast = Cast(config)
        self.tasks = TaskDataLoader(config)
        self.oracle = RewardOracle(
            self.tasks.domains,
            basis=config.reward.basis,
            judge=self.cast.judge,
            memory=self.cast.memory,
        )
        self.trajectory_buffer = TrajectoryBuffer(config)
        self._algorithm = algorithm_for(config)
        self.policy = policy or _default_policy(config)
        self._algorithm.bind(self)
        self.position = Position()
        self._interruption = Interruption()
        self._effort = Effort()
        self.record = RunRecord(config, self.tasks, is_main=self.policy.is_main)

    @property
    def cl_algorithm(self) -> CLAlgorithm:
        """The algorithm that decides what is kept of earlier domains."""
        return self._algorithm

    @cl_algorithm.setter
    def cl_algorithm(self, algorithm: CLAlgorithm) -> None:
        algorithm.check(self.config)
        algorithm.bind(self)
        self._algorithm = algorithm

    def train(self) -> dict[str, Any]:
        """Learn every domain in turn; before the first and after each, evaluate all of them."""
        with self.record, self._interruption:
            self._begin()
            if not self.record.has_row(BASE):
                self._evaluate_all(BASE)
            while self.position.stage < len(self.config.task_order):
                domain = self.config.task_order[self.position.stage]
                self._learn(domain)
                self._evaluate_all(domain)
                with self.cl_algorithm.policy_for_evaluation(domain):
                    self.record.close_stage(
                        self.position.stage, self.policy, self.trajectory_buffer
                    )
                self.position = Position(stage=self.position.stage + 1)
                self._save()
            return self.record.finish()

    def _learn(self, domain: str) -> None:
        if self.position.step == 0:
            self.cl_algorithm.before_task(domain)
        while self.position.step < self.config.num_steps_per_task:
            numbers = self.train_step(domain)
            self.record.log_step(self.position, numbers)
            self.position = self.position._replace(step=self.position.step + 1)
            if self.config.eval_interval and self.position.step % self.config.eval_interval == 0:
                self._evaluate_learned()
            is_ending = self.policy.agree(flag=self._interruption.is_asked)
            is_spent = self.policy.agree(flag=not self.cast.covers_another_step())
            if is_ending or is_spent or self.record.is_due(self.position):
                self._save()
            if is_ending:
                raise SystemExit(STATUS)
            if is_spent:
                self.cast.end()
        # After the checkpoint of the last step: another algorithm can go on from that one.
        self.cl_algorithm.post_task_hook(self, domain)

    def train_step(self, domain: str) -> dict[str, float]:
        """Tasks, episodes, rewards, advantages, update."""
        started = time.monotonic()
        new_tasks = self.tasks.next_batch(domain, self.config.tasks_per_step)
        tasks = self.cl_algorithm.augment_batch(new_tasks, domain)
        batch = self._collect(tasks, domain)
        groups = self.cl_algorithm.augment_rollouts(batch.groups, domain)
        rollout_s = time.monotonic() - started
        shaped = [(g, self.cl_algorithm.shape_rewards(g, g.training_rewards)) for g in groups]
        credited = [(group, credit(group, rewards, self.config)) for group, rewards in shaped]
        learned = [(group, given) for group, given in credited if is_telling(given)]
        numbers = self.policy.update(
            [group for group, _ in learned],
            [given for _, given in learned],
            auxiliary=self.cl_algorithm.auxiliary_loss,
            transform=self.cl_algorithm.transform_gradients,
        )
        for group in groups:
            self.trajectory_buffer.add(group, step=self._global_step)
        self.record.keep(groups, self._global_step)
        self.cl_algorithm.post_step_hook(self, domain)
        return {
            **numbers,
            **self.cl_algorithm.telemetry(),
            **summary(batch, num_flat=len(groups) - len(learned)),
            **self._effort.take(),
            "rollout_s": rollout_s,
            "step_s": time.monotonic() - started,
        }

    def evaluate_task(self, domain: str) -> Cell:
        """Measure the current policy on the evaluation tasks of ``domain``."""
        sampled = self.config.evaluation.is_sampled
        actor = self.policy.actor(temperature=self.config.temperature if sampled else 0.0)
        tasks = self.tasks.evaluation_tasks(domain)
        play, compare = self._player(actor), partial(self.policy.drift, domain)
        with self.cl_algorithm.policy_for_evaluation(domain):
            return evaluate(play, tasks, self._score, self.config, compare=compare)

    @property
    def _global_step(self) -> int:
        return self.position.stage * self.config.num_steps_per_task + self.position.step

    def _collect(self, tasks: Sequence[Task], domain: str) -> Batch:
        play = self._player(self.policy.actor(temperature=self.config.temperature))

        def collect_groups(tasks: Sequence[Task], attempt: int) -> list[TrajectoryGroup]:
            label = f"step/{self._global_step}/{attempt}"
            groups = collect(tasks, play=play, score=self._score, config=self.config, label=label)
            for group in groups:  # also those that others take the place of
                self._observe(group)
            return groups

        return collect_varied(
            tasks, lambda count: self.tasks.next_batch(domain, count), collect_groups, self.config
        )

    def _player(self, actor: Actor) -> Play:
        models = self.cast.users(self.policy)

        def play(tasks: Sequence[Task], seeds: Sequence[int]) -> list[Trajectory]:
            def run(places: Sequence[int]) -> list[Trajectory]:
                return run_episodes(
                    actor,
                    self.tasks.domains,
                    [tasks[place] for place in places],
                    self.config.rollout,
                    seeds=[seeds[place] for place in places],
                    models=models,
                )

            with self._effort.timed():
                played = self.policy.spread(len(tasks), run)
            self._effort.add(played)
            return played

        return play

    def _score(self, played: Sequence[Trajectory]) -> list[Scored]:
        if not self.cast.is_paid_to_score:
            return self.oracle.score_all(played)
        # Every process must see the same verdicts, and each of them is paid for once.
        return self.policy.spread(
            len(played), lambda places: self.oracle.score_all([played[place] for place in places])
        )

    def _observe(self, group: TrajectoryGroup) -> None:
        if group.task.domain in self.tasks.domains:
            known = told_rewards(group, [reward.value for reward in group.rewards])
            successes = sum(value >= SUCCESS for value in known)
            self.tasks.observe(group.task, successes=successes, trials=len(known))

    def _evaluate_learned(self) -> None:
        """Measure within a stage what it learns and what it may do to the domains before it."""
        for domain in self.config.task_order[: self.position.stage + 1]:
            cell = self.evaluate_task(domain)
            self.record.log_evaluation(self.position, domain, cell, self._effort.take())

    def _evaluate_all(self, after: str) -> None:
        for domain in self.config.task_order:
            cell = self.evaluate_task(domain)
            self.record.log_cell(self.position, (after, domain), cell, self._effort.take())
            with self.cl_algorithm.policy_for_evaluation(domain):
                self.policy.remember(domain)
        self.record.log_row(self.position, self.trajectory_buffer.get_statistics())

    def _begin(self) -> None:
        found = self.record.begin()
        if self.policy.is_main:
            self.cast.open_ledger(self.record.run.root)
        if found is None:
            return
        state: Mapping[str, Any] = found.state
        self.position = Position(**state["position"])
        self.tasks.load_state_dict(state["tasks"])
        self.trajectory_buffer.load(found.files.trajectories)
        is_branch = state["algorithm"] is None  # of another run; its algorithm begins here
        if not is_branch:
            self.cl_algorithm.load_state_dict(state["algorithm"])
        self.policy.load_state(found.files.policy_dir)
        if not is_branch:
            self.cl_algorithm.load_state(found.files.algorithm_dir)

    def _save(self) -> None:
        state = {
            "position": self.position._asdict(),
            "tasks": self.tasks.state_dict(),
            "algorithm": self.cl_algorithm.state_dict(),
        }
        parts = (self.policy.save_state, self.cl_algorithm.save_state)
        self.record.save(self._global_step, state, parts, self.trajectory_buffer)


def _default_policy(config: GRPOConfig) -> Policy:
    from grpo_cl.policy.runtime import PolicyRuntime  # noqa: PLC0415  # torch is slow to import

    return PolicyRuntime(config)
