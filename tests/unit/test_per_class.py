"""PerClass and PerGroup: parts, levels, decisions, files, and what they say where something cannot
be.
"""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from sklearn.base import clone

import metacal as mc
from metacal.export import saved
from metacal.gate import Gate, LogitsSource
from metacal.gate.thresholds import SubgroupThresholds, encode_groups
from metacal.io.artifact.audit import read_certificate
from metacal.maps.temperature import TemperatureMap
from metacal.promises import Sample
from metacal.promises.judging import judge
from metacal.promises.verification import verify_decisions


def made_up(n=3000, seed=0, names=("cat", "dog", "cow", "owl")):
    """Four classes: easy, usual, hopeless, and one that is hardly ever predicted."""
    rng = np.random.default_rng(seed)
    y = rng.choice(4, size=n, p=[0.4, 0.35, 0.245, 0.005])
    X = rng.normal(size=(n, 4)) + np.array([8.0, 3.0, 1.0, 6.0])[y][:, None] * np.eye(4)[y]
    X[:, 3] -= 3.0
    return X, np.array(names)[y]


def fitted(promise, n=3000, **more):
    X, y = made_up(n)
    options = {"classes": ["cat", "dog", "cow", "owl"], "reject_label": "?", **more}
    return mc.MetaCal(promise, **options).fit(X, y)


def test_the_certificate_says_which_class_and_why():
    found = fitted(mc.PerClass(mc.MinAccuracy(0.96))).certificate_
    assert found.threshold == -math.inf
    status = {part.name: part.status for part in found.subgroups.items}
    assert status["owl"] == "always rejected"
    assert status["dog"] == "certified"
    owl = next(part for part in found.subgroups.items if part.name == "owl")
    assert owl.rows_needed > owl.n_rows
    assert f"owl: {owl.n_rows} rows" in str(found)
    assert f"about {owl.rows_needed} rows may be enough (a rough estimate)" in str(found)
    assert "owl" in found._repr_html_()
    assert sum(part.n_rows for part in found.subgroups.items) == found.n_rows == 3000
    assert sum(part.n_accepted for part in found.subgroups.items) == found.n_accepted


def test_each_says_what_it_promises_of_all():
    each = fitted(mc.PerClass(mc.MinAccuracy(0.96), shares="each")).certificate_
    assert each.statement.endswith(
        "each with 90% confidence: the expected share of broken classes is at most 10%."
    )
    together = fitted(mc.PerClass(mc.MinAccuracy(0.96))).certificate_
    assert together.statement.endswith("with 90% confidence for all classes together.")
    assert each.coverage >= together.coverage
    assert {part.delta for part in each.subgroups.items} <= {0.1, None}


def test_every_way_to_decide_agrees():
    cal, (X, _) = fitted(mc.PerClass(mc.MinAccuracy(0.96))), made_up(2000, seed=1)
    top, accept = X.argmax(axis=1), cal.accepts(X)
    limits = np.array([cal.gate_.subgroup_thresholds.subgroup_thresholds[k] for k in top])
    assert (accept == (cal.ranking_scores(X) <= limits)).all()
    assert 0 < accept.sum() < len(X)
    assert (cal.predict(X) == np.where(accept, cal.classes_[top], "?")).all()
    for rejected in ("calibrated", "uniform"):
        decision = cal.decide(X, rejected=rejected)
        assert (decision.accept == accept).all()
        np.testing.assert_array_equal(
            decision.probabilities, cal.predict_proba(X, rejected=rejected)
        )
    paper_map = cal.predict_proba(X, rejected="uniform")
    assert ((paper_map == 0.25).all(axis=1) == ~accept).all()
    assert not accept[top == 3].any()


def test_accuracy_of_each_class_on_new_rows():
    cal, (X, y) = fitted(mc.PerClass(mc.MinAccuracy(0.9))), made_up(20000, seed=2)
    label = cal.predict(X)
    for name in ("cat", "dog", "cow"):
        if (label == name).any():
            assert (y[label == name] == name).mean() >= 0.9


