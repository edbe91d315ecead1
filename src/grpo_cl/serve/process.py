"""The server as a process: a socket, a loop, and an end in good order."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Generator
from typing import NamedTuple

import uvicorn
from starlette.applications import Starlette
from typing_extensions import override

from grpo_cl.errors import ConfigError

STOP_S = 30
"""How long replies under way may take to finish once the server is told to end."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    """0 takes a free one."""

    def check(self, *, has_key: bool) -> None:
        """Refuse to listen to other machines without a key."""
        if not is_loopback(self.host) and not has_key:
            raise ConfigError(
                f"--host {self.host} lets other machines in; give a key with --api-key or in "
                "GRPO_CL_SERVER_KEY, or listen on 127.0.0.1"
            )

    def listen(self) -> socket.socket:
        """A socket that listens there."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=1024)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error}; "
                "choose another --port, or 0 for a free one"
            ) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HttpServer(uvicorn.Server):
    """A server that ends when told to, with an exit status of success."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="off",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
        )
        super().__init__(config)

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to whoever runs the server."""
        yield

    def end(self) -> None:
        """Accept nothing more, finish what is under way."""
        self.should_exit = True


def run_server(app: Starlette, listener: socket.socket, *, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT."""
    server = HttpServer(app)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.end)
        announce()
        await server.serve(sockets=[listener])

    asyncio.run(serve())
