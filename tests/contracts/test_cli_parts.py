"""--per-class and --group-key, from fit to report, on files of several kinds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

SITES = np.array(["north", "south", "east"])


def run(*args, code=0):
    done = CliRunner().invoke(main, list(map(str, args)))
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    data = mc.datasets.load("cifar10-resnet110")
    site = SITES[np.arange(len(data.labels)) % 3]
    np.savez(
        folder / "val.npz", logits=data.logits[:3000], labels=data.labels[:3000], site=site[:3000]
    )
    np.savez(
        folder / "test.npz",
        logits=data.logits[3000:7000],
        labels=data.labels[3000:7000],
        site=site[3000:7000],
    )
    run(
        "fit",
        folder / "val.npz",
        "--min-accuracy",
        0.95,
        "--per-class",
        "-o",
        folder / "class.json",
    )
    run(
        "fit",
        folder / "val.npz",
        "--max-miscoverage",
        0.1,
        "--group-key",
        "site",
        "-o",
        folder / "site.json",
    )
    return folder


def with_groups(by):
    return ("--group-key", "site") if by == "site" else ()


@pytest.mark.parametrize("by", ["class", "site"])
def test_verify_and_evaluate_speak_of_each(folder, by):
    more = with_groups(by)
    found = json.loads(
        run("verify", folder / f"{by}.json", folder / "test.npz", *more, "--json").stdout
    )
    assert not found["refuted"]
    assert {test["part"] for test in found["tests"]} <= {*map(str, range(10)), *SITES}
    arguments = (folder / f"{by}.json", folder / "test.npz", *more, "--resamples", 0)
    promise = json.loads(run("evaluate", *arguments, "--json").stdout)["promise"]
    assert not promise["refuted"]
    accepting = [
        part
        for part in mc.load_gate(folder / f"{by}.json").certificate.subgroups.items
        if part.n_accepted
    ]
    assert {own["part"] for own in promise["of_parts"]} == {part.name for part in accepting}
    assert "worst" in run("evaluate", *arguments).stdout


def test_apply_decides_as_python_does(folder, tmp_path):
    cal = mc.load(folder / "site.json")
    with np.load(folder / "test.npz") as test:
        logits, site = test["logits"], test["site"]
    run(
        "apply",
        folder / "site.json",
        folder / "test.npz",
        "--group-key",
        "site",
        "-o",
        tmp_path / "out.npz",
    )
    with np.load(tmp_path / "out.npz") as out:
        assert (out["accept"] == cal.accepts(logits, groups=site)).all()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_groups_in_tables_with_a_column_per_class(folder, tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    with np.load(folder / "val.npz") as val:
        columns = {f"logits_{k}": val["logits"][:900, k] for k in range(10)}
        columns |= {
            "label": val["labels"][:900],
            "site": val["site"][:900],
            "id": [f"r{k}" for k in range(900)],
        }
    path = tmp_path / f"val.{kind}"
    (csv.write_csv if kind == "csv" else parquet.write_table)(pa.table(columns), path)
    found = json.loads(
        run("fit", path, "--max-miscoverage", 0.1, "--group-key", "site", "--json").stdout
    )
    parts = found["certificate"]["parts"]
    assert [part["names"] for part in parts["items"]] == [["east"], ["north"], ["south"]]
    assert sum(part["n_rows"] for part in parts["items"]) == 900


def test_groups_must_be_in_the_file_of_a_gate_by_group(folder, tmp_path):
    with np.load(folder / "test.npz") as test:
        np.savez(tmp_path / "no-site.npz", logits=test["logits"], labels=test["labels"])
    done = run("apply", folder / "site.json", tmp_path / "no-site.npz", "--json", code=2)
    assert "'site'" in done.stderr
    done = run("verify", folder / "class.json", folder / "test.npz", "--group-key", "site", code=2)
    assert "the same threshold for all rows" in done.stderr
    done = run("fit", folder / "val.npz", "--min-accuracy", 0.9, "--group-key", "ward", code=2)
    assert "--group-key names 'ward', which the file" in done.stderr


def test_rows_of_unknown_groups_are_rejected_and_said(folder, tmp_path):
    with np.load(folder / "test.npz") as test:
        np.savez(tmp_path / "new.npz", logits=test["logits"][:10], site=["moon"] * 10)
    done = run("apply", folder / "site.json", tmp_path / "new.npz", "--group-key", "site", "--json")
    assert json.loads(done.stdout)["n_accepted"] == 0
    assert "moon" in done.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--per-class", "--group-key", "site"], "cannot be combined"),
        (["--each"], "--per-class or --group-key"),
        (["--pool-small"], "--per-class or --group-key"),
        (["--per-class", "--in-expectation"], "cannot be combined"),
        (["--per-class", "--after-looking"], "cannot be combined"),
        (["--per-class", "--max-miscoverage", "0.1"], "supports a single promise"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(folder, options, complaint):
    done = run("fit", folder / "val.npz", "--min-accuracy", 0.9, *options, code=2)
    assert complaint in done.stderr


@pytest.mark.slow
def test_show_export_and_report(folder, tmp_path):
    assert "the threshold of the predicted class" in run("show", folder / "class.json").stdout
    pytest.importorskip("onnxruntime")
    saved = json.loads(
        run("export", folder / "site.json", "-o", tmp_path / "gate.onnx", "--json").stdout
    )
    assert json.loads(saved["metadata"]["metacal.groups"]) == ["east", "north", "south"]
    page = tmp_path / "report.html"
    arguments = (
        folder / "class.json",
        folder / "test.npz",
        "--group-key",
        "site",
        "--resamples",
        0,
    )
    found = json.loads(run("report", *arguments, "-o", page, "--json").stdout)
    assert [part["by"] for part in found["parts"]] == ["class", "group"]
    assert [part["promised"] for part in found["parts"]] == ["each", "all"]


def test_a_threshold_from_the_page(folder, tmp_path):
    done = run(
        "fit",
        folder / "val.npz",
        "--min-accuracy",
        0.95,
        "--at-threshold=0.1",
        "-o",
        tmp_path / "cal.json",
    )
    assert "accept if entropy <= 0.1" in done.stdout
    done = run("fit", folder / "val.npz", "--min-accuracy", 0.999, "--at-threshold=0.5", code=1)
    assert "does not support the promise" in done.stderr
