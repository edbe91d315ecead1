"""Write the reference pages of the documentation from the code: commands, settings, plug-ins.

python scripts/reference_pages.py docs/reference
"""

import argparse
import inspect
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from grpo_cl.algorithms import ALGORITHMS, find_algorithm
from grpo_cl.cli.commands import COMMANDS
from grpo_cl.cli.parser import Parser
from grpo_cl.cli.settings_help import default_text, sections, type_text
from grpo_cl.envs import DOMAINS, load_domain
from grpo_cl.rewards.shaping import SHAPINGS
from grpo_cl.users import STRATEGIES, USERS

STYLE = "<style>.md-typeset td:first-child code { white-space: nowrap; }</style>"
"""Names such as ``--lora.r`` are not broken at a hyphen."""


def commands_page() -> str:
    """Every command with the options of its help, by group."""
    lines = ["# Commands", "", "`grpo-cl COMMAND --help` prints the same."]
    for group in dict.fromkeys(command.group for command in COMMANDS):
        lines += ["", f"## {group}"]
        for command in COMMANDS:
            if command.group == group:
                parser = Parser(prog=f"grpo-cl {command.name}", description=command.description)
                command.add_options(parser)
                parser.shows_all_settings = False  # the page of settings has them
                helps = [each.format_help().rstrip() for each in with_subcommands(parser)]
                lines += ["", f"### {command.name}"]
                lines += [line for text in helps for line in ("", "```text", text, "```")]
    return "\n".join(lines)


def with_subcommands(parser: Parser) -> list[Parser]:
    """The parser of a command and those of its subcommands."""
    children = [
        child
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for child in action.choices.values()
    ]
    return [parser, *children]


def settings_page() -> str:
    """Every setting of a run, by section."""
    lines = [
        "# Settings",
        "",
        "Settings are flags of `grpo-cl train` (`--rollout.max_turns 20`), keys of a config file",
        "and fields of `GRPOConfig`. `grpo-cl train --help SECTION` prints a section.",
    ]
    for section in sections():
        rows = [
            (
                f"`{name}`",
                f"`{type_text(field.annotation, field.metadata)}`",
                f"`{default_text(field)}`",
                field.description or "",
            )
            for name, field in section.settings.items()
        ]
        lines += ["", f"## {section.name}", "", section.summary, ""]
        lines += table(("setting", "takes", "default", "meaning"), rows)
    return "\n".join(lines)


def plugins_page() -> str:
    """Algorithms, domains, users and training rewards by name."""
    algorithms = [(f"`{name}`", summary(find_algorithm(name))) for name in ALGORITHMS]
    domains = [(f"`{name}`", summary(type(load_domain(name)))) for name in DOMAINS]
    users = [(f"`{name}`", summary(user)) for name, user in {**USERS, **STRATEGIES}.items()]
    rewards = [(f"`{name}`", summary(shaping)) for name, shaping in SHAPINGS.items()]
    parts = (
        ("Algorithms", "cl_algorithm", "../algorithms.md", algorithms),
        ("Domains", "task_order", "../domains.md", domains),
        ("Users", "rollout.user", "../users.md", users),
        ("Training rewards", "reward.shaping", "../rewards.md", rewards),
    )
    lines = ["# Algorithms, domains, users, rewards"]
    for title, setting, page, rows in parts:
        lines += ["", f"## {title}", "", f"Names for `{setting}`; [more]({page}).", ""]
        lines += table(("name", "what it is"), rows)
    return "\n".join(lines)


def summary(plugin: object) -> str:
    """The first sentence of a docstring."""
    return " ".join((inspect.getdoc(plugin) or "").split("\n\n")[0].split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(_cell, line))} |" for line in lines]


def _cell(text: str) -> str:
    """The text on one line; a bar would end the cell, and in a code span it cannot be escaped."""
    line = " ".join(text.replace("``", "`").split())
    spans = re.sub(r"`([^`]*\|[^`]*)`", lambda span: f"<code>{escape(span[1])}</code>", line)
    return spans.replace("|", "&#124;")


PAGES = {"commands": commands_page, "settings": settings_page, "plugins": plugins_page}


def write_pages(folder: Path) -> None:
    """Write all pages into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (folder / f"{name}.md").write_text(f"{make()}\n\n{STYLE}\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the reference pages from the code.")
    parser.add_argument("folder", type=Path)
    write_pages(parser.parse_args().folder)
