from importlib.util import find_spec
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


def test_a_number_for_all_may_be_one_for_each_name() -> None:
    words = "tasks.difficulty=0.3 tasks.difficulty.airline=0 --tasks.difficulty.retail 0.5"
    pair = ["--task_order", "airline", "retail"]
    config = read_config([*words.split(), *pair])
    assert config.tasks.difficulty == {"airline": 0.0, "retail": 0.5}
    with pytest.raises(ConfigError, match=r"tasks\.difficulty.*less than or equal to 1"):
        read_config([*words.split(), *pair, "tasks.difficulty.airline=2"])
    with pytest.raises(ConfigError, match="has airline, retail but not 'telecom'; name it too"):
        read_config(words.split())


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


TOY = "--model_name_or_path tabular --task_order toy_left toy_right"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--learning_rat 1", "did you mean 'learning_rate'?"),
        ("rollout.max_turn=1", "did you mean 'rollout.max_turns'?"),
        ("--config nowhere.yaml", "cannot read the config"),
        ("--task_order airlin", "Did you mean 'airline'?"),
        ("--model_name_or_path nowhere", "give a local directory or a GGUF file"),
        (f"{TOY} --cl_algorithm reply", "Did you mean 'replay'?"),
        (f"{TOY} cl_options.strength=1", "the options of sequential are: none"),
        (f"{TOY} --cl_algorithm olora", "set lora.r to 8 or more"),
        (f"{TOY} --cl_algorithm replay --replay_ratio 1", "must be below 1"),
        (f"{TOY} --gamma 0.9", "set loss.per_action=true"),
        ("--task_order [airline", "unknown domain '[airline'"),
        ("--learning_rate {", "learning_rate: "),
        (f"{TOY} --cl_algorithm replay cl_options.mode={{", "cl_options.mode: "),
        (f"{TOY} --sharding fsdp", "leave sharding out"),
        (f"{TOY} --rollout.user nobody", "unknown user strategy 'nobody'; known: "),
        (f"{TOY} --log_dir file/run", "choose another --log_dir"),
        (f"{TOY} --log_dir taken", "holds a run already"),
        (f"{TOY} --resume_from nowhere", "is no directory; give a run's log_dir"),
        (f"{TOY} --wandb_project mine", "run `pip install wandb`"),
    ],
)
def test_bad_input_ends_with_status_two_before_any_work(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "wandb" in words and find_spec("wandb"):
        pytest.skip("wandb is installed here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("file").touch()
    Path("taken").mkdir()
    Path("taken/config.json").write_text("{}")
    assert main(["train", *words.split()]) == 2
    found = capsys.readouterr()
    assert message in found.err
    assert "Traceback" not in found.err
    assert found.out == ""
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "file", "taken"]


def test_evaluate_refuses_a_run_instead_of_measuring_the_policy_it_began_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["evaluate", *TOY.split(), "--resume_from", "runs/toy"]) == 2
    assert "--model_name_or_path RUN/checkpoint_task_N/model" in capsys.readouterr().err


def test_help_lists_every_setting_with_its_default() -> None:
    text = help_text()
    assert "--loss.kind [dapo]" in text
    assert "--task_order [airline retail telecom]" in text
    assert "Policy updates per domain." in text


CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


@pytest.mark.parametrize("file", [file for file in CONFIGS if "campaign" not in file.name])
def test_every_shipped_config_of_a_run_is_valid(file: Path) -> None:
    count = 1 if file.stem == "memory" else 3
    assert len(read_config(["--config", str(file)]).task_order) == count
