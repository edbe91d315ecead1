"""The customers of τ²-bench's databases, divided into those of train and of test tasks."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from inspect_evals.tau2.airline.data_model import User as AirlineUser
from inspect_evals.tau2.retail.data_model import User as RetailUser

from grpo_cl.envs.generation.tasks import in_split
from grpo_cl.envs.tau2_files import installed_data_dir

User = TypeVar("User", AirlineUser, RetailUser)


def customers(users: Mapping[str, User], *, folder: str, split: str) -> list[User]:
    """The customers of a split; those named in τ²-bench's own test tasks belong to test."""
    words = _words_of_test_tasks(folder)
    members: list[User] = []
    for key, user in users.items():
        is_tested = not words.isdisjoint((key, *_owned_ids(user)))
        if in_split(key, split) if not is_tested else split == "test":
            members.append(user)
    return members


def _owned_ids(user: Any) -> Sequence[str]:
    return user.orders if isinstance(user, RetailUser) else user.reservations


@cache
def _words_of_test_tasks(folder: str) -> frozenset[str]:
    directory = installed_data_dir() / "domains" / folder
    test = set(json.loads((directory / "split_tasks.json").read_text())["test"])
    tasks = json.loads((directory / "tasks.json").read_text())
    text = json.dumps([task for task in tasks if task["id"] in test])
    return frozenset(re.findall(r"#?\w+", text))
