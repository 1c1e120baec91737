"""Rows that a gate was fitted on do not judge it: not in another order, not in part, and by no
verb.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

import metacal as mc
from metacal.certificates.fingerprint import (
    MAX_COINCIDENCE_PROBABILITY,
    RowSketch,
    find_overlap,
    fingerprint_rows,
)
from metacal.cli import main
from metacal.reports.summary import summarise

N = 1500


def logits_and_labels(n, seed, gap=3.0, classes=4):
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    return rng.normal(size=(n, classes)) + gap * np.eye(classes)[labels], labels


TABLE, LABELS = logits_and_labels(2 * N, seed=0)
LARGE = TABLE + 2.0 * np.eye(4)[LABELS]
CORRECT = TABLE.argmax(axis=1) == LABELS
AGREES = TABLE.argmax(axis=1) == LARGE.argmax(axis=1)
MARKS = TABLE.max(axis=1)
SITES = np.where(np.arange(2 * N) % 2 == 0, "north", "south")
FIT, NEW = np.arange(N), np.arange(N, 2 * N)


class LogitsGate:
    """A gate on logits, and what its verbs read of some rows."""

    promise = mc.MinAccuracy(0.9)
    #: Whether `evaluate` takes such a gate.
    is_measured = True

    def fit(self, rows):
        return mc.MetaCal(self.promise).fit(TABLE[rows], LABELS[rows])

    def given(self, rows):
        return (TABLE[rows], LABELS[rows]), {}


class CostGate(LogitsGate):
    promise = mc.MaxCost(20, 2)


class ClassGate(LogitsGate):
    promise = mc.PerClass(mc.MinAccuracy(0.8))


class BothLimits(LogitsGate):
    promise = mc.Both(alpha=0.9, beta=0.5)


class GroupGate(LogitsGate):
    promise = mc.PerGroup(mc.MinAccuracy(0.8))

    def fit(self, rows):
        return mc.MetaCal(self.promise).fit(TABLE[rows], LABELS[rows], groups=SITES[rows])

    def given(self, rows):
        return (TABLE[rows], LABELS[rows]), {"groups": SITES[rows]}


class BudgetGate(LogitsGate):
    """Fitted without labels, verified with them."""

    promise = mc.MaxReview(0.2)

    def fit(self, rows):
        return mc.MetaCal(self.promise).fit(TABLE[rows])


class ScoredGate(LogitsGate):
    def fit(self, rows):
        return mc.ScoreGate(self.promise).fit(MARKS[rows], CORRECT[rows])

    def given(self, rows):
        return (MARKS[rows], CORRECT[rows]), {}


class TableCascade(LogitsGate):
    def fit(self, rows):
        return mc.Cascade(mc.MaxLoss(0.05)).fit(TABLE[rows], LABELS[rows], large=LARGE[rows])

    def given(self, rows):
        return (TABLE[rows], LABELS[rows]), {"large": LARGE[rows]}


class ScoreCascade(LogitsGate):
    is_measured = False

    def fit(self, rows):
        return mc.Cascade(mc.MaxLoss(0.05)).fit(scores=[MARKS[rows]], agrees=[AGREES[rows]]).gate_

    def given(self, rows):
        return (MARKS[rows],), {"agrees": AGREES[rows]}


class Classifier(LogitsGate):
    def fit(self, rows):
        train = logits_and_labels(300, seed=5)
        classifier = FrozenEstimator(LogisticRegression().fit(*train))
        return mc.CalibratedClassifier(classifier, self.promise).fit(TABLE[rows], LABELS[rows])


KINDS = [
    *(LogitsGate, CostGate, ClassGate, BothLimits, GroupGate, BudgetGate),
    *(ScoredGate, TableCascade, ScoreCascade, Classifier),
]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_fit_do_not_judge_in_any_order(kind):
    fitted = kind().fit(FIT)
    for rows in (FIT, np.random.default_rng(1).permutation(FIT)):
        given, options = kind().given(rows)
        found = mc.verify(fitted, *given, **options)
        assert (found.verdict.word, found.refuted, found.tests, found.p_value) == (
            "not judged",
            False,
            (),
            None,
        )
        assert found.verdict.fit_rows.n_fit_rows == N
        assert f"all {N:,} rows were part of the fit" in str(found)
        told = found.to_dict()
        assert (told["verdict"], told["fit_rows"]["n_fit_rows"]) == ("not judged", N)
    new, new_options = kind().given(NEW)
    assert mc.verify(fitted, *new, **new_options).verdict.word in ("kept", "undecided", "refuted")
    if not kind.is_measured:
        return
    measured = mc.evaluate(fitted, *given, **options, n_resamples=0)
    assert (measured.verdict.word, measured.verdict.kept) == ("not judged", False)
    assert "measured  not judged: all 1,500 rows were part of the fit." in str(measured)
    promise = measured.to_dict()["promise"]
    assert (promise["verdict"], promise["kept"], promise["value"]) == ("not judged", False, None)
    assert mc.evaluate(fitted, *new, **new_options, n_resamples=0).fit_rows is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_partial_overlap_is_not_judged_and_counted(kind):
    fitted = kind().fit(FIT)
    rows = np.random.default_rng(2).permutation(np.arange(N - 500, N + 1000))
    given, options = kind().given(rows)
    found = mc.verify(fitted, *given, **options)
    assert found.verdict.word == "not judged"
    assert found.verdict.fit_rows.is_estimate
    assert found.verdict.fit_rows.n_fit_rows == pytest.approx(500, abs=150)
    assert "Leave out the rows that were part of the fit." in found.advice
    if kind.is_measured:
        assert mc.evaluate(fitted, *given, **options, n_resamples=0).verdict.word == "not judged"


def test_the_report_has_the_same_verdict():
    gate = LogitsGate().fit(FIT)
    promise = summarise(TABLE[FIT[::-1]], LABELS[FIT[::-1]], gate, n_resamples=0).promise
    assert (promise.verdict, promise.fit_rows.n_fit_rows) == ("not judged", N)
    assert [verdict["value"] for verdict in promise.verdicts] == [None]
    assert summarise(TABLE[NEW], LABELS[NEW], gate, n_resamples=0).promise.fit_rows is None


def test_a_gate_from_a_file_knows_its_rows(tmp_path):
    gate = LogitsGate().fit(FIT)
    gate.save(tmp_path / "gate.json")
    assert (
        mc.load(tmp_path / "gate.json").verify(TABLE[FIT[::-1]], LABELS[FIT[::-1]]).verdict.word
        == "not judged"
    )
    assert mc.load_gate(tmp_path / "gate.json").row_hash_sample == gate.gate_.row_hash_sample


def test_rows_that_were_labelled_are_known_and_the_rest_of_the_pool_judges():
    certifier = mc.Certifier(mc.MinAccuracy(0.9), MARKS[FIT], labels=600)
    while len(rows := certifier.propose()):
        certifier.update(rows, CORRECT[FIT][rows])
    gate = certifier.gate()
    labelled = certifier.answers.has_answer
    assert (
        mc.verify(gate, MARKS[FIT][labelled], CORRECT[FIT][labelled]).verdict.word == "not judged"
    )
    assert (
        mc.verify(gate, MARKS[FIT][~labelled], CORRECT[FIT][~labelled]).verdict.word != "not judged"
    )
    whole = mc.verify(gate, MARKS[FIT], CORRECT[FIT]).verdict
    assert (whole.word, whole.fit_rows.n_fit_rows, whole.fit_rows.n_rows) == (
        "not judged",
        labelled.sum(),
        N,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(3)
    shuffled, mixed = rng.permutation(FIT), rng.permutation(np.arange(N - 700, N + 700))
    for name, rows in {"val": FIT, "shuffled": shuffled, "mixed": mixed, "new": NEW}.items():
        np.savez(home / f"{name}.npz", logits=TABLE[rows], labels=LABELS[rows])
    assert (
        run("fit", home / "val.npz", "--min-accuracy", 0.9, "-o", home / "cal.json").exit_code == 0
    )
    return home


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.mark.parametrize("name", ["val", "shuffled", "mixed", "new"])
def test_commands_have_the_same_verdict(folder, name):
    file = folder / f"{name}.npz"
    done = run("verify", folder / "cal.json", file, "--json")
    told = json.loads(done.stdout)
    expected = "kept" if name == "new" else "not judged"
    assert (done.exit_code, told["verdict"]) == (0 if name == "new" else 1, expected)
    assert run("verify", folder / "cal.json", file).stdout.startswith(f"{expected}: ")
    done = run("evaluate", folder / "cal.json", file, "--json", "--resamples", 0)
    assert (done.exit_code, json.loads(done.stdout)["promise"]["verdict"]) == (0, expected)
    page = folder / "page.html"
    done = run("report", folder / "cal.json", file, "--json", "--resamples", 0, "-o", page)
    assert (done.exit_code, json.loads(done.stdout)["promise"]["verdict"]) == (0, expected)


def test_start_does_not_judge_the_rows_that_it_fits(folder):
    done = run("start", folder / "val.npz", "--yes", "-o", folder / "started")
    assert done.exit_code == 0, done.output
    assert "from         1,045 calibration rows" in done.stdout
    assert "rows         450 of" in done.stdout
    assert "not judged" not in done.stdout
    page = (folder / "started" / "val.report.html").read_text().replace(": ", ":")
    assert '"verdict":"not judged"' not in page


# ── coincidence ───────────────────────────────────────────────────────────────────────────────────

SCORES = {
    "continuous": lambda rng, n: rng.random(n),
    "four decimals": lambda rng, n: rng.beta(8, 1, n).round(4),
    "two decimals": lambda rng, n: rng.random(n).round(2),
    "five marks": lambda rng, n: rng.integers(1, 6, n).astype(float),
    "mostly one mark": lambda rng, n: np.minimum(rng.geometric(0.9, n), 5).astype(float),
    "one value": lambda rng, n: np.ones(n),
    "repeated rows": lambda rng, n: rng.integers(3 * n, size=n) / 7.0,
}


@pytest.mark.parametrize("name", SCORES)
def test_disjoint_samples_of_one_population_are_judged(name):
    rng = np.random.default_rng(4)
    for n_fit, n_new, draws in [
        (20, 20, 60),
        (20, 2000, 20),
        (50, 50, 60),
        (1000, 100, 20),
        (100_000, 100_000, 1),
    ]:
        for _ in range(draws):
            fit, new = SCORES[name](rng, n_fit), SCORES[name](rng, n_new)
            known = fingerprint_rows(fit, rng.random(n_fit) < 0.95)
            assert (
                find_overlap(known.data_hash, known.sketch, new, rng.random(n_new) < 0.95) is None
            )


def test_a_shift_to_fewer_values_is_no_overlap():
    """New rows that have only a few of the scores: nearly every one of them occurs among the
    calibration rows.
    """
    rng = np.random.default_rng(5)
    for _ in range(40):
        fit, new = rng.random(3000).round(4), (0.9 + 0.1 * rng.random(300)).round(4)
        known = fingerprint_rows(fit, np.ones(3000, dtype=bool))
        assert find_overlap(known.data_hash, known.sketch, new, np.ones(300, dtype=bool)) is None


def test_equal_counts_are_evidence_only_where_they_are_improbable():
    rng = np.random.default_rng(6)
    marks, correct = rng.integers(1, 6, 400).astype(float), rng.random(400) < 0.9
    known = fingerprint_rows(marks, correct)
    order = rng.permutation(400)
    assert (
        find_overlap(known.data_hash, known.sketch, marks[order], correct[order]).n_fit_rows == 400
    )
    all_alike = fingerprint_rows(np.ones(400), np.ones(400, dtype=bool))
    assert (
        find_overlap(all_alike.data_hash, all_alike.sketch, np.ones(400), np.ones(400, dtype=bool))
        is None
    )


def test_the_smallest_overlap_follows_from_the_level():
    rng = np.random.default_rng(7)
    fit, other = rng.random(200), rng.random(200)
    known = fingerprint_rows(fit, np.ones(200, dtype=bool))
    fewest = next(x for x in range(1, 100) if 0.5**x <= MAX_COINCIDENCE_PROBABILITY)
    for n_common in (fewest - 1, fewest):
        rows = np.concatenate([fit[:n_common], other])
        found = find_overlap(known.data_hash, known.sketch, rows, None)
        assert (found is not None) == (n_common == fewest)
    assert found.n_fit_rows == fewest


def test_scores_that_differ_in_the_last_bits_are_the_same_rows():
    rng = np.random.default_rng(8)
    scores, correct = rng.random(5000), rng.random(5000) < 0.9
    known = fingerprint_rows(scores, correct)
    noisy = scores * (1.0 + rng.uniform(-(2.0**-44), 2.0**-44, 5000))
    assert not find_overlap(known.data_hash, known.sketch, noisy, correct).is_estimate
    border = scores.copy()
    border[:20] += 1e-6  # rows that a kernel rounds to another number
    assert find_overlap(known.data_hash, known.sketch, border, correct).n_fit_rows >= 4800


@pytest.mark.parametrize("cut", [1, 700, 70_000])
def test_fingerprints_of_blocks_add_up_in_any_order(cut):
    rng = np.random.default_rng(9)
    scores, correct = rng.random(150_000).round(5), rng.random(150_000) < 0.9
    whole = fingerprint_rows(scores, correct)
    parts = fingerprint_rows(scores[cut:], correct[cut:]) + fingerprint_rows(
        scores[:cut], correct[:cut]
    )
    assert (parts.data_hash, parts.sketch) == (whole.data_hash, whole.sketch)


@pytest.mark.parametrize(
    "change",
    [
        {"bound": "0" * 16},
        {"bound": "F" * 16},
        {"hashes": "0"},
        {"counts": "9" * 200},
        {"n_rows": 5},
        {"hashes": "f" * 16 * 200},
    ],
)
def test_a_sketch_that_cannot_be_is_refused(change):
    sketch = fingerprint_rows(np.random.default_rng(0).random(200), np.ones(200, dtype=bool)).sketch
    assert RowSketch(**vars(sketch)) == sketch
    with pytest.raises(mc.InputError):
        replace(sketch, **change)


def test_a_file_has_a_digest_and_a_sketch_or_neither(folder):
    gate = mc.load_gate(folder / "cal.json")
    with pytest.raises(mc.errors.ArtifactError, match="both data_hash and sketch, or neither"):
        mc.save(replace(gate, row_hash_sample=None), folder / "half.json")
