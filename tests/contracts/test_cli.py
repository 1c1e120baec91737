"""The command line on real files: answers, exit codes, what goes to which stream, and messages
worth reading.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import SUMMARIES, main
from metacal.cli.demo import DATASETS

NAMES = ("cat", "dog", "bird")


def run(*args, code=0, stdin=None):
    """Run a command, check its exit code, and that no error is a traceback or longer than it need
    be.
    """
    if args[0] == "evaluate" and code == 0:
        args = (*args, "--resamples", 30)  # enough for what is asserted here, and 30 times faster
    done = CliRunner().invoke(main, [str(arg) for arg in args], input=stdin)
    assert done.exit_code == code, (done.output, done.exception)
    assert "Traceback" not in done.output
    if code == 1:
        assert done.stderr.startswith(("Error: ", "Warning: "))
        assert not done.stdout
    return done


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


def command(*args, **options):
    argv = [
        sys.executable,
        "-c",
        "from metacal.cli import main; main(prog_name='metacal')",
        *map(str, args),
    ]
    return subprocess.run(argv, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    table = rng.normal(size=(2000, 3)).astype(np.float32) * 3
    return table, (table + rng.normal(size=table.shape)).argmax(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, rows):
    """Fit and test files, and a fitted gate of each kind."""
    path, (table, labels) = tmp_path_factory.mktemp("cli"), rows
    np.savez(path / "val.npz", logits=table[:1000], labels=labels[:1000])
    np.savez(path / "test.npz", logits=table[1000:], labels=labels[1000:], id=np.arange(1000, 2000))
    mc.io.write_table(
        path / "val.csv",
        {"logits": table[:1000], "label": np.array(NAMES)[labels[:1000]]},
        class_names=NAMES,
    )
    run("fit", path / "val.npz", "--min-accuracy", 0.9, "-o", path / "cal.json")
    run("fit", path / "val.csv", "--max-miscoverage", 0.1, "-o", path / "named.json")
    mc.save(mc.TemperatureScaling().fit(table[:1000], labels[:1000]), path / "temperature.json")
    return path


# ── the group ─────────────────────────────────────────────────────────────────────────────────────


def test_help_lists_the_commands():
    done = run("--help")
    for name, summary in SUMMARIES.items():
        assert name in done.stdout
        assert summary.split(":")[0].split(",")[0][:30] in done.stdout
    assert "\\b" not in done.stdout


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_command_has_help_with_examples(name):
    done = run(name, "--help")
    assert "Examples:\n    metacal " in done.stdout
    assert SUMMARIES[name].split(":")[0][:30] in done.stdout


def test_version():
    assert run("--version").stdout == f"metacal {mc.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "meant"), [("fti", "fit"), ("aply", "apply"), ("evalute", "evaluate")]
)
def test_did_you_mean(typed, meant):
    assert f"did you mean '{meant}'?" in run(typed, code=2).stderr


def test_an_unknown_command_lists_the_known():
    assert "there are demo, start, fit, " in run("xyzzy", code=2).stderr


def test_an_unknown_option():
    assert "--min-accuracy" in run("fit", "val.npz", "--min-acuracy", 0.9, code=2).stderr


@pytest.mark.parametrize(
    "args", ["['--help']", "['fit', '--help']", "['evaluate', '--help']", "['fti']", "['fit']"]
)
def test_help_and_usage_errors_import_nothing_heavy(args):
    code = (
        "import sys\nfrom metacal.cli import main\n"
        f"try:\n    main({args})\nexcept SystemExit:\n    pass\n"
        "heavy = [m for m in ('numpy', 'scipy', 'sklearn', 'pandas', 'tqdm') if m in sys.modules]\n"
        "print('HEAVY', heavy)"
    )
    assert python(code, check=True).stdout.endswith("HEAVY []\n")


def test_fit_imports_only_what_a_fit_needs(folder):
    arguments = ["fit", str(folder / "val.npz"), "--min-accuracy", "0.9", "--json"]
    code = (
        "import sys\nfrom metacal.cli import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit:\n    pass\n"
        "unneeded = ('tqdm', 'sklearn', 'pandas', 'pyarrow', 'torch', 'scipy.stats',"
        " 'scipy.optimize', 'scipy.sparse', 'scipy.linalg')\n"
        "print('UNNEEDED', [name for name in unneeded if name in sys.modules])"
    )
    assert python(code, check=True).stdout.endswith("UNNEEDED []\n")


def test_static_choices_are_the_real_ones():
    from metacal.io.artifact.sources import list_calibrator_names
    from metacal.maps.methods import get_all_methods

    assert {row.public_name for row in get_all_methods().values()} == set(list_calibrator_names())
    assert set(DATASETS) == set(mc.datasets.names())


# ── fit ───────────────────────────────────────────────────────────────────────────────────────────


def test_fit_prints_and_saves(folder, tmp_path):
    done = run("fit", folder / "val.npz", "--min-accuracy", 0.9, "-o", tmp_path / "cal.json")
    assert "correct at least 90% of the time, with 90% confidence" in done.stdout
    assert "ComposedCalibration, temperature" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "Saved to" in done.stderr
    cal = mc.load(tmp_path / "cal.json")
    assert cal.promise == mc.MinAccuracy(0.9, delta=0.1)


def test_fit_json_is_all_of_stdout(folder, tmp_path):
    done = run(
        "fit", folder / "val.npz", "--max-miscoverage", 0.05, "--json", "-o", tmp_path / "cal.json"
    )
    answer = json.loads(done.stdout)
    assert answer["certificate"]["target"] == 0.05
    assert answer["calibrator"]["kind"] == "ComposedCalibration"
    assert answer["artifact"] == str(tmp_path / "cal.json")


def test_fit_without_output_only_prints(folder):
    before = sorted(folder.iterdir())
    done = run("fit", folder / "val.npz", "--min-accuracy", 0.9)
    assert "-o cal.json" in done.stderr
    assert sorted(folder.iterdir()) == before


def test_fit_options_reach_the_estimator(folder, tmp_path):
    out = tmp_path / "cal.json"
    run(
        "fit",
        folder / "val.npz",
        "--max-miscoverage",
        0.1,
        "--in-expectation",
        "--score",
        "margin",
        "-o",
        out,
    )
    assert mc.load(out).promise == mc.MaxMiscoverage(0.1, delta=None)
    assert mc.load(out).score == "margin"
    options = ("--confidence", 0.95, "--reject-label", 77, "-n", 2)
    run("fit", folder / "val.npz", "--max-miscoverage", 0.1, *options, "-o", out)
    assert mc.load(out).promise == mc.MaxMiscoverage(0.1, delta=0.05)
    assert mc.load(out).reject_label == 77
    assert mc.load(out).n_jobs == 2


@pytest.mark.parametrize("option", ["--min-accuracy", "--max-miscoverage"])
def test_fit_by_the_papers_rule(folder, tmp_path, option):
    rule = mc.paper.MinCoverageAccuracy if option == "--min-accuracy" else mc.paper.MaxMiscoverage
    out = tmp_path / "cal.json"
    done = run("fit", folder / "val.npz", option, 0.3, "--rule", "paper", "--seed", 5, "-o", out)
    assert done.stdout.startswith("Aimed at, without a guarantee: ")
    saved = mc.load(out)
    assert saved.promise == rule(0.3, random_state=5)
    with np.load(folder / "val.npz") as file:
        same = mc.MetaCal(rule(0.3, random_state=5)).fit(file["logits"], file["labels"])
    assert saved.gate_ == same.gate_
    run("verify", out, folder / "test.npz")


def test_fit_named_classes(folder):
    cal = mc.load(folder / "named.json")
    assert cal.classes_.tolist() == list(NAMES)
    assert cal.reject_label == "rejected"


def test_fit_reads_stdin_labels_classes_and_probabilities(folder, rows, tmp_path):
    table, labels = rows
    text = (folder / "val.csv").read_text()
    run("fit", "-", "--min-accuracy", 0.9, stdin=text)
    np.save(tmp_path / "z.npy", table)
    (tmp_path / "y.txt").write_text("\n".join(np.array(NAMES)[labels]))
    (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n")
    for classes in (",".join(NAMES), f"@{tmp_path / 'names.txt'}"):
        run(
            *("fit", tmp_path / "z.npy", "--labels", tmp_path / "y.txt", "--classes", classes),
            *("--min-accuracy", 0.9, "-o", tmp_path / "cal.json"),
        )
        assert mc.load(tmp_path / "cal.json").classes_.tolist() == list(NAMES)
    np.savez(tmp_path / "p.npz", p=np.full((1000, 3), 1 / 3) + table[:1000] * 1e-3, t=labels[:1000])
    keys = ("--logits-key", "p", "--label-key", "t")
    message = run(
        "fit",
        tmp_path / "p.npz",
        *keys,
        "--input",
        "probabilities",
        "--max-miscoverage",
        0.1,
        code=2,
    ).stderr
    assert "must sum to 1" in message


def test_fit_wants_a_promise(folder):
    message = run("fit", folder / "val.npz", code=2).stderr
    assert "--min-accuracy" in message
    assert "--max-miscoverage" in message


@pytest.mark.parametrize("looking", [(), ("--after-looking",)])
def test_fit_promises_both_at_once_or_says_what_is_possible(folder, tmp_path, looking):
    asked = ("--min-accuracy", 0.82, "--max-miscoverage", 0.2)
    done = run("fit", folder / "val.npz", *asked, *looking, "--json", "-o", tmp_path / "cal.json")
    certificate = json.loads(done.stdout)["certificate"]
    assert certificate["target"] == 0.82
    assert certificate["max_miscoverage"] == 0.2
    assert mc.load(tmp_path / "cal.json").certificate_.statement == certificate["statement"]
    promise = json.loads(
        run("evaluate", tmp_path / "cal.json", folder / "test.npz", "--json").stdout
    )["promise"]
    assert promise["also"]["quantity"] == "miscoverage"
    message = run(
        "fit",
        folder / "val.npz",
        "--min-accuracy",
        0.9,
        "--max-miscoverage",
        0.05,
        *looking,
        code=1,
    ).stderr
    assert "needs a miscoverage of" in message
    assert "supports an accuracy of" in message


def test_fit_in_expectation_excludes_after_looking(folder):
    message = run(
        "fit",
        folder / "val.npz",
        "--min-accuracy",
        0.8,
        "--after-looking",
        "--in-expectation",
        code=2,
    ).stderr
    assert "cannot be combined" in message


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--min-accuracy", 97), "Write 97% as 0.97"),
        (("--min-accuracy", 1), "not strictly between 0 and 1"),
        (("--max-miscoverage", "nan"), "not strictly between 0 and 1"),
        (("--max-miscoverage", "few"), "'few' is not a number"),
        (("--min-accuracy", 0.9, "--confidence", 90), "Write 90% as 0.9"),
        (("--min-accuracy", 0.9, "--confidence", 0.9, "--in-expectation"), "cannot be combined"),
        (
            ("--min-accuracy", 0.9, "--rule", "paper", "--confidence", 0.9),
            "--confidence has no effect with --rule",
        ),
        (
            ("--min-accuracy", 0.9, "--rule", "paper", "--in-expectation"),
            "--in-expectation has no effect with",
        ),
        (
            ("--min-accuracy", 0.9, "--rule", "paper", "--after-looking"),
            "--after-looking has no effect with",
        ),
        (
            ("--min-accuracy", 0.9, "--rule", "paper", "--at-threshold", 0.2),
            "--at-threshold has no effect with",
        ),
        (
            ("--min-accuracy", 0.9, "--in-expectation", "--at-threshold", 0),
            "--at-threshold cannot be combined",
        ),
        (
            ("--min-accuracy", 0.9, "--max-miscoverage", 0.1, "--rule", "paper"),
            "but not both",
        ),
        (("--min-accuracy", 0.9, "--rule", "papers"), "paper"),
        (("--min-accuracy", 0.9, "--score", "entrpy"), "entropy"),
        (("--min-accuracy", 0.9, "--calibrator", "plat"), "temperature"),
        (("--min-accuracy", 0.9, "-n", 0), "-1 for one thread per core"),
        (("--min-accuracy", 0.9, "--reject-label", "none"), "--reject-label must be an integer"),
        (("--min-accuracy", 0.9, "--classes", "cat"), "at least two class names"),
    ],
)
def test_fit_wrong_usage(folder, args, says):
    assert says in run("fit", folder / "val.npz", *args, code=2).stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--min-accuracy", 0.9, "--reject-label", 1), "Choose another label"),
        (("--min-accuracy", 0.9, "--label-key", "truth"), "columns are 'logits', 'labels'."),
        (("--min-accuracy", 0.9, "--logits-key", "z"), "--logits-key"),
        (("--min-accuracy", 0.9, "--input", "probabilities"), "--input logits"),
        (
            ("--min-accuracy", 0.9, "--classes", "@nowhere.txt"),
            "nowhere.txt: the file does not exist",
        ),
        (("--min-accuracy", 0.9, "--classes", "a,b"), "3 columns, but you pass 2 class names."),
        (
            ("--min-accuracy", 0.9, "--labels", "nowhere.txt"),
            "nowhere.txt: the file does not exist",
        ),
    ],
)
def test_fit_says_what_is_wrong_with_the_file_or_the_words(folder, args, says):
    assert says in run("fit", folder / "val.npz", *args, code=2).stderr


def test_fit_data_that_cannot_give_it(folder):
    assert (
        "Lower the target" in run("fit", folder / "val.npz", "--min-accuracy", 0.999, code=1).stderr
    )


def test_fit_refuses_bad_files(folder, tmp_path, rows):
    promise = ("--min-accuracy", 0.9)
    assert "the file does not exist" in run("fit", tmp_path / "no.npz", *promise, code=2).stderr
    assert (
        "the folder contains no file of predictions"
        in run("fit", tmp_path, *promise, code=2).stderr
    )
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04N.")
    assert "does not read pickles" in run("fit", tmp_path / "a.pkl", *promise, code=2).stderr
    table, labels = rows
    np.savez(tmp_path / "nan.npz", logits=np.where(table > 8, np.nan, table), labels=labels)
    assert "must not contain NaN" in run("fit", tmp_path / "nan.npz", *promise, code=2).stderr
    np.savez(tmp_path / "bare.npz", logits=table)
    assert "--labels" in run("fit", tmp_path / "bare.npz", *promise, code=2).stderr
    np.savez(tmp_path / "one.npz", logits=table, labels=labels + 1)
    assert "If your labels start at 1" in run("fit", tmp_path / "one.npz", *promise, code=2).stderr


def test_fit_leaves_the_old_file_when_it_fails(folder, tmp_path):
    (tmp_path / "cal.json").write_text("old")
    run("fit", folder / "val.npz", "--min-accuracy", 0.9999, "-o", tmp_path / "cal.json", code=1)
    assert (tmp_path / "cal.json").read_text() == "old"
    assert (
        "does not exist"
        in run(
            "fit",
            folder / "val.npz",
            "--min-accuracy",
            0.9,
            "-o",
            tmp_path / "no" / "cal.json",
            code=2,
        ).stderr
    )


def test_output_never_replaces_an_input(folder):
    for args in (
        ("fit", folder / "val.npz", "--min-accuracy", 0.9, "-o", folder / "val.npz"),
        ("apply", folder / "cal.json", folder / "val.csv", "-o", folder / "val.csv"),
    ):
        assert "also an input file" in run(*args, code=2).stderr


def test_warnings_are_lines_on_stderr(tmp_path):
    table = np.eye(3)[np.arange(300) % 3] * 5
    np.savez(tmp_path / "easy.npz", logits=table, labels=np.arange(300) % 3)
    done = run("fit", tmp_path / "easy.npz", "--max-miscoverage", 0.1, "--json")
    lines = done.stderr.splitlines()
    assert any(
        line.startswith("Warning: Only 0 errors in 300 rows. If these rows are training data")
        for line in lines
    )
    assert all(line.startswith("Warning: ") for line in lines)
    json.loads(done.stdout)


# ── apply ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", ["npz", "csv", "tsv"])
def test_apply(folder, tmp_path, rows, suffix):
    out = tmp_path / f"out.{suffix}"
    done = run("apply", folder / "cal.json", folder / "test.npz", "-o", out)
    assert not done.stdout
    assert "1,000 rows" in done.stderr
    cal, new = mc.load(folder / "cal.json"), rows[0][1000:]
    if suffix == "npz":
        with np.load(out) as found:
            assert set(found) == {
                "id",
                "labels",
                "prediction",
                "answer",
                "confidence",
                "accept",
                "score",
                "probs",
            }
            # Of every row, rejected ones too: what a reviewer wants to see.
            assert np.array_equal(found["probs"], cal.gate_.source.map(new))
            assert np.array_equal(found["answer"], new.argmax(axis=1))
            assert np.array_equal(
                found["confidence"], found["probs"][np.arange(len(new)), found["answer"]]
            )
            assert np.array_equal(found["prediction"], cal.predict(new))
            assert np.array_equal(found["accept"], cal.accepts(new))
            assert np.array_equal(found["id"], np.arange(1000, 2000))
    else:
        lines = out.read_text().splitlines()
        separator = "," if suffix == "csv" else "\t"
        assert lines[0].split(separator) == [
            *("id", "labels", "prediction", "answer", "confidence", "accept", "score"),
            *("probs_0", "probs_1", "probs_2"),
        ]
        assert len(lines) == 1001


def test_apply_gives_the_paper_s_map_where_asked(folder, tmp_path, rows):
    run(
        "apply",
        folder / "cal.json",
        folder / "test.npz",
        "--rejected",
        "uniform",
        "-o",
        tmp_path / "out.npz",
    )
    cal, new = mc.load(folder / "cal.json"), rows[0][1000:]
    with np.load(tmp_path / "out.npz") as found:
        assert not found["accept"].all()
        assert np.array_equal(found["probs"], cal.predict_proba(new, rejected="uniform"))
        calibrated = cal.gate_.source.map(new)[np.arange(len(new)), found["answer"]]
        assert np.array_equal(found["confidence"], calibrated)  # also where rejected


def test_apply_to_stdout_is_csv_and_nothing_else(folder):
    done = run("apply", folder / "cal.json", folder / "test.npz", "-o", "-")
    assert len(done.stdout.splitlines()) == 1001
    assert not done.stderr


def test_apply_json(folder, tmp_path):
    done = run(
        "apply", folder / "cal.json", folder / "test.npz", "--json", "-o", tmp_path / "out.npz"
    )
    answer = json.loads(done.stdout)
    with np.load(tmp_path / "out.npz") as found:
        assert answer["n_accepted"] == found["accept"].sum()
    assert answer["n_rows"] == 1000
    assert answer["coverage"] == answer["n_accepted"] / 1000
    assert (
        json.loads(run("apply", folder / "cal.json", folder / "test.npz", "--json").stdout)[
            "output"
        ]
        is None
    )


def test_apply_a_plain_calibrator(folder, tmp_path):
    run("apply", folder / "temperature.json", folder / "test.npz", "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as found:
        assert set(found) == {"id", "labels", "prediction", "confidence", "probs"}
        assert np.array_equal(found["confidence"], found["probs"].max(axis=1))
        assert np.array_equal(found["prediction"], found["probs"].argmax(axis=1))
    answer = json.loads(
        run("apply", folder / "temperature.json", folder / "test.npz", "--json").stdout
    )
    assert "accepted" not in answer


def test_apply_puts_columns_in_the_order_of_the_classes(folder, tmp_path, rows):
    new, cal = rows[0][1000:], mc.load(folder / "named.json")
    order = [2, 0, 1]
    names = [NAMES[k] for k in order]
    mc.io.write_table(
        tmp_path / "mixed.csv",
        {"when": np.full(1000, "noon"), "logits": new[:, order]},
        class_names=names,
    )
    mc.io.write_table(tmp_path / "mixed.npz", {"logits": new[:, order]}, class_names=names)
    for name in ("mixed.csv", "mixed.npz"):
        run("apply", folder / "named.json", tmp_path / name, "-o", tmp_path / "out.npz")
        with np.load(tmp_path / "out.npz") as found:
            assert found["classes"].tolist() == list(NAMES)
            assert np.array_equal(found["prediction"], cal.predict(new))
            assert set(found["prediction"]) == {*NAMES, "rejected"}


def test_apply_refuses_other_classes(folder, tmp_path, rows):
    new = rows[0][1000:]
    mc.io.write_table(tmp_path / "other.npz", {"logits": new}, class_names=["cow", "dog", "cat"])
    message = run("apply", folder / "named.json", tmp_path / "other.npz", "-o", "-", code=2).stderr
    assert "it has no 'bird', and it has 'cow', which the gate does not have" in message
    np.savez(tmp_path / "wide.npz", logits=np.zeros((5, 4)))
    message = run("apply", folder / "cal.json", tmp_path / "wide.npz", "-o", "-", code=2).stderr
    assert "has 4 columns of logits" in message
    assert "was fitted on 3 classes (0, 1, 2)" in message


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "-o out.csv"),
        (
            ("-o", "out.xlsx"),
            "End the name in .arrow, .csv, .feather, .jsonl, .ndjson, .npz, .parquet, .tsv",
        ),
        (("-o", "-", "--json"), "both write to standard output"),
        (("-o", "-", "--input", "probabilities"), "was fitted on logits"),
    ],
)
def test_apply_wrong_usage(folder, args, says):
    assert says in run("apply", folder / "cal.json", folder / "test.npz", *args, code=2).stderr


def test_apply_refuses_bad_artifacts(folder, tmp_path):
    new = (folder / "test.npz", "-o", tmp_path / "out.csv")
    text = (folder / "cal.json").read_text()
    (tmp_path / "edited.json").write_text(text.replace("0.9", "0.99", 1))
    (tmp_path / "newer.json").write_text(text.replace('"version": 3', '"version": 4'))
    (tmp_path / "cut.json").write_text(text[:300])
    for name, says in (
        ("edited.json", "was edited"),
        ("newer.json", "Update metacal"),
        ("cut.json", "damaged or incomplete"),
        ("none.json", "the file does not exist"),
    ):
        assert says in run("apply", tmp_path / name, *new, code=2).stderr
    assert "not a metacal file" in run("apply", folder / "val.npz", *new, code=2).stderr
    assert not (tmp_path / "out.csv").exists()


# ── evaluate ──────────────────────────────────────────────────────────────────────────────────────


def test_evaluate_the_classifier_itself(folder):
    done = run("evaluate", folder / "test.npz")
    assert "all rows" in done.stdout
    assert "ECE, equal width" in done.stdout
    assert "accepted rows" not in done.stdout


def test_evaluate_with_a_gate(folder):
    done = run("evaluate", folder / "cal.json", folder / "test.npz")
    for words in (
        "accepted rows",
        "uncalibrated",
        "all rows",
        "promised  Accepted predictions",
        "kept",
        "coverage",
    ):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines()[3:])) <= 100


def test_evaluate_json(folder):
    answer = json.loads(
        run("evaluate", folder / "cal.json", folder / "test.npz", "--json", "--level", 0.9).stdout
    )
    promise = answer["promise"]
    assert promise["quantity"] == "selective accuracy"
    assert promise["level"] == answer["level"] == 0.9
    assert promise["low"] <= promise["value"] <= promise["high"]
    assert promise["kept"] == (promise["value"] >= 0.9)
    assert answer["gate"]["selective_accuracy"]["estimate"] == promise["value"]
    assert answer["uncalibrated"]["accepted_rows"]["ece"] > 0
    assert answer["n_rows"] == 1000


def test_evaluate_is_reproducible_and_seeded(folder):
    texts = [
        run("evaluate", folder / "test.npz", "--seed", seed, "--bins", 10).stdout
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.slow
def test_evaluate_a_broken_promise_is_a_report(folder, tmp_path, rows):
    table, labels = rows
    wrong = np.where(np.arange(1000) % 3 == 0, (labels[1000:] + 1) % 3, labels[1000:])
    np.savez(tmp_path / "shifted.npz", logits=table[1000:], labels=wrong)
    done = run("evaluate", folder / "cal.json", tmp_path / "shifted.npz")
    assert "measured  refuted: selective accuracy" in done.stdout
    assert "promised at least 0.9" in done.stdout
    assert "fit again on recent labelled rows" in " ".join(done.stdout.split())
    answer = json.loads(
        run("evaluate", folder / "cal.json", tmp_path / "shifted.npz", "--json").stdout
    )
    assert answer["promise"]["kept"] is False
    assert answer["promise"]["refuted"] is True


def test_evaluate_named_classes_and_numbered_labels(folder, tmp_path, rows):
    table, labels = rows
    text = {"logits": table[1000:], "label": np.array(NAMES)[labels[1000:]]}
    mc.io.write_table(tmp_path / "named.csv", text, class_names=NAMES)
    np.savez(tmp_path / "numbers.npz", logits=table[1000:], labels=labels[1000:])
    order = [2, 0, 1]
    mc.io.write_table(
        tmp_path / "mixed.npz",
        {"logits": table[1000:, order], "labels": np.argsort(order)[labels[1000:]]},
        class_names=[NAMES[k] for k in order],
    )
    found = [
        json.loads(run("evaluate", folder / "named.json", tmp_path / name, "--json").stdout)[
            "promise"
        ]
        for name in ("named.csv", "numbers.npz", "mixed.npz")
    ]
    assert found[0] == found[1] == found[2]


def test_evaluate_a_plain_calibrator(folder):
    done = run("evaluate", folder / "temperature.json", folder / "test.npz")
    assert "uncalibrated" in done.stdout
    assert "promised" not in done.stdout


@pytest.mark.slow
def test_evaluate_says_when_the_rows_are_the_gate_s_own(folder):
    done = run("evaluate", folder / "cal.json", folder / "val.npz", "--json", "--resamples", 0)
    assert "were part of the fit" in done.stderr
    promise = json.loads(done.stdout)["promise"]
    assert (promise["verdict"], promise["kept"], promise["value"]) == ("not judged", False, None)
    done = run("evaluate", folder / "cal.json", folder / "test.npz", "--json", "--resamples", 0)
    assert "were part of the fit" not in done.stderr
    assert json.loads(done.stdout)["promise"]["fit_rows"] is None


def test_evaluate_needs_labels(folder, tmp_path):
    np.savez(tmp_path / "bare.npz", logits=np.zeros((5, 3)))
    assert "--labels" in run("evaluate", tmp_path / "bare.npz", code=2).stderr


@pytest.mark.parametrize("args", [("--level", 95), ("--bins", 0), ("--seed", -1)])
def test_evaluate_wrong_usage(folder, args):
    assert args[0] in run("evaluate", folder / "test.npz", *args, code=2).stderr


# ── demo ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_demo_fits_a_screen_and_tells_the_story(tmp_path):
    done = run("demo", "-o", tmp_path / "demo.html")
    assert max(map(len, done.stdout.splitlines())) <= 100
    for words in (
        "uncalibrated",
        "temperature scaling",
        "certified",
        "paper",
        "ECE:",
        "metacal fit val.npz",
    ):
        assert words in done.stdout
    assert "correct at least 97% of the time, with 90% confidence" in done.stdout
    assert done.stderr.startswith(f"The report is in {tmp_path / 'demo.html'}")
    assert done.stderr.strip().endswith((tmp_path / "demo.html").as_uri())
    assert "airplane" in (tmp_path / "demo.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_demo_json(tmp_path):
    answer = json.loads(run("demo", "--json", "-o", tmp_path / "demo.html").stdout)
    assert [row["promise"] for row in answer["rows"][2:4]] == [
        "miscoverage <= 0.05",
        "accuracy >= 0.97",
    ]
    assert answer["certificate"]["target"] == 0.97
    plain, scaled = answer["rows"][0]["ece_accepted"], answer["rows"][1]["ece_accepted"]
    assert scaled < plain / 3
    assert answer["n_test"] == 10_000


@pytest.mark.slow
def test_demo_other_data(tmp_path):
    done = run("demo", "--dataset", "cifar100-resnet110", "--seed", 1, "-o", tmp_path / "demo.html")
    assert "87%" in done.stdout
    assert "cifar10-resnet110" in run("demo", "--dataset", "cifar10", code=2).stderr


# ── real processes ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_streams_and_exit_codes(folder, tmp_path):
    done = command("apply", folder / "cal.json", folder / "test.npz", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["n_rows"] == 1000
    done = command("fit", folder / "no.npz", "--min-accuracy", "0.9", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    _message, help_link = done.stderr.splitlines()
    assert help_link.endswith("errors.html#cannot-read-file")
    done = command("fit", folder / "val.npz")
    assert done.returncode == 2
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_reader_that_goes_away(folder):
    argv = (
        f"{sys.executable} -c 'from metacal.cli import main; main()' apply {folder}/cal.json"
        f" {folder}/test.npz -o -"
    )
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {argv} | head -n 1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("id,labels,prediction")
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.usefixtures("signals_as_usual")
def test_interrupt_is_one_word_and_leaves_no_file(folder, tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    argv = ["apply", folder / "cal.json", tmp_path / "rows.csv", "-o", tmp_path / "out.csv"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from metacal.cli import main; main()", *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with open(tmp_path / "rows.csv", "w") as pipe:  # opens once the command has begun to read
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert pipe
    assert err == "Aborted.\n"
    assert out == ""
    assert process.returncode == 130
    assert [item.name for item in tmp_path.iterdir()] == ["rows.csv"]


def test_a_bug_is_one_line_too(folder, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("what\nnow")

    monkeypatch.setattr("metacal.io.artifact.document.decode_document", broken)
    message = run("apply", folder / "cal.json", folder / "test.npz", "-o", "-", code=1).stderr
    assert message.startswith("Error: RuntimeError: what now (unexpected")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(folder):
    argv = (
        f"{sys.executable} -c 'from metacal.cli import main; main()' apply {folder}/cal.json"
        f" {folder}/test.npz -o -"
    )
    done = subprocess.run(["bash", "-c", f"{argv} > /dev/full"], capture_output=True, text=True)
    assert done.returncode == 2
    message, _help_link = done.stderr.splitlines()
    assert message == "Error: No space left on device."


# ── compare ───────────────────────────────────────────────────────────────────────────────────────


def test_compare_prints_a_table_and_json(folder):
    names = ("--calibrators", "temperature,spline", "--folds", 3, "--repeats", 1)
    table = run("compare", folder / "test.npz", *names)
    assert "temperature" in table.stdout
    assert "* the best" in table.stdout
    answer = json.loads(run("compare", folder / "test.npz", *names, "--json").stdout)
    assert {entry["name"] for entry in answer["calibrators"]} == {
        "uncalibrated",
        "temperature",
        "spline",
    }
    again = json.loads(run("compare", folder / "test.npz", *names, "--json", "-n", 2).stdout)
    assert again["best"] == answer["best"]


@pytest.mark.parametrize(
    "args", [("--calibrators", "temprature"), ("--folds", 1), ("--repeats", 0)]
)
def test_compare_wrong_usage(folder, args):
    assert args[0] in run("compare", folder / "test.npz", *args, code=2).stderr


@pytest.mark.slow
def test_fit_with_every_calibrator(folder, tmp_path):
    for name in ("auto", "spline", "structured", "gaussian-process"):
        path = tmp_path / f"{name}.json"
        run("fit", folder / "val.npz", "--max-miscoverage", 0.1, "--calibrator", name, "-o", path)
        run("apply", path, folder / "test.npz", "-o", tmp_path / "out.npz")
