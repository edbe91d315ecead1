"""The weights of a server, and the folders new ones may be loaded from."""

from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_cl.policy.inference.adapter_pool import AdapterPool
from grpo_cl.serving.requests import RequestError


class ServedWeights:
    """An adapter pool that loads weights only from allowed folders, with a version number."""

    def __init__(self, pool: AdapterPool, folders: Sequence[Path] = ()) -> None:
        self.pool = pool
        self.version = 0
        """Counts the updates, unless a client sets it."""
        self._folders = [folder.resolve() for folder in folders]

    def reload(self, folder: Path) -> None:
        """Load all weights from ``folder``."""
        allowed = self._allowed(folder, "weights_path")
        self._change(lambda: self.pool.reload(allowed))

    def load_adapter(self, name: str, folder: Path, *, in_place: bool) -> None:
        """Serve the adapter of ``folder`` under ``name``."""
        allowed = self._allowed(folder, "lora_path")
        self._change(lambda: self.pool.load_adapter(name, allowed, in_place=in_place))

    def unload_adapter(self, name: str) -> None:
        """Stop serving an adapter."""
        self._change(lambda: self.pool.unload_adapter(name))

    def require(self, name: str) -> None:
        """Raise a 404 error for a model that is not served."""
        if name not in self.pool.names:
            raise RequestError(
                f"the model {name!r} is not served; there is {', '.join(self.pool.names)}",
                status=404,
                code="model_not_found",
            )

    def _change(self, change: Callable[[], None]) -> None:
        change()
        self.version += 1

    def _allowed(self, folder: Path, field: str) -> Path:
        try:
            resolved = folder.resolve()
            is_dir = resolved.is_dir()
        except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a NUL
            raise RequestError(f"{field} {str(folder)[:200]!r} is no path: {error}") from error
        if not any(resolved.is_relative_to(root) for root in self._folders):
            raise RequestError(
                f"{field} {str(folder)!r} is not in a folder that this server was given with "
                "--weights_dir",
                status=403,
            )
        if not is_dir:
            raise RequestError(f"{field} {str(folder)!r} is no folder on this server")
        return resolved
