"""Bad input gives one clear error before any work; odd but legal input gives right answers."""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from metacal.rows import validate
from metacal.scores import NAMED

GOOD = np.random.default_rng(0).normal(size=(60, 3))
LABELS = GOOD.argmax(axis=1)
LABELS[:6] = (LABELS[:6] + 1) % 3


def spoiled(row, column, value):
    table = GOOD.copy()
    table[row, column] = value
    return table


BAD_TABLES = {
    "nan": (spoiled(7, 1, np.nan), "row 7, column 1 is NaN"),
    "plus infinity": (spoiled(8, 2, np.inf), "row 8, column 2 is infinity"),
    "all masked": (
        np.where(np.arange(60)[:, None] == 9, -np.inf, GOOD),
        "row 9 has -infinity in every column",
    ),
    "1-D": (GOOD[:, 0], "must be 2-D"),
    "3-D": (GOOD[None], "must be 2-D"),
    "one column": (GOOD[:, :1], "at least 2 columns"),
    "empty": (GOOD[:0], "is empty"),
    "text": (np.full((60, 3), "cat"), "must be numbers"),
    "complex": (GOOD + 1j, "Complex"),
    "ragged": ([[1.0, 2.0], [1.0]], "different lengths"),
    "dates": (np.zeros((60, 3), dtype="datetime64[s]"), "must be numbers"),
}

BAD_LABELS = {
    "too large": (np.where(np.arange(60) == 4, 3, LABELS), "row 4 has label 3"),
    "negative": (np.where(np.arange(60) == 4, -1, LABELS), "row 4 has label -1"),
    "from one": (LABELS + 1, "labels - 1"),
    "fewer": (LABELS[:-1], r"60 rows and 59 labels\."),
    "one-hot": (np.eye(3)[LABELS], "argmax"),
    "continuous": (LABELS + 0.5, "continuous"),
    "nan": (np.where(np.arange(60) == 5, np.nan, LABELS), "row 5"),
    "missing": (np.array([None, *LABELS[1:]], dtype=object), "missing in 1 rows"),
    "strings": (np.array(["a", "b", "c"])[LABELS], "classes="),
    "mixed": (np.array(["a", *LABELS[1:]], dtype=object), "mixture"),
}


def estimators():
    return [
        mc.TemperatureScaling(),
        mc.MetaCal(mc.MaxMiscoverage(0.1)),
        mc.MetaCal(mc.MinAccuracy(0.8)),
    ]


@pytest.mark.parametrize("estimator", estimators(), ids=["temperature", "miscoverage", "accuracy"])
@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_table(estimator, case):
    table, message = BAD_TABLES[case]
    with pytest.raises(mc.InputError, match=message):
        estimator.fit(table, LABELS)


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_table_at_prediction(case):
    table, message = BAD_TABLES[case]
    cal = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(GOOD, LABELS)
    for method in (cal.predict_proba, cal.predict, cal.accepts, cal.ranking_scores):
        with pytest.raises(ValueError, match=f"{message}|is expecting 3 features"):
            method(table)


@pytest.mark.parametrize("estimator", estimators(), ids=["temperature", "miscoverage", "accuracy"])
@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels(estimator, case):
    labels, message = BAD_LABELS[case]
    with pytest.raises(mc.InputError, match=message):
        estimator.fit(GOOD, labels)


@pytest.mark.parametrize("promise", [mc.MaxMiscoverage(0.1), mc.MinAccuracy(0.1)])
def test_all_wrong(promise):
    with pytest.raises(mc.InputError, match="No calibration row is classified correctly"):
        mc.MetaCal(promise).fit(GOOD, (GOOD.argmax(axis=1) + 1) % 3)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1.5, 5, float("nan"), "0.1", None, True])
@pytest.mark.parametrize("promise", [mc.MaxMiscoverage, mc.MinAccuracy, mc.paper.MaxMiscoverage])
def test_targets_outside_zero_one(promise, value):
    with pytest.raises(mc.InputError, match="strictly between 0 and 1"):
        promise(value)


@pytest.mark.parametrize("value", [0.0, 1.0, 2, "x"])
def test_delta_outside_zero_one(value):
    with pytest.raises(mc.InputError, match="delta must be"):
        mc.MaxMiscoverage(0.1, delta=value)


