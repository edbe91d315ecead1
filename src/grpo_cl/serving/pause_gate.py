"""Admission of requests: a weight update or a pause waits until no request is running."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from grpo_cl.serving.requests import RequestError


class PauseGate:
    """Admits requests unless the server is paused or an update is pending."""

    def __init__(self) -> None:
        self.is_paused = False
        self._running: set[asyncio.Task[object]] = set()
        self._changed = asyncio.Condition()
        self._num_updates = 0
        self._update_lock = asyncio.Lock()

    @property
    def num_running(self) -> int:
        """Requests being processed."""
        return len(self._running)

    @asynccontextmanager
    async def request(self) -> AsyncGenerator[None]:
        """Wait for admission; the block counts as a running request."""
        task = asyncio.current_task()
        assert task is not None
        async with self._changed:
            await self._changed.wait_for(lambda: not self.is_paused and not self._num_updates)
            self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)
            async with self._changed:
                self._changed.notify_all()

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None]:
        """Admit no more requests and wait until all running ones have finished."""
        self._num_updates += 1
        try:
            async with self._update_lock:
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._running)
                yield
        finally:
            self._num_updates -= 1
            async with self._changed:
                self._changed.notify_all()

    async def pause(self, mode: str) -> None:
        """Admit no requests until ``resume``; running ones finish or, with ``abort``, stop."""
        if mode not in ("abort", "wait"):
            raise RequestError(f"mode {mode!r} is not served; choose abort or wait")
        self.is_paused = True
        if mode == "abort":
            for task in self._running:
                task.cancel()
        async with self._changed:
            await self._changed.wait_for(lambda: not self._running)

    async def resume(self) -> None:
        """Admit requests again."""
        self.is_paused = False
        async with self._changed:
            self._changed.notify_all()
