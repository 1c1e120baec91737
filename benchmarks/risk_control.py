"""The rows of MAPIE's table of risk control, done here on the same data.

    python -m benchmarks.risk_control [--draws 100] [--jobs 1] [-o RESULT.json]

Strips of four handwritten digits (scikit-learn's, real images): the labels of a row are the digits
that it shows, a small network gives a score for each. One calibration set of 300 rows at a time;
what each rule accepts is judged on all 20,000. The pixels of a picture: strips of digits under
noise, 8 x 32 pixels; those with ink (half of the darkest, or more) are to be found, by a logistic
regression on the 25 pixels around each. Precision wants as many labels as possible, recall and a
false-positive rate as few, or as many, as keep them. A mean precision is that of rows, and a row
that is given no label counts as wrong, as MAPIE has it. MAPIE's rows need `pip install mapie==1.6`;
without it those that are committed stay: nothing of metacal is in them. Of its corrections and
bounds all are tried.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order

N, DELTA = 300, 0.1
COMMITTED = Path(__file__).parent / "results" / "risk-control.json"
#: What is promised in each row, and whether more labels are better.
ROWS = {
    "one label, precision": (0.9, True),
    "one label, recall": (0.9, False),
    "one label, false positives": (0.1, True),
    "several labels, precision of each": (0.9, True),
    "several labels, lower precision of each": (0.8, True),
    "several labels, mean precision": (0.9, True),
    "several labels, lower mean precision": (0.8, True),
    "several labels, recall": (0.9, False),
    "several labels, recall in expectation": (0.9, False),
    "pixels, mean precision": (0.9, True),
    "pixels, recall": (0.9, False),
    "pixels, recall in expectation": (0.9, False),
    "one label, negative predictive value": (0.95, True),
    "classes, precision of each": (0.8, True),
}
#: The digit that is looked for where there is one label, and the share of training strips that show
#: one.
DIGIT, SHARE = 3, 0.34


@cache
def population() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scores and truths of strips, (20000, 10) each; probabilities and classes of single ones."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    found, rng = load_digits(), np.random.default_rng(0)
    order = rng.permutation(len(found.target))
    images, digits = found.data[order] / 16.0, found.target[order]

    def strips(first: int, last: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        four = rng.integers(first, last, size=(n, 4))
        shown = np.zeros((n, 10), dtype=bool)
        np.put_along_axis(shown, digits[four], True, axis=1)
        return images[four].reshape(n, -1), shown

    with warnings.catch_warnings(action="ignore"):
        network = MLPClassifier((64,), max_iter=30, random_state=0).fit(*strips(0, 900, 6000))
        single = LogisticRegression(max_iter=300).fit(images[:300, ::2], digits[:300])
    rows, shown = strips(900, len(digits), 20_000)
    return network.predict_proba(rows), shown, single.predict_proba(images[900:, ::2]), digits[900:]


@cache
def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Chance of ink and ink of each pixel of 3,000 strips of digits under noise, (3000, 256)."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    rng, digits = np.random.default_rng(3), load_digits().images / 16.0
    clean = np.concatenate(digits[rng.integers(len(digits), size=(4, 3400))], axis=2)
    padded = np.pad(
        clean + 0.5 * rng.normal(size=clean.shape), ((0, 0), (2, 2), (2, 2)), mode="edge"
    )
    around = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(1, 2)).reshape(
        len(clean), -1, 25
    )
    ink = (clean >= 0.5).reshape(len(clean), -1)
    model = LogisticRegression(max_iter=300).fit(around[:400].reshape(-1, 25), ink[:400].ravel())
    chance = model.predict_proba(around[400:].reshape(-1, 25))[:, 1]
    return chance.reshape(-1, 256), ink[400:]


def table_of(row: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores and truths that a row of several labels, or of pixels, is about."""
    return pictures() if row.startswith("pixels") else population()[:2]