def test_percentages_get_a_hint():
    with pytest.raises(mc.InputError, match=r"Write 97% as 0\.97"):
        mc.MinAccuracy(97)


def test_probabilities_are_checked_and_never_guessed():
    probabilities = np.exp(GOOD) / np.exp(GOOD).sum(axis=1, keepdims=True)
    with pytest.raises(mc.InputError, match="row 0 sums to"):
        mc.TemperatureScaling(input="probabilities").fit(probabilities * 0.9, LABELS)
    with pytest.raises(mc.InputError, match=r"in \[0, 1\].*input='logits'"):
        mc.TemperatureScaling(input="probabilities").fit(GOOD, LABELS)
    with pytest.raises(mc.InputError, match="'logits' or 'probabilities'"):
        mc.TemperatureScaling(input="probs").fit(probabilities, LABELS)
    from_logits = mc.TemperatureScaling().fit(GOOD, LABELS).temperature_
    from_probabilities = (
        mc.TemperatureScaling(input="probabilities").fit(probabilities, LABELS).temperature_
    )
    assert from_probabilities == pytest.approx(from_logits, rel=1e-9)


def test_zero_probabilities_stay_finite():
    logits = validate.read_logits([[1.0, 0.0], [0.5, 0.5]], "probabilities")
    assert np.isfinite(logits).all()
    assert logits[0, 1] == np.log(np.finfo(float).eps)
    tiny = validate.read_logits([[1.0, 1e-30, 0.0]], "probabilities")
    assert tiny[0, 2] == tiny[0, 1]  # never above a class that the model did give something


def test_energy_of_probabilities_is_refused():
    probabilities = np.full((60, 3), 1 / 3)
    with pytest.raises(mc.InputError, match="energy"):
        mc.MetaCal(mc.MaxMiscoverage(0.1), score="energy", input="probabilities").fit(
            probabilities, LABELS
        )


