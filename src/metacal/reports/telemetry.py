"""State of a watch as metrics for Prometheus and OpenTelemetry.

A *metric family* is a metric with its values for all labels. `list_metric_families` defines the
families once. They are exported in the text format of Prometheus (without a client library), by a
collector of `prometheus_client`, and as instruments of OpenTelemetry. The clients are dependencies of
`metacal[monitor]`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

from metacal.errors import InputError, needs_extra
from metacal.gate.watch import Watch
from metacal.io.disk import input_error_if_write_fails
from metacal.io.writing import open_atomic_path
from metacal.reports.status import status

#: Content type of Prometheus' text exposition format.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class MetricFamily:
    """Metric of Prometheus with its values for all labels.

    Attributes
    ----------
    name : str
        Name in Prometheus.

    kind : {"counter", "gauge"}
        Kind of the metric.

    description : str
        Help text.

    samples : list of (labels, value)
        Values with their labels.
    """

    name: str
    kind: Literal["counter", "gauge"]
    description: str
    samples: list[tuple[dict[str, str], Any]]


def list_metric_families(state: dict[str, Any]) -> list[MetricFamily]:
    """List the metric families of a watch from its state.

    Parameters
    ----------
    state : dict
        Output of `metacal.reports.status.status`.

    Returns
    -------
    list of MetricFamily
    """
    alarms = state["alarms"]
    alarms_with_silence = list(alarms)
    if state["silence"] is not None:
        alarms_with_silence.append({"name": "silence", **state["silence"]})
    n_accepted_errors = state["labelled_accepted"] - state["correct_accepted"]
    metric_families = [
        MetricFamily(
            "metacal_decisions_total",
            "counter",
            "Rows by decision.",
            [
                ({"decision": "accepted"}, state["accepted"]),
                ({"decision": "rejected"}, state["rows"] - state["accepted"]),
            ],
        ),
        MetricFamily(
            "metacal_outcomes_total",
            "counter",
            "Accepted rows with a label, by correctness.",
            [
                ({"decision": "accepted", "correct": "true"}, state["correct_accepted"]),
                ({"decision": "accepted", "correct": "false"}, n_accepted_errors),
            ],
        ),
        MetricFamily(
            "metacal_waiting_rows",
            "gauge",
            "Rows that wait for a label.",
            [({}, state["waiting"])],
        ),
        MetricFamily(
            "metacal_unreadable_lines_total",
            "counter",
            "Lines that could not be read.",
            [({}, state["unreadable"])],
        ),
        MetricFamily(
            "metacal_gaps_total",
            "counter",
            "Times that rows were lost before they were read.",
            [({}, state["gaps"])],
        ),
        MetricFamily(
            "metacal_alarm",
            "gauge",
            "1 from an alarm until it is acknowledged; for silence, while it lasts.",
            [({"alarm": alarm["name"]}, int(alarm["raised"])) for alarm in alarms_with_silence],
        ),
        MetricFamily(
            "metacal_log_evidence",
            "gauge",
            "Logarithm of the evidence.",
            [({"alarm": alarm["name"]}, alarm["log_evidence"]) for alarm in alarms],
        ),
        MetricFamily(
            "metacal_log_evidence_needed",
            "gauge",
            "Logarithm of the evidence that raises the alarm.",
            [({"alarm": alarm["name"]}, alarm["log_needed"]) for alarm in alarms],
        ),
    ]
    acknowledged_names = [
        alarm["name"] for period in state["acknowledged"] for alarm in period["alarms"]
    ]
    metric_families.append(
        MetricFamily(
            "metacal_acknowledged_alarms_total",
            "counter",
            "Alarms that were acknowledged.",
            [
                ({"alarm": alarm["name"]}, acknowledged_names.count(alarm["name"]))
                for alarm in alarms
            ],
        )
    )
    estimate = state["estimate"]
    if estimate is not None:
        metric_families.append(
            MetricFamily(
                "metacal_estimated_selective_accuracy",
                "gauge",
                "Selective accuracy, estimated from confidence alone.",
                [({"bound": bound}, estimate[bound]) for bound in ("accuracy", "low", "high")],
            )
        )
    return metric_families


def format_exposition(state: dict[str, Any]) -> str:
    """Format the metrics of a watch in the text exposition format of Prometheus.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> text = format_exposition(status(mc.Watch.of(cal).update(data.logits[5000:6000])))
    >>> print(text.splitlines()[2])
    metacal_decisions_total{decision="accepted"} 8...
    """
    text_lines = []
    for family in list_metric_families(state):
        text_lines.append(f"# HELP {family.name} {family.description}")
        text_lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            text_lines.append(f"{family.name}{_format_labels(labels)} {value!r}")
    return "\n".join(text_lines) + "\n"


def _format_labels(labels: dict[str, str]) -> str:
    """Format the labels of a sample for Prometheus, or return an empty string."""
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def write_exposition(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the metrics of a watch atomically to a file for Prometheus' node exporter."""
    with open_atomic_path(path) as temporary_path, input_error_if_write_fails(path):
        temporary_path.write_text(format_exposition(state), encoding="utf-8")


