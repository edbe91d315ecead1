"""A loopback stand-in of the Hugging Face hub: repositories, LFS uploads, commits, card validation.

It implements the requests of ``huggingface_hub`` that ``grpo-cl push`` makes, without Xet storage.
"""

import base64
import hashlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import yaml
from typing_extensions import override

TOKEN = "hf_loopbackTokenThatNobodyMayPrint"
LICENSES = {"apache-2.0", "mit", "other"}


@dataclass
class Hub:
    """What was uploaded."""

    address: str
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The request that created each repository."""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The contents of each repository."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """LFS objects by SHA-256."""


class HubServer(ThreadingHTTPServer):
    """The server of one hub."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = Hub(f"http://127.0.0.1:{self.server_port}")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        assert isinstance(self.server, HubServer)
        return self.server.hub

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """No output."""

    def do_PUT(self) -> None:
        body = self._body()
        digest = self.path.removeprefix("/objects/")
        assert hashlib.sha256(body).hexdigest() == digest
        self.hub.objects[digest] = body
        self._reply(200, {})

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/api/validate-yaml":
            self._reply(*validated(json.loads(body)["content"]))
        elif self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._reply(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self._create(json.loads(body))
        elif self.path.endswith("/preupload/main"):
            self._reply(200, {"files": [upload_mode(f) for f in json.loads(body)["files"]]})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            self._reply(200, {"transfer": "basic", "objects": self._lfs(json.loads(body))})
        elif self.path.endswith("/commit/main"):
            name = self.path.removeprefix("/api/models/").removesuffix("/commit/main")
            self._commit(name, [json.loads(line) for line in body.splitlines()])
        else:
            self._reply(404, {"error": f"no {self.path}"})

    def _create(self, request: dict[str, Any]) -> None:
        name = f"{request['organization']}/{request['name']}"
        if name in self.hub.repositories:
            self._reply(409, {"error": "exists", "url": f"{self.hub.address}/{name}"})
            return
        self.hub.repositories[name], self.hub.files[name] = request, {}
        self._reply(200, {"url": f"{self.hub.address}/{name}"})

    def _lfs(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {**entry, "actions": {"upload": {"href": f"{self.hub.address}/objects/{entry['oid']}"}}}
            for entry in request["objects"]
        ]

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.hub.files[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.hub.files[name][value["path"]] = self.hub.objects[value["oid"]]
        url = f"{self.hub.address}/{name}/commit/1"
        self._reply(200, {"commitUrl": url, "commitOid": "1", "success": True})

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def _chunks(self) -> Generator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def upload_mode(file: dict[str, Any]) -> dict[str, Any]:
    """Weights go to LFS, as on the hub."""
    mode = "lfs" if file["path"].endswith(".safetensors") else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}


def validated(card: str) -> tuple[int, dict[str, Any]]:
    """The answer to a model card, with the hub's rules that concern ours."""
    found = yaml.safe_load(card.split("---")[1])
    errors = []
    if "license" in found and found["license"] not in LICENSES:
        errors.append(f'"license" must be one of {sorted(LICENSES)}')
    base = found.get("base_model", "owner/name")
    if str(base).startswith("/") or str(base).count("/") > 1:
        errors.append('"base_model" must be a model id')
    if not isinstance(found.get("tags"), list):
        errors.append('"tags" must be an array')
    answer = {"errors": [{"message": error} for error in errors], "warnings": []}
    return (400 if errors else 200), answer


@contextmanager
def running_hub() -> Generator[Hub]:
    """The server; everything is closed at the end."""
    with HubServer() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.hub
        finally:
            server.shutdown()
            thread.join()
