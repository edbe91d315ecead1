"""Limits of a chat template, which comes with a model.

Jinja's sandbox keeps a template from running code, but bounds neither its loops nor its text. The
limits here are counts of work and memory, never seconds: a template is accepted or refused on every
machine alike. They hold while a template is probed, before it renders a conversation.
"""

import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2 import Environment, TemplateError

from grpo_cl.errors import ConfigError

MAX_INTEGER = 100_000
"""Of an integer in a template; the sandbox allows no longer ``range``."""
MAX_PRODUCTS = 4
"""Uses of ``*`` in a template; each may multiply the length of a text."""
MAX_LINES = 50_000
"""Lines that the probes of one template may run, each pass of a loop counted."""
MAX_GROWTH_KIB = 1 << 18
"""Growth of the process while a template is probed."""

ADDRESS_SPACE_PER_GROWTH = 4
"""Address space that the process may take per byte of its growth: other threads reserve some."""
STATM = Path("/proc/self/statm")

TEMPLATE_FILE = "<template>"
"""The file name of compiled templates."""

_ADVICE = "give the tokenizer another chat_template"


def require_bounded_numbers(source: str) -> None:
    """Raise ``ConfigError`` for arithmetic that could exhaust the memory in one operation.

    Checked before compilation, since Jinja computes constant expressions then.
    """
    products = 0
    try:
        tokens = [(kind, text) for _, kind, text in Environment().lex(source)]
    except TemplateError:
        return  # compilation explains what is wrong
    for kind, text in tokens:
        if kind == "integer" and len(text) < 4000 and int(text.replace("_", ""), 0) <= MAX_INTEGER:
            continue
        if kind == "integer":
            raise ConfigError(
                f"the chat template has the number {text[:20]}, which is above {MAX_INTEGER}; "
                f"{_ADVICE}"
            )
        products += kind == "operator" and text == "*"
        if (kind, text) == ("operator", "**") or products > MAX_PRODUCTS:
            raise ConfigError(
                f"the chat template uses a power, or more than {MAX_PRODUCTS} products, so that "
                f"the size of its text has no bound; {_ADVICE}"
            )


class _TooMuchWorkError(Exception):
    """Passes through probes, which treat other errors as a rejected conversation."""


@contextmanager
def limited_work() -> Generator[None]:
    """Raise ``ConfigError`` once templates in the block run too many lines or take memory.

    Lines of functions that a template calls count too: ``lipsum`` loops in Python.
    """
    lines = 0
    start_kib = _peak_kib()

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        caller = frame.f_back
        is_called = caller is not None and caller.f_trace is count
        if frame.f_code.co_filename != TEMPLATE_FILE and not is_called:
            return None
        lines += event == "line"
        if lines > MAX_LINES:
            raise _TooMuchWorkError(f"runs more than {MAX_LINES} lines")
        is_exhausted = event == "exception" and issubclass(argument[0], MemoryError)
        if is_exhausted or _peak_kib() - start_kib > MAX_GROWTH_KIB:
            raise _TooMuchWorkError(f"takes more than {MAX_GROWTH_KIB >> 10} MiB")
        return count

    previous = sys.gettrace()
    try:
        with _limited_memory():
            sys.settrace(count)
            yield
    except _TooMuchWorkError as error:
        raise ConfigError(
            f"the chat template {error} for a few short conversations; {_ADVICE}"
        ) from None
    finally:
        sys.settrace(previous)


@contextmanager
def _limited_memory() -> Generator[None]:
    """Make one allocation beyond the allowed growth fail: no line is counted inside it.

    The limit is that of the address space, which only Linux enforces.
    """
    if not STATM.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(STATM.read_text().split()[0]) * resource.getpagesize()
    limit = size + ADDRESS_SPACE_PER_GROWTH * (MAX_GROWTH_KIB << 10)
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
