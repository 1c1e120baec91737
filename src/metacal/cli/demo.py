"""`metacal demo`: fit, test and report on real logits that ship with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import as_command, option
from metacal.cli.outputs import output_option
from metacal.cli.printing import print_note, print_result, wrap_lines
from metacal.cli.values import SEED_RANGE
from metacal.display import align_columns

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.quantity import Limits
    from metacal.estimators.metacal import MetaCal
    from metacal.promises.promise import Promise
    from metacal.promises.verdict import Verdict

# Description of each data set, and the accuracy to promise for accepted rows.
DATASETS = {
    "cifar10-resnet110": ("ResNet-110 on CIFAR-10, photographs in 10 classes", 0.97),
    "cifar100-resnet110": ("ResNet-110 on CIFAR-100, photographs in 100 classes", 0.87),
}
#: Largest fraction of correct predictions that a promise about miscoverage allows to reject.
_MAX_MISCOVERAGE = 0.05
#: Each promise holds with probability 1 - delta.
_DELTA = 0.1
#: Number of rows to fit on. The other rows are for the test.
_N_FIT_ROWS = 5000
#: Names of the classes in the report. Data sets that are not listed have numbers as classes.
CLASSES = {
    "cifar10-resnet110": [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]
}

_COLUMN_TEXT = """\
ECE: mean gap between confidence and accuracy, for accepted rows and for all (0.05: 5 points).
Coverage: fraction of the rows that are accepted.
Miscoverage: fraction of the correct predictions that are rejected.
Verdict: kept if the measured value meets the promise; undecided if it does not, but chance explains
the difference; refuted if chance does not explain it.
At least 90% of all fits keep a certified promise. The paper's rules have no guarantee. Their ECE of
all rows is that of the paper's map, which gives every class of a rejected row the probability 1/K."""

_NEXT_TEXT = """\
With predictions of your own, in a file with the true labels:
  metacal start val.csv                                 detect the columns, fit a gate and judge it
  metacal fit val.npz --min-accuracy 0.97 -o cal.json   fit a gate and print its certificate
  metacal report cal.json test.npz                      judge it on other labelled rows, as a page
  metacal apply cal.json new.npz -o out.csv             write decision and probabilities of each row"""


@dataclass(frozen=True)
class DemoRow:
    """Row of the table that compares the methods.

    Attributes
    ----------
    method : str
        Name of the method.
    promise : str, default="-"
        Promised limits.
    ece_accepted, ece_all : float or None
        Expected calibration error of the accepted and of all test rows.
    coverage : float or None
        Fraction of test rows that are accepted.
    selective_accuracy : float or None
        Selective accuracy. None if no test row is accepted.
    miscoverage : float or None
        Fraction of correct predictions that are rejected.
    verdict : Verdict or None
        Whether the promise was kept on the test rows.
    problem : str or None
        Reason why the promise could not be certified.
    """

    method: str
    promise: str = "-"
    ece_accepted: float | None = None
    ece_all: float | None = None
    coverage: float | None = None
    selective_accuracy: float | None = None
    miscoverage: float | None = None
    verdict: Verdict | None = None
    problem: str | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row as text."""
        metrics = (
            self.ece_accepted,
            self.ece_all,
            self.coverage,
            self.selective_accuracy,
            self.miscoverage,
        )
        metric_cells = ["-" if value is None else f"{value:.4f}" for value in metrics]
        verdict_cell = "-" if self.verdict is None else self.verdict.word
        return (self.method, self.promise, *metric_cells, verdict_cell)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON types."""
        verdict = None if self.verdict is None else self.verdict.to_dict()
        return {**vars(self), "verdict": verdict}


@dataclass(frozen=True)
class DemoData:
    """Rows to fit on and rows to test on."""

    fit_logits: Any
    fit_labels: Any
    test_logits: Any
    test_labels: Any


@dataclass(frozen=True)
class Options:
    """Options of `metacal demo`."""

    dataset: str = option(
        "Data set.", type=click.Choice(list(DATASETS)), default="cifar10-resnet110"
    )
    seed: int = option("Seed of the random split.", type=SEED_RANGE, default=0)
    output: str = output_option("File of the report.", "HTML", default="metacal-demo.html")


