"""An event loop of its own for everything that waits on a network.

A policy that decodes holds up the loop of its episodes; replies must not time out meanwhile.
A client's connections belong to one loop, and episodes of later steps come with new ones.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Line:
    """A loop in a thread, begun with the first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def send(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin ``work`` there."""
        with self._lock:  # the first callers may come from several threads
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="grpo-cl models", daemon=True
                )
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(work, loop)

    def close(self) -> None:
        """Cancel what is under way and end the thread."""
        if self._loop is None or self._thread is None:
            return
        self.send(_cancel_others()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()