def test_groups_decide_and_unknown_ones_are_rejected_and_said():
    X, y = made_up()
    groups = np.where(np.arange(len(X)) % 3 == 0, "north", "south")
    cal = mc.MetaCal(
        mc.PerGroup(mc.MaxMiscoverage(0.1)), classes=["cat", "dog", "cow", "owl"], reject_label="?"
    )
    cal.fit(X, y, groups=groups)
    north, south = (cal.accepts(X, groups=np.full(len(X), name)) for name in ("north", "south"))
    assert (north != south).any()
    assert (cal.accepts(X, groups=groups) == np.where(groups == "north", north, south)).all()
    assert (cal.decide(X, groups=groups).accept == cal.accepts(X, groups=groups)).all()
    with pytest.warns(mc.MetacalWarning, match="moon"):
        assert not cal.accepts(X, groups=["moon"] * len(X)).any()
    with pytest.raises(mc.InputError, match=r"'north', 'south'.*groups="):
        cal.predict(X)
    with pytest.raises(mc.InputError, match=r"entries for 3000 rows\."):
        cal.predict_proba(X, groups=["north", "south"])


def test_groups_are_refused_where_nothing_goes_by_them():
    cal, (X, _) = fitted(mc.PerClass(mc.MinAccuracy(0.96))), made_up(10)
    with pytest.raises(mc.InputError, match="the same threshold for all rows"):
        cal.accepts(X, groups=["a"] * 10)


@pytest.mark.parametrize(
    ("promise", "complaint"),
    [
        (lambda: mc.PerClass(mc.Both(0.1, 0.9)), "supports MinAccuracy"),
        (lambda: mc.PerClass(mc.PerClass(mc.MinAccuracy(0.9))), "supports MinAccuracy"),
        (lambda: mc.PerClass(mc.MinAccuracy(0.9, delta=None)), "promise with a delta"),
        (lambda: mc.PerClass(mc.MinAccuracy(0.9), shares="all"), "'together', 'each' or 'fcr'"),
        (lambda: mc.PerClass(mc.MinAccuracy(0.9), fallback="best"), "None or 'pooled'"),
    ],
)
def test_what_cannot_be_promised_for_each(promise, complaint):
    with pytest.raises(mc.InputError, match=complaint):
        promise()


def test_per_group_asks_for_one_group_per_row():
    X, y = made_up(50)
    for groups, complaint in (
        (None, "groups="),
        (["a"] * 3, r"entries for 50 rows\."),
        ([None] * 50, "missing"),
    ):
        promise = mc.PerGroup(mc.MaxMiscoverage(0.1))
        cal = mc.MetaCal(promise, classes=["cat", "dog", "cow", "owl"], reject_label="?")
        with pytest.raises(mc.InputError, match=complaint):
            cal.fit(X, y, groups=groups)
    with pytest.raises(mc.InputError, match="groups requires a promise for each group"):
        mc.MetaCal(
            mc.MaxMiscoverage(0.1), classes=["cat", "dog", "cow", "owl"], reject_label="?"
        ).fit(X, y, groups=y)


def test_nothing_can_be_certified():
    with pytest.raises(
        mc.InfeasibleTargetError, match=r"for any class \(4 in these 60 rows\)"
    ) as raised:
        fitted(mc.PerClass(mc.MinAccuracy(0.99)), n=60)
    assert raised.value.rows_needed > 60


def test_scikit_learn_clones_it_and_searches_over_it():
    cal = mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.9), shares="each"))
    again = clone(cal)
    assert again.promise == cal.promise
    assert again.promise is not cal.promise
    again.set_params(promise__promise__beta=0.8, promise__shares="together")
    assert again.promise == mc.PerClass(mc.MinAccuracy(0.8))
    assert cal.promise.promise.beta == 0.9
    with pytest.raises(mc.InputError, match="no parameter"):
        again.promise.set_params(beta=0.5)


