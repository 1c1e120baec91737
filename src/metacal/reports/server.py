"""HTTP server for the live page of a monitor, with the standard library only.

The server listens on 127.0.0.1 and answers only requests whose Host header names this machine, so
that a web page from elsewhere cannot read it by DNS rebinding. It accepts only GET and HEAD, for
four paths.
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
from metacal.reports.html import render_live_page
from metacal.reports.telemetry import CONTENT_TYPE, format_exposition

_LOCAL_ADDRESS = "127.0.0.1"
#: Accepted host names in the Host header of a request.
_LOCAL_HOSTS = (_LOCAL_ADDRESS, "localhost")

#: Content type and body of the response, by path.
ContentByPath = dict[str, tuple[str, bytes]]


class Server:
    """HTTP server of the live page, as a context manager.

    Parameters
    ----------
    state : dict
        Initial state, as returned by `metacal.reports.status.status`.

    port : int
        Port to listen on. 0 chooses a free port.

    Raises
    ------
    InputError
        If the port cannot be used.

    Examples
    --------
    >>> import urllib.request
    >>> import metacal as mc
    >>> from metacal.reports.status import status
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> with Server(status(mc.Watch.of(cal)), port=0) as server:
    ...     state = json.load(urllib.request.urlopen(server.address + "state.json"))
    >>> state["rows"], state["alarm"]
    (0, False)
    """

    def __init__(self, state: dict[str, Any], port: int) -> None:
        page = render_live_page(f"Monitor of {state['artifact'] or 'a gate'}")
        self._content_by_path: ContentByPath = {"/": ("text/html; charset=utf-8", page.encode())}
        self.publish(state)
        self._content_by_path["/healthz"] = ("application/json", b'{"status": "ok"}')
        handler = partial(_RequestHandler, self._content_by_path)
        try:
            self._server = ThreadingHTTPServer((_LOCAL_ADDRESS, port), handler)
        except OSError as error:
            raise InputError(
                f"Cannot listen on port {port} ({error.strerror or error}). Choose another port"
                " with --port, or pass 0 for a free one."
            ) from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )

    @property
    def address(self) -> str:
        """URL of the live page."""
        port = self._server.server_address[1]
        return f"http://{_LOCAL_ADDRESS}:{port}/"

    def publish(self, state: dict[str, Any]) -> None:
        """Replace the state that the live page shows."""
        state_json = json.dumps(state, allow_nan=False).encode()
        self._content_by_path["/state.json"] = ("application/json", state_json)
        self._content_by_path["/metrics"] = (CONTENT_TYPE, format_exposition(state).encode())

    def wait_for_signal(self) -> None:
        """Sleep until a signal interrupts the process."""
        while True:
            time.sleep(3600.0)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _RequestHandler(BaseHTTPRequestHandler):
    """Handler of HTTP requests, which responds with the content of the path."""

    server_version = f"metacal/{__version__}"
    sys_version = ""
    timeout = 10

    def __init__(self, content_by_path: ContentByPath, *connection: Any) -> None:
        self.content_by_path = content_by_path
        # The base class handles the request in its constructor, so this attribute is set first.
        super().__init__(*connection)

    def handle(self) -> None:
        # The user may close the browser tab during the response.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        url_path = self.path.partition("?")[0]
        host_header = self.headers.get("Host", "")
        host = host_header.rpartition(":")[0] or host_header
        if host not in _LOCAL_HOSTS:
            self._send_response(HTTPStatus.FORBIDDEN, "text/plain", b"only for this machine\n")
        elif url_path not in self.content_by_path:
            error_message = f"there are {', '.join(self.content_by_path)}\n"
            self._send_response(HTTPStatus.NOT_FOUND, "text/plain", error_message.encode())
        else:
            content_type, content = self.content_by_path[url_path]
            self._send_response(HTTPStatus.OK, content_type, content)

    do_HEAD = do_GET

    def _send_response(self, status: HTTPStatus, content_type: str, content: bytes) -> None:
        """Send a response with security headers."""
        self.send_response(status)
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do nothing, because a library does not print requests."""
