"""Whether Triton works on this machine, and lazy import of the Triton kernels."""

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from subprocess import CalledProcessError
from typing import Any

import torch

_LOG = logging.getLogger(__name__)


@cache
def has_triton() -> bool:
    """Whether Triton is installed and, if there is a GPU, runs a kernel on it."""
    if find_spec("triton") is None:
        return False
    return not torch.cuda.is_available() or can_run(_probe)


def can_run(probe: Callable[[], object]) -> bool:
    """Whether ``probe`` runs without an error of Triton or its compiler, which is logged."""
    try:
        probe()
    except (RuntimeError, OSError, ImportError, CalledProcessError) as error:
        _LOG.warning(
            "Triton does not work on this machine, so no fused kernels are used and steps take "
            "longer (%s). Triton needs a C compiler (gcc, clang or $CC) and Python's headers.",
            error,
        )
        return False
    return True


def load_kernels(module: str) -> Any:
    """A module of ``kernels/triton``; imported on use, as Triton is not on every machine."""
    return import_module(f"grpo_cl.policy.kernels.triton.{module}")


def _probe() -> None:
    ones = torch.ones(1, 16, device="cuda")
    load_kernels("decode").swiglu(ones, ones)
    torch.cuda.synchronize()
