"""The metrics of a watch by the official clients: scraped and pushed for real, on this machine's
own address.
"""

from __future__ import annotations

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.reports.status import status
from metacal.reports.telemetry import format_exposition

RNG = np.random.default_rng(3)
LOGITS = RNG.normal(size=(900, 3)) * 2.0
LABELS = (LOGITS + RNG.normal(size=LOGITS.shape)).argmax(axis=1)


@pytest.fixture(scope="module")
def gate():
    return mc.MetaCal(mc.MinAccuracy(0.8)).fit(LOGITS[:600], LABELS[:600])


def test_a_scrape_says_what_the_text_says(gate):
    client = pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    watch, registry = mc.Watch.of(gate), client.CollectorRegistry()
    registry.register(mc.WatchMetrics(watch))
    watch.update(LOGITS[600:], LABELS[600:])
    server, thread = client.start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.server_port}/metrics", timeout=10
        ) as answer:
            scraped = answer.read().decode()
    finally:
        server.shutdown()
        thread.join()

    def samples(text):
        return {
            (one.name, *sorted(one.labels.items())): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }

    assert samples(scraped) == samples(format_exposition(status(watch)))
    assert (
        samples(scraped)["metacal_decisions_total", ("decision", "accepted")]
        == gate.accepts(LOGITS[600:]).sum()
    )


def test_instruments_of_opentelemetry(gate):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    watch, reader = mc.Watch.of(gate), InMemoryMetricReader()
    mc.WatchMetrics(watch).instrument(MeterProvider([reader]).get_meter("metacal"))
    watch.update(LOGITS[600:], LABELS[600:])
    (resource,) = reader.get_metrics_data().resource_metrics
    found = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    points = {
        point.attributes["decision"]: point.value
        for point in found["metacal.decisions"].data.data_points
    }
    accepted = int(gate.accepts(LOGITS[600:]).sum())
    assert points == {"accepted": accepted, "rejected": 300 - accepted}
    assert found["metacal.decisions"].data.is_monotonic
    assert {point.value for point in found["metacal.alarm"].data.data_points} == {0}


def test_monitor_pushes_to_a_collector(gate, tmp_path):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            received.append((self.path, ExportMetricsServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    gate.save(tmp_path / "cal.json")
    mc.io.write_table(tmp_path / "new.npz", {"logits": LOGITS[600:], "labels": LABELS[600:]})
    url = f"http://127.0.0.1:{server.server_port}/v1/metrics"
    try:
        args = ["monitor", str(tmp_path / "cal.json"), str(tmp_path / "new.npz"), "--otlp", url]
        done = CliRunner().invoke(main, args)
    finally:
        server.shutdown()
        thread.join()
    assert done.exit_code == 0, done.output
    path, sent = received[-1]
    assert path == "/v1/metrics"
    (resource,) = sent.resource_metrics
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    assert sum(point.as_int for point in metrics["metacal.decisions"].sum.data_points) == 300
    wrong = CliRunner().invoke(main, [*args[:-1], "collector:4318"])
    assert wrong.exit_code == 2
    assert "must be the URL of a metrics collector" in wrong.output
