"""A gate on given scores: its columns, its decisions, its confidence, its certificate, its file,
its export.
"""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from sklearn.base import clone

import metacal as mc
from metacal.errors import ArtifactError, InputError, MetacalWarning
from metacal.export.saved import dumps, loads
from metacal.gate import Gate, ScoreData
from metacal.gate.calibrate import calibrate
from metacal.io.artifact.wrapping import checksum
from metacal.maps.confidence import ConfidenceCurve, fit_confidence
from metacal.reports.summary import summarise
from metacal.rows.score_columns import check_correctness, check_scores
from metacal.rows.score_tables import flatten_score_table


def population(n, seed=0, digits=None):
    """A judge's marks, and whether the answers are right: the surer the mark, the more often."""
    rng = np.random.default_rng(seed)
    mark = rng.random(n)
    mark = mark if digits is None else mark.round(digits)
    return mark, rng.random(n) > (1.0 - mark) ** 2


@pytest.fixture(scope="module")
def gate():
    return mc.ScoreGate(mc.MinAccuracy(0.9), score_name="mark").fit(*population(2000))


# ── the two columns ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 0.0, 0.5],
        [1, 0, Decimal("0.5")],
        np.array([1.0, 0.0, 0.5], dtype=np.float16),
        np.array([[1.0], [0.0], [0.5]]),
        np.array([1, 0, 0.5], dtype=object),
        (np.float32(1.0), 0, 0.5),
    ],
)
def test_scores_of_every_make(values):
    found = check_scores(values)
    assert found.dtype == (
        values.dtype if getattr(values, "dtype", None) == np.float16 else np.float64
    )
    np.testing.assert_array_equal(found, [1.0, 0.0, 0.5])


def test_what_is_no_finite_number_is_no_score():
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    np.testing.assert_array_equal(check_scores(masked), [1.0, np.nan])
    np.testing.assert_array_equal(
        check_scores([None, np.nan, np.inf, -np.inf, 3]), [*[np.nan] * 4, 3.0]
    )


def test_missing_in_pandas_is_missing():
    pd = pytest.importorskip("pandas")
    np.testing.assert_array_equal(check_scores(pd.Series([1.0, None])), [1.0, np.nan])
    np.testing.assert_array_equal(check_scores(pd.Series([1, pd.NA], dtype="Int64")), [1.0, np.nan])
    np.testing.assert_array_equal(
        check_correctness(pd.Series([True, False], dtype="boolean")), [True, False]
    )


@pytest.mark.parametrize("values", [["a", "b"], [[0.1, 0.9], [0.2, 0.8]], [0.1, [0.2]], "abc", 3.0])
def test_what_is_no_column_of_numbers_is_refused(values):
    with pytest.raises(InputError, match=r"must be a number|one entry per row|rectangular"):
        check_scores(values)


@pytest.mark.parametrize(
    "values",
    [
        [True, False],
        [1, 0],
        [1.0, 0.0],
        ["true", "false"],
        ["Yes", "NO"],
        ["PASS", "fail"],
        ["correct", "incorrect"],
        ["1", " 0 "],
        np.array([1, 0], dtype=np.uint8),
        np.array([True, False], dtype=object),
        [True, "no"],
    ],
)
def test_right_and_wrong_of_every_make(values):
    np.testing.assert_array_equal(check_correctness(values), [True, False])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([1, 0, 2], "row 2: correct must mark whether the row is correct, but it is 2"),
        ([0.5, 1.0], "row 0: correct must mark whether the row is correct, but it is 0.5"),
        (
            ["yes", "no", "maybe"],
            r"row 2: correct must mark whether the row is correct, but it is 'maybe'\.",
        ),
        (["good", "bad"], "row 0: correct must mark whether the row is correct, but it is 'good'"),
        ([1, None], "row 1: correct is missing"),
        ([1.0, np.nan], "row 1: correct is missing"),
        (["yes", ""], "row 1: correct is missing"),
        ([-1, 1], "row 0: correct must mark whether the row is correct, but it is -1"),
    ],
)
def test_right_and_wrong_are_not_guessed(values, complaint):
    with pytest.raises(InputError, match=complaint):
        check_correctness(values)


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────


