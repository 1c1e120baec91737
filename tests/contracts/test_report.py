"""The page as a file: its numbers are everyone's numbers, it is closed to markup and network, it is
written whole.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal import metrics
from metacal.cli import main
from metacal.cli.read_options import ReadOptions
from metacal.cli.report import build_fit_command_start
from metacal.gate import Recipe
from metacal.maps.temperature import TemperatureMap
from metacal.reports import html
from metacal.reports.summary import summarise

NASTY = "</script><!--<script>&amp;\u2028\u2029\x00{{script}}\ud800'\""


def run(*args, code=0):
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def embedded(text):
    return json.loads(
        re.search(r'<script type="application/json" id="summary">(.*?)</script>', text, re.DOTALL)[
            1
        ]
    )


def flat(value, name=""):
    """Every leaf by its path."""
    if not isinstance(value, dict):
        return {name: value}
    return {
        path: leaf
        for key, part in value.items()
        for path, leaf in flat(part, f"{name}.{key}").items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("report")
    (fit_x, fit_y), (test_x, test_y) = mc.datasets.load("cifar10-resnet110").split(
        12_000, random_state=0
    )
    np.savez(path / "test.npz", logits=test_x, labels=test_y, id=np.arange(len(test_y)))
    mc.save(mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y), path / "cal.json")
    run(
        "report",
        path / "cal.json",
        path / "test.npz",
        "--resamples",
        20,
        "-o",
        path / "report.html",
    )
    return path


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


# ── the numbers ───────────────────────────────────────────────────────────────────────────────────


def test_page_evaluate_and_metrics_give_the_same_numbers(folder, page):
    shown = embedded(page)
    printed = run(
        "evaluate", folder / "cal.json", folder / "test.npz", "--resamples", 20, "--json"
    ).stdout
    printed = json.loads(printed)
    told = shown["evaluation"]
    # Summed block by block here, at once there: the same up to the order of additions.
    apart = flat(told["uncalibrated"]), flat(printed["uncalibrated"])
    assert apart[0] == pytest.approx(apart[1], rel=1e-12)
    assert {**told, "uncalibrated": None} == {
        **{name: printed[name] for name in told},
        "uncalibrated": None,
    }
    verdict = shown["promise"]["verdicts"][0]
    assert {name: verdict[name] for name in ("value", "low", "high", "verdict", "target")} == {
        name: printed["promise"][name] for name in ("value", "low", "high", "verdict", "target")
    }

    gate, found = mc.load(folder / "cal.json"), mc.read_predictions(folder / "test.npz")
    logits, labels = found.table, found.labels
    proba, accept, raw = (
        gate.predict_proba(logits),
        gate.accepts(logits),
        TemperatureMap(1.0)(logits),
    )
    correct = logits.argmax(axis=1) == labels
    for name in (
        "ece",
        "ece_equal_mass",
        "classwise_ece",
        "smooth_ece",
        "nll",
        "brier",
        "accuracy",
    ):
        metric = getattr(metrics, name)
        told = shown["evaluation"]
        assert told["all_rows"][name]["estimate"] == pytest.approx(metric(proba, labels), rel=1e-12)
        accepted = metric(proba[accept], labels[accept])
        assert told["accepted_rows"][name]["estimate"] == pytest.approx(accepted, rel=1e-12)
        assert told["uncalibrated"]["all_rows"][name] == pytest.approx(
            metric(raw, labels), rel=1e-12
        )
    told = shown["evaluation"]["gate"]
    assert told["coverage"]["estimate"] == metrics.coverage(accept)
    assert told["miscoverage"]["estimate"] == metrics.miscoverage(accept, correct)
    assert told["selective_accuracy"]["estimate"] == metrics.selective_accuracy(accept, correct)
    k = shown["curves"]["current"]
    assert shown["curves"]["coverage"]["estimate"][k] == metrics.coverage(accept)
    assert shown["curves"]["accuracy"]["estimate"][k] == metrics.selective_accuracy(accept, correct)
    assert shown["curves"]["miscoverage"]["estimate"][k] == pytest.approx(
        metrics.miscoverage(accept, correct), abs=1e-14
    )


def test_the_page_keeps_every_digit_of_the_curves(folder, page):
    gate, found = mc.load(folder / "cal.json"), mc.read_predictions(folder / "test.npz")
    curves = summarise(found.table, found.labels, gate, n_resamples=0).curves
    shown = embedded(page)["curves"]
    for name in ("coverage", "accuracy", "miscoverage"):
        for part in ("estimate", "low", "high"):
            np.testing.assert_array_equal(shown[name][part], getattr(getattr(curves, name), part))
    np.testing.assert_array_equal(shown["threshold"], curves.threshold)


@pytest.mark.slow
def test_json_on_stdout_is_what_the_page_holds(folder, tmp_path, page):
    output = tmp_path / "again.html"
    options = ("--resamples", 20, "-o", output, "--json")
    answer = json.loads(run("report", folder / "cal.json", folder / "test.npz", *options).stdout)
    assert (answer.pop("output"), answer.pop("bytes")) == (str(output), output.stat().st_size)
    read = [answer.pop(name) for name in ("file", "artifact", "n_rows", "n_classes")]
    assert read == [answer["source"][name] for name in ("file", "artifact", "n_rows", "n_classes")]
    assert answer == {name: value for name, value in embedded(page).items() if name != "title"}


@pytest.mark.slow
def test_same_rows_same_bytes(folder, tmp_path, page):
    run(
        "report",
        folder / "cal.json",
        folder / "test.npz",
        "--resamples",
        20,
        "-o",
        tmp_path / "b.html",
    )
    assert (tmp_path / "b.html").read_text(encoding="utf-8") == page


# ── closed to markup and network ──────────────────────────────────────────────────────────────────


def test_the_policy_allows_this_style_and_this_script_and_nothing_else(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode("utf-8")).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in policy


def test_the_page_asks_for_nothing_from_elsewhere(page):
    outside = re.findall(r"""(?:src|href|action|poster|srcset)\s*=\s*["']?([^"'\s>]+)""", page)
    assert {link for link in outside if not link.startswith(("#", "data:", "${"))} == set()
    assert page.count("url(") == page.count("url(#")
    assert "@import" not in page
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|importScripts|sendBeacon|eval)\b", page
    )


