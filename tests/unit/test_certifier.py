"""Certifier: the certificate of fit on the rows that were drawn, for fewer labels; closed and
opened; extended.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

import metacal as mc
from metacal.certification.arriving import default_number_of_labels
from metacal.io.artifact.wrapping import build_file_text
from metacal.promises import Answers, Sample


def population(seed, n, *, decimals=None, steep=4.0):
    """Doubts, and whether each row is right: errors grow with the doubt."""
    rng = np.random.default_rng([seed, 9])
    doubts = rng.random(n) if decimals is None else rng.random(n).round(decimals)
    return doubts, rng.random(n) >= np.minimum(0.4 * doubts**steep, 1.0)


def labelled(certifier, right, n=None):
    """Answer until there is nothing more to ask."""
    while len(rows := certifier.propose(n)):
        certifier.update(rows, right[rows])
    assert certifier.finished
    return certifier


@pytest.mark.slow
@pytest.mark.parametrize("decimals", [None, 2, 1])
@pytest.mark.parametrize("beta", [0.8, 0.9, 0.95])
def test_the_certificate_is_that_of_fit_on_all_rows_that_were_drawn(decimals, beta):
    promise = mc.MinAccuracy(beta)
    for seed in range(6):
        doubts, right = population(seed, 900, decimals=decimals, steep=(1.0, 2.0, 4.0)[seed % 3])
        certifier = mc.Certifier(
            promise, doubts, labels=150 + 100 * seed, higher_is="doubtful", random_state=seed
        )
        labelled(certifier, right, None if seed % 2 else 7)
        rows = certifier.drawn_rows
        assert certifier.n_labels <= len(rows)
        try:
            fit = promise.certify(Sample.of(doubts[rows], right[rows], pilot=certifier.pilot))
        except mc.InfeasibleTargetError:
            with pytest.raises(mc.InfeasibleTargetError, match="Cannot certify"):
                _ = certifier.certificate
            continue
        own = certifier.certificate
        assert own.design.tests_score_values == certifier.pilot.requires_score_value_tests
        own = replace(own, design=fit.design)
        assert (
            replace(own, n_labels=None, n_correct=fit.n_correct, score=fit.score, notes=()) == fit
        )
        assert own.n_labels == certifier.n_labels
        assert fit.n_correct - (len(rows) - own.n_labels) <= own.n_correct <= fit.n_correct
        assert promise.contradiction(own) is None


def test_what_is_certified_on_the_way_only_grows_and_reach_only_falls():
    doubts, right = population(3, 3000)
    certifier = mc.Certifier(mc.MinAccuracy(0.95), doubts, labels=800, higher_is="doubtful")
    coverage, reach = [0.0], [1.0]
    while len(rows := certifier.propose(10)):
        certifier.update(rows, right[rows])
        coverage.append(certifier.coverage or 0.0)
        reach.append(certifier.within_reach)
        if certifier.coverage is not None:
            assert certifier.certificate.n_rows == 800  # valid at any moment
            assert certifier.promise.contradiction(certifier.certificate) is None
    assert (np.diff(coverage) >= 0).all()
    assert (np.diff(reach) <= 0).all()
    assert coverage[-1] == reach[-1] > 0.4
    assert certifier.n_labels < 750
    assert len(set(coverage)) > 5


def test_rows_come_from_the_surest_upward_in_blocks_and_shuffled_within():
    doubts, right = population(1, 4000)
    certifier = mc.Certifier(mc.MinAccuracy(0.95), doubts, higher_is="doubtful")
    assert (certifier.n_drawn, certifier.batch_size) == (800, 20)
    first = certifier.propose()
    assert sorted(doubts[first]) == sorted(doubts[certifier.drawn_rows])[:20]
    assert doubts[first].tolist() != sorted(doubts[first])
    assert certifier.propose().tolist() == first.tolist()
    certifier.update(first[5:], right[first[5:]])
    again = certifier.propose()  # what is not answered comes again, with the next rows
    assert set(first[:5]) < set(again)
    assert len(again) == 20


@pytest.mark.parametrize(
    "promise", [mc.MaxMiscoverage(0.1), mc.Both(0.3, 0.9), mc.MinAccuracy(0.9, None)]
)
def test_any_other_promise_takes_all_labels_and_is_that_of_fit(promise):
    doubts, right = population(5, 1000)
    certifier = mc.Certifier(promise, doubts, labels=300, higher_is="doubtful")
    certifier.update(certifier.drawn_rows[1:], right[certifier.drawn_rows[1:]])
    with pytest.raises(mc.InfeasibleTargetError, match="299 of 300 drawn rows"):
        _ = certifier.certificate
    labelled(certifier, right)
    rows = certifier.drawn_rows
    own, fit = certifier.certificate, promise.certify(doubts[rows], right[rows])
    assert replace(own, n_labels=None, score=fit.score) == fit
    assert own.n_labels == 300
    assert promise.contradiction(own) is None


@pytest.mark.slow
def test_closed_and_opened_at_random_moments_it_decides_as_if_never_closed(tmp_path):
    doubts, right = population(4, 3000)
    doubts[::7] = np.nan
    promise, path = mc.MinAccuracy(0.9), tmp_path / "labels.journal"
    begin = {"labels": 600, "random_state": 3, "higher_is": "doubtful"}
    never = labelled(mc.Certifier(promise, doubts, **begin), right)
    rng, opened = np.random.default_rng(5), 0
    finished = False
    while not finished:
        with mc.open_certifier(
            path, doubts, None if opened else promise, **({} if opened else begin)
        ) as certifier:
            opened += 1
            for _ in range(int(rng.integers(1, 4))):
                rows = certifier.propose(int(rng.integers(1, 40)))
                certifier.update(rows, right[rows])
            finished = certifier.finished
            assert (
                certifier.coverage is None
                or certifier.certificate.threshold <= never.certificate.threshold
            )
    assert opened > 3
    assert certifier.gate() == never.gate() or certifier.n_labels != never.n_labels
    assert certifier.certificate.threshold == never.certificate.threshold
    assert "have no score" in str(certifier.certificate)


def test_what_begins_it_cannot_change_after_labels_are_seen(tmp_path):
    doubts, right = population(0, 2000)
    path = tmp_path / "labels.journal"
    with mc.open_certifier(path, doubts, mc.MinAccuracy(0.9), labels=200) as certifier:
        rows = certifier.propose()
        certifier.update(rows, right[rows])
        with pytest.raises(mc.InputError, match="without a declared extension"):
            certifier.extend()
        with (
            pytest.raises(mc.InputError, match="is in use by process"),
            mc.open_certifier(path, doubts),
        ):
            pass
    for promise, options, says in (
        (
            None,
            {"labels": 400},
            r"started with labels=200, but got 400\. This setting cannot change after labels are known\.",
        ),
        (None, {"random_state": 1}, r"random_state=None, but got 1\."),
        (None, {"may_extend": True}, r"may_extend=False, but got True\."),
        (mc.MinAccuracy(0.8), {}, "cannot change after labels are known"),
    ):
        with (
            pytest.raises(mc.InputError, match=says),
            mc.open_certifier(path, doubts, promise, **options),
        ):
            pass
    with (
        pytest.raises(mc.InputError, match="Pass the same rows in the same order"),
        mc.open_certifier(path, doubts[::-1]),
    ):
        pass
    with pytest.raises(mc.InputError, match="a pool of scores"), mc.open_certifier(path, np.eye(3)):
        pass
    with mc.open_certifier(path, doubts, mc.MinAccuracy(0.9), labels=200) as certifier:
        assert certifier.n_labels == len(rows)


def test_a_journal_that_was_edited_is_refused(tmp_path):
    doubts, right = population(0, 500)
    path = tmp_path / "labels.journal"
    with mc.open_certifier(path, doubts, mc.MinAccuracy(0.9), labels=200) as certifier:
        for _ in range(2):
            rows = certifier.propose()
            certifier.update(rows, right[rows])
    whole = path.read_text()
    before, _, after = whole.partition('"right":[')
    flipped = "0" if after.startswith("1") else "1"
    path.write_text(f'{before}"right":[{flipped}{after[1:]}')
    assert path.read_text() != whole
    with pytest.raises(mc.ArtifactError, match=r"labels.journal:3: this record is damaged"):
        mc.open_certifier(path, doubts).__enter__()


@pytest.mark.parametrize("kind", ["secret", "pair"])
def test_with_a_key_every_record_is_signed_by_the_second_call_too(tmp_path, kind):
    doubts, right = population(0, 500)
    path, key = tmp_path / "labels.journal", os.urandom(32)
    if kind == "pair":
        ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
        from cryptography.hazmat.primitives import serialization as how

        private = ed25519.Ed25519PrivateKey.generate()
        key = private.private_bytes(how.Encoding.PEM, how.PrivateFormat.PKCS8, how.NoEncryption())
        public = private.public_key().public_bytes(
            how.Encoding.PEM, how.PublicFormat.SubjectPublicKeyInfo
        )
        with pytest.raises(mc.InputError, match=r"cannot write .*public key, which can verify"):
            mc.open_certifier(path, doubts, mc.MinAccuracy(0.9), labels=100, key=public).__enter__()
    for call in range(3):
        with mc.open_certifier(
            path, doubts, None if call else mc.MinAccuracy(0.9), key=key
        ) as certifier:
            assert certifier.n_labels == call * certifier.batch_size
            rows = certifier.propose()
            certifier.update(rows, right[rows])
    for other, says in (
        (None, "is signed; give its key"),
        (os.urandom(32), "signed with another key"),
    ):
        with pytest.raises(mc.ArtifactError, match=rf"labels.journal:1: .*{says}"):
            mc.open_certifier(path, doubts, key=other).__enter__()
    with mc.open_certifier(tmp_path / "plain.journal", doubts, mc.MinAccuracy(0.9), labels=100):
        pass
    with pytest.raises(mc.ArtifactError, match=r"plain.journal:1: .*begun without a key"):
        mc.open_certifier(tmp_path / "plain.journal", doubts, key=key).__enter__()


def test_an_extension_shares_delta_and_counts_the_labels_again():
    doubts, right = population(3, 4000)
    promise = mc.MinAccuracy(0.95)
    certifier = mc.Certifier(promise, doubts, labels=200, may_extend=True, higher_is="doubtful")
    labelled(certifier, right)
    before, rows = certifier.certificate, certifier.drawn_rows
    assert (
        before.threshold
        == promise.with_delta_fraction(0.8).certify(doubts[rows], right[rows]).threshold
    )
    assert before.delta == 0.1
    labelled(certifier.extend(), right)
    rows, after = certifier.drawn_rows, certifier.certificate
    assert len(rows) == 800
    assert after.threshold == max(
        before.threshold,
        promise.with_delta_fraction(0.2).certify(doubts[rows], right[rows]).threshold,
    )
    assert after.n_rows == 800
    assert after.coverage > before.coverage
    assert promise.contradiction(after) is None
    assert "200 rows used 0.8 of delta" in str(after.notes[-1])


def test_the_gate_is_like_any_other(tmp_path):
    data = mc.datasets.load("cifar10-resnet110")
    half = 7500
    certifier = mc.Certifier(mc.MinAccuracy(0.98), data.logits[:half], labels=800)
    while len(rows := certifier.propose(40)):
        certifier.update(rows, labels=data.labels[rows])
    gate = certifier.gate()
    path = tmp_path / "cal.json"
    mc.save(gate, path)
    assert mc.load_gate(path) == gate
    assert gate.certificate.n_labels == certifier.n_labels < 800 == gate.certificate.n_rows
    assert f"800 rows drawn from a pool, {certifier.n_labels:,} of them labelled" in str(
        gate.certificate
    )
    assert np.isnan(gate.certificate.miscoverage)  # nobody has looked at all right rows
    assert gate.certificate.coverage == certifier.coverage
    assert gate.source.map.temperature > 1.5  # the network is overconfident, and its labels say so
    cal = mc.load(path)
    accepted = cal.accepts(data.logits[half:])
    assert accepted.mean() > 0.6
    assert (data.logits[half:].argmax(axis=1) == data.labels[half:])[accepted].mean() > 0.975
    assert not mc.verify(cal, data.logits[half:], data.labels[half:]).refuted
    own = gate.certificate
    changed = json.loads(path.read_text())
    for edit in (
        {"labels": 801},
        {"labels": 0},
        {"labels": own.n_accepted - 1},
        {"n_correct": own.n_correct_accepted + own.n_labels - own.n_accepted + 1},
        {
            "n_correct_accepted": own.n_correct_accepted - 9,
            "selective_accuracy": (own.n_correct_accepted - 9) / own.n_accepted,
        },
        {"miscoverage": 0.01},
        {"rule": "a rule of mine"},
    ):
        document = {
            k: v
            for k, v in changed.items()
            if k not in ("format", "version", "metacal_version", "checksum")
        }
        path.write_text(
            build_file_text({**document, "certificate": {**document["certificate"], **edit}})
        )
        with pytest.raises(mc.ArtifactError, match="certificate: "):
            mc.load(path)


def test_what_cannot_be_meant_is_refused():
    doubts, _ = population(0, 500)
    certifier = mc.Certifier(mc.MinAccuracy(0.9), doubts, labels=100)
    rows = certifier.propose()
    other = int(np.setdiff1d(np.arange(500), certifier.drawn_rows)[0])
    certifier.update(rows[:1], [True])
    certifier.update(rows[:1], [True])  # the same answer again is no other one
    assert certifier.n_labels == 1
    for given, says in (
        (([other], [True]), "was not drawn"),
        (([500], [True]), "was not drawn"),
        ((rows[:1], [False]), "already has a different answer"),
        ((rows[[1, 1]], [False, True]), "already has a different answer"),
        ((rows[:2], [True]), "one answer for each row"),
        ((rows[:1] + 0.5, [True]), "must be the integers that propose returns"),
        ((rows[:1], None), r"right \(whether each prediction is correct\) and"),
    ):
        with pytest.raises(mc.InputError, match=says):
            certifier.update(*given)
    with pytest.raises(mc.InputError, match="has no predictions"):
        certifier.update(rows[:1], labels=[1])
    with pytest.raises(mc.InfeasibleTargetError, match="1 of 100 drawn rows"):
        certifier.gate()
    for promise, options, says in (
        (mc.MinAccuracy(0.9), {"labels": 501}, "Cannot draw 501 rows"),
        (mc.MinAccuracy(0.9), {"labels": 0}, "a positive integer"),
        (mc.MinAccuracy(0.9, None), {"may_extend": True}, "requires a promise with a delta"),
        (mc.MaxReview(0.2), {}, "does not require labels"),
        (mc.paper.MaxMiscoverage(0.1), {}, "has no guarantee"),
        (mc.MaxCost(((0.0, 1.0), (5.0, 0.0)), 0.5), {}, "the true class of every row"),
        (mc.MaxCost(5.0, 0.5), {}, "a number of rows to label"),
        (mc.PerClass(mc.MinAccuracy(0.9)), {}, "threshold for each predicted class"),
        (mc.MaxCaseErrors(0.05), {}, "counts whole cases"),
    ):
        with pytest.raises(mc.InputError, match=says):
            mc.Certifier(promise, doubts, **options)


def test_the_default_number_of_labels_allows_40_errors_at_the_promised_rate():
    promises = [
        mc.MinAccuracy(0.95),
        mc.MaxMiscoverage(0.05),
        mc.MinRecall(0.95),
        mc.MaxFalsePositiveRate(0.05),
    ]
    assert [default_number_of_labels(promise) for promise in promises] == [800] * len(promises)


def test_only_rows_below_every_missing_label_are_known():
    labels = Answers(np.array([3.0, 1.0, 2.0, 2.0]), np.array([1, 1, 0, -1], dtype=np.int8))
    assert (labels.n_labelled, labels.last_fully_labelled_rank, labels.is_complete) == (3, 1, False)
