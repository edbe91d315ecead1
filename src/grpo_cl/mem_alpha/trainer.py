"""The earlier trainer's methods over the trainer of this package."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.evaluation import evaluate
from grpo_cl.mem_alpha.data import TrainingInstance
from grpo_cl.mem_alpha.playing import PARTS
from grpo_cl.mem_alpha.settings import MemorySettings
from grpo_cl.memory import Instance, count_tokens
from grpo_cl.memory.loaders import save_jsonl
from grpo_cl.metrics.rmatrix import Cell
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import run_episodes
from grpo_cl.rundir import RunDir, read_journal, read_json, write_json
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer import GRPOTrainer as Trainer
from grpo_cl.trainer import Policy
from grpo_cl.trainer.cast import Cast
from grpo_cl.types import Task, Trajectory

STATE = "trainer.json"
MODEL_DIR = "model"


class GRPOTrainer:
    """Teaches a policy what to remember; each call of ``train`` is a run with a folder of its own.

    ``config`` has the keys of ``MemorySettings``. Questions about instances that were not generated
    are answered by the frozen model ``settings["memory"]["answerer"]["model"]``, never by the
    policy.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, *, log_dir: Path | str = "runs/memory"
    ) -> None:
        self.settings = MemorySettings.read(config or {})
        self.log_dir = Path(log_dir)
        self.step = 0
        """Updates so far."""
        self.history: list[dict[str, Any]] = []
        """The numbers of each of them."""
        self._num_runs = 0

    @cached_property
    def policy(self) -> Policy:
        """What learns."""
        from grpo_cl.policy.runtime import PolicyRuntime  # noqa: PLC0415  # torch is slow to import

        return PolicyRuntime(self.settings.run({}, {}))

    def train(
        self,
        training_data: Sequence[TrainingInstance],
        validation_data: Sequence[TrainingInstance],
        num_epochs: int = 1,
    ) -> dict[str, Any]:
        """Learn from some instances, measured on others before and after; no more than allowed."""
        batch = min(self.settings.batch_size, max(len(training_data), 1))
        wanted = num_epochs * ceil(len(training_data) / batch)
        steps = min(wanted, self.settings.max_steps - self.step)
        if steps <= 0:
            raise ConfigError(
                f"{self.step} of max_steps={self.settings.max_steps} are made and {wanted} wanted; "
                "raise max_steps, or give instances and epochs"
            )
        folder = self._next_folder()
        files = {
            "path": self._written(folder, "train", training_data),
            "test_path": self._written(folder, "validation", validation_data),
        }
        changes = {
            "batch_size_per_gpu": batch,
            "num_steps_per_task": steps,
            "seed": self.settings.seed + self._num_runs,
            "log_dir": folder / "run",
        }
        summary = Trainer(self.settings.run(files, changes), policy=self.policy).train()
        self._num_runs += 1
        self.step += steps
        lines = read_journal(RunDir(folder / "run").metrics_journal)
        self.history += [line for line in lines if line.get("series") == "task_0/train"]
        return summary

    def evaluate(self, data: Sequence[TrainingInstance]) -> dict[str, float]:
        """The mean of each part of the reward over instances, nothing learned."""
        path = self._written(self._next_folder(), "evaluation", data)
        config = self.settings.run({"path": path}, {"seed": self.settings.seed})
        cell = self._measured(config)
        return {name: cell.components[part] for name, part in PARTS.items()}

    def save_checkpoint(self, folder: Path | str) -> None:
        """Write weights, optimizer, settings and how far training has come."""
        files = Path(folder)
        files.mkdir(parents=True, exist_ok=True)
        self.policy.save_state(files)
        self.policy.save(files / MODEL_DIR)
        state = {
            "settings": self.settings.model_dump(mode="json"),
            "step": self.step,
            "num_runs": self._num_runs,
            "history": self.history,
        }
        write_json(files / STATE, state)

    def load_checkpoint(self, folder: Path | str) -> None:
        """Be as the trainer was that wrote the checkpoint; what it would do next, this one does."""
        state = read_json(Path(folder) / STATE)
        self.settings = MemorySettings.read(state["settings"])
        self.step, self._num_runs = state["step"], state["num_runs"]
        self.history = state["history"]
        self.__dict__.pop("policy", None)  # built by other settings
        self.policy.load_state(Path(folder))

    def _measured(self, config: GRPOConfig) -> Cell:
        domains = TaskDataLoader(config).domains
        sampled = config.evaluation.is_sampled
        actor = self.policy.actor(temperature=config.temperature if sampled else 0.0)
        cast = Cast(config)

        def play(tasks: Sequence[Task], seeds: Sequence[int]) -> list[Trajectory]:
            def run(places: Sequence[int]) -> list[Trajectory]:
                chosen = [tasks[place] for place in places]
                own = [seeds[place] for place in places]
                return run_episodes(actor, domains, chosen, config.rollout, seeds=own)

            return self.policy.spread(len(tasks), run)

        oracle = RewardOracle(domains, memory=cast.memory)
        try:
            tasks = list(domains["memory"].tasks("base"))
            return evaluate(play, tasks, oracle.score_all, config)
        finally:
            cast.close()

    def _next_folder(self) -> Path:
        taken = {path.name for path in self.log_dir.glob("*")}
        return self.log_dir / next(
            name for number in range(len(taken) + 1) if (name := f"part_{number}") not in taken
        )

    def _written(self, folder: Path, name: str, data: Sequence[TrainingInstance]) -> Path:
        if not data:
            raise ConfigError(f"no instances for {name}; give at least one")
        records = [each.record() for each in data]
        for record in records:
            self._require_short(record)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.jsonl"
        save_jsonl(path, records)
        return path

    def _require_short(self, instance: Instance) -> None:
        limit = self.settings.max_chunk_tokens
        for chunk in instance.chunks:
            if count_tokens(chunk.content) > limit:
                raise ConfigError(
                    f"chunk {chunk.chunk_id} of {instance.id!r} has {count_tokens(chunk.content)} "
                    f"tokens, max_chunk_tokens is {limit}; cut it, or raise the limit"
                )
