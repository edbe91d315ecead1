"""Who may write now: replies go in and out, an update waits until nobody is inside."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from grpo_cl.serve.orders import RequestError


class Gate:
    """Open to replies unless paused or while an update is under way."""

    def __init__(self) -> None:
        self.is_paused = False
        self._inside: set[asyncio.Task[object]] = set()
        self._changed = asyncio.Condition()
        self._updates = 0
        self._update = asyncio.Lock()

    @property
    def num_inside(self) -> int:
        """Replies under way."""
        return len(self._inside)

    @asynccontextmanager
    async def passage(self) -> AsyncGenerator[None]:
        """Wait until it is open, and be counted while inside."""
        task = asyncio.current_task()
        assert task is not None
        async with self._changed:
            await self._changed.wait_for(lambda: not self.is_paused and not self._updates)
            self._inside.add(task)
        try:
            yield
        finally:
            self._inside.discard(task)
            async with self._changed:
                self._changed.notify_all()

    @asynccontextmanager
    async def closed(self) -> AsyncGenerator[None]:
        """Let nobody in any more, and wait until everybody is out."""
        self._updates += 1
        try:
            async with self._update:
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._inside)
                yield
        finally:
            self._updates -= 1
            async with self._changed:
                self._changed.notify_all()

    async def pause(self, mode: str) -> None:
        """Let nobody in until ``resume``; those inside finish or, with ``abort``, are sent out."""
        if mode not in ("abort", "wait"):
            raise RequestError(f"mode {mode!r} is not served; choose abort or wait")
        self.is_paused = True
        if mode == "abort":
            for task in self._inside:
                task.cancel()
        async with self._changed:
            await self._changed.wait_for(lambda: not self._inside)

    async def resume(self) -> None:
        """Let replies in again."""
        self.is_paused = False
        async with self._changed:
            self._changed.notify_all()
