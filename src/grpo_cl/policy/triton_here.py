"""Kernels in Triton, where this machine can use them."""

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
    """Whether Triton is installed and, where there is a GPU, runs a kernel on it."""
    if find_spec("triton") is None:
        return False
    return not torch.cuda.is_available() or works(_trial)


def works(trial: Callable[[], object]) -> bool:
    """Whether Triton does what it is asked; if not, why is logged, and others do its work."""
    try:
        trial()
    except (RuntimeError, OSError, ImportError, CalledProcessError) as error:
        _LOG.warning(
            "Triton does not work here, so nothing is fused and steps take longer (%s). It needs a "
            "C compiler (gcc, clang or $CC) and Python's headers.",
            error,
        )
        return False
    return True


def kernels_of(module: str) -> Any:
    """A module of kernels; imported where it is used, as Triton is not on every machine."""
    return import_module(f"grpo_cl.policy.{module}")


def _trial() -> None:
    given = torch.ones(1, 16, device="cuda")
    kernels_of("fused").gated(given, given)
    torch.cuda.synchronize()