def test_it_accepts_what_is_sure_enough_and_never_a_row_without_a_score(gate):
    limit = -gate.threshold_
    found = gate.decide([limit + 1e-6, limit - 1e-6, None, np.nan, np.inf, -np.inf])
    assert found.accept.tolist() == [True, False, False, False, False, False]
    assert len(found) == 6
    assert np.isnan(found.score[2:]).all()
    assert np.isnan(found.confidence[2:]).all()


def test_higher_may_be_doubtful():
    mark, right = population(2000)
    surer = calibrate(ScoreData(mark, right, score_name="mark"), mc.MinAccuracy(0.9))
    doubtful = calibrate(
        ScoreData(-mark, right, score_name="loss", higher_is="doubtful"), mc.MinAccuracy(0.9)
    )
    assert doubtful.threshold == surer.threshold
    new, _ = population(1000, seed=1)
    np.testing.assert_array_equal(surer.accepts(new), doubtful.accepts(-new))
    np.testing.assert_array_equal(surer.decide(new).confidence, doubtful.decide(-new).confidence)
    assert surer.condition.startswith("mark >= 0.")
    assert doubtful.condition.startswith("loss <= -0.")


def test_a_score_of_few_digits_is_shown_as_it_is_decided():
    mark, right = population(5000, digits=1)
    with pytest.warns(MetacalWarning, match="A score with more distinct values"):
        gate = calibrate(ScoreData(mark, right, score_name="mark"), mc.MinAccuracy(0.9))
    name, sign, shown = gate.condition.split()
    tenths = np.round(np.arange(11) / 10, 1)
    said = tenths > float(shown) if sign == ">" else tenths >= float(shown)
    assert (name, sign) == (
        "mark",
        ">",
    )  # the last tenth that was tested is rejected: "mark >= 0.4" would be a lie
    np.testing.assert_array_equal(gate.accepts(tenths), said)
    assert f"accept if {gate.condition}" in str(gate.certificate)


@pytest.mark.parametrize(
    "promise",
    [
        mc.MaxMiscoverage(0.1),
        mc.MinAccuracy(0.85),
        mc.Both(0.4, 0.85),
        mc.AfterLooking(0.5, 0.85),
        mc.MaxMiscoverage(0.1, delta=None),
        mc.MinAccuracy(0.85, delta=None),
        mc.paper.MaxMiscoverage(0.1, random_state=0),
        mc.paper.MinCoverageAccuracy(0.85, random_state=0),
    ],
)
def test_every_promise_that_needs_two_columns_works(promise):
    mark, right = population(2000)
    fitted = mc.ScoreGate(promise).fit(mark, right)
    assert 0.0 < fitted.accepts(mark).mean() < 1.0
    again = loads(dumps(fitted).encode())
    assert again.gate_ == fitted.gate_
    assert repr(again.promise) == repr(promise)


@pytest.mark.parametrize(
    "promise", [mc.MaxReview(0.3), mc.MaxCost(wrong=1.0, limit=0.15), mc.Cheapest(50.0, 1.0)]
)
def test_budgets_and_costs_need_no_classes(promise):
    mark, right = population(2000)
    fitted = mc.ScoreGate(promise).fit(mark, right)
    assert 0.0 < fitted.accepts(mark).mean() < 1.0
    assert loads(dumps(fitted).encode()).gate_ == fitted.gate_


def test_a_promise_for_each_class_needs_classes():
    with pytest.raises(InputError, match="PerClass has one threshold for each predicted class"):
        mc.ScoreGate(mc.PerClass(mc.MinAccuracy(0.9))).fit(*population(500))


