"""Hostile tool calls in every domain: none raises, and no record outlives its episode."""

import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from grpo_cl.envs import DOMAINS, TOYS, Domain, load_domain
from grpo_cl.envs.database import SharedDatabase, to_json
from grpo_cl.types import Task, ToolCall, ToolResult
from torture.cases import Bench, Case, Verdict, lost, survived, wrong

EPISODE = 25
"""Calls in one episode."""
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 10**17, -(10**17), 0.5, -0.0, 1e300, "", " ", "\0", "é\u202e"),
    *("x" * 5_000, "../../etc/passwd", "__class__", "{0.__class__}", "%s%n", "(", ".*" * 30),
    *("(a+)+$", "9" * 400, "2024-02-30", "1/0", "9**9**9", "[" * 500, "' OR 1=1 --"),
    *([], {}, [[]], [None], {"": None}, [{"a": [1]}] * 50, {"self": 1}, ["x"] * 500),
)


def fuzz_tools(bench: Bench) -> Iterator[Case]:
    """Call the tools of every domain with hostile and with nearly right arguments."""
    episodes = bench.amount(640)
    names = (*DOMAINS, *TOYS)
    for name in bench.rng("domains").sample(names, bench.amount(len(names))):
        yield Case(name, _played_with(bench, name, episodes), tried=episodes * EPISODE)


def _played_with(bench: Bench, name: str, episodes: int) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        del folder
        domain, rng = load_domain(name), bench.rng("tools", name)
        tasks = domain.tasks(next(iter(domain.splits)))
        sample = rng.sample(tasks, min(10, len(tasks)))
        played = [_played(domain, task) for task in sample]  # parses the shared database
        shared = [value for value in gc.get_objects() if type(value) is SharedDatabase]
        before = [_hash(database) for database in shared]
        for _ in range(episodes):
            problem = _episode(domain, rng.choice(tasks), rng)
            if problem:
                return lost(problem)
        if before != [_hash(database) for database in shared]:
            return wrong("a shared record changed")
        is_same = played == [_played(domain, task) for task in sample]
        return survived() if is_same else wrong("a later episode has other results")

    return attempt


def _episode(domain: Domain, task: Task, rng: Random) -> str | None:
    environment = domain.environment(task, solo=rng.random() < 0.5)
    schemas = [tool["function"] for tool in (*domain.tools(solo=True), *domain.user_tools)]
    known = [value for action in task.gold_actions for value in action.arguments.values()]
    for _ in range(EPISODE):
        call = _call(task, schemas, known, rng)
        try:
            result = environment.call(call)
            ToolResult.model_validate_json(result.model_dump_json())
        except Exception as error:  # noqa: BLE001, any exception is what is looked for
            return f"{type(error).__name__}: {str(error)[:200]}: {task.id} {str(call)[:300]}"
    environment.state()
    return None


def _call(task: Task, schemas: Sequence[Any], known: Sequence[Any], rng: Random) -> ToolCall:
    requestor = rng.choice(("assistant", "assistant", "user"))
    gold = [action.call for action in task.gold_actions]
    if gold and rng.random() < 0.3:
        call = rng.choice(gold)
        arguments = dict(call.arguments)
        for name in rng.sample(sorted(arguments), min(len(arguments), rng.randrange(2))):
            arguments[name] = rng.choice(HOSTILE)
        return call.model_copy(update={"arguments": arguments})
    schema = rng.choice(schemas)
    names = [*schema["parameters"].get("properties", {})]
    names += rng.choices(("self", "db", "x", ""), k=rng.random() < 0.1)
    arguments = {
        name: rng.choice(known if known and rng.random() < 0.4 else HOSTILE)
        for name in names
        if rng.random() < 0.9
    }
    tool = schema["name"] if rng.random() < 0.97 else rng.choice(("run", "use", "db", "__init__"))
    return ToolCall(name=tool, arguments=arguments, requestor=requestor)


def _hash(database: SharedDatabase) -> str:
    text = to_json(database.tables)  # not its own hashes, which it keeps
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def _played(domain: Domain, task: Task) -> str:
    """What the gold actions of a task return in a new episode."""
    environment = domain.environment(task)
    results = [environment.call(action.call).content for action in task.gold_actions]
    return json.dumps([results, environment.state_hash()])
