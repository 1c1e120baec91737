"""Two classes: one score per row, labels of any two values, which come back as they came."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.linear_model import LogisticRegression

import metacal as mc
from metacal.cli import main

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=600) * 2.0
POSITIVE = RNG.random(600) < 1.0 / (1.0 + np.exp(-1.5 * SCORES))
PAIR = np.column_stack([np.zeros(600), SCORES])
LABELS = {
    "bool": np.array([False, True]),
    "float": np.array([0.0, 1.0]),
    "halves": np.array([0.5, 2.5]),
    "minus one": np.array([-1, 1]),
    "one and two": np.array([1, 2]),
    "names": np.array(["fine", "fraud"]),
    "plain": np.array([0, 1]),
}


def fitted(kind="plain", X=SCORES, **options):
    values = LABELS[kind]
    if kind == "names":
        options.setdefault("positive", "fraud")
    return mc.MetaCal(mc.MinAccuracy(0.9), **options).fit(X, values[POSITIVE.astype(int)])


@pytest.mark.parametrize("kind", LABELS)
def test_labels_come_back_as_they_came(kind, tmp_path):
    values = LABELS[kind]
    y = values[POSITIVE.astype(int)]
    cal, base = fitted(kind), mc.PlattScaling(positive=values[1].item()).fit(SCORES, y)
    assert base.predict(SCORES).dtype == values.dtype
    assert cal.classes_.tolist() == values.tolist()
    said, accept = cal.predict(SCORES), cal.accepts(SCORES)
    assert 0 < accept.sum() < 600
    assert {type(label) for label in said[accept].tolist()} == {type(values[0].item())}
    assert not np.isin(said[~accept], values).any()
    assert (said[accept] == y[accept]).mean() > 0.85
    mc.save(cal, tmp_path / "gate.json")
    again = mc.load(tmp_path / "gate.json")
    assert again.predict(SCORES).tolist() == said.tolist()
    assert again.classes_.dtype.kind == values.dtype.kind


@pytest.mark.parametrize(
    "X", [SCORES[:, None], PAIR, SCORES.tolist()], ids=["column", "pair", "list"]
)
def test_every_shape_of_one_score(X):
    cal = fitted()
    assert np.array_equal(fitted(X=X).predict_proba(X), cal.predict_proba(SCORES))
    assert np.array_equal(cal.accepts(X), cal.accepts(PAIR))
    assert np.array_equal(cal.gate_.decide(X).label, cal.predict(PAIR))


def test_probabilities_of_the_positive_class():
    p = 1.0 / (1.0 + np.exp(-SCORES))
    cal = fitted(X=p, input="probabilities")
    assert np.allclose(cal.predict_proba(p), fitted().predict_proba(SCORES), atol=1e-6)
    assert mc.metrics.nll(p, POSITIVE) == pytest.approx(
        mc.metrics.nll(np.column_stack([1 - p, p]), POSITIVE)
    )
    assert mc.metrics.ece(p[:, None], np.where(POSITIVE, 1, -1)) == pytest.approx(
        mc.metrics.ece(np.column_stack([1 - p, p]), POSITIVE)
    )
    with pytest.raises(mc.InputError, match=r"row 0 holds 1\.5.*decision_function"):
        mc.PlattScaling(input="probabilities").fit([1.5, 0.2], [0, 1])


def test_positive_turns_the_score():
    turned = mc.PlattScaling(positive=0).fit(-SCORES, POSITIVE.astype(int))
    assert turned.classes_.tolist() == [1, 0]
    straight = mc.PlattScaling().fit(SCORES, POSITIVE.astype(int))
    assert np.allclose(
        turned.predict_proba(-SCORES)[:, ::-1], straight.predict_proba(SCORES), atol=1e-6
    )
    assert mc.PlattScaling(classes=["a", "b"], positive="a").fit(
        SCORES, POSITIVE.astype(int)
    ).classes_.tolist() == [
        "b",
        "a",
    ]


@pytest.mark.parametrize(
    ("options", "labels", "message"),
    [
        ({}, LABELS["names"][POSITIVE.astype(int)], "with positive"),
        (
            {"positive": "theft"},
            LABELS["names"][POSITIVE.astype(int)],
            "one of the labels",
        ),
        ({}, np.arange(600) % 3, "n_features=1.*3 values"),
        ({"reject_label": 1}, POSITIVE.astype(int), "reject_label must not be one of the classes"),
    ],
)
def test_what_cannot_be_known_is_asked_before_any_training(options, labels, message, monkeypatch):
    monkeypatch.setattr("metacal.gate.logits_data.find_subgroups_by_class_or_group", None)
    with pytest.raises(mc.InputError, match=message):
        mc.MetaCal(mc.MinAccuracy(0.9), **options).fit(SCORES, labels)


def test_positive_is_for_two_classes():
    with pytest.raises(mc.InputError, match="two classes, but the table has 3"):
        mc.PlattScaling(positive=1).fit(np.zeros((6, 3)), [0, 1, 2] * 2)


@pytest.mark.parametrize("kind", ["bool", "float", "minus one", "names"])
def test_classifier_keeps_its_labels(kind):
    y = LABELS[kind][POSITIVE.astype(int)]
    gate = mc.CalibratedClassifier(LogisticRegression(), mc.MinAccuracy(0.8)).fit(
        SCORES[:, None], y
    )
    accept = gate.accepts(SCORES[:, None])
    assert {type(label) for label in gate.predict(SCORES[:, None])[accept].tolist()} == {
        type(y[0].item())
    }


def test_one_score_in_a_file(tmp_path):
    names = LABELS["names"][POSITIVE.astype(int)]
    lines = [f"{score!r},{name}" for score, name in zip(SCORES.tolist(), names)]
    (tmp_path / "val.csv").write_text("\n".join(["margin,label", *lines]))
    fit = [
        "fit",
        str(tmp_path / "val.csv"),
        "--min-accuracy",
        "0.9",
    ]  # a margin alone beside labels is the score
    saved = str(tmp_path / "cal.json")
    asked = CliRunner().invoke(main, fit)
    assert asked.exit_code == 2
    assert "--positive" in asked.output
    assert CliRunner().invoke(main, [*fit, "--positive", "fraud", "-o", saved]).exit_code == 0
    again = mc.load(saved)
    assert again.classes_.tolist() == ["fine", "fraud"]
    assert np.array_equal(again.accepts(SCORES), fitted("names").accepts(SCORES))
    # One score and a stray column are not taken for the two classes.
    (tmp_path / "new.csv").write_text(
        "\n".join(["margin,age", *(f"{score!r},40" for score in SCORES.tolist())])
    )
    apply = ["apply", saved, str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv")]
    asked = CliRunner().invoke(main, apply)
    assert asked.exit_code == 2
    assert "no column has the name of a class of the gate" in asked.output
    assert CliRunner().invoke(main, [*apply, "--logits-key", "margin"]).exit_code == 0


def test_auto_never_falls_and_is_as_good_as_its_base():
    labels, along = POSITIVE.astype(int), np.linspace(-20.0, 20.0, 400)
    auto, base = (
        mc.AutoCalibrator().fit(SCORES, labels),
        mc.MonotoneCalibration().fit(SCORES, labels),
    )
    for fitted_map in (auto, base):
        chance = fitted_map.predict_proba(along)[:, 1]
        assert (np.diff(chance) >= 0.0).all()
        assert 0.0 < chance[0] < chance[-1] < 1.0
    assert set(auto.weights_) <= {"monotone", "beta", "isotonic"}
    assert (
        mc.metrics.nll(auto.predict_proba(SCORES), labels)
        < mc.metrics.nll(base.predict_proba(SCORES), labels) + 0.002
    )


def test_the_base_has_the_share_of_the_class():
    rng = np.random.default_rng(0)
    score = rng.normal(size=5000)
    rare = rng.random(5000) < 1.0 / (1.0 + np.exp(5.0 - 1.5 * score))
    shifted = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(score + 4.0, rare)  # as after class weights
    said = shifted.gate_.source.map(np.column_stack([np.zeros(5000), score + 4.0]))[:, 1]
    assert abs(said.mean() - rare.mean()) < 0.001
    temperature = mc.TemperatureScaling().fit(score + 4.0, rare).predict_proba(score + 4.0)[:, 1]
    assert abs(temperature.mean() - rare.mean()) > 0.2
