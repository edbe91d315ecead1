"""The event loop in a background thread."""

import asyncio
import gc
import threading
from concurrent.futures import CancelledError

import anyio
import pytest

from grpo_cl.llm.background_loop import BackgroundLoop


def test_running_requests_are_cancelled_before_the_clients_are_closed():
    order: list[str] = []
    started = threading.Event()

    async def request() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            order.append("request cancelled")

    async def close_client() -> None:
        order.append("client closed")

    loop = BackgroundLoop()
    loop.submit(request())
    started.wait()
    loop.close(close_client)
    assert order == ["request cancelled", "client closed"]


def test_task_group_of_a_cancelled_request_leaves_no_coroutine_behind(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """As if ``close`` came in the moment in which a client starts to open a connection."""
    loop = BackgroundLoop()

    async def connect() -> None:
        await anyio.sleep_forever()

    async def request() -> None:
        closing = asyncio.create_task(loop._finish(()))  # its first step precedes the child's
        closing.add_done_callback(lambda _: is_closed.set())
        async with anyio.create_task_group() as group:
            group.start_soon(connect)

    is_closed = threading.Event()
    with pytest.raises(CancelledError):
        loop.submit(request()).result()
    is_closed.wait()  # or the first close would cancel the second
    loop.close()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
