"""``grpo-cl tasks``: list, show, check and generate tasks."""

import argparse
import json
import sys
from collections.abc import Sequence

from grpo_cl.cli.output import printable, table
from grpo_cl.config import GRPOConfig, TasksConfig, default_data_dir
from grpo_cl.envs import DOMAINS, Domain, load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.progress import CLEAR_LINE
from grpo_cl.registry import pick
from grpo_cl.rollout.baselines import TaskBaselines, score_baselines, summarize
from grpo_cl.types import EvaluationCriteria, RewardType, Task
from grpo_cl.users.scripted.ticket import ticket

_GENERATED_SPLITS = ("train", "test")
_COMMON_SPLITS = ("base", *_GENERATED_SPLITS)
"""A domain without one of these shows all its tasks instead."""


def selected_domains(arguments: argparse.Namespace) -> list[Domain]:
    """The domains named by ``--domain``; one of them has the split, if it is not a common one."""
    names = list(DOMAINS) if "all" in arguments.domain else arguments.domain
    config = GRPOConfig(tasks=TasksConfig(wording=arguments.wording))
    domains = [
        load_domain(name, arguments.tau2_data_dir or default_data_dir()).configured(config)
        for name in names
    ]
    if arguments.split is not None:
        splits = (*_COMMON_SPLITS, *(split for domain in domains for split in domain.splits))
        pick(dict.fromkeys(splits), arguments.split, "split")
    return domains


def find_task(domains: Sequence[Domain], task_id: str) -> tuple[Domain, Task]:
    """The task with this id, and its domain."""
    for domain in domains:
        if domain.has_task(task_id):
            return domain, domain.task(task_id)
    names = ", ".join(domain.name for domain in domains)
    raise ConfigError(f"no task {task_id!r} in {names}; `grpo-cl tasks list` shows the ids")


def list_tasks(arguments: argparse.Namespace) -> int:
    """Print the tasks of a split of each domain."""
    for domain in selected_domains(arguments):
        split = arguments.split if arguments.split in domain.splits else "base"
        for task in domain.tasks(split)[: arguments.count]:
            print(_line(domain, split, task, as_json=arguments.json))
    return 0


def _line(domain: Domain, split: str, task: Task, *, as_json: bool) -> str:
    calls = len(task.gold_actions)
    if as_json:
        entry = {"domain": domain.name, "split": split, "id": task.id, "gold_actions": calls}
        return json.dumps(entry | {"release": domain.release_of(task)})
    summary = " ".join(ticket(task).split())
    return printable(f"{domain.name}/{split}  {task.id}  {calls} gold actions  {summary:.90}")


def show_task(arguments: argparse.Namespace) -> int:
    """Print one task, its gold actions and its reward basis."""
    domain, task = find_task(selected_domains(arguments), arguments.task)
    if arguments.json:
        print(task.model_dump_json(exclude_none=True))
        return 0
    release = domain.release_of(task)
    print(printable(f"{domain.name} task {task.id}  ({release})\n\n{ticket(task)}\n"))
    print("Gold actions:")
    for action in task.gold_actions:
        print(printable(f"  {action.requestor}: {action.name}({json.dumps(action.arguments)})"))
    if task.evaluation_criteria:
        print(printable("\n".join(_criteria_lines(task.evaluation_criteria))))
    return 0


def _criteria_lines(criteria: EvaluationCriteria) -> list[str]:
    """The reward basis, and every assertion with whether it counts."""
    calls = [
        f"must hold: {check.func_name}({json.dumps(check.arguments)})"
        for check in criteria.env_assertions or ()
    ]
    assertions = {
        RewardType.COMMUNICATE: [f"must say: {text}" for text in criteria.communicate_info or ()],
        RewardType.NL_ASSERTION: [
            f"must say, by a judge: {text}" for text in criteria.nl_assertions or ()
        ],
        RewardType.ENV_ASSERTION: calls,
    }
    lines = [f"Reward basis: {' × '.join(criteria.reward_basis)}"]
    for part, texts in assertions.items():
        counts = "counts" if part in criteria.reward_basis else "does not count"
        lines += [f"  {text}  [{part}: {counts}]" for text in texts]
    return lines


def check_tasks(arguments: argparse.Namespace) -> int:
    """Score every task's gold solution and its do-nothing and transfer baselines."""
    columns = {
        "tasks": "tasks",
        "gold": "solved by gold",
        "idle": "by nothing",
        "transfer": "by transfer",
        "telling": "informative",
        "needs_judge": "need judge",
    }
    rows: list[Sequence[object]] = [("split", *columns.values())]
    num_unsolved = 0
    for domain in selected_domains(arguments):
        for name, tasks in _parts(domain, arguments):
            counts = summarize(_scored(domain, tasks, f"{domain.name}/{name}"))
            unsolved = [task for task in counts["broken"] if task not in domain.without_solution]
            num_unsolved += len(unsolved)
            if arguments.json:
                release = domain.release_of(tasks[0]) if tasks else domain.release
                entry = {"domain": domain.name, "split": name, "release": release}
                print(json.dumps(entry | dict(counts) | {"unexpected": unsolved}))
            rows.append((f"{domain.name}/{name}", *(counts[key] for key in columns)))
            for task_id in unsolved:
                print(
                    printable(f"{domain.name}/{name}: {task_id} is not solved by its gold actions")
                )
    if not arguments.json:
        print(table(rows))
        print("informative: solved neither by doing nothing nor by a transfer to a human")
    return 1 if num_unsolved else 0


def _scored(domain: Domain, tasks: Sequence[Task], label: str) -> list[TaskBaselines]:
    """The baselines of every task; a line on standard error counts the tasks."""
    is_live = sys.stderr.isatty()
    scored: list[TaskBaselines] = []
    for number, task in enumerate(tasks, 1):
        if is_live:
            print(
                f"{CLEAR_LINE}checking {label}: {number}/{len(tasks)} tasks",
                end="",
                file=sys.stderr,
            )
        scored.append(score_baselines(domain, task))
    print(
        CLEAR_LINE if is_live else f"checked {label}: {len(tasks)} tasks\n",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return scored


def _parts(domain: Domain, arguments: argparse.Namespace) -> list[tuple[str, Sequence[Task]]]:
    if arguments.split is not None and arguments.split not in domain.splits:
        return []
    splits = [arguments.split] if arguments.split else list(domain.splits)
    parts = [(split, domain.tasks(split)) for split in splits]
    if arguments.generated and domain.can_generate:
        for split in _GENERATED_SPLITS:
            parts.append((f"generated {split}", _generate(domain, arguments, split)))
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
        raise ConfigError("generate needs a domain; name it with --domain")
    pick(dict.fromkeys(_GENERATED_SPLITS), arguments.split, "split of generated tasks")
    arguments.generated = arguments.count
    tasks = [
        task.model_dump(mode="json", exclude_none=True)
        for domain in selected_domains(arguments)
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
