"""metacal demo: the whole story on real logits that ship with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import as_command, option
from metacal.cli.outputs import output_option
from metacal.cli.printing import print_note, print_result, wrap_lines
from metacal.cli.values import SEED_RANGE
from metacal.display import aligned

if TYPE_CHECKING:
    from metacal.estimators.metacal import MetaCal
    from metacal.promises.certificate import Certificate
    from metacal.promises.promise import Promise
    from metacal.promises.quantity import Limits
    from metacal.promises.verdict import Verdict

#: Data set -> how it is introduced, and the accuracy asked of what is accepted.
DATASETS = {
    "cifar10-resnet110": ("ResNet-110 on CIFAR-10, photographs in 10 classes", 0.97),
    "cifar100-resnet110": ("ResNet-110 on CIFAR-100, photographs in 100 classes", 0.87),
}
ALPHA, DELTA, N_FIT = 0.05, 0.1, 5000
#: Names of the classes, for the report; CIFAR-100 keeps its numbers.
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

_COLUMNS = """\
ECE: how far stated confidence lies from the share of right answers (0: honest; 0.05: 5 points off).
Coverage: share of rows accepted. Miscoverage: share of the right answers that were rejected.
Verdict: kept, or missed by so little that it may be chance (undecided), or by more (refuted).
A certified promise is kept by at least 90% of all fits; the paper's rules aim without a guarantee."""

_NEXT = """\
Now on your own predictions, an .npz with logits and labels or a .csv with a column per class:
  metacal fit val.npz --min-accuracy 0.97 -o cal.json   fit on labelled rows, print the certificate
  metacal evaluate cal.json test.npz                    is the promise kept on other labelled rows?
  metacal report cal.json test.npz                      the same and more as a page to look at
  metacal apply cal.json new.npz -o out.csv             probabilities and accept/reject, row by row"""


@dataclass(frozen=True)
class DemoRow:
    """One line of the table."""

    method: str
    promise: str = "-"
    ece_accepted: float | None = None
    ece_all: float | None = None
    coverage: float | None = None
    accuracy_accepted: float | None = None
    miscoverage: float | None = None
    verdict: Verdict | None = None
    problem: str | None = None

    def cells(self) -> tuple[str, ...]:
        """The line as it is printed."""
        numbers = (
            self.ece_accepted,
            self.ece_all,
            self.coverage,
            self.accuracy_accepted,
            self.miscoverage,
        )
        kept = "-" if self.verdict is None else self.verdict.word
        return (
            self.method,
            self.promise,
            *("-" if n is None else f"{n:.4f}" for n in numbers),
            kept,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**vars(self), "verdict": None if self.verdict is None else self.verdict.to_dict()}


@dataclass(frozen=True)
class Options:
    """Options of `metacal demo`."""

    dataset: str = option(
        "Which logits.", type=click.Choice(list(DATASETS)), default="cifar10-resnet110"
    )
    seed: int = option("Which random split.", type=SEED_RANGE, default=0)
    output: str = output_option("Where the report goes.", "HTML", default="metacal-demo.html")


@as_command(Options)
def command(options: Options) -> None:
    """See it work: the whole story on real data that ships with metacal.

    A network's logits on 15,000 images that it was not trained on are split at random: 5,000 rows
    to fit, 10,000 to test. Compared are the network as it is, temperature scaling, and Meta-Cal
    under two promises, by the certified rules and by the paper's own. It ends by writing the report
    on the test rows: open it in a browser, drag the point.

    \b
    Examples:
      metacal demo
      metacal demo --dataset cifar100-resnet110 --seed 1 -o hundred.html
      metacal demo --json | jq '.rows[].ece_accepted'
    """  # noqa: D301
    import metacal

    dataset, seed, output = options.dataset, options.seed, options.output
    (fit_x, fit_y), (test_x, test_y) = metacal.datasets.load(dataset).split(
        N_FIT, random_state=seed
    )
    introduction, beta = DATASETS[dataset]
    lines, gate = _compare((fit_x, fit_y), (test_x, test_y), beta, seed)
    certificate = None if gate is None else gate.certificate_
    page: dict[str, Any] = {
        "title": f"metacal demo: {introduction}",
        "class_names": CLASSES.get(dataset),
    }
    page |= {"file": f"{dataset}, {len(test_y):,} test rows", "command": "metacal fit test.npz"}
    # A few hundred resamples are enough to look at.
    size = metacal.report.write_report(
        gate, test_x, test_y, output, seed=seed, n_resamples=200, **page
    )
    answer = {"dataset": dataset, "seed": seed, "n_fit": len(fit_y), "n_test": len(test_y)}
    answer |= {"rows": [line.to_dict() for line in lines], "output": output}
    answer["certificate"] = None if certificate is None else certificate.to_dict(words=True)
    head = f"{introduction}: {len(fit_y):,} rows to fit, {len(test_y):,} to test (seed {seed})"
    text = "\n".join(
        [head, "", *_table(lines), "", _COLUMNS, "", *_explained(lines, certificate), _NEXT]
    )
    print_result(answer, text)
    print_note(
        f"The report is in {output} ({size / 1000:,.0f} kB). Open it in a browser:"
        f" {Path(output).resolve().as_uri()}"
    )