@as_command(Options)
def command(options: Options) -> None:
    """Run an example on data that come with metacal, and write a report.

    The data are a network's logits for 15,000 images that it was not trained on. A random split
    gives 5,000 rows to fit on and 10,000 to test on. The command compares the network itself,
    temperature scaling, and metacal under two promises, with certified rules and with those of the
    paper. Open the report in a browser, and drag the threshold.

    \b
    Examples:
      metacal demo
      metacal demo --dataset cifar100-resnet110 --seed 1 -o hundred.html
    """  # noqa: D301
    import metacal

    dataset = metacal.datasets.load(options.dataset)
    fit_part, test_part = dataset.split(_N_FIT_ROWS, random_state=options.seed)
    fit_logits, fit_labels = fit_part
    test_logits, test_labels = test_part
    demo_data = DemoData(
        fit_logits=fit_logits,
        fit_labels=fit_labels,
        test_logits=test_logits,
        test_labels=test_labels,
    )
    introduction, min_accuracy = DATASETS[options.dataset]
    table_rows, certified_gate = _fit_and_measure_methods(
        demo_data, min_accuracy=min_accuracy, seed=options.seed
    )
    n_fit = len(demo_data.fit_labels)
    n_test = len(demo_data.test_labels)
    report_size = _write_report(certified_gate, demo_data, introduction, options)
    certificate = None if certified_gate is None else certified_gate.certificate_
    json_content = {
        "dataset": options.dataset,
        "seed": options.seed,
        "n_fit": n_fit,
        "n_test": n_test,
        "rows": [table_row.to_dict() for table_row in table_rows],
        "output": options.output,
        "certificate": None if certificate is None else certificate.to_dict(words=True),
    }
    heading = f"{introduction}: {n_fit:,} rows to fit, {n_test:,} to test (seed {options.seed})"
    table_lines = _format_table_lines(table_rows)
    explanation_lines = _format_explanation_lines(table_rows, certificate)
    text_lines = [heading, "", *table_lines, "", _COLUMN_TEXT, "", *explanation_lines, _NEXT_TEXT]
    print_result(json_content, "\n".join(text_lines))
    print_note(
        f"The report is in {options.output} ({report_size / 1000:,.0f} kB). Open it in a browser:"
        f" {Path(options.output).resolve().as_uri()}"
    )


def _write_report(gate: MetaCal | None, data: DemoData, introduction: str, options: Options) -> int:
    """Write the report on the test rows, and return its size in bytes.

    Parameters
    ----------
    gate : MetaCal or None
        Certified gate, if there is one.
    data : DemoData
        Rows to test on.
    introduction : str
        Description of the data set.
    options : Options
        Options of the command.

    Returns
    -------
    int
    """
    import metacal

    return metacal.report(
        gate,
        data.test_logits,
        data.test_labels,
        options.output,
        seed=options.seed,
        # A demonstration needs no narrower bootstrap intervals.
        n_resamples=200,
        title=f"metacal demo: {introduction}",
        class_names=CLASSES.get(options.dataset),
    )


def _fit_and_measure_methods(
    data: DemoData, *, min_accuracy: float, seed: int
) -> tuple[list[DemoRow], MetaCal | None]:
    """Fit every calibration method, and measure it on the test rows.

    Parameters
    ----------
    data : DemoData
        Rows to fit and to test on.
    min_accuracy : float
        Selective accuracy to promise.
    seed : int
        Seed of the paper's rules.

    Returns
    -------
    table_rows : list of DemoRow
        Measurements of each method.
    gate : MetaCal or None
        Last gate that was certified.
    """
    import metacal as mc
    from metacal.maps.temperature import TemperatureMap

    # A temperature of 1 is the plain softmax.
    uncalibrated_probs = TemperatureMap(1.0)(data.test_logits)
    temperature_scaling = mc.TemperatureScaling().fit(data.fit_logits, data.fit_labels)
    temperature_scaled_probs = temperature_scaling.predict_proba(data.test_logits)
    table_rows = [
        _measure_on_test_rows("uncalibrated", data, uncalibrated_probs),
        _measure_on_test_rows("temperature scaling", data, temperature_scaled_probs),
    ]
    promises: list[tuple[str, Promise]] = [
        ("Meta-Cal, certified", mc.MaxMiscoverage(_MAX_MISCOVERAGE, delta=_DELTA)),
        ("Meta-Cal, certified", mc.MinAccuracy(min_accuracy, delta=_DELTA)),
        ("Meta-Cal, paper", mc.paper.MaxMiscoverage(_MAX_MISCOVERAGE, random_state=seed)),
        ("Meta-Cal, paper", mc.paper.MinCoverageAccuracy(min_accuracy, random_state=seed)),
    ]
    certified_gate = None
    for method, promise in promises:
        limits_text = _format_limits(promise.limits)
        try:
            gate = mc.MetaCal(promise).fit(data.fit_logits, data.fit_labels)
        except mc.InfeasibleTargetError as error:
            table_rows.append(DemoRow(method, promise=limits_text, problem=str(error)))
            continue
        probabilities = gate.predict_proba(data.test_logits)
        table_rows.append(
            _measure_on_test_rows(method, data, probabilities, gate=gate, promise=limits_text)
        )
        if gate.certificate_.guarantee == "certified":
            certified_gate = gate
    return table_rows, certified_gate


