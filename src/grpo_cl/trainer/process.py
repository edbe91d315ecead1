"""What a run changes in its process: signals save and end, the garbage collector is frozen."""

import gc
import logging
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Protocol, Self

from grpo_cl.errors import ConfigError, GRPOCLError

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Notes a first SIGINT, SIGTERM or SIGHUP, so that the loop saves; the same again kills.

    Another of them does not kill: Ctrl-C reaches the processes of a campaign, which then terminates
    them too.
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._is_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        for number in SIGNALS if self._is_main_thread else ():
            if signal.getsignal(number) != signal.SIG_IGN:  # as SIGHUP is under nohup
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    @property
    def is_requested(self) -> bool:
        """Whether a signal asks the run to end."""
        return self._received is not None

    def end(self, state: str, command: str) -> NoReturn:
        """End the process, which is in the given state; ``command`` continues its work."""
        received = self._received or signal.SIGTERM  # None: another rank got the signal
        logger.warning("ended by %s, %s; continue with %s", received.name, state, command)
        if received == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._received = self._received or signal.Signals(number)
        signal.signal(number, signal.SIG_DFL)


class AnyRank(Protocol):
    """Whether the flag is set on any rank."""

    def __call__(self, *, flag: bool) -> bool:
        """A collective call of all ranks."""
        ...


@contextmanager
def all_ranks(any_rank: AnyRank) -> Generator[None]:
    """End on every rank if the block fails on one, instead of waiting for that rank forever."""
    try:
        yield
    except GRPOCLError:
        any_rank(flag=True)
        raise
    if any_rank(flag=False):
        raise ConfigError("another rank could not begin the run; its message says why")


@contextmanager
def frozen_gc() -> Generator[None]:
    """Exclude the objects that exist now from garbage collection (``gc.freeze``).

    Libraries, domains and models are half a million objects. A full collection visits all of them,
    which takes 0.1 s and more: as long as a step of a small model.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
