"""Counts the bytes of all tensors that are alive, as an allocator would, on any device."""

import gc
import weakref
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override


class LiveBytes(TorchDispatchMode):
    """Tracks storages from the operation that allocates them until they are freed."""

    @override
    def __enter__(self) -> Self:
        # Older objects hold no new tensors; frozen, they are skipped by each collection.
        gc.freeze()
        return super().__enter__()

    @override
    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        gc.unfreeze()

    def __init__(self, *existing: torch.Tensor) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._tracked: set[int] = set()
        for tensor in existing:
            self._track(tensor)
        self.peak = self.now

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor):
                self._track(leaf)
        if self.now > self.peak:
            gc.collect()  # Triton's interpreter leaves reference cycles to a kernel's arguments
        self.peak = max(self.peak, self.now)
        return output

    def reset(self) -> None:
        """Set the peak to the current number of bytes."""
        self.peak = self.now

    def _track(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._tracked:
            return
        self._tracked.add(key)
        self.now += storage.nbytes()
        weakref.finalize(storage, self._freed, key, storage.nbytes())

    def _freed(self, key: int, size: int) -> None:
        self._tracked.discard(key)
        self.now -= size
