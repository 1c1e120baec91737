"""A cascade: what is certified, what it decides, which labels it needs, what it refuses."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import metacal as mc
from metacal.certificates.notes import note_labels_ran_out
from metacal.errors import InfeasibleTargetError, InputError, MetacalWarning
from metacal.promises.cascade_candidates import (
    Candidate,
    CascadePlan,
    PairedPredictions,
    count_outcomes,
    draw_pilot_rows,
)
from metacal.promises.two_model_cascade import TwoModelEvidence
from metacal.rows import Rows
from metacal.scores import score_rows
from metacal.statistics.bounds import certifies_accuracy
from metacal.statistics.noninferiority import certifies_noninferiority


def drawn(n=3000, classes=5, gaps=(3.0, 4.0), seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    return [rng.normal(size=(n, classes)) + gap * np.eye(classes)[y] for gap in gaps], y


@pytest.fixture(scope="module")
def data():
    (small, large), y = drawn()
    return small, large, y


@pytest.fixture(scope="module")
def relative(data):
    small, large, y = data
    return mc.Cascade(promise=mc.MaxLoss(0.02)).fit(small[:2000], y[:2000], large=large[:2000])


@pytest.fixture(scope="module")
def absolute(data):
    small, large, y = data
    return mc.Cascade(promise=mc.MinAccuracy(0.99)).fit(small[:2000], y[:2000], large=large[:2000])


def set_aside(small, large):
    """The rows that choose thresholds, as the default plan draws them."""
    doubts = [score_rows(Rows(table), "entropy") for table in (small, large)]
    return draw_pilot_rows(*doubts, small.argmax(axis=1) == large.argmax(axis=1), CascadePlan())


def test_the_certificate_counts_what_it_says(data, relative):
    """Recounted from the rows, by hand: who answers, who is right where, and that these counts pass
    the test.
    """
    small, large, y = (part[:2000] for part in data)
    certificate = relative.certificate_
    aside = set_aside(small, large)
    tested = np.setdiff1d(np.arange(2000), aside)
    answers = ~relative.needs_large(small[tested])
    one, other = (
        small[tested].argmax(axis=1) == y[tested],
        large[tested].argmax(axis=1) == y[tested],
    )
    assert certificate.n_rows == len(tested)
    stages = certificate.stages
    assert [stage.n_rows for stage in stages.models] == [answers.sum(), (~answers).sum()]
    assert stages.n_only_cascade_wrong == (answers & ~one & other).sum()
    assert stages.n_only_reference_wrong == (answers & one & ~other).sum()
    assert [stage.n_wrong for stage in stages.models] == [
        (answers & ~one).sum(),
        (~answers & ~other).sum(),
    ]
    assert certifies_noninferiority(
        stages.n_only_cascade_wrong, stages.n_only_reference_wrong, len(tested), 0.02, 0.1, 0.005
    )


def test_the_next_threshold_would_not_pass(data, relative):
    """The largest one is chosen: of all thresholds that were walked, the next fails."""
    small, large, y = (part[:2000] for part in data)
    right = [table.argmax(axis=1) == y for table in (small, large)]
    score = relative.gate_.uncertainty_scores(mc.Rows(small))
    agree = small.argmax(axis=1) == large.argmax(axis=1)
    aside = set_aside(small, large)
    tested = np.setdiff1d(np.arange(2000), aside)
    rows = PairedPredictions(score, score, *right, agree, np.ones(2000, dtype=bool)).take(tested)
    higher = np.sort(score[aside][score[aside] > relative.certificate_.threshold])
    seen = count_outcomes(rows, Candidate(higher[0]))
    assert not certifies_noninferiority(seen.n_worse, seen.n_better, len(tested), 0.02, 0.1, 0.005)


def test_the_large_model_is_needed_for_the_rest_only(data, relative):
    small, large, _ = (part[2000:] for part in data)
    rest = relative.needs_large(small)
    whole, partly = relative.decide(small, large), relative.decide(small, large[rest])
    assert 0 < rest.sum() < len(rest)
    for name in (
        "label",
        "answer",
        "confidence",
        "answered_by",
        "probabilities",
        "accept",
        "later_scores",
    ):
        np.testing.assert_array_equal(getattr(whole, name), getattr(partly, name))
    np.testing.assert_array_equal(whole.answered_by == "large", rest)
    np.testing.assert_array_equal(
        whole.label, np.where(rest, large.argmax(axis=1), small.argmax(axis=1))
    )
    np.testing.assert_allclose(whole.probabilities.sum(axis=1), 1.0)


def test_people_get_what_neither_is_sure_of(data, absolute):
    small, large, y = (part[2000:] for part in data)
    found = absolute.decide(small, large)
    people = found.answered_by == "person"
    assert absolute.certificate_.stages.has_human_review
    assert people.any()
    assert (found.label[people] == -1).all()
    np.testing.assert_array_equal(found.answer[people], large[people].argmax(axis=1))
    np.testing.assert_array_equal(found.accept, ~people)
    assert (found.label[~people] == y[~people]).mean() >= 0.98


def test_what_is_missing_of_the_large_model_is_said(data, relative):
    small, large, _ = (part[2000:] for part in data)
    with pytest.raises(InputError, match=r"rows require the large model\."):
        relative.decide(small)
    with pytest.raises(InputError, match="all 1,000 rows, or the"):
        relative.decide(small, large[:7])


def test_labels_are_needed_only_where_models_disagree(data, relative):
    small, large, y = (part[:2000] for part in data)
    need = relative.labels_needed(small, large)
    assert (small[need].argmax(axis=1) != large[need].argmax(axis=1)).all()
    few = np.full(2000, -1)
    few[need] = y[need]
    with pytest.warns(MetacalWarning, match="No calibrator was fitted"):
        found = clone(relative).fit(small, few, large=large)
    assert found.certificate_.threshold == relative.certificate_.threshold
    assert found.certificate_.stages.n_labels == relative.certificate_.stages.n_labels < len(need)
    assert math.isnan(found.certificate_.selective_accuracy)


def test_the_walk_goes_as_far_as_labels_do(data, relative):
    small, large, y = (part[:2000] for part in data)
    need = relative.labels_needed(small, large)
    few = np.full(2000, -1)
    few[need[: len(need) // 6]] = y[need[: len(need) // 6]]
    with pytest.warns(MetacalWarning):
        found = clone(relative).fit(small, few, large=large).certificate_
    assert found.threshold < relative.certificate_.threshold
    assert note_labels_ran_out() in found.notes
    with pytest.raises(InputError, match="have no label"):  # the one threshold accepts every row
        clone(relative).fit(small, few, large=large, thresholds_from=np.zeros((1, 5)))


def test_an_accuracy_needs_every_label(data, absolute):
    small, large, y = (part[:2000] for part in data)
    few = y.copy()
    few[3] = -1
    with pytest.raises(InputError, match="1 rows have no label"):
        clone(absolute).fit(small, few, large=large)


def test_thresholds_may_come_from_other_rows(data, relative):
    small, large, y = data
    found = clone(relative).fit(
        small[:2000], y[:2000], large=large[:2000], thresholds_from=small[2000:]
    )
    assert found.certificate_.n_rows == 2000
    assert found.certificate_.stages.n_pilot_rows == 0


def test_labels_of_rows_set_aside_change_nothing(data, relative):
    """What chooses thresholds must not see labels: whatever they are, the thresholds stay."""
    small, large, y = (part[:2000] for part in data)
    aside = set_aside(small, large)
    other = y.copy()
    other[aside] = (y[aside] + 1) % 5
    assert (
        clone(relative).fit(small, other, large=large).certificate_.threshold
        == relative.certificate_.threshold
    )


def test_a_small_model_that_is_better_answers_everything():
    (small, large), y = drawn(gaps=(6.0, 2.0))
    found = mc.Cascade().fit(small, y, large=large)
    assert found.certificate_.threshold == math.inf
    assert (found.decide(small).answered_by == "small").all()


def test_two_thirds_of_a_promise_are_told_apart(data):
    small, large, y = (part[:2000] for part in data)
    strict = mc.Cascade(promise=mc.MinAccuracy(0.9999)).fit
    with pytest.raises(
        InfeasibleTargetError, match=r"Cannot certify an accuracy of .* for this cascade"
    ) as told:
        strict(small, y, large=large)
    assert told.value.best < 0.9999
    with pytest.raises(InfeasibleTargetError, match="use at least") as told:
        mc.Cascade(promise=mc.MaxLoss(0.0001)).fit(small, y, large=large)
    assert told.value.rows_needed > 2000
    with pytest.raises(InfeasibleTargetError, match="to review"):
        mc.Cascade(promise=mc.MinAccuracy(0.995), people=False).fit(small, y, large=large)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"promise": mc.MaxMiscoverage(0.1)}, "A cascade supports"),
        ({"promise": mc.MinAccuracy(0.9, None)}, "a promise with a delta"),
        ({"people": True}, "does not support people"),
        ({"review_cost": 0.0, "promise": mc.MinAccuracy(0.9)}, "review_cost must be a positive"),
        ({"small": lambda x: x}, "only one of its two models"),
        ({"reject_label": 3}, "reject_label"),
    ],
)
def test_wrong_wishes_are_refused(data, options, words):
    small, large, y = (part[:300] for part in data)
    with pytest.raises(InputError, match=words):
        mc.Cascade(**options).fit(small, y, large=large)


def test_two_models_must_have_seen_the_same_rows(data):
    small, large, y = data
    with pytest.raises(InputError, match="same rows and classes"):
        mc.Cascade().fit(small, y, large=large[:-1])
    with pytest.raises(InputError, match="table of the large model is missing"):
        mc.Cascade().fit(small, y)
    with pytest.raises(InputError, match="more than 40"):
        mc.Cascade().fit(small[:40], y[:40], large=large[:40])


@pytest.mark.slow
def test_around_classifiers_the_large_one_is_asked_for_the_rest_only():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], np.array([f"digit {k}" for k in y[order]])
    small = LogisticRegression(max_iter=2000).fit(X[:300, ::3], y[:300])
    large = KNeighborsClassifier(5).fit(X[:600], y[:600])
    asked = []

    def cheap(rows):
        return np.log(small.predict_proba(rows[:, ::3]))

    def costly(rows):
        asked.append(len(rows))
        return np.log(np.clip(large.predict_proba(rows), 1e-9, 1.0))

    names = small.classes_.tolist()
    cascade = mc.Cascade(cheap, costly, mc.MaxLoss(0.03), classes=names, reject_label="?")
    cascade.fit(X[600:1400], y[600:1400])
    asked.clear()
    found = cascade.predict(X[1400:])
    assert asked == [int(cascade.needs_large(X[1400:]).sum())]
    assert (found == y[1400:]).mean() >= (large.predict(X[1400:]) == y[1400:]).mean() - 0.03
    assert set(found.tolist()) <= set(names)


def test_verify_refutes_a_broken_promise_and_no_other(data, relative, absolute):
    small, large, y = (part[2000:] for part in data)
    for cascade in (relative, absolute):
        assert not mc.verify(cascade, small, y, large=large).refuted
        assert not mc.verify(cascade.gate_, small, y, large=large).refuted
        wrong = np.where(np.arange(1000) % 4 == 0, (y + 1) % 5, y)
        spoilt = large + 9.0 * np.eye(5)[wrong] if cascade is relative else large
        result = mc.verify(cascade, small, wrong, large=spoilt)
        assert result.refuted
        assert result.p_value < 0.05
        assert "refuted: " in str(result)
        assert result.to_dict()["refuted"]


def test_evaluate_counts_who_answers_and_how_right_each_is(data, absolute):
    small, large, y = (part[2000:] for part in data)
    found = mc.evaluate(absolute, small, y, large=large, n_resamples=20)
    decided = absolute.decide(small, large=large)
    assert [part.name for part in found.answered_by] == ["small", "large", "person"]
    for part in found.answered_by[:2]:
        own = decided.answered_by == part.name
        assert (part.n_rows, part.share.estimate) == (own.sum(), own.mean())
        assert part.accuracy.estimate == pytest.approx((decided.label == y)[own].mean())
        assert part.share.low < part.share.estimate < part.share.high
    assert found.verdict.value == mc.verify(absolute, small, y, large=large).tests[0].value
    assert found.after.gate["coverage"].estimate == decided.accept.mean()
    assert str(found) == str(mc.evaluate(absolute.gate_, small, y, large=large, n_resamples=20))
    assert "  person  answers" in str(found)
    for measure in (mc.evaluate, mc.verify):
        with pytest.raises(InputError, match="the same rows"):
            measure(absolute, small, y, large=large[1:])


@pytest.mark.slow
def test_the_report_of_a_cascade_on_probabilities_is_that_on_logits(data, tmp_path):
    def page(change, name, **options):
        small, large = map(change, data[:2])
        y, path = data[2], tmp_path / name
        cascade = mc.Cascade(promise=mc.MaxLoss(0.05), **options).fit(
            small[:2000], y[:2000], large=large[:2000]
        )
        mc.report(
            cascade, small[2000:], y[2000:], path, large=large[2000:], n_resamples=0, title="one"
        )
        held = re.search(r'type="application/json"[^>]*>(.*?)</script>', path.read_text(), re.S)[1]
        return json.loads(held)["promise"]["answered_by"]

    assert page(lambda z: softmax(z, axis=1), "p.html", input="probabilities") == page(
        np.asarray, "z.html"
    )


@pytest.mark.parametrize("name", ["groups", "units", "importance"])
def test_what_other_fits_take_is_refused_with_what_to_do(data, name):
    small, large, y = data
    with pytest.raises(InputError, match=r"A cascade .*(Fit|Pass)"):
        mc.Cascade().fit(small, y, large=large, **{name: np.ones(len(y))})


def test_forged_certificates_contradict_themselves(relative, absolute):
    for cascade in (relative, absolute):
        promise, certificate = cascade.promise, cascade.certificate_
        stages, (small, large) = certificate.stages, certificate.stages.models
        assert promise.contradiction(certificate) is None
        forged = [
            {"models": (replace(small, n_rows=small.n_rows + 1), large)},
            {"n_only_cascade_wrong": stages.n_only_cascade_wrong + 200},
            {"n_labels": certificate.n_rows + 1},
            {"n_only_reference_wrong": -1},
            {"models": (replace(small, n_wrong=None), large)},
            {"models": (small, replace(large, n_wrong=large.n_wrong + 1))},
            {"models": (replace(small, threshold=small.threshold + 0.1), large)},
            {"has_human_review": not stages.has_human_review},
        ]
        for change in forged:
            assert (
                promise.contradiction(replace(certificate, stages=replace(stages, **change)))
                is not None
            ), change
        for change in (
            {"rule": "trust me"},
            {"n_accepted": certificate.n_accepted - 1},
            {"target": 0.5},
        ):
            assert promise.contradiction(replace(certificate, **change)) is not None, change
        for other in (mc.MaxLoss(1e-5), mc.MinAccuracy(0.99999)):
            (limit,) = other.limits
            claimed = replace(
                certificate, quantity=limit[0], target=limit[1], rule=other.cascade_rules[0]
            )
            assert other.contradiction(claimed) is not None


def test_pareto_order_is_chosen_on_the_rows_set_aside(data):
    """With people, labels of the rows set aside choose the order; those of the tested rows only
    where it ends.
    """
    small, large, y = (part[:2000] for part in data)
    found = mc.Cascade(promise=mc.MinAccuracy(0.985)).fit(small, y, large=large).certificate_
    assert found.stages.n_pilot_rows == 400
    assert certifies_accuracy(
        found.n_accepted - found.n_correct_accepted, found.n_accepted, 0.985, 0.1
    )
    dear = (
        mc.Cascade(promise=mc.MinAccuracy(0.985), review_cost=1000.0)
        .fit(small, y, large=large)
        .certificate_
    )
    assert dear.coverage >= found.coverage - 0.02


def test_the_same_rows_give_the_same_certificate():
    rng = np.random.default_rng(1)
    score, flags = rng.random(500), rng.random((2, 500)) < 0.95
    rows = PairedPredictions(score, score, *flags, flags[0] == flags[1], np.ones(500, dtype=bool))
    one, again = (
        mc.MaxLoss(0.05).certify(TwoModelEvidence(rows, CascadePlan(random_state=3)))
        for _ in range(2)
    )
    assert one == again
