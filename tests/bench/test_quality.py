"""python -m benchmarks quality: what it measures, on what; and what is to be a gate's base map by
default.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.experiments.logits_files import find
from benchmarks.quality import peers as quality_peers
from benchmarks.quality import tables as quality_tables
from benchmarks.quality.methods import OURS, parse_methods, probabilities
from benchmarks.quality.peers import PEERS, Peer, installed_peers
from benchmarks.quality.runs import Settings, run_task
from benchmarks.quality.tables import Row, rows_of
from benchmarks.quality.variants import VARIANTS
from metacal import datasets
from metacal.errors import InputError
from metacal.gate import LogitsData
from metacal.gate.calibrate import calibrate
from metacal.maps.composed import fit_composed
from metacal.promises.miscoverage import MaxMiscoverage
from metacal.rows import Rows

SMALL = ["--sets", "cifar10-resnet110", "--sizes", "500", "--variants", "plain", "-n", "1"]
FAST = ["--methods", "uncalibrated,temperature,composed"]


def run(*args, code=0):
    done = CliRunner().invoke(main, ["quality", *map(str, args)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


@pytest.fixture(scope="module")
def found():
    return next(item for item in find(())[0] if item.name == "cifar10-resnet110")


def test_a_run_leaves_rows_and_tables_and_goes_on(tmp_path):
    first = run(*SMALL, *FAST, "-o", tmp_path)
    results = json.loads((tmp_path / "quality.json").read_text())
    assert {row.method for row in rows_of(results)} == {"uncalibrated", "temperature", "composed"}
    assert (tmp_path / "quality.md").read_text() == quality_tables.page(results)
    before = (tmp_path / "quality.json").read_bytes()
    again = run(*SMALL, *FAST, "-o", tmp_path)
    assert "1 of 1 tasks are there" in again.output
    assert (tmp_path / "quality.json").read_bytes() == before
    assert "## Accepted rows" in first.output
    assert run("--from", tmp_path).output.strip().endswith(quality_tables.page(results).strip())


@pytest.mark.slow
def test_runs_apart_are_compared_row_by_row(tmp_path):
    """As when the peers live in an environment of their own: the same figures as in one run, but
    for rounding.
    """
    folders = [tmp_path / name for name in ("together", "one", "other")]
    for folder, methods in zip(folders, ("auto,spline", "auto", "spline")):
        run(*SMALL, "--methods", methods, "-o", folder)
    joined = run("--from", f"{folders[1]},{folders[2]}", "-o", tmp_path / "both", "--json").stdout
    found = [{row.method: row.metrics for row in rows_of(json.loads(text))} for text in
             ((folders[0] / "quality.json").read_text(), joined)]  # fmt: skip
    assert found[0] == found[1]
    spline = found[1]["spline"]
    assert spline["auto_difference"] == pytest.approx(
        spline["nll"] - found[1]["auto"]["nll"], abs=2e-6
    )
    assert 0.0 < spline["auto_error"] < 0.01
    assert found[1]["auto"]["auto_difference"] == 0.0
    (alone,) = quality_tables.of_split(json.loads(joined), 0)
    assert (alone.data, alone.variant, alone.n, alone.above_peers) == (
        "cifar10-resnet110",
        "plain",
        500,
        None,
    )
    assert alone.above_all == pytest.approx(
        found[1]["auto"]["nll"] - min(m["nll"] for m in found[1].values()), abs=0.1
    )
    assert quality_tables.of_split(json.loads(joined), 1) == []


@pytest.mark.parametrize(
    "wrong",
    [
        ["--methods", "temprature"],
        ["--variants", "fishy"],
        ["--sizes", "x"],
        ["--from", "no-such-folder"],
    ],
)
def test_what_cannot_be(wrong):
    assert run(*wrong, code=2).output


def test_losses_are_compared_row_by_row(found):
    settings = Settings(methods=("uncalibrated", "temperature"))
    answers = run_task(found, settings, "plain", 1000, 0).computed["methods"]
    assert answers["temperature"]["nll_difference"] == 0.0
    gap = answers["uncalibrated"]["nll"] - answers["temperature"]["nll"]
    assert answers["uncalibrated"]["nll_difference"] == pytest.approx(gap, abs=1e-6)
    assert 0.0 < answers["uncalibrated"]["nll_error"] < 0.1 * gap
    assert answers == run_task(found, settings, "plain", 1000, 0).computed["methods"]


def test_the_variants_are_what_they_say():
    data = datasets.load("cifar10-resnet110")
    logits, labels = data.logits[:4000], data.labels[:4000].astype(np.int64)
    made = {
        name: variant(logits, labels, np.random.default_rng(0))
        for name, variant in VARIANTS.items()
    }
    assert made["plain"][0] is logits
    np.testing.assert_allclose(made["sharpened"][0], 3.0 * logits)
    assert made["floored"][0].min() == pytest.approx(np.log(1e-12))
    assert 0.05 < (made["mislabelled"][1] != labels).mean() < 0.12
    counts = np.bincount(made["long-tailed"][1], minlength=10)
    assert counts[0] > 10 * counts[9]
    for name in ("floored", "sharpened", "mislabelled"):
        np.testing.assert_array_equal(made[name][0].argmax(axis=1), logits.argmax(axis=1))


def test_scikit_learns_temperature_is_ours(found):
    assert "scikit-learn temperature" in installed_peers()
    data = datasets.load("cifar10-resnet110")
    fit = data.logits[:500].astype(np.float64), data.labels[:500].astype(np.int64)
    ours = probabilities("temperature", *fit, data.logits[500:900])
    peer = probabilities("scikit-learn temperature", *fit, data.logits[500:900].astype(np.float64))
    np.testing.assert_allclose(peer, ours, atol=1e-3)


def test_what_a_peer_cannot_do_is_said_and_the_others_go_on(found, monkeypatch):
    def fail(logits, codes, new):
        print("noise")
        raise RuntimeError("no such class")

    monkeypatch.setitem(PEERS, "betacal", Peer("betacal", "sklearn", fail))
    monkeypatch.setitem(PEERS, "venn-abers", Peer("venn-abers", "sklearn", fail, most_classes=5))
    answers = run_task(
        found, Settings(methods=("temperature", "betacal", "venn-abers")), "plain", 500, 0
    ).computed
    assert set(answers["methods"]) == {"uncalibrated", "temperature"}
    assert answers["failed"]["betacal"] == "RuntimeError: no such class"
    assert "at most 5 classes" in answers["failed"]["venn-abers"]


def test_a_peer_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(
        PEERS, "netcal beta", Peer("netcal", "no_such_module", PEERS["netcal beta"].fit)
    )
    assert "netcal beta" not in parse_methods("all")
    assert "netcal" in quality_peers.missing_packages()
    with pytest.raises(InputError, match="'netcal beta' is not installed: pip install netcal"):
        parse_methods("netcal beta")


def test_two_classes_are_one_question(found):
    def answers(scores, outcomes, new):
        return np.full(len(new), outcomes.mean())

    logits, codes = np.zeros((4, 2)), np.array([0, 1, 1, 1])
    np.testing.assert_allclose(
        quality_peers._one_vs_rest(answers)(logits, codes, np.zeros((1, 2))), [[0.25, 0.75]]
    )
    three = quality_peers._one_vs_rest(answers)(
        np.zeros((4, 3)), np.array([0, 1, 1, 2]), np.zeros((1, 3))
    )
    np.testing.assert_allclose(three, [[0.25, 0.5, 0.25]])


def test_lists_of_methods():
    assert parse_methods("ours") == list(OURS)
    assert parse_methods("auto,ours")[:2] == ["auto", "uncalibrated"]
    with pytest.raises(InputError, match="there is no method 'x'"):
        parse_methods("x")


def test_the_tables_count_who_is_lowest():
    def row(method, nll, error=0.01):
        metrics = {
            "nll": nll,
            "nll_difference": nll - 1.0,
            "nll_error": error,
            "ece": 0.1,
            "brier": 0.1,
        }
        metrics |= {"auto_difference": nll - 0.905, "auto_error": error}
        return Row("set", "plain", 100, method, 1, metrics)

    rows = [
        row("temperature", 1.0),
        row("auto", 0.905),
        row("spline", 0.9),
        row("betacal", 0.902, 0.001),
    ]
    assert (
        quality_tables.lowest(quality_tables.standings(rows))[-1]
        == "| 100 | 1 | 0 (.00) | 1 (1.00) | -.0030 | .0050 | -.0950 |"
    )
    assert quality_tables.beside_auto(rows, 100)[2:] == [
        "| `spline` | 1 | -.0050 ± .0000 | 0 | 1 | 0 |",
        "| betacal | 1 | -.0030 ± .0000 | 0 | 0 | 1 |",
        "| `temperature` | 1 | .0950 ± .0000 | 1 | 0 | 0 |",
    ]
    assert [line.split("|")[1].strip() for line in quality_tables.overall(rows, 100)[2:]] == [
        "`spline`",
        "betacal",
        "`auto`",
        "`temperature`",
    ]


@pytest.mark.parametrize("name", ["cifar10-resnet110", "cifar100-resnet110"])
@pytest.mark.parametrize("variant", ["plain", "floored", "mislabelled"])
def test_the_default_base_never_harms_accepted_rows(name, variant):
    """By more than one standard error, in ECE or log loss, against no calibration."""
    found = next(item for item in find(())[0] if item.name == name)
    methods = run_task(
        found, Settings(methods=("uncalibrated", "composed")), variant, 1000, 0
    ).computed["methods"]
    base = methods["composed"]
    assert base["ece_accepted_difference"] <= base["ece_accepted_error"]
    assert base["nll_accepted_difference"] <= base["nll_accepted_error"]


def test_the_default_base_is_a_base():
    data = datasets.load("cifar10-resnet110")
    rows = Rows(data.logits[:1000])
    calibration_data = LogitsData(rows, data.labels[:1000], "entropy", fit_composed)
    gate = calibrate(calibration_data, MaxMiscoverage(0.1))
    assert gate.source.map.preserves_accuracy
    assert gate.source.calibrator_name == "ComposedCalibration"
