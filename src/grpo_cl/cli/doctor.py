"""``grpo-cl doctor``: what this machine has, and what can be trained on it."""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from grpo_cl.cli.parser import Parser, command

OLDEST_PYTHON = (3, 11)
GIB = 1 << 30
DISK_GIB = 5.0
"""Free space below which checkpoints of a model of a billion weights do not fit."""


MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b")
LENGTHS = (6000, 4000, 384)
"""Tokens of a prompt, of what follows it, and of a message between two replies."""
SHOWN_FIRST = ("torch", "transformers", "vllm")


class Finding(NamedTuple):
    """One line of the result."""

    subject: str
    state: str
    """``ok``, ``missing`` for what is optional, or ``problem``."""
    text: str


def add_options(parser: Parser) -> None:
    """Add the options of ``doctor``."""
    parser.set_defaults(run=command("doctor", "doctor"))


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 if one of them is a problem."""
    del arguments
    gpus = find_gpus()
    findings = [*_machine(), *_extras(), _gpu(gpus)]
    for subject, state, text in findings:
        print(f"{state:<8} {subject:<12} {text}")
    print("\nwhat fits:")
    for line in what_fits(gpus):
        print(f"  {line}")
    return 1 if any(finding.state == "problem" for finding in findings) else 0


def _machine() -> Iterator[Finding]:
    version = platform.python_version()
    is_new = sys.version_info[:2] >= OLDEST_PYTHON
    yield Finding("python", "ok" if is_new else "problem", f"{version} ({sys.executable})")
    yield Finding("grpo-cl", "ok", metadata.version("grpo-cl"))
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    yield Finding("cpu", "ok", f"{cores} cores, {memory:.0f} GiB of memory")
    free = shutil.disk_usage(Path()).free / GIB
    state = "ok" if free >= DISK_GIB else "problem"
    text = f"{free:.0f} GiB free here"
    yield Finding("disk", state, text if state == "ok" else f"{text}; checkpoints need more")


def _extras() -> Iterator[Finding]:
    """The optional parts of the package, with the packages that are missing."""
    requirements = metadata.requires("grpo-cl") or []
    extras = metadata.metadata("grpo-cl").get_all("Provides-Extra") or []
    for extra in (name for name in extras if name != "dev"):
        mark = re.compile(rf"""extra\s*==\s*['"]{extra}['"]""")
        lines = [line for line in requirements if mark.search(line)]
        names = [re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0] for line in lines]
        missing = [name for name in dict.fromkeys(names) if not _version(name)]
        install = f"pip install 'grpo-cl[{extra}]'"
        if missing:
            yield Finding(extra, "missing", f"{', '.join(missing)}: {install}")
        else:
            yield Finding(extra, "ok", _versions(names))


def _versions(names: list[str]) -> str:
    ordered = sorted(dict.fromkeys(names), key=lambda name: (name not in SHOWN_FIRST, name))
    return ", ".join(f"{name} {_version(name)}" for name in ordered[:4])


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


class Gpu(NamedTuple):
    """One GPU, as the driver reports it."""

    name: str
    memory: float
    """GiB."""


def find_gpus() -> list[Gpu]:
    """The GPUs of this machine; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(done.stdout)


def parse_gpus(text: str) -> list[Gpu]:
    """The GPUs in the output of nvidia-smi, one per line as NAME, MiB."""
    pairs = [line.rpartition(",") for line in text.splitlines() if "," in line]
    return [Gpu(name.strip(), float(mib) / 1024) for name, _, mib in pairs]


def _gpu(gpus: list[Gpu]) -> Finding:
    if not gpus:
        return Finding("gpu", "missing", "no NVIDIA driver found; runs use the CPU")
    names = ", ".join(f"{gpu.name} with {gpu.memory:.0f} GiB" for gpu in gpus)
    torch = _version("torch") or ""
    if torch.endswith("+cpu"):
        return Finding("gpu", "problem", f"{names}, but torch {torch} is a build for CPUs")
    return Finding("gpu", "ok", names)


def what_fits(gpus: list[Gpu]) -> list[str]:
    """What can be trained: the embedded policy, and models by the memory of the smallest GPU."""
    lines = ["tiny, the embedded policy: trains on a CPU in minutes (grpo-cl demo)"]
    if not gpus:
        return [*lines, "larger models need a GPU; grpo-cl estimate-memory says how much of one"]
    from grpo_cl.config import GRPOConfig
    from grpo_cl.gpu_memory import Lengths, estimate, read_workload

    memory = round(min(gpu.memory for gpu in gpus) * GIB)
    for name in MODELS:
        needs: list[str] = []
        for rank, kind in ((0, "all weights"), (16, "LoRA of rank 16")):
            config = GRPOConfig.model_validate({"model_name_or_path": name, "lora": {"r": rank}})
            found = estimate(
                read_workload(config, Lengths(*LENGTHS, None), gpus=len(gpus), memory=memory)
            )
            verdict = "fits" if found.fits else "does not fit"
            needs.append(f"{kind} {found.needed / GIB:.0f} GiB per GPU ({verdict})")
        lines.append(f"{name}: {', '.join(needs)}")
    return [*lines, "with default settings; grpo-cl estimate-memory says what makes a model fit"]
