"""Certifier: rows to label, answers in any order, closed and opened again, and a gate like any other at the end."""

from __future__ import annotations

import json

import numpy as np
import pytest

import metacal as mc
from metacal.artifact import schema
from metacal.artifact.certifier import ANSWERS, ROUND, certifier_from, describe_certifier
from metacal.artifact.encoding import decode, encode
from metacal.artifact.wrapping import text_of
from metacal.promises.wagers import Design, Payoff, Wagers


@pytest.fixture(scope="module")
def data():
    return mc.datasets.load("cifar10-resnet110")


def run(certifier, answer, *, close=None, rng=None):
    """Ask until the end; `close(certifier)` is what happens at random moments."""
    asked = []
    while not certifier.finished:
        rows = certifier.propose(None if rng is None else int(rng.integers(1, 40)))
        asked.append(rows)
        certifier.update(rows, answer(rows))
        if close is not None and rng.random() < 0.3:
            certifier = close(certifier)
    return certifier, np.concatenate(asked)


@pytest.mark.parametrize(
    ("promise", "coverage"), [(mc.MinCoverageAccuracy(0.9), None), (mc.MaxMiscoverage(0.1), 0.93)], ids=repr
)
def test_killed_and_restarted_at_random_moments_it_decides_as_if_never_closed(tmp_path, promise, coverage):
    rng = np.random.default_rng(4)
    scores = rng.random(3000)
    scores[::7] = np.nan
    right = rng.random(3000) < 0.6 + 0.4 * np.nan_to_num(scores)
    path = tmp_path / "state.json"

    def close(certifier):
        mc.save(certifier, path)
        return mc.load_certifier(path, scores)

    def fresh():
        return mc.Certifier(promise, scores, coverage=coverage, pilot=60, random_state=3)

    never, asked = run(fresh(), lambda rows: right[rows])
    again, asked_again = run(fresh(), lambda rows: right[rows], close=close, rng=np.random.default_rng(5))
    assert asked[: len(asked_again)].tolist() == asked_again.tolist()  # row by row it may stop within a round
    assert len(asked) - len(asked_again) < 50
    assert again.labelling.threshold == never.labelling.threshold
    assert again.gate().threshold == never.gate().threshold
    assert not np.isnan(scores[asked]).any()
    assert all(0.0 < one.probability <= 1.0 for one in again.log)


def test_answers_count_in_the_order_of_the_questions():
    scores = np.random.default_rng(0).random(2000)
    certifier = mc.Certifier(mc.MinCoverageAccuracy(0.9), scores, coverage=0.5)
    rows = certifier.propose()
    certifier.update(rows[1:], np.ones(len(rows) - 1, dtype=bool))
    assert certifier.labelling.evidence.log_peak.max() <= 0.01  # all good news, but the first is still awaited
    assert certifier.propose().tolist() == rows[:1].tolist()
    certifier.update(rows[:1], [True])
    assert certifier.labelling.evidence.log_peak.max() > 0.5


def test_the_gate_is_like_any_other(data, tmp_path):
    half = 7500
    certifier = mc.Certifier(mc.MinCoverageAccuracy(0.95), data.logits[:half], coverage=0.9)
    while not certifier.finished:
        rows = certifier.propose()
        certifier.update(rows, labels=data.labels[rows])
    gate = certifier.gate()
    path = tmp_path / "cal.json"
    mc.save(gate, path)
    assert mc.load_gate(path) == gate
    assert gate.certificate.labels == certifier.n_labels == len(certifier.log)
    assert f"{certifier.n_labels:,} of them labelled" in str(gate.certificate)
    assert gate.certificate.coverage == certifier.coverage
    assert gate.map.temperature > 1.5  # the network is overconfident, and its labels say so
    cal = mc.load(path)
    accepted = cal.accepts(data.logits[half:])
    assert accepted.mean() > 0.85
    assert (data.logits[half:].argmax(axis=1) == data.labels[half:])[accepted].mean() > 0.94
    assert not mc.verify(cal, data.logits[half:], data.labels[half:]).refuted
    changed = json.loads(path.read_text())
    for edit in ({"labels": 8000}, {"labels": 0}, {"rule": "a rule of mine"}):
        document = {k: v for k, v in changed.items() if k not in ("format", "version", "metacal_version", "checksum")}
        path.write_text(text_of({**document, "certificate": {**document["certificate"], **edit}}))
        with pytest.raises(mc.ArtifactError, match=r"cannot be labelled|none that this promise uses"):
            mc.load(path)


