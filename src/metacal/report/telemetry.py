"""The state of a watch as metrics: Prometheus' text without any client, and the official clients of
`metacal[monitor]`.

The families are facts, listed once: the text exposition, a collector of `prometheus_client` and the
instruments of OpenTelemetry are three ways to say them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, Literal

from metacal.errors import InputError, needs_extra
from metacal.gate.watch import Watch
from metacal.io.disk import plain_write_errors
from metacal.io.writing import atomic_path
from metacal.report.status import status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: A name, what it is, what it says, and values by their labels.
Family = tuple[str, Literal["counter", "gauge"], str, list[tuple[dict[str, str], Any]]]


def families(found: dict[str, Any]) -> list[Family]:
    """What `metacal.report.status.status` has found, as metrics."""
    alarms, silence = found["alarms"], found["silence"]
    all_alarms = alarms if silence is None else [*alarms, {"name": "silence", **silence}]
    families: list[Family] = [
        ("metacal_decisions_total", "counter", "Rows by decision.", [
            ({"decision": "accepted"}, found["accepted"]),
            ({"decision": "rejected"}, found["rows"] - found["accepted"]),
        ]),
        ("metacal_outcomes_total", "counter", "Labelled rows that were accepted.", [
            ({"decision": "accepted", "correct": "true"}, found["right_accepted"]),
            ({"decision": "accepted", "correct": "false"}, found["labelled_accepted"] - found["right_accepted"]),
        ]),
        ("metacal_waiting_rows", "gauge", "Rows that wait for a label.", [({}, found["waiting"])]),
        ("metacal_unreadable_lines_total", "counter", "Lines that could not be read.", [({}, found["unreadable"])]),
        ("metacal_gaps_total", "counter", "Times that something was lost unread.", [({}, found["gaps"])]),
        ("metacal_alarm", "gauge", "1 once an alarm is raised; of silence, while it lasts.", [
            ({"alarm": alarm["name"]}, int(alarm["raised"])) for alarm in all_alarms
        ]),
        ("metacal_log_evidence", "gauge", "Logarithm of the evidence.", [
            ({"alarm": alarm["name"]}, alarm["log_evidence"]) for alarm in alarms
        ]),
        ("metacal_log_evidence_needed", "gauge", "Logarithm of the evidence that is an alarm.", [
            ({"alarm": alarm["name"]}, alarm["log_needed"]) for alarm in alarms
        ]),
    ]  # fmt: skip
    if found["estimate"] is not None:
        of = [({"bound": name}, found["estimate"][name]) for name in ("accuracy", "low", "high")]
        families.append(
            ("metacal_estimated_accuracy", "gauge", "Of accepted rows, from confidence alone.", of)
        )
    return families


def exposition(found: dict[str, Any]) -> str:
    """The same as Prometheus' text exposition format 0.0.4.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> text = exposition(status(mc.Watch.of(cal).update(data.logits[5000:6000])))
    >>> print(text.splitlines()[2])
    metacal_decisions_total{decision="accepted"} 8...
    """
    told = []
    for name, kind, explained, values in families(found):
        told += [f"# HELP {name} {explained}", f"# TYPE {name} {kind}"]
        told += [f"{name}{_labels(labels)} {value!r}" for labels, value in values]
    return "\n".join(told) + "\n"


def _labels(labels: dict[str, str]) -> str:
    return (
        "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
        if labels
        else ""
    )


def write_exposition(found: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write it where Prometheus' node exporter looks for files, whole or not at all."""
    with atomic_path(path) as part, plain_write_errors(path):
        part.write_text(exposition(found), encoding="utf-8")


class WatchMetrics:
    """The state of a watch, as the official clients of Prometheus and OpenTelemetry ask for it.

    Parameters
    ----------
    watch : Watch, or callable
        Or what gives the answer of `metacal.report.status.status` each time that it is asked.

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
        self._status: Callable[[], dict[str, Any]] = (
            partial(status, watch) if isinstance(watch, Watch) else watch
        )

    def collect(self) -> Iterator[Any]:
        """What a registry of `prometheus_client` asks for at each scrape."""
        with needs_extra("a collector for Prometheus", "monitor"):
            from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        for name, kind, explained, values in families(self._status()):
            of = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = of(name, explained, labels=list(values[0][0]) if values else [])
            for labels, value in values:
                family.add_metric(list(labels.values()), value)
            yield family

    def instrument(self, meter: Any) -> None:
        """Have a meter of OpenTelemetry observe the same, under the same names with dots."""
        observation: Any = import_module("opentelemetry.metrics").Observation

        def observed(name: str, options: Any) -> list[Any]:
            values = next(
                (family[3] for family in families(self._status()) if family[0] == name), []
            )
            return [observation(value, labels) for labels, value in values]

        for name, kind, explained, _ in families(self._status()):
            make = getattr(meter, f"create_observable_{kind}")
            make(
                name.removesuffix("_total").replace("_", ".", 1),
                [partial(observed, name)],
                description=explained,
            )


def pushed(metrics: WatchMetrics, endpoint: str, every: float = 15.0) -> Callable[[], object]:
    """Push the metrics to a collector by OTLP over HTTP, every so many seconds; the function
    returned ends it.

    What has not been sent by then is sent then.
    """
    with needs_extra("pushing metrics to an OpenTelemetry collector", "monitor"):
        exporter: Any = import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        sdk: Any = import_module("opentelemetry.sdk.metrics")
        export: Any = import_module("opentelemetry.sdk.metrics.export")
        resources: Any = import_module("opentelemetry.sdk.resources")
    if not endpoint.startswith(("http://", "https://")):
        raise InputError(
            f"{endpoint} must be the URL of a collector's metrics, as"
            " http://127.0.0.1:4318/v1/metrics."
        )
    reader = export.PeriodicExportingMetricReader(
        exporter.OTLPMetricExporter(endpoint=endpoint), 1000.0 * every
    )
    provider = sdk.MeterProvider(
        [reader], resource=resources.Resource.create({"service.name": "metacal"})
    )
    metrics.instrument(provider.get_meter("metacal"))
    stop: Callable[[], object] = provider.shutdown
    return stop