def outcome(row: str, given: np.ndarray) -> dict[str, float]:
    """How many labels a row of the data is given, and whether that breaks what is promised."""
    digits, level = population()[3], ROWS[row][0]
    if row.startswith("classes"):
        answered = given >= 0
        right = [np.mean(digits[given == k] == k) for k in range(10) if (given == k).any()]
        return {
            "labels": float(answered.mean()),
            "broken": float(bool(right) and min(right) < level),
        }
    truth = table_of(row)[1]
    truth = truth[:, DIGIT] if given.ndim == 1 else truth
    if row.endswith("value"):  # given are the rows that are called negative
        return {
            "labels": float(given.mean()),
            "broken": float(given.any() and (~truth[given]).mean() < level),
        }
    if row.endswith("precision of each"):
        broken = (
            min([truth[own, k].mean() for k, own in enumerate(given.T) if own.any()], default=1.0)
            < level
        )
    elif row.endswith("precision") and given.ndim == 2:
        broken = (
            given.any()
            and ((given & truth).sum(axis=1) / np.maximum(given.sum(axis=1), 1)).mean() < level
        )
    elif row.endswith("precision"):
        broken = given.any() and truth[given].mean() < level
    elif row.endswith("positives"):
        broken = given[~truth].mean() > level
    else:  # of several labels the mean share of a row's
        broken = (given & truth).sum() / truth.sum() < level
        if given.ndim == 2:
            broken = ((given & truth).sum(axis=1) / truth.sum(axis=1)).mean() < level
    return {"labels": float(given.sum() / len(given)), "broken": float(broken)}