def test_accepting_everything_still_rejects_what_has_no_score():
    gate = mc.ScoreGate(mc.MinAccuracy(0.5)).fit(*population(500))
    assert gate.threshold_ == np.inf
    assert gate.accepts([-1e300, None]).tolist() == [True, False]
    assert gate.gate_.condition == "there is a score"


# ── what is said ──────────────────────────────────────────────────────────────────────────────────


def test_rows_without_a_score_are_left_out_and_spoken_of():
    mark, right = population(2000)
    whole = calibrate(ScoreData(mark, right), mc.MaxMiscoverage(0.1))
    more, flags = np.append(mark, [np.nan] * 7), np.append(right, [True] * 7)
    with pytest.warns(MetacalWarning, match="7 of 2,007 rows have no score"):
        gate = calibrate(ScoreData(more, flags), mc.MaxMiscoverage(0.1))
    assert gate.threshold == whole.threshold
    assert gate.certificate.n_rows == 2000
    assert any("always rejected" in str(note) for note in gate.certificate.notes)
    assert gate.data_hash == whole.data_hash
    assert gate.find_fit_rows(gate.uncertainty_scores(more), flags).n_fit_rows == 2000
    assert gate.find_fit_rows(gate.uncertainty_scores(mark) + 0.1, right) is None


def test_a_score_that_is_upside_down_is_noticed_even_where_nothing_can_be_certified():
    mark, right = population(2000)
    with (
        pytest.warns(MetacalWarning, match="higher_is='doubtful'"),
        pytest.raises(mc.InfeasibleTargetError),
    ):
        calibrate(ScoreData(-mark, right), mc.MinAccuracy(0.95))
    with pytest.warns(MetacalWarning, match="higher_is='surer'"):
        calibrate(ScoreData(mark, right, higher_is="doubtful"), mc.MaxMiscoverage(0.1))


def test_a_score_that_says_nothing_is_not_called_upside_down(recwarn):
    rng = np.random.default_rng(3)
    for _ in range(50):
        calibrate(ScoreData(rng.random(300), rng.random(300) < 0.8), mc.MaxMiscoverage(0.1))
    assert not [entry for entry in recwarn if "higher" in str(entry.message)]


@pytest.mark.parametrize(
    ("score", "correct", "complaint"),
    [
        ([0.1, 0.2], [False, False], "No row is correct"),
        ([None, np.nan], [True, False], "No row has a score"),
        ([0.1, 0.2], [True], "2 and 1"),
        ([], [], "No row has a score"),
    ],
)
def test_what_cannot_be_fitted(score, correct, complaint):
    with pytest.raises(InputError, match=complaint):
        calibrate(ScoreData(score, correct), mc.MaxMiscoverage(0.1))


def test_all_right_is_fitted_with_a_warning():
    with pytest.warns(MetacalWarning, match="0 errors in 200 rows"):
        gate = calibrate(ScoreData(np.arange(200.0), np.ones(200, dtype=bool)), mc.MinAccuracy(0.9))
    assert gate.threshold == np.inf
    assert (gate.decide([0.0, 199.0]).confidence > 0.98).all()


@pytest.mark.parametrize("promise", [mc.MaxMiscoverage, "MaxMiscoverage", None])
def test_what_is_no_promise(promise):
    with pytest.raises(InputError, match="promise must be an object"):
        mc.ScoreGate(promise).fit([0.1], [True])
    with pytest.raises(
        InputError, match=r"higher_is must be 'surer' or 'doubtful', but got 'better'\."
    ):
        mc.ScoreGate(mc.MaxMiscoverage(0.1), higher_is="better").fit([0.1], [True])


@pytest.mark.parametrize("name", ["-mark", "mark\x1b[31m", "", "m" * 500])
def test_any_name_can_stand_in_a_certificate(name):
    gate = mc.ScoreGate(mc.MaxMiscoverage(0.1), score_name=name).fit(*population(500))
    assert str(gate.certificate_).isprintable() or "\n" in str(gate.certificate_)
    assert "\x1b" not in str(gate.certificate_)
    assert loads(dumps(gate).encode()).gate_ == gate.gate_


