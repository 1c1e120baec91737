"""Every promise × face × action works, or raises an error that was written on purpose.

`composition.txt` has one line for each promise and face, with the actions that work and those that
raise, by the kind of error. Below, it has the sentence that the certificate of each promise shows,
for classes with names. The texts of errors are not in the file, so that rewording one does not
change it. `python tests/contracts/composition.py` writes the file.

A *face* is the estimator and its kind of input: logits, probabilities, scores, or a cascade of
either.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

import metacal as mc
from metacal.errors import MetacalError

TABLE = Path(__file__).with_suffix(".txt")
#: Prints when the file differs from what comes out.
REWRITE = "if the change is meant, run: python tests/contracts/composition.py"
N, K = 1200, 4


@dataclass(frozen=True)
class PromiseExample:
    """A promise of each kind, and what it is on the command line."""

    build: Callable[[], Any]
    flags: str
    has_two_classes: bool = False


#: One row for each kind of promise.
EXAMPLES = {
    "MinAccuracy": PromiseExample(lambda: mc.MinAccuracy(0.85), "--min-accuracy 0.85"),
    "MinAccuracy, in expectation": PromiseExample(
        lambda: mc.MinAccuracy(0.85, delta=None), "--min-accuracy 0.85 --in-expectation"
    ),
    "MaxMiscoverage": PromiseExample(lambda: mc.MaxMiscoverage(0.1), "--max-miscoverage 0.1"),
    "MaxMiscoverage, in expectation": PromiseExample(
        lambda: mc.MaxMiscoverage(0.1, delta=None), "--max-miscoverage 0.1 --in-expectation"
    ),
    "Both": PromiseExample(
        lambda: mc.Both(alpha=0.3, beta=0.8), "--min-accuracy 0.8 --max-miscoverage 0.3"
    ),
    "AfterLooking": PromiseExample(
        lambda: mc.AfterLooking(beta=0.8), "--min-accuracy 0.8 --after-looking"
    ),
    "MaxReview": PromiseExample(lambda: mc.MaxReview(0.3), "--max-review 0.3"),
    "MaxCost": PromiseExample(
        lambda: mc.MaxCost(wrong=10, limit=2.5), "--max-cost 2.5 --cost-wrong 10"
    ),
    "MaxRisk": PromiseExample(lambda: mc.MaxRisk(0.15), "--max-risk 0.15"),
    "Cheapest": PromiseExample(
        lambda: mc.Cheapest(wrong=10, review=1), "--cheapest --cost-wrong 10 --cost-review 1"
    ),
    "MaxLoss": PromiseExample(lambda: mc.MaxLoss(0.1), "--max-loss 0.1"),
    "MinPrecision": PromiseExample(
        lambda: mc.MinPrecision(0.8), "--min-precision 0.8", has_two_classes=True
    ),
    "MinRecall": PromiseExample(
        lambda: mc.MinRecall(0.9), "--min-recall 0.9", has_two_classes=True
    ),
    "MaxFalsePositiveRate": PromiseExample(
        lambda: mc.MaxFalsePositiveRate(0.1), "--max-false-positive-rate 0.1", has_two_classes=True
    ),
    "TwoSided": PromiseExample(
        lambda: mc.TwoSided(mc.MinPrecision(0.8), mc.MinRecall(0.9)),
        "--min-precision 0.8 --min-recall 0.9",
        has_two_classes=True,
    ),
    "MaxCaseErrors": PromiseExample(lambda: mc.MaxCaseErrors(0.2), "--max-case-errors 0.2"),
    "MinCaseRecall": PromiseExample(lambda: mc.MinCaseRecall(0.8), "--min-case-recall 0.8"),
    "MaxErrorsPerCase": PromiseExample(
        lambda: mc.MaxErrorsPerCase(0.3, largest=2), "--max-errors-per-case 0.3 --largest 2"
    ),
    "paper.MaxMiscoverage": PromiseExample(
        lambda: mc.paper.MaxMiscoverage(0.1), "--max-miscoverage 0.1 --rule paper"
    ),
    "paper.MinCoverageAccuracy": PromiseExample(
        lambda: mc.paper.MinCoverageAccuracy(0.85), "--min-accuracy 0.85 --rule paper"
    ),
}
PROMISES: dict[str, Callable[[], Any]] = {name: row.build for name, row in EXAMPLES.items()}
KINDS = ("logits", "probabilities", "scores", "cascade", "score cascade")


@dataclass(frozen=True)
class Half:
    """Some rows in every form that evidence comes in."""

    logits: np.ndarray
    large: np.ndarray
    labels: np.ndarray
    group: np.ndarray
    unit: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        e = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    @property
    def scores(self) -> np.ndarray:
        return self.probabilities.max(axis=1)

    @property
    def right(self) -> np.ndarray:
        return self.logits.argmax(axis=1) == self.labels


def halves(n_classes: int = K) -> tuple[Half, Half]:
    rng = np.random.default_rng(20)

    def half() -> Half:
        y = rng.integers(n_classes, size=N)
        small, large = (
            rng.normal(size=(N, n_classes)) + gap * np.eye(n_classes)[y] for gap in (2.5, 4.0)
        )
        return Half(
            2 * small, 2 * large, y, rng.choice(["north", "south"], size=N), np.arange(N) // 2
        )

    return half(), half()


def face(kind: str, promise: Any) -> Any:
    if kind == "scores":
        return mc.ScoreGate(promise)
    if "cascade" in kind:
        return mc.Cascade(promise=promise)
    return mc.MetaCal(promise, input=kind, calibrator="temperature")


def given(kind: str, half: Half) -> tuple[Any, Any, dict[str, Any]]:
    """X, y and what else a face of this kind is fitted with."""
    if kind == "scores":
        return half.scores, half.right, {}
    if kind == "cascade":
        return half.logits, half.labels, {"large": half.large}
    if kind == "score cascade":  # the truth stands behind the two
        large = replace(half, logits=half.large)
        return [half.scores, large.scores], [half.right, large.right], {}
    return getattr(half, kind), half.labels, {}


class CommandFailed(Exception):
    """A command that ended with an error message; the text is its exit code."""


class Cells:
    """All that one can do with one promise on one kind of evidence."""

    def __init__(self, name: str, kind: str, fit: Half, new: Half, folder: Path) -> None:
        self.name, self.kind, self.rows, self.new, self.folder = name, kind, fit, new, folder
        self.fitted: Any = None

    def promise(self) -> Any:
        return PROMISES[self.name]()

    @property
    def cases(self) -> dict[str, Any]:
        """The case of each row, if the promise is about cases. Two rows have a case."""
        if self.kind == "scores" and self.promise().counts_cases:
            return {"cases": self.rows.unit}
        return {}

    def _fit(self, promise: Any, **more: Any) -> Any:
        X, y, rest = given(self.kind, self.rows)
        more = {**self.cases, **more}
        if self.kind == "score cascade":
            more[self._flags] = y
            return face(self.kind, promise).fit(X, **more)
        return face(self.kind, promise).fit(X, y, **rest, **more)

    @property
    def _flags(self) -> str:
        """What the flags of a cascade over scores are called: the truth stands for the last model's
        answer.
        """
        return "agrees" if self.name == "MaxLoss" else "correct"

    def fit(self) -> None:
        self.fitted = self._fit(self.promise())

    def per_class(self) -> None:
        self._fit(mc.PerClass(self.promise()))

    def per_group(self) -> None:
        self._fit(mc.PerGroup(self.promise()), groups=self.rows.group)

    def units(self) -> None:
        self._fit(self.promise(), units=self.rows.unit)

    def weights(self) -> None:
        self._fit(self.promise(), importance=mc.Importance(np.linspace(0.5, 1.5, N), largest=1.5))

    def label(self) -> None:
        if "cascade" in self.kind:
            raise mc.InputError(
                "a Certifier labels a pool for one model; of a cascade fit says which labels it"
                " needs."
            )
        X, y, _ = given(self.kind, self.rows)
        how = {} if self.kind == "scores" else {"input": self.kind}
        certifier = mc.Certifier(self.promise(), X, labels=500, **how)
        while len(asked := certifier.propose(100)):
            certifier.update(
                asked, **({"right": y[asked]} if self.kind == "scores" else {"labels": y[asked]})
            )
        certifier.gate()

    def monitor(self) -> None:
        X, y, rest = given(self.kind, self.new)
        mc.Watch.of(self.fitted).update([X, *rest.values()] if rest else X, y)

    def verify(self) -> None:
        X, y, rest = given(self.kind, self.new)
        if self.kind == "score cascade" and self.name == "MaxLoss":
            mc.verify(self.fitted, X, agrees=y)
        else:
            mc.verify(self.fitted, X, y, **rest, **self.cases)

    def evaluate(self) -> None:
        X, y, rest = given(self.kind, self.new)
        mc.evaluate(self.fitted, X, y, **rest, **self.cases, n_resamples=2)

    def report(self) -> None:
        X, y, rest = given(self.kind, self.new)
        mc.report(self.fitted, X, y, self.folder / "report.html", **rest, n_resamples=0)

    def save_and_load(self) -> None:
        path = self.folder / "gate.json"
        mc.save(self.fitted, path)
        again, X, rest = mc.load(path), *given(self.kind, self.new)[::2]
        assert (again.decide(X, **rest).accept == self.fitted.decide(X, **rest).accept).all()

    def onnx(self) -> None:
        from metacal.export import onnx

        onnx.to_onnx(
            self.fitted
        )  # written files are checked in a process of their own, which takes most of a second

    def torch(self) -> None:
        from metacal.export.torch import to_module

        to_module(self.fitted)

    def command_line(self) -> None:
        from metacal.cli import main

        files = self._files()
        command = "cascade" if "cascade" in self.kind else "fit"
        more = {
            "scores": ["--score-key", "score", "--correct-key", "ok"],
            "score cascade": [
                *("--score-key", "small.p,large.p"),
                *(
                    "--agree-key" if self.name == "MaxLoss" else "--correct-key",
                    "small.ok,large.ok",
                ),
            ],
            "probabilities": ["--input", "probabilities"],
        }
        arguments = [
            command,
            *files,
            *more.get(self.kind, []),
            *EXAMPLES[self.name].flags.split(),
            "-o",
            str(self.folder / "cli.json"),
        ]
        result = CliRunner().invoke(main, arguments)
        if result.exit_code:
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            raise CommandFailed(f"exit {result.exit_code}")

    def _files(self) -> list[str]:
        rows, files = self.rows, []
        if self.kind == "score cascade":
            (small, large), right, _ = given(self.kind, rows)
            columns = zip(small.tolist(), large.tolist(), *(one.tolist() for one in right))
            lines = (
                {"small": {"p": a, "ok": c}, "large": {"p": b, "ok": d}} for a, b, c, d in columns
            )
            path = self.folder / "answers.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            return [str(path)]
        if self.kind == "scores":
            path = self.folder / "scores.csv"
            mc.io.write_table(path, {"score": rows.scores, "ok": rows.right})
            return [str(path)]
        small = rows.probabilities if self.kind == "probabilities" else rows.logits
        for name, table in (("small", small), ("large", rows.large)):
            path = self.folder / f"{name}.npz"
            key = "probs" if self.kind == "probabilities" else "logits"
            mc.io.write_table(path, {key: table, "labels": rows.labels})
            files.append(str(path))
        return files if self.kind == "cascade" else files[:1]


#: The actions that need a fitted gate.
ON_A_GATE = ("monitor", "verify", "evaluate", "report", "save_and_load", "onnx", "torch")
ACTIONS = (
    "fit",
    "per_class",
    "per_group",
    "units",
    "weights",
    "label",
    *ON_A_GATE,
    "command_line",
)


def outcome(action: Callable[[], None]) -> str:
    """Return "works", the kind of the error, or "BUG" and an error that nobody raised on purpose."""
    with warnings.catch_warnings(action="ignore"):
        try:
            action()
        except CommandFailed as error:
            return str(error)
        except MetacalError as error:
            return type(error).__name__
        except Exception as error:
            return f"BUG {type(error).__name__}, {' '.join(str(error).split())[:100]}"
    return "works"


def outcomes(name: str, kind: str, rows: tuple[Half, Half]) -> dict[str, list[str]]:
    """Return the actions with a promise on a face, by their outcome."""
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        cells = Cells(name, kind, *rows, Path(folder))
        for action in ACTIONS:
            is_blocked = action in ON_A_GATE and cells.fitted is None
            result = "not fitted" if is_blocked else outcome(getattr(cells, action))
            found.setdefault(result, []).append(action)
    return found


def lines(kind: str) -> list[str]:
    """Return the lines of the file for one face."""
    rows, of_two = halves(), halves(2)
    found = []
    for name in PROMISES:
        by_outcome = outcomes(name, kind, of_two if EXAMPLES[name].has_two_classes else rows)
        parts = [f"{result}: {', '.join(actions)}" for result, actions in by_outcome.items()]
        found.append(" | ".join([kind, name, *parts]))
    return found


#: What a promise can stand inside.
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "{}": lambda promise: promise,
    "PerClass({})": mc.PerClass,
    "PerGroup({})": mc.PerGroup,
}


def sentences() -> list[str]:
    """Return the lines of the file with the sentence of each promise, for named classes."""
    rows, of_two = halves()[0], halves(2)[0]
    found = []
    for name in PROMISES:
        half, classes = rows, ["cat", "dog", "fox", "owl"]
        if EXAMPLES[name].has_two_classes:
            half, classes = of_two, ["decline", "approve"]
        for title, wrap in WRAPPERS.items():
            with contextlib.suppress(MetacalError), warnings.catch_warnings(action="ignore"):
                certificate = certificate_of(wrap(PROMISES[name]()), half, classes)
                sentence = str(certificate).splitlines()[0]
                found.append(f"sentence | {title.format(name)} | {sentence}")
    return found


def certificate_of(promise: Any, half: Half, classes: list[str]) -> Any:
    """Fit a promise on logits of named classes, and return the certificate."""
    if isinstance(promise, mc.MaxLoss):
        return (
            mc.Cascade(promise=promise).fit(half.logits, half.labels, large=half.large).certificate_
        )
    positive = "approve" if "approve" in classes else None
    gate = mc.MetaCal(promise, calibrator="temperature", classes=classes, positive=positive)
    groups = half.group if isinstance(promise, mc.PerGroup) else None
    return gate.fit(half.logits, half.labels, groups=groups).certificate_


def text() -> str:
    """Return the whole file."""
    found = [line for kind in KINDS for line in lines(kind)]
    return "\n".join([*found, *sentences()]) + "\n"


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
    print(f"wrote {TABLE.name}")
