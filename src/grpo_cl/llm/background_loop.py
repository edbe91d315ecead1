"""An asyncio event loop in a background thread, for network I/O.

Decoding on the caller's thread blocks the caller's event loop; requests on this loop still complete
in time. An HTTP client's connections belong to one loop, while each step runs its episodes in a
new one.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """An event loop in a daemon thread, which starts with the first coroutine."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._calls: set[asyncio.Task[Any]] = set()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule ``coroutine`` on the loop."""
        with self._lock:  # several threads may submit the first coroutine at once
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="grpo-cl models", daemon=True
                )
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(self._call(coroutine), loop)

    def close(self, *clients: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel what runs, call ``clients``, which close connections, and stop the thread.

        In this order: a client that is closed while a request connects leaves its socket open.
        """
        if self._thread is None and not clients:
            return
        self.submit(self._finish(clients)).result()
        assert self._loop is not None and self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    async def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await coroutine
        finally:
            self._calls.discard(task)

    async def _finish(self, clients: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        # Submitted coroutines first: they cancel the tasks they started. A task of an anyio task
        # group that is cancelled from outside before its first step leaves an unawaited coroutine.
        await _cancel(self._calls - {asyncio.current_task()})
        await _cancel(asyncio.all_tasks() - {asyncio.current_task()})
        for close_client in clients:
            await close_client()
        await asyncio.get_running_loop().shutdown_asyncgens()
        await asyncio.get_running_loop().shutdown_default_executor()


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
