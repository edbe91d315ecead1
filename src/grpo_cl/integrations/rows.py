"""Tasks as rows of the parquet files that other engines train from.

One row serves SkyRL (``env_class``, ``reward_spec``) and verl (``agent_name``, ``ability``,
``reward_model``); everything else an environment needs is in ``extra_info``. Nested values with
varying schemas are JSON strings, since a parquet column has one type.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.config import GRPOConfig
from grpo_cl.envs import Domain
from grpo_cl.envs.tasks import own_tasks
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.tau_bench_tasks import DomainLoader, is_tau_bench_task, tau_bench_task
from grpo_cl.rollout import system_prompt
from grpo_cl.types import Task

ENVIRONMENT = "grpo_cl"
SOLO = "solo"
TRAIN, VALIDATION, TEST = "train", "validation", "test"
SOLO_PROMPT = "Work on the ticket."
"""The user message of solo episodes: chat templates require one."""
_GENERATED_TEST_ID = re.compile(r"[\w-]+-gen-test-.+")
"""Ids of test tasks of a generator."""


class TrainingTasks(NamedTuple):
    """The tasks of a file that an engine may train on."""

    tasks: list[Task]
    """For training, and for validation if the file marks none for it."""
    validation: list[Task]
    """Marked with ``"split": "validation"``."""
    left_out: list[Task]
    """Test tasks."""


class TaskSplit(NamedTuple):
    """Training and validation tasks."""

    train: list[Task]
    validation: list[Task]


def split_tasks(tasks: Sequence[Task], train_ratio: float) -> TaskSplit:
    """Split tasks by a hash of their ids: adding tasks never moves one to the other part."""
    if not 0 < train_ratio < 1:
        raise ConfigError(
            f"train_ratio {train_ratio} leaves one part empty; choose a value between 0 and 1"
        )
    parts = TaskSplit([], [])
    for task in {(task.domain, task.id): task for task in tasks}.values():
        digest = hashlib.sha256(f"{task.domain}/{task.id}".encode()).digest()
        is_train = int.from_bytes(digest[:8]) < train_ratio * 2**64
        (parts.train if is_train else parts.validation).append(task)
    return parts


def task_row(domain: Domain, task: Task, *, split: str, index: int, user: str) -> dict[str, Any]:
    """One task as a row for SkyRL and verl."""
    is_solo = user == SOLO
    prompt = [{"role": "system", "content": system_prompt(domain, task, solo=is_solo)}]
    if is_solo:
        prompt.append({"role": "user", "content": SOLO_PROMPT})
    return {
        "data_source": f"{ENVIRONMENT}/{domain.name}",
        "prompt": prompt,
        "env_class": ENVIRONMENT,
        "agent_name": ENVIRONMENT,
        "ability": "tool_use",
        "reward_spec": {"method": "rule", "ground_truth": task.id},
        "reward_model": {"style": "rule", "ground_truth": task.id},
        "extra_info": {
            "index": index,
            "split": split,
            "domain": domain.name,
            "task_id": task.id,
            "user": user,
            "release": domain.release_of(task),
            "task": task.model_dump_json(exclude_none=True),
            "tools": json.dumps(domain.tools(solo=is_solo)),
        },
    }


def read_tasks(path: Path, domain: str | None, load: DomainLoader) -> list[Task]:
    """The tasks of a file: a JSON list, ``{"tasks": […]}`` or JSON lines.

    Tasks are in τ²-bench's format or in that of its first release; ``domain`` is used for tasks
    that name none.
    """
    return [task for task, _ in _read_marked(path, domain, load)]


def read_training_tasks(path: Path, domain: str | None, load: DomainLoader) -> TrainingTasks:
    """The tasks of a file by their use: test tasks must not be trained on.

    A test task has ``"split": "test"``, or its id under ``test`` in the ``split_tasks.json`` beside
    the file, or the id or the content of a test task of its domain.
    """
    parts = TrainingTasks([], [], [])
    held_out = cache(lambda name: _held_out_keys(load(name)))
    for task, mark in _read_marked(path, domain, load):
        is_test = _GENERATED_TEST_ID.fullmatch(task.id) or _keys(task) & held_out(task.domain)
        if mark == TEST or is_test:
            parts.left_out.append(task)
        else:
            (parts.validation if mark == VALIDATION else parts.tasks).append(task)
    return parts


def _read_marked(
    path: Path, domain: str | None, load: DomainLoader
) -> Iterator[tuple[Task, str | None]]:
    """The tasks of a file, each with the split that the file assigns to it."""
    try:
        entries = _task_entries(path.read_text(encoding="utf-8"))
        test_ids = _listed_test_ids(path.with_name("split_tasks.json"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"cannot read tasks from {str(path)!r}: {error}") from error
    for index, entry in enumerate(entries):
        try:
            task, mark = _read_task(entry, domain, load)
        except ConfigError as error:
            raise ConfigError(f"task {index} of {str(path)!r}: {error}") from error
        yield task, TEST if task.id in test_ids else mark


def _read_task(entry: Any, domain: str | None, load: DomainLoader) -> tuple[Task, str | None]:
    if not isinstance(entry, dict):
        raise ConfigError(f"a task is a JSON object, not {json.dumps(entry):.60}")
    fields: dict[str, Any] = {**entry}
    mark = fields.pop("split", None)
    if mark not in {None, TRAIN, VALIDATION, TEST}:
        raise ConfigError(f"split: {mark!r} is none of {TRAIN}, {VALIDATION}, {TEST}")
    if is_tau_bench_task(fields):
        return tau_bench_task(fields, domain=domain, load=load), mark
    return _tau2_task(fields, domain), mark


def _listed_test_ids(path: Path) -> set[str]:
    """The test tasks that τ²-bench's list of splits beside a task file names."""
    if not path.is_file():
        return set()
    splits = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(splits, dict) or not isinstance(splits.get(TEST, []), list):
        raise ValueError(f"{path.name} beside it is not an object with lists of task ids")
    return {str(task_id) for task_id in splits.get(TEST, [])}


