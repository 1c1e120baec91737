"""A certificate that contradicts itself is refused: limits, counts and threshold are recomputed
when loading.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import metacal as mc
from metacal.certificates.counts import Traffic
from metacal.certificates.design import CertificationDesign
from metacal.certificates.number_format import (
    format_percent,
    format_percent_ceil,
    format_percent_floor,
)
from metacal.certificates.stored_fields import get_stored_values
from metacal.errors import ArtifactError
from metacal.estimators.crossfit import mark_cross_fitted
from metacal.export import saved as artifact
from metacal.io.artifact.audit import decode_certificate
from metacal.promises import paper
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.both import AfterLooking, Both
from metacal.promises.cascade import MaxLoss
from metacal.promises.case_errors import CasePromise
from metacal.promises.kinds import load_promise_classes
from metacal.promises.max_risk import Cheapest, MaxCost, MaxRisk
from metacal.promises.miscoverage import MaxMiscoverage, MaxReview
from metacal.promises.per_subgroup import Per
from metacal.promises.two_sided import SidePromise, TwoSided
from metacal.promises.verification import verify_decisions as verify
from metacal.statistics import bands

FIXTURES = Path(__file__).resolve().parents[1] / "contracts" / "fixtures" / "artifacts-v3"
GATES = sorted(FIXTURES.glob("gate-*.json"))
OTHERS = [
    FIXTURES.parent / "scores-v3.json",
    *sorted((FIXTURES.parent / "cascade-v3").glob("[al]*.json")),
]


def saved(name):
    return json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def refused(data):
    """The sentence that a file with a right checksum is refused with."""
    with pytest.raises(ArtifactError) as caught:
        artifact.loads(json.dumps({**data, "checksum": artifact.checksum(data)}).encode())
    said = str(caught.value)
    assert said.endswith(".")
    assert said.isprintable()
    return said


def remark(text):
    return {"kind": "remark", "text": text}


def recounted(certificate, n_rows, n_correct, n_accepted, n_correct_accepted):
    """The certificate with other counts and all that follows from them."""
    counts = {"n_rows": n_rows, "n_correct": n_correct, "n_accepted": n_accepted}
    traffic = {"n_rows": n_rows, "n_accepted": n_accepted, "population": "source"}
    plain = {**certificate, **counts, "n_correct_accepted": n_correct_accepted, "traffic": traffic}
    return {**plain, **decode_certificate(plain).to_dict()}


# ── each promise recomputes what it certifies ─────────────────────────────────────────────────────

PROMISES = {
    "MaxMiscoverage": [
        MaxMiscoverage(0.1),
        MaxMiscoverage(0.05, delta=0.3),
        MaxMiscoverage(0.1, delta=None),
    ],
    "MinAccuracy": [MinAccuracy(0.85), MinAccuracy(0.9, 0.3), MinAccuracy(0.85, None)],
    "Both": [Both(0.6, 0.85), Both(0.6, 0.85, delta=None)],
    "AfterLooking": [
        AfterLooking(beta=0.8),
        AfterLooking(alpha=0.2),
        AfterLooking(alpha=0.7, beta=0.8),
    ],
    "MaxReview": [MaxReview(0.2), MaxReview(0.1, delta=None)],
    "MaxCost": [MaxCost(20.0, 3.0), MaxCost(1.0, 0.2, delta=None)],
    "MaxRisk": [MaxRisk(0.15), MaxRisk(0.2, delta=None)],
    "Cheapest": [Cheapest(10.0, 1.0), Cheapest(50, 1, delta=0.3), Cheapest(0.5, 1.0)],
    "paper.MaxMiscoverage": [paper.MaxMiscoverage(0.1)],
    "paper.MinCoverageAccuracy": [
        paper.MinCoverageAccuracy(0.85),
        paper.MinCoverageAccuracy(0.7, n_bins=3),
    ],
}
EVERY = [promise for some in PROMISES.values() for promise in some]


def test_every_promise_that_can_be_saved_is_here():
    # parts: test_per_class; cascades: test_cascade_files; sides: test_two_sided; cases: test_cases
    apart = (
        Per,
        MaxLoss,
        SidePromise,
        TwoSided,
        CasePromise,
    )
    whole = {kind for kind, cls in load_promise_classes().items() if not issubclass(cls, apart)}
    assert set(PROMISES) == whole
    for kind, some in PROMISES.items():
        assert {type(promise) for promise in some} == {load_promise_classes()[kind]}


def columns(rng, n):
    """Scores and correctness; now and then tied, or all right."""
    scores = rng.random(n)
    correct = rng.random(n) > rng.choice([0.0, 0.3, 0.6]) * scores**3
    if rng.random() < 0.5:
        scores = np.round(scores, int(rng.integers(1, 4)))
    correct[:3] = True
    return scores, correct


@pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")
@pytest.mark.parametrize("promise", EVERY, ids=repr)
def test_what_is_certified_never_contradicts_itself(promise):
    rng, found = np.random.default_rng(0), 0
    for n in (4, 11, 30, 60, 100, 240, 499, 3000) * 4:
        scores, correct = columns(rng, n)
        used = promise.split_rows(correct)[0] if n >= 30 else np.ones(n, dtype=bool)
        if type(promise) is paper.MaxMiscoverage:
            used = used & correct
        try:
            certificate = promise.certify(scores[used][:500], correct[used][:500])
        except mc.InfeasibleTargetError:
            continue
        found += 1
        assert promise.contradiction(certificate) is None
        assert promise.contradiction(mark_cross_fitted(certificate, 3)) is None
        assert (
            MaxMiscoverage(0.123)
            .contradiction(certificate)
            .startswith("the certificate does not belong to the promise")
        )
    assert found > 3


@pytest.mark.parametrize("promise", EVERY, ids=repr)
def test_facts_that_are_not_its_own(promise):
    certificate = promise.certify(np.linspace(0, 1, 400), np.ones(400, dtype=bool))
    assert promise.contradiction(certificate) is None
    assert "rule is none that this promise uses" in promise.contradiction(
        replace(certificate, rule="trust me")
    )
    for guarantee in ("certified", "in expectation", "none"):
        if guarantee != certificate.guarantee:
            assert "does not belong" in promise.contradiction(
                replace(certificate, guarantee=guarantee)
            )
    crossed = mark_cross_fitted(certificate, 5)
    assert "does not belong" in promise.contradiction(replace(crossed, guarantee="certified"))
    for folds in (-1, 1, 401, 10**8) if certificate.guarantee != "none" else (1,):
        around = replace(crossed.design, n_folds=folds)
        assert "rows cannot be scored in" in promise.contradiction(replace(crossed, design=around))
    for scores, share in ((2, 1.0), (1, 0.5), (3, 0.0), (0, 1.0), (10**6, 0.1)):
        around = CertificationDesign(scores, share)
        assert "share" in promise.contradiction(replace(certificate, design=around))
    more = replace(certificate, all_rows_traffic=Traffic(*[401] * 4))
    assert (promise.contradiction(more) is None) == (
        certificate.guarantee == "none" and certificate.n_accepted == 400
    )
    assert "is not the traffic" in promise.contradiction(
        replace(certificate, all_rows_traffic=Traffic(*[300] * 4))
    )


@pytest.mark.parametrize("delta", [0.1, None])
def test_one_right_row_fewer_and_the_miscoverage_is_not_certified(delta):
    promise = MaxMiscoverage(0.1, delta)
    certificate = promise.certify(np.arange(300.0), np.ones(300, dtype=bool))
    kept = certificate.n_correct_accepted
    assert (
        promise.contradiction(replace(certificate, n_accepted=kept + 5, n_correct_accepted=kept))
        is None
    )
    fewer = promise.contradiction(
        replace(certificate, n_accepted=kept, n_correct_accepted=kept - 1)
    )
    assert (
        f"{kept - 1} accepted of 300 correct rows do not certify a miscoverage of at most 0.1"
        in fewer
    )


@pytest.mark.parametrize("delta", [0.1, None])
def test_too_many_wrong_rows_and_the_accuracy_is_not_certified(delta):
    promise = MinAccuracy(0.9, delta)
    certificate = promise.certify(np.arange(300.0), np.arange(300) % 20 != 0)
    accepted = certificate.n_accepted
    wrong = next(
        wrong
        for wrong in range(accepted)
        if promise.contradiction(replace(certificate, n_correct_accepted=accepted - wrong))
        is not None
    )
    # The first count that does not pass the exact test, by brute force.
    if delta is None:
        assert wrong == next(e for e in range(accepted) if 10 * (e + 1) > accepted + 1)
    else:
        tail = [math.comb(accepted, k) * 0.1**k * 0.9 ** (accepted - k) for k in range(accepted)]
        assert wrong == next(e for e in range(accepted) if sum(tail[: e + 1]) > delta)


def test_bands_from_counts_are_the_bands():
    rng = np.random.default_rng(1)
    scores = rng.random(700)
    correct = rng.random(700) > scores / 2
    for at in (0.2, 0.6, 1.0):
        right, wrong = int((correct & (scores <= at)).sum()), int((~correct & (scores <= at)).sum())
        want = bands.certified_accuracy(scores, correct, [at], 0.05)[0]
        assert math.isclose(
            bands.certified_accuracy_from_counts(right, wrong, 700, 0.05), want, rel_tol=1e-12
        )
        want = bands.certified_miscoverage(scores[correct], [at], 0.05)[0]
        assert math.isclose(
            bands.certified_miscoverage_from_counts(right, int(correct.sum()), 0.05),
            want,
            rel_tol=1e-12,
        )
    assert bands.certified_accuracy_from_counts(0, 0, 10, 0.1) == 0.0


# ── forged files ──────────────────────────────────────────────────────────────────────────────────


def test_counts_that_refute_the_promise():
    data = saved("gate-min-accuracy")
    data["certificate"] = recounted(data["certificate"], 240, 194, 189, 143)
    assert "189 accepted rows do not certify an accuracy of at least 0.85 (delta 0.1)" in refused(
        data
    )
    data["certificate"] = recounted(data["certificate"], 2, 1, 1, 1)
    assert "0 errors in 1 accepted rows do not certify" in refused(data)


def test_a_target_that_was_raised():
    data = saved("gate-min-accuracy")
    data["certificate"]["target"] = data["promise"]["beta"] = 0.9999
    assert "189 accepted rows do not certify an accuracy of at least 0.9999" in refused(data)
    data = saved("gate-max-miscoverage")
    data["certificate"]["target"] = data["promise"]["alpha"] = 0.01
    assert (
        "181 accepted of 194 correct rows do not certify a miscoverage of at most 0.01"
        in refused(data)
    )
    data = saved("gate-both")
    data["certificate"]["max_miscoverage"] = data["promise"]["alpha"] = 0.1
    assert (
        "160 accepted of 194 correct rows do not certify a miscoverage of at most 0.1 (delta 0.05)"
        in refused(data)
    )
    data = saved("gate-after-looking")
    data["certificate"]["target"] = data["promise"]["beta"] = 0.9
    assert "at every threshold at once, not of 0.9 (delta 0.1)" in refused(data)
    data = saved("gate-after-looking-both")
    data["certificate"]["max_miscoverage"] = data["promise"]["alpha"] = 0.15
    assert "167 accepted of 194 correct rows certify a miscoverage of" in refused(data)


def test_a_confidence_that_was_raised():
    for name in ("gate-min-accuracy", "gate-both", "gate-after-looking"):
        data = saved(name)
        data["certificate"]["delta"] = data["promise"]["delta"] = 1e-6
        assert "certify" in refused(data)
    data["certificate"]["delta"] = data["promise"]["delta"] = 5e-324
    assert "delta must be at least 1e-15" in refused(data)


def test_counts_of_the_papers_split():
    data = saved("gate-paper-miscoverage")
    data["certificate"] = recounted(data["certificate"], 501, 501, 501, 501)
    assert "at most 500 rows for the threshold, not 501" in refused(data)
    data["certificate"] = recounted(data["certificate"], 12, 11, 12, 11)
    assert "takes right rows only; 11 of 12 are" in refused(data)
    data = saved("gate-paper-accuracy")
    data["certificate"] = recounted(data["certificate"], 24, 19, 24, 19)
    assert "although all rows together miss the target" in refused(data)
    data["promise"]["n_bins"] = 0
    assert "n_bins must be a positive integer" in refused(data)


@pytest.mark.parametrize(
    ("name", "threshold", "said"),
    [
        ("gate-max-miscoverage", 1e9, "entropy of 3 classes lies between 0 and 1.09861"),
        ("gate-max-miscoverage", 1.0987, "out of reach"),
        ("gate-max-miscoverage", -0.1, "out of reach"),
        ("gate-min-accuracy", 0.667, "max_probability of 3 classes lies between 0 and 0.666667"),
        ("gate-miscoverage-in-expectation", 0.001, "margin of 3 classes is at most 0"),
    ],
)
def test_a_threshold_that_no_score_can_reach(name, threshold, said):
    data = saved(name)
    data["certificate"]["threshold"] = data["stages"][0]["threshold"] = threshold
    data["certificate"] |= {"highest_accepted": threshold, "lowest_rejected": 2 * abs(threshold)}
    assert said in refused(data)


def test_calibration_scores_out_of_reach():
    data = saved("gate-max-miscoverage")
    data["certificate"]["lowest_rejected"] = 1.2
    assert "lowest_rejected 1.2 is out of reach" in refused(data)
    data["certificate"]["lowest_rejected"] = "inf"
    assert "lowest_rejected inf is out of reach" in refused(data)


def test_a_threshold_lies_between_two_scores():
    """On a score, which side a row falls would be left to rounding; far from it, it separates
    nothing.
    """
    data = saved("gate-max-miscoverage")
    score = float(np.float32(data["certificate"]["threshold"]))
    data["certificate"]["threshold"] = data["stages"][0]["threshold"] = score
    assert "does not lie between two scores" in refused(data)
    data["certificate"]["threshold"] = data["stages"][0]["threshold"] = score * (1 - 1e-6)
    assert "does not separate" in refused(data)


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.stem)
def test_facts_of_a_file(path):
    for name, value, said in (
        ("statement", "What is accepted is right.", 'unexpected entry "statement"'),
        ("rule", "trust me", "the rule is none that this promise uses"),
        ("rule", "cascade-binomial", "the rule is none that this promise uses"),
        ("notes", ["a sentence"], "notes[0] must be an object"),
        ("notes", [{"kind": "trust_me"}], 'unknown kind of note "trust_me"'),
        ("notes", [remark("\x1b[2J")], r"notes[0] must be one line of plain text"),
        ("notes", [remark("two\nlines")], r"notes[0] must be one line of plain text"),
        (
            "notes",
            [remark("n" * 3000)],
            r"notes[0] must be one line of plain text with at most 2,000 characters",
        ),
        ("notes", [remark("n")] * 51, "51 notes are too many"),
        (
            "notes",
            [{"kind": "few_errors", "errors": 7, "rows": 5}],
            "notes[0].errors is 7, which contradicts",
        ),
        ("notes", [{"kind": "few_errors", "errors": 0}], "the entry 'rows', which is missing"),
        ("notes", [{"kind": "cross_fitted", "folds": 5}], "its notes speak of other folds"),
        (
            "traffic",
            {"n_rows": 7, "n_accepted": 8, "population": "source"},
            "8 of 7 rows cannot be accepted",
        ),
        (
            "traffic",
            {"n_rows": 7, "n_accepted": 7, "population": "target"},
            'population "target" does not follow',
        ),
        (
            "traffic",
            {"n_rows": 7, "n_accepted": 7, "population": "source"},
            "does not follow|is not the traffic",
        ),
        ("circumstances", get_stored_values(CertificationDesign()), "its default value, so the"),
        ("coverage", 0.123, "coverage 0.123 does not follow from the counts"),
        ("n_rows", 2**60, "does not follow|more than anybody has"),
    ):
        data = json.loads(path.read_text(encoding="utf-8"))
        data["certificate"][name] = value
        assert any(part in refused(data) for part in said.split("|"))


def test_a_cross_fitted_gate_cannot_be_made_exact():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(300, 3))
    labels = (rows + rng.normal(size=rows.shape)).argmax(1)
    clf = mc.CalibratedClassifier(LogisticRegression(), mc.MaxMiscoverage(0.1), cv=3).fit(
        rows, labels
    )
    data = json.loads(artifact.dumps(clf.gate_))
    assert data["certificate"]["guarantee"] == "approximate"
    data["certificate"]["guarantee"] = "certified"
    assert "does not belong to the promise" in refused(data)
    around = data["certificate"].pop("circumstances")
    assert around["folds"] == 3
    assert "its notes speak of other folds" in refused(data)
    data["certificate"] |= {"guarantee": "approximate", "notes": []}
    assert "does not belong to the promise" in refused(data)


def numbers(value, at=()):
    """Every number below, with the way to it."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*at, key))
    elif type(value) in (int, float):
        yield at, value