def test_it_certifies_what_a_gate_on_logits_with_the_same_score_does():
    (logits, labels), _ = mc.datasets.load("cifar10-resnet110").split(3000, random_state=0)
    for promise in (
        mc.MinAccuracy(0.96, delta=None),
        mc.MaxMiscoverage(0.05),
    ):  # neither sets rows aside
        by_logits = mc.MetaCal(promise).fit(logits, labels)
        by_score = mc.ScoreGate(promise, higher_is="doubtful", score_name="entropy")
        scores = by_logits.ranking_scores(logits)
        by_score.fit(scores, logits.argmax(axis=1) == labels)
        assert by_score.certificate_ == by_logits.certificate_
        assert by_score.gate_.data_hash == by_logits.data_hash_


@pytest.mark.parametrize("estimator", [mc.MetaCal, mc.ScoreGate])
def test_rows_that_are_not_tested_cannot_choose_where_tests_begin(estimator):
    """A fit could not notice that such rows overlap the tested ones, which breaks the promise."""
    with pytest.raises(TypeError, match="prior"):
        estimator(mc.MinAccuracy(0.9)).fit([0.9, 0.1], [1, 0], prior=[0.5, 0.6])


def test_each_group_of_scores_has_its_own_promise(tmp_path):
    """A threshold for each group, decided, judged and saved with it; a group that nobody has seen
    is rejected.
    """
    rng = np.random.default_rng(5)
    mark, group = rng.random(6000), rng.choice(["easy", "hard"], 6000)
    right = rng.random(6000) > (1 - mark) ** 2 * np.where(group == "hard", 1.0, 0.2)
    gate = mc.ScoreGate(mc.PerGroup(mc.MinAccuracy(0.9))).fit(
        mark[:4000], right[:4000], groups=group[:4000]
    )
    accept = gate.accepts(mark[4000:], group[4000:])
    for name in ("easy", "hard"):
        own = accept & (group[4000:] == name)
        assert right[4000:][own].mean() >= 0.88
    thresholds = dict(
        zip(
            gate.gate_.subgroup_thresholds.subgroup_names,
            gate.gate_.subgroup_thresholds.subgroup_thresholds,
            strict=True,
        )
    )
    assert thresholds["easy"] > thresholds["hard"]
    assert not mc.verify(gate, mark[4000:], right[4000:], groups=group[4000:]).refuted
    mc.save(gate, tmp_path / "gate.json")
    assert mc.load_gate(tmp_path / "gate.json") == gate.gate_
    with pytest.warns(MetacalWarning, match="not fitted on"):
        assert not gate.accepts([0.99], ["moon"])[0]
    coarse, names = np.round(mark, 2), group
    by_marks = mc.ScoreGate(mc.PerGroup(mc.MaxMiscoverage(0.25))).fit(coarse, right, groups=names)
    for kind in (
        np.float32,
        np.float16,
    ):  # a mark of .95 is another number there, and the same mark
        np.testing.assert_array_equal(
            by_marks.accepts(coarse.astype(kind), names),
            by_marks.accepts(coarse, names),
            err_msg=str(kind),
        )
    with pytest.raises(InputError, match="Pass the group"):
        gate.accepts(mark)
    with pytest.raises(InputError, match="PerGroup"):
        mc.ScoreGate(mc.MinAccuracy(0.9)).fit(mark, right, groups=group)


