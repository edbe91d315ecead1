"""``grpo-cl init``: write a runnable file and its test, to start from."""

import argparse
import re
from pathlib import Path
from string import Template

from grpo_cl.cli import values
from grpo_cl.cli.parser import Parser, command
from grpo_cl.cli.templates import TEMPLATES
from grpo_cl.errors import ConfigError

SUFFIXES = {"experiment": ".yaml"}
"""Kinds that are not a Python file."""


def add_options(parser: Parser) -> None:
    """Add the options of ``init``."""
    parser.add_argument("kind", choices=tuple(TEMPLATES), help="what to write")
    parser.add_argument("name", type=_name, help="its name, such as light_board")
    parser.add(
        "--out",
        type=values.output_dir,
        default=Path(),
        metavar="DIR",
        help="folder of the files; default: this one",
    )
    parser.set_defaults(run=command("init", "init"))


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no module name; use small letters, digits and underscores"
        )
    return text


def init(arguments: argparse.Namespace) -> int:
    """Write the file and its test, and print the commands that use them."""
    template = TEMPLATES[arguments.kind]
    name: str = arguments.name
    words = {"name": name, "Class": "".join(part.capitalize() for part in name.split("_"))}
    files = {
        arguments.out / f"{name}{SUFFIXES.get(arguments.kind, '.py')}": template.source,
        arguments.out / f"test_{name}.py": template.test,
    }
    if taken := [str(path) for path in files if path.exists()]:
        raise ConfigError(
            f"{' and '.join(taken)} exist{'s' * (len(taken) == 1)} already; choose another name or "
            "--out DIR"
        )
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(text).substitute(words))
    print(f"written: {' and '.join(map(str, files))}; try in this order:")
    folder = "" if arguments.out == Path() else f"cd {arguments.out}\n"
    print(f"{folder}pytest test_{name}.py\n{Template(template.next_steps).substitute(words)}")
    return 0
