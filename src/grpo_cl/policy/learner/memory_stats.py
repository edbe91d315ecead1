"""Peak device memory of each phase of a training step."""

from typing import Protocol

import torch


class MemoryMeter(Protocol):
    """Counts allocated bytes."""

    @property
    def peak(self) -> int:
        """The largest value since the last reset."""
        ...

    def reset(self) -> None:
        """Restart the peak at the current value."""
        ...


class CudaMemoryMeter:
    """The count of PyTorch's allocator on one GPU; reading it does not synchronise."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def peak(self) -> int:
        """The largest value since the last reset."""
        return torch.cuda.max_memory_allocated(self._device)

    def reset(self) -> None:
        """Restart the peak at the current value."""
        torch.cuda.reset_peak_memory_stats(self._device)


def memory_meter(device: torch.device) -> MemoryMeter | None:
    """The memory meter of a device; None for a CPU."""
    return CudaMemoryMeter(device) if device.type == "cuda" else None


class PhasePeaks:
    """Memory peaks of the consecutive phases of a step."""

    def __init__(self, meter: MemoryMeter | None) -> None:
        self._meter = meter
        self._peaks_mb: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """Record the peak of the phase that ends here; the next phase begins."""
        if self._meter is not None:
            self._peaks_mb[f"peak_{phase}_mb"] = self._meter.peak / 2**20
            self._meter.reset()

    def take(self) -> dict[str, float]:
        """The peaks recorded since the last call; empty without a meter."""
        peaks_mb, self._peaks_mb = self._peaks_mb, {}
        return peaks_mb
