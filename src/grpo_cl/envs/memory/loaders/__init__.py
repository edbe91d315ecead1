"""Loaders of instances: JSONL and the formats of public benchmarks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from grpo_cl.envs.memory.instances import Instance
from grpo_cl.envs.memory.loaders.files import TABLES, LoaderOptions
from grpo_cl.envs.memory.loaders.jsonl import load_jsonl, save_jsonl
from grpo_cl.envs.memory.loaders.locomo import load_locomo
from grpo_cl.envs.memory.loaders.longmemeval import load_longmemeval
from grpo_cl.envs.memory.loaders.memalpha import load_memalpha
from grpo_cl.envs.memory.loaders.memoryagentbench import load_memoryagentbench
from grpo_cl.envs.memory.loaders.personamem import load_personamem
from grpo_cl.errors import TaskDataError
from grpo_cl.registry import pick


class Loader(NamedTuple):
    """Loads the instances of one file."""

    load: Callable[[Path, LoaderOptions], list[Instance]]
    suffixes: tuple[str, ...]
    """Of the files that are loaded from a folder."""


LOADERS: Mapping[str, Loader] = {
    "jsonl": Loader(load_jsonl, (".jsonl",)),
    "locomo": Loader(load_locomo, (".json",)),
    "longmemeval": Loader(load_longmemeval, TABLES),
    "memalpha": Loader(load_memalpha, TABLES),
    "memoryagentbench": Loader(load_memoryagentbench, TABLES),
    "personamem": Loader(load_personamem, (".csv",)),
}


def load_instances(
    path: Path | str, name: str, options: LoaderOptions | None = None
) -> list[Instance]:
    """The instances in a file of the format called ``name``, or in all files of a folder."""
    loader = pick(LOADERS, name, "memory format")
    path = Path(path)
    if path.is_dir():
        return _load_folder(path, loader, options or LoaderOptions())
    return loader.load(path, options or LoaderOptions())


def _load_folder(folder: Path, loader: Loader, options: LoaderOptions) -> list[Instance]:
    """The instances of the files with the format's suffixes, in the order of the file names."""
    suffixes = ", ".join(loader.suffixes)
    origins: dict[str, Path] = {}
    instances: list[Instance] = []
    for path in _files(folder, loader):
        limit = None if options.limit is None else options.limit - len(instances)
        if limit == 0:
            break
        try:
            loaded = loader.load(path, options._replace(limit=limit))
        except TaskDataError as error:
            raise TaskDataError(f"{error} (all {suffixes} files of the folder are read)") from error
        for instance in loaded:
            first = origins.setdefault(instance.id, path)
            if first != path:
                raise TaskDataError(
                    f"{first} and {path} both hold the instance {instance.id!r}; name the file to "
                    "be read instead of the folder"
                )
        instances += loaded
    return instances


def _files(folder: Path, loader: Loader) -> list[Path]:
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise TaskDataError(f"cannot read {folder}: {error.strerror}; check the path") from error
    fitting = [path for path in paths if path.suffix in loader.suffixes and path.is_file()]
    if not fitting:
        present = ", ".join(path.name for path in paths[:3]) or "nothing"
        raise TaskDataError(
            f"the folder {folder} holds no {', '.join(loader.suffixes)} file, but {present}; "
            "name a file, or the folder of the files"
        )
    return fitting


__all__ = ["LOADERS", "LoaderOptions", "load_instances", "save_jsonl"]