def _compare(
    fit: tuple[Any, Any], test: tuple[Any, Any], beta: float, seed: int
) -> tuple[list[DemoRow], MetaCal | None]:
    import metacal as mc
    from metacal.maps.temperature import TemperatureMap

    lines = [
        _measured("uncalibrated", test, TemperatureMap(1.0)(test[0])),
        _measured(
            "temperature scaling", test, mc.TemperatureScaling().fit(*fit).predict_proba(test[0])
        ),
    ]
    gates: list[tuple[str, Promise]] = [
        ("Meta-Cal, certified", mc.MaxMiscoverage(ALPHA, delta=DELTA)),
        ("Meta-Cal, certified", mc.MinAccuracy(beta, delta=DELTA)),
        ("Meta-Cal, paper", mc.paper.MaxMiscoverage(ALPHA, random_state=seed)),
        ("Meta-Cal, paper", mc.paper.MinCoverageAccuracy(beta, random_state=seed)),
    ]
    chosen = None
    for method, promise in gates:
        limits = _promised(promise.limits)
        try:
            gate = mc.MetaCal(promise).fit(*fit)
        except mc.InfeasibleTargetError as error:
            lines.append(DemoRow(method, limits, problem=str(error)))
            continue
        lines.append(_measured(method, test, gate.predict_proba(test[0]), gate, limits))
        if gate.certificate_.guarantee == "certified":
            chosen = gate
    return lines, chosen


def _measured(
    method: str, test: tuple[Any, Any], proba: Any, gate: MetaCal | None = None, promise: str = "-"
) -> DemoRow:
    import numpy as np

    from metacal import metrics

    logits, labels = test
    correct = logits.argmax(axis=1) == labels
    accept = np.ones(len(labels), dtype=bool) if gate is None else gate.accepts(logits)
    return DemoRow(
        method,
        promise,
        ece_accepted=metrics.ece(proba[accept], labels[accept]) if accept.any() else None,
        ece_all=metrics.ece(proba, labels),
        coverage=metrics.coverage(accept),
        accuracy_accepted=metrics.coverage_accuracy(accept, correct) if accept.any() else None,
        miscoverage=metrics.miscoverage(accept, correct),
        verdict=None if gate is None else gate.verify(logits, labels).verdict,
    )


def _table(lines: list[DemoRow]) -> list[str]:
    over = ("", "", "ECE", "ECE", "", "accuracy", "mis-", "")
    under = ("method", "promise", "accepted", "all", "coverage", "accepted", "coverage", "verdict")
    table = aligned([over, under, *(line.cells() for line in lines)])
    return [*table[:2], "-" * max(map(len, table)), *table[2:]]


def _explained(lines: list[DemoRow], certificate: Certificate | None) -> list[str]:
    found = [
        wrap_lines(f"{line.method}, {line.promise}: {line.problem}")
        for line in lines
        if line.problem
    ]
    if certificate is not None:
        found += [
            f"The certificate of the gate for {_promised(certificate.limits)}:",
            wrap_lines(str(certificate)),
        ]
    return [*found, ""]


def _promised(limits: Limits) -> str:
    return " and ".join(f"{quantity.short} {quantity.sign} {limit:g}" for quantity, limit in limits)
