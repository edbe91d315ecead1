"""Replies on disk, each under the digest of all it depends on."""

import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from grpo_cl.errors import ConfigError
from grpo_cl.models.prompt import Completion


class ReplyCache:
    """A folder of replies that several processes may share; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, digest: str) -> Completion | None:
        """The reply, if it is known; a damaged entry is asked for again."""
        if self._folder is None:
            return None
        try:
            return Completion.model_validate_json(self._path(self._folder, digest).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def put(self, digest: str, completion: Completion) -> None:
        """Keep a reply; readers see all of it or nothing."""
        if self._folder is None:
            return
        path = self._path(self._folder, digest)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "w") as file:
                file.write(completion.model_dump_json())
            Path(name).replace(path)
        except OSError as error:
            raise ConfigError(
                f"cannot keep a reply in models.cache_dir {str(self._folder)!r}: {error}; "
                "choose another folder, or null for none"
            ) from error

    @staticmethod
    def _path(folder: Path, digest: str) -> Path:
        return folder / digest[:2] / f"{digest}.json"
