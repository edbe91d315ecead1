"""The memory domain: generated instances, or those of a file."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from pydantic import ValidationError
from typing_extensions import override

from grpo_cl.config import GRPOConfig
from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.generators.draft import TaskMaker
from grpo_cl.domains.memory.world import MemoryEnvironment
from grpo_cl.domains.numbered import NumberedDomain
from grpo_cl.domains.overlay import to_json
from grpo_cl.errors import ConfigError
from grpo_cl.memory import Instance, schemas
from grpo_cl.memory.generator import SOURCE, Knobs, generate_instance, gold_operations
from grpo_cl.memory.loaders import load_instances
from grpo_cl.memory.tasks import initial_state, instance_of
from grpo_cl.roles import MemoryConfig
from grpo_cl.types import Action, Description, EvaluationCriteria, RewardType, Task, UserScenario


class MemoryDomain(NumberedDomain):
    """Reading chunk by chunk and keeping what questions will need."""

    name = "memory"
    folder = "memory"
    task_seed = 2026
    is_narrated = True

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
            return f"{super().release}{self._dials}"
        digest = hashlib.sha256(to_json(self._raw_tasks).encode()).hexdigest()
        return f"{self.settings.path.name} {self.name} tasks sha256:{digest[:12]}"

    @override
    def environment(self, task: Task, *, solo: bool = False) -> MemoryEnvironment:
        del solo  # the chunks speak, whoever else would not
        return MemoryEnvironment(instance_of(task), self.settings)

    @override
    def task_maker(self, split: str) -> TaskMaker:
        def make(rng: Random, level: float) -> Task:
            return task_of(generate_instance(rng, self._knobs(level), split=split))

        return make

    @override
    def is_sound(self, task: Task) -> bool:
        return True  # the generator hands out no other

    @cached_property
    @override
    def _raw_tasks(self) -> dict[str, dict[str, Any]]:
        if self.settings.path is None:
            return super()._raw_tasks
        loaded = [each for instances in self._loaded.values() for each in instances]
        self._require_reader(loaded)
        found = {each.id: task_of(each).model_dump(mode="json") for each in loaded}
        if len(found) < len(loaded):
            raise ConfigError(
                f"an id stands twice in {self.settings.path} and {self.settings.test_path}; "
                "no instance may be both learned from and measured on"
            )
        return found

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
        named = {split: [each.id for each in found] for split, found in self._loaded.items()}
        base = {"base": list(self._raw_tasks)}
        return {**named, **base} if self.settings.test_path else base

    def _require_reader(self, loaded: Sequence[Instance]) -> None:
        strange = next((each for each in loaded if each.source != SOURCE), None)
        if strange is not None and self.settings.answerer.model is None:
            raise ConfigError(
                f"questions about {strange.id!r} from {self.settings.path} are not generated ones, "
                "which alone are answered without a model; set memory.answerer.model=PROVIDER/MODEL"
            )

    def _knobs(self, level: float) -> Knobs:
        given = self.settings.knobs
        try:
            return Knobs.model_validate({**Knobs.at(level).model_dump(), **given})
        except ValidationError as error:
            raise ConfigError(f"memory.knobs {given} do not fit the generator: {error}") from error

    @property
    def _dials(self) -> str:
        dials = ", ".join(f"{name}={value}" for name, value in sorted(self.settings.knobs.items()))
        return f" with {dials}" if dials else ""


def task_of(instance: Instance) -> Task:
    """An instance as a task; its gold actions are a careful writer's calls, where known."""
    known = [(chunk, gold_operations(chunk)) for chunk in instance.chunks]
    actions = [
        Action(
            action_id=f"{chunk.chunk_id}.{number}",
            name=operation.name,
            arguments=dict(operation.arguments),
            info=f"chunk {chunk.chunk_id}",
        )
        for chunk, operations in known
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
    )
