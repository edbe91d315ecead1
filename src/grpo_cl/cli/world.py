"""What the commands share: which domains are meant, and how text is shown safely."""

import argparse
from collections.abc import Sequence

from grpo_cl.config import default_data_dir
from grpo_cl.domains import DOMAINS, Domain, load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.types import Message, Task


def chosen_domains(arguments: argparse.Namespace) -> list[Domain]:
    """The domains a command was asked about."""
    names = list(DOMAINS) if "all" in arguments.domain else arguments.domain
    return [load_domain(name, arguments.tau2_data_dir or default_data_dir()) for name in names]


def find_task(domains: Sequence[Domain], task_id: str) -> tuple[Domain, Task]:
    """The task with this id and the domain it belongs to."""
    for domain in domains:
        if domain.has_task(task_id):
            return domain, domain.task(task_id)
    names = ", ".join(domain.name for domain in domains)
    raise ConfigError(f"no task {task_id!r} in {names}; `grpo-cl tasks list` shows the ids")


def printable(text: str) -> str:
    """Text without the control characters that could move a terminal's cursor."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def transcript(message: Message) -> str:
    """One message as a person reads it."""
    lines = [f"{message.role}: {message.content}"] if message.content else []
    for call in message.tool_calls or ():
        arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        lines.append(f"{message.role} calls {call.name}({arguments})")
    return printable("\n".join(lines))


def table(rows: Sequence[Sequence[object]]) -> str:
    """Rows with aligned columns, the first row as the heading."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in texts]
    return "\n".join(line.rstrip() for line in lines)
