"""Files of τ²-bench: where a domain's tasks, splits, policies and databases are read from."""

import gzip
import json
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cl.errors import ConfigError

PACKAGE = "inspect-evals"
"""The package that has τ²-bench's files and tools."""


class Source(NamedTuple):
    """The directory of a domain's task, split and policy files, and its label in ``release``."""

    directory: Path
    label: str


@cache
def installed_data_dir() -> Path:
    """The data of τ²-bench in ``inspect-evals``, found without the seconds of importing it."""
    return Path(str(distribution(PACKAGE).locate_file("inspect_evals/tau2/data")))


def find_source(folder: str, data_dir: Path | None) -> Source:
    """The domain's files under ``data_dir`` if it has them, else those of ``inspect-evals``."""
    installed = Source(
        installed_data_dir() / "domains" / folder, f"{PACKAGE} {distribution(PACKAGE).version}"
    )
    if data_dir is None:
        return installed
    for root in (data_dir, data_dir / "data" / "tau2", data_dir / "tau2"):
        if (root / "domains").is_dir():
            directory = root / "domains" / folder
            return Source(directory, "tau2_data_dir") if directory.is_dir() else installed
    raise ConfigError(
        f"tau2_data_dir {str(data_dir)!r} has no 'domains' folder; "
        "give a τ²-bench checkout or its data/tau2 folder"
    )


def parse_database(folder: str) -> Any:
    """A JSON database of ``inspect-evals``; unlike its loader, this leaves no temporary file."""
    return json.loads(read_file(installed_data_dir() / "domains" / folder, "db"))


@cache  # every episode's prompt contains the policy
def read_file(directory: Path, stem: str) -> bytes:
    """The bytes of the file ``stem`` of a domain, whichever of the known suffixes it has."""
    for suffix in (".json", ".json.gz", ".md", ".txt"):
        path = directory / f"{stem}{suffix}"
        if path.exists():
            return (
                gzip.decompress(path.read_bytes()) if suffix.endswith("gz") else path.read_bytes()
            )
    raise FileNotFoundError(f"no {stem} file in {directory}")