def _held_out_keys(domain: Domain) -> set[str]:
    fraction = GRPOConfig.model_fields["train_split"].default
    return {key for task in own_tasks(domain, TEST, fraction) for key in _keys(task)}


def _keys(task: Task) -> set[str]:
    """The id of a task, and its content, which a renamed copy shares."""
    content = task.model_dump_json(
        include={"user_scenario", "initial_state", "evaluation_criteria"}
    )
    return {task.id, content}


def _task_entries(text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except ValueError:
        content = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(content, dict):
        content = content.get("tasks", [content])
    if not isinstance(content, list) or not content:
        raise ValueError('the file has no tasks; it holds a list, {"tasks": [...]} or JSON lines')
    return content


def _tau2_task(entry: dict[str, Any], domain: str | None) -> Task:
    name = entry.get("domain") or domain
    try:
        return Task.model_validate({**entry, **({} if name is None else {"domain": name})})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
        )
        raise ConfigError(
            f"{problems}; τ²-bench's own files name no domain, so give one with --domains"
        ) from error


class TaskTable(NamedTuple):
    """The tasks of a parquet file and the user strategy of its episodes."""

    tasks: list[Task]
    """In row order."""
    user: str


def read_table(path: Path) -> TaskTable:
    """Read a parquet file with rows of ``task_row``."""
    from pyarrow import ArrowException, parquet  # noqa: PLC0415  # slow to import

    try:
        rows = parquet.read_table(path, columns=["extra_info"]).to_pylist()
        infos = [row["extra_info"] for row in rows]
        tasks = [Task.model_validate_json(info["task"]) for info in infos]
        users = {info["user"] for info in infos}
    except (OSError, ArrowException, KeyError, ValidationError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise ConfigError(
            f"{str(path)!r} is not a table of `grpo-cl prepare-data` or `grpo-cl plan`: {reason}"
        ) from error
    if not tasks:
        raise ConfigError(f"{str(path)!r} has no rows; write it again with `grpo-cl prepare-data`")
    if len(users) != 1:
        raise ConfigError(
            f"{str(path)!r} must have one user strategy in all rows, not {sorted(users)}"
        )
    return TaskTable(tasks, users.pop())


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows to a parquet file."""
    import pyarrow  # noqa: PLC0415  # slow to import, and only needed here
    from pyarrow import parquet  # noqa: PLC0415

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
