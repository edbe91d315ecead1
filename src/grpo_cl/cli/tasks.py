"""``grpo-cl tasks``: look at tasks, check them, make new ones."""

import argparse
import json
import sys
from collections.abc import Sequence

from grpo_cl.audit import audit_task, summarize
from grpo_cl.cli.world import chosen_domains, find_task, printable, table
from grpo_cl.domains import Domain
from grpo_cl.errors import ConfigError
from grpo_cl.types import Task
from grpo_cl.users.ticket import ticket


def list_tasks(arguments: argparse.Namespace) -> int:
    """Print the tasks of a split of each domain."""
    for domain in chosen_domains(arguments):
        split = arguments.split if arguments.split in domain.splits else "base"
        for task in domain.tasks(split):
            print(_line(domain, split, task, as_json=arguments.json))
    return 0


def _line(domain: Domain, split: str, task: Task, *, as_json: bool) -> str:
    calls = len(task.gold_actions)
    if as_json:
        entry = {"domain": domain.name, "split": split, "id": task.id, "gold_actions": calls}
        return json.dumps(entry | {"release": domain.release})
    what = " ".join(ticket(task).split())
    return printable(f"{domain.name}/{split}  {task.id}  {calls} gold actions  {what:.90}")


def show_task(arguments: argparse.Namespace) -> int:
    """Print one task."""
    domain, task = find_task(chosen_domains(arguments), arguments.task)
    if arguments.json:
        print(task.model_dump_json(exclude_none=True))
        return 0
    criteria = task.evaluation_criteria
    print(printable(f"{domain.name} task {task.id}  ({domain.release})\n\n{ticket(task)}\n"))
    print("Gold actions:")
    for action in task.gold_actions:
        print(printable(f"  {action.requestor}: {action.name}({json.dumps(action.arguments)})"))
    if criteria:
        print("Judged by:", " × ".join(criteria.reward_basis))
        for text in (*(criteria.communicate_info or ()), *(criteria.nl_assertions or ())):
            print(printable(f"  to say: {text}"))
        for check in criteria.env_assertions or ():
            print(printable(f"  to hold: {check.func_name}({json.dumps(check.arguments)})"))
    return 0


def check_tasks(arguments: argparse.Namespace) -> int:
    """Check every task against its solution and show the floors of doing nothing."""
    rows: list[Sequence[object]] = [
        ("split", "tasks", "solved by gold", "by nothing", "by transfer", "telling", "need judge")
    ]
    broken = 0
    for domain in chosen_domains(arguments):
        for name, tasks in _parts(domain, arguments):
            counts = summarize([audit_task(domain, task) for task in tasks])
            wrong = [task for task in counts["broken"] if task not in domain.without_solution]
            broken += len(wrong)
            if arguments.json:
                entry = {"domain": domain.name, "split": name, "release": domain.release}
                print(json.dumps(entry | dict(counts) | {"unexpected": wrong}))
            keys = ("tasks", "gold", "idle", "transfer", "telling", "needs_judge")
            rows.append((f"{domain.name}/{name}", *(counts[key] for key in keys)))
            for task_id in wrong:
                print(printable(f"{domain.name}/{name}: {task_id} is not solved by its gold"))
    if not arguments.json:
        print(table(rows))
        print("telling: solved neither by doing nothing nor by a transfer; read scores beside it")
    return 1 if broken else 0


def _parts(domain: Domain, arguments: argparse.Namespace) -> list[tuple[str, Sequence[Task]]]:
    if arguments.split is not None and arguments.split not in domain.splits:
        return []
    wanted = [arguments.split] if arguments.split else list(domain.splits)
    parts = [(split, domain.tasks(split)) for split in wanted]
    if arguments.generated and domain.can_generate:
        for half in ("train", "test"):
            parts.append((f"generated {half}", _generate(domain, arguments, half)))
    return parts


def _generate(domain: Domain, arguments: argparse.Namespace, split: str) -> list[Task]:
    return domain.generate(
        seed=arguments.seed,
        count=arguments.generated,
        split=split,
        difficulty=arguments.difficulty,
    )


def generate_tasks(arguments: argparse.Namespace) -> int:
    """Write generated tasks as a τ² task file."""
    if arguments.domain == ["all"]:
        raise ConfigError("generate makes tasks of one domain; name it with --domain")
    arguments.generated = arguments.count
    tasks = [
        task.model_dump(mode="json", exclude_none=True)
        for domain in chosen_domains(arguments)
        for task in _generate(domain, arguments, arguments.split)
    ]
    if arguments.json:
        lines = "".join(f"{json.dumps(task)}\n" for task in tasks)
    else:
        lines = json.dumps(tasks, indent=1) + "\n"
    if arguments.out is None:
        sys.stdout.write(lines)
        return 0
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(lines)
    print(f"{len(tasks)} tasks written to {arguments.out}")
    return 0
