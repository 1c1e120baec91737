"""metacal show and metacal verify on real files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.promises.both import Both
from metacal.promises.verification import verify_decisions as verify

FIXTURES = Path(__file__).parent / "fixtures" / "artifacts-v3"
GATES = sorted(path for path in FIXTURES.glob("*.json") if path.stem != "expected")


def run(*args, code=0):
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code == code, (done.output, done.exception)
    assert "Traceback" not in done.output
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("verify")
    rng = np.random.default_rng(5)
    table = rng.normal(size=(4000, 3)).astype(np.float32) * 3
    labels = (table + rng.normal(size=table.shape)).argmax(1)
    np.savez(path / "val.npz", logits=table[:1500], labels=labels[:1500])
    np.savez(path / "test.npz", logits=table[1500:], labels=labels[1500:])
    drifted = np.where(rng.random(2500) < 0.1, (labels[1500:] + 1) % 3, labels[1500:])
    np.savez(path / "drift.npz", logits=table[1500:], labels=drifted)
    np.savez(path / "wrong.npz", logits=table[1500:], labels=(table[1500:].argmax(1) + 1) % 3)
    promises = {
        "accuracy": mc.MinAccuracy(0.9),
        "miscoverage": mc.MaxMiscoverage(0.1),
        "both": Both(0.3, 0.9),
    }
    promises |= {
        "average": mc.MaxMiscoverage(0.1, delta=None),
        "paper": mc.paper.MinCoverageAccuracy(0.9),
    }
    for name, promise in promises.items():
        mc.save(mc.MetaCal(promise).fit(table[:1500], labels[:1500]), path / f"{name}.json")
    mc.save(mc.TemperatureScaling().fit(table, labels), path / "plain.json")
    return path


# ── show ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.stem)
def test_show_explains_every_kind(path):
    text = " ".join(run("show", path).stdout.split())
    answer = json.loads(run("show", path, "--json").stdout)
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert "format 3, written by metacal 0.1.0" in text
    assert (answer["kind"], answer["format_version"], answer["checksum"]) == (
        saved["kind"],
        3,
        saved["checksum"],
    )
    assert answer["calibrator"]["kind"] in text
    assert answer["calibrator"]["numbers"]
    if saved["kind"] == "MetaCal":
        said, words = (answer["certificate"].pop(name) for name in ("statement", "words"))
        assert said in text
        assert words["rule"] in text
        assert saved["data_hash"] in text
        assert answer["certificate"] == saved["certificate"]
        assert answer["promise"] == saved["promise"]
        assert f"score {saved['certificate']['score']}" in text
        rejected = (
            "nothing ever is"
            if answer["threshold"] == "inf"
            else f"prediction {answer['reject_label']!r}"
        )
        assert rejected in text
    else:
        assert "it promises nothing" in text
        assert "certificate" not in answer


def test_show_names_classes_and_numbers(folder):
    assert "cat, dog, größe" in run("show", FIXTURES / "gate-min-accuracy.json").stdout
    assert "numbered from 0" in run("show", folder / "accuracy.json").stdout
    assert "temperature 0." in run("show", folder / "plain.json").stdout
    old = Path(__file__).parent / "fixtures" / "artifact-v3-gate.json"
    assert "no fingerprint of the calibration rows" in run("show", old).stdout
    assert "nothing ever is" in run("show", old.with_name("artifact-v3-accept-all.json")).stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("val.npz", None, "zip archive such as .npz, not a metacal file"),
        ("none.json", None, "the file does not exist"),
        ("text.json", "hello", "not JSON"),
        ("other.json", '{"a": 1}', "the file is JSON but not a metacal"),
        (
            "new.json",
            '{"format": "metacal", "version": 9}',
            "newer version of metacal wrote the file (format 9). Update",
        ),
    ],
)
def test_show_and_verify_say_what_else_a_file_is(folder, name, content, message):
    if content is not None:
        (folder / name).write_text(content)
    for args in (("show", folder / name), ("verify", folder / name, folder / "test.npz")):
        done = run(*args, code=2)
        assert message in done.stderr
        assert not done.stdout


def test_show_finds_an_edited_file(folder):
    text = (
        (folder / "accuracy.json")
        .read_text(encoding="utf-8")
        .replace('"n_rows": 1500', '"n_rows": 1501')
    )
    (folder / "edited.json").write_text(text, encoding="utf-8")
    assert "the checksum does not match" in run("show", folder / "edited.json", code=2).stderr


# ── verify ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["accuracy", "miscoverage", "both"])
def test_a_promise_that_is_kept_stands(folder, name):
    done = run("verify", folder / f"{name}.json", folder / "test.npz")
    assert done.stdout.startswith("kept: ")
    assert "p-value" in done.stdout
    assert f"{97.5 if name == 'both' else 95}% interval [" in done.stdout
    assert "what to do   None needed." in done.stdout
    answer = json.loads(
        run("verify", folder / f"{name}.json", folder / "test.npz", "--json").stdout
    )
    assert answer["verdict"] == "kept"
    assert len(answer["tests"]) == (2 if name == "both" else 1)


def test_a_promise_that_is_broken_is_refuted_with_exit_code_3(folder):
    done = run("verify", folder / "accuracy.json", folder / "drift.npz", code=3)
    assert done.stdout.startswith("refuted: ")
    assert "fit again on recent labelled rows" in " ".join(done.stdout.split())
    answer = json.loads(
        run("verify", folder / "accuracy.json", folder / "drift.npz", "--json", code=3).stdout
    )
    (test,) = answer["tests"]
    assert answer["refuted"]
    assert test["p_value"] == answer["p_value"] < 1e-6
    assert test["high"] < test["target"]
    assert test["n_bad"] == round((1 - test["value"]) * test["n_rows"])
    assert json.loads(
        run("verify", folder / "both.json", folder / "drift.npz", "--json", code=3).stdout
    )["refuted"]


def test_what_is_tested_depends_on_the_promise(folder):
    assert "in expectation about half of all gates do not" in run(
        "verify", folder / "average.json", folder / "test.npz", "--confidence", "0.999"
    ).stdout.replace("\n               ", " ")
    assert "aims at without a promise" in run(
        "verify", folder / "paper.json", folder / "test.npz", "--confidence", "0.999999"
    ).stdout.replace("\n               ", " ")


def test_rows_that_say_nothing(folder):
    assert run("verify", folder / "accuracy.json", folder / "val.npz", code=1).stdout.startswith(
        "not judged"
    )
    done = run("verify", folder / "miscoverage.json", folder / "wrong.npz")
    assert "these rows do not show the miscoverage" in done.stdout
    assert "Label rows that the promise is about" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain.json", "test.npz"], "without a gate, so it has no promise to"),
        (["accuracy.json", "test.npz", "--confidence", "95"], "Write 95% as 0.95"),
        (["accuracy.json", "test.npz", "--confidence", "0.3"], "not above 0.5"),
        (["accuracy.json", "test.npz", "--input", "probabilities"], "was fitted on logits"),
    ],
)
def test_wrong_usage(folder, arguments, message):
    names = [folder / part if part.endswith(("json", "npz")) else part for part in arguments]
    assert message in run("verify", *names, code=2).stderr


# ── the test itself ───────────────────────────────────────────────────────────────────────────────


def test_the_exact_p_value_agrees_with_a_sum():
    from math import comb

    right = np.ones(60, dtype=bool)
    certificate = mc.MaxMiscoverage(0.1).certify(np.linspace(0, 1, 60), right)
    for bad in (0, 1, 6, 12, 60):
        result = verify(certificate, np.arange(60) >= bad, right)
        exact = sum(comb(60, k) * 0.1**k * 0.9 ** (60 - k) for k in range(bad, 61))
        assert result.p_value == pytest.approx(exact, rel=1e-9)
        (test,) = result.tests
        assert test.refuted == (exact <= 0.025)


def refutations(certificate, shares, confidence, draws, n=500):
    """How often n rows refute; shares: right accepted, right rejected, wrong accepted, wrong
    rejected.
    """
    rng = np.random.default_rng(0)
    accept, correct = np.array([True, False, True, False]), np.array([True, True, False, False])
    count = 0
    for _ in range(draws):
        rows = np.repeat(np.arange(4), rng.multinomial(n, shares))
        count += verify(certificate, accept[rows], correct[rows], confidence).refuted
    return count / draws


@pytest.mark.parametrize("confidence", [0.9, 0.95])
@pytest.mark.parametrize("promise", [mc.MaxMiscoverage(0.1), mc.MinAccuracy(0.9), Both(0.1, 0.9)])
def test_a_promise_at_its_very_limit_is_rarely_refuted_and_a_broken_one_mostly(promise, confidence):
    certificate = promise.certify(np.arange(3000.0), np.arange(3000) < 2950)
    draws = 1000
    kept = refutations(
        certificate, [0.81, 0.09, 0.09, 0.01], confidence, draws
    )  # F0 = 0.1 and F1 = 0.9, exactly
    assert kept <= 1 - confidence + 3 * np.sqrt(confidence * (1 - confidence) / draws)
    assert kept > (1 - confidence) / 10
    assert refutations(certificate, [0.68, 0.16, 0.14, 0.02], confidence, 100) > 0.9
