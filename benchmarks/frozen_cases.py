"""The gates that `frozen_gates.py` fits: each has a name, and a function that fits it and says
everything about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from frozen_rows import Table, groups_of, softmax, table
from numpy.typing import NDArray

import metacal as mc
from metacal.gate import long_rows

Fit = dict[str, Any]

# How today's public face spells what the cases below ask for: a renamed argument changes here and
# nowhere else.


def promises(n_classes: int) -> dict[str, Any]:
    """Every promise of a single gate, with and without a confidence where it can be had."""
    accuracy, right_kept = mc.MinAccuracy, mc.MaxMiscoverage
    table = tuple(
        tuple(0.0 if i == j else 1.0 + (i + 2 * j) % 3 for j in range(n_classes))
        for i in range(n_classes)
    )
    made = {}
    for delta in (0.1, None):
        made |= {
            f"MinAccuracy 0.9 {delta}": accuracy(0.9, delta=delta),
            f"MaxMiscoverage 0.05 {delta}": right_kept(0.05, delta=delta),
            f"Both 0.6 0.85 {delta}": mc.Both(0.6, 0.85, delta=delta),
            f"MaxReview 0.3 {delta}": mc.MaxReview(0.3, delta=delta),
            f"MaxCost number {delta}": mc.MaxCost(5.0, 1.0, delta=delta),
            f"MaxCost table {delta}": mc.MaxCost(table, 0.6, delta=delta),
        }
    return made | {
        "MinAccuracy 0.999": accuracy(0.999),  # may be out of reach: the refusal is kept
        "MaxMiscoverage 0.2 0.01": right_kept(0.2, delta=0.01),
        "AfterLooking accuracy": mc.AfterLooking(beta=0.85),
        "AfterLooking miscoverage": mc.AfterLooking(alpha=0.3),
        "AfterLooking both": mc.AfterLooking(alpha=0.7, beta=0.8),
        "AfterLooking threshold": mc.AfterLooking(beta=0.6, threshold=0.3),
        "Cheapest number": mc.Cheapest(5.0, 1.0),
        "Cheapest table": mc.Cheapest(table, 0.5),
        "PerClass accuracy together": mc.PerClass(accuracy(0.85)),
        "PerClass accuracy each": mc.PerClass(accuracy(0.85), shares="each"),
        "PerClass accuracy pooled": mc.PerClass(accuracy(0.9), fallback="pooled"),
        "PerClass miscoverage together": mc.PerClass(right_kept(0.2)),
        "PerClass miscoverage each": mc.PerClass(right_kept(0.2), shares="each"),
        "paper accuracy": mc.paper.MinCoverageAccuracy(0.9, random_state=0),
        "paper miscoverage": mc.paper.MaxMiscoverage(0.05, random_state=0),
    }


def meta(promise: Any, **more: Any) -> Any:
    """A gate on logits or probabilities."""
    return mc.MetaCal(promise, **more)


def per_group(promise: Any, names: NDArray[Any], **more: Any) -> tuple[Any, Fit]:
    """A promise per group, and what `fit` is told of it."""
    return mc.PerGroup(promise, **more), {"groups": names}


def units(of_rows: NDArray[Any]) -> Fit:
    """What `fit` is told of rows that belong together."""
    return {"units": of_rows}


def groups(of_rows: NDArray[Any]) -> Fit:
    """What a gate per group is told of new rows."""
    return {"groups": of_rows}


def wrapped(estimator: Any, promise: Any, score: str = "entropy", **more: Any) -> Any:
    """A gate around a classifier."""
    return mc.CalibratedClassifier(estimator, promise, ranking=score, **more)


# Cases: a name, and what fits the gate and says everything about it.

Case = tuple[str, Callable[[], dict[str, Any]]]


def gate_case(
    name: str, rows: Table, estimator: Any, fit: Fit | None = None, new: Fit | None = None
) -> Case:
    """A gate on a table, and all that it says of the rows held out."""

    def said() -> dict[str, Any]:
        cal = estimator.fit(rows.fit, rows.labels, **(fit or {}))
        made = cal.decide(rows.new, **(new or {}))
        columns = ("accept", "label", "answer", "confidence", "score", "probabilities")
        return {
            **{column: getattr(made, column) for column in columns},
            "top": made.predicted_codes,
            "predict_proba": cal.predict_proba(rows.new, rejected="uniform", **(new or {})),
            **certificate(cal.certificate_),
        }

    return name, said


def certificate(of: Any) -> dict[str, Any]:
    """Facts and texts of a certificate."""
    return {
        "facts": of.to_dict(),
        "text": str(of),
        "html": of._repr_html_(),
        "statement": of.statement,
    }


def from_promises() -> Iterator[Case]:
    """Every promise on three tables, per group, and without labels."""
    for name in ("cifar10-resnet110", "cifar100-resnet110", "three"):
        rows = table(name)
        for title, promise in promises(rows.n_classes).items():
            if name != "cifar100-resnet110" or "table" not in title:
                yield gate_case(f"promise/{name}/{title}", rows, meta(promise))
    for name in ("three", "two"):
        rows = table(name)
        for title, asked in {
            "accuracy": mc.MinAccuracy(0.9),
            "miscoverage": mc.MaxMiscoverage(0.1),
        }.items():
            for options in ({}, {"shares": "each"}, {"fallback": "pooled"}):
                promise, fit = per_group(asked, groups_of(len(rows.fit)), **options)
                new = groups(groups_of(len(rows.new)))
                yield gate_case(f"group/{name}/{title}/{options}", rows, meta(promise), fit, new)
    for delta in (0.1, None):
        rows = replace(table("three"), labels=None)
        yield gate_case(f"unlabelled/MaxReview {delta}", rows, meta(mc.MaxReview(0.3, delta=delta)))


CALIBRATORS = """
TemperatureScaling UniformTemperatureScaling EnsembleTemperatureScaling LocalTemperatureScaling SplineCalibration
ComposedCalibration GaussianProcessCalibration StructuredScaling VectorScaling MatrixScaling DirichletCalibration
PlattScaling BetaCalibration IsotonicCalibration IROvATS IRM HistogramBinning BBQ IMaxBinning TopLabelIsotonic
TopLabelHistogramBinning TopLabelBBQ AutoCalibrator
""".split()  # noqa: SIM905 a word a name reads better


def from_calibrators() -> Iterator[Case]:
    """Every calibrator under one promise."""
    for name, calibrators in {
        "cifar10-wrn32": [c for c in CALIBRATORS if c != "AutoCalibrator"],
        "three": CALIBRATORS,
        "two": [
            "TemperatureScaling",
            "PlattScaling",
            "BetaCalibration",
            "IsotonicCalibration",
            "HistogramBinning",
        ],
    }.items():
        for calibrator in calibrators:
            promise = mc.MinAccuracy(0.9)
            estimator = meta(promise, calibrator=getattr(mc, calibrator)())
            yield gate_case(f"calibrator/{name}/{calibrator}", table(name), estimator)


def from_scores() -> Iterator[Case]:
    """Every score, a function and a learned one."""

    def own(block: NDArray[Any]) -> NDArray[np.float64]:
        return -np.asarray(block, dtype=np.float64).max(axis=1)

    for name in ("cifar10-wrn32", "twenty"):
        rows = table(name)
        rankers = [
            kind().fit(rows.fit[:500], rows.labels[:500]) for kind in (mc.ranking.LogisticRanker,)
        ]
        named = ["entropy", "max_probability", "margin", "maxlogit_pnorm", "energy", "auto"]
        scores = {**{score: score for score in named}, "own": own}
        scores |= {type(ranker).__name__: ranker for ranker in rankers}
        rest = replace(rows, fit=rows.fit[500:], labels=rows.labels[500:])
        for title, score in scores.items():
            for promise in (mc.MinAccuracy(0.9), mc.MaxMiscoverage(0.1)):
                yield gate_case(
                    f"score/{name}/{title}/{type(promise).__name__}",
                    rest,
                    meta(promise, score=score),
                )


def from_inputs() -> Iterator[Case]:
    """Every kind of rows."""
    rows, promise = table("three"), mc.MinAccuracy(0.9)
    names = np.array(["cat", "dog", "cow"])
    masked = rows.fit.copy()
    masked[::7, 2] = -np.inf
    masked[(rows.labels == 2) & np.isinf(masked[:, 2]), 2] = 0.0
    probable = replace(rows, fit=softmax(rows.fit), new=softmax(rows.new))
    yield gate_case(
        "input/float32",
        replace(rows, fit=rows.fit.astype(np.float32), new=rows.new.astype(np.float32)),
        meta(promise),
    )
    yield gate_case("input/fortran", replace(rows, fit=np.asfortranarray(rows.fit)), meta(promise))
    yield gate_case(
        "input/lists", replace(rows, fit=rows.fit.tolist(), new=rows.new.tolist()), meta(promise)
    )
    yield gate_case("input/masked", replace(rows, fit=masked), meta(promise))
    for calibrator in (None, "temperature", "isotonic", "dirichlet", "beta", "histogram"):
        estimator = meta(promise, input="probabilities", calibrator=calibrator)
        yield gate_case(f"input/probabilities/{calibrator}", probable, estimator)
    named = replace(rows, labels=names[rows.labels])
    yield gate_case("input/named", named, meta(promise, classes=list(names)))
    yield gate_case(
        "input/named/other", named, meta(promise, classes=list(names), reject_label="nobody")
    )
    yield gate_case("input/named/per class", named, meta(mc.PerClass(promise), classes=list(names)))


def from_counting() -> Iterator[Case]:
    """Rows that belong together, count for more, or weigh."""
    rows = table("three")
    n = len(rows.fit)
    of_rows = np.random.default_rng(5).integers(n // 2, size=n)
    weights = 1.0 + (rows.labels == 1) * 1.5
    target = {0: 0.5, 1: 0.3, 2: 0.2}
    importance = {
        "array": weights,
        "largest": mc.Importance(weights, largest=4.0),
        "labels": mc.Importance.of_labels(rows.labels, target),
        "labels known": mc.Importance.of_labels(
            rows.labels, target, dict.fromkeys(range(3), 1 / 3)
        ),
        "unlabelled": mc.Importance.from_unlabelled(rows.fit, rows.labels, rows.new),
    }
    asked = {
        "accuracy": mc.MinAccuracy(0.9),
        "accuracy None": mc.MinAccuracy(0.9, delta=None),
        "miscoverage": mc.MaxMiscoverage(0.1),
        "both": mc.Both(0.6, 0.85),
        "cost": mc.MaxCost(5.0, 1.0),
    }
    for title, promise in asked.items():
        yield gate_case(
            f"units/{title}", rows, meta(promise), {**units(of_rows), "random_state": 3}
        )
        yield gate_case(f"sample weight/{title}", rows, meta(promise), {"sample_weight": weights})
    for kind, value in importance.items():
        for title in ("accuracy", "miscoverage") if kind != "array" else asked:
            yield gate_case(
                f"importance/{kind}/{title}", rows, meta(asked[title]), {"importance": value}
            )
    both = {**units(of_rows), "importance": weights}
    yield gate_case("units and importance", rows, meta(asked["accuracy"]), both)


def from_marks() -> Iterator[Case]:
    """Scores without classes."""
    rng = np.random.default_rng(11)
    mark = np.where(rng.random(2200) < 0.02, np.nan, rng.random(2200).round(3))
    right = rng.random(2200) > np.nan_to_num(1 - mark, nan=0.5) ** 2
    asked = {
        **{f"accuracy {delta}": mc.MinAccuracy(0.85, delta=delta) for delta in (0.1, None)},
        **{f"miscoverage {delta}": mc.MaxMiscoverage(0.1, delta=delta) for delta in (0.1, None)},
        "both": mc.Both(0.7, 0.8),
        "after looking": mc.AfterLooking(beta=0.8),
    }
    fits = {
        "plain": {},
        "units": units(rng.integers(900, size=2000)),
        "importance": {"importance": 1 + mark[:2000] > 1},
    }

    def case(title: str, promise: Any, kind: str, **options: Any) -> Case:
        sign = -1.0 if options else 1.0

        def said() -> dict[str, Any]:
            gate = mc.ScoreGate(promise, **options).fit(
                sign * mark[:2000], right[:2000], **fits[kind]
            )
            made = gate.decide(sign * mark[2000:])
            columns = {
                column: getattr(made, column) for column in ("accept", "score", "confidence")
            }
            checked = mc.verify(gate, sign * mark[2000:], right[2000:])
            return {**columns, **certificate(gate.certificate_), "verify": str(checked)}

        return f"marks/{title}/{kind}/{options}", said

    for title, promise in asked.items():
        yield case(title, promise, "plain")
        yield case(title, promise, "plain", higher_is="doubtful", score_name="loss")
    for kind in ("units", "importance"):
        yield case("accuracy 0.1", asked["accuracy 0.1"], kind)


def from_cascades() -> Iterator[Case]:
    """Two models."""
    rng = np.random.default_rng(13)
    y = rng.integers(5, size=3300)
    small, large = (rng.normal(size=(3300, 5)) + gap * np.eye(5)[y] for gap in (3.0, 4.0))

    def case(title: str, fit: Fit | None = None, **options: Any) -> Case:
        def said() -> dict[str, Any]:
            cal = mc.Cascade(**options).fit(
                small[:3000], y[:3000], large=large[:3000], **(fit or {})
            )
            made = cal.decide(small[3000:], large=large[3000:])
            columns = (
                "accept",
                "label",
                "answer",
                "confidence",
                "score",
                "probabilities",
                "answered_by",
            )
            checked = mc.verify(cal, small[3000:], y[3000:], large=large[3000:])
            said = {column: getattr(made, column) for column in columns} | {
                "large_score": made.later_scores[:, 0]
            }
            return {**said, **certificate(cal.certificate_), "verify": str(checked)}

        return f"cascade/{title}", said

    accuracy = mc.MinAccuracy(0.93)
    for score in ("entropy", "margin", "energy"):
        yield case(f"loss/{score}", promise=mc.MaxLoss(0.02), score=score)
        yield case(f"accuracy/{score}", promise=accuracy, score=score)
    yield case("loss/large score", promise=mc.MaxLoss(0.02), large_score="margin")
    yield case("loss/temperature", promise=mc.MaxLoss(0.02), calibrator="temperature")
    yield case("loss/delta", promise=mc.MaxLoss(0.03, delta=0.01))
    yield case("loss/thresholds from", {"thresholds_from": small[3000:]}, promise=mc.MaxLoss(0.02))
    yield case("accuracy/nobody", promise=mc.MinAccuracy(0.85), people=False)
    yield case("accuracy/review", promise=accuracy, review_cost=2.0)


def from_classifiers() -> Iterator[Case]:
    """Gates around classifiers."""
    from sklearn.datasets import load_digits
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(17).permutation(len(y))
    x, y = x[order] / 16.0, y[order]
    fitted = FrozenEstimator(LogisticRegression(C=0.01, max_iter=2000).fit(x[:500], y[:500]))
    of_rows = np.random.default_rng(19).integers(500, size=1000)

    def case(title: str, estimator: Any, fit: Fit | None = None) -> Case:
        def said() -> dict[str, Any]:
            cal = estimator.fit(x[500:1500], y[500:1500], **(fit or {}))
            probabilities = cal.predict_proba(x[1500:], rejected="uniform")
            answers = {"label": cal.predict(x[1500:]), "probabilities": probabilities}
            if cal.get_params()["estimator"] is None or not hasattr(cal.gate_, "certificate_"):
                return answers
            return {**answers, "accept": cal.accepts(x[1500:]), **certificate(cal.certificate_)}

        return f"classifier/{title}", said

    accuracy = mc.MinAccuracy(0.95)
    yield case("fitted", wrapped(fitted, accuracy))
    yield case("fitted/margin", wrapped(fitted, mc.MaxMiscoverage(0.1), score="margin"))
    yield case("fitted/no promise", wrapped(fitted, None))
    yield case("fitted/units", wrapped(fitted, accuracy), units(of_rows))
    yield case("held out", wrapped(LogisticRegression(C=0.01, max_iter=2000), accuracy))
    yield case("cross-fitted", wrapped(LogisticRegression(C=0.01, max_iter=2000), accuracy, cv=3))
    yield case("decision values", wrapped(LinearSVC(C=0.01), accuracy, calibrator="temperature"))


def from_pools() -> Iterator[Case]:
    """Labels asked for one by one."""
    rows = table("cifar10-resnet110")

    def case(title: str, promise: Any, **options: Any) -> Case:
        def said() -> dict[str, Any]:
            asking = mc.Certifier(promise, rows.fit, **options)
            while not asking.finished and asking.n_labels < 900:
                asked = asking.propose()
                asking = asking.update(asked, labels=rows.labels[asked])
            gate = asking.gate()
            made = gate.decide(mc.Rows(rows.new))
            return {
                "accept": made.accept,
                "score": made.score,
                "labels": asking.n_labels,
                **certificate(gate.certificate),
            }

        return f"pool/{title}", said

    yield case("accuracy", mc.MinAccuracy(0.93), labels=800)
    yield case("accuracy/extensible", mc.MinAccuracy(0.93), labels=400, may_extend=True)
    yield case("miscoverage", mc.MaxMiscoverage(0.2), random_state=1)


def from_measures() -> Iterator[Case]:
    """What `evaluate`, `verify` and a plain calibrator say."""
    for name in ("cifar10-resnet110", "three"):
        rows = table(name)
        for title, promise in promises(rows.n_classes).items():
            if title.endswith((" 0.1", "number", "together")):

                def said(rows: Table = rows, promise: Any = promise) -> dict[str, Any]:
                    cal = meta(promise, calibrator="temperature").fit(rows.fit, rows.labels)
                    measured = mc.evaluate(cal, rows.new, rows.new_labels, n_resamples=100)
                    checked = mc.verify(cal, rows.new, rows.new_labels)
                    said = {
                        "facts": measured.to_dict(),
                        "evaluate": str(measured),
                        "verify": str(checked),
                    }
                    return {**said, "report": page(cal, rows)}

                yield f"measured/{name}/{title}", said


def page(gate: Any, rows: Table) -> str:
    """The report on the rows held out."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        mc.report(gate, rows.new, rows.new_labels, path, title="frozen")
        return path.read_text(encoding="utf-8")


