"""A real browser, asked over its debugging pipe: what it fetched, measured and complained of."""

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest


class Browser:
    """One headless page; use it as a context."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            pytest.skip("no chromium on this machine; Debian's package `chromium` has it")
        asked, self._ask = _pipe()
        self._answer, answered = _pipe()
        words = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe"
        line = f'exec "$0" {words} --user-data-dir="$1" about:blank 3<&{asked} 4>&{answered}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, program, str(profile)],
            pass_fds=(asked, answered),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(asked)
        os.close(answered)
        self._rest = b""
        self._number = 0
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
        os.close(self._ask)
        os.close(self._answer)

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
        while not self.seen("Page.loadEventFired"):
            self._take(self._read())

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The events of a kind since the page was asked for."""
        return [event["params"] for event in self.events if event["method"] == method]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser something and wait for the answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._ask, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._take(answer)

    def _take(self, event: dict[str, Any]) -> None:
        if "method" in event:
            self.events.append(event)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._answer, 1 << 16)
            assert piece, "the browser ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are clear of the numbers that the browser expects its own at."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