def test_shares_follow_the_counts_alone():
    def shared(counts, shares):
        codes = np.repeat(np.arange(len(counts)), counts)
        sample = Sample(
            np.zeros(len(codes)),
            np.ones(len(codes), dtype=bool),
            part=codes,
            names=range(len(counts)),
        )
        promise = mc.PerGroup(mc.MinAccuracy(0.95), shares)
        try:
            parts = promise.certify(sample).subgroups.items
        except mc.InfeasibleTargetError:
            return []
        return [code for code, part in enumerate(parts) if part.delta is not None]

    assert shared([10, 20, 30], "together") == []
    assert shared([45, 45, 45], "together") == [
        0
    ]  # each could alone, at delta; two cannot share it
    assert shared([45, 45, 45], "each") == [0, 1, 2]
    assert shared([1000, 45, 1000], "together") == [0, 2]


def test_levels_of_complete_parts_are_passed_on():
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2, 3], 500)
    scores = rng.random(2000)
    correct = (codes < 2) | (rng.random(2000) > 0.3 * scores)
    sample = Sample.of(scores, correct, part=codes, names=["easy", "also easy", "hard", "harder"])
    promise = mc.MinAccuracy(0.95)
    found = mc.PerGroup(promise).certify(sample).subgroups.items
    assert [part.delta for part in found] == [0.1 / 4, 0.1 / 4, 0.1 / 2, 0.1 / 2]
    assert [part.threshold for part in found][:2] == [math.inf, math.inf]
    each = mc.PerGroup(promise, "each").certify(sample).subgroups.items
    assert [part.delta for part in each] == [0.1] * 4


def test_the_order_of_the_classes_does_not_matter():
    X, y = made_up()
    names, order = np.array(["cat", "dog", "cow", "owl"]), [2, 0, 3, 1]
    options = {"promise": mc.PerClass(mc.MinAccuracy(0.95)), "reject_label": "?"}
    one = mc.MetaCal(classes=names.tolist(), **options).fit(X, y)
    other = mc.MetaCal(classes=names[order].tolist(), **options).fit(X[:, order], y)
    assert (one.accepts(X) == other.accepts(X[:, order])).all()


def test_pooled_classes_share_a_threshold():
    cal = fitted(mc.PerClass(mc.MinAccuracy(0.9), fallback="pooled"), n=150)
    pool = cal.certificate_.subgroups.items[-1]
    assert len(pool.names) >= 2
    assert "pooled" in cal.certificate_.statement or "taken together" in cal.certificate_.statement
    own = dict(
        zip(
            cal.gate_.subgroup_thresholds.subgroup_names,
            cal.gate_.subgroup_thresholds.subgroup_thresholds,
        )
    )
    assert {own[name] for name in pool.names} == {pool.threshold}


@pytest.mark.parametrize("shares", ["together", "each"])
@pytest.mark.parametrize("by", ["class", "group", "pooled"])
def test_saved_and_loaded(tmp_path, by, shares):
    X, y = made_up(400)
    groups = np.arange(len(X)) % 7 // 3
    inner = mc.MinAccuracy(0.85)
    promise = {
        "class": mc.PerClass(inner, shares),
        "group": mc.PerGroup(mc.MaxMiscoverage(0.2), shares),
        "pooled": mc.PerClass(inner, shares, "pooled"),
    }[by]
    cal = mc.MetaCal(promise, classes=["cat", "dog", "cow", "owl"], reject_label="?")
    cal.fit(X, y, groups=groups if by == "group" else None)
    mc.save(cal, tmp_path / "cal.json")
    again = mc.load(tmp_path / "cal.json")
    assert again.gate_ == cal.gate_
    assert again.promise == cal.promise
    assert again.certificate_ == cal.certificate_
    more = {"groups": groups} if by == "group" else {}
    assert (again.predict(X, **more) == cal.predict(X, **more)).all()
    assert (
        read_certificate(json.loads(json.dumps(cal.certificate_.to_dict()))).subgroups
        == cal.certificate_.subgroups
    )
    assert mc.load_gate(tmp_path / "cal.json") == cal.gate_


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda part: part.update(n_accepted=part["n_accepted"] + 1), "cannot be|sum of its parts"),
        (lambda part: part.update(threshold=99.0), "does not separate|out of reach"),
        (lambda part: part.update(delta=0.5), "more than its share"),
        (lambda part: part.update(delta=None), "never tested"),
        (lambda part: part.update(names=["cow"]), "same name"),
        (lambda part: part.update(names=["yak"]), "not the classes"),
        (lambda part: part.update(status="always rejected"), "contradicts the other values"),
        (lambda part: part.update(delta=1e-12), "do not certify"),
    ],
)
def test_a_forged_part_is_found(change, complaint):
    from metacal.io.artifact.document import SavedContent, decode_document, encode_document

    cal = fitted(mc.PerClass(mc.MinAccuracy(0.96)))
    document = json.loads(json.dumps(encode_document(SavedContent(cal.gate_))))
    decode_document(document)
    change(
        next(part for part in document["certificate"]["parts"]["items"] if part["names"] == ["dog"])
    )
    with pytest.raises(mc.ArtifactError, match=complaint):
        decode_document(document)


