"""Argument parser of the commands, and options that several commands share."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from typing_extensions import override

from grpo_cl.cli import values
from grpo_cl.errors import ConfigError
from grpo_cl.registry import pick

SETTINGS_TEXT = """\
settings of the run, as --name value, --section.name value or section.name=value, in any number;
a later one overrides an earlier one:
  --config FILE
      A YAML or TOML file of settings."""


class Parser(argparse.ArgumentParser):
    """A parser without abbreviated options, for commands that may also take settings of a run."""

    settings: tuple[str, ...] | None = None
    """Settings that the help of the command shows; None if it takes no settings."""
    shows_all_settings = False

    def __init__(self, **options: object) -> None:
        super().__init__(**options, allow_abbrev=False)  # type: ignore[arg-type]

    @override
    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage: an error is one sentence, printed by ``main``."""
        raise ConfigError(f"{message}; `{self.prog} --help` shows the options")

    @override
    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a value that is none of the choices, and suggest the closest one."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            close = get_close_matches(str(value), known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            message = f"{value!r} is none of {', '.join(known)}{hint}"
            raise argparse.ArgumentError(action, message)

    def add(self, name: str, *, help: str, **options: object) -> None:
        """Add an option; its name may also be spelled with dashes, and its help has the default."""
        default = options.get("default")
        if default not in (None, [], ()) and "default:" not in help:
            words = default if isinstance(default, list) else [default]
            help = f"{help}; default: {' '.join(map(str, words))}"
        self.add_argument(name, help=help, **options)  # type: ignore[arg-type]

    def add_verbs(self, summaries: Mapping[str, str]) -> list["Parser"]:
        """Add subcommands with what each does; their parsers, in the same order."""
        verbs = self.add_subparsers(required=True, metavar="VERB", parser_class=Parser)
        return [
            verbs.add_parser(name, help=summary, description=as_sentence(summary))
            for name, summary in summaries.items()
        ]

    def take_settings(self, *shown: str, all_shown: bool = False) -> None:
        """Take the settings of a run too; help describes those ``shown``, or all of them.

        A setting is shown as NAME, or as NAME=DEFAULT where the command has its own default.
        """
        self.settings = shown
        self.shows_all_settings = all_shown
        self.usage = f"{self.format_usage().removeprefix('usage: ').rstrip()} [SETTINGS]"

    @override
    def format_help(self) -> str:
        """The help, with the settings that the command takes."""
        text = super().format_help()
        if self.settings is None:
            return text
        from grpo_cl.cli.settings_help import describe, help_text

        if self.shows_all_settings:
            return f"{text}\n{SETTINGS_TEXT}\n\n{help_text()}\n"
        end = "`grpo-cl train --help` lists all settings."
        return f"{text}\n{SETTINGS_TEXT}\n{describe(self.settings)}\n\n{end}\n"

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The arguments of the command; ``settings`` has the words of settings."""
        words = [_underscored(word) for word in words]
        own, settings = (words, []) if self.settings is None else self._divide(words)
        arguments, unknown = self.parse_known_args(own)
        if unknown:
            close = get_close_matches(unknown[0], self._option_string_actions, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        arguments.settings = settings
        return arguments

    def _divide(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """The words of the command's own options and arguments, and those of settings."""
        own: list[str] = []
        settings: list[str] = []
        current = own
        for word in words:
            name, equals, _ = word.partition("=")
            if word.startswith("--") or word in self._option_string_actions:
                current = own if name in self._option_string_actions else settings
                current.append(word)
                current = own if equals else current
            elif equals and name.replace(".", "").isidentifier():
                settings.append(word)
                current = own
            else:
                current.append(word)
        return own, settings

    def find_command(self, words: Sequence[str]) -> tuple["Parser", list[str]]:
        """The parser of the command that the words name, and the words after its name."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and words and words[0][:1] != "-":
                child: Parser = pick(action.choices, words[0], "command")
                return child.find_command(words[1:])
        return self, list(words)


def as_sentence(summary: str) -> str:
    """The summary of a command with a capital and a full stop."""
    return f"{summary[0].upper()}{summary[1:]}."


def _underscored(word: str) -> str:
    """An option whose name has underscores; any other word as it is."""
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def command(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """A function that imports ``grpo_cl.cli.MODULE`` when it is called, and calls its NAME."""

    def run(arguments: argparse.Namespace) -> int:
        return getattr(import_module(f"grpo_cl.cli.{module}"), name)(arguments)

    return run


def add_data_dir(parser: Parser) -> None:
    """Add ``--tau2_data_dir``."""
    parser.add(
        "--tau2_data_dir",
        type=values.input_dir,
        metavar="DIR",
        help="a τ²-bench checkout whose tasks replace the installed ones "
        "(default: $GRPO_CL_TAU2_DATA_DIR)",
    )


def add_tools(parser: Parser) -> None:
    """Add ``--tools``."""
    parser.add(
        "--tools",
        type=values.text,
        metavar="FILE.py",
        help="Python functions that become tools beside the domain's; also MODULE or MODULE:NAME",
    )


def add_task_selection(parser: Parser, *, split: str | None, num_domains: int | str = "+") -> None:
    """Add options that select domains and a split, and ``--json``."""
    parser.add(
        "--domain",
        nargs=num_domains,
        type=values.text,
        default=["all"],
        metavar="NAME",
        help="names or FILE.py:CLASS of domains",
    )
    parser.add(
        "--split",
        type=values.text,
        default=split,
        metavar="NAME",
        help=f"train or test, or another split of the domain; default: {split or 'every split'}",
    )
    parser.add(
        "--wording",
        choices=("plain", "varied"),
        default="plain",
        help="how generated tasks are told; default: plain",
    )
    parser.add("--json", action="store_true", help="print JSON, one object per line")
    add_data_dir(parser)


def add_generator_options(parser: Parser) -> None:
    """Add options of generated tasks."""
    parser.add("--seed", type=values.seed, default=0, help="seed of the generator")
    parser.add(
        "--difficulty",
        type=values.share,
        metavar="0..1",
        help="of the generated tasks; default: mixed difficulties",
    )
