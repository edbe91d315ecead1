"""Counts the bytes of all tensors that are alive, as an allocator would, on any device."""

import gc
import weakref
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override


class LiveBytes(TorchDispatchMode):
    """Follows storages from the operation that makes them to the moment nobody holds them."""

    @override
    def __enter__(self) -> Self:
        # What was there before holds nothing new, and need not be looked at each time.
        gc.freeze()
        return super().__enter__()

    @override
    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        gc.unfreeze()

    def __init__(self, *held: torch.Tensor) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()
        for tensor in held:
            self._see(tensor)
        self.peak = self.now

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        if self.now > self.peak:
            gc.collect()  # Triton's interpreter leaves cycles that hold what a kernel was given
        self.peak = max(self.peak, self.now)
        return found

    def reset(self) -> None:
        """Begin a new peak."""
        self.peak = self.now

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.now += storage.nbytes()
        weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
