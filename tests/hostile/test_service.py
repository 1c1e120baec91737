"""The example service: every odd body is answered with 422 or 413 and a reason, never with an error
of the server.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import metacal as mc

for needed in ("onnx", "onnxruntime", "fastapi", "httpx", "prometheus_client"):
    pytest.importorskip(needed)

import httpx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402

from metacal.export.onnx import save_attached  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WIDTH, CLASSES = 4, 5
GOOD = [0.5, -0.25, 1.0, 0.0]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """The app itself behind ASGI; an exception in it becomes a 500, as it would be served."""
    folder = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.normal(size=(WIDTH, CLASSES)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["logits"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", CLASSES])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    table = rng.normal(size=(500, CLASSES)) * 3
    cal = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(
        table, (table + rng.gumbel(size=table.shape)).argmax(axis=1)
    )
    save_attached(folder / "model.onnx", cal, folder / "served.onnx")
    spec = importlib.util.spec_from_file_location("serve_fastapi", EXAMPLES / "serve_fastapi.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve_fastapi"] = module
    spec.loader.exec_module(module)
    with TestClient(
        module.create_app(folder / "served.onnx"), raise_server_exceptions=False
    ) as client:
        yield client


def strict(text):
    """JSON by the letter: NaN and Infinity are no numbers."""

    def refuse(name):
        raise AssertionError(f"{name} in an answer")

    return json.loads(text, parse_constant=refuse)


def row(*values):
    return b'{"inputs": [[' + b", ".join(values) + b"]]}"


ODD = {
    "nan": row(b"NaN", b"0", b"0", b"0"),
    "infinity": row(b"Infinity", b"0", b"0", b"0"),
    "minus infinity": row(b"-Infinity", b"0", b"0", b"0"),
    "1e400": row(b"1e400", b"0", b"0", b"0"),
    "-1e400": row(b"-1e400", b"0", b"0", b"0"),
    "beyond float32": row(b"1e300", b"0", b"0", b"0"),
    "beyond 64 bits": row(b"18446744073709551616", b"0", b"0", b"0"),
    "beyond a double": row(b"1" + b"0" * 400, b"0", b"0", b"0"),
    "five thousand digits": row(b"1" * 5000, b"0", b"0", b"0"),
    "true": row(b"true", b"0", b"0", b"0"),
    "null": row(b"null", b"0", b"0", b"0"),
    "text": row(b'"0.5"', b"0", b"0", b"0"),
    "the text nan": row(b'"nan"', b"0", b"0", b"0"),
    "an object": row(b"{}", b"0", b"0", b"0"),
    "narrow": row(b"0", b"0", b"0"),
    "wide": row(b"0", b"0", b"0", b"0", b"0"),
    "an empty row": b'{"inputs": [[]]}',
    "empty rows": b'{"inputs": [[], []]}',
    "no rows": b'{"inputs": []}',
    "ragged": b'{"inputs": [[0, 0, 0, 0], [0, 0, 0]]}',
    "no list of rows": b'{"inputs": [0, 0, 0, 0]}',
    "rows and numbers": b'{"inputs": [[0, 0, 0, 0], 0]}',
    "a list too many": b'{"inputs": [[[0, 0, 0, 0]]]}',
    "a hundred lists too many": b'{"inputs": ' + b"[" * 100 + b"0" + b"]" * 100 + b"}",
    "a hundred thousand lists": b"[" * 100_000 + b"]" * 100_000,
    "a hundred thousand objects": b'{"inputs":' * 100_000 + b"1" + b"}" * 100_000,
    "inputs null": b'{"inputs": null}',
    "inputs a number": b'{"inputs": 3}',
    "inputs a text": b'{"inputs": "0000"}',
    "inputs an object": b'{"inputs": {"0": [0, 0, 0, 0]}}',
    "no inputs": b"{}",
    "a further key": b'{"inputs": [[0, 0, 0, 0]], "threshold": 9}',
    "a further key with nan": b'{"inputs": [[0, 0, 0, 0]], "extra": NaN}',
    "a further key of half a character": b'{"inputs": [[0, 0, 0, 0]], "\\ud800": 1}',
    "inputs twice": b'{"inputs": [[NaN, 0, 0, 0]], "inputs": [[0, 0, 0, 0]]}',
    "a key twice": b'{"inputs": [[0, 0, 0, 0]], "inputs": [[0, 0, 0, 0]]}',
    "a list": b"[[0, 0, 0, 0]]",
    "a number": b"0",
    "nothing": b"",
    "spaces": b"   ",
    "cut short": b'{"inputs": [[0, 0,',
    "two documents": b'{"inputs": [[0, 0, 0, 0]]} {}',
    "invalid utf-8": b'{"inputs": [[0, 0, 0, "\xff\xfe"]]}',
    "utf-16": '{"inputs": [[0, 0, 0, 0]]}'.encode("utf-16"),
    "a mark before it": b"\xef\xbb\xbf" + b'{"inputs": [[0, 0, 0, 0]]}',
    "binary": bytes(range(256)),
    "too many rows": json.dumps({"inputs": [GOOD] * 1025}).encode(),
}
HEADERS = {"content-type": "application/json"}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_body_is_answered_with_a_reason(client, name):
    before = client.get("/metrics").text
    reply = client.post("/predict", content=ODD[name], headers=HEADERS)
    assert reply.status_code == 422, reply.text
    detail = strict(reply.text)["detail"]
    assert isinstance(detail, str)
    assert 10 < len(detail) < 600
    assert "Traceback" not in reply.text
    accepted = [line for line in before.splitlines() if line.startswith("metacal_decisions")]
    after = [
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("metacal_decisions")
    ]
    assert accepted == after  # nothing was decided


def test_one_bad_row_spoils_the_batch(client):
    body = b'{"inputs": [[0, 0, 0, 0], [NaN, 0, 0, 0], [0, 0, 0, 0]]}'
    assert client.post("/predict", content=body, headers=HEADERS).status_code == 422


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"]
)
def test_another_content_type(client, kind):
    body = json.dumps({"inputs": [GOOD]}).encode()
    assert client.post("/predict", content=body, headers={"content-type": kind}).status_code == 422
    assert client.post(
        "/predict", content=body, headers={"content-type": "application/json; charset=utf-8"}
    ).is_success


def test_a_body_over_the_limit(client):
    large = b'{"inputs": [[' + b"0," * (2 * 2**20) + b"0]]}"
    reply = client.post("/predict", content=large, headers=HEADERS)
    assert (reply.status_code, "over 4,194,304 bytes" in strict(reply.text)["detail"]) == (
        413,
        True,
    )


def filled(head, unit, tail, n_bytes):
    return head + unit * ((n_bytes - len(head) - len(tail)) // len(unit)) + tail


#: Bodies within the limit of bytes that take seconds to parse, by what they hold.
SLOW = {
    "objects": filled(b'{"inputs": [', b"{},", b"{}]}", 2**22),
    "lists": filled(b'{"inputs": [', b"[],", b"[]]}", 2**22),
    "deep lists": filled(b'{"inputs": [', b"[" * 900 + b"]" * 900 + b",", b"[]]}", 2**22),
    "numbers": filled(b'{"inputs": [[', b"0,", b"0]]}", 2**22),
    "keys": b"{" + b",".join(b'"%d":1' % k for k in range(300_000)) + b"}",
    "digits": filled(b'{"inputs": [[', b"9" * 4300 + b",", b"0]]}", 2**22),
    "feedback keys": b"{" + b",".join(b'"%d":1' % k for k in range(20_000)) + b"}",
}


@pytest.mark.parametrize("name", SLOW)
def test_no_body_takes_long(client, name):
    path = "/feedback" if name.startswith("feedback") else "/predict"
    before = time.process_time()
    reply = client.post(path, content=SLOW[name], headers=HEADERS)
    assert reply.status_code == 422, reply.text
    assert time.process_time() - before < 0.5
    strict(reply.text)


def test_a_full_batch_is_within_the_limits(client):
    batch = {"inputs": [[-1.2345678901234567e-30] * WIDTH] * 1024}
    reply = client.post("/predict", content=json.dumps(batch, indent=4).encode(), headers=HEADERS)
    assert len(reply.json()["predictions"]) == 1024
    truths = [
        {"id": answer["id"], "label": answer["label"]} for answer in reply.json()["predictions"]
    ]
    reply = client.post(
        "/feedback", content=json.dumps({"outcomes": truths}).encode(), headers=HEADERS
    )
    assert reply.json() == {"counted": 1024, "unknown": []}


def test_others_are_served_while_a_body_is_parsed(client, monkeypatch):
    served = threading.Event()
    module = sys.modules["serve_fastapi"]
    parse = module._parse
    waited = []

    def parse_slowly(body, kind):
        waited.append(served.wait(10))
        return parse(body, kind)

    monkeypatch.setattr(module, "_parse", parse_slowly)

    async def both():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as other:
            slow = asyncio.create_task(other.post("/predict", json={"inputs": [GOOD]}))
            assert (await other.get("/healthz")).is_success
            served.set()
            return await slow

    assert asyncio.run(both()).is_success
    assert waited == [True]


def test_a_body_that_does_not_come_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr(sys.modules["serve_fastapi"], "BODY_SECONDS", 0.05)

    async def drip():
        yield b'{"inputs": '
        await asyncio.sleep(30)
        yield b"[[0, 0, 0, 0]]}"

    async def send():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as other:
            return await other.post("/predict", content=drip(), headers=HEADERS)

    reply = asyncio.run(send())
    assert reply.status_code == 408
    assert "0.05 seconds" in strict(reply.text)["detail"]


FEEDBACK = {
    "nan label": b'{"outcomes": [{"id": "x", "label": NaN}]}',
    "true": b'{"outcomes": [{"id": "x", "label": true}]}',
    "a fraction": b'{"outcomes": [{"id": "x", "label": 1.5}]}',
    "null": b'{"outcomes": [{"id": "x", "label": null}]}',
    "beyond 64 bits": b'{"outcomes": [{"id": "x", "label": 99999999999999999999999}]}',
    "another class": b'{"outcomes": [{"id": "x", "label": 99}]}',
    "a list as id": b'{"outcomes": [{"id": [], "label": 1}]}',
    "half a character": b'{"outcomes": [{"id": "\\ud800", "label": 1}]}',
    "half a character as label": b'{"outcomes": [{"id": "x", "label": "\\ud800"}]}',
    "a long id": b'{"outcomes": [{"id": "' + b"x" * 65 + b'", "label": 1}]}',
    "a further key": b'{"outcomes": [{"id": "x", "label": 1, "more": Infinity}]}',
    "none": b'{"outcomes": []}',
}


@pytest.mark.parametrize("name", FEEDBACK)
def test_odd_feedback(client, name):
    reply = client.post("/feedback", content=FEEDBACK[name], headers=HEADERS)
    assert reply.status_code == 422, reply.text
    strict(reply.text)


def test_answers_are_json_to_the_letter(client):
    """Also where the model overflows: float32 inputs of 3e38 make logits of infinity and NaN."""
    rows = [GOOD, [3e38] * 4, [3e38, -3e38, 3e38, -3e38], [1e-40] * 4, [0.0] * 4]
    reply = client.post("/predict", json={"inputs": rows})
    assert reply.status_code == 200
    answers = strict(reply.text)["predictions"]
    assert len(answers) == 5
    for answer, given in zip(answers, rows):
        assert 0.0 <= answer["confidence"] <= 1.0
        assert not (answer["accept"] and abs(given[0]) > 1e30 and answer["score"] is None)
    assert not answers[1]["accept"]
    assert strict(client.get("/promise").text)
