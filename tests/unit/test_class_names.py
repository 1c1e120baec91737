"""What the classes are called: names stay when labels are numbers, and string labels need no
further words.
"""

from __future__ import annotations

import csv
import json
import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.base import clone

import metacal as mc
from metacal.cli import main
from metacal.io.strays import find_stray_columns
from metacal.rows.labels import check_classes, encode_labels

NAMES = np.array(["cat", "dog", "bird"])
PROMISE = mc.MaxMiscoverage(0.1)
RNG = np.random.default_rng(2)
ROWS = RNG.normal(size=(500, 3)) * 2.0
CODES = (ROWS + RNG.normal(size=ROWS.shape)).argmax(axis=1)


def run(*args, code=0):
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code == code, done.output
    return done


def write_csv(path, columns, table, labels, name="label"):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, name])
        writer.writerows([*row, label] for row, label in zip(table.tolist(), labels.tolist()))
    return path


# ── numbers beside names ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "labels", [CODES, CODES.astype(float), CODES.astype(np.uint8), NAMES[CODES]]
)
def test_numbers_count_the_columns_where_classes_have_names(labels):
    assert np.array_equal(encode_labels(labels, 500, check_classes(NAMES, 3)), CODES)


def test_numbers_that_count_no_column_are_refused():
    for labels, hint in (
        (CODES + 1, "labels - 1"),
        (CODES - 1, "labels must lie between 0 and 2,"),
        (CODES + 0.5, "continuous"),
    ):
        with pytest.raises(mc.InputError, match=hint):
            encode_labels(labels, 500, check_classes(NAMES, 3))


def test_metacal_answers_with_names_whatever_the_labels():
    counted = mc.MetaCal(PROMISE, classes=NAMES.tolist()).fit(ROWS, CODES)
    named = mc.MetaCal(PROMISE, classes=NAMES.tolist()).fit(ROWS, NAMES[CODES])
    assert counted.gate_ == named.gate_
    assert set(counted.predict(ROWS)) == {*NAMES, "rejected"}
    assert (
        mc.verify(counted, ROWS, CODES).to_dict() == mc.verify(named, ROWS, NAMES[CODES]).to_dict()
    )


@pytest.mark.slow
@pytest.mark.parametrize("given", ["columns", "option", "npz"])
def test_names_given_to_fit_are_shown_by_every_command(tmp_path, given):
    art, out, page = tmp_path / "cal.json", tmp_path / "out.csv", tmp_path / "page.html"
    options = []
    if given == "columns":
        file = write_csv(tmp_path / "val.csv", NAMES, ROWS, CODES)
    else:
        file = tmp_path / "val.npz"
        more = {"classes": NAMES} if given == "npz" else {}
        options = ["--classes", "cat,dog,bird"] if given == "option" else []
        np.savez(file, logits=ROWS, labels=CODES, **more)
    said = run("fit", file, "--max-miscoverage", 0.1, "-o", art, *options)
    assert "classes      3: cat, dog, bird" in said.stdout
    assert "cat, dog, bird" in run("show", art).stdout
    assert json.loads(run("show", art, "--json").stdout)["classes"] == NAMES.tolist()
    run("apply", art, file, "-o", out)
    with out.open() as read:
        rows = list(csv.DictReader(read))
    assert {row["answer"] for row in rows} == {*NAMES}
    assert {row["prediction"] for row in rows} == {*NAMES, "rejected"}
    assert {"probs_cat", "probs_dog", "probs_bird"} <= {*rows[0]}
    run("report", art, file, "-o", page, "--resamples", 0)
    assert all(f'"{name}"' in page.read_text() for name in NAMES)
    assert mc.load(art).classes_.tolist() == NAMES.tolist()
    assert run("verify", art, file, code=1).output.startswith("not judged")


