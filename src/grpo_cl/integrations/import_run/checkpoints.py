"""Finds and copies the Hugging Face model that an engine saved."""

import re
from pathlib import Path

from grpo_cl.errors import ConfigError
from grpo_cl.storage.files import link_file

_KINDS = {"config.json": "*.safetensors", "adapter_config.json": "adapter_model.safetensors"}
"""Config file of a model or adapter, and the pattern of its weight files."""


def find_model(folder: Path) -> Path:
    """The Hugging Face model in ``folder``, or the one in a subfolder with the highest step.

    Engines number their checkpoints, as in ``global_step_20/policy``; paths are compared by the
    numbers in them.
    """
    if _is_model(folder):
        return folder
    models = [path for path in folder.rglob("*") if path.is_dir() and _is_model(path)]
    if not models:
        raise ConfigError(
            f"no model in {folder} or its subfolders; expected config.json (or "
            "adapter_config.json) and safetensors: let the engine save or export in Hugging "
            "Face's format"
        )
    return max(models, key=lambda path: _number_key(path.relative_to(folder)))


def _is_model(folder: Path) -> bool:
    return any(
        (folder / name).is_file() and any(folder.glob(weights)) for name, weights in _KINDS.items()
    )


def _number_key(path: Path) -> tuple[tuple[int, ...], str]:
    return tuple(int(number) for number in re.findall(r"\d+", str(path))), str(path)


class SavedModel:
    """A saved model with the ``save`` method of a policy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, folder: Path) -> None:
        """Copy the model files to ``folder``, as hard links where possible."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(self.folder.iterdir()):
            if file.is_file():
                link_file(file.resolve(), folder / file.name)
