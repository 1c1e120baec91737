"""score="auto": several scores share delta; and the score that came with it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.certificates.design import CertificationDesign
from metacal.cli import main
from metacal.io.artifact.wrapping import checksum
from metacal.scores import resolve_score
from metacal.scores.registry import (
    NAMED,
    NamedScore,
    get_delta_fractions_of_auto_scores,
    register_score,
)

(LOGITS, LABELS), _ = mc.datasets.load("cifar10-resnet110").split(3000, random_state=0)


@pytest.fixture(scope="module")
def crowded():
    """The scale of a row's logits has nothing to do with being right: entropy is misled, the p-norm
    is not.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(6, size=4000)
    scale = np.exp(rng.normal(size=(4000, 1)))
    gap = 6.0 * rng.random((4000, 1))
    return scale * (rng.normal(size=(4000, 6)) + gap * np.eye(6)[labels]), labels


def test_the_p_norm_of_the_rivals_ranks_as_the_largest_logit_over_the_p_norm():
    centred = LOGITS.astype(np.float64) - LOGITS.mean(axis=1, keepdims=True, dtype=np.float64)
    textbook = centred.max(axis=1) / np.linalg.norm(centred, ord=8, axis=1)
    ours = resolve_score("maxlogit_pnorm")(LOGITS)
    np.testing.assert_allclose(textbook, (1.0 + ours**8) ** (-1 / 8), rtol=1e-7)


def test_the_p_norm_of_odd_rows():
    masked = [
        [3.0, 1.0, -np.inf, 0.0],
        [1.0, 1.0, 1.0, 1.0],
        [2.0, -np.inf, -np.inf, -np.inf],
        [np.nan, 0.0, 0.0, 0.0],
    ]
    score = resolve_score("maxlogit_pnorm")(np.array(masked))
    without = resolve_score("maxlogit_pnorm")(np.array([[3.0, 1.0, 0.0]]))
    np.testing.assert_allclose(score[:3], [without[0], 3 ** (1 / 8), 0.0], rtol=1e-8)
    assert np.isnan(score[3])
    wide = resolve_score("maxlogit_pnorm")(
        np.array([[1.5e308, -1.5e308, 0.0], [1.5, -1.5, 0.0], [1.5e-300, -1.5e-300, 0.0]])
    )
    np.testing.assert_allclose(wide[1:], wide[1], rtol=1e-8)
    assert np.isfinite(wide[0])


def test_the_best_score_is_taken_and_named(crowded, tmp_path):
    logits, labels = crowded
    promise = mc.MinAccuracy(0.9)
    auto = mc.MetaCal(promise, score="auto").fit(logits, labels)
    alone = {
        name: mc.MetaCal(promise, score=name).fit(logits, labels).certificate_.coverage
        for name in get_delta_fractions_of_auto_scores(6)
    }
    assert (
        auto.gate_.source.score
        == auto.certificate_.score
        == max(alone, key=alone.get)
        == "maxlogit_pnorm"
    )
    assert auto.certificate_.coverage > alone["entropy"] + 0.1
    assert auto.certificate_.delta == 0.1
    assert auto.certificate_.design == CertificationDesign(
        n_competing_scores=3, delta_fraction=0.1, n_pilot_rows=5
    )
    assert "shared delta (entropy 0.8, margin 0.1, maxlogit_pnorm" in str(
        auto.certificate_.notes[-1]
    )
    tenth = mc.MetaCal(mc.MinAccuracy(0.9, delta=0.1 * 0.1), score="maxlogit_pnorm").fit(
        logits, labels
    )
    assert auto.threshold_ == tenth.threshold_
    mc.save(auto, tmp_path / "gate.json")
    again = mc.load(tmp_path / "gate.json")
    assert again.certificate_ == auto.certificate_
    assert (again.accepts(logits) == auto.accepts(logits)).all()


def test_a_miscoverage_takes_the_score_that_keeps_fewest_wrong_rows(crowded):
    logits, labels = crowded
    auto = mc.MetaCal(mc.MaxMiscoverage(0.1), score="auto").fit(logits, labels)
    entropy = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(logits, labels)
    assert auto.gate_.source.score != "entropy"
    assert auto.certificate_.selective_accuracy > entropy.certificate_.selective_accuracy


def test_two_classes_need_no_choice():
    logits = LOGITS[:, :2]
    auto = mc.MetaCal(mc.MaxMiscoverage(0.1), score="auto").fit(logits, (LABELS % 2))
    assert (
        auto.certificate_
        == mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(logits, (LABELS % 2)).certificate_
    )


def test_in_expectation_there_is_nothing_to_share():
    with pytest.raises(mc.InputError, match="Pass a delta, or name a score"):
        mc.MetaCal(mc.MaxMiscoverage(0.1, delta=None), score="auto").fit(LOGITS, LABELS)
    with pytest.raises(mc.InputError, match="A score named 'auto' is"):
        register_score(NamedScore("auto", NAMED["margin"].kernel))


def test_where_no_score_can_the_nearest_speaks():
    with pytest.raises(mc.InfeasibleTargetError) as caught:
        mc.MetaCal(mc.MinAccuracy(0.9999), score="auto").fit(LOGITS, LABELS)
    assert caught.value.best > 0.97


def test_on_the_command_line(tmp_path):
    path, out = tmp_path / "val.npz", tmp_path / "gate.json"
    np.savez(path, logits=LOGITS, labels=LABELS)
    done = CliRunner().invoke(
        main,
        ["fit", str(path), "--min-accuracy", "0.97", "--score", "auto", "-o", str(out), "--json"],
    )
    assert done.exit_code == 0, done.stderr
    python = mc.MetaCal(mc.MinAccuracy(0.97), score="auto").fit(LOGITS, LABELS)
    assert json.loads(done.stdout)["certificate"] == python.certificate_.to_dict(words=True)
    assert mc.load(out).score == python.gate_.source.score


def test_a_file_cannot_say_that_more_was_shared_than_its_counts_allow(tmp_path):
    path = tmp_path / "gate.json"
    mc.save(mc.MetaCal(mc.MinAccuracy(0.97)).fit(LOGITS, LABELS), path)
    data = json.loads(path.read_text())
    around = {**CertificationDesign(n_pilot_rows=5).to_dict(), "scores": 3}
    for share, said in ((1e-6, "do not certify"), (0.0, "cannot have shared delta")):
        certificate = {**data["certificate"], "circumstances": {**around, "share": share}}
        forged = {**data, "certificate": certificate}
        path.write_text(json.dumps({**forged, "checksum": checksum(forged)}))
        with pytest.raises(mc.ArtifactError, match=said):
            mc.load(path)
