"""Recorded episodes of any file: a run, its buffer, exports, τ²-bench results, recordings."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from math import isclose
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_cl.envs import Domain
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.integrations.tau2_results import read_simulations, results_domain
from grpo_cl.rollout.recordings import Recording
from grpo_cl.runs.buffer_exports import read_table
from grpo_cl.runs.episodes import RecordedEpisode, recorded_episode
from grpo_cl.runs.layout import CheckpointFiles, RunDir
from grpo_cl.runs.reservoir import Experience
from grpo_cl.storage.journal import read_journal
from grpo_cl.types import Reward, Task, first_problem

Domains = Mapping[str, Domain]

TOLERANCE = 1e-9
"""Rewards that differ by less are equal: a product of floats depends on its order."""


def episode_file(source: Path) -> Path:
    """The file with the episodes of ``source``, which may be a run or checkpoint directory."""
    if not source.is_dir():
        return source
    paths = (RunDir(source).trajectories_journal, CheckpointFiles(source).trajectories)
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        names = " nor ".join(path.name for path in paths)
        raise ConfigError(f"no episodes in {source}: it has neither {names}; give a run directory")
    return found


def read_recorded(path: Path, domains: Domains) -> Iterator[RecordedEpisode | Recording]:
    """The episodes of a file in order; a recording has no results of its tool calls yet."""
    if path.suffix == ".parquet":
        yield from map(_kept_episode, read_table(path))
        return
    for where, entry in _entries(path, domains):
        if isinstance(entry, RecordedEpisode):
            yield entry
            continue
        try:
            yield _read_entry(entry, domains)
        except (ValidationError, TypeError, KeyError, AttributeError) as error:
            raise TaskDataError(
                f"{where} is not a recording or an episode: {first_problem(error)}"
            ) from error


def _entries(path: Path, domains: Domains) -> Iterator[tuple[str, Any]]:
    """The entries of a JSON document or of JSON lines, each with its place in the file."""
    if path == RunDir(path.parent).trajectories_journal and RunDir(path.parent).config.exists():
        for number, line in enumerate(read_journal(path), 1):  # the run may be writing it
            yield f"{path}, line {number}", line
        return
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TaskDataError(
            f"cannot read the episodes of {path}: {error}; give a run, or a file of JSON, JSON "
            "lines or parquet"
        ) from error
    document = _document(text) if path.suffix == ".json" else None
    if document is None:
        yield from _lines(path, text)
        return
    try:
        entries = list(_document_entries(document, domains))
    except (KeyError, TypeError, AttributeError) as error:
        raise TaskDataError(
            f"{path} holds no episodes ({error!r}); it is no array of them, no saved buffer and no "
            "τ²-bench results file"
        ) from error
    for number, entry in enumerate(entries, 1):
        yield f"{path}, entry {number}", entry


def _document(text: str) -> Any:
    """The JSON document, or None if the text is not one, as JSON lines are not."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _lines(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}, line {number}"
        if line.strip():
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise TaskDataError(
                    f"{where} is not a recording or an episode: {first_problem(error)}"
                ) from error
            yield where, entry


def _document_entries(document: Any, domains: Domains) -> Iterator[Any]:
    if isinstance(document, list):
        yield from document
    elif "simulations" in document:
        yield from read_simulations(document, domains[results_domain(document)])
    elif "rng" in document:  # a saved buffer
        for domain in document["domains"].values():
            yield from domain["records"]
    else:
        yield document


def _read_entry(entry: Mapping[str, Any], domains: Domains) -> RecordedEpisode | Recording:
    record = entry.get("input", entry)
    if "termination_reason" in record:
        return Recording.model_validate(record)
    if "trajectory" in entry:
        return _kept_episode(Experience.model_validate(entry))
    if not isinstance(entry.get("domain"), str) or not isinstance(entry.get("task_id"), str):
        raise TypeError(f"an episode needs domain and task_id; its fields are {', '.join(entry)}")
    stored = entry.get("task")
    if stored is None:
        return recorded_episode(entry, domains[entry["domain"]].task(entry["task_id"]))
    return recorded_episode(entry, Task.model_validate(stored))


def _kept_episode(record: Experience) -> RecordedEpisode:
    reward = Reward(
        value=record.reward,
        basis=None,
        basis_name=record.basis_name,
        components=record.components,
    )
    return RecordedEpisode(record.trajectory, reward, has_checks=False)


def compare_rewards(recorded: RecordedEpisode, reward: Reward) -> dict[str, Any]:
    """The computed reward of an episode beside its recorded one, as plain JSON.

    ``differences`` names what differs. Components that only one of the two has are not compared,
    nor are the rewards if these components are in the basis: a judge was asked only once.
    """
    trajectory, before, _ = recorded
    return {
        "domain": trajectory.task.domain,
        "task_id": trajectory.task.id,
        "seed": trajectory.seed,
        "termination": trajectory.termination.value,
        "reward": reward.value,
        "recorded": before and before.value,
        "components": {part.value: value for part, value in reward.components.items()},
        "recorded_components": before
        and {part.value: value for part, value in before.components.items()},
        "basis_name": reward.basis_name,
        "not_judged": [part.value for part in reward.not_judged],
        "reason": reward.reason,
        "differences": [] if before is None else _differences(before, reward),
    }


def _differences(before: Reward, after: Reward) -> list[str]:
    common = [part for part in after.components if part in before.components]
    differing = [
        part.value for part in common if not _equal(before.components[part], after.components[part])
    ]
    is_comparable = not before.components or all(
        (part in before.components) == (part in after.components) for part in after.basis or ()
    )
    if is_comparable and not _equal(before.value, after.value):
        return ["reward", *differing]
    return differing


def _equal(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=0.0, abs_tol=TOLERANCE)
