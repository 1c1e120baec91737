"""The report's numbers: the same as everybody else's, complete, small, and honest about what they
stand on.
"""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.cli import main
from metacal.errors import InputError, MissingLabelsError
from metacal.reports.operating import (
    choose_accepted_counts,
    choose_short_thresholds,
    compute_operating_curves,
)
from metacal.reports.summary import summarise

FIT, NEW = slice(0, 3000), slice(3000, 7000)


def same(ours, theirs):
    """Equal, numbers to the last digits: sums over blocks are added in another order."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(
            same(ours[name], theirs[name]) for name in theirs
        )
    if isinstance(theirs, float):
        return ours == pytest.approx(theirs, abs=1e-12)
    return ours == theirs


@pytest.fixture(scope="module")
def data():
    return mc.datasets.load("cifar10-resnet110")


@pytest.fixture(scope="module")
def gate(data):
    return mc.MetaCal(mc.MinAccuracy(0.96)).fit(data.logits[FIT], data.labels[FIT])


@pytest.fixture(scope="module")
def summary(data, gate):
    return summarise(data.logits[NEW], data.labels[NEW], gate, n_resamples=40, seed=3)


@pytest.mark.slow
def test_metrics_evaluate_and_summary_agree(data, gate, summary, tmp_path):
    logits, labels = data.logits[NEW], data.labels[NEW]
    np.savez(tmp_path / "new.npz", logits=logits, labels=labels)
    mc.save(gate, tmp_path / "cal.json")
    argv = [
        "evaluate",
        tmp_path / "cal.json",
        tmp_path / "new.npz",
        "--json",
        "--resamples",
        40,
        "--seed",
        3,
    ]
    printed = json.loads(CliRunner().invoke(main, [str(word) for word in argv]).stdout)
    for group in ("all_rows", "accepted_rows", "gate"):
        assert same(summary.evaluation[group], printed[group]), group
    assert same(summary.evaluation["uncalibrated"], printed["uncalibrated"])
    proba, accept = gate.predict_proba(logits), gate.accepts(logits)
    correct = logits.argmax(axis=1) == labels
    kept = summary.evaluation["accepted_rows"]
    assert kept["ece"]["estimate"] == pytest.approx(
        mc.metrics.ece(proba[accept], labels[accept]), abs=1e-12
    )
    assert kept["nll"]["estimate"] == pytest.approx(
        mc.metrics.nll(proba[accept], labels[accept]), abs=1e-12
    )
    assert summary.evaluation["all_rows"]["brier"]["estimate"] == pytest.approx(
        mc.metrics.brier(proba, labels)
    )
    assert summary.evaluation["gate"]["miscoverage"]["estimate"] == mc.metrics.miscoverage(
        accept, correct
    )
    curves, here = summary.curves, summary.curves.current
    assert curves.coverage.estimate[here] == mc.metrics.coverage(accept)
    assert curves.accuracy.estimate[here] == mc.metrics.selective_accuracy(accept, correct)
    assert curves.miscoverage.estimate[here] == pytest.approx(
        mc.metrics.miscoverage(accept, correct)
    )
    after = summary.diagrams[-1]
    assert (after.stage, after.rows) == ("after", "accepted")
    table = mc.metrics.reliability_curve(proba[accept], labels[accept])
    assert np.array_equal(after.equal_width.count, table.counts)
    assert np.allclose(after.equal_width.accuracy, table.accuracy, equal_nan=True)
    gap = np.nansum(
        np.abs(after.equal_mass.accuracy - after.equal_mass.confidence) * after.equal_mass.count
    )
    assert gap / after.n_rows == pytest.approx(after.ece_equal_mass["estimate"])
    assert summary.classes["ece"].mean() == pytest.approx(
        kept["classwise_ece"]["estimate"], abs=1e-12
    )
    assert summary.promise.verdicts[0]["value"] == kept["accuracy"]["estimate"]


def test_large_tables_give_the_same_estimates_without_resampling(data, gate, summary):
    blocked = summarise(data.logits[NEW], data.labels[NEW], gate, n_resamples=0, n_jobs=2)
    for group in ("all_rows", "accepted_rows", "gate"):
        for name, value in summary.evaluation[group].items():
            ours = blocked.evaluation[group][name]
            assert ours["estimate"] == pytest.approx(value["estimate"], abs=1e-12), (group, name)
            if value["method"] == "Clopper-Pearson":
                assert ours == value
            elif name != "accuracy":
                assert ours["low"] is None
    assert blocked.settings.n_resamples == 0


def test_each_calibrator_kind_and_no_gate_at_all(data):
    logits, labels = data.logits[NEW], data.labels[NEW]
    bare = summarise(logits, labels, n_resamples=0)
    assert bare.promise is None
    assert [(found.stage, found.rows) for found in bare.diagrams] == [("before", "all")]
    assert bare.evaluation["n_accepted"] is None
    assert bare.evaluation["uncalibrated"] is None
    assert bare.curves.current is None
    assert np.isnan(bare.classes["miscoverage"]).all()
    assert bare.classes["order"] == "surest of a low accuracy first"
    assert (
        bare.classes["accuracy"][0] == bare.classes["accuracy"].min()
    )  # about as many rows in each
    fitted = mc.VectorScaling().fit(data.logits[FIT], data.labels[FIT])
    with_map = summarise(logits, labels, fitted, n_resamples=0)
    assert [(found.stage, found.rows) for found in with_map.diagrams] == [
        ("before", "all"),
        ("after", "all"),
    ]
    proba = fitted.predict_proba(logits)
    after = with_map.diagrams[-1]
    assert (after.stage, after.rows) == ("after", "all")
    assert after.ece["estimate"] == pytest.approx(mc.metrics.ece(proba, labels), abs=1e-9)
    assert with_map.source.calibrator == "VectorScaling"
    with pytest.raises(InputError, match=r"is not fitted\. Call fit first"):
        summarise(logits, labels, mc.TemperatureScaling())


def test_the_json_is_plain_complete_and_small(summary):
    text = json.dumps(summary.to_dict(), allow_nan=False)
    assert len(text) < 125_000
    again = json.loads(text)
    assert again["format"] == 1
    assert set(again) == {
        "format", "source", "settings", "promise", "evaluation", "calibration_metrics", "quantity_names", "diagrams", "curves", "frontier", "sides", "classes",
        "cases", "parts", "mistakes", "hits", "comparison", "methods",
    }  # fmt: skip
    lengths = {
        len(again["curves"][name])
        for name in ("threshold", "accepted", "min_accuracy", "max_miscoverage")
    }
    lengths |= {len(part) for name in ("coverage", "accuracy", "miscoverage")
                for part in again["curves"][name].values()}  # fmt: skip
    assert len(lengths) == 1
    assert 300 < lengths.pop() <= 420


def test_the_thresholds_of_the_page_accept_the_rows_they_say(data, gate, summary):
    scores = gate.ranking_scores(data.logits[NEW])
    curves = json.loads(json.dumps(summary.to_dict()))["curves"]
    for threshold, accepted in zip(curves["threshold"], curves["accepted"]):
        assert accept_up_to_threshold(scores, threshold).sum() == accepted
    assert curves["accepted"][-1] == len(scores)
    assert curves["accepted"][curves["current"]] == gate.accepts(data.logits[NEW]).sum()


@pytest.mark.slow
def test_the_command_of_any_point_certifies_it(data, tmp_path):
    """What the page offers for a point picked after looking at these rows works on these rows, at
    every point.
    """
    logits, labels = data.logits[:2000], data.labels[:2000]
    file = tmp_path / "val rows.npz"
    np.savez(file, logits=logits, labels=labels)
    found = summarise(
        logits,
        labels,
        file=str(file),
        command=f"metacal fit {shlex.quote(str(file))}",
        n_resamples=0,
    )
    scores, correct = (
        mc.scores.score_rows(mc.Rows(logits), "entropy"),
        logits.argmax(axis=1) == labels,
    )
    curves = found.curves
    points = range(len(curves.threshold))
    for k in points:
        promised = {"beta": curves.min_accuracy[k], "alpha": curves.max_miscoverage[k]}
        promised = {name: float(value) for name, value in promised.items() if not np.isnan(value)}
        if promised:
            certificate = mc.AfterLooking(**promised).certify(scores, correct)
            if "beta" in promised:
                assert certificate.n_accepted >= curves.accepted[k]
    for k in (120, 250, len(points) - 1):
        argv = shlex.split(
            curves.command_at(k).replace("new-gate.json", str(tmp_path / "new-gate.json"))
        )
        done = CliRunner().invoke(main, [*argv[1:], "--json"])
        assert done.exit_code == 0, done.output
        certificate = json.loads(done.stdout)["certificate"]
        assert certificate["n_accepted"] >= curves.accepted[k]
        assert certificate["target"] == pytest.approx(curves.min_accuracy[k])


def test_the_command_carries_score_and_confidence(data):
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), score="margin").fit(
        data.logits[FIT], data.labels[FIT]
    )
    found = summarise(
        data.logits[NEW], data.labels[NEW], gate, n_resamples=0, delta=0.05, file="a.npz"
    )
    assert found.curves.command_at(200).startswith("metacal fit a.npz --min-accuracy 0.")
    assert found.curves.command_at(200).endswith(
        " --score margin --confidence 0.95 -o new-gate.json"
    )
    assert f" --at-threshold={float(found.curves.threshold[200])!r} " in found.curves.command_at(
        200
    )
    own = mc.MetaCal(mc.MaxMiscoverage(0.1), score=lambda block: -block.max(axis=1).astype(float))
    own.fit(data.logits[FIT], data.labels[FIT])
    assert (
        summarise(data.logits[NEW], data.labels[NEW], own, n_resamples=0).curves.command_at(200)
        is None
    )


@pytest.mark.slow
def test_promise_and_its_verdict(data, gate, summary):
    promise = summary.promise
    assert promise.statement == gate.certificate_.statement
    assert promise.verdict == "kept"
    assert promise.fit_rows is None
    low, high = promise.verdicts[0]["low"], promise.verdicts[0]["high"]
    assert low < promise.verdicts[0]["value"] < high
    assert promise.verdicts[0]["text"].startswith("kept: ")
    assert (
        summarise(data.logits[FIT], data.labels[FIT], gate, n_resamples=0).promise.verdict
        == "not judged"
    )
    both = mc.MetaCal(mc.Both(alpha=0.2, beta=0.96)).fit(data.logits[FIT], data.labels[FIT])
    verdicts = summarise(data.logits[NEW], data.labels[NEW], both, n_resamples=0).promise.verdicts
    assert [part["quantity"] for part in verdicts] == ["selective accuracy", "miscoverage"]
    wrong = np.random.default_rng(0).permutation(data.labels[NEW])
    broken = summarise(data.logits[NEW], wrong, gate, n_resamples=0).promise
    assert broken.verdict == "refuted"


def test_striking_rows_and_classes(data, gate):
    logits, labels = data.logits[NEW], data.labels[NEW]
    names = [f"class {k}" for k in range(10)]
    found = summarise(
        logits,
        labels,
        gate,
        ids=[f"id{k}" for k in range(len(labels))],
        class_names=names,
        n_resamples=0,
    )
    scores, right = gate.ranking_scores(logits), logits.argmax(axis=1) == labels
    first = found.mistakes[0]
    assert not right[first["row"]]
    assert first["score"] == scores[~right].min()
    assert first["id"] == f"id{first['row']}"
    assert first["label"] == names[labels[first["row"]]]
    assert first["predicted"] == names[logits[first["row"]].argmax()]
    assert found.hits[0]["score"] == scores[right].max()
    assert right[found.hits[0]["row"]]
    assert len(found.mistakes) == len(found.hits) == 20
    ordered = [row["score"] for row in found.mistakes]
    assert ordered == sorted(ordered)
    table = found.classes
    worst = int(table["column"][0])
    own = labels == worst
    accept = gate.accepts(logits)
    assert table["n"][0] == own.sum()
    assert table["miscoverage"][0] == pytest.approx(mc.metrics.miscoverage(accept[own], right[own]))
    assert (np.diff(table["miscoverage"]) <= 0).all()
    assert table["n"].sum() == len(labels)


def test_string_labels_probabilities_and_comparison(data):
    logits, labels = data.logits[:1500], data.labels[:1500]
    names = [f"<{k}>" for k in range(10)]
    proba = np.exp(logits - logits.max(axis=1, keepdims=True))
    proba /= proba.sum(axis=1, keepdims=True)
    text = np.array(names)[labels]
    found = summarise(
        proba, text, classes=names, input="probabilities", n_resamples=0, compare=["temperature"]
    )
    assert found.diagrams[0].ece["estimate"] == pytest.approx(
        mc.metrics.ece(proba, labels), abs=1e-6
    )
    assert found.mistakes[0]["label"] in names
    assert {entry["name"] for entry in found.comparison["calibrators"]} == {
        "uncalibrated",
        "temperature",
    }
    finished = mc.compare(logits, labels, ["temperature"], n_repeats=1)
    assert (
        summarise(logits, labels, n_resamples=0, compare=finished).comparison == finished.to_dict()
    )
    with pytest.raises(InputError, match="class_names"):
        summarise(logits, labels, class_names=["a"])


def test_the_hash_depends_on_every_value(data):
    logits, labels = data.logits[:200].copy(), data.labels[:200].copy()
    first = summarise(logits, labels, n_resamples=0).source
    assert first.hashed == "arrays"
    logits[199, 9] += 1e-3
    assert summarise(logits, labels, n_resamples=0).source.sha256 != first.sha256
    assert (
        summarise(logits, labels, n_resamples=0, sha256="ab", file="f.npz").source.hashed == "file"
    )


@pytest.mark.parametrize("right", ["all", "none", "one"])
def test_degenerate_rows(right):
    logits = np.random.default_rng(0).normal(size=(12, 3))
    labels = logits.argmax(axis=1) if right == "all" else logits.argmin(axis=1)
    if right == "one":
        labels[0] = logits[0].argmax()
    found = summarise(logits, labels, n_resamples=0)
    json.dumps(found.to_dict(), allow_nan=False)
    assert len(found.mistakes) == {"all": 0, "none": 12, "one": 11}[right]
    assert summarise(logits[:1], labels[:1], n_resamples=0).source.n_rows == 1


def test_grid_and_thresholds_with_ties_and_odd_scores():
    ordered = np.sort(np.round(np.random.default_rng(0).normal(size=1000), 2))
    accepted = choose_accepted_counts(ordered, 400, n_gate_accepted=500)
    assert accepted[-1] == 1000
    at = choose_short_thresholds(ordered, accepted)
    assert np.array_equal(np.searchsorted(ordered, at, side="right"), accepted)
    close = np.array([1.0, np.nextafter(1.0, 2.0), -5.0, 0.0, 1e-300, 1e300])
    close.sort()
    counts = np.arange(1, 7)
    assert np.array_equal(
        np.searchsorted(close, choose_short_thresholds(close, counts), side="right"), counts
    )
    curves = compute_operating_curves(np.zeros(50), np.ones(50, dtype=bool), delta=0.1)
    assert curves.accepted.tolist() == [50]


def test_tables_that_stay_on_disk_and_many_classes(tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 1200)).astype(np.float32)
    labels = rng.integers(0, 1200, 300)
    logits[np.arange(300), labels] += 5
    np.save(tmp_path / "logits.npy", logits)
    mapped = np.load(tmp_path / "logits.npy", mmap_mode="r")
    held, stored = (summarise(table, labels, n_resamples=0) for table in (logits, mapped))
    assert same(json.loads(json.dumps(stored.to_dict())), json.loads(json.dumps(held.to_dict())))
    assert len(held.classes["name"]) == 1000
    assert held.classes["n_classes"] == 1200
    exact = np.exp(logits.astype(float) - logits.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    found = held.evaluation["all_rows"]["classwise_ece"]["estimate"]
    assert found == pytest.approx(mc.metrics.classwise_ece(exact, labels), rel=1e-4)
    assert len(json.dumps(held.to_dict())) < 250_000


# ── scores and cascades ───────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def marks():
    rng = np.random.default_rng(0)
    mark = rng.random(4000)
    right = rng.random(4000) > (1.0 - mark) ** 2
    mark[::40] = np.nan
    return mark, right


@pytest.mark.slow
def test_scores_have_the_numbers_of_evaluate_and_no_classes(marks):
    mark, right = marks
    gate = mc.ScoreGate(mc.MinAccuracy(0.85)).fit(mark[:2000], right[:2000])
    found = summarise(mark[2000:], right[2000:], gate, n_resamples=30, ids=np.arange(2000))
    assert (found.source.n_rows, found.source.n_without_score, found.source.n_classes) == (
        1950,
        50,
        0,
    )
    measured = mc.evaluate(gate, mark[2000:], right[2000:], n_resamples=30).to_dict()
    promise, verdict = measured.pop("promise"), found.promise.verdicts[0]
    assert all(
        promise[name] == verdict[name] for name in ("target", "value", "low", "high", "verdict")
    )
    assert found.evaluation == measured
    assert [(one.stage, one.rows) for one in found.diagrams] == [("after", "all")]
    assert (found.classes["n_classes"], found.classes["name"], found.parts) == (0, (), [])
    for row in (
        *found.mistakes,
        *found.hits,
    ):  # numbers of the rows that were given, those without a score among them
        assert row["id"] == str(row["row"])
        assert row["score"] == pytest.approx(-mark[2000 + row["row"]])
        assert (row["label"], row["predicted"]) == ("", "")
    json.dumps(found.to_dict(), allow_nan=False)
    with pytest.raises(InputError, match="one table of logits"):
        summarise(mark, right, gate, n_resamples=0, compare=True)


def test_scores_that_no_gate_was_fitted_on(marks):
    mark, right = marks
    bare = mc.gate.Gate.from_source(mc.gate.ScoreSource("my loss", "doubtful"))
    found = summarise(1.0 - mark, right, bare, n_resamples=0, file="a b.csv")
    assert found.promise is None
    assert found.diagrams == ()
    assert found.evaluation["n_accepted"] is None
    assert (
        found.curves.command == "metacal fit 'a b.csv' --score-key 'my loss' --higher-is doubtful"
    )
    assert found.curves.current is None
    assert np.isnan([row["confidence"] for row in found.mistakes]).all()


def test_shares_have_their_exact_interval_without_resamples(marks, data, gate):
    mark, right = marks
    scored = summarise(
        mark, right, mc.ScoreGate(mc.MinAccuracy(0.85)).fit(mark, right), n_resamples=0
    )
    for found in (scored, summarise(data.logits[NEW], data.labels[NEW], gate, n_resamples=0)):
        shares, curve = found.evaluation["gate"]["coverage"], found.evaluation["gate"]["aurc"]
        assert shares["method"] == "Clopper-Pearson"
        assert (curve["method"], curve["low"]) == ("none", None)


@pytest.mark.slow
@pytest.mark.parametrize("promise", [mc.MaxLoss(0.05), mc.MinAccuracy(0.95)])
def test_a_cascade_has_the_usual_numbers_and_who_answers(promise):
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=4000)
    small, large = (rng.normal(size=(4000, 4)) + gap * np.eye(4)[y] for gap in (2.0, 3.5))
    cascade = mc.Cascade(promise=promise).fit(small[:2000], y[:2000], large=large[:2000])
    rows = slice(2000, None)
    found = summarise(
        small[rows], y[rows], cascade, large=large[rows], n_resamples=0, class_names=list("abcd")
    )
    decision = cascade.decide(small[rows], large=large[rows])
    right = decision.answer == y[rows]
    assert found.source.n_correct == right.sum()
    measured = mc.evaluate(cascade, small[rows], y[rows], large=large[rows], n_resamples=0)
    assert found.promise.answered_by == measured.answered_by
    assert sum(one.n_rows for one in found.promise.answered_by) == 2000
    assert found.mistakes[0]["confidence"] == decision.confidence[~right].max()
    assert found.hits[0]["confidence"] == decision.confidence[right].min()
    assert found.curves.accepted[-1] == 2000
    assert found.curves.accuracy.estimate[-1] == pytest.approx(right.mean())
    assert sorted(found.classes["name"]) == sorted(found.parts[0]["name"]) == list("abcd")
    json.dumps(found.to_dict(), allow_nan=False)
    with pytest.raises(InputError, match="large"):
        summarise(small[rows], y[rows], cascade)
    few = np.where(np.arange(2000) < 5, -1, y[rows])
    with pytest.raises(MissingLabelsError, match="a label for every row"):
        summarise(small[rows], few, cascade, large=large[rows])