def test_groups_and_weights_choose_the_rows_that_count():
    mark, right = population(3000)
    groups = np.arange(3000) // 2
    gate = mc.ScoreGate(mc.MinAccuracy(0.85)).fit(mark, right, units=groups, random_state=1)
    assert gate.certificate_.n_rows + gate.certificate_.design.n_pilot_rows == 1500
    assert gate.certificate_.design.cluster_counting
    assert loads(dumps(gate).encode()).gate_ == gate.gate_
    with_gaps = np.where(np.arange(3000) % 6 == 0, np.nan, mark)
    with pytest.warns(MetacalWarning, match="have no score"):
        assert (
            mc.ScoreGate(mc.MaxMiscoverage(0.1))
            .fit(with_gaps, right, units=groups)
            .certificate_.n_rows
            == 1500
        )
    shifted = mc.ScoreGate(mc.MaxMiscoverage(0.1)).fit(
        mark, right, importance=np.where(mark > 0.5, 1.0, 0.25)
    )
    assert 1500 < shifted.certificate_.n_rows < 2300
    with pytest.raises(
        InputError,
        match="units must have one entry for each of the 3000 rows, but got an array of shape",
    ):
        mc.ScoreGate(mc.MaxMiscoverage(0.1)).fit(mark, right, units=groups[:5])
    for other in (groups[:5], np.append(groups, groups)):  # too many are as wrong as too few
        with pytest.raises(
            InputError,
            match="units must have one entry for each of the 3000 rows, but got an array of shape",
        ):
            gate.verify(mark, right, units=other)
    with pytest.raises(InputError, match="correct is a masked array with 1 entry masked"):
        mc.ScoreGate(mc.MinAccuracy(0.85)).fit(
            mark, np.ma.array(right, mask=np.arange(len(right)) == 0)
        )


# ── the estimator ─────────────────────────────────────────────────────────────────────────────────


def test_it_is_an_estimator(gate):
    fresh = clone(gate)
    assert fresh.get_params()["score_name"] == "mark"
    with pytest.raises(ValueError, match="not fitted"):
        fresh.accepts([0.1])
    assert "Not fitted" in fresh._repr_html_()
    assert "correct at least 90%" in gate._repr_html_()
    assert isinstance(gate.gate_, Gate)
    assert gate.threshold_ == gate.certificate_.threshold


def test_verify_and_monitor_take_it(gate):
    mark, right = population(4000, seed=2)
    assert not mc.verify(gate, mark, right).refuted
    assert not mc.verify(gate.gate_, [*mark, None], [*right, True]).refuted
    assert mc.verify(gate, mark, np.where(mark > 0.5, np.arange(4000) % 4 > 0, right)).refuted
    with pytest.raises(InputError, match="4000 and 3"):
        mc.verify(gate, mark, right[:3])
    (monitor,) = mc.PromiseMonitor.of(gate.certificate_)
    assert not monitor.update(gate.accepts(mark), right).alarm
    assert monitor.update(gate.accepts(np.ones(500)), np.arange(500) % 3 > 0).alarm


# ── confidence ────────────────────────────────────────────────────────────────────────────────────


def test_the_confidence_is_calibrated_and_does_not_depend_on_the_scale():
    mark, right = population(20_000)
    new, truth = population(20_000, seed=1)
    curve = fit_confidence(-mark, right)
    assert mc.metrics.ece(curve(-new), truth) < 0.015
    stretched = fit_confidence(-np.exp(20 * mark), right)
    np.testing.assert_allclose(stretched(-np.exp(20 * new)), curve(-new), atol=0.02)
    assert len(curve.knots) <= 129


def test_the_confidence_never_falls_with_sureness_whatever_the_rows():
    rng = np.random.default_rng(0)
    for n, values in ((1, 1), (2, 2), (5, 1), (50, 3), (1000, 10), (300, 300)):
        doubt = rng.integers(0, values, n).astype(np.float64)
        for right in (
            np.ones(n, dtype=bool),
            np.zeros(n, dtype=bool),
            rng.random(n) < 0.5,
            doubt > 0,
        ):
            curve = fit_confidence(doubt, right)
            assert (np.diff(curve.values) <= 0).all()
            assert ((curve.values > 0) & (curve.values < 1)).all()


