"""The weights a server writes with, and from where it takes new ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_cl.errors import ConfigError
from grpo_cl.policy.voices import Voices
from grpo_cl.serve.orders import RequestError


class Weights:
    """Voices whose weights may be replaced from some folders, and the number of the last ones."""

    def __init__(self, voices: Voices, folders: Sequence[Path] = ()) -> None:
        self.voices = voices
        self.version = 0
        """Counts the updates, unless a client sets it."""
        self._folders = [folder.resolve() for folder in folders]

    def reload(self, folder: Path) -> None:
        """Take all weights from ``folder``."""
        place = self._allowed(folder, "weights_path")
        self._change(lambda: self.voices.reload(place))

    def load_adapter(self, name: str, folder: Path, *, in_place: bool) -> None:
        """Serve an adapter under a name."""
        place = self._allowed(folder, "lora_path")
        self._change(lambda: self.voices.load_adapter(name, place, in_place=in_place))

    def unload_adapter(self, name: str) -> None:
        """Serve an adapter no more."""
        self._change(lambda: self.voices.unload_adapter(name))

    def require(self, name: str) -> None:
        """Refuse the name of a model that is not served."""
        if name not in self.voices.names:
            known = ", ".join(self.voices.names)
            raise RequestError(
                f"the model {name!r} is not served; there is {known}",
                status=404,
                code="model_not_found",
            )

    def _change(self, change: Callable[[], None]) -> None:
        try:
            change()
        except ConfigError as error:
            raise RequestError(str(error)) from error
        self.version += 1

    def _allowed(self, folder: Path, field: str) -> Path:
        place = folder.resolve()
        if not any(place.is_relative_to(root) for root in self._folders):
            raise RequestError(
                f"{field} {str(folder)!r} is not in a folder that this server was given with "
                "--weights_dir",
                status=403,
            )
        if not place.is_dir():
            raise RequestError(f"{field} {str(folder)!r} is no folder on this server")
        return place