@pytest.mark.slow
def test_a_number_cannot_be_changed_alone():
    """But for scores beside a threshold, which the counts do not know, and what a table of costs
    made of the rows.
    """
    tried, unnoticed = 0, set()
    for path in (*GATES, *OTHERS):
        text = path.read_text(encoding="utf-8")
        for at, value in numbers(json.loads(text)["certificate"]):
            data, tried = json.loads(text), tried + 1
            place = data["certificate"]
            for key in at[:-1]:
                place = place[key]
            place[at[-1]] = value + 1 if type(value) is int else 1.01 * value or 0.01
            try:
                artifact.loads(json.dumps({**data, "checksum": artifact.checksum(data)}).encode())
            except ArtifactError:
                continue
            unnoticed.add((path.stem, at))
    scores = {at for at in unnoticed if at[1][-1] in ("highest_accepted", "lowest_rejected")}
    others = {(path, at[-1]) for path, at in unnoticed - scores}
    assert tried > 300
    assert len(unnoticed) <= 45
    assert {name for path, name in others if path.startswith("gate-")} <= {
        "mean_cost",
        "target",
        "delta",
    }
    assert {path for path, _ in others} <= {
        *(
            "gate-cheapest-table",
            "gate-max-cost-table",
            "gate-per-class",
            "scores-v3",
            "loss",
            "accuracy",
        )
    }
    # How many scores tie, and how many rows and labels the thresholds of a cascade took, stands
    # nowhere else.
    assert {name for path, name in others if not path.startswith("gate-")} <= {
        "tied",
        "rows",
        "n_aside",
        "n_labels",
    }


