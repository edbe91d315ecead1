"""What a run directory holds, read for the report."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.metrics.tracker import read_metrics
from grpo_cl.rundir import RunDir, read_json, redact


@dataclass(frozen=True)
class Run:
    """The files of a run; what is absent is empty."""

    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Mapping[str, Sequence[Any]]
    matrix: RMatrix

    def records(self, series: str) -> Sequence[Mapping[str, Any]]:
        """The records of one series."""
        return self.metrics.get(series, ())

    def setting(self, path: str) -> Any:
        """A value of the configuration by its dotted name; None where there is none."""
        value: Any = self.config
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


def read_run(root: Path) -> Run:
    """Read what is there; a folder without any file of a run is refused."""
    files = RunDir(root)
    if not any(path.exists() for path in (files.metrics, files.metrics_journal, files.r_matrix)):
        raise ConfigError(
            f"{str(root)!r} holds no metrics.json and no r_matrix.json; name a run's directory"
        )
    config = _object(files.config)
    has_metrics = files.metrics.exists() or files.metrics_journal.exists()
    order = tuple(str(domain) for domain in config.get("task_order", ()))
    return Run(
        name=root.resolve().name,
        config=config,
        environment=_object(files.environment),
        metrics=read_metrics(root) if has_metrics else {},
        matrix=RMatrix.load(files.r_matrix) if files.r_matrix.exists() else RMatrix(domains=order),
    )


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path) if path.exists() else {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path} should hold a JSON object; restore it or remove it")
    return redact(value, variables=os.environ)  # a page is passed on more freely than a folder