def test_a_state_that_was_tampered_with_is_refused():
    rng = np.random.default_rng(1)
    scores, right = rng.random(2000), rng.random(2000) < 0.97
    certifier = mc.Certifier(mc.MinCoverageAccuracy(0.9), scores, coverage=0.5)
    for _ in range(2):
        rows = certifier.propose()
        certifier.update(rows, right[rows])
    document = describe_certifier(certifier)

    def edited(change):
        copy = json.loads(json.dumps(document))
        change(copy)
        return copy

    def rewrite(entry, name, values):
        entry[name] = encode(np.array(values, dtype=decode(ANSWERS["rows"], entry[name], "", {}).dtype), "", {})

    def flip(copy):
        now = decode(ANSWERS["right"], copy["answers"]["right"], "", {})
        rewrite(copy["answers"], "right", np.where(np.arange(len(now)) == now.argmin(), 1, now))

    def never_asked(copy):
        now = decode(ANSWERS["rows"], copy["answers"]["rows"], "", {})
        rewrite(copy["answers"], "rows", [np.setdiff1d(np.arange(2000), now)[0], *now[1:]])

    def surer(copy):
        now = decode(ROUND["stakes"], copy["rounds"][1]["stakes"], "", {})
        copy["rounds"][1]["stakes"] = encode(2.0 * now, "", {})

    for change, says in ((flip, "contradicts itself"), (never_asked, "contradicts itself"), (surer, "contradicts")):
        with pytest.raises(mc.ArtifactError, match=says):
            certifier_from(edited(change), scores)
    with pytest.raises(mc.ArtifactError, match="is another"):
        certifier_from(document, scores[::-1])
    with pytest.raises(mc.ArtifactError, match="begun on a pool of scores"):
        certifier_from(document, np.stack([scores, scores], axis=1))


def test_the_schema_knows_a_state():
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema.schema())
    document = describe_certifier(mc.Certifier(mc.MaxMiscoverage(0.1), np.linspace(0.0, 1.0, 100), coverage=0.9))
    assert validator.is_valid(json.loads(text_of(document)))
    assert not validator.is_valid(json.loads(text_of({**document, "n_pool": -1})))


def test_what_cannot_be_meant_is_refused(tmp_path):
    scores = np.random.default_rng(0).random(500)
    certifier = mc.Certifier(mc.MinCoverageAccuracy(0.9), scores, coverage=0.5)
    rows = certifier.propose()
    other = int(np.setdiff1d(np.arange(500), rows)[0])
    certifier.update(rows[:1], [True])
    for given, says in (
        (([other], [True]), "was not asked about"),
        ((rows[:1], [False]), "answered otherwise before"),
        ((rows[:2], [True]), "give one each"),
        ((rows[:1] + 0.5, [True]), "must be the numbers"),
        ((rows[:1], None), "give right="),
    ):
        with pytest.raises(mc.InputError, match=says):
            certifier.update(*given)
    with pytest.raises(mc.InputError, match="has no predictions"):
        certifier.update(rows[:1], labels=[1])
    with pytest.raises(mc.InfeasibleTargetError, match=r"not certified by 1 labels; go on"):
        certifier.gate()
    with pytest.raises(mc.InputError, match="with a delta"):
        mc.Certifier(mc.MinCoverageAccuracy(0.9, delta=None), scores)
    with pytest.raises(mc.InputError, match="at least 50"):
        mc.Certifier(mc.MinCoverageAccuracy(0.9), scores[:10])
    mc.save(certifier, tmp_path / "state.json")
    with pytest.raises(mc.ArtifactError, match="load_certifier"):
        mc.load(tmp_path / "state.json")


@pytest.mark.parametrize("payoff", [Payoff.of_accuracy(4, 0.9), Payoff.of_miscoverage(4, 0.1)], ids=["accuracy", "mis"])
def test_a_wager_means_what_the_promise_means_whoever_is_asked(payoff):
    rng = np.random.default_rng(0)
    design = Design(rng.uniform(0.05, 1.0, 4), rng.random(4))
    share, errors = rng.dirichlet(np.ones(4)), rng.random(4)
    wagers = Wagers.of(payoff, design)
    mean = (share * design.chances(errors)[:, None, :] * wagers.values).sum(axis=(0, 2))
    assert np.allclose(mean, (share * (payoff.base - payoff.weight * errors)).sum(axis=1))
    assert (wagers.lowest <= wagers.values.min(axis=(0, 2)) + 1e-12).all()
    stakes, _ = wagers.stakes(share * design.chances(errors))
    assert (1.0 + stakes * wagers.lowest > 0.0).all()
