"""The command line: parse the arguments, call one function, print its result.

Commands import their modules when they run, so that help and usage errors appear at once.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from itertools import pairwise

from grpo_cl.cli import extras, values
from grpo_cl.cli.commands import COMMANDS, overview
from grpo_cl.cli.parser import Parser, command
from grpo_cl.errors import ConfigError, GRPOCLError, TaskDataError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        arguments = _parse(list(sys.argv[1:] if argv is None else argv))
        return arguments.run(arguments)
    except GRPOCLError as error:
        _print_error(str(error))
        return 2 if isinstance(error, ConfigError | TaskDataError) else 1
    except ModuleNotFoundError as error:
        if (message := extras.sentence(error)) is None:
            raise
        _print_error(message)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0  # the reader of the output closed the pipe
    except OSError as error:
        if error.filename is None:
            raise
        _print_error(f"cannot use {str(error.filename)!r}: {error.strerror}; choose another path")
        return 2


def _print_error(message: str) -> None:
    from grpo_cl.storage.redaction import hide

    print(f"grpo-cl: {hide(message, variables=os.environ)}", file=sys.stderr)


def _parse(argv: list[str]) -> argparse.Namespace:
    values.require_text(argv)
    parser, words = make_parser(argv[0] if argv else None).find_command(argv)
    if not argv or argv[0].startswith("-"):
        return _overall(parser, argv)
    topic = help_topic(words)
    if topic is not None and parser.settings is not None:
        return argparse.Namespace(run=command("settings_help", "show_settings"), topic=topic)
    return parser.parse(words)


def _overall(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """What ``grpo-cl`` does without a command."""
    if argv and argv[0] not in ("-h", "--help", "--version"):
        parser.error(f"{argv[0]!r} comes before a command")
    show = print_version if argv[:1] == ["--version"] else print_overview
    return argparse.Namespace(run=show)


def help_topic(words: Sequence[str]) -> str | None:
    """The section or setting after ``--help``; None without one."""
    for word, following in pairwise(words):
        if word in ("-h", "--help") and not following.startswith("-"):
            return following
    return None


def print_version(arguments: argparse.Namespace) -> int:
    """Print the version of the package."""
    del arguments
    print(f"grpo-cl {metadata.version('grpo-cl')}")
    return 0


def print_overview(arguments: argparse.Namespace) -> int:
    """Print the first commands to try, and all commands by group."""
    del arguments
    print(overview())
    return 0


def make_parser(only: str | None = None) -> Parser:
    """The parser of all commands; with ``only`` this one alone has its options."""
    parser = Parser(prog="grpo-cl")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for each in COMMANDS:
        child = commands.add_parser(each.name, help=each.summary, description=each.description)
        if only in (None, each.name):
            each.add_options(child)
    return parser
