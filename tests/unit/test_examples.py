"""The examples run: the gallery about cases and rare matches, a gated model served over HTTP on
loopback, an MLflow model saved and loaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import metacal as mc

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# ── the gallery ───────────────────────────────────────────────────────────────────────────────────


def run_gallery(name):
    """Run a gallery example without a screen, and return its variables."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    try:
        variables = runpy.run_path(str(EXAMPLES / "gallery" / f"{name}.py"))
        assert plt.get_fignums()
    finally:
        plt.close("all")
    return variables


def test_the_matching_example_keeps_its_promise():
    found = run_gallery("09_matching")
    merged = found["accept"]
    assert found["new_is_match"][merged].mean() >= 0.9
    assert found["new_is_match"][found["new_score"] >= 0.5].mean() < 0.9


def test_the_document_example_keeps_its_promise_and_constants_break_it():
    found = run_gallery("10_document_extraction")
    errors = {name: found["count_errors"](accept)[1] for name, accept in found["rules"].items()}
    assert errors.pop("metacal") <= 0.1
    assert len(errors) == 2
    assert min(errors.values()) > 0.1


def test_the_redaction_example_keeps_its_promise():
    found = run_gallery("11_redaction")
    masked = found["gate"].accepts(found["new_score"])
    _, leaking, harmless = found["measure"](masked)
    assert leaking <= 0.1
    assert harmless <= 0.1
    assert found["measure"](found["new_score"] >= 2)[1] > 0.1


# ── the service ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A classifier of digits with a gate attached, the gate, and rows that neither has seen."""
    for needed in (
        "onnx",
        "onnxruntime",
        "skl2onnx",
        "fastapi",
        "uvicorn",
        "httpx",
        "prometheus_client",
    ):
        pytest.importorskip(needed)
    from skl2onnx import to_onnx
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.utils import shuffle

    from metacal.export.onnx import save_attached

    X, y = shuffle(
        *load_digits(return_X_y=True), random_state=0
    )  # the file has one writer after the other
    X = X.astype(np.float32)
    classifier = LogisticRegression(max_iter=5000).fit(X[:500], y[:500])
    options = {id(classifier): {"zipmap": False, "raw_scores": True}}
    model = to_onnx(classifier, X[:1], options=options, target_opset=17)
    logits = classifier.decision_function(X[500:1200]).astype(np.float32)
    cal = mc.MetaCal(mc.MinAccuracy(0.95)).fit(logits, y[500:1200])
    folder = tmp_path_factory.mktemp("served")
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    save_attached(folder / "model.onnx", cal, folder / "served.onnx", logits="probabilities")
    return folder / "served.onnx", cal, classifier, X[1200:], y[1200:]


@pytest.fixture(scope="module")
def client(digits):
    """The service in a process of its own, on a free port of the loopback."""
    httpx = pytest.importorskip("httpx")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--factory",
        "serve_fastapi:create_app",
        "--port",
        str(port),
    ]
    environment = {**os.environ, "METACAL_MODEL": str(digits[0]), "PYTHONPATH": str(EXAMPLES)}
    server = subprocess.Popen(
        [*command, "--log-level", "warning"], env=environment, cwd=digits[0].parent
    )
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False
        ) as client:
            wait_for(server, client, httpx.TransportError)
            yield client
    finally:
        server.terminate()
        server.wait(timeout=30)


def wait_for(server, client, not_yet):
    for _ in range(600):
        assert server.poll() is None, "the service ended before it answered"
        try:
            assert client.get("/healthz").json() == {"status": "ok"}
        except not_yet:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the service did not answer")


def metric(client, name):
    from prometheus_client.parser import text_string_to_metric_families

    text = client.get("/metrics").text
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    return {
        tuple(sorted(sample.labels.values())): sample.value
        for sample in samples
        if sample.name == name
    }


def test_the_service_decides_like_python_and_counts_what_it_does(client, digits):
    _, cal, classifier, X, y = digits
    logits = classifier.decision_function(X).astype(np.float32)
    answers = (
        client.post("/predict", json={"inputs": X.tolist()})
        .raise_for_status()
        .json()["predictions"]
    )
    accept = np.array([answer["accept"] for answer in answers])
    np.testing.assert_array_equal(accept, cal.accepts(logits))
    assert [answer["label"] for answer in answers] == logits.argmax(axis=1).tolist()
    confidence = cal.predict_proba(logits)[np.arange(len(y)), logits.argmax(axis=1)]
    np.testing.assert_allclose([answer["confidence"] for answer in answers], confidence, atol=1e-5)
    assert 0 < accept.mean() < 1
    assert metric(client, "metacal_decisions_total") == {
        ("accepted",): accept.sum(),
        ("rejected",): (~accept).sum(),
    }
    assert metric(client, "metacal_confidence_count") == {(): accept.sum()}
    assert metric(client, "metacal_promised_limit") == {("selective accuracy",): 0.95}

    truths = [{"id": answer["id"], "label": int(label)} for answer, label in zip(answers, y)]
    reply = client.post("/feedback", json={"outcomes": truths}).json()
    assert reply == {"counted": len(y), "unknown": []}
    right = logits.argmax(axis=1) == y
    assert right[accept].mean() >= 0.95
    expected = {}
    for kept, good in zip(accept, right):
        key = tuple(sorted(("accepted" if kept else "rejected", str(bool(good)).lower())))
        expected[key] = expected.get(key, 0) + 1
    assert metric(client, "metacal_outcomes_total") == expected
    assert metric(client, "metacal_alarm") == {("selective accuracy",): 0.0}

    # Each answer has one truth; and truths that say the gate is wrong all the time raise the alarm.
    again = client.post("/feedback", json={"outcomes": truths[:2]}).json()
    assert again == {"counted": 0, "unknown": [truth["id"] for truth in truths[:2]]}
    more = client.post("/predict", json={"inputs": X.tolist()}).json()["predictions"]
    lies = [{"id": answer["id"], "label": (answer["label"] + 1) % 10} for answer in more]
    client.post("/feedback", json={"outcomes": lies}).raise_for_status()
    assert metric(client, "metacal_alarm") == {("selective accuracy",): 1.0}