def test_a_masked_class_is_legal_everywhere():
    masked = GOOD.copy()
    masked[np.arange(60), (LABELS + 1) % 3] = -np.inf
    correct = masked.argmax(axis=1) == LABELS
    assert correct.any()
    for score in NAMED:
        values = mc.scores.resolve_score(score)(masked)
        assert np.isfinite(values).all()
    with np.errstate(invalid="raise", divide="raise", over="raise"):
        cal = mc.MetaCal(mc.MaxMiscoverage(0.3)).fit(masked, LABELS)
        probabilities = cal.predict_proba(masked)
    accepted = cal.accepts(masked)
    assert (probabilities[accepted][~np.isfinite(masked[accepted])] == 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    # the entropy of three classes with one masked is that of the other two alone
    np.testing.assert_allclose(
        NAMED["entropy"](np.array([[1.0, -np.inf, 0.5]])),
        NAMED["entropy"](np.array([[1.0, 0.5]])),
        rtol=1e-14,
    )


def test_a_masked_true_class_is_left_out_of_the_temperature():
    masked = GOOD.copy()
    masked[0, LABELS[0]] = -np.inf
    with pytest.warns(
        mc.MetacalWarning, match="In 1 of 60 rows, the logit of the true class is -inf"
    ):
        fitted = mc.TemperatureScaling().fit(masked, LABELS).temperature_
    assert fitted == pytest.approx(
        mc.TemperatureScaling().fit(GOOD[1:], LABELS[1:]).temperature_, rel=1e-9
    )


def test_all_right_gives_a_bounded_temperature_and_a_warning():
    with pytest.warns(mc.MetacalWarning, match="Every row is correct"):
        temperature = mc.TemperatureScaling().fit(GOOD, GOOD.argmax(axis=1)).temperature_
    assert 0 < temperature < 1
    with pytest.warns(mc.MetacalWarning, match="If these rows are training data"):
        cal = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(GOOD, GOOD.argmax(axis=1))
    assert any("training data" in str(note) for note in cal.certificate_.notes)


def test_uninformative_logits_give_a_bounded_temperature_and_a_warning():
    with pytest.warns(mc.MetacalWarning, match="do not help to predict the labels"):
        assert 0 < mc.TemperatureScaling().fit(GOOD, GOOD.argmin(axis=1)).temperature_ < 1e6
    with pytest.warns(mc.MetacalWarning, match="logits of every row are equal"):
        assert mc.TemperatureScaling().fit(np.ones((60, 3)), LABELS).temperature_ == 1.0


def test_integer_and_half_precision_logits_give_the_float_answer():
    whole = np.round(GOOD * 5).astype(np.int32)
    expected = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(whole.astype(float), LABELS)
    for dtype in (np.int8, np.int64, np.float16, np.float32):
        cal = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(whole.astype(dtype), LABELS)
        assert cal.threshold_ == pytest.approx(
            expected.threshold_, rel=1e-12
        )  # each dtype has a loop of its own
        np.testing.assert_allclose(
            cal.predict_proba(whole.astype(dtype)),
            expected.predict_proba(whole.astype(float)),
            rtol=1e-6,
        )


def test_dtype_is_a_promise():
    cal = mc.TemperatureScaling().fit(GOOD, LABELS)
    assert cal.predict_proba(GOOD).dtype == np.float64
    assert cal.predict_proba(GOOD.astype(np.float32)).dtype == np.float32
    assert cal.predict_proba(GOOD.astype(np.float16)).dtype == np.float32


def test_lists_frames_and_other_byte_orders_are_taken():
    import pandas

    expected = mc.TemperatureScaling().fit(GOOD, LABELS).temperature_
    for table in (
        GOOD.tolist(),
        pandas.DataFrame(GOOD, columns=list("abc")),
        GOOD.astype(">f8"),
        GOOD[::-1][::-1],
    ):
        assert mc.TemperatureScaling().fit(
            table, pandas.Series(LABELS)
        ).temperature_ == pytest.approx(expected, 1e-12)


def test_class_order_is_explicit():
    names = np.array(["dog", "ant", "cat"])
    cal = mc.MetaCal(mc.MaxMiscoverage(0.1), classes=names, reject_label="ask a person").fit(
        GOOD, names[LABELS]
    )
    predicted = cal.predict(GOOD)
    accept = cal.accepts(GOOD)
    assert (predicted[accept] == names[GOOD[accept].argmax(axis=1)]).all()
    assert (predicted[~accept] == "ask a person").all()
    for classes, message in (
        (["a", "b"], "has 2 names, but the table has 3"),
        (["a", "a", "b"], "classes must not contain a name twice,"),
        ([0.5, 1.5, 2.5], "integers or a flat list of strings"),
        (["a", "b", "c"], "not one of the 3 classes"),
    ):
        with pytest.raises(mc.InputError, match=message):
            mc.MetaCal(mc.MaxMiscoverage(0.1), classes=classes, reject_label="x").fit(
                GOOD, names[LABELS]
            )


def test_reject_label_is_checked():
    with pytest.raises(mc.InputError, match="must not be one of the classes"):
        mc.MetaCal(mc.MaxMiscoverage(0.1), reject_label=2).fit(GOOD, LABELS)
    with pytest.raises(mc.InputError, match="must be a string"):
        mc.MetaCal(mc.MaxMiscoverage(0.1), reject_label=-1, classes=["a", "b", "c"]).fit(
            GOOD, LABELS
        )
    with pytest.raises(mc.InputError, match="must be an integer"):
        mc.MetaCal(mc.MaxMiscoverage(0.1), reject_label=np.nan).fit(GOOD, LABELS)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(59), "shape"),
        (-np.ones(60), "sample_weight must be finite and nonnegative, but"),
        (np.zeros(60), "zero for every"),
        ([np.nan] * 60, "finite"),
    ],
)
def test_bad_weights(weights, message):
    with pytest.raises(mc.InputError, match=message):
        mc.TemperatureScaling().fit(GOOD, LABELS, sample_weight=weights)


@pytest.mark.parametrize("n_jobs", [0, 1.5, "2", True])
def test_bad_n_jobs(n_jobs):
    with pytest.raises(mc.InputError, match="n_jobs"):
        mc.TemperatureScaling(n_jobs=n_jobs).fit(GOOD, LABELS)
