"""The model that a stage left, wherever below its folder an engine puts it."""

import re
from pathlib import Path

from grpo_cl.errors import ConfigError
from grpo_cl.rundir import link_file

_KINDS = {"config.json": "*.safetensors", "adapter_config.json": "adapter_model.safetensors"}
"""A file that describes a model or an adapter, and the weights it stands beside."""


def find_model(folder: Path) -> Path:
    """The Hugging Face model in ``folder``, or the one below it with the highest step.

    Engines name their saves by numbers, as in ``global_step_20/policy``; names are compared
    number by number.
    """
    if _is_model(folder):
        return folder
    below = [path for path in folder.rglob("*") if path.is_dir() and _is_model(path)]
    if not below:
        raise ConfigError(
            f"no model in {folder} or below it: a folder with config.json (or adapter_config.json) "
            "and safetensors is wanted; have the engine save or export in Hugging Face's format"
        )
    return max(below, key=lambda path: _number_key(path.relative_to(folder)))


def _is_model(folder: Path) -> bool:
    return any(
        (folder / name).is_file() and any(folder.glob(weights)) for name, weights in _KINDS.items()
    )


def _number_key(path: Path) -> tuple[tuple[int, ...], str]:
    return tuple(int(number) for number in re.findall(r"\d+", str(path))), str(path)


class SavedModel:
    """A model in files, which can be saved elsewhere as a policy is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, folder: Path) -> None:
        """Put the files there; on the same disk they take no second place."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(self.folder.iterdir()):
            if file.is_file():
                link_file(file.resolve(), folder / file.name)