def from_sides() -> Iterator[Case]:
    """Promises about what rows of two classes are called, for all rows and for each group."""
    plain = table("two")
    rng = np.random.default_rng(23)
    rare = (rng.random(2250) < 0.12).astype(np.intp)
    odds = rng.normal(size=2250) + 3.5 * rare - 2.0
    tied = np.column_stack([np.zeros(2250), odds.round(1)])
    tables = {
        "two": plain,
        "rare": Table(
            np.column_stack([np.zeros(2000), odds[:2000]]),
            rare[:2000],
            np.column_stack([np.zeros(250), odds[2000:]]),
            rare[2000:],
        ),
        "tied": Table(tied[:2000], rare[:2000], tied[2000:], rare[2000:]),
    }
    precision, recall = mc.MinPrecision(0.8), mc.MinRecall(0.9)
    asked = {
        "precision": precision,
        "precision of the first": mc.MinPrecision(0.97, positive=0),
        "precision declared": mc.MinPrecision(0.8, share=0.12),
        "recall": recall,
        "recall of the first": mc.MinRecall(0.95, positive=0),
        "false positives": mc.MaxFalsePositiveRate(0.05),
        "precision and recall": mc.TwoSided(precision, recall),
        "false positives and recall": mc.TwoSided(mc.MaxFalsePositiveRate(0.05), recall),
        "two precisions": mc.TwoSided(
            mc.MinPrecision(0.8, share=0.12), mc.MinPrecision(0.97, positive=0)
        ),
        "out of reach": mc.TwoSided(mc.MinPrecision(0.999), mc.MinRecall(0.9999)),
    }
    for name, rows in tables.items():
        for title, promise in asked.items():
            yield gate_case(f"sides/{name}/{title}", rows, meta(promise))
    rows = tables["rare"]
    clusters = units(np.random.default_rng(29).integers(1200, size=len(rows.fit)))
    for title in ("precision", "precision and recall"):
        for options in ({}, {"shares": "each"}, {"shares": "fcr"}, {"fallback": "pooled"}):
            promise, fit = per_group(asked[title], groups_of(len(rows.fit)), **options)
            new = groups(groups_of(len(rows.new)))
            yield gate_case(f"sides/group/{title}/{options}", rows, meta(promise), fit, new)
        yield gate_case(f"sides/units/{title}", rows, meta(asked[title]), clusters)
        every_row = {"units": mc.Units(clusters["units"], per="row")}
        yield gate_case(f"sides/every row/{title}", rows, meta(asked[title]), every_row)


