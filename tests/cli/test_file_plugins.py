import json
from pathlib import Path

import pytest

from grpo_cl.cli import main
from grpo_cl.cli.options import read_config
from grpo_cl.envs import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.registry import load_from_file
from grpo_cl.rewards import find_shaping, register_reward
from grpo_cl.rewards.shaping import Weights
from grpo_cl.runs.layout import RunDir
from grpo_cl.types import Reward

TOY = ("--model_name_or_path", "tabular", "num_steps_per_task=1", "evaluation.max_tasks=2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_shaping_from_a_file_decides_the_training_reward(folder: Path) -> None:
    Path("halved.py").write_text("def halved(reward, weights):\n    return reward.value / 2\n")
    words = ["--task_order", "toy_left", "--reward.shaping", "halved.py:halved"]
    assert main(["train", *TOY, *words, "--log_dir", "run"]) == 0
    lines = map(json.loads, RunDir(folder / "run").metrics_journal.read_text().splitlines())
    step = next(line for line in lines if line["series"] == "task_0/train")
    assert step["reward_mean"] == step["pass_rate"] / 2 > 0
    recorded = json.loads((folder / "run" / "config.json").read_text())["reward"]["shaping"]
    assert recorded == f"{folder}/halved.py:halved"


def test_a_plug_in_of_a_file_is_found_from_another_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    Path("mine.py").write_text("from grpo_cl import SequentialCL\nclass Mine(SequentialCL): ...\n")
    words = ["--task_order", "toy_left", "--cl_algorithm", "mine.py:Mine"]
    assert main(["train", *TOY, *words, "--log_dir", "run"]) == 0
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["train", "--resume_from", str(folder / "run")]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--cl_algorithm nowhere.py:Mine", r"/nowhere.py' does not exist; .* as FILE\.py:NAME"),
        ("--cl_algorithm some.py:Missing", "has no 'Missing', which .* names as the algorithm"),
        ("--cl_algorithm some.py:value", "must be a subclass of CLAlgorithm"),
        ("--rollout.user some.py:Missing", "names as the user strategy"),
        ("--reward.shaping some.py:Missing", "names as the reward shaping"),
        ("--reward.shaping progres", "unknown reward shaping 'progres'.*Did you mean 'progress'"),
        ("--task_order some.py:Missing", "names as the domain"),
    ],
)
def test_a_plug_in_that_is_not_there_is_refused_in_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    Path("some.py").write_text("value = 1\n")
    order = [] if "--task_order" in words else ["--task_order", "toy_left"]
    assert main(["train", *TOY, *order, *words.split(), "--log_dir", "run"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(error)
    assert not Path("run").exists()


def test_a_file_with_an_error_is_refused_each_time(folder: Path) -> None:
    Path("broken.py").write_text("import nothing_of_this_name\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="No module named 'nothing_of_this_name'"):
            load_from_file("broken.py:Mine", "domain")


def test_a_registered_reward_is_found_by_its_name() -> None:
    def tenth(reward: Reward, weights: Weights) -> float:
        del weights
        return reward.value / 10

    register_reward("tenth_of_the_reward", tenth)
    assert find_shaping("tenth_of_the_reward") is tenth
    with pytest.raises(ConfigError, match="the reward shaping 'progress' exists already"):
        register_reward("progress", tenth)


def test_a_domain_of_a_file_has_its_own_name_in_the_settings(folder: Path) -> None:
    assert main(["init", "domain", "lamps"]) == 0
    config = read_config(["--task_order", "lamps.py:Lamps", "toy_left", "--log_dir", "run"])
    assert config.task_order == ("lamps", "toy_left")
    assert config.domain_files == {"lamps": f"{folder}/lamps.py:Lamps"}
    domain = load_domain(config.domain_files["lamps"])
    assert domain.name == "lamps"
    assert all(task.domain == "lamps" for task in domain.tasks("test"))
