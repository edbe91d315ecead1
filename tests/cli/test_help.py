import argparse
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from grpo_cl.cli import main, make_parser
from grpo_cl.cli.commands import COMMANDS, FIRST
from grpo_cl.cli.demo import DEFAULTS
from grpo_cl.cli.options import fields
from grpo_cl.cli.parser import Parser
from grpo_cl.cli.settings_help import help_text, type_text
from grpo_cl.config import GRPOConfig, LossConfig
from grpo_cl.config.sft import SFTOptions


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_without_a_command_the_first_commands_and_all_groups_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys)
    assert text == printed(capsys, "--help")
    assert all(f"  {each.name} " in text for each in COMMANDS)
    assert text.index("Try these first") < text.index("Train and evaluate")
    assert all(len(line) <= 100 for line in text.splitlines())


def test_the_first_commands_to_try_are_three_that_exist() -> None:
    names = [line.split()[1] for line in FIRST]
    assert len(names) == 3
    assert set(names) <= {each.name for each in COMMANDS}


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--version") == f"grpo-cl {metadata.version('grpo-cl')}\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], "unknown command 'trian'; known: .* Did you mean 'train'?"),
        (["tasks", "lst"], "unknown command 'lst'; known: .* Did you mean 'list'?"),
        (["tasks", "list", "--splitt", "x"], "did you mean '--split'?"),
        (["init", "dmain", "x"], "'dmain' is none of .* did you mean 'domain'?"),
        (["--seed", "1"], "'--seed' comes before a command"),
        (["train", "--help", "los"], "did you mean 'loss'?"),
        (["train", "--help", "max_turns"], "did you mean 'rollout.max_turns'?"),
    ],
)
def test_a_misspelled_word_is_answered_with_the_one_that_is_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], hint: str
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in hint.split(" .* "))
    assert error.count("\n") == 1


def parsers(parser: Parser) -> Iterator[Parser]:
    """The parser, and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


def test_every_option_of_every_command_has_a_sentence_and_its_default() -> None:
    _, *commands = parsers(make_parser())
    assert [each.prog for each in commands if not each.description] == []
    options = [(each.prog, action) for each in commands for action in each._actions]
    unexplained = [
        (prog, action.dest)
        for prog, action in options
        if not isinstance(action, argparse._SubParsersAction)
        and (not action.help or action.help.startswith("default: "))
    ]
    assert unexplained == []
    for prog, action in options:
        if action.default not in (None, False, [], (), argparse.SUPPRESS):
            assert "default: " in (action.help or ""), (prog, action.dest)


def test_help_on_settings_breaks_no_name_and_has_no_home_directory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = help_of(capsys, "train")
    assert "~/.cache/grpo-cl/replies" in text
    assert str(Path.home()) not in text
    assert [line for line in text.splitlines() if line.endswith("-")] == []


def test_every_setting_has_a_sentence_and_stands_in_the_help_of_train(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = help_of(capsys, "train")
    assert "--config FILE" in text
    for name, field in fields():
        assert field.description, name
        assert f"\n  --{name} " in text
    assert [name for name, field in SFTOptions.model_fields.items() if not field.description] == []


def test_help_on_a_section_has_its_settings_only(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "train", "--help", "loss")
    settings = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    assert settings == [f"--loss.{name}" for name in LossConfig.model_fields]
    assert "--loss.kind {grpo,dr_grpo,dapo,gspo,cispo}" in text
    assert "Default: dapo." in text
    assert printed(capsys, "demo", "--help", "optimizer.betas").startswith("  --optimizer.betas ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("num_samples_per_prompt", "INTEGER ≥ 2"),
        ("gamma", "NUMBER > 0 ≤ 1"),
        ("eval_interval", "INTEGER > 0 | none"),
        ("task_order", "TEXT ..."),
        ("gradient_checkpointing", "true|false"),
        ("tasks.difficulty", "NUMBER ≥ 0 ≤ 1 | .KEY NUMBER ≥ 0 ≤ 1 | none"),
        ("reward.shaping", "{progress,tool_accuracy,weighted} | TEXT | none"),
        ("logging.trackers", "{tensorboard,wandb,trackio} ..."),
        ("log_dir", "PATH"),
    ],
)
def test_the_type_of_a_setting_is_shown_with_its_limits_and_choices(name: str, text: str) -> None:
    field = dict(fields())[name]
    assert type_text(field.annotation, field.metadata) == text


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("demo", ["--log_dir", "--seed", "--num_steps_per_task"]),
        ("evaluate", ["RUN", "--model", "--base_url", "--out", "--domain", "--evaluation.trials"]),
        ("sft", ["--out", "--model_name_or_path", "--learning_rate"]),
        ("serve", ["model", "--port", "--sampling.slots"]),
    ],
)
def test_help_of_a_command_has_its_options_and_the_settings_that_matter(
    capsys: pytest.CaptureFixture[str], command: str, options: list[str]
) -> None:
    text = help_of(capsys, command)
    assert all(f"  {option} " in text for option in options), text
    assert "--config FILE" in text


def test_help_of_the_demo_has_the_defaults_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    steps, tasks = DEFAULTS["num_steps_per_task"], DEFAULTS["evaluation.generated"]
    assert steps != GRPOConfig.model_fields["num_steps_per_task"].default
    text = " ".join(help_of(capsys, "demo").split())
    assert f"Policy updates per domain. Default: {steps}." in text
    assert f"to evaluate on instead of the split. Default: {tasks}." in text


def test_the_parser_of_all_commands_imports_no_slow_modules() -> None:
    program = (
        "import sys; from grpo_cl.cli import main, make_parser; make_parser(); main(['--help']); "
        "slow = {'torch', 'transformers', 'pydantic', 'numpy', 'grpo_cl.config'}; "
        "sys.exit(' '.join(slow & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_on_settings_imports_neither_torch_nor_the_trainer() -> None:
    program = (
        "import sys; from grpo_cl.cli import main; main(['train', '--help', 'loss']); "
        "sys.exit(' '.join({'torch', 'transformers', 'grpo_cl.trainer'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("loss: ")


def test_help_on_one_setting_is_found_by_its_dotted_name() -> None:
    assert help_text("loss.kind") in help_text("loss")
