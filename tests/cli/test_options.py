from importlib.util import find_spec
from pathlib import Path

import pytest

from grpo_cl.campaigns.campaign import read_campaign
from grpo_cl.cli import main
from grpo_cl.cli.options import read_config
from grpo_cl.errors import ConfigError
from paths import CONFIGS


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rollout.max_turns", "20"],
        ["rollout.max_turns=20"],
        ["--rollout.max_turns=20"],
        ["--rollout.max-turns", "20"],
    ],
)
def test_a_setting_may_have_any_spelling(arguments: list[str]) -> None:
    assert read_config(arguments).rollout.max_turns == 20


def test_lists_flags_numbers_and_none_are_parsed_by_type() -> None:
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


def test_none_is_a_value_where_a_setting_has_it_and_null_elsewhere() -> None:
    config = read_config(
        ["--sharding", "none", "sampling.max_context=none", "--wandb_project", "null"]
    )
    assert (config.sharding, config.sampling.max_context, config.wandb_project) == (
        "none",
        None,
        None,
    )
    assert read_config(["--reward.shaping", "none"]).reward.shaping is None
    assert read_config(["--config", str(CONFIGS / "tiny.yaml"), "sharding=none"]).sharding == "none"


def test_a_setting_may_have_one_value_per_domain() -> None:
    words = "tasks.difficulty=0.3 tasks.difficulty.airline=0 --tasks.difficulty.retail 0.5"
    pair = ["--task_order", "airline", "retail"]
    config = read_config([*words.split(), *pair])
    assert config.tasks.difficulty == {"airline": 0.0, "retail": 0.5}
    with pytest.raises(ConfigError, match=r"tasks\.difficulty.*less than or equal to 1"):
        read_config([*words.split(), *pair, "tasks.difficulty.airline=2"])
    with pytest.raises(ConfigError, match="has airline, retail but not 'telecom'; name it too"):
        read_config(words.split())


@pytest.mark.parametrize("suffix", [".yaml", ".toml"])
def test_flags_override_the_config_file(tmp_path: Path, suffix: str) -> None:
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
        (["loose"], "'loose' does not belong to an option"),
        (["--config", "nowhere.yaml"], "cannot read the config"),
        (["--gamma", "0.9"], "requires loss.per_action=true"),
    ],
)
def test_invalid_options_raise_a_clear_error(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config(arguments)
    assert message in str(error.value)


TOY = "--model_name_or_path tabular --task_order toy_left toy_right"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--learning_rat 1", "did you mean 'learning_rate'?"),
        ("rollout.max_turn=1", "did you mean 'rollout.max_turns'?"),
        ("--config nowhere.yaml", "'nowhere.yaml': No such file or directory; give a YAML, TOML"),
        ("--task_order airlin", "Did you mean 'airline'?"),
        ("--model_name_or_path nowhere", "give a local directory or a GGUF file"),
        (f"{TOY} --cl_algorithm reply", "Did you mean 'replay'?"),
        (f"{TOY} cl_options.strength=1", "the options of sequential are: none"),
        (f"{TOY} --cl_algorithm olora", "set lora.r to 8 or more"),
        (f"{TOY} --cl_algorithm replay --replay_ratio 1", "must be below 1"),
        (f"{TOY} --gamma 0.9", "requires loss.per_action=true"),
        ("--task_order [airline", "unknown domain '[airline'"),
        ("--learning_rate {", "learning_rate: "),
        (f"{TOY} --cl_algorithm replay cl_options.mode={{", "cl_options.mode: "),
        (f"{TOY} --sharding fsdp", "leave sharding out"),
        (f"{TOY} --rollout.user missing", "unknown user strategy 'missing'; known: "),
        (f"{TOY} --log_dir file/run", "choose another --log_dir"),
        (f"{TOY} --log_dir taken", "already holds a run"),
        (f"{TOY} --resume_from nowhere", "is not a directory; give a run's log_dir"),
        (f"{TOY} --wandb_project mine", "run `pip install wandb`"),
    ],
)
def test_invalid_settings_exit_with_status_two_and_write_nothing(
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
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == "" or captured.out.startswith("loading ")
    assert captured.out.count("\n") <= 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "file", "taken"]


def test_evaluate_refuses_resume_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["evaluate", *TOY.split(), "--resume_from", "runs/toy"]) == 2
    assert "grpo-cl evaluate RUN/checkpoint_task_N" in capsys.readouterr().err


CONFIG_FILES = sorted(CONFIGS.glob("*.yaml"))


@pytest.mark.parametrize("file", [file for file in CONFIG_FILES if "campaign" not in file.name])
def test_every_shipped_run_config_is_valid(file: Path) -> None:
    count = {"memory": 1, "tau2_telecom": 1, "embedded_policy": 6}.get(file.stem, 3)
    assert len(read_config(["--config", str(file)]).task_order) == count


def test_a_run_says_what_it_loads_before_it_loads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model_name_or_path", "tabular", "--task_order", "toy_left", "--sharding", "fsdp"]
    assert main(["train", *words, "--log_dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().out == f"loading tabular for {tmp_path / 'run'}\n"


def test_refusal_of_a_file_quotes_none_of_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text('judge: {base_url: "https://me:canary-5a17@host/v1"\n')
    with pytest.raises(ConfigError, match=r"is not valid \.yaml: .*line 1, column 8") as refusal:
        read_config(["--config", str(file)])
    assert "canary" not in str(refusal.value)
    with pytest.raises(ConfigError, match=r"is not valid YAML: .*line 1, column 8") as refusal:
        read_campaign(file)
    assert "canary" not in str(refusal.value)