# ── percentages never say more than is promised ───────────────────────────────────────────────────


def test_percentages_are_rounded_towards_the_weaker_claim():
    assert (format_percent_floor(0.9999996), format_percent_ceil(0.0000004)) == (
        "99.9999%",
        "0.00004%",
    )
    assert (
        format_percent_floor(1 - 1e-15),
        format_percent_floor(2 / 3),
        format_percent_ceil(2 / 3),
    ) == (
        "99.9999%",
        "66.6666%",
        "66.6667%",
    )
    assert format_percent_ceil(1e-300) == "1e-298%"
    for k in range(1, 1000):
        assert (
            format_percent_floor(k / 1000)
            == format_percent_ceil(k / 1000)
            == format_percent(k / 1000)
        )
        assert format_percent_floor(1.0 - k / 1000) == format_percent(1.0 - k / 1000)
    rng = np.random.default_rng(0)
    for value in [
        *rng.random(300),
        *10.0 ** -rng.uniform(0, 14, 300),
        *(1 - 10.0 ** -rng.uniform(0, 14, 300)),
    ]:
        low, high = (
            float(text[:-1]) / 100
            for text in (format_percent_floor(value), format_percent_ceil(value))
        )
        assert low <= value + 1e-15 <= high + 2e-15
        assert format_percent_floor(value) != "100%"
        assert format_percent_ceil(value) != "0%"