def _measure_on_test_rows(
    method: str,
    data: DemoData,
    probabilities: Any,
    gate: MetaCal | None = None,
    promise: str = "-",
) -> DemoRow:
    """Measure calibration and selective accuracy of a method on the test rows.

    Parameters
    ----------
    method : str
        Name of the method.
    data : DemoData
        Rows to test on.
    probabilities : array of shape (n_rows, n_classes)
        Its probabilities for the test rows.
    gate : MetaCal or None, default=None
        Its gate. Without one, every row is accepted.
    promise : str, default="-"
        Promised limits.

    Returns
    -------
    DemoRow
    """
    import numpy as np

    from metacal import metrics

    labels = data.test_labels
    correct = data.test_logits.argmax(axis=1) == labels
    accept = np.ones(len(labels), dtype=bool)
    verdict = None
    if gate is not None:
        accept = gate.accepts(data.test_logits)
        verdict = gate.verify(data.test_logits, labels).verdict
    ece_accepted = None
    selective_accuracy = None
    if accept.any():
        ece_accepted = metrics.ece(probabilities[accept], labels[accept])
        selective_accuracy = metrics.selective_accuracy(accept, correct)
    return DemoRow(
        method=method,
        promise=promise,
        ece_accepted=ece_accepted,
        ece_all=metrics.ece(probabilities, labels),
        coverage=metrics.coverage(accept),
        selective_accuracy=selective_accuracy,
        miscoverage=metrics.miscoverage(accept, correct),
        verdict=verdict,
    )


def _format_table_lines(table_rows: list[DemoRow]) -> list[str]:
    """Return the table of measurements as aligned lines below a two-line heading."""
    first_heading = ("", "", "ECE", "ECE", "", "accuracy", "mis-", "")
    second_heading = (
        "method",
        "promise",
        "accepted",
        "all",
        "coverage",
        "accepted",
        "coverage",
        "verdict",
    )
    headings = [first_heading, second_heading]
    table_lines = align_columns([*headings, *(table_row.cells() for table_row in table_rows)])
    horizontal_rule = "-" * max(map(len, table_lines))
    n_headings = len(headings)
    return [*table_lines[:n_headings], horizontal_rule, *table_lines[n_headings:]]


def _format_explanation_lines(
    table_rows: list[DemoRow], certificate: Certificate | None
) -> list[str]:
    """Return the reasons for missing gates, and the certificate."""
    text_lines = []
    for table_row in table_rows:
        if table_row.problem:
            text_lines.append(
                wrap_lines(f"{table_row.method}, {table_row.promise}: {table_row.problem}")
            )
    if certificate is not None:
        text_lines.append(f"The certificate of the gate for {_format_limits(certificate.limits)}:")
        text_lines.append(wrap_lines(str(certificate)))
    text_lines.append("")
    return text_lines


def _format_limits(limits: Limits) -> str:
    """Return the promised limits as text, such as "accuracy >= 0.97"."""
    limit_texts = [
        f"{quantity.short_name} {quantity.comparison_sign} {limit:g}" for quantity, limit in limits
    ]
    return " and ".join(limit_texts)
