"""Commands in forked processes, which are killed without the cost of importing torch each time.

The parent imports what a run imports and computes nothing: each child is like a new process.
"""

import gc
import importlib
import io
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

LIMIT_S = 300.0
"""A process that is not done by then hangs."""


class Ended(NamedTuple):
    """How a process ended."""

    status: int
    """Negative: the signal that killed it."""
    errors: str
    """Its standard error."""

    @property
    def is_refusal(self) -> bool:
        """Whether it ended with a sentence of ours, as it does for an error of its user."""
        is_said = any(line.startswith("grpo-cl: ") for line in self.errors.splitlines())
        return self.status in (1, 2) and is_said and "Traceback" not in self.errors


def nothing() -> None:
    """Prepare nothing."""


def run_command(
    words: Sequence[str],
    folder: Path,
    *,
    prepare: Callable[[], None] = nothing,
    finish: Callable[[], None] = nothing,
    kill_after_s: float | None = None,
    limit_s: float = LIMIT_S,
) -> Ended:
    """Run ``grpo-cl WORDS`` in ``folder``, in a process of its own."""

    def command() -> int:
        from grpo_cl import __main__ as program  # noqa: PLC0415, imported by the parent
        from grpo_cl.cli import main  # noqa: PLC0415

        sys.modules["__main__"] = program  # which the program's own processes import
        prepare()
        status = main(words)
        finish()
        return status

    return run_forked(command, folder, kill_after_s=kill_after_s, limit_s=limit_s)


def run_forked(
    work: Callable[[], int],
    folder: Path,
    *,
    kill_after_s: float | None = None,
    limit_s: float = LIMIT_S,
) -> Ended:
    """Call ``work`` in a forked process and return how it ended."""
    errors = folder / "stderr"
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become(work, folder, errors)
    os.setpgid(pid, pid)  # here too: the process may be killed before it has done so itself
    handle = os.pidfd_open(pid)
    try:
        is_done = _wait(handle, limit_s if kill_after_s is None else kill_after_s)
        if not is_done:
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(handle)
    text = errors.read_text(errors="replace") if errors.exists() else ""
    if not is_done and kill_after_s is None:
        text += f"\nhung: not done after {limit_s:g} s"
    return Ended(os.waitstatus_to_exitcode(status), text)


def _wait(handle: int, limit_s: float) -> bool:
    return bool(select.select([handle], [], [], limit_s)[0])


def _become(work: Callable[[], int], folder: Path, errors: Path) -> NoReturn:
    """Call ``work`` as the main function of this process, and end it."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        for path, number in ((Path(os.devnull), 1), (errors, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True)
            for number in (1, 2)
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        status = work()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001, as the interpreter does at the end of a process
        traceback.print_exc()
    finally:
        os._exit(status)


def warm_up(folder: Path, *commands: Sequence[str]) -> None:
    """Import here what the commands import in a child, so that later children have it."""
    from grpo_cl.cli import main  # noqa: PLC0415, slow

    for number, words in enumerate(commands):
        listing = folder / f"modules_{number}"
        inside = folder / f"warm_{number}"
        inside.mkdir()

        def command(words: Sequence[str] = words, listing: Path = listing) -> int:
            status = main(words)
            listing.write_text("\n".join(sys.modules))
            return status

        ended = run_forked(command, inside)
        assert ended.status == 0, ended.errors
        for name in listing.read_text().splitlines():
            _import(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of the parent


def _import(name: str) -> None:
    if name in sys.modules or name.startswith("__"):
        return
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            importlib.import_module(name)
    except ImportError:
        return  # made by its package when it is used, such as torch's namespaces


def run_program(words: Sequence[str], folder: Path, *, kill_after_s: float | None = None) -> Ended:
    """Run ``python WORDS`` in a new interpreter and session, all of which is killed at the end."""
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    try:
        process.wait(LIMIT_S if kill_after_s is None else kill_after_s)
    except subprocess.TimeoutExpired:
        pass  # killed below
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return Ended(process.wait(), (folder / "stderr").read_text(errors="replace"))
