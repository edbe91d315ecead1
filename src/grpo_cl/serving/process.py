"""The server process: socket, event loop and graceful shutdown."""

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

SHUTDOWN_TIMEOUT_S = 30
"""Time for running requests to finish after SIGTERM."""


class BindAddress(NamedTuple):
    """The host and port a server listens on."""

    host: str
    port: int
    """0 chooses a free port."""

    def check(self, *, has_key: bool) -> None:
        """Raise if the host is reachable from other machines and there is no API key."""
        if not is_loopback(self.host) and not has_key:
            raise ConfigError(
                f"--host {self.host} lets other machines connect; give a key with --api_key or in "
                "GRPO_CL_SERVER_KEY, or listen on 127.0.0.1"
            )

    def listen(self) -> socket.socket:
        """A listening socket."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=1024)
        except (OSError, UnicodeError) as error:  # UnicodeError: no valid host name
            reason = error.strerror if isinstance(error, OSError) else None
            raise ConfigError(
                f"cannot listen on {self.host}:{self.port}: {reason or error}; "
                "choose another --host or --port, or port 0 for a free one"
            ) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signal handling to its caller."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="off",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
        super().__init__(config)

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no signal handlers; ``run_server`` does."""
        yield

    def stop(self) -> None:
        """Accept no more requests and finish the running ones."""
        self.should_exit = True


def run_server(app: Starlette, listener: socket.socket, *, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` is called when the socket is open."""
    server = HttpServer(app)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        announce()
        await server.serve(sockets=[listener])

    asyncio.run(serve())
