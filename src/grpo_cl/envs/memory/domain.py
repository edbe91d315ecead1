"""The memory domain: tasks from generated instances or from a file."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from pydantic import ValidationError
from typing_extensions import override

from grpo_cl.config import GRPOConfig, MemoryConfig
from grpo_cl.envs.base import Demonstrator
from grpo_cl.envs.database import to_json
from grpo_cl.envs.generation.tasks import TaskMaker
from grpo_cl.envs.memory import Instance, schemas
from grpo_cl.envs.memory.demonstrations import GoldReplay, draw_error
from grpo_cl.envs.memory.environment import MemoryEnvironment
from grpo_cl.envs.memory.generator import (
    SOURCE,
    GeneratorParams,
    generate_instance,
    gold_operations,
    skills_of,
    with_invented_names,
)
from grpo_cl.envs.memory.instances import initial_state, instance_of
from grpo_cl.envs.memory.loaders import load_instances
from grpo_cl.envs.memory.rewards.llm_answerer import LLMAnswerer
from grpo_cl.envs.memory.rewards.llm_content_judge import LLMContentJudge
from grpo_cl.envs.memory.rewards.scorer import MemoryScorer
from grpo_cl.envs.tau2 import GeneratedDomain
from grpo_cl.errors import ConfigError
from grpo_cl.llm import ModelPool
from grpo_cl.types import (
    Action,
    Description,
    EvaluationCriteria,
    RewardType,
    Task,
    ToolSchema,
    Trajectory,
    UserScenario,
    first_problem,
)


class MemoryDomain(GeneratedDomain):
    """Read chunks one by one and store what later questions need."""

    name = "memory"
    folder = "memory"
    task_seed = 2026

    def __init__(
        self, data_dir: Path | None = None, *, settings: MemoryConfig | None = None
    ) -> None:
        super().__init__(data_dir)
        self.settings = settings or MemoryConfig()

    @override
    def configured(self, config: GRPOConfig) -> "MemoryDomain":
        return MemoryDomain(settings=config.memory)

    @property
    @override
    def agent_tools(self) -> Sequence[ToolSchema]:
        return schemas()

    @property
    @override
    def release(self) -> str:
        if self.settings.path is None:
            return f"{super().release}{self._params_suffix}"
        digest = hashlib.sha256(to_json(self._raw_tasks).encode()).hexdigest()
        return f"{self.settings.path.name} {self.name} tasks sha256:{digest[:12]}"

    @override
    def environment(self, task: Task, *, solo: bool = False) -> MemoryEnvironment:
        del solo  # there is no user in any case
        return MemoryEnvironment(instance_of(task), self.settings)

    @override
    def streaming_environment(self, task: Task) -> MemoryEnvironment:
        return self.environment(task)

    @override
    def system_prompt(self, ticket: str | None, *, compact: bool = False) -> str:
        return "" if compact else self.policy_text()

    @override
    def scorer(self, models: ModelPool | None = None) -> MemoryScorer:
        answerer, judge = self.settings.answerer, self.settings.judge
        return MemoryScorer(
            self.settings,
            answerer=LLMAnswerer(models, answerer) if models and answerer.model else None,
            judge=LLMContentJudge(models, judge) if models and judge.model else None,
        )

    @override
    def demonstration_task(self, task: Task) -> Task:
        instance = instance_of(task)
        if instance.source != SOURCE:
            return task
        renamed = task_of(with_invented_names(instance, Random(f"{task.id}/names")))
        return renamed.model_copy(update={"id": task.id})

    @property
    @override
    def demonstrator(self) -> Demonstrator:
        return self._demonstrate

    def _demonstrate(self, task: Task, *, error_rng: Random | None) -> Trajectory | None:
        trajectory = GoldReplay(task, self.environment(task), None).play()
        if MemoryScorer().score(trajectory).value != 1.0:
            return None
        error = draw_error(task, error_rng) if error_rng else None
        if error is None:
            return trajectory
        return GoldReplay(task, self.environment(task), error).play()

    @override
    def task_maker(self, split: str) -> TaskMaker:
        def make(rng: Random, level: float) -> Task:
            return task_of(generate_instance(rng, self._params(level), split=split))

        return make

    @override
    def is_valid(self, task: Task) -> bool:
        return True  # the generator returns validated instances only

    @cached_property
    @override
    def _raw_tasks(self) -> dict[str, dict[str, Any]]:
        if self.settings.path is None:
            return super()._raw_tasks
        instances = [instance for split in self._loaded.values() for instance in split]
        self._require_answerer(instances)
        tasks = {instance.id: task_of(instance).model_dump(mode="json") for instance in instances}
        if len(tasks) < len(instances):
            raise ConfigError(
                f"an id occurs twice in {self.settings.path} and {self.settings.test_path}; "
                "no instance may be in both the training and the test set"
            )
        return tasks

    @cached_property
    def _loaded(self) -> dict[str, list[Instance]]:
        files = {"train": self.settings.path, "test": self.settings.test_path}
        return {
            split: load_instances(path, self.settings.format)
            for split, path in files.items()
            if path
        }

    @cached_property
    @override
    def _splits(self) -> dict[str, list[str]]:
        if self.settings.path is None:
            return super()._splits
        by_split = {
            split: [instance.id for instance in instances]
            for split, instances in self._loaded.items()
        }
        base = {"base": list(self._raw_tasks)}
        return {**by_split, **base} if self.settings.test_path else base

    def _require_answerer(self, instances: Sequence[Instance]) -> None:
        foreign = next((instance for instance in instances if instance.source != SOURCE), None)
        if foreign is not None and self.settings.answerer.model is None:
            raise ConfigError(
                f"the questions of {foreign.id!r} in {self.settings.path} are not generated, and "
                "only generated ones are answered by rules; set "
                "memory.answerer.model=PROVIDER/MODEL"
            )

    def _params(self, difficulty: float) -> GeneratorParams:
        changes = self.settings.knobs
        defaults = GeneratorParams.at(difficulty).model_dump()
        try:
            return GeneratorParams.model_validate({**defaults, **changes})
        except ValidationError as error:
            raise ConfigError(
                f"memory.knobs {changes} do not fit the generator: {first_problem(error)}"
            ) from error

    @property
    def _params_suffix(self) -> str:
        params = ", ".join(f"{name}={value}" for name, value in sorted(self.settings.knobs.items()))
        return f" with {params}" if params else ""


def task_of(instance: Instance) -> Task:
    """The task over an instance; gold actions are the gold operations of generated chunks."""
    gold = [(chunk, gold_operations(chunk)) for chunk in instance.chunks]
    actions = [
        Action(
            action_id=f"{chunk.chunk_id}.{number}",
            name=operation.name,
            arguments=dict(operation.arguments),
            info=f"chunk {chunk.chunk_id}",
        )
        for chunk, operations in gold
        for number, operation in enumerate(operations or ())
    ]
    purpose = f"{len(instance.chunks)} chunks, {len(instance.questions)} questions"
    return Task(
        id=instance.id,
        domain=MemoryDomain.name,
        description=Description(purpose=purpose, notes=f"{instance.source}, {instance.license}"),
        user_scenario=UserScenario(instructions="Chunks of text are read one after another."),
        initial_state=initial_state(instance),
        evaluation_criteria=EvaluationCriteria(
            actions=tuple(actions) or None, reward_basis=(RewardType.ANSWERS,)
        ),
        skills=skills_of(instance),
    )