def test_old_files_with_numbers_take_named_columns_as_before(tmp_path):
    mc.save(mc.MetaCal(PROMISE).fit(ROWS, CODES), tmp_path / "old.json")
    file = write_csv(tmp_path / "val.csv", NAMES, ROWS, CODES)
    run("apply", tmp_path / "old.json", file, "-o", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[1].split(",")[1] in "012"
    assert (
        "all 500 rows were part of the fit"
        in run("verify", tmp_path / "old.json", file, code=1).stdout
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_count_the_columns_of_their_own_file(tmp_path, kind):
    run(
        "fit",
        write_csv(tmp_path / "val.csv", NAMES, ROWS, CODES),
        "--max-miscoverage",
        0.1,
        "-o",
        tmp_path / "a.json",
    )
    order = [2, 0, 1]
    codes = np.argsort(order)[CODES]  # of the columns as they stand in the second file
    other = tmp_path / f"other.{kind}"
    if kind == "csv":
        write_csv(other, NAMES[order], ROWS[:, order], codes)
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = dict(zip(NAMES[order].tolist(), ROWS[:, order].T.copy()))
        parquet.write_table(pa.table({**columns, "label": codes}), other)
    told = json.loads(run("verify", tmp_path / "a.json", other, "--json", code=1).stdout)
    assert told["fit_rows"]["n_fit_rows"] == len(ROWS), (
        "the same rows, with the same predictions correct"
    )


# ── string labels, without further words ──────────────────────────────────────────────────────────


def test_a_frame_names_the_classes_of_string_labels(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=NAMES)
    labels = pandas.Series(NAMES[CODES])
    cal = mc.MetaCal(PROMISE).fit(frame, labels)
    told = mc.MetaCal(PROMISE, classes=NAMES.tolist()).fit(ROWS, NAMES[CODES])
    assert cal.gate_ == told.gate_
    assert cal.get_params()["classes"] is None
    assert cal.get_params()["reject_label"] is None
    assert set(cal.predict(frame)) == {*NAMES, "rejected"}
    assert clone(cal).fit(frame, labels).gate_ == cal.gate_
    mc.save(cal, tmp_path / "cal.json")
    again = mc.load(tmp_path / "cal.json")
    assert again.gate_ == cal.gate_
    assert np.array_equal(again.predict(frame), cal.predict(frame))
    scaled = mc.TemperatureScaling().fit(frame, labels)
    assert scaled.classes_.tolist() == NAMES.tolist()
    assert scaled.score(frame, labels) == pytest.approx((ROWS.argmax(axis=1) == CODES).mean())
    mc.save(scaled, tmp_path / "t.json")
    assert mc.load(tmp_path / "t.json").classes_.tolist() == NAMES.tolist()
    # Numbers are the columns' own, as ever.
    assert mc.MetaCal(PROMISE).fit(frame, CODES).classes_.tolist() == [0, 1, 2]
    with pytest.raises(mc.InputError, match="'cow' of row 0 is not one of the 3 classes"):
        mc.MetaCal(PROMISE).fit(frame, np.array(["cow", *NAMES[CODES][1:]]))
    with pytest.raises(mc.InputError, match="the order of the classes is required"):
        mc.MetaCal(PROMISE).fit(ROWS, NAMES[CODES])


def test_the_reject_label_follows_the_classes():
    for classes, labels, expected in (
        (None, CODES, -1),
        ([3, 5, 9], np.array([3, 5, 9])[CODES], -1),
    ):
        cal = mc.MetaCal(PROMISE, classes=classes).fit(ROWS, labels)
        assert cal.gate_.reject_label == expected
        assert cal.predict(ROWS).dtype.kind == "i"
        assert expected in cal.predict(ROWS)
    with pytest.raises(mc.InputError, match="one of the classes"):
        mc.MetaCal(PROMISE, classes=["cat", "dog", "rejected"]).fit(ROWS, CODES)
    with pytest.raises(mc.ArtifactError, match="reject_label was changed after fit"):
        mc.save(
            mc.MetaCal(PROMISE).fit(ROWS, CODES).set_params(reject_label=-7), "never-written.json"
        )


def test_a_classifier_of_strings_needs_no_reject_label():
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression

    X = RNG.normal(size=(600, 4))
    y = NAMES[(X[:, :3] + RNG.normal(size=(600, 3))).argmax(axis=1)]
    clf = mc.CalibratedClassifier(
        FrozenEstimator(LogisticRegression().fit(X[:300], y[:300])), mc.MaxMiscoverage(0.2)
    )
    clf = clone(clf).fit(X[300:], y[300:])
    assert set(clf.predict(X)) == {*NAMES, "rejected"}
    assert clf.gate_.reject_label == "rejected"
    assert np.array_equal(clf.gate_.predict(clf.logits(X)), clf.predict(X))


# ── columns that are no classes ───────────────────────────────────────────────────────────────────


def stray(name, values, labels, place=3):
    names = [*NAMES]
    names.insert(place, name)
    table = np.insert(ROWS, place, values, axis=1)
    return find_stray_columns(tuple(map(str, names)), labels, table).warnings


@pytest.mark.parametrize(
    "name",
    [
        "latency_s",
        "Unnamed: 0",
        "split",
        "fold",
        "index",
        "sample_id",
        "timestamp",
        "weight",
        "target",
        "Epoch",
    ],
)
def test_a_name_that_says_it_is_no_class(name):
    (remark,) = stray(name, RNG.random(500), NAMES[CODES])
    assert f"Column '{name}' is left out, because no label names it" in remark
    (remark,) = stray(name, RNG.random(500), CODES)
    assert f"'{name}' is read as a class" in remark
    assert "list the classes with classes=['cat', 'dog', 'bird']" in remark
    assert "label_key" in remark
    assert "label_key='target'" in stray("target", RNG.random(500), CODES)[0]


def test_a_name_that_a_label_bears_is_a_class():
    labels = np.where(CODES == 0, "index", NAMES[CODES])
    assert stray("index", np.arange(500), labels) == []
    assert stray("horse", RNG.normal(size=500), NAMES[CODES]) == []  # a class may have no row
    assert stray("horse", RNG.normal(size=500), CODES) == []


def test_numbers_of_another_kind_say_it_too():
    assert "'horse' is left out" in stray("horse", np.arange(500), NAMES[CODES])[0]
    assert "'horse' is left out" in stray("horse", RNG.integers(2, size=500), NAMES[CODES])[0]
    assert (
        stray("horse", np.full(500, -10.0), NAMES[CODES]) == []
    )  # a class that the classifier never gives


def test_a_stray_first_column_shifts_the_classes_and_is_named():
    (remark,) = stray("Unnamed: 0", np.arange(500), CODES, place=0)
    assert "'Unnamed: 0' is read as a class" in remark
    assert "list the classes with classes=['cat', 'dog', 'bird']" in remark


def test_two_strays_are_named_together(tmp_path):
    table = np.column_stack([ROWS, np.arange(500), RNG.integers(2, size=500)])
    file = write_csv(tmp_path / "val.csv", [*NAMES, "row", "split"], table, NAMES[CODES])
    with pytest.warns(mc.MetacalWarning, match="'row', 'split'") as said:
        found = mc.io.read_predictions(file)
    assert len(said) == 1
    assert said[0].filename == __file__
    assert len(found.remarks) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mc.io.read_predictions(file, classes=NAMES.tolist()).table.shape == (500, 3)
