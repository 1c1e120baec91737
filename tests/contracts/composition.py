"""Everything composes: each promise × each kind of evidence × each thing one can do with it works,
or says why not.

`python tests/contracts/composition.py` writes `composition.txt`, one line for each cell: "works",
or the sentence that the user reads. An error that nobody wrote on purpose is a bug;
`test_composition.py` allows none, and keeps the file.
"""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

import metacal as mc
from metacal.errors import MetacalError

HERE = Path(__file__).parent
TABLE = HERE / "composition.txt"
N, K = 1200, 4

PROMISES: dict[str, Callable[[], Any]] = {
    "MinAccuracy": lambda: mc.MinAccuracy(0.85),
    "MinAccuracy, in expectation": lambda: mc.MinAccuracy(0.85, delta=None),
    "MaxMiscoverage": lambda: mc.MaxMiscoverage(0.1),
    "MaxMiscoverage, in expectation": lambda: mc.MaxMiscoverage(0.1, delta=None),
    "Both": lambda: mc.Both(alpha=0.3, beta=0.8),
    "AfterLooking": lambda: mc.AfterLooking(beta=0.8),
    "MaxReview": lambda: mc.MaxReview(0.3),
    "MaxCost": lambda: mc.MaxCost(wrong=10, limit=2.5),
    "MaxRisk": lambda: mc.MaxRisk(0.15),
    "Cheapest": lambda: mc.Cheapest(wrong=10, review=1),
    "MaxLoss": lambda: mc.MaxLoss(0.1),
    "MinPrecision": lambda: mc.MinPrecision(0.8),
    "MinRecall": lambda: mc.MinRecall(0.9),
    "MaxFalsePositiveRate": lambda: mc.MaxFalsePositiveRate(0.1),
    "TwoSided": lambda: mc.TwoSided(mc.MinPrecision(0.8), mc.MinRecall(0.9)),
    "paper.MaxMiscoverage": lambda: mc.paper.MaxMiscoverage(0.1),
    "paper.MinCoverageAccuracy": lambda: mc.paper.MinCoverageAccuracy(0.85),
}
#: What each promise is on the command line.
FLAGS = {
    "MinAccuracy": ["--min-accuracy", "0.85"],
    "MinAccuracy, in expectation": ["--min-accuracy", "0.85", "--in-expectation"],
    "MaxMiscoverage": ["--max-miscoverage", "0.1"],
    "MaxMiscoverage, in expectation": ["--max-miscoverage", "0.1", "--in-expectation"],
    "Both": ["--min-accuracy", "0.8", "--max-miscoverage", "0.3"],
    "AfterLooking": ["--min-accuracy", "0.8", "--after-looking"],
    "MaxReview": ["--max-review", "0.3"],
    "MaxCost": ["--max-cost", "2.5", "--cost-wrong", "10"],
    "MaxRisk": ["--max-risk", "0.15"],
    "Cheapest": ["--cheapest", "--cost-wrong", "10", "--cost-review", "1"],
    "MaxLoss": ["--max-loss", "0.1"],
    "MinPrecision": ["--min-precision", "0.8"],
    "MinRecall": ["--min-recall", "0.9"],
    "MaxFalsePositiveRate": ["--max-false-positive-rate", "0.1"],
    "TwoSided": ["--min-precision", "0.8", "--min-recall", "0.9"],
    "paper.MaxMiscoverage": ["--max-miscoverage", "0.1", "--rule", "paper"],
    "paper.MinCoverageAccuracy": ["--min-accuracy", "0.85", "--rule", "paper"],
}
#: Promises about what rows of two classes are called.
OF_TWO = ("MinPrecision", "MinRecall", "MaxFalsePositiveRate", "TwoSided")
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


class Cells:
    """All that one can do with one promise on one kind of evidence."""

    def __init__(self, name: str, kind: str, fit: Half, new: Half, folder: Path) -> None:
        self.name, self.kind, self.rows, self.new, self.folder = name, kind, fit, new, folder
        self.fitted: Any = None

    def promise(self) -> Any:
        return PROMISES[self.name]()

    def _fit(self, promise: Any, **more: Any) -> Any:
        X, y, rest = given(self.kind, self.rows)
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
            mc.verify(self.fitted, X, y, **rest)

    def evaluate(self) -> None:
        X, y, rest = given(self.kind, self.new)
        mc.evaluate(self.fitted, X, y, **rest, n_resamples=2)

    def report(self) -> None:
        X, y, rest = given(self.kind, self.new)
        mc.write_report(self.fitted, X, y, self.folder / "report.html", **rest, n_resamples=0)

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
            *FLAGS[self.name],
            "-o",
            str(self.folder / "cli.json"),
        ]
        result = CliRunner().invoke(main, arguments)
        if result.exit_code:
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            said = [line for line in result.stderr.splitlines() if line.strip()]
            raise mc.InputError(said[-1].replace(str(self.folder), "."))

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


DEEDS = (
    "fit",
    "per_class",
    "per_group",
    "units",
    "weights",
    "label",
    "monitor",
    "verify",
    "evaluate",
    "report",
    "save_and_load",
    "onnx",
    "torch",
    "command_line",
)


def outcome(deed: Callable[[], None]) -> str:
    """ "works", the reason that was given, or "BUG" and what nobody meant to say."""
    with warnings.catch_warnings(action="ignore"):
        try:
            deed()
        except MetacalError as error:
            return re.sub(
                r" \(?Did you mean.*", "", " ".join(str(error).split())
            )  # that is click's guess
        except Exception as error:
            return f"BUG {type(error).__name__}: {' '.join(str(error).split())[:100]}"
    return "works"


def cells(kinds: tuple[str, ...] = KINDS) -> Iterator[tuple[str, str, str, str]]:
    """(promise, evidence, deed, outcome) for every cell; what needs a fit that failed has that
    one's reason.
    """
    rows, of_two = halves(), halves(2)
    for kind in kinds:
        for name in PROMISES:
            fit, new = of_two if name in OF_TWO else rows
            with tempfile.TemporaryDirectory() as folder:
                own = Cells(name, kind, fit, new, Path(folder))
                for deed in DEEDS:
                    needs = deed in (
                        "monitor",
                        "verify",
                        "evaluate",
                        "report",
                        "save_and_load",
                        "onnx",
                        "torch",
                    )
                    blocked = needs and own.fitted is None
                    yield name, kind, deed, "no fit" if blocked else outcome(getattr(own, deed))


def text() -> str:
    return "".join(f"{kind} | {name} | {deed} | {found}\n" for name, kind, deed, found in cells())


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    works, bugs = (sum(f"| {word}" in line for line in lines) for word in ("works", "BUG"))
    print(f"{works} of {len(lines)} cells work, {bugs} bugs")