@pytest.mark.parametrize(
    ("knots", "values"),
    [
        ([], []),
        ([1.0, 0.0], [0.5, 0.4]),
        ([0.0, 1.0], [0.4, 0.5]),
        ([0.0], [1.5]),
        ([np.nan], [0.5]),
        ([0.0], [0.5, 0]),
    ],
)
def test_what_is_no_curve(knots, values):
    with pytest.raises(InputError, match="confidence curve"):
        ConfidenceCurve(np.array(knots, dtype=np.float64), np.array(values, dtype=np.float64))


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


def test_save_and_load(gate, tmp_path):
    path = tmp_path / "gate.json"
    mc.save(gate, path)
    again = mc.load(path)
    assert isinstance(again, mc.ScoreGate)
    assert again.gate_ == gate.gate_
    assert again.get_params() == gate.get_params()
    assert mc.load_gate(path) == gate.gate_
    mc.save(gate.gate_, tmp_path / "bare.json")
    assert (tmp_path / "bare.json").read_bytes() == path.read_bytes()
    bare = replace(gate.gate_.with_source(curve=None), data_hash=None, row_hash_sample=None)
    mc.save(bare, path)
    assert mc.load_gate(path) == bare
    assert mc.load_gate(path).decide([0.9]).confidence is None


def test_what_is_not_saved(gate):
    with pytest.raises(ArtifactError, match=r"not fitted\. Call fit"):
        dumps(clone(gate))
    changed = clone(gate).fit(*population(2000)).set_params(promise=mc.MaxMiscoverage(0.3))
    with pytest.raises(ArtifactError, match="promise was changed after fit"):
        dumps(changed)


def forged(gate, change):
    document = json.loads(dumps(gate))
    change(document)
    document["checksum"] = checksum(document)
    return json.dumps(document).encode()


def source(document):
    return document["stages"][0]["source"]


