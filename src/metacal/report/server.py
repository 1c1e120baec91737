"""A page that lives: the state of a watch on this machine's own address, from the standard library
alone.

It listens on 127.0.0.1 and answers requests for that address only, so that no page from elsewhere
can read it by giving its own name this address. It takes nothing: GET and HEAD, four paths.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from metacal import __version__
from metacal.errors import InputError
from metacal.report.html import live_page
from metacal.report.telemetry import CONTENT_TYPE, exposition

#: What the browser calls this machine.
_OWN = ("127.0.0.1", "localhost")


class Server:
    """The page while it is served: `publish` what is new, `wait` until told to stop.

    Examples
    --------
    >>> import urllib.request
    >>> import metacal as mc
    >>> from metacal.report.status import status
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> with Server(status(mc.Watch.of(cal)), port=0) as server:
    ...     found = json.load(urllib.request.urlopen(server.address + "state.json"))
    >>> found["rows"], found["alarm"]
    (0, False)
    """

    def __init__(self, found: dict[str, Any], port: int) -> None:
        page = live_page(f"Monitor of {found['artifact'] or 'a gate'}")
        #: What is answered by path: its kind, and the bytes.
        self._content = {"/": ("text/html; charset=utf-8", page.encode())}
        self.publish(found)
        self._content["/healthz"] = ("application/json", b'{"status": "ok"}')
        try:
            self._server = ThreadingHTTPServer((_OWN[0], port), partial(_Handler, self._content))
        except OSError as error:
            raise InputError(
                f"port {port} cannot be used ({error.strerror or error}); choose another with"
                " --port, or 0 for a free one."
            ) from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{_OWN[0]}:{self._server.server_address[1]}/"

    def publish(self, found: dict[str, Any]) -> None:
        """Show this from now on."""
        self._content |= {
            "/state.json": ("application/json", json.dumps(found, allow_nan=False).encode()),
            "/metrics": (CONTENT_TYPE, exposition(found).encode()),
        }

    def wait(self) -> None:
        """Until a signal ends it."""
        while True:
            time.sleep(3600.0)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = f"metacal/{__version__}", ""
    timeout = 10

    def __init__(self, answers: dict[str, tuple[str, bytes]], *connection: Any) -> None:
        self.answers = answers
        super().__init__(*connection)  # answers at once

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a tab that was closed
            super().handle()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        own = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if own not in _OWN:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"only for this machine\n")
        elif path not in self.answers:
            self._send(
                HTTPStatus.NOT_FOUND,
                "text/plain",
                f"there are {', '.join(self.answers)}\n".encode(),
            )
        else:
            self._send(HTTPStatus.OK, *self.answers[path])

    do_HEAD = do_GET

    def _send(self, code: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a library does not print."""