def test_verify_names_the_class_that_broke():
    cal, (X, y) = fitted(mc.PerClass(mc.MinAccuracy(0.96))), made_up(4000, seed=3)
    assert not mc.verify(cal, X, y).refuted
    wrong = np.where(y == "dog", "cow", y)
    found = mc.verify(cal, X, wrong)
    assert found.refuted
    assert found.tests[0].subgroup == "dog"
    assert "refuted      dog" in str(found)
    assert [test.p_value for test in found.tests] == sorted(test.p_value for test in found.tests)
    json.dumps(found.to_dict())


def test_a_verdict_for_every_class_worst_first():
    cal, (X, y) = fitted(mc.PerClass(mc.MinAccuracy(0.96))), made_up(4000, seed=3)
    decision = cal.decide(X)
    names = cal.gate_.get_row_subgroups(decision.predicted_codes)
    verdict = judge(
        cal.certificate_, decision.accept, decision.answer == y, 0.95, row_subgroups=names
    )
    assert verdict.word == "kept"
    assert {own.subgroup for own in verdict.subgroup_verdicts} == {
        part.name for part in cal.certificate_.subgroups.items if part.status != "always rejected"
    }
    json.dumps(verdict.to_dict())
    with pytest.raises(mc.InputError, match="each class"):
        judge(cal.certificate_, decision.accept, decision.answer == y, 0.95)


def test_rows_that_say_nothing():
    cal = fitted(mc.PerClass(mc.MinAccuracy(0.96)))
    nothing = np.zeros(3, dtype=bool)
    found = verify_decisions(
        cal.certificate_, nothing, nothing, 0.95, row_subgroups=np.array(["cat", "dog", "owl"])
    )
    assert not found.refuted
    assert "there is none here" in found.advice


def test_a_monitor_for_each_class_watches_its_own_rows():
    cal = fitted(mc.PerClass(mc.MinAccuracy(0.96)))
    monitors = mc.PromiseMonitor.of(cal.certificate_, delta=0.05)
    assert {name for monitor in monitors for name in monitor.subgroup_names} <= {
        "cat",
        "dog",
        "cow",
    }
    names, right = np.array(["dog"] * 200 + ["cat"] * 200), np.arange(400) >= 100
    for monitor in monitors:
        monitor.update(np.ones(400, dtype=bool), right, row_subgroups=names)
        assert monitor.alarm == (monitor.subgroup_names == ("dog",))
        again = mc.PromiseMonitor(**json.loads(json.dumps(dataclasses.asdict(monitor))))
        assert again == monitor
        with pytest.raises(mc.InputError, match="class or group of each row"):
            monitor.update([True], [True])