def test_no_script_turns_text_into_markup():
    for text in html.read_scripts().values():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextual",
            text,
        )


def test_any_text_survives_and_stays_inside_its_element():
    text = html.render_page({"title": NASTY, "name": NASTY})
    assert embedded(text) == {"title": NASTY, "name": NASTY}
    assert text.count("</script") == 2
    assert text.count("</title") == 1
    assert "\u2028" not in text.split('id="summary">')[1].split("</script>")[0]
    assert text.encode("utf-8")


@pytest.mark.slow
def test_a_thousand_classes_stay_under_300_kilobytes(tmp_path):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(4000, 1000)).astype(np.float32) * 3
    labels = (table + rng.normal(size=table.shape)).argmax(axis=1)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(table[:2000], labels[:2000])
    size = html.write_report(
        summarise(table, labels, gate, n_resamples=0), tmp_path / "report.html"
    )
    assert size < 300_000


# ── the command ───────────────────────────────────────────────────────────────────────────────────


def test_says_what_was_found_and_how_to_open_it(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(
        "report", folder / "cal.json", folder / "test.npz", "--resamples", 0, "--title", "Release 7"
    )
    assert done.stdout.startswith("promised  Accepted predictions are correct at least 97%")
    assert "measured  kept: selective accuracy" in done.stdout
    assert (tmp_path / "report.html").as_uri() in done.stderr
    assert "<title>Release 7</title>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    done = run("report", folder / "test.npz", "--resamples", 0, "--quiet")
    assert "nothing is promised yet" in done.stdout
    assert not done.stderr


def test_the_page_on_stdout(folder):
    done = run("report", folder / "test.npz", "--resamples", 0, "-o", "-")
    assert done.stdout.startswith("<!doctype html>")
    assert embedded(done.stdout)["source"]["n_rows"] == 3000
    assert (
        "standard output" in run("report", folder / "test.npz", "-o", "-", "--json", code=2).stderr
    )


def test_many_files_are_hashed_as_the_rows_they_hold(folder, tmp_path):
    with np.load(folder / "test.npz") as test:
        for k, rows in enumerate((slice(0, 500), slice(500, 800))):
            np.savez(
                tmp_path / f"part{k}.npz", logits=test["logits"][rows], labels=test["labels"][rows]
            )
    for many in (tmp_path, tmp_path / "*.npz"):
        options = ("--resamples", 0, "-o", tmp_path / "report.html", "--json")
        source = json.loads(run("report", many, *options).stdout)["source"]
        assert (source["n_rows"], source["hashed"]) == (800, "arrays")
        (tmp_path / "report.html").unlink()


def test_comparison_of_named_calibrators(folder, tmp_path):
    options = (
        "--calibrators",
        "temperature,histogram",
        "--resamples",
        0,
        "-o",
        tmp_path / "report.html",
        "--json",
    )
    answer = json.loads(run("report", folder / "test.npz", *options).stdout)
    names = {entry["name"] for entry in answer["comparison"]["calibrators"]}
    assert {"temperature", "histogram"} <= names
    assert (
        "Unknown calibrator"
        in run("report", folder / "test.npz", "--calibrators", "temprature", code=2).stderr
    )


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["report", "{folder}/none.npz"], 2, "none.npz"),
        (["report", "{folder}/test.npz", "-o", "{folder}/test.npz"], 2, "also an input file"),
        (
            ["report", "{folder}/cal.json", "{folder}/test.npz", "-o", "{folder}/cal.json"],
            2,
            "also an input file",
        ),
        (
            ["report", "{folder}/test.npz", "-o", "{folder}/no/such/report.html"],
            2,
            "Create the folder first",
        ),
        (["report", "{folder}/test.npz", "-o", "{folder}"], 2, "folder"),
        (["report", "{folder}/test.npz", "--confidence", "90"], 2, "0.9"),
        (["report", "{folder}/test.npz", "-n", "0"], 2, "threads"),
    ],
)
def test_mistakes_are_one_line(folder, args, code, words):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = run(
        *[arg.replace("{folder}", str(folder)) for arg in args],
        *([] if code == 2 else ["--resamples", "0"]),
        code=code,
    )
    assert words in done.stderr
    assert "Traceback" not in done.output
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_command_begins_as_the_report_was_called(folder):
    assert (
        build_fit_command_start("-x.csv", ReadOptions(input="probabilities"))
        == "metacal fit ./-x.csv --input probabilities"
    )
    assert (
        build_fit_command_start("a b.npz", ReadOptions(classes="x y,z"))
        == "metacal fit 'a b.npz' --classes 'x y,z'"
    )


@pytest.mark.parametrize("given", ["metacal fit x.npz", None])
def test_the_command_has_the_options_of_the_gate(folder, given):
    gate = mc.load(folder / "cal.json").gate_.with_source(
        recipe=Recipe("SplineCalibration"), input="probabilities"
    )
    proba = np.full((40, gate.n_classes), 0.5 / (gate.n_classes - 1))
    proba[:, 0] = 0.5
    found = summarise(
        proba, gate.classes[[0, 1] * 20], gate, n_resamples=0, command=given, file="y.npz"
    )
    begin = "metacal fit y.npz" if given is None else given
    assert found.curves.command == f"{begin} --input probabilities --calibrator spline"
