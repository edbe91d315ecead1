"""The healthcare domain: tasks that its own generator makes, numbered once and for all."""

import hashlib
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.generators.draft import TaskMaker
from grpo_cl.domains.generators.healthcare import task_maker
from grpo_cl.domains.healthcare.builder import build_database
from grpo_cl.domains.healthcare.tools import HealthcareTools, tool_schemas
from grpo_cl.domains.overlay import EpisodeDatabase, SharedDatabase, to_json
from grpo_cl.domains.tau2 import Source, Tau2Domain, Tau2Environment

SIZES = {"train": 74, "test": 40}
"""Tasks of each split; test tasks are numbered after the training tasks."""
TASK_SEED = 2026
"""What the numbered tasks are drawn with; another seed would be another benchmark."""


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(build_database())


class HealthcareDomain(Tau2Domain):
    """Appointments, refills and contact details under the rules of a group of clinics."""

    name = "healthcare"
    folder = "healthcare"
    can_generate = True

    def __init__(self, data_dir: Path | None = None) -> None:
        del data_dir  # a τ²-bench checkout has nothing for this domain
        self.source = Source(Path(__file__).parent, f"grpo-cl {version('grpo-cl')}")

    @property
    @override
    def database(self) -> SharedDatabase:
        return _database()

    @property
    @override
    def agent_tools(self) -> Sequence[ToolSchema]:
        return tool_schemas()

    @override
    def world(
        self, agent: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        return Tau2Environment(HealthcareTools(EpisodeDatabase(agent)), None, solo=solo)

    @property
    @override
    def release(self) -> str:
        digest = hashlib.sha256(to_json(self._raw_tasks).encode()).hexdigest()
        return f"{self.source.label} {self.name} tasks sha256:{digest[:12]}"

    @cached_property
    @override
    def _raw_tasks(self) -> dict[str, dict[str, Any]]:
        made = [
            task
            for split, count in SIZES.items()
            for task in self.generate(seed=TASK_SEED, count=count, split=split)
        ]
        return {
            task_id: task.model_dump(mode="json") | {"id": task_id}
            for task_id, task in zip(self._splits["base"], made, strict=True)
        }

    @cached_property
    @override
    def _splits(self) -> dict[str, list[str]]:
        base = [f"{self.name}-{number}" for number in range(sum(SIZES.values()))]
        return {"train": base[: SIZES["train"]], "test": base[SIZES["train"] :], "base": base}

    @override
    def task_maker(self, split: str) -> TaskMaker:
        return task_maker(build_database(), split)
