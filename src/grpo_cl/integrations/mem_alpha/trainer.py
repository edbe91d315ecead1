"""Mem-α's trainer interface over ``grpo_cl.trainer``."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from inspect import ismethod
from math import ceil, isnan
from pathlib import Path
from typing import Any, Protocol

from grpo_cl.config import GRPOConfig
from grpo_cl.envs.memory import Instance, count_tokens
from grpo_cl.envs.memory.loaders import save_jsonl
from grpo_cl.envs.memory.rewards.formulas import Weights
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.mem_alpha.agent import LLM
from grpo_cl.integrations.mem_alpha.data import TrainingInstance
from grpo_cl.integrations.mem_alpha.evaluation import COMPONENTS, TOTAL, intervals
from grpo_cl.integrations.mem_alpha.hugging_face_policy import HuggingFacePolicy
from grpo_cl.integrations.mem_alpha.instance_domain import InstanceDomain, Scoring
from grpo_cl.integrations.mem_alpha.policy_model import PolicyModel, PromptPolicy
from grpo_cl.integrations.mem_alpha.rewards import RewardCalculator
from grpo_cl.integrations.mem_alpha.rollouts import (
    GRPOBatch,
    RolloutResult,
    group_of,
    rollouts_of,
)
from grpo_cl.integrations.mem_alpha.settings import MemorySettings
from grpo_cl.rewards import ScoredTrajectory
from grpo_cl.rewards.advantages import (
    Advantage,
    GroupAdvantages,
    compute_advantages,
    has_signal,
)
from grpo_cl.rollout import run_episodes
from grpo_cl.runs.checkpoints import MANIFEST, require_checkpoint, save_checkpoint
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer import GRPOTrainer as Trainer
from grpo_cl.trainer import Policy
from grpo_cl.trainer.auxiliary_models import AuxiliaryModels
from grpo_cl.trainer.collect import Batch, collect, summarize
from grpo_cl.trainer.evaluate import Play, episode_seed, evaluate, require_valid
from grpo_cl.types import Reward, Task, Trajectory, TrajectoryGroup

DOMAIN = "memory"
STATE = "trainer.json"
MODEL_DIR = "model"
FILES_SUFFIX = ".files"
"""Suffix of the folder with the tensors of a checkpoint that is named by a file."""


class TrainedPolicy(Policy, Protocol):
    """A policy of the training loop whose loss can be computed without a step."""

    def loss(self, groups: Sequence[TrajectoryGroup], advantages: Sequence[GroupAdvantages]) -> Any:
        """The loss of groups with its graph."""
        ...


class GRPOTrainer:
    """Trains a policy on the ``memory`` domain; each call of ``train`` is a run in its own folder.

    ``policy_model`` is the name or path of a Hugging Face model, a ``HuggingFacePolicy``, an own
    ``PolicyModel``, or None for ``config["model_name_or_path"]``. ``config`` has the keys of
    ``MemorySettings``. Questions that were not generated are answered by the function ``answerer``
    or by the frozen model ``settings["memory"]["answerer"]["model"]``, never by the policy.
    """

    def __init__(
        self,
        policy_model: PolicyModel | HuggingFacePolicy | str | None = None,
        reward_calculator: RewardCalculator | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        answerer: LLM | None = None,
        log_dir: Path | str = "runs/memory",
    ) -> None:
        if isinstance(policy_model, Mapping):
            raise ConfigError("the first argument is the policy; pass the settings as config=…")
        if policy_model is None or isinstance(policy_model, str):
            policy_model = HuggingFacePolicy(policy_model, config)
        _require_policy(policy_model)
        self.settings = _settings(config or {}, reward_calculator, policy_model)
        self.reward_calculator = reward_calculator or RewardCalculator(
            self.settings.beta, self.settings.gamma
        )
        if ismethod(answerer) and answerer.__self__ is policy_model:
            raise ConfigError(
                "answerer is a method of the trained policy, which would grade itself; give a "
                "frozen model"
            )
        self.policy_model = policy_model
        self._answerer = answerer
        self._own = self._adapt()
        self.log_dir = Path(log_dir)
        self.step = 0
        """Policy updates so far."""
        self.history: list[dict[str, Any]] = []
        """The training metrics of each update."""
        self._num_runs = 0

    @property
    def policy(self) -> TrainedPolicy:
        """The policy as the training loop uses it."""
        if isinstance(self.policy_model, HuggingFacePolicy):
            return self.policy_model.runtime
        assert self._own is not None
        return self._own

    def collect_rollouts(self, instance: TrainingInstance) -> list[RolloutResult]:
        """``grpo_rollout_n`` episodes on an instance, sampled with the current weights."""
        return self._rollouts(self._collect([instance]).groups[0])

    def compute_advantages(self, rollouts: Sequence[RolloutResult]) -> list[Advantage]:
        """The advantages of each rollout, one per action.

        They are relative to the rollouts of the same instance at the same chunk, also if rollouts
        of several instances are given.
        """
        config = self._step_config()
        found: dict[int, Advantage] = {}
        for name in dict.fromkeys(rollout.instance_id for rollout in rollouts):
            indices = [i for i, rollout in enumerate(rollouts) if rollout.instance_id == name]
            group = group_of([rollouts[index] for index in indices])
            advantages = compute_advantages(group, group.training_rewards, config)
            found |= dict(zip(indices, advantages, strict=True))
        return [found[index] for index in range(len(rollouts))]

    def compute_policy_loss(self, batch: GRPOBatch) -> Any:
        """The loss of a batch under the current weights: a tensor with a gradient.

        Ratios are relative to the log-probs recorded when the rollouts were sampled.
        """
        groups = [group_of(rollouts) for rollouts in batch.rollouts]
        return self.policy.loss(*_with_signal(groups, batch.advantages))

    def train_step(self, instances: Sequence[TrainingInstance]) -> dict[str, float]:
        """One policy update on some instances; returns its metrics, which ``history`` keeps too."""
        self._require_steps(1)
        batch = self._collect(instances)
        rollouts = [self._rollouts(group) for group in batch.groups]
        advantages = [self.compute_advantages(group) for group in rollouts]
        groups, varied = _with_signal(batch.groups, advantages)
        metrics = self.policy.update(groups, varied, auxiliary=None, transform=None)
        every = [rollout for group in rollouts for rollout in group]
        metrics |= {
            **summarize(batch, num_flat=len(batch.groups) - len(groups)),
            "successful_actions": float(sum(rollout.successful_actions for rollout in every)),
            "total_actions": float(sum(rollout.total_actions for rollout in every)),
        }
        known = {name: value for name, value in metrics.items() if not isnan(value)}
        self.history.append({"step": self.step, **known})
        self.step += 1
        return known

    def train(
        self,
        training_data: Sequence[TrainingInstance],
        validation_data: Sequence[TrainingInstance] | None = None,
        num_epochs: int = 1,
    ) -> dict[str, Any]:
        """Train on some instances and evaluate on others before and after; returns the summary.

        At most ``max_steps`` updates are made in all. Without validation data the training
        instances are evaluated.
        """
        batch = min(self.settings.batch_size, max(len(training_data), 1))
        steps = self._require_steps(num_epochs * ceil(len(training_data) / batch))
        data = {"train": training_data}
        if validation_data is not None:
            data["test"] = validation_data
        instances = {split: self._records(split, found) for split, found in data.items()}
        folder = self._next_folder()
        files = self._write(folder, instances)
        changes = {
            "batch_size_per_gpu": ceil(batch / self.policy.world_size),
            "num_steps_per_task": steps,
            "seed": self.settings.seed + self._num_runs,
            "log_dir": folder / "run",
        }
        config = self.settings.run(files, changes)
        loader = self._loader(config, instances)
        summary = Trainer(config, policy=self.policy, tasks=loader).train()
        self._num_runs += 1
        self.step += steps
        lines = read_journal(RunDir(folder / "run").metrics_journal)
        self.history += [line for line in lines if line.get("series") == "task_0/train"]
        return summary

    def evaluate(self, data: Sequence[TrainingInstance]) -> dict[str, float]:
        """The mean of each reward component over instances, and of the reward of an action."""
        config = self.settings.run({}, {"seed": self.settings.seed})
        loader = self._loader(config, {"train": self._records("evaluation", data)})
        sampled = config.evaluation.is_sampled
        temperature = config.temperature if sampled else 0.0
        rewards: list[Reward] = []
        with self._player(config, loader, temperature) as play:

            def recorded(tasks: Sequence[Task], seeds: Sequence[int]) -> list[ScoredTrajectory]:
                scored = list(play(tasks, seeds))
                rewards.extend(reward for _, reward in require_valid(scored))
                return scored

            cell = evaluate(recorded, loader.domains[DOMAIN].tasks("base"), config)
        means = {name: cell.components[component] for name, component in COMPONENTS.items()}
        return {**means, "total_reward": intervals(rewards)[TOTAL].estimate}

    def save_checkpoint(self, path: Path | str) -> None:
        """Write weights, optimizer, settings and progress as safetensors and JSON.

        A path with a suffix becomes a JSON file, with the tensors in a folder beside it; any other
        becomes a folder.
        """
        target = Path(path)
        folder = _checkpoint_folder(target)
        state = {
            "settings": self.settings.model_dump(mode="json"),
            "step": self.step,
            "num_runs": self._num_runs,
            "history": self.history,
        }

        def fill(files: Path) -> None:
            self.policy.save_state(files)
            self.policy.save(files / MODEL_DIR)
            if self.policy.is_main:
                write_json(files / STATE, state)

        if not self.policy.is_main:
            fill(folder)  # a sharded policy is gathered by all ranks; only the main rank writes
            return
        save_checkpoint(folder.parent, folder.name, fill, keep=None)
        if folder != target:
            write_json(target, {"step": self.step, "files": folder.name})

    def load_checkpoint(self, path: Path | str) -> None:
        """Restore the state of ``save_checkpoint``; training continues exactly."""
        folder = _checkpoint_folder(Path(path))
        if (folder / MANIFEST).exists():
            require_checkpoint(folder)
        state = read_json(folder / STATE)
        self.settings = MemorySettings.read(state["settings"])
        self.step, self._num_runs = state["step"], state["num_runs"]
        self.history = state["history"]
        weights = Weights(self.settings.beta, self.settings.gamma)
        self.reward_calculator = self.reward_calculator.configured(weights, None)
        if isinstance(self.policy_model, HuggingFacePolicy):
            self.policy_model.reset(self.settings)
        self._own = self._adapt()
        self.policy.load_state(folder)

    def _adapt(self) -> PromptPolicy | None:
        """The adapter of an own policy; a Hugging Face policy takes the settings."""
        if isinstance(self.policy_model, HuggingFacePolicy):
            self.policy_model.configure(self.settings)
            return None
        return PromptPolicy(self.policy_model, self.settings.run({}, {}))

    def _collect(self, instances: Sequence[TrainingInstance]) -> Batch:
        """One group of episodes per instance."""
        config = self._step_config()
        loader = self._loader(config, {"train": self._records("training", instances)})
        tasks = loader.domains[DOMAIN].tasks("train")
        with self._player(config, loader, config.temperature) as play:
            return collect(tasks, DOMAIN, loader=loader, play=play, config=config, step=self.step)

    def _rollouts(self, group: TrajectoryGroup) -> list[RolloutResult]:
        return rollouts_of(group, self._transcript, stamp=self._step_config().memory.stamp)

    def _step_config(self) -> GRPOConfig:
        # Not the seed of a run of ``train``, whose steps are numbered from 0 too.
        return self.settings.run({}, {"seed": episode_seed(self.settings.seed, "train_step")})

    def _transcript(self, trajectory: Trajectory) -> list[tuple[str, str]]:
        policy = self._own or self.policy_model
        assert isinstance(policy, PromptPolicy | HuggingFacePolicy)
        return policy.transcript(trajectory)

    def _loader(
        self, config: GRPOConfig, instances: Mapping[str, Sequence[Instance]]
    ) -> TaskDataLoader:
        scoring = Scoring(self.reward_calculator, self._answerer, self._transcript)
        domain = InstanceDomain(instances, config.memory, scoring)
        return TaskDataLoader(config, domains={DOMAIN: domain})

    @contextmanager
    def _player(
        self, config: GRPOConfig, loader: TaskDataLoader, temperature: float
    ) -> Generator[Play]:
        """Plays and scores episodes of the current policy."""
        actor = self.policy.actor(temperature=temperature)
        models = AuxiliaryModels(config)
        oracle = models.oracle(loader.domains)

        def play(tasks: Sequence[Task], seeds: Sequence[int]) -> list[ScoredTrajectory]:
            def run(indices: Sequence[int]) -> list[Trajectory]:
                rank_tasks = [tasks[index] for index in indices]
                rank_seeds = [seeds[index] for index in indices]
                return run_episodes(
                    actor, loader.domains, rank_tasks, config.rollout, seeds=rank_seeds
                )

            with self.policy.full_parameters():
                trajectories = self.policy.map_over_ranks(len(tasks), run)
            return oracle.score_all(trajectories)

        try:
            self.policy.sync_weights()
            yield play
        finally:
            models.close()

    def _require_steps(self, requested: int) -> int:
        """The number of updates to make, at most those left of ``max_steps``."""
        steps = min(requested, self.settings.max_steps - self.step)
        if steps <= 0:
            raise ConfigError(
                f"{self.step} of max_steps={self.settings.max_steps} are made and {requested} "
                "requested; raise max_steps, or give instances and epochs"
            )
        return steps

    def _next_folder(self) -> Path:
        taken = {path.name for path in self.log_dir.glob("*")}
        return self.log_dir / next(
            name for number in range(len(taken) + 1) if (name := f"part_{number}") not in taken
        )

    def _write(self, folder: Path, instances: Mapping[str, Sequence[Instance]]) -> dict[str, Path]:
        """Write the instances that a run is trained and evaluated on."""
        folder.mkdir(parents=True, exist_ok=True)
        names = {"train": "path", "test": "test_path"}
        files = {names[split]: folder / f"{split}.jsonl" for split in instances}
        for split, found in instances.items():
            save_jsonl(files[names[split]], list(found))
        return files

    def _records(self, purpose: str, data: Sequence[TrainingInstance]) -> list[Instance]:
        if not data:
            raise ConfigError(f"no instances for {purpose}; give at least one")
        records = [instance.record() for instance in data]
        for record in records:
            self._require_short_chunks(record)
        return records

    def _require_short_chunks(self, instance: Instance) -> None:
        limit = self.settings.max_chunk_tokens
        for chunk in instance.chunks:
            if count_tokens(chunk.content) > limit:
                raise ConfigError(
                    f"chunk {chunk.chunk_id} of {instance.id!r} has {count_tokens(chunk.content)} "
                    f"tokens, max_chunk_tokens is {limit}; cut it, or raise the limit"
                )


def _require_policy(policy: object) -> None:
    if isinstance(policy, HuggingFacePolicy):
        return
    if isinstance(policy, type):  # it has the methods, but no weights
        raise ConfigError(f"policy_model is the class {policy.__name__!r}; give an object of it")
    if not isinstance(policy, PolicyModel):
        raise ConfigError(
            f"policy_model is {type(policy).__name__!r}, which is neither a model's name nor has "
            "all methods of PolicyModel: generate, get_log_prob, update, save_state and "
            "load_state; TorchPolicy has the last three"
        )


def _settings(
    config: Mapping[str, Any],
    calculator: RewardCalculator | None,
    policy: PolicyModel | HuggingFacePolicy,
) -> MemorySettings:
    """The settings with what policy and calculator define, which must agree with given ones."""
    settings = MemorySettings.read(config)
    is_language_model = isinstance(policy, HuggingFacePolicy)
    name = policy.settings.model_name_or_path if is_language_model else type(policy).__name__
    defined: dict[str, tuple[str, object]] = {"model_name_or_path": ("policy_model", name)}
    if calculator is not None:
        defined["beta"] = ("reward_calculator", calculator.beta)
        defined["gamma"] = ("reward_calculator", calculator.gamma)
    for key, (source, value) in defined.items():
        if config.get(key, value) != value:
            raise ConfigError(
                f"config has {key}={config[key]!r} and {source} has {value!r}; give it in one place"
            )
    return settings.model_copy(update={key: value for key, (_, value) in defined.items()})


def _with_signal(
    groups: Sequence[TrajectoryGroup], advantages: Sequence[GroupAdvantages]
) -> tuple[list[TrajectoryGroup], list[GroupAdvantages]]:
    """The groups whose advantages are not all zero."""
    pairs = zip(groups, advantages, strict=True)
    varied = [(group, given) for group, given in pairs if has_signal(given)]
    return [group for group, _ in varied], [given for _, given in varied]


def _checkpoint_folder(path: Path) -> Path:
    """The folder of a checkpoint; one that is named by a file is beside the file."""
    if not path.suffix or (path / STATE).exists():
        return path
    return path.with_name(f"{path.name}{FILES_SUFFIX}")
