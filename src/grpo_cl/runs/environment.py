"""The environment of a run: versions, commit, command line, variables."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grpo_cl.storage.redaction import redact, redact_command

PACKAGES = (
    "grpo-cl",
    "inspect-evals",
    "pydantic",
    "torch",
    "transformers",
    "peft",
    "safetensors",
    "vllm",
)
RECORDED = (
    "GRPO_CL_",
    "CUDA_",
    "HF_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "PYTHONHASHSEED",
    "TORCH_",
    "VLLM_",
)
"""Name prefixes of environment variables that can change a run."""


def describe_environment(
    *, command: Sequence[str], variables: Mapping[str, str], task_releases: Mapping[str, str]
) -> dict[str, Any]:
    """Versions, commit, command line and variables, without secrets."""
    return redact(
        {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": redact_command(command, variables=variables),
            "commit": source_commit(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "versions": {name: _version(name) for name in PACKAGES if _version(name)},
            "task_releases": dict(task_releases),
            "variables": {
                name: value
                for name, value in sorted(variables.items())
                if name.startswith(RECORDED)
            },
        },
        variables=variables,
    )


def source_commit() -> str | None:
    """The git commit of the source, marked if modified; None for an installed package."""
    here = Path(__file__)
    # A virtual environment may lie inside another repository.
    if _git("ls-files", "--error-unmatch", here.name, folder=here.parent) is None:
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*", folder=here.parent)


def _git(*arguments: str, folder: Path) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # no git, or a file system that is too slow
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
