from pathlib import Path

import pytest

from grpo_cl.cli import main
from grpo_cl.cli.options import help_text, read_config
from grpo_cl.errors import ConfigError


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rollout.max_turns", "20"],
        ["rollout.max_turns=20"],
        ["--rollout.max_turns=20"],
        ["--rollout.max-turns", "20"],
    ],
)
def test_a_setting_may_be_written_in_any_form(arguments: list[str]) -> None:
    assert read_config(arguments).rollout.max_turns == 20


def test_lists_switches_numbers_and_none_are_read_as_they_are_meant() -> None:
    words = (
        "--task_order airline retail --gradient_checkpointing --learning_rate 1e-5 "
        "tasks.difficulty=0.3 eval_interval=none --log_dir runs/x --seed 3"
    )
    config = read_config(words.split())
    assert config.task_order == ("airline", "retail")
    assert config.gradient_checkpointing is True
    assert (config.learning_rate, config.tasks.difficulty, config.seed) == (1e-5, 0.3, 3)
    assert config.eval_interval is None
    assert config.log_dir == Path("runs/x")


@pytest.mark.parametrize("suffix", [".yaml", ".toml"])
def test_flags_go_over_the_file(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"run{suffix}"
    yaml = "seed: 7\nrollout:\n  max_turns: 5\n  user: scripted\n"
    file.write_text(
        yaml if suffix == ".yaml" else 'seed = 7\n[rollout]\nmax_turns = 5\nuser = "scripted"\n'
    )
    config = read_config(["--config", str(file), "rollout.max_turns=9"])
    assert (config.seed, config.rollout.max_turns, config.rollout.user) == (7, 9, "scripted")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning_rat", "1"], "did you mean 'learning_rate'?"),
        (["max_turns=3"], "did you mean 'rollout.max_turns'?"),
        (["--learning_rate", "-1"], "learning_rate: Input should be greater than 0"),
        (["--seed", "1", "2"], "--seed takes one value, got 2"),
        (["loose"], "'loose' belongs to no option"),
        (["--config", "nowhere.yaml"], "cannot read the config"),
        (["--gamma", "0.9"], "set loss.per_action=true"),
    ],
)
def test_bad_input_gets_one_clear_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config(arguments)
    assert message in str(error.value)


def test_bad_input_ends_with_status_two_before_any_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--learning_rat", "1"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_help_lists_every_setting_with_its_default() -> None:
    text = help_text()
    assert "--loss.kind [dapo]" in text
    assert "--task_order [airline retail telecom]" in text
    assert "Policy updates per domain." in text


CONFIGS = sorted((Path(__file__).parent.parent / "configs").iterdir())


@pytest.mark.parametrize("file", [file for file in CONFIGS if "campaign" not in file.name])
def test_every_shipped_config_of_a_run_is_valid(file: Path) -> None:
    assert len(read_config(["--config", str(file)]).task_order) == 3
