"""Domains whose own tasks are their generator's, drawn once and numbered."""

import hashlib
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from grpo_cl.domains.overlay import to_json
from grpo_cl.domains.tau2 import Source, Tau2Domain

SIZES = {"train": 74, "test": 40}
"""Tasks of each split; test tasks are numbered after the training tasks."""


class NumberedDomain(Tau2Domain):
    """A domain written here; its files stand in the package ``grpo_cl.domains.FOLDER``."""

    can_generate = True
    task_seed: ClassVar[int]
    """What the numbered tasks are drawn with; another seed would be another benchmark."""

    def __init__(self, data_dir: Path | None = None) -> None:
        del data_dir  # a τ²-bench checkout has nothing for this domain
        self.source = Source(Path(__file__).parent / self.folder, f"grpo-cl {version('grpo-cl')}")

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
            for task in self.generate(seed=self.task_seed, count=count, split=split)
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
