"""Every option of every command and every setting of a run, with values that make no sense.

Options and settings are found by introspection, so that a new one is tried too.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from pydantic.fields import FieldInfo

from grpo_cl.algorithms import ALGORITHMS, find_algorithm, make_algorithm
from grpo_cl.cli import main, make_parser
from grpo_cl.cli.options import fields, read_config
from grpo_cl.envs.memory import MemorySystem
from grpo_cl.errors import ConfigError
from toy_runs import toy_run

HUGE = "1" + "0" * 30
NUMBERS = ("nan", "inf", "-1", "0", "1e400", HUGE, "9" * 5000)
PATHS = ("nowhere/x", "file", "directory", "file/x", "/proc/x")
TEXTS = ("", "word", "\ud800", "a\0b", "a\udcff", "2020-13-45", "[[", "{", "=")
UNUSABLE = ("", "\ud800", "a\0b", "a\udcff")


class Case(NamedTuple):
    """A command that is cheap with every value of its options that is legal."""

    words: str
    """Arguments that the command needs; the option to try follows them."""
    refusal: str | None = None
    """Part of the sentence with which the command is refused by these arguments, if it is."""


TOY = "--model_name_or_path tabular --task_order toy_left --num_steps_per_task 1"
CASES = {
    "tasks list": Case("--domain mock"),
    "tasks show": Case("create_task_1 --domain mock"),
    "tasks check": Case("--domain mock --split base"),
    "tasks generate": Case("--domain airline --count 1 --out new/tasks.json"),
    "play": Case("--domain mock --task create_task_1 --scripted"),
    "score": Case("file"),
    "prepare-data": Case("--domains airline --train_ratio 0.5 --output_dir new"),
    "plan": Case(f"--out new {TOY}"),
    "import-run": Case("directory --run directory --out new", "directory"),
    "export-tau2": Case("run --domain toy_left --out new/results.json"),
    "import-tau2": Case("file --out new/episodes.jsonl", "file"),
    "power": Case(""),
    "estimate-memory": Case("--model_name_or_path tiny"),
    "memory demo": Case("--count 1"),
    "memory construct": Case("talk.txt --model mockllm/model --out new"),
    "memory retrieve": Case("memory.json Oslo"),
    "memory generate": Case("--count 1 --out new/instances.jsonl"),
    "memory eval": Case("--writer append --count 1"),
    "demo": Case("--seed word", "seed: "),
    "train": Case("--seed word", "seed: "),
    "evaluate": Case("nowhere", "nowhere"),
    "sft": Case("--model_name_or_path tabular --domain toy_left --count 1 --out new", "tabular"),
    "serve": Case("/nowhere/model --port 0", "/nowhere/model"),
    "bench": Case("campaign.yaml --dry_run"),
    "view": Case("run --task test-00 --domain toy_left"),
    "report": Case("run"),
    "watch": Case("run --once"),
    "doctor": Case(""),
    "init": Case("reward halved --out new"),
    "completion": Case("bash"),
    "compare": Case("run run", "is given twice"),
    "submit": Case("run --out new/submission.json"),
    "verify-submission": Case("file", "is not a submission"),
    "leaderboard": Case("file", "is not a submission"),
    "push": Case("run owner/name --dry_run", "tabular"),
    "fetch-model": Case("nothing", "nothing"),
}


class Option(NamedTuple):
    """One option or positional argument of a command."""

    command: str
    action: argparse.Action

    def __str__(self) -> str:
        return f"{self.command} {self.name}"

    @property
    def name(self) -> str:
        names = self.action.option_strings
        return names[0] if names else self.action.dest

    def words(self, value: str) -> list[str]:
        """The command line that gives this option the value."""
        words = CASES[self.command].words.split()
        if self.action.option_strings:
            return [*self.command.split(), *words, self.name, value]
        index = [action.dest for action in positionals(self.command)].index(self.action.dest)
        return [*self.command.split(), *words[:index], value, *words[index + 1 :]]


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command, by its name with spaces."""

    def walk(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, Any]]:
        groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        for group in groups:
            for word, child in group.choices.items():
                yield from walk(child, f"{name} {word}".strip())
        if not groups:
            yield name, parser

    return dict(walk(make_parser(), ""))


