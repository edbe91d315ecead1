"""Tasks as rows of the tables that other engines train from.

One row serves SkyRL (``env_class``, ``reward_spec``) and verl (``agent_name``, ``ability``,
``reward_model``); whatever else an environment needs is in ``extra_info``. Structures of varying
form are JSON text, since a column of a table has one type.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.domains import Domain
from grpo_cl.errors import ConfigError
from grpo_cl.rollout import system_prompt
from grpo_cl.types import Task

ENVIRONMENT = "grpo_cl"
SOLO = "solo"
TRAIN, VALIDATION = "train", "validation"
BEGIN = "Work on the ticket."
"""What a model with nobody to talk to is asked first: chat templates want a user's message."""


class Division(NamedTuple):
    """Tasks to learn from and tasks to watch the learning with."""

    train: list[Task]
    validation: list[Task]


def divide(tasks: Sequence[Task], train_ratio: float) -> Division:
    """The tasks of each domain by a hash of their ids: who has more tasks moves none across."""
    if not 0 < train_ratio < 1:
        raise ConfigError(f"train_ratio {train_ratio} leaves one part empty; it is between 0 and 1")
    division = Division([], [])
    for task in {(task.domain, task.id): task for task in tasks}.values():
        digest = hashlib.sha256(f"{task.domain}/{task.id}".encode()).digest()
        is_train = int.from_bytes(digest[:8]) < train_ratio * 2**64
        (division.train if is_train else division.validation).append(task)
    return division


def row(domain: Domain, task: Task, *, split: str, index: int, user: str) -> dict[str, Any]:
    """One task as SkyRL and verl read it."""
    is_solo = user == SOLO
    prompt = [{"role": "system", "content": system_prompt(domain, task, solo=is_solo)}]
    if is_solo:
        prompt.append({"role": "user", "content": BEGIN})
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
            "release": domain.release,
            "task": task.model_dump_json(exclude_none=True),
            "tools": json.dumps(domain.tools(solo=is_solo)),
        },
    }


def read_tasks(path: Path, domain: str | None) -> list[Task]:
    """The tasks of a file: a JSON list as τ²-bench has it, or one task per line."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if text.lstrip().startswith("[") else _lines(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"cannot read tasks from {str(path)!r}: {error}") from error
    named = {} if domain is None else {"domain": domain}
    try:
        return [Task.model_validate({**task, **named}) for task in found]
    except (ValidationError, TypeError) as error:
        raise ConfigError(
            f"{str(path)!r} holds something that is no task; τ²-bench's own files name no domain, "
            f"so give one with --domains: {error}"
        ) from error


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


class Table(NamedTuple):
    """What rows were made of."""

    tasks: list[Task]
    """In the order of the rows."""
    user: str


def read_table(path: Path) -> Table:
    """The tasks of a table that ``row`` made the rows of, and who talks to the agent in them."""
    from pyarrow import ArrowException, parquet  # noqa: PLC0415  # slow to import

    try:
        found = parquet.read_table(path, columns=["extra_info"]).to_pylist()
        told = [row["extra_info"] for row in found]
        tasks = [Task.model_validate_json(info["task"]) for info in told]
        users = {info["user"] for info in told}
    except (OSError, ArrowException, KeyError, ValidationError) as error:
        raise ConfigError(
            f"{str(path)!r} is no table of grpo-cl prepare-data or plan: {error}"
        ) from error
    if len(users) != 1:
        raise ConfigError(f"{str(path)!r} needs rows of one user strategy, not {sorted(users)}")
    return Table(tasks, users.pop())


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as parquet."""
    import pyarrow  # noqa: PLC0415  # slow to import, and only needed here
    from pyarrow import parquet  # noqa: PLC0415

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
