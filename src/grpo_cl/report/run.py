"""The files of a run directory that a report shows."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.metrics_tracker import read_metrics
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.damage import damage_remarks
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.result_files import read_with_checksum
from grpo_cl.storage.files import read_json
from grpo_cl.storage.journal import read_journal
from grpo_cl.storage.redaction import redact


@dataclass(frozen=True)
class Run:
    """The contents of these files; an absent file is empty."""

    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Mapping[str, Sequence[Any]]
    matrix: RMatrix
    changes: Sequence[Mapping[str, Any]]
    """Settings that changed at a resume or a fork, with the step."""
    times: Sequence[Mapping[str, Any]]
    """Seconds of every training step and evaluation."""
    spending: Sequence[Mapping[str, Any]]
    """Tokens and cost of every completion by a model API."""
    damage: Sequence[str]
    """Sentences about damaged journals."""

    def with_damage(self, sentence: str) -> "Run":
        """The run with one more remark about a damaged file."""
        return replace(self, damage=[*self.damage, sentence])

    def records(self, series: str) -> Sequence[Mapping[str, Any]]:
        """The records of one series; empty if it was not logged."""
        return self.metrics.get(series, ())

    def setting(self, path: str) -> Any:
        """A value of the configuration by its dotted name; None if it is not set."""
        value: Any = self.config
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


def read_run(root: Path) -> Run:
    """Read the files that exist; a directory without metrics and without R-matrix is refused."""
    files = RunDir(root)
    if not any(path.exists() for path in (files.metrics, files.metrics_journal, files.r_matrix)):
        raise ConfigError(
            f"{str(root)!r} has neither metrics.json nor r_matrix.json; give a run directory"
        )
    config = read_object(files.config)
    remedy = "restore it, or remove it to report without it"
    environment = read_with_checksum(files.environment, remedy)
    has_metrics = files.metrics.exists() or files.metrics_journal.exists()
    order = tuple(str(domain) for domain in config.get("task_order", ()))
    return Run(
        name=root.resolve().name,
        config=config,
        environment=redact(environment, variables=os.environ),
        metrics=read_metrics(root) if has_metrics else {},
        matrix=RMatrix.load(files.r_matrix) if files.r_matrix.exists() else RMatrix(domains=order),
        changes=_read_changes(files.config_changes),
        times=list(read_journal(files.times_journal)),
        spending=list(read_journal(files.spending)),
        damage=damage_remarks(files),
    )


def _read_changes(path: Path) -> list[dict[str, Any]]:
    changes = read_json(path) if path.exists() else []
    if not isinstance(changes, list) or not all(map(_is_change, changes)):
        raise ConfigError(f"{path} is not a list of changed settings; restore or remove the file")
    return redact(changes, variables=os.environ)


def _is_change(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("step"), int)
        and isinstance(entry.get("changes"), list)
        and all(isinstance(made, dict) and "name" in made for made in entry["changes"])
    )


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file without secrets; empty if the file does not exist."""
    value = read_json(path) if path.exists() else {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must contain a JSON object; restore or remove the file")
    return redact(value, variables=os.environ)  # pages are shared more freely than run directories