def test_the_service_shows_its_promise(client, digits):
    assert client.get("/promise").json() == json.loads(
        json.dumps(digits[1].certificate_.to_dict(words=True))
    )


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"inputs": []}, 422, "at least 1 item"),
        ({"inputs": [[0.0] * 64] * 1025}, 422, "at most 1024 items"),
        ({"inputs": [[0.0] * 63]}, 422, "this model wants [64]"),
        ({"inputs": [[0.0] * 64, [0.0] * 63]}, 422, "all items of one shape"),
        ({"inputs": [0.0] * 64}, 422, "this model wants [64]"),
        ({"inputs": [["a"] * 64]}, 422, "must be numbers"),
        ({"inputs": [[None] * 64]}, 422, "must be numbers"),
        ({"inputs": [[1e300] * 64]}, 422, "must be finite"),
        ({"inputs": [[0.0] * 64], "extra": 1}, 422, "Extra inputs"),
        ({}, 422, "Field required"),
    ],
)
def test_what_cannot_be_read_is_answered_with_422(client, body, code, message):
    reply = client.post("/predict", json=body)
    assert reply.status_code == code
    assert message in reply.text


@pytest.mark.slow
def test_bad_json_bad_labels_and_large_bodies(client):
    head = {"content-type": "application/json"}
    assert client.post("/predict", content=b'{"inputs": [[NaN]]}', headers=head).status_code == 422
    assert client.post("/predict", content=b"{", headers=head).status_code == 422
    reply = client.post("/feedback", json={"outcomes": [{"id": "x", "label": "cat"}]})
    assert (reply.status_code, "not one of the model's classes" in reply.text) == (422, True)
    large = b" " * (16 * 2**20 + 1)
    assert client.post("/predict", content=large, headers=head).status_code == 413
    assert (
        client.post("/predict", content=iter([large]), headers=head).status_code == 413
    )  # not announced
    assert client.get("/healthz").status_code == 200


def test_a_model_without_a_gate_is_refused(digits):
    with pytest.raises(RuntimeError, match="has no gate; make one with: metacal attach"):
        example("serve_fastapi").create_app(digits[0].parent / "model.onnx")


# ── MLflow ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_mlflow_recipe(tmp_path, monkeypatch, cifar10):
    pytest.importorskip("mlflow")
    import mlflow

    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MLFLOW_TRACKING_URI": str(tmp_path / "runs"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }.items():
        monkeypatch.setenv(name, value)
    recipe = example("mlflow_model")
    cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(cifar10.logits[:3000], cifar10.labels[:3000])
    mc.save(cal, "cal.json")
    mlflow.pyfunc.save_model("gate", **recipe.settings("cal.json"))
    assert not [
        path for path in Path("gate").rglob("*") if path.suffix in (".pkl", ".pickle", ".joblib")
    ]

    loaded = mlflow.pyfunc.load_model("gate")
    rows = cifar10.logits[3000:3200]
    table = loaded.predict(rows)
    np.testing.assert_array_equal(table["accept"], cal.accepts(rows))
    np.testing.assert_array_equal(table["label"], cal.predict(rows))
    np.testing.assert_array_equal(table["score"], cal.ranking_scores(rows))
    winner = rows.argmax(axis=1)
    np.testing.assert_allclose(table["confidence"], cal.predict_proba(rows)[np.arange(200), winner])
    assert loaded.metadata.metadata["promise"] == cal.certificate_.statement
    assert [column.name for column in loaded.metadata.signature.outputs] == [
        "label",
        "confidence",
        "score",
        "accept",
    ]
    with pytest.raises(mlflow.exceptions.MlflowException):
        loaded.predict(rows[:, :9])


# ── a router of two models ────────────────────────────────────────────────────────────────────────


def test_a_router_asks_the_large_model_where_the_small_one_is_unsure():
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    asked = []

    class Server(BaseHTTPRequestHandler):
        """The small model is sure of even numbers; the large one knows all."""

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            number = int(body["messages"][0]["content"])
            asked.append((body["model"], number))
            sure = -0.01 if number % 2 == 0 else -2.0
            logprobs = None if number == 5 else {"content": [{"token": "x", "logprob": sure}]}
            choice = {"message": {"content": f"{body['model']} {number}"}, "logprobs": logprobs}
            reply = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *given):
            pass

    rng = np.random.default_rng(0)
    score = -rng.random(1000)
    cascade = mc.Cascade(mc.MaxLoss(0.02)).fit(
        score, agrees=rng.random(1000) > 0.3 * (score < -0.5)
    )
    server = HTTPServer(("127.0.0.1", 0), Server)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        router = example("route_models").Router(
            cascade.gate_, f"http://127.0.0.1:{server.server_port}", "small", "large"
        )
        found = list(router.answer(["2", "3", "5", "8"]))
    finally:
        server.shutdown()
        server.server_close()
    assert [one["answered_by"] for one in found] == ["small", "large", "large", "small"]
    assert asked == [
        ("small", 2),
        ("small", 3),
        ("large", 3),
        ("small", 5),
        ("large", 5),
        ("small", 8),
    ]