def test_no_sentence_claims_certainty():
    """Neither what a test of the promise says, nor why a target cannot be had, nor the alarm of a
    monitor.
    """
    certificate = MaxMiscoverage(0.1, delta=4e-7).certify(
        np.arange(900.0), np.ones(900, dtype=bool)
    )
    kept = np.ones(50, dtype=bool)
    text = verify(certificate, kept, kept, confidence=0.9999996).text(
        " of rows.npz through cal.json"
    )
    assert "with 99.9999% confidence" in text
    assert "at most 0.00004% of all fits" in " ".join(text.split())
    assert "100%" not in text
    scores, correct = np.arange(200.0), np.arange(200) % 3 > 0
    for promise in (MinAccuracy(0.999, delta=4e-7), Both(0.01, 0.6, delta=4e-7)):
        with pytest.raises(mc.InfeasibleTargetError, match=r"at 99\.9999% confidence"):
            promise.certify(scores, correct)
    (monitor,) = mc.PromiseMonitor.of(certificate, delta=4e-7)
    monitor.update(np.zeros(900, dtype=bool), np.ones(900, dtype=bool))
    assert "false-alarm rate of 0.00004%" in str(monitor)


def test_a_statement_never_claims_certainty():
    certificate = MinAccuracy(0.9).certify(np.arange(300.0), np.ones(300, dtype=bool))
    for target in (0.99999999, 1 - 1e-12):
        assert "100%" not in replace(certificate, target=target, delta=1e-9).statement
    tiny = MaxMiscoverage(0.1).certify(np.arange(300.0), np.ones(300, dtype=bool))
    assert " 0%" not in replace(tiny, target=1e-9).statement