def positionals(command: str) -> list[argparse.Action]:
    actions = commands()[command]._actions
    return [action for action in actions if not action.option_strings]


OPTIONS = [
    Option(name, action)
    for name, parser in commands().items()
    for action in parser._actions
    if action.nargs != 0
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished") / "run"
    toy_run(root, num_steps_per_task=1, evaluation={"max_tasks": 1})
    return root


@pytest.fixture
def place(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one of everything that the commands read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("GRPO_CL_TAU2_DATA_DIR", raising=False)
    Path("file").touch()
    Path("directory").mkdir()
    Path("run").symlink_to(run_dir)
    Path("talk.txt").write_text("Ava lives in Oslo.")
    base = {"model_name_or_path": "tabular", "task_order": ["toy_left"], "num_steps_per_task": 1}
    campaign = {"out": "new", "base": base, "algorithms": [{"name": "sequential"}]}
    Path("campaign.yaml").write_text(json.dumps(campaign))
    memory = MemorySystem()
    memory.insert("Ava lives in Oslo.")
    memory.save(Path("memory.json"))
    return tmp_path


def files(root: Path) -> set[Path]:
    return set(root.rglob("*"))


def names_value(message: str, value: str) -> bool:
    return any(shown in message for shown in (value or "''", repr(value)[1:-1], value[:20]))


def test_every_command_is_tried() -> None:
    assert set(commands()) == set(CASES)


@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # Inspect's imports
@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_a_bad_value_of_an_option_is_one_sentence(
    option: Option, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(place)
    refusal = CASES[option.command].refusal
    for value in (*NUMBERS, *PATHS, *TEXTS):
        status = main(option.words(value))
        message = capsys.readouterr().err
        assert status in {0, 2}, (value, message)
        if status == 0:
            assert refusal is None, value
            before = files(place)
            continue
        assert message.startswith("grpo-cl: ")
        assert message.count("\n") == 1, (value, message)
        assert names_value(message, value) or (refusal and refusal in message), (value, message)
        assert files(place) == before, value


def is_number(field: FieldInfo) -> bool:
    kinds = (field.annotation, *get_args(field.annotation))
    return bool({int, float} & {*kinds, *(get_args(kind)[0] for kind in kinds if get_args(kind))})


@pytest.mark.parametrize("name", [name for name, _ in fields()])
def test_a_bad_value_of_a_setting_is_one_sentence(name: str) -> None:
    for value in (*NUMBERS, "-inf", *PATHS, *TEXTS):
        try:
            read_config([f"--{name}", value])
        except ConfigError as error:
            message = str(error)
            assert "\n" not in message, (value, message)
            assert name in message, (value, message)
            assert names_value(message, value), (value, message)
        else:
            assert value not in UNUSABLE, value


@pytest.mark.parametrize("name", [name for name, field in fields() if is_number(field)])
def test_a_number_that_is_not_finite_or_too_large_is_refused(name: str) -> None:
    for value in ("nan", "inf", "-inf", "1e400", HUGE, "9" * 5000, "word"):
        with pytest.raises(ConfigError, match=re.escape(name)):
            read_config([f"--{name}", value])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--optimizer.betas 2 3", "optimizer.betas.0: Input should be less than 1 (got '2')"),
        ("--optimizer.weight_decay -1", "optimizer.weight_decay: "),
        ("--learning_rate inf", "learning_rate: Input should be a finite number (got 'inf')"),
        ("--temperature 1e-300", "overflows the logits; 0 is greedy decoding"),
        ("--models.timeout_s 1e12", "models.timeout_s: "),
        ("cl_options.strength=.inf", "cl_options: a number must be finite"),
        ("--cl_algorithm ewc cl_options.strength=inf", "cl_options.strength: "),
        ("memory.knobs.noise=nan --task_order memory", "noise"),
    ],
)
def test_a_setting_out_of_range_is_refused(
    words: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(place)
    assert main(["train", *TOY.split(), "--log_dir", "new", *words.split()]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert files(place) == before


def options_of(name: str) -> list[str]:
    return list(find_algorithm(name).options_type.model_fields)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_bad_option_of_an_algorithm_is_one_sentence(name: str) -> None:
    for option in options_of(name):
        for value in (*NUMBERS, "word", ""):
            try:
                make_algorithm(name, {option: value})
            except ConfigError as error:
                assert "cl_options" in str(error)
                assert option in str(error)
                assert "\n" not in str(error)
                assert names_value(str(error), value)
            else:
                assert value in {"0", "-1", "1e400", HUGE, "word"}, (option, value)


@pytest.mark.parametrize(
    "content",
    [
        "seed: [",
        "seed = [",
        "- 1",
        "null",
        "seed: 2020-13-45",
        "log_dir: 2020-13-45",
        f"seed: {'9' * 5000}",
        "log_dir: " + "[" * 3000,
        'log_dir: "\\0"',
        "log_dir: ''",
        "rollout: 3",
        "rollout: [1]",
        "1: 2",
        "seed: .nan",
        "learning_rate: .inf",
        "learning_rate: 1.0e+400",
        "optimizer: {betas: [2, 3]}",
        "cl_options: {strength: .nan}",
        '{"seed": 1e400}',
        "\ufeff{",
        "seed: !!python/object/apply:os.getcwd []",
    ],
)
@pytest.mark.parametrize("suffix", ["yaml", "toml", "json"])
def test_a_bad_config_file_is_one_sentence(content: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"run.{suffix}"
    file.write_text(content)
    with pytest.raises(ConfigError) as error:
        read_config(["--config", str(file)])
    assert "\n" not in str(error.value)


def test_a_config_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "nowhere.yaml", tmp_path / "binary.yaml"):
        with pytest.raises(ConfigError, match="cannot read the config") as error:
            read_config(["--config", str(path)])
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        "tasks list --domain airline",
        "train --model_name_or_path tabular --task_order airline",
        "prepare-data --domains airline --output_dir new",
    ],
)
def test_a_data_directory_of_the_environment_that_is_missing_is_one_sentence(
    words: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRPO_CL_TAU2_DATA_DIR", "nowhere/tau2")
    before = files(place)
    assert main(words.split()) == 2
    message = capsys.readouterr().err
    assert "nowhere/tau2" in message
    assert message.count("\n") == 1
    assert files(place) == before


@pytest.mark.parametrize("port", ["-1", "65536", "99999", "http"])
def test_a_port_out_of_range_is_refused_before_a_model_is_loaded(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "tiny", "--port", port]) == 2
    assert f"argument --port: {port!r} is not an integer from 0 to 65535" in capsys.readouterr().err


def test_secrets_in_an_address_are_not_in_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "https://me:canary-password@host/v1?api_key=canary-key&x=1"
    assert main(["train", "--log_dir", str(tmp_path / "run"), f"--user.base_ur={address}"]) == 2
    assert main(["train", "--log_dir", str(tmp_path / "run"), f"--learning_rate={address}"]) == 2
    printed = capsys.readouterr().err
    assert "host/v1" in printed
    assert "canary" not in printed


@pytest.mark.parametrize("engine", ["areal", "skyrl", "trl", "verl"])
def test_an_engine_refuses_in_one_sentence(engine: str) -> None:
    if find_spec(engine):
        pytest.skip(f"{engine} is installed here and reads its own arguments")
    command = [sys.executable, "-m", f"grpo_cl.engines.{engine}", "nonsense=nan"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    assert completed.stderr.count("\n") == 1
    assert f"{engine} is not installed" in completed.stderr


LEGAL_WORDS = ("word", "nowhere/x", "file", "directory", "/proc/x", "file/x")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name, _ in fields()])
def test_a_run_is_trained_or_refused(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--temperature 1 --batch_size_per_gpu 1 --gradient_accumulation_steps 1"
    less = "--num_samples_per_prompt 2 --evaluation.max_tasks 1 --logging.trackers []"
    is_text = not is_number(dict(fields())[name])
    for value in LEGAL_WORDS if is_text else (*NUMBERS, "1e30", "1e-300", *LEGAL_WORDS):
        before = files(place)
        words = f"{TOY} {small} {less} --model_dtype float32 --log_dir new".split()
        status = main(["train", *words, f"--{name}", value])
        printed = capsys.readouterr().err
        assert status in {0, 2}, (value, printed)
        if status == 2:
            assert printed.count("\n") == 1, (value, printed)
            assert files(place) == before, value
        shutil.rmtree("new", ignore_errors=True)