def from_clusters() -> Iterator[Case]:
    """Clusters whose every row counts, by rows and by their means."""
    rows = table("three")
    n = len(rows.fit)
    rng = np.random.default_rng(31)
    pairs, uneven = np.arange(n) // 2, np.sort(rng.integers(n // 5, size=n))
    counted = {
        "pairs by row": mc.Units(pairs, per="row", largest=2),
        "uneven by row": mc.Units(uneven, per="row"),
        "uneven by mean": mc.Units(uneven, per="mean"),
    }
    asked = {
        "accuracy": mc.MinAccuracy(0.85),
        "miscoverage": mc.MaxMiscoverage(0.2),
        "review": mc.MaxReview(0.3),
        "out of reach": mc.MinAccuracy(0.99),
    }
    for kind, value in counted.items():
        for title, promise in asked.items():
            yield gate_case(f"clusters/{kind}/{title}", rows, meta(promise), {"units": value})
    weighted = {"units": counted["pairs by row"], "importance": 1.0 + (rows.labels == 1) * 1.5}
    yield gate_case("clusters/weighted", rows, meta(asked["accuracy"]), weighted)
    refused = mc.PerClass(mc.MinAccuracy(0.85))
    yield gate_case("clusters/per class", rows, meta(refused), {"units": counted["uneven by mean"]})