class WatchMetrics:
    """Metrics of a watch for the official clients of Prometheus and OpenTelemetry.

    Parameters
    ----------
    watch : Watch or callable
        Watch, or function that returns the output of `metacal.reports.status.status`.

    See Also
    --------
    Watch : Monitor the traffic of a gate.

    Examples
    --------
    >>> import metacal as mc
    >>> from prometheus_client import CollectorRegistry
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> watch, registry = mc.Watch.of(cal), CollectorRegistry()
    >>> registry.register(mc.WatchMetrics(watch))
    >>> watch = watch.update(data.logits[5000:6000])
    >>> registry.get_sample_value("metacal_decisions_total", {"decision": "accepted"}) > 800
    True
    """

    def __init__(self, watch: Watch | Callable[[], dict[str, Any]]) -> None:
        self._get_state: Callable[[], dict[str, Any]]
        if isinstance(watch, Watch):
            self._get_state = partial(status, watch)
        else:
            self._get_state = watch

    def collect(self) -> Iterator[Any]:
        """Yield the metric families to a registry of `prometheus_client`."""
        with needs_extra("a collector for Prometheus", "monitor"):
            from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        for family in list_metric_families(self._get_state()):
            label_names: list[str] = []
            if family.samples:
                first_labels, _ = family.samples[0]
                label_names = list(first_labels)
            family_class = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            client_family = family_class(family.name, family.description, labels=label_names)
            for labels, value in family.samples:
                client_family.add_metric(list(labels.values()), value)
            yield client_family

    def instrument(self, meter: Any) -> None:
        """Create observable instruments of OpenTelemetry, with dots in their names."""
        observation_class: Any = import_module("opentelemetry.metrics").Observation

        def observe(family_name: str, callback_options: Any) -> list[Any]:
            for family in list_metric_families(self._get_state()):
                if family.name == family_name:
                    return [observation_class(value, labels) for labels, value in family.samples]
            return []

        for family in list_metric_families(self._get_state()):
            create_instrument = getattr(meter, f"create_observable_{family.kind}")
            instrument_name = family.name.removesuffix("_total").replace("_", ".", 1)
            create_instrument(
                instrument_name,
                [partial(observe, family.name)],
                description=family.description,
            )


def start_pushing(
    metrics: WatchMetrics, endpoint: str, interval_seconds: float = 15.0
) -> Callable[[], object]:
    """Push metrics periodically to an OpenTelemetry collector by OTLP over HTTP.

    Parameters
    ----------
    metrics : WatchMetrics
        Metrics to push.

    endpoint : str
        URL of the collector's metrics.

    interval_seconds : float, default=15.0
        Time between two exports.

    Returns
    -------
    callable
        Function without parameters that sends the pending metrics and stops pushing.

    Raises
    ------
    InputError
        If `endpoint` is not a URL.
    """
    with needs_extra("pushing metrics to an OpenTelemetry collector", "monitor"):
        otlp_module: Any = import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        metrics_module: Any = import_module("opentelemetry.sdk.metrics")
        export_module: Any = import_module("opentelemetry.sdk.metrics.export")
        resources_module: Any = import_module("opentelemetry.sdk.resources")
    if not endpoint.startswith(("http://", "https://")):
        raise InputError(
            f"{endpoint} must be the URL of a metrics collector, for example"
            " http://127.0.0.1:4318/v1/metrics."
        )
    exporter = otlp_module.OTLPMetricExporter(endpoint=endpoint)
    reader = export_module.PeriodicExportingMetricReader(exporter, 1000.0 * interval_seconds)
    resource = resources_module.Resource.create({"service.name": "metacal"})
    provider = metrics_module.MeterProvider([reader], resource=resource)
    metrics.instrument(provider.get_meter("metacal"))
    stop_pushing: Callable[[], object] = provider.shutdown
    return stop_pushing