def test_names_of_groups():
    assert encode_groups([2, 1, 5], (1, 2)).tolist() == [1, 0, -1]
    assert encode_groups(["a"], (1, 2)).tolist() == [-1]
    assert encode_groups([1.0, 2.0], (1, 2)).tolist() == [0, 1]
    assert SubgroupThresholds("group", (1, 2), (0.5, math.inf)).get_row_thresholds(
        np.array([1, 0, -1])
    ).tolist() == [
        math.inf,
        0.5,
        -math.inf,
    ]
    with pytest.raises(mc.InputError, match="groups must be integers or strings"):
        encode_groups([0.5], (1, 2))


def test_a_classifier_names_its_own_classes():
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression

    X, y = made_up(2000)
    clf = mc.CalibratedClassifier(
        FrozenEstimator(LogisticRegression().fit(X[:1000], y[:1000])),
        mc.PerClass(mc.MinAccuracy(0.9)),
        reject_label="?",
    ).fit(X[1000:], y[1000:])
    assert {part.name for part in clf.certificate_.subgroups.items} == set(clf.classes_.tolist())
    assert (clf.gate_.predict(clf.logits(X)) == clf.predict(X)).all()
    assert saved.dumps(clf.gate_)
    half = np.where(np.arange(len(X)) % 2, "even", "odd")
    by_group = mc.CalibratedClassifier(
        LogisticRegression(), mc.PerGroup(mc.MaxMiscoverage(0.1)), reject_label="?"
    )
    assert {part.name for part in by_group.fit(X, y, groups=half).certificate_.subgroups.items} == {
        "even",
        "odd",
    }
    with pytest.raises(mc.InputError, match="PerGroup requires the group of every row"):
        by_group.fit(X, y)


@pytest.mark.parametrize("by", ["class", "group"])
@pytest.mark.parametrize(("score", "units"), [("auto", False), ("entropy", True), ("auto", True)])
def test_with_scores_that_share_delta_and_rows_that_belong_together(tmp_path, by, score, units):
    X, y = made_up(4000)
    site = np.arange(len(X)) % 3
    inner = mc.MinAccuracy(0.9)
    promise = mc.PerClass(inner) if by == "class" else mc.PerGroup(inner)
    cal = mc.MetaCal(promise, classes=["cat", "dog", "cow", "owl"], reject_label="?", score=score)
    together, own = np.arange(len(X)) // 2 if units else None, site if by == "group" else None
    cal.fit(X, y, groups=own, units=together)
    certificate = cal.certificate_
    assert (
        certificate.n_rows
        == (2000 if units else 4000)
        == sum(part.n_rows for part in certificate.subgroups.items)
    )
    assert certificate.delta == 0.1
    mc.save(cal, tmp_path / "cal.json")
    more = {"groups": site} if by == "group" else {}
    assert (mc.load(tmp_path / "cal.json").accepts(X, **more) == cal.accepts(X, **more)).all()


@pytest.mark.parametrize("by", ["class", "group"])
def test_a_threshold_at_a_score_accepts_the_same_rows_in_every_method(by):
    """A threshold of a subgroup may be a grid point; scores that are rounded to it are accepted."""
    X, _ = made_up(500)
    source = LogitsSource(TemperatureMap(1.0), classes=np.arange(4))
    names = source.classes.tolist() if by == "class" else ["north", "south"]
    groups = None if by == "class" else np.array(["north", "south"])[np.arange(len(X)) % 2]
    scores = Gate.from_source(source).decide(X).score
    for threshold in np.sort(scores)[:100]:
        thresholds = SubgroupThresholds(by, tuple(names), (threshold,) * len(names))
        gate = Gate.from_source(source, thresholds)
        accept = gate.decide(X, groups=groups).accept
        np.testing.assert_array_equal(accept, gate.accepts(X, groups=groups))
        for probabilities in (
            gate(X, groups=groups, rejected="uniform"),
            gate.decide(X, groups=groups, rejected="uniform").probabilities,
        ):
            np.testing.assert_array_equal(accept, (probabilities != 1 / 4).any(axis=1))