FORGERIES = {
    "higher_is turned": lambda d: source(d).update(higher_is="doubtful"),
    "higher_is unknown": lambda d: source(d).update(higher_is="better"),
    "Rename the column": lambda d: source(d).update(score="other"),
    "a name with a minus": lambda d: (
        source(d).update(score="-mark"),
        d["certificate"].update(score="--mark"),
    ),
    "a control character": lambda d: source(d).update(score="mark\x07"),
    "looser threshold": lambda d: d["stages"][0].update(
        threshold=d["stages"][0]["threshold"] + 0.1
    ),
    "both thresholds": lambda d: (
        d["stages"][0].update(threshold=0.0),
        d["certificate"].update(threshold=0.0),
    ),
    "a better promise": lambda d: d["certificate"].update(target=0.99),
    "fewer errors": lambda d: d["certificate"].update(
        n_correct_accepted=d["certificate"]["n_accepted"]
    ),
    "another promise": lambda d: d["promise"].update(beta=0.99),
    "a curve that rises": lambda d: source(d)["curve"]["values"].update(base64="AAAA"),
    "a curve of another kind": lambda d: source(d)["curve"].update(type="TemperatureMap"),
    "a key too many": lambda d: d.update(classes=[]),
    "a key too few": lambda d: source(d).pop("curve"),
    "a bad hash": lambda d: d.update(data_hash="md5:0"),
    "an infinite share": lambda d: d["certificate"].update(selective_accuracy="-inf"),
    "nothing promised": lambda d: d.update(certificate=None),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_files_are_refused(gate, name):
    with pytest.raises(ArtifactError):
        loads(forged(gate, FORGERIES[name]))
    assert loads(forged(gate, lambda document: None)).gate_ == gate.gate_


# ── ONNX ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("opset", [11, 17])
def test_onnx_decides_as_python_does(gate, tmp_path, dtype, opset):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from metacal.export.onnx import save

    saved = save(gate, tmp_path / "gate.onnx", dtype=dtype, opset=opset)
    assert saved.outputs == ("accept", "confidence")
    assert saved.metadata["metacal.promise"] == gate.certificate_.statement
    scores = np.append(
        np.random.default_rng(0).random(5000) * 2 - 0.5, [np.nan, np.inf, -np.inf]
    ).astype(dtype)
    accept, confidence = runtime.InferenceSession(tmp_path / "gate.onnx").run(
        None, {"scores": scores}
    )
    wanted = gate.decide(scores)
    np.testing.assert_array_equal(accept, wanted.accept)
    np.testing.assert_allclose(confidence, wanted.confidence, atol=1e-12)


@pytest.mark.slow
def test_a_narrow_type_does_not_carry_ties_across_the_threshold(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from metacal.export.onnx import save, to_onnx

    mark, right = population(3000, digits=2)
    for promise in (mc.MaxMiscoverage(0.2), mc.MinAccuracy(0.9)):
        with pytest.warns(MetacalWarning):
            gate = mc.ScoreGate(promise).fit(mark, right)
        wanted = gate.accepts(mark)
        for dtype in (np.float32, np.float16):
            np.testing.assert_array_equal(gate.accepts(mark.astype(dtype)), wanted)
            save(gate, tmp_path / "gate.onnx", dtype=np.dtype(dtype).name)
            session = runtime.InferenceSession(tmp_path / "gate.onnx")
            np.testing.assert_array_equal(
                session.run(["accept"], {"scores": mark.astype(dtype)})[0], wanted
            )
    with pytest.raises(InputError, match="does not support input=logits"):
        to_onnx(gate, dtype="float64", input="logits")


@pytest.mark.parametrize("promise", [mc.MaxMiscoverage(0.2), mc.MinAccuracy(0.9)])
def test_where_a_narrow_type_cannot_tell_the_safe_side_is_taken(promise):
    mark, right = population(3000)
    gate = calibrate(ScoreData(1.0 + 1e-8 * mark, right), promise)
    assert 0.0 < gate.accepts(1.0 + 1e-8 * mark).mean() < 1.0
    assert gate.accepts(np.float32([1.0])).tolist() == [isinstance(promise, mc.MaxMiscoverage)]


@pytest.mark.parametrize("names", [None, ["name", "date", "sum"]])
def test_a_table_of_scores_has_a_promise_for_each_label(names):
    rng = np.random.default_rng(0)
    score = rng.random((900, 3))
    true = rng.random((900, 3)) < score
    precise = mc.ScoreGate(mc.PerGroup(mc.MinAccuracy(0.75))).fit(score, true, groups=names)
    given = precise.accepts(score, groups=names)
    assert given.shape == score.shape
    assert all(true[given[:, k], k].mean() > 0.75 for k in range(3))
    flat, labels = flatten_score_table(score, names)
    assert (precise.accepts(flat, labels).reshape(score.shape) == given).all()
    assert not mc.verify(precise, flat, true.reshape(-1), groups=labels).refuted
    found = (
        mc.ScoreGate(mc.PerGroup(mc.MaxMiscoverage(0.15)))
        .fit(score, true, groups=names)
        .accepts(score, names)
    )
    assert all(found[true[:, k], k].mean() > 0.85 for k in range(3))
    together = mc.ScoreGate(mc.MinAccuracy(0.75)).fit(score, true, groups=names)
    assert together.certificate_.design.cluster_counting is not None
    assert true[together.accepts(score)].mean() > 0.75
    with pytest.raises(InputError, match="name for each of the 3 labels"):
        precise.accepts(score, groups=["a"])
    with pytest.raises(InputError, match="the same shape"):
        precise.fit(score, true[:, 0])


def test_a_table_is_verified_as_its_entries_are():
    rng = np.random.default_rng(3)
    score, names = rng.random((900, 3)), ["name", "date", "sum"]
    right = rng.random((900, 3)) < score
    flat, good, own = score.reshape(-1), right.reshape(-1), np.tile(names, 900)
    by_field = mc.ScoreGate(mc.PerGroup(mc.MinAccuracy(0.75))).fit(score, right, groups=names)
    expected = mc.verify(by_field, flat, good, groups=own).to_dict()
    assert by_field.verify(score, right, groups=names).to_dict() == expected
    together = mc.ScoreGate(mc.MinAccuracy(0.75)).fit(score, right)
    expected = mc.verify(together, flat, good, units=np.repeat(np.arange(900), 3)).to_dict()
    assert (
        together.verify(score, right).to_dict()
        == mc.verify(together.gate_, score, right).to_dict()
        == expected
    )
    with pytest.raises(InputError, match="scores of a table"):
        together.verify(score, right.T)
    with pytest.raises(
        InputError, match="one entry per row"
    ):  # a gate of one column promises nothing about tables
        mc.ScoreGate(mc.MinAccuracy(0.75)).fit(flat, good).verify(score, right)


def draw_partly_labelled_table(seed, n_rows=900):
    """Draw scores and correctness of three fields, with missing labels and missing scores."""
    rng = np.random.default_rng(seed)
    score = rng.random((n_rows, 3))
    correct = (rng.random(score.shape) < score).astype(object)
    correct[rng.random(score.shape) < [0.14, 0.3, 0.55]] = None
    score[:50, 1] = np.nan  # some of these entries have no label either
    return score, correct


def test_entries_without_a_label_are_left_out_wherever_a_table_is_taken():
    names = ["name", "date", "sum"]
    score, correct = draw_partly_labelled_table(4)
    promise = mc.PerGroup(mc.MaxMiscoverage(0.3))
    with pytest.warns(mc.MetacalWarning, match=r"of 2,700 entries have no label"):
        gate = mc.ScoreGate(promise).fit(score, correct, groups=names)
    n_labelled = (~np.isnan(score) & np.not_equal(correct, None)).sum(axis=0)
    n_rows = {item.name: item.n_rows for item in gate.certificate_.subgroups.items}
    assert n_rows == dict(zip(names, n_labelled.tolist(), strict=True))
    columns = {"groups": np.tile(names, 900)}
    flat = mc.ScoreGate(promise).fit(score.ravel(), correct.ravel(), **columns)
    assert flat.gate_ == gate.gate_

    new_score, new_correct = draw_partly_labelled_table(5)
    is_used = (~np.isnan(new_score) & np.not_equal(new_correct, None)).ravel()
    used = new_score.ravel()[is_used], new_correct.ravel()[is_used]
    groups_of_used = np.tile(names, 900)[is_used]
    expected = mc.verify(gate, *used, groups=groups_of_used).to_dict()
    assert mc.verify(gate, new_score, new_correct, groups=names).to_dict() == expected
    flat_columns = new_score.ravel(), new_correct.ravel()
    assert mc.verify(gate, *flat_columns, **columns).to_dict() == expected
    expected = mc.evaluate(gate, *used, groups=groups_of_used, n_resamples=0).to_dict()
    found = mc.evaluate(gate, new_score, new_correct, groups=names, n_resamples=0)
    assert found.to_dict() == expected
    summary = summarise(new_score, new_correct, gate, groups=names, n_resamples=0)
    assert summary.source.n_rows == is_used.sum()
    assert summary.source.n_without_score == 50


def test_rows_of_a_table_with_a_gap_are_left_out_of_a_promise_about_rows():
    score, correct = draw_partly_labelled_table(6, n_rows=3000)
    has_gap = (~np.isnan(score) & np.equal(correct, None)).any(axis=1)
    with pytest.warns(mc.MetacalWarning, match=rf"{has_gap.sum():,} of 3,000 rows of the table"):
        gate = mc.ScoreGate(mc.MinAccuracy(0.7)).fit(score, correct)
    assert gate.certificate_.n_rows <= 3 * (~has_gap).sum()


def test_a_table_without_any_label_is_refused():
    score, correct = draw_partly_labelled_table(7)
    correct[:] = None
    for promise in (mc.PerGroup(mc.MinAccuracy(0.7)), mc.MinAccuracy(0.7)):
        with pytest.raises(mc.InputError, match="lacks a label"):
            mc.ScoreGate(promise).fit(score, correct)
