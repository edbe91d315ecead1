import os
import sys
from itertools import count
from pathlib import Path

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.config.sft import SFTOptions, SFTSettings
from grpo_cl.errors import ConfigError
from grpo_cl.runs.sft_dir import MadeModel, SFTDir, model_dir
from grpo_cl.storage.lock import LOCK_FILE

SETTINGS = SFTSettings(options=SFTOptions(steps=4), config=GRPOConfig(tau2_data_dir=None))
KILLED = 77


def write_model(folder: Path, text: str, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md", *names):
        (folder / name).write_text(text)


def files(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in root.iterdir() if path.is_file()}


def finished(root: Path) -> SFTDir:
    """A directory with an old model and a fine-tuning whose last checkpoint is complete."""
    write_model(root, "old", "adapter_config.json", "model.safetensors.index.json", "notes.txt")
    directory = SFTDir(root)
    directory.begin(SETTINGS, None)
    directory.save(4, lambda folder: write_model(model_dir(folder), "new"), keep=2)
    return directory


def publish(directory: SFTDir) -> None:
    checkpoint = directory.latest().checkpoint
    assert checkpoint is not None
    directory.publish(checkpoint)


def is_killed_at(operation: int, directory: SFTDir) -> bool:
    """Publish in a process that ends at a file operation; whether it came to that one."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    operations = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal operations
        if event in {"os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir"}:
            operations += 1
            if operations == operation:
                os._exit(KILLED)

    sys.addaudithook(watch)
    publish(directory)
    os._exit(0)


def test_a_published_model_replaces_the_files_of_the_earlier_one_and_no_others(
    tmp_path: Path,
) -> None:
    directory = finished(tmp_path)
    publish(directory)
    found = files(tmp_path)
    assert '"steps": 4' in found.pop("sft.json")
    new = dict.fromkeys(("config.json", "model.safetensors", "tokenizer.json", "README.md"), "new")
    assert found == {**new, "notes.txt": "old"}
    assert not directory.state_dir.exists()
    assert directory.is_finished
    assert directory.read_settings() == SETTINGS


def test_a_process_killed_while_it_publishes_leaves_no_mixed_model_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    publish(finished(tmp_path / "whole"))
    whole = files(tmp_path / "whole")
    for operation in count(1):
        root = tmp_path / str(operation)
        directory = finished(root)
        is_killed = is_killed_at(operation, directory)
        left = files(root)
        if left.get("config.json") == "old":
            assert set(left.values()) == {"old"}
        elif "config.json" in left:  # otherwise no loader takes the directory for a model
            assert whole.items() <= left.items()
        if not is_killed:
            assert operation > 20
            break
        if not directory.is_finished:
            publish(directory)
        assert files(root) == whole


def test_an_existing_model_is_refused_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    for name in ("config.json", "adapter_config.json", "model.safetensors", "tokenizer.json"):
        root = tmp_path / name.partition(".")[0]
        root.mkdir()
        (root / name).touch()
        with pytest.raises(ConfigError, match=rf"already holds a model \({name}\); choose another"):
            SFTDir(root).require_vacant(overwrite=False)
        SFTDir(root).require_vacant(overwrite=True)


def test_an_unfinished_fine_tuning_is_refused_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    directory = SFTDir(tmp_path)
    directory.begin(SETTINGS, None)
    with pytest.raises(ConfigError, match=f"continue it with --resume_from {tmp_path}"):
        directory.require_vacant(overwrite=False)
    directory.require_vacant(overwrite=True)


def test_a_training_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="holds a training run; choose another --out"):
        SFTDir(tmp_path).require_vacant(overwrite=True)


def test_a_new_fine_tuning_removes_the_checkpoints_of_an_earlier_one(tmp_path: Path) -> None:
    directory = finished(tmp_path)
    directory.begin(SETTINGS, None)
    assert directory.latest().checkpoint is None


def test_the_model_to_start_from_is_kept_with_the_name_it_came_from(tmp_path: Path) -> None:
    directory = SFTDir(tmp_path)
    with directory.workspace() as folder:
        write_model(folder, "start")
        directory.begin(SETTINGS, MadeModel(folder, "org/model"))
    made = directory.made_model()
    assert made is not None
    assert made.origin == "org/model"
    assert files(made.folder)["model.safetensors"] == "start"
    assert directory.latest().checkpoint is None


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    directory = SFTDir(tmp_path)
    directory.begin(SETTINGS, None)
    for step in (1, 2, 3):
        directory.save(step, lambda folder: write_model(model_dir(folder), "some"), keep=2)
    newest = directory.latest().checkpoint
    assert newest is not None
    (newest.model_dir / "model.safetensors").write_text("same")
    checkpoint, damaged = directory.latest()
    assert checkpoint is not None
    assert checkpoint.step == 2
    assert [(damage.path, damage.problem) for damage in damaged] == [
        (newest.path, "model/model.safetensors fails its checksum")
    ]


def test_settings_of_another_version_are_one_sentence(tmp_path: Path) -> None:
    directory = SFTDir(tmp_path)
    directory.begin(SETTINGS, None)
    (path,) = directory.state_dir.glob("settings.json")
    path.write_text(path.read_text().replace('"steps"', '"paces"'))
    with pytest.raises(ConfigError, match="does not have the settings of this version") as error:
        directory.read_settings()
    assert "options.paces" in str(error.value)
    assert "\n" not in str(error.value)


def test_folders_made_for_a_refused_fine_tuning_are_removed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), SFTDir(tmp_path / "a" / "b").opened():
        raise ConfigError("refused")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_has_one_process(tmp_path: Path) -> None:
    with SFTDir(tmp_path).opened():
        assert (tmp_path / LOCK_FILE).exists()
        with pytest.raises(ConfigError, match="in use by process"), SFTDir(tmp_path).opened():
            pass
    assert list(tmp_path.iterdir()) == []
