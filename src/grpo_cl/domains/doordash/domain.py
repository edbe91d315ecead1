"""The doordash domain: its world, its policy and its own tasks."""

import hashlib
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.doordash.database import DoordashDB
from grpo_cl.domains.doordash.seed import build_database
from grpo_cl.domains.doordash.tools import SCHEMAS, DoordashTools
from grpo_cl.domains.generators.doordash import task_maker
from grpo_cl.domains.generators.draft import TaskMaker
from grpo_cl.domains.overlay import EpisodeDatabase, SharedDatabase, to_json
from grpo_cl.domains.tau2 import Source, Tau2Domain, Tau2Environment

NUM_TRAIN, NUM_TEST = 74, 40
TASK_SEED = 2025
"""The domain's own tasks are those the generator draws with this seed, numbered from 0."""


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(build_database())


class DoordashDomain(Tau2Domain):
    """Orders, changes, cancellations and refunds of a food delivery service."""

    name = "doordash"
    folder = "doordash"
    can_generate = True

    def __init__(self, data_dir: Path | None = None) -> None:
        del data_dir  # a τ²-bench checkout has nothing of this domain
        self.source = Source(Path(__file__).parent, f"grpo-cl {version('grpo-cl')}")

    @property
    @override
    def database(self) -> SharedDatabase:
        return _database()

    @property
    @override
    def agent_tools(self) -> Sequence[ToolSchema]:
        return SCHEMAS

    @override
    def world(
        self, agent: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        return Tau2Environment(DoordashTools(EpisodeDatabase(agent)), None, solo=solo)

    @override
    def task_maker(self, split: str) -> TaskMaker:
        model = self.database.model
        assert isinstance(model, DoordashDB)
        return task_maker(model, split)

    @property
    @override
    def release(self) -> str:
        digest = hashlib.sha256(to_json(self._raw_tasks).encode()).hexdigest()
        return f"{self.source.label} {self.name} tasks sha256:{digest[:12]}"

    @cached_property
    @override
    def _raw_tasks(self) -> dict[str, dict[str, Any]]:
        made = [
            *self.generate(seed=TASK_SEED, count=NUM_TRAIN, split="train"),
            *self.generate(seed=TASK_SEED, count=NUM_TEST, split="test"),
        ]
        return {
            task_id: task.model_dump(mode="json") | {"id": task_id}
            for task_id, task in zip(self._splits["base"], made, strict=True)
        }

    @cached_property
    @override
    def _splits(self) -> dict[str, list[str]]:
        base = [f"{self.name}-{number}" for number in range(NUM_TRAIN + NUM_TEST)]
        return {"train": base[:NUM_TRAIN], "test": base[NUM_TRAIN:], "base": base}
