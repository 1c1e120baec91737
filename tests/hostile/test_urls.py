"""Files behind a URL, from servers that fail in every way: a sentence that names the URL, and never
a local file.
"""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import metacal as mc
from metacal.io import remote as urls
from metacal.io.predictions import read_predictions

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

LOGITS = np.array([[2.0, 1.0], [0.0, 1.0], [1.0, 0.9]])
CSV = b"cat,dog,label\n2.5,-1,cat\n0.5,3,dog\n"


class Hostile(http.server.BaseHTTPRequestHandler):
    """Answers by path."""

    def log_message(self, *about):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            match path:
                case "/good.csv" | "/damaged.csv":
                    body = CSV if path == "/good.csv" else b"cat,dog,label\n2.5,x,cat\n"
                    self.answer(200, {"ETag": '"1"'}, body)
                case "/500.csv":
                    self.answer(500, {}, b"no")
                case "/403.csv":
                    self.answer(403, {}, b"no")
                case "/loop.csv":
                    self.answer(302, {"Location": "/loop.csv"})
                case "/to-file.csv":
                    self.answer(302, {"Location": f"file://{self.server.secret}"})
                case "/short.csv":
                    self.answer(200, {"Content-Length": "1000000"}, CSV)
                case "/silent.csv":
                    self.server.over.wait(10)
                case "/half.csv":
                    self.answer(200, {"Content-Length": "1000"}, CSV)
                    self.wfile.flush()
                    self.server.over.wait(10)
                case "/hang-up.csv":
                    self.connection.shutdown(socket.SHUT_RDWR)
                case _:
                    self.answer(404, {})
        self.close_connection = True

    def answer(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    secret = tmp_path_factory.mktemp("secret") / "secret.csv"
    secret.write_text("swordfish,dog,label\n1,2,dog\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        server.secret, server.over, server.daemon_threads = secret, threading.Event(), True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def address(server):
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_a_file_behind_a_web_address(address):
    for url in (f"{address}/good.csv", f"{address}/good.csv?signature=a.b&expires=1"):
        read = read_predictions(url)
        assert read.labels.tolist() == ["cat", "dog"]
        assert read.path == url


FAILURES = {
    "/500.csv": "the server answers 500 Internal Server Error",
    "/403.csv": "the server answers 403 Forbidden",
    "/missing.csv": "the file does not exist",
    "/loop.csv": "the server redirects too many times",
    "/to-file.csv": "which is not a web address and is not read",
    "/short.csv": "the connection ended before the file was complete",
    "/silent.csv": "the server sent nothing for 0.3 s",
    "/half.csv": "the server sent nothing for 0.3 s",
    "/hang-up.csv": "the server closed the connection without an answer",
    "/damaged.csv": "column 'dog' must be a number",
}


@pytest.mark.parametrize("path", FAILURES)
def test_a_server_that_fails_is_named(address, path, monkeypatch):
    monkeypatch.setattr(urls, "TIMEOUT_SECONDS", 0.3)
    begun = time.perf_counter()
    with pytest.raises(mc.InputError) as caught:
        read_predictions(address + path)
    said = str(caught.value)
    assert said.startswith(f"{address}{path}:")
    assert FAILURES[path] in said
    assert "\n" not in said
    assert "swordfish" not in said
    assert time.perf_counter() - begun < 8


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.csv"
    with pytest.raises(mc.InputError, match=r"a\.csv: no server answers there \(.*refused"):
        read_predictions(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "reference://?fo={secret}",
            "reference:// addresses, only http, https, s3",
        ),
        (
            "reference://a.csv::file://{secret}",
            r"not support addresses inside other",
        ),
        (
            "simplecache::file://{secret}",
            r"not support addresses inside other",
        ),
        (
            "filecache::http://127.0.0.1:1/a.csv",
            r"not support addresses inside other",
        ),
        (
            "http://127.0.0.1:1/a.csv::file://{secret}",
            r"not support addresses inside other",
        ),
        (
            "zip://a.csv::file://{secret}",
            r"not support addresses inside other",
        ),
        ("local://{secret}", "not support local:// addresses, only"),
        ("ftp://127.0.0.1/a.csv", "not support ftp:// addresses, only"),
        ("github://a:b@main/x.csv", "not support github:// addresses, only"),
        ("data:////text/csv,1", "not support data:// addresses, only"),
    ],
)
def test_schemes_come_from_a_list(server, url, message):
    with pytest.raises(mc.InputError, match=message) as caught:
        read_predictions(url.format(secret=server.secret))
    assert "swordfish" not in str(caught.value)
    with pytest.raises(mc.InputError, match=message):
        read_predictions([url.format(secret=server.secret)])


@pytest.mark.slow
def test_the_command_line_says_it_in_one_line(address, tmp_path):
    mc.save(mc.TemperatureScaling().fit(LOGITS, [0, 1, 1]), tmp_path / "t.json")
    words = ["apply", tmp_path / "t.json", f"{address}/500.csv", "-o", f"{tmp_path}/out/"]
    done = subprocess.run(
        [sys.executable, "-m", "metacal", *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    message, _help_link = done.stderr.splitlines()
    assert message == f"Error: {address}/500.csv: the server answers 500 Internal Server Error."


def test_results_of_a_web_address_are_kept_by_its_mark(address, tmp_path):
    cal = mc.TemperatureScaling(classes=["cat", "dog"]).fit(LOGITS, ["cat", "dog", "dog"])
    assert mc.apply(cal, f"{address}/good.csv", f"{tmp_path}/out/").n_kept == 0
    assert mc.apply(cal, f"{address}/good.csv", f"{tmp_path}/out/").n_kept == 1
    with pytest.raises(mc.InputError, match=rf"{address}/damaged\.csv:2:2"):
        mc.apply(cal, f"{address}/damaged.csv", f"{tmp_path}/out/")
