"""Which rows a certificate counts: one of each group, rows in proportion to weights."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.model_selection import GroupKFold, KFold
from sklearn.naive_bayes import GaussianNB

import metacal as mc
from metacal.certificates import words
from metacal.certificates.design import CertificationDesign
from metacal.certificates.next_rows import ReviewRate, predict_review_count
from metacal.certification.importance import Importance
from metacal.certification.row_selection import build_row_selection
from metacal.cli import main
from metacal.io.artifact.wrapping import checksum

(LOGITS, LABELS), _ = mc.datasets.load("cifar10-resnet110").split(1500, random_state=0)
TWICE, TWICE_LABELS = np.repeat(LOGITS, 2, axis=0), np.repeat(LABELS, 2)
GROUPS = np.repeat([f"video {k}" for k in range(1500)], 2)


def test_one_row_of_each_group_whatever_its_names():
    for groups in (
        ["b", "a", "b", "a", "c"],
        [2, 1, 2, 1, 7],
        np.array(["b", 1, "b", 1, "c"], dtype=object),
    ):
        found = build_row_selection(5, groups).draw(np.arange(5.0))
        assert len(found.indices) == 3
        assert len({str(groups[row]) for row in found.indices}) == 3
        assert (
            np.asarray(groups, dtype=str)[found.indices][found.representatives]
            == np.asarray(groups, dtype=str)
        ).all()


def test_every_row_of_a_group_is_as_likely():
    counts = np.zeros(4)
    for seed in range(900):
        counts[
            build_row_selection(4, [0, 0, 0, 1], random_state=seed).draw(np.arange(4.0)).indices
        ] += 1
    assert counts[3] == 900
    assert abs(counts[:3] - 300).max() < 4 * np.sqrt(900 * 2 / 9)


def test_rows_are_kept_in_proportion():
    weights = np.repeat([1.0, 3.0, 4.0], 4000)
    kept = build_row_selection(12_000, importance=weights).draw(np.arange(12_000.0)).indices
    shares = np.bincount(kept // 4000) / 4000
    np.testing.assert_allclose(shares, [0.25, 0.75, 1.0], atol=0.04)
    half = (
        build_row_selection(12_000, importance=Importance(weights, largest=8.0))
        .draw(np.arange(12_000.0))
        .indices
    )
    assert abs(len(half) / len(kept) - 0.5) < 0.05


@pytest.mark.parametrize(
    ("groups", "importance", "match"),
    [
        (
            [1, 2],
            None,
            "units must have one entry for each of the 3 rows, but got an array of shape",
        ),
        ([1.0, np.nan, 2.0], None, "Row 1 has no cluster"),
        (["a", None, "b"], None, "Row 1 has no cluster"),
        (None, [1.0, -1.0, 1.0], "importance must be finite and"),
        (None, Importance([1.0, 2.0, 3.0], largest=2.0), "the largest weight"),
    ],
)
def test_bad_groups_and_weights(groups, importance, match):
    with pytest.raises(mc.InputError, match=match):
        build_row_selection(3, groups, importance)


def test_the_certificate_says_how_many_units_and_the_base_learns_from_all_rows(tmp_path):
    alone = mc.MetaCal(mc.MinAccuracy(0.95)).fit(LOGITS, LABELS)
    with pytest.warns(mc.MetacalWarning, match="name the cluster of each row"):
        mc.MetaCal(mc.MinAccuracy(0.95)).fit(TWICE, TWICE_LABELS)
    grouped = mc.MetaCal(mc.MinAccuracy(0.95)).fit(TWICE, TWICE_LABELS, units=GROUPS)
    thrice = [np.repeat(column, 3, axis=0) for column in (LOGITS, LABELS, np.arange(1500))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # copies tie, but only one of each is counted
        mc.MetaCal(mc.MinAccuracy(0.95)).fit(*thrice[:2], units=thrice[2])
    assert grouped.threshold_ == alone.threshold_  # copies are equal: whichever is drawn
    assert grouped.calibrator_.temperature_ == pytest.approx(
        alone.calibrator_.temperature_, rel=1e-6
    )
    certificate = grouped.certificate_
    assert (certificate.n_rows, certificate.guarantee) == (1495, "certified")
    assert ", one row of each cluster" in words.describe_rule(certificate)
    assert certificate.assumptions == (
        (
            "new clusters come from the same source as the calibration clusters, which the classifier was"
            " not trained on; a new row is any row of a new cluster"
        ),
    )
    assert "1,500 clusters (3,000 rows" in str(certificate.notes[0])
    mc.save(grouped, tmp_path / "gate.json")
    assert mc.load(tmp_path / "gate.json").certificate_ == certificate


@pytest.mark.parametrize("estimated", [False, True])
def test_weights_are_in_the_certificate(tmp_path, estimated):
    weights = Importance(1.0 + LABELS % 2, largest=2.0, estimated=estimated)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(
        LOGITS, LABELS, importance=weights, random_state=3
    )
    certificate = gate.certificate_
    assert 1050 < certificate.n_rows < 1200
    assert certificate.guarantee == ("approximate" if estimated else "certified")
    assert (
        f"reweighted by the {'estimated' if estimated else 'given'} weights"
        in certificate.assumptions[0]
    )
    assert any("estimates" in text for text in certificate.assumptions) == estimated
    mc.save(gate, tmp_path / "gate.json")
    assert mc.load(tmp_path / "gate.json").certificate_ == certificate


def test_a_file_cannot_claim_another_design(tmp_path):
    path = tmp_path / "gate.json"
    mc.save(
        mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(
            LOGITS, LABELS, importance=Importance(1.0 + LABELS % 2, estimated=True)
        ),
        path,
    )
    data = json.loads(path.read_text())
    assert data["certificate"]["traffic"]["population"] == "target"
    around = data["certificate"]["circumstances"]
    for change, said in (
        ({"circumstances": {**around, "weights": "given"}}, "does not belong to the promise"),
        ({"guarantee": "certified"}, "does not belong to the promise"),
        (
            {"circumstances": {**around, "weights": None}},
            "the file must not contain",
        ),
        (
            {"circumstances": {**around, "weights": None, "units": "unit"}},
            'population "target" does not follow',
        ),
        ({"circumstances": {**around, "folds": 10**6}}, "cannot be scored in"),
    ):
        forged = {**data, "certificate": {**data["certificate"], **change}}
        path.write_text(json.dumps({**forged, "checksum": checksum(forged)}))
        with pytest.raises(mc.ArtifactError, match=said):
            mc.load(path)


def test_groups_stay_together_around_a_classifier():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    X = np.repeat(rng.normal(size=(300, 4)) + 2.0 * np.eye(3, 4)[y], 2, axis=0)
    groups = np.repeat(np.arange(300), 2)
    held = mc.CalibratedClassifier(GaussianNB(), mc.MaxMiscoverage(0.2), holdout=0.4)
    held.fit(X, np.repeat(y, 2), units=groups)
    assert held.certificate_.n_rows == 120
    crossed = mc.CalibratedClassifier(GaussianNB(), mc.MaxMiscoverage(0.2), cv=GroupKFold(3))
    crossed.fit(X, np.repeat(y, 2), units=groups)
    assert crossed.certificate_.design == CertificationDesign(cluster_counting="unit", n_folds=3)
    assert crossed.certificate_.n_rows == 300
    assert "clusters given to fit" in crossed.certificate_.assumptions[0]
    by_number = mc.CalibratedClassifier(GaussianNB(), mc.MaxMiscoverage(0.2), cv=3).fit(
        X, np.repeat(y, 2), units=groups
    )
    assert by_number.certificate_.n_rows == 300
    apart = mc.CalibratedClassifier(
        GaussianNB(), mc.MaxMiscoverage(0.2), cv=KFold(3, shuffle=True, random_state=0)
    )
    with (
        pytest.raises(mc.InputError, match="must not split a cluster"),
        pytest.warns(UserWarning, match="ignored"),
    ):
        apart.fit(X, np.repeat(y, 2), units=groups)


def test_unit_key_on_the_command_line(tmp_path):
    path, out = tmp_path / "frames.npz", tmp_path / "gate.json"
    np.savez(path, logits=TWICE, labels=TWICE_LABELS, video=GROUPS)
    found = CliRunner().invoke(
        main,
        [
            "fit",
            str(path),
            "--min-accuracy",
            "0.95",
            "--unit-key",
            "video",
            "-o",
            str(out),
            "--json",
        ],
    )
    assert found.exit_code == 0, found.stderr
    certificate = json.loads(found.stdout)["certificate"]
    assert certificate["n_rows"] == 1495  # five are pilot rows
    assert mc.load(out).certificate_.n_rows == 1495
    plain = mc.MetaCal(mc.MinAccuracy(0.95)).fit(LOGITS, LABELS)
    assert certificate["threshold"] == plain.threshold_


def test_unit_key_beside_an_id_column(tmp_path):
    lines = ["id,cat,dog,label,patient"]
    rng = np.random.default_rng(0)
    lines += [f"{k},{3 * rng.random():.3f},{rng.random():.3f},cat,{k // 2}" for k in range(400)]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines))
    found = CliRunner().invoke(
        main, ["fit", str(path), "--max-miscoverage", "0.2", "--unit-key", "patient", "--json"]
    )
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["certificate"]["n_rows"] == 200
    wrong = CliRunner().invoke(
        main, ["fit", str(path), "--max-miscoverage", "0.2", "--unit-key", "ward"]
    )
    assert wrong.exit_code == 2
    assert "'ward'" in wrong.stderr
    assert "--unit-key" in wrong.stderr


def test_known_label_shift_names_what_is_missing():
    half = {"a": 0.5, "b": 0.5}
    with pytest.raises(mc.InputError, match=r"target has no entry for the label 'b'\."):
        Importance.of_labels(["a", "b"], {"a": 1.0})
    with pytest.raises(mc.InputError, match="The target distribution contains"):
        Importance.of_labels(["a", "b"], {**half, "c": 0.2}, half)
    with pytest.raises(mc.InputError, match="must be positive"):
        Importance.of_labels(["a", "b"], half, {"a": 0.0, "b": 1.0})
    assert Importance.of_labels(["a", "b", "b"], half).estimated


def test_an_interval_for_the_next_rows():
    certificate = mc.MetaCal(mc.MinAccuracy(0.95)).fit(LOGITS, LABELS).certificate_
    wide, narrow = certificate.next_rows(1000, level=0.99), certificate.next_rows(1000, level=0.5)
    assert wide.fewest < narrow.fewest <= 1000 * (1 - certificate.coverage) + 5
    assert narrow.most < wide.most
    assert certificate.next_rows(1).most <= 1
    for bad in (0, 2.5, True, 10**8):
        with pytest.raises(mc.InputError, match="be an integer between 1"):
            certificate.next_rows(bad)
    with pytest.raises(mc.InputError, match="level"):
        certificate.next_rows(10, level=1.5)


def test_the_interval_is_that_of_a_beta_binomial():
    from scipy.stats import betabinom

    for accepted, of, rows in ((892, 1000, 1000), (1, 10, 7), (0, 50, 200), (49, 50, 20)):
        found = predict_review_count(rows, 0.9, ReviewRate(of, of - accepted, accepted + 1))
        law = betabinom(rows, of - accepted, accepted + 1)
        assert law.cdf(found.fewest - 1) <= 0.05 + 1e-9 < law.cdf(found.fewest) + 1e-9
        assert law.cdf(found.most - 1) < 0.95 + 1e-9 <= law.cdf(found.most) + 2e-9


def test_units_of_rows_that_have_a_score_alone(tmp_path):
    rng = np.random.default_rng(0)
    mark = np.repeat(rng.random(800), 3)
    ok = rng.random(2400) > (1 - mark) ** 2
    question = np.repeat(np.arange(800), 3)
    gate = mc.ScoreGate(mc.MinAccuracy(0.9), score_name="mark").fit(
        mark, ok, units=question, random_state=2
    )
    assert gate.certificate_.n_rows + gate.certificate_.design.n_pilot_rows == 800
    assert gate.certificate_.design.cluster_counting
    path, out = tmp_path / "judge.csv", tmp_path / "gate.json"
    lines = [f"{m!r},{int(right)},{q}" for m, right, q in zip(mark.tolist(), ok, question)]
    path.write_text("\n".join(["mark,ok,question", *lines]))
    done = CliRunner().invoke(
        main,
        [
            *(
                "fit",
                str(path),
                "--score-key",
                "mark",
                "--correct-key",
                "ok",
                "--min-accuracy",
                "0.9",
            ),
            *("--unit-key", "question", "--seed", "2", "-o", str(out), "--json"),
        ],
    )
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["certificate"] == gate.certificate_.to_dict(words=True)
    assert mc.load(out).certificate_ == gate.certificate_
