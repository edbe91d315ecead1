"""``grpo-cl completion``: completion of commands, options and settings in a shell."""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from grpo_cl.cli.parser import Parser, command

SHELLS = {
    "bash": 'eval "$(grpo-cl completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(grpo-cl completion zsh)" in ~/.zshrc, after compinit',
    "fish": "grpo-cl completion fish | source in ~/.config/fish/config.fish",
}


def add_options(parser: Parser) -> None:
    """Add the options of ``completion``."""
    lines = "; ".join(SHELLS.values())
    parser.add_argument("shell", choices=tuple(SHELLS), help=f"to use it, write {lines}")
    parser.set_defaults(run=command("completion", "completion"))


def completion(arguments: argparse.Namespace) -> int:
    """Print the script of a shell."""
    from grpo_cl.cli import make_parser

    words = dict(command_words(make_parser()))
    if arguments.shell == "fish":
        print("\n".join(_fish(words)))
        return 0
    if arguments.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(_bash(words))
    return 0


def command_words(parser: Parser, name: str = "") -> Iterator[tuple[str, list[str]]]:
    """The words that may follow each command: commands, choices, options and settings."""
    own: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                yield from command_words(child, f"{name} {word}".strip())
        own += action.option_strings
        own += map(str, action.choices or ()) if not action.option_strings else ()
    if parser.settings is not None:
        from grpo_cl.cli.options import fields

        own += ["--config", *(f"--{setting}" for setting, _ in fields())]
    yield name, list(dict.fromkeys(own))


def _bash(words: Mapping[str, Sequence[str]]) -> str:
    cases = [
        f'    "{name} "*) words="{" ".join(found)}" ;;'
        for name, found in sorted(words.items(), key=lambda entry: -len(entry[0]))
        if name
    ]
    return "\n".join(
        [
            "_grpo_cl() {",
            '  local words="" line="${COMP_WORDS[*]:1:COMP_CWORD-1} "',
            '  case "$line" in',
            *cases,
            f'    *) words="{" ".join(words[""])}" ;;',
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))',
            "}",
            "complete -o default -F _grpo_cl grpo-cl",
        ]
    )


def _fish(words: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, found in words.items():
        parts = name.split()
        seen = " ; and ".join(f"__fish_seen_subcommand_from {part}" for part in parts)
        condition = seen or "__fish_use_subcommand"
        for word in found:
            kind = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            if word != "-h":
                yield f"complete -c grpo-cl -n '{condition}' {kind}"
