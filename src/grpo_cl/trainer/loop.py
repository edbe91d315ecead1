"""The training loop: train on the domains in order, evaluate all of them after each."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from grpo_cl.algorithms import CLAlgorithm, PolicyView, algorithm_for
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.experiment_trackers import ExperimentTracker
from grpo_cl.metrics.metrics_tracker import MetricsTracker
from grpo_cl.metrics.rmatrix import BASE, Cell, Drift
from grpo_cl.rewards import ScoredTrajectory
from grpo_cl.rewards.advantages import GroupAdvantages, compute_advantages, has_signal
from grpo_cl.rollout import Actor, run_all
from grpo_cl.rollout import play as play_episode
from grpo_cl.runs.checkpoint_state import STATE
from grpo_cl.runs.resume import run_of
from grpo_cl.runs.settings import settings_in_force
from grpo_cl.runs.state_files import restoring
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.trainer.auxiliary_models import AuxiliaryModels
from grpo_cl.trainer.collect import collect, summarize
from grpo_cl.trainer.evaluate import Play, evaluate
from grpo_cl.trainer.preflight import check_prompts, check_training, warn_of_limits
from grpo_cl.trainer.process import Interruption, all_ranks, frozen_gc
from grpo_cl.trainer.resume import Checkpoint
from grpo_cl.trainer.rollout_stats import RolloutStats
from grpo_cl.trainer.rollouts import Rollouts, RolloutsAhead
from grpo_cl.trainer.run_log import CheckpointParts, Position, RunLog
from grpo_cl.types import Task, TokenTrace, Trajectory, TrajectoryGroup


class Policy(PolicyView, Protocol):
    """What the loop needs from a policy: sample, update, save."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        ...

    @property
    def is_language_model(self) -> bool:
        """Whether it has a ``model`` and a ``learner``; a policy of Mem-α's interface has none."""
        ...

    def actor(self, *, temperature: float) -> Actor:
        """An actor that samples with the current weights."""
        ...

    def frozen_actor(self, *, temperature: float) -> Actor:
        """An actor that samples with the weights the run started from."""
        ...

    def sync_weights(self) -> None:
        """Push the current weights to the inference backend and drop its KV cache."""
        ...

    def full_parameters(self) -> AbstractContextManager[None]:
        """A context in which sharded weights are gathered, so that ranks sample on their own."""
        ...

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        advantages: Sequence[GroupAdvantages],
        *,
        auxiliary: Callable[[Any], Any] | None,
        transform: Callable[[Sequence[tuple[str, Any]]], None] | None,
    ) -> dict[str, float]:
        """Update the weights on groups and return metrics."""
        ...

    def map_over_ranks(
        self, count: int, run: Callable[[Sequence[int]], Sequence[Any]]
    ) -> list[Any]:
        """``run`` over the indices below ``count``, divided among ranks; each rank gets all."""
        ...

    def any_rank(self, *, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        ...

    def drift(self, domain: str, traces: Sequence[TokenTrace]) -> Drift | None:
        """The distance from earlier policies on a domain's tokens; None unless configured."""
        ...

    def remember(self, domain: str) -> None:
        """Keep the current weights as the policy that the next stage's drift is measured from."""
        ...

    def save(self, folder: Path) -> None:
        """Write a Hugging Face model directory."""
        ...

    def save_state(self, folder: Path) -> None:
        """Write everything an exact resume needs."""
        ...

    def load_state(self, folder: Path) -> None:
        """Restore what ``save_state`` wrote."""
        ...


class GRPOTrainer:
    """Trains one policy on the domains of ``config.task_order``, one after another."""

    def __init__(
        self,
        config: GRPOConfig,
        *,
        policy: Policy | None = None,
        tasks: TaskDataLoader | None = None,
        metrics: MetricsTracker | None = None,
        trackers: Sequence[ExperimentTracker] = (),
    ) -> None:
        if config.resume_from is not None:
            config = settings_in_force(config, run_of(config.resume_from))
        self.config = config
        self.auxiliary_models = AuxiliaryModels(config)
        self.tasks = tasks or TaskDataLoader(config)
        self.oracle = self.auxiliary_models.oracle(self.tasks.domains)
        self.trajectory_buffer = TrajectoryBuffer(config)
        self._algorithm = algorithm_for(config)
        self.policy = policy or _default_policy(config, self.tasks)
        self._algorithm.bind(self)
        self.position = Position()
        self._steps_before = 0
        self._interruption = Interruption()
        self._ahead = RolloutsAhead()
        self._stats = RolloutStats(self.auxiliary_models.use)
        self.run_log = RunLog(
            config, self.tasks, is_main=self.policy.is_main, metrics=metrics, trackers=trackers
        )

    @property
    def cl_algorithm(self) -> CLAlgorithm:
        """The continual-learning algorithm."""
        return self._algorithm

    @cl_algorithm.setter
    def cl_algorithm(self, algorithm: CLAlgorithm) -> None:
        algorithm.check(self.config)
        algorithm.bind(self)
        self._algorithm = algorithm

    def train(self, *, until: Position | None = None) -> dict[str, Any]:
        """Train on every domain in order; evaluate all of them before the first and after each.

        With ``until`` the run stops at that position, after its checkpoint and before
        ``post_task_hook``.
        """
        self._check()
        with self.run_log, self._interruption, closing(self._ahead), frozen_gc():
            self._begin()
            if not self.run_log.has_row(BASE):
                self._evaluate_all(BASE)
            while self.position.stage < len(self.config.task_order):
                domain = self.config.task_order[self.position.stage]
                self._train_stage(domain)
                if self.position == until:
                    return self.run_log.summary()
                # After the checkpoint of the last step: another algorithm can continue from it.
                self.cl_algorithm.post_task_hook(self, domain)
                self._evaluate_all(domain)
                with self.cl_algorithm.policy_for_evaluation(domain):
                    self.run_log.close_stage(
                        self.position.stage, self.policy, self.trajectory_buffer
                    )
                self._steps_before = self.global_step
                self.position = Position(stage=self.position.stage + 1)
                self._save()
            return self.run_log.finish()

    def _check(self) -> None:
        """Refuse what cannot be trained, before anything is written."""
        check_training(self.config, self.tasks)
        if self.config.resume_from is not None and self.config.fork is None:
            return
        if self.policy.is_main:
            warn_of_limits(self.config, self.tasks)
        if self.policy.is_language_model:
            tasks = [t for name in self.config.task_order for t in self.tasks.train_tasks(name)]
            model = self.policy.model
            check_prompts(tasks, model.chat, model.context, self.tasks)

    def _train_stage(self, domain: str) -> None:
        self.run_log.begin_stage(self.position.stage, len(self.tasks.train_tasks(domain)))
        if self.position.step == 0:
            self.cl_algorithm.before_task(domain)
        while self.position.step < self.config.num_steps_per_task:
            metrics = self.train_step(domain)
            self.run_log.log_step(self.position, metrics)
            self.position = self.position._replace(step=self.position.step + 1)
            if self._is_evaluated_within_stage():
                self._evaluate_seen()
            is_ending = self.policy.any_rank(flag=self._interruption.is_requested)
            is_spent = self.policy.any_rank(flag=not self.auxiliary_models.covers_another_step())
            if is_ending or is_spent or self.run_log.is_due(self.position):
                self._save()
            if is_ending:
                self._end(f"saved after {self.global_step} steps")
            if is_spent:
                self.auxiliary_models.end()

    def train_step(self, domain: str) -> dict[str, float]:
        """One GRPO step: tasks, rollouts, rewards, advantages, update."""
        started = time.monotonic()
        self.run_log.begin_step(self.position)
        batch, counts = self._rollouts(domain)
        groups = self.cl_algorithm.augment_rollouts(batch.groups, domain)
        rollout_s = time.monotonic() - started
        advantages = [
            compute_advantages(
                group,
                self.cl_algorithm.shape_rewards(group, group.training_rewards),
                self.config,
            )
            for group in groups
        ]
        varied = [index for index, given in enumerate(advantages) if has_signal(given)]
        metrics = self.policy.update(
            [groups[index] for index in varied],
            [advantages[index] for index in varied],
            auxiliary=self.cl_algorithm.auxiliary_loss,
            transform=self.cl_algorithm.transform_gradients,
        )
        for group, given in zip(groups, advantages, strict=True):
            self.trajectory_buffer.add(group, self.global_step, given)
        self.run_log.log_episodes(groups, self.global_step)
        self.cl_algorithm.post_step_hook(self, domain)
        return {
            **metrics,
            **self.cl_algorithm.telemetry(),
            **summarize(batch, num_flat=len(groups) - len(varied)),
            **counts,
            "rollout_s": rollout_s,
            "step_s": time.monotonic() - started,
        }

    def _rollouts(self, domain: str) -> Rollouts:
        """The rollouts of this step; with ``max_staleness`` those of the next one begin."""
        rollouts = self._ahead.take() or self._begin_rollouts(domain, self.global_step)()
        is_last = self.position.step + 1 == self.config.num_steps_per_task
        if self.config.sampling.max_staleness and not is_last:
            self._ahead.start(self._begin_rollouts(domain, self.global_step + 1))
        return rollouts

    def _begin_rollouts(self, domain: str, step: int) -> Callable[[], Rollouts]:
        """Draw the tasks of a step and push the weights; the result plays the episodes."""
        new_tasks = self.tasks.next_batch(domain, self._tasks_per_step)
        tasks = self.cl_algorithm.augment_batch(new_tasks, domain)
        stats, is_ahead = RolloutStats(self.auxiliary_models.use), step > self.global_step
        play = self._player(stats, temperature=self.config.temperature, is_shown=not is_ahead)
        self.policy.sync_weights()

        def run() -> Rollouts:
            batch = collect(
                tasks, domain, loader=self.tasks, play=play, config=self.config, step=step
            )
            return Rollouts(batch, stats.take())

        return run

    def evaluate_task(self, domain: str) -> Cell:
        """Evaluate the current policy on the evaluation tasks of ``domain``."""
        self._ahead.wait()  # the sampler has one set of weights
        sampled = self.config.evaluation.is_sampled
        play = self._player(self._stats, temperature=self.config.temperature if sampled else 0.0)
        tasks = self.tasks.evaluation_tasks(domain)
        with self.cl_algorithm.policy_for_evaluation(domain):
            self.policy.sync_weights()  # inside: an algorithm may evaluate with other weights
            drift = partial(self.policy.drift, domain)
            keep = partial(self.run_log.hold_episodes, domain)
            return evaluate(play, tasks, self.config, measure_drift=drift, keep=keep)

    @property
    def global_step(self) -> int:
        """The number of updates before this one, over all stages."""
        return self._steps_before + self.position.step

    @property
    def _tasks_per_step(self) -> int:
        return self.config.tasks_per_step(world_size=self.policy.world_size)

    def _player(self, stats: RolloutStats, *, temperature: float, is_shown: bool = True) -> Play:
        """Plays and scores episodes of the policy, divided among ranks, and counts them."""
        actor = self.policy.actor(temperature=temperature)
        users = self.auxiliary_models.users(self.policy)

        async def one(task: Task, seed: int) -> Trajectory:
            domain, rollout = self.tasks.domains[task.domain], self.config.rollout
            with stats.episode():
                trajectory = await play_episode(
                    actor, domain, task, rollout, seed=seed, models=users
                )
            if is_shown:
                self.run_log.episode_ended()
            return trajectory

        def play(tasks: Sequence[Task], seeds: Sequence[int]) -> list[ScoredTrajectory]:
            def run(indices: Sequence[int]) -> list[Trajectory]:
                if is_shown:
                    self.run_log.begin_episodes(len(indices))
                return run_all(one(tasks[index], seeds[index]) for index in indices)

            with stats.timed(), self.policy.full_parameters():
                trajectories = self.policy.map_over_ranks(len(tasks), run)
            stats.add(trajectories)
            return self._score(trajectories)

        return play

    def _score(self, trajectories: Sequence[Trajectory]) -> list[ScoredTrajectory]:
        if not self.oracle.calls_models:
            return self.oracle.score_all(trajectories)
        # Model-based verdicts are paid for once, and every rank must see the same ones.
        return self.policy.map_over_ranks(
            len(trajectories),
            lambda indices: self.oracle.score_all([trajectories[index] for index in indices]),
        )

    def _is_evaluated_within_stage(self) -> bool:
        interval, step = self.config.eval_interval, self.position.step
        # At the end of a stage all domains are evaluated anyway.
        return bool(interval) and step % interval == 0 and step < self.config.num_steps_per_task

    def _evaluate_seen(self) -> None:
        """Within a stage, evaluate the domains seen so far."""
        for domain in self.config.task_order[: self.position.stage + 1]:
            self.run_log.begin_evaluation(self.position, domain)
            cell = self.evaluate_task(domain)
            self.run_log.log_evaluation(self.position, domain, cell, self._stats.take())

    def _evaluate_all(self, after: str) -> None:
        """Fill one row of the R-matrix."""
        for domain in self.config.task_order:
            if self.policy.any_rank(flag=self._interruption.is_requested):
                self._end("in an evaluation that the resumed run makes again")
            self.run_log.begin_evaluation(self.position, domain, after=after)
            cell = self.evaluate_task(domain)
            self.run_log.log_cell(self.position, (after, domain), cell, self._stats.take())
            with self.cl_algorithm.policy_for_evaluation(domain):
                self.policy.remember(domain)
        self.run_log.log_row(self.position, self.trajectory_buffer.get_statistics())

    def _begin(self) -> None:
        """Start a new run, or restore the checkpoint that ``config.resume_from`` names."""
        with all_ranks(self.policy.any_rank):
            checkpoint = self.run_log.find()
            if checkpoint is not None:
                self._restore(checkpoint)
        self.run_log.begin(checkpoint)  # everything is loaded: from here on files change
        if self.policy.is_main:
            self.auxiliary_models.open_ledger(self.run_log.run.root)

    def _restore(self, checkpoint: Checkpoint) -> None:
        state: Mapping[str, Any] = checkpoint.state
        self._require_same_batch(checkpoint)
        self.position = Position(**state["position"])
        self._steps_before = state["global_step"] - self.position.step
        with restoring(checkpoint.files.state, STATE):
            self.tasks.load_state_dict(state["tasks"])
        self.trajectory_buffer.load(checkpoint.files.trajectories)
        # A fork of a run with another algorithm has no algorithm state: its algorithm begins here.
        is_fork = state["algorithm"] is None
        if not is_fork:
            with restoring(checkpoint.files.state, STATE):
                self.cl_algorithm.load_state_dict(state["algorithm"])
        self.policy.load_state(checkpoint.files.policy_dir)
        if not is_fork:
            if self.position.step < self.config.num_steps_per_task:  # a fork may end the stage here
                self._ahead.load(checkpoint.files.rollouts)
            self.cl_algorithm.load_state(checkpoint.files.algorithm_dir)
        elif self.position.step == 0 and self.position.stage > 0:
            # Its view of the stage that ended at the checkpoint, such as the Fisher information.
            self.cl_algorithm.post_task_hook(self, self.config.task_order[self.position.stage - 1])

    def _require_same_batch(self, checkpoint: Checkpoint) -> None:
        """Refuse a number of ranks that would change the tasks of a step within a run."""
        before, now, config = checkpoint.state["tasks_per_step"], self._tasks_per_step, self.config
        if before is not None and before != now:
            raise ConfigError(
                f"a step of this run has {before} tasks, and batch_size_per_gpu "
                f"{config.batch_size_per_gpu} × gradient_accumulation_steps "
                f"{config.gradient_accumulation_steps} × {self.policy.world_size} ranks make "
                f"{now}; start as many ranks as before, or change batch_size_per_gpu or "
                f"gradient_accumulation_steps so that they make {before}"
            )

    def _end(self, state: str) -> NoReturn:
        self.run_log.wait_for_checkpoints()
        self._interruption.end(state, f"grpo-cl train --resume_from {self.run_log.run.root}")

    def _save(self) -> None:
        self._ahead.wait()  # its episodes count in the state of the tasks
        state = {
            "position": self.position._asdict(),
            "tasks_per_step": self._tasks_per_step,
            "tasks": self.tasks.state_dict(),
            "algorithm": self.cl_algorithm.state_dict(),
        }
        parts = CheckpointParts(
            policy=self.policy.save_state,
            algorithm=self.cl_algorithm.save_state,
            trajectories=self.trajectory_buffer.save,
            rollouts=self._ahead.save,
        )
        self.run_log.save(self.global_step, state, parts)


def _default_policy(config: GRPOConfig, tasks: TaskDataLoader) -> Policy:
    """The policy of a run whose evaluation prompts it can read."""
    for domain in config.task_order:
        tasks.require_evaluation_tasks(domain)
    evaluated = [task for domain in config.task_order for task in tasks.evaluation_tasks(domain)]
    # torch is slow to import
    from grpo_cl.policy.model.policy_model import PromptFormat  # noqa: PLC0415
    from grpo_cl.policy.runtime import PolicyRuntime  # noqa: PLC0415

    prompts = PromptFormat.load(config)
    check_prompts(evaluated, prompts.chat, prompts.context, tasks)  # before weights are loaded
    policy = PolicyRuntime(config)
    policy.model.chat = prompts.chat  # encodes these prompts once
    return policy
