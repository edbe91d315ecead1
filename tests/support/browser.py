"""A headless Chromium controlled over its debugging pipe (Chrome DevTools Protocol)."""

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest


class Browser:
    """A browser with one page; a context manager."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            pytest.skip("no chromium on this machine; Debian's package `chromium` has it")
        requests, self._request_pipe = _pipe()
        self._response_pipe, responses = _pipe()
        options = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe"
        line = f'exec "$0" {options} --user-data-dir="$1" about:blank 3<&{requests} 4>&{responses}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, program, str(profile)],
            pass_fds=(requests, responses),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(requests)
        os.close(responses)
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for area in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{area}.enable")
        return self

    def __exit__(self, *error: object) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(timeout=30)
        os.close(self._request_pipe)
        os.close(self._response_pipe)

    def show(self, address: str, *, width: int, scheme: str = "light") -> None:
        """Load a page in a window of this width."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not self.events_of("Page.loadEventFired"):
            self._store_event(self._read())

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        response = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return response["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode={"Tab": 9, "Enter": 13, "ArrowRight": 39}[key],
            )

    def events_of(self, method: str) -> list[dict[str, Any]]:
        """The events of a method since the page was loaded."""
        return [event["params"] for event in self.events if event["method"] == method]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its response."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._request_pipe, json.dumps(message).encode() + b"\0")
        while True:
            response = self._read()
            if response.get("id") == self._last_id:
                assert "error" not in response, response
                return response["result"]
            self._store_event(response)

    def _store_event(self, event: dict[str, Any]) -> None:
        if "method" in event:
            self.events.append(event)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._response_pipe, 1 << 16)
            assert chunk, "the browser ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors do not collide with 3 and 4, which the browser uses."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