def drawn(row: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One calibration set."""
    (scores, shown), (_, _, single, digits) = table_of(row), population()
    rng = np.random.default_rng([seed, 5])
    if row.startswith("classes"):
        rows = rng.choice(len(digits), N, replace=False)
        return single[rows], digits[rows]
    rows = rng.choice(len(scores), N, replace=False)
    return (
        (scores[rows, DIGIT], shown[rows, DIGIT])
        if row.startswith("one")
        else (scores[rows], shown[rows])
    )


def ours(row: str, seed: int) -> dict[str, dict[str, float]]:
    """What our rules accept."""
    score, truth = drawn(row, seed)
    scores, single, level = table_of(row)[0], population()[2], ROWS[row][0]

    def labels(promise: object) -> np.ndarray:
        return mc.ScoreGate(promise).fit(score, truth).accepts(scores)  # type: ignore[arg-type]

    def called(promise: object, column: object = None) -> np.ndarray:
        own = (
            (score, truth, scores[:, DIGIT])
            if column is None
            else [t[:, column] for t in (score, truth, scores)]
        )
        cal = mc.MetaCal(promise, input="probabilities", positive=1, reject_label=-1)  # type: ignore[arg-type]
        return np.asarray(cal.fit(own[0], own[1].astype(int)).predict(own[2]))

    def each() -> np.ndarray:
        """A gate for each label at a tenth of delta, its share declared; those that certify nothing
        give no label.
        """
        given = np.zeros(scores.shape, dtype=bool)
        for k in range(10):
            with suppress(mc.InfeasibleTargetError):
                given[:, k] = called(mc.MinPrecision(level, delta=DELTA / 10, share=SHARE), k) == 1
        return given

    def one_right_label(delta: float | None) -> np.ndarray:
        """The recall of a row is the chance that a random one of its labels is found: one is drawn
        of each row.
        """
        rng = np.random.default_rng([seed, 6])
        chosen = np.argmax(np.where(truth, rng.random(truth.shape), -1.0), axis=1)
        gate = mc.ScoreGate(mc.MaxMiscoverage(round(1.0 - level, 9), delta)).fit(
            score[np.arange(N), chosen], np.ones(N, dtype=bool)
        )
        return gate.gate_.accepts(scores.ravel()).reshape(scores.shape)

    each_precision = mc.PerGroup(mc.MinAccuracy(level, DELTA))
    by_rows = {
        "mean precision": {"MinAccuracy": lambda: labels(mc.MinAccuracy(level, DELTA))},
        "recall": {
            "MaxMiscoverage": lambda: labels(mc.MaxMiscoverage(round(1.0 - level, 9), DELTA)),
            "a label of each row": lambda: one_right_label(DELTA),
        },
        "recall in expectation": {"a label of each row": lambda: one_right_label(None)},
    }
    ways = {
        "one label, precision": {
            "MinPrecision": lambda: called(mc.MinPrecision(level, delta=DELTA, share=SHARE)) == 1
        },
        "one label, recall": {"MinRecall": lambda: called(mc.MinRecall(level, delta=DELTA)) != 0},
        "one label, false positives": {
            "MaxFalsePositiveRate": lambda: called(mc.MaxFalsePositiveRate(level, delta=DELTA)) == 1
        },
        "one label, negative predictive value": {
            "MinPrecision": lambda: (
                called(mc.MinPrecision(level, positive=0, delta=DELTA, share=1.0 - SHARE)) == 0
            )
        },
        "classes, precision of each": {
            "PerClass": lambda: np.asarray(
                mc.MetaCal(
                    mc.PerClass(mc.MinAccuracy(level, DELTA)),
                    input="probabilities",
                    reject_label=-1,
                )
                .fit(score, truth)
                .predict(single)
            )
        },
    }
    if row.endswith("precision of each") and row.startswith("several"):
        chosen = {"MinPrecision of each": each, "PerGroup": lambda: labels(each_precision)}
    else:
        chosen = ways.get(row) or by_rows[row.split(", ")[1].removeprefix("lower ")]
    return {name: outcome(row, _or_none(row, way)) for name, way in chosen.items()}


def _or_none(row: str, way: Callable[[], np.ndarray]) -> np.ndarray:
    """What a rule accepts; nothing where it certifies nothing, everything where that is the safe
    side.
    """
    scores, single = table_of(row)[0], population()[2]
    with warnings.catch_warnings(action="ignore"):
        try:
            return way()
        except (mc.InfeasibleTargetError, ValueError):
            if row.startswith("classes"):
                return np.full(len(single), -1)
            return np.full(len(scores) if row.startswith("one") else scores.shape, not ROWS[row][1])


def peers(row: str, seed: int) -> dict[str, dict[str, float]]:
    """What MAPIE's controllers accept."""
    control = importlib.import_module("mapie.risk_control")
    risks = importlib.import_module("mapie.risk_control.risks")
    score, truth = drawn(row, seed)
    scores, single = table_of(row)[0], population()[2]
    level, confidence = ROWS[row][0], 1.0 - DELTA

    def binary(risk: str, best: str, how: str, column: int | None = None) -> np.ndarray:
        sure = confidence if column is None else 1.0 - DELTA / 10
        mine = (
            (score, truth, scores[:, DIGIT])
            if column is None
            else [t[:, column] for t in (score, truth, scores)]
        )
        own = control.BinaryClassificationController(
            lambda p: np.column_stack([1.0 - p, p]), risk, level, sure, best, fwer_method=how
        )
        own.calibrate(mine[0], mine[1].astype(int))
        return np.asarray(own.predict(mine[2])).astype(bool)

    def each(how: str) -> np.ndarray:
        given = np.zeros(scores.shape, dtype=bool)
        for k in range(10):
            with suppress(ValueError):
                given[:, k] = binary("precision", "recall", how, k)
        return given

    def several(**options: object) -> np.ndarray:
        kind = "SemanticSegmentation" if row.startswith("pixels") else "MultiLabelClassification"
        own = getattr(control, f"{kind}Controller")(
            lambda p: p, target_level=level, random_state=0, **options
        )
        own.calibrate(score, truth.astype(int))
        return scores > float(np.ravel(own.best_predict_param)[0])

    def negative(how: str) -> np.ndarray:
        own = control.BinaryClassificationController(
            lambda p: np.column_stack([1.0 - p, p]), "negative_predictive_value", level, confidence,
            "predicted_positive_fraction", fwer_method=how,
        )  # fmt: skip
        own.calibrate(score, truth.astype(int))
        return ~np.asarray(own.predict(scores[:, DIGIT])).astype(bool)

    def classes(how: str) -> np.ndarray:
        own = control.MultiClassificationLTTController(
            lambda p: p, risks.build_precision_ovr(list(range(10))), [level] * 10, confidence,
            classes=list(range(10)), fwer_method=how,
        )  # fmt: skip
        own.calibrate(score, truth)
        return np.nan_to_num(np.asarray(own.predict(single), dtype=np.float64), nan=-1.0).astype(
            int
        )

    corrections = ("bonferroni_holm", "fixed_sequence")
    kinds = {"precision": ("precision", "recall"), "recall": ("recall", "precision"),
             "false positives": ("fpr", "recall")}  # fmt: skip
    by_how = {
        "value": negative,
        "classes": classes,
        "each": each,
        "one": lambda how: binary(*kinds[said], how),
    }
    said = row.split(", ")[1]
    kind = next((name for name in by_how if row.startswith(name) or row.endswith(name)), None)
    ways: dict[str, Callable[[], np.ndarray]]
    if kind is not None:
        ways = {how: partial(by_how[kind], how) for how in corrections}
    elif row.endswith("precision"):
        ways = {"ltt": lambda: several(risk="precision", method="ltt", confidence_level=confidence)}
    elif row.endswith("expectation"):
        ways = {"crc": lambda: several(risk="recall", method="crc")}
    else:
        ways = {
            bound: partial(
                several, risk="recall", method="rcps", rcps_bound=bound, confidence_level=confidence
            )
            for bound in ("hoeffding", "bernstein", "wsr")
        }
    return {name: outcome(row, _or_none(row, way)) for name, way in ways.items()}


def best(row: str) -> float:
    """The most labels, or the fewest, of one threshold that keeps the promise on all rows."""
    scores, single, more = table_of(row)[0], population()[2], ROWS[row][1]
    column = (
        single.max(axis=1)
        if row.startswith("classes")
        else scores[:, DIGIT]
        if row.startswith("one")
        else scores
    )
    found = []
    for threshold in np.quantile(column, np.linspace(0.0, 0.9995, 500)):
        given = column < threshold if row.endswith("value") else column >= threshold
        if row.startswith("classes"):
            given = np.where(given, single.argmax(axis=1), -1)
        seen = outcome(row, given)
        if not seen["broken"]:
            found.append(seen["labels"])
    return max(found) if more else min(found)


def one_draw(row: str, seed: int, whose: bool) -> dict[str, dict[str, float]]:
    """What MAPIE's controllers, or our rules, do with one calibration set."""
    return peers(row, seed) if whose else ours(row, seed)


def main() -> None:
    """Every row of the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out")
    options = parser.parse_args()
    there = importlib.util.find_spec("mapie") is not None
    known = json.loads(COMMITTED.read_text(encoding="utf-8"))["rows"]
    whose = ("ours", "MAPIE") if there else ("ours",)
    tasks = [
        (row, seed, who == "MAPIE")
        for row in ROWS
        for who in whose
        for seed in range(options.draws)
    ]
    answers = in_order(one_draw, tasks, options.jobs)
    bests = in_order(best, [(row,) for row in ROWS], options.jobs)
    found: dict[str, dict[str, object]] = {}
    for (row, (level, more)), most in zip(ROWS.items(), list(bests), strict=True):
        found[row] = {"level": level, "more is better": more, "best": most}
        for who in whose:
            found[row][who] = _means([next(answers) for _ in range(options.draws)])
        if not there:
            found[row]["MAPIE"] = known.get(row, {}).get("MAPIE", {})
    text = json.dumps({"delta": DELTA, "n": N, "draws": options.draws, "rows": found}, indent=1)
    print(text) if options.out is None else Path(options.out).write_text(
        text + "\n", encoding="utf-8"
    )


def _means(draws: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            key: float(np.mean([draw[name][key] for draw in draws])) for key in ("labels", "broken")
        }
        for name in draws[0]
    }


if __name__ == "__main__":
    main()
