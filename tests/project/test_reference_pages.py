"""The reference of the documentation has everything that the code has."""

from pathlib import Path

from grpo_cl.cli import make_parser
from grpo_cl.cli.options import fields
from grpo_cl.cli.parser import Parser
from reference_pages import commands_page, plugins_page, settings_page, with_subcommands


def every_parser() -> list[Parser]:
    _, *commands = with_subcommands(make_parser())
    return [each for command in commands for each in with_subcommands(command)]


def test_the_page_of_commands_has_every_option_of_every_subcommand() -> None:
    page = " ".join(commands_page().split())
    for parser in every_parser():
        usage = " ".join(parser.format_usage().split())
        assert usage.removesuffix(" [SETTINGS]") in page
    assert "--difficulty 0..1" in page.partition("usage: grpo-cl tasks generate")[2]


def test_the_page_of_settings_has_every_setting_and_no_home_directory() -> None:
    page = settings_page()
    assert all(f"| `{name}` |" in page for name, _ in fields())
    assert str(Path.home()) not in page
    assert "<code>true&#124;false</code>" in page  # the site shows an escaped bar with its slash


def test_the_page_of_plug_ins_has_algorithms_domains_users_and_rewards() -> None:
    page = plugins_page()
    for name in ("ewc", "telecom", "scripted", "tool_accuracy"):
        assert f"| `{name}` | " in page
    assert "|  |" not in page  # each has a sentence
