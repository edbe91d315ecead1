import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from grpo_cl.cli import main
from grpo_cl.cli.sft import sft_config
from grpo_cl.config.sft import SFTOptions, SFTSettings
from grpo_cl.runs.sft_dir import SFTDir
from tiny_policies import save_model

OPTIONS = (
    "--new_tiny --width 64 --layers 1 --domain telecom --count 8 --workers 1 --batch_size 4 "
    "--steps 12 --save_interval 3 --log_interval 100"
)
SMALL = OPTIONS.split()
COMPACT = "sampling.dialect=compact --rollout.prompt compact --sampling.max_context 1536"


def digests(folder: Path) -> dict[str, str]:
    """The bytes of every file, also in subfolders."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "grpo_cl", "sft", *map(str, words)]


def finish(*words: object) -> None:
    subprocess.run(command(*words), check=True, capture_output=True)


def run_until(is_reached: Callable[[], bool], number: int, *words: object) -> tuple[int, str]:
    """Status and output of a command that gets a signal as soon as something is reached."""
    with subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        while process.poll() is None and not is_reached():
            time.sleep(0.01)
        process.send_signal(number)
        output, _ = process.communicate()
        return process.returncode, output


def has_checkpoint(out: Path) -> Callable[[], bool]:
    return lambda: any(SFTDir(out).state_dir.glob("step_*"))


def unfinished(out: Path, words: Sequence[str] = ()) -> SFTDir:
    """A fine-tuning that stopped before its first checkpoint."""
    directory = SFTDir(out)
    out.mkdir()
    options = SFTOptions(steps=12, new_tiny=True)
    settings = SFTSettings(options=options, config=sft_config(words, options))
    directory.begin(settings, None)
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sft") / "whole"
    finish(*SMALL, "--out", out)
    return out


@pytest.mark.parametrize("extra", [[], ["--new_tiny"], ["--context", "128"]], ids=str)
def test_an_existing_model_is_refused_and_stays(
    extra: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model")
    before = digests(model)
    assert main(["sft", "--model_name_or_path", str(model), "--out", str(model), *extra]) == 2
    assert "already holds a model (config.json); choose another --out" in capsys.readouterr().err
    assert digests(model) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--width", "100", "--new_tiny"], "--width 100 cannot be split into attention heads"),
        (["--width", "64"], "--width is the size of a new tiny policy; give --new_tiny too"),
        (["--layers", "2"], "--layers is the size of a new tiny policy; give --new_tiny too"),
        (["--layers", "100000000", "--new_tiny"], "--layers 100000000 are no tiny policy"),
        (["--width", "640000", "--new_tiny"], "--width 640000 and --layers 6 are no tiny policy"),
        (["--lora.r", "4", "--new_tiny"], "--new_tiny makes a new base model, and lora.r=4"),
        (["--model_name_or_path", "/nowhere"], "no model at '/nowhere'"),
        (["--model_name_or_path", "tabular", "--count", "0"], "the tabular policy generates no"),
        (["--domain", "moon"], "unknown domain 'moon'"),
        (["resume_from=runs"], "as --resume_from DIR"),
        (
            ["--new_tiny", "--domain", "mock", "--count", "0", "--own", "4", "--train_split=0.01"],
            "--own 4 demonstrates training tasks, and domain 'mock' has none with "
            "train_split=0.01; raise train_split or leave --own out",
        ),
    ],
)
def test_a_refused_overwrite_leaves_the_earlier_model_and_its_state(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = unfinished(tmp_path / "out").root
    save_model(out)
    before = digests(out)
    assert main(["sft", "--out", str(out), "--overwrite", *words]) == 2
    assert message in capsys.readouterr().err
    assert digests(out) == before


def test_an_adapter_does_not_replace_its_base_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model")
    before = digests(model)
    words = ("--model_name_or_path", str(model), "--out", str(model), "--overwrite")
    assert main(["sft", *words, "--lora.r", "4", "--steps", "0", "--count", "0"]) == 2
    assert "is the base model of the adapter" in capsys.readouterr().err
    assert digests(model) == before


def test_out_or_resume_from_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft"]) == 2
    assert "sft needs --out DIR for a new model, or --resume_from DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "13"], "steps is 12 in {out} and 13 was given; leave it out"),
        (["--seed", "1"], "seed is 0 in {out} and 1 was given"),
        (["--context", "99"], "context is None in {out} and 99 was given"),
        (["--learning_rate", "1"], "learning_rate is 0.0003 in {out} and 1.0 was given"),
        (["optimizer.betas=[0.5,0.5]"], "optimizer.betas is [0.9, 0.95] in {out} and [0.5, 0.5]"),
        (["--out", "elsewhere"], "--out is 'elsewhere' and --resume_from is '{out}'"),
        (["--overwrite"], "--resume_from {out} continues a fine-tuning and --overwrite starts"),
    ],
)
def test_a_resumed_fine_tuning_keeps_its_settings(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = unfinished(tmp_path / "out").root
    before = digests(out)
    assert main(["sft", "--resume_from", str(out), *words]) == 2
    assert message.format(out=out) in capsys.readouterr().err
    assert digests(out) == before


def test_a_directory_without_a_fine_tuning_cannot_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sft", "--resume_from", str(tmp_path)]) == 2
    assert "holds no fine-tuning to continue; start it with --out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_model_can_be_replaced_by_one_made_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model")
    (model / "notes.txt").write_text("mine")
    words = ("--model_name_or_path", str(model), "--model_dtype", "float32", "--context", "128")
    given = ("--steps", "0", "--count", "0", "--out", str(model), "--overwrite")
    assert main(["sft", *words, *given]) == 0
    assert json.loads((model / "config.json").read_text())["max_position_embeddings"] == 128
    assert (model / "notes.txt").read_text() == "mine"
    assert f"It started from `{model.name}`." in (model / "README.md").read_text()
    assert not SFTDir(model).state_dir.exists()
    assert main(["sft", "--resume_from", str(model)]) == 0
    assert "is complete; nothing is left to do" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", [[], ["--fresh"]], ids=["fixed", "fresh"])
def test_sigterm_saves_and_the_resumed_fine_tuning_has_the_same_bytes(
    extra: list[str], whole: Path, tmp_path: Path
) -> None:
    if extra:
        whole = tmp_path / "whole"
        finish(*SMALL, *extra, "--out", whole)
    out = tmp_path / "out"
    status, output = run_until(has_checkpoint(out), signal.SIGTERM, *SMALL, *extra, "--out", out)
    assert status == 143
    assert f"continue with grpo-cl sft --resume_from {out}" in output
    checkpoint = SFTDir(out).latest().checkpoint
    assert checkpoint is not None
    assert (checkpoint.model_dir / "config.json").exists()
    assert not (out / "config.json").exists()
    finish("--resume_from", out, "--workers", 2, "--save_interval", 5)
    expected, found = digests(whole), digests(out)
    assert expected.pop("sft.json") != found.pop("sft.json")  # other workers, other interval
    assert found == expected


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_fine_tuning_killed_at_any_moment_ends_with_the_same_bytes(
    whole: Path, tmp_path: Path
) -> None:
    out = save_model(tmp_path / "out")
    earlier, rng = digests(out), Random(19)
    for attempt in range(12):
        is_begun = (SFTDir(out).state_dir / "settings.json").exists()
        words = ["--resume_from", out] if is_begun else [*SMALL, "--out", out, "--overwrite"]
        if attempt >= 4:
            finish(*words)
            break
        due = time.monotonic() + rng.uniform(1, 4)
        has_state, is_saved = SFTDir(out).state_dir.exists, has_checkpoint(out)
        reached = (has_state, is_saved, lambda due=due: time.monotonic() > due)[attempt % 3]
        run_until(reached, signal.SIGKILL, *words)
        if (out / "config.json").exists() and not (out / "sft.json").exists():
            assert earlier.items() <= digests(out).items()
        if SFTDir(out).is_finished:
            break
    assert {name: digests(out)[name] for name in digests(whole)} == digests(whole)
    assert not SFTDir(out).state_dir.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        ["--lora.r", "4", "--lora.dropout", "0.3", "--model_dtype", "float32"],
        pytest.param(["--model_dtype", "bfloat16"], marks=pytest.mark.exhaustive),
    ],
    ids=["adapter", "bfloat16"],
)
def test_adapters_and_master_weights_are_resumed_to_the_bit(
    extra: list[str], whole: Path, tmp_path: Path
) -> None:
    words = ["--model_name_or_path", whole, *SMALL[5:], *COMPACT.split(), *extra]
    finish(*words, "--out", tmp_path / "whole")
    out = tmp_path / "parts"
    status, _ = run_until(has_checkpoint(out), signal.SIGTERM, *words, "--out", out)
    assert status == 143
    finish("--resume_from", out)
    expected, found = digests(tmp_path / "whole"), digests(out)
    for files in (expected, found):
        # peft writes the set of target modules in the order of the process's hashes.
        files.pop("adapter_config.json", None)
    assert found == expected


KILLED_PARENT = """
import os
from grpo_cl.policy.learner.sft_data import _pool
print(_pool(1).submit(os.getpid).result(), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_workers_end_with_a_killed_process() -> None:
    script = [sys.executable, "-c", KILLED_PARENT]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
    assert process.returncode == -signal.SIGKILL
    while is_running(worker):  # until the time limit of the test
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
