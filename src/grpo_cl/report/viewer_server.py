"""Serves the page of evaluation episodes on loopback, rendered again for every request."""

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override

from grpo_cl.errors import ConfigError, GRPOCLError

HOST = "127.0.0.1"


class ViewerServer(ThreadingHTTPServer):
    """One page at ``/``; a context manager that closes the socket."""

    daemon_threads = True

    def __init__(self, page: Callable[[], str], port: int) -> None:
        self.page = page
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on port {port} of {HOST}: {error.strerror}; choose another --port, "
                "0 for a free one"
            ) from error

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ViewerServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        """Answer with the page."""
        port = self.server.server_port
        # Another name means that a foreign page made its own name point here (DNS rebinding).
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._answer(HTTPStatus.BAD_REQUEST, f"open {self.server.url} itself", kind="plain")
        elif self.path.partition("?")[0] != "/":
            self._answer(HTTPStatus.NOT_FOUND, f"the page is {self.server.url}", kind="plain")
        else:
            self._answer_page()

    def _answer_page(self) -> None:
        try:
            page = self.server.page()
        except GRPOCLError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), kind="plain")
        else:
            self._answer(HTTPStatus.OK, page, kind="html")

    def _answer(self, status: HTTPStatus, text: str, *, kind: str) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"text/{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", "frame-ancestors 'none'"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows the address alone."""