def from_long_tables() -> Iterator[Case]:
    """Tables that are counted because they are too long to sort."""
    asked = {
        **{f"accuracy {delta}": mc.MinAccuracy(0.9, delta=delta) for delta in (0.1, None)},
        **{f"miscoverage {delta}": mc.MaxMiscoverage(0.1, delta=delta) for delta in (0.1, None)},
        **{f"review {delta}": mc.MaxReview(0.3, delta=delta) for delta in (0.1, None)},
        "out of reach": mc.MinAccuracy(0.9999),
    }
    rows = table("cifar10-resnet110")
    for title, promise in asked.items():
        name, said = gate_case(f"long/{title}", rows, meta(promise))
        yield name, counted_not_sorted(said)
    for score in ("margin", "energy"):
        name, said = gate_case(f"long/{score}", rows, meta(mc.MinAccuracy(0.9), score=score))
        yield name, counted_not_sorted(said)


def counted_not_sorted(said: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The same case with a limit so low that no table is sorted."""

    def said_of_counts() -> dict[str, Any]:
        max_sorted_rows = long_rows.MAX_SORTED_ROWS
        long_rows.MAX_SORTED_ROWS = 100
        try:
            return said()
        finally:
            long_rows.MAX_SORTED_ROWS = max_sorted_rows

    return said_of_counts


FAMILIES = (
    from_promises,
    from_calibrators,
    from_scores,
    from_inputs,
    from_counting,
    from_sides,
    from_clusters,
    from_long_tables,
    from_marks,
    from_cascades,
    from_classifiers,
    from_pools,
    from_measures,
)
