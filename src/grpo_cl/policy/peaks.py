"""How much memory each phase of a step takes at its fullest moment."""

from typing import Protocol

import torch


class Meter(Protocol):
    """Counts bytes that are in use."""

    @property
    def peak(self) -> int:
        """The most since the last reset."""
        ...

    def reset(self) -> None:
        """Begin a new peak with what is in use now."""
        ...


class CudaMeter:
    """PyTorch's own count on one GPU; asking it does not wait for the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def peak(self) -> int:
        """The most since the last reset."""
        return torch.cuda.max_memory_allocated(self._device)

    def reset(self) -> None:
        """Begin a new peak with what is in use now."""
        torch.cuda.reset_peak_memory_stats(self._device)


def meter_of(device: torch.device) -> Meter | None:
    """What counts the memory of a device; None where nobody does."""
    return CudaMeter(device) if device.type == "cuda" else None


class Peaks:
    """The peaks of the phases of one step, one phase after another."""

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter
        self._found: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """Note the peak of the phase that ends here; the next begins."""
        if self._meter is not None:
            self._found[f"peak_{phase}_mb"] = self._meter.peak / 2**20
            self._meter.reset()

    def take(self) -> dict[str, float]:
        """The peaks noted since they were last taken; none where nobody counts."""
        found, self._found = self._found, {}
        return found
