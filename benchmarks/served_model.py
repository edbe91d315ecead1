"""A model behind ``grpo-cl serve``, in a process of its own on a free port."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple


class ServedModel(NamedTuple):
    """Where a model is served."""

    url: str
    """Of the OpenAI-compatible routes; it ends in /v1."""
    name: str


@contextmanager
def served_model(model: str, *options: str) -> Generator[ServedModel]:
    """Serve a model with options of ``grpo-cl serve`` until the block ends."""
    command = [sys.executable, "-m", "grpo_cl", "serve", model, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        announced = process.stdout.readline().strip()
        if not announced:
            sys.exit(f"the server ended with status {process.wait()}; its messages are above")
        name, url = announced.split(" is at ")
        yield ServedModel(url, name)
    finally:
        process.terminate()
        process.wait()
