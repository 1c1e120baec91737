"""A cascade as a file and on the command line: saved, audited, shown, applied, verified,
exported.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from docs import artifact_schema as schema
from metacal.cli import main
from metacal.errors import ArtifactError
from metacal.export import saved as artifact

FIXTURES = Path(__file__).parent / "fixtures" / "cascade-v3"
jsonschema = pytest.importorskip("jsonschema")


def drawn(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=n)
    return [
        (rng.normal(size=(n, 4)) + gap * np.eye(4)[y]).astype(np.float32) for gap in (2.5, 3.0)
    ], y


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models' predictions to fit on and new ones, and a cascade of each kind."""
    home = tmp_path_factory.mktemp("cascade")
    for name, n, seed in (("", 1500, 0), ("new-", 800, 1)):
        (small, large), y = drawn(n, seed)
        np.savez(home / f"{name}small.npz", logits=small, labels=y)
        np.savez(home / f"{name}large.npz", logits=large, labels=y)
    for name, promise in (
        ("loss", ("--max-loss", "0.03")),
        ("accuracy", ("--min-accuracy", "0.985")),
    ):
        run(
            "cascade", home / "small.npz", home / "large.npz", *promise, "-o", home / f"{name}.json"
        )
    return home


def run(*words, code=0):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("command", ["cascade", "verify", "evaluate", "apply"])
@pytest.mark.parametrize(("told", "named"), [("id", "ids"), ("labels", "labels")])
def test_files_in_another_order_are_refused_where_ids_or_labels_tell(folder, command, told, named):
    (small, large), y = drawn(800, 1)
    known = {"id": np.arange(800), "labels": y}[told]
    labels = {} if told == "labels" else {"labels": y}
    np.savez(folder / "one.npz", logits=small, **labels, **{told: known})
    np.savez(folder / "other.npz", logits=large[::-1], **{told: known[::-1]})
    words = {"cascade": ["--max-loss", 0.03], "apply": ["--json"]}.get(command, [])
    files = [folder / "one.npz", folder / "other.npz"]
    if command != "cascade":
        files = [folder / "loss.json", files[0], "--large", files[1]]
    result = run(command, *files, *words, code=2)
    assert "in the same order, but the column" in result.output
    assert f"of {named} differs in row" in result.output


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_a_saved_cascade_is_valid_and_comes_back_the_same(folder, name):
    path = folder / f"{name}.json"
    data = json.loads(path.read_text())
    jsonschema.Draft202012Validator(schema.schema()).validate(data)
    assert data["kind"] == "Cascade"
    assert data["version"] == 3
    loaded = mc.load(path)
    gate = mc.load_gate(path)
    assert gate == loaded.gate_
    (small, large), _ = drawn(200, 5)
    again = folder / "again.json"
    mc.save(loaded, again)
    assert again.read_bytes() == path.read_bytes()
    one, other = loaded.decide(small, large), gate.decide(mc.Rows(small), mc.Rows(large))
    np.testing.assert_array_equal(one.probabilities, other.probabilities)
    np.testing.assert_array_equal(one.answered_by, other.answered_by)


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_files_of_version_3_decide_what_they_decided(name):
    expected = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))[name]
    cascade = mc.load(FIXTURES / f"{name}.json")
    found = cascade.decide(np.array(expected["small"]), np.array(expected["large"]))
    assert found.answered_by.tolist() == expected["answered_by"]
    assert found.label.tolist() == expected["label"]
    assert cascade.certificate_.statement == expected["statement"]
    np.testing.assert_allclose(found.probabilities, expected["probs"], rtol=1e-9, atol=1e-12)


CHANGES = [
    (("certificate", "stages", "items", 0, "n_rows"), 5),
    (("certificate", "stages", "n_worse"), 400),
    (("certificate", "stages", "n_labels"), -1),
    (("certificate", "coverage"), 0.999),
    (("certificate", "statement"), "It is never wrong."),
    (("certificate", "rule"), "magic"),
    (("certificate", "threshold"), 0.123),
    (("certificate", "notes"), [{"kind": "remark", "text": "\u001b[2J"}]),
    (("certificate", "stages", "people"), 1),
    (("promise", "type"), "MaxMiscoverage"),
    (("promise", "delta"), 1e-9),
    (("promise", "delta"), None),
    (("stages", 0, "threshold"), "inf"),
    (("stages", 0, "source", "score"), "luck"),
    (("stages", 1, "source", "map", "type"), "Pipeline"),
    (("stages", 1, "source", "map", "inverse_temperature"), -1.0),
    (("stages", 0, "source", "type"), "Marks"),
    (("stages", 0, "source", "classes", "values"), [0, 1, 2]),
    (("data_hash",), "md5:0"),
    (("reject_label",), 2),
    (("surprise",), 1),
]


@pytest.mark.parametrize("name", ["loss", "accuracy"])
@pytest.mark.parametrize(("path", "value"), CHANGES, ids=lambda part: str(part)[:40])
def test_a_forged_file_is_refused(folder, name, path, value):
    data = json.loads((folder / f"{name}.json").read_text())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    data["checksum"] = artifact.checksum(data)
    with pytest.raises(ArtifactError):
        artifact.loads(json.dumps(data).encode())


def test_a_promise_that_the_counts_do_not_carry_is_refused(folder):
    for name, key, value in (("loss", "epsilon", 0.001), ("accuracy", "beta", 0.9999)):
        data = json.loads((folder / f"{name}.json").read_text())
        data["promise"][key] = data["certificate"]["target"] = value
        data["checksum"] = artifact.checksum(data)
        with pytest.raises(ArtifactError, match="do not certify"):
            artifact.loads(json.dumps(data).encode())


def test_apply_writes_who_answers(folder):
    out = folder / "out.csv"
    run(
        "apply",
        folder / "accuracy.json",
        folder / "new-small.npz",
        "--large",
        folder / "new-large.npz",
        "-o",
        out,
    )
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    (small, large), _ = drawn(800, 1)
    found = mc.load(folder / "accuracy.json").decide(small, large)
    assert [row["answered_by"] for row in rows] == found.answered_by.tolist()
    assert [int(row["prediction"]) for row in rows] == found.label.tolist()
    assert {row["answered_by"] for row in rows} == {"small", "large", "person"}


def test_apply_in_two_steps(folder):
    """First the small model alone, then the large one on the rows that need it."""
    told = run("apply", folder / "loss.json", folder / "new-small.npz", "-o", folder / "first.csv")
    assert "nobody" in told.stderr
    (small, large), _ = drawn(800, 1)
    rest = mc.load(folder / "loss.json").needs_large(small)
    np.savez(folder / "rest.npz", logits=large[rest])
    whole, partly = folder / "whole.csv", folder / "partly.csv"
    for file, out in (("new-large.npz", whole), ("rest.npz", partly)):
        run(
            "apply",
            folder / "loss.json",
            folder / "new-small.npz",
            "--large",
            folder / file,
            "-o",
            out,
        )
    assert whole.read_text() == partly.read_text()
    np.savez(folder / "odd.npz", logits=large[:7])
    words = run(
        "apply",
        folder / "loss.json",
        folder / "new-small.npz",
        "--large",
        folder / "odd.npz",
        "--json",
        code=2,
    )
    assert "all 800 rows, or the" in words.output


@pytest.mark.slow
def test_show_verify_and_json(folder):
    shown = run("show", folder / "loss.json")
    assert "a cascade of two models" in shown.stdout
    assert "at most 3%" in shown.stdout
    assert json.loads(run("show", folder / "loss.json", "--json").stdout)["kind"] == "Cascade"
    new = (folder / "new-small.npz", "--large", folder / "new-large.npz")
    assert run("verify", folder / "loss.json", *new).stdout.startswith(("kept", "undecided"))
    assert (
        json.loads(run("verify", folder / "accuracy.json", *new, "--json").stdout)["refuted"]
        is False
    )
    (small, large), y = drawn(800, 1)
    wrong = np.where(np.arange(800) % 3 == 0, (y + 1) % 4, y)
    np.savez(folder / "bad.npz", logits=large, labels=wrong)
    np.savez(folder / "plain.npz", logits=small)
    assert (
        "refuted"
        in run(
            "verify",
            folder / "accuracy.json",
            folder / "plain.npz",
            "--large",
            folder / "bad.npz",
            code=3,
        ).stdout
    )
    told = run(
        "verify",
        folder / "loss.json",
        folder / "small.npz",
        "--large",
        folder / "large.npz",
        code=1,
    )
    assert told.stdout.startswith("not judged")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_the_page_says_what_verify_says(folder, name):
    out = folder / f"{name}.html"
    new = (folder / "new-small.npz", "--large", folder / "new-large.npz")
    told = json.loads(run("report", folder / f"{name}.json", *new, "-o", out, "--json").stdout)
    verified = json.loads(run("verify", folder / f"{name}.json", *new, "--json").stdout)
    (verdict,) = told["promise"]["verdicts"]
    assert verdict["value"] == pytest.approx(verified["tests"][0]["value"])
    assert told["promise"]["verdict"] == verified["verdict"] != "refuted"
    page = out.read_text(encoding="utf-8")
    held = json.loads(page.split('id="summary">')[1].split("</script>")[0])
    assert held["promise"] == told["promise"]
    answers = held["promise"]["answered_by"]
    assert [one["name"] for one in answers] == ["small", "large", "person"][
        : 3 if name == "accuracy" else 2
    ]
    assert sum(one["n_rows"] for one in answers) == 800
    for one in answers:
        assert one["share"]["low"] <= one["n_rows"] / 800 <= one["share"]["high"]
    right = sum(one["n_rows"] * one["accuracy"]["estimate"] for one in answers[:2])
    accepted = (
        held["evaluation"]["accepted_rows"]["accuracy"]["estimate"]
        * held["evaluation"]["n_accepted"]
    )
    assert right == pytest.approx(accepted)
    assert held["source"]["score"] == "-confidence"
    assert held["curves"]["current"] is held["curves"]["command"] is None
    evaluated = json.loads(
        run("evaluate", folder / f"{name}.json", *new, "--resamples", 0, "--json").stdout
    )
    assert evaluated["answered_by"] == answers


@pytest.mark.slow
def test_the_page_takes_names_as_text(folder):
    title = "<img src=x onerror=alert(1)>"
    new = (folder / "loss.json", folder / "new-small.npz", "--large", folder / "new-large.npz")
    page = run("report", *new, "-o", "-", "--title", title).stdout
    assert title not in page
    assert "&lt;img" in page
    (small, large), y = drawn(800, 1)
    path = folder / "python.html"
    assert (
        mc.report(mc.load(folder / "loss.json"), small, y, path, large=large) == path.stat().st_size
    )
    assert "requires a cascade" in run("report", *new[1:], code=2).output


def test_other_commands_say_that_it_is_a_cascade(folder):
    for command in ("evaluate", "report"):
        assert (
            "holds a cascade"
            in run(command, folder / "loss.json", folder / "new-small.npz", code=2).output
        )


def test_wrong_usage_is_said(folder):
    pair = (folder / "small.npz", folder / "large.npz")
    assert "requires exactly one promise" in run("cascade", *pair, code=2).output
    assert (
        "requires exactly one promise"
        in run("cascade", *pair, "--max-loss", "0.1", "--min-accuracy", "0.9", code=2).output
    )
    assert (
        "--no-people has no"
        in run("cascade", *pair, "--max-loss", "0.1", "--no-people", code=2).output
    )
    assert (
        "same rows"
        in run("cascade", pair[0], folder / "new-large.npz", "--max-loss", "0.1", code=2).output
    )
    np.savez(
        folder / "shifted.npz", logits=drawn(1500, 0)[0][1], labels=np.roll(drawn(1500, 0)[1], 1)
    )
    assert (
        "the column of labels differs in row 0. Write both"
        in run("cascade", pair[0], folder / "shifted.npz", "--max-loss", "0.1", code=2).output
    )
    assert "needs all" in " ".join(run("cascade", "--help").output.split())


def test_labels_that_nobody_knows(folder):
    (small, large), y = drawn(1500, 0)
    same = small.argmax(axis=1) == large.argmax(axis=1)
    np.savez(folder / "few.npz", logits=small, labels=np.where(same, -1, y))
    np.savez(folder / "bare.npz", logits=large)
    told = json.loads(
        run(
            "cascade", folder / "few.npz", folder / "bare.npz", "--max-loss", "0.03", "--json"
        ).stdout
    )
    saved = json.loads((folder / "loss.json").read_text())["certificate"]
    assert told["certificate"]["threshold"] == saved["threshold"]
    assert told["certificate"]["stages"]["n_labels"] == saved["stages"]["n_labels"] < 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), [("loss", "float32"), ("loss", "float64"), ("accuracy", "float16")]
)
def test_exports_decide_as_python_does(folder, name, dtype):
    ort = pytest.importorskip("onnxruntime")
    run("export", folder / f"{name}.json", "-o", folder / "both.onnx", "--dtype", dtype)
    run(
        "export",
        folder / f"{name}.json",
        "-o",
        folder / "small.onnx",
        "--dtype",
        dtype,
        "--part",
        "small",
    )
    cascade = mc.load(folder / f"{name}.json")
    (small, large), _ = drawn(800, 1)
    small, large = (
        np.r_[table, np.zeros((2, 4)), 90.0 * np.eye(4)].astype(dtype) for table in (small, large)
    )
    found = cascade.decide(small, large)
    session = ort.InferenceSession(folder / "both.onnx")
    told = dict(
        zip(
            [o.name for o in session.get_outputs()],
            session.run(None, {"logits_small": small, "logits_large": large}),
        )
    )
    names = np.array(["small", "large", "person"])
    np.testing.assert_array_equal(names[told["answered_by"]], found.answered_by)
    np.testing.assert_array_equal(told["accept"], found.accept)
    np.testing.assert_allclose(told["probs"], found.probabilities, atol=1e-6)
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["metacal.promise"] == cascade.certificate_.statement
    session = ort.InferenceSession(folder / "small.onnx")
    accept = session.run(["accept"], {"logits": small})[0]
    np.testing.assert_array_equal(accept, ~cascade.needs_large(small))


@pytest.mark.slow
def test_rows_that_are_no_logits_are_left_to_people_by_the_graph(folder):
    ort = pytest.importorskip("onnxruntime")
    run("export", folder / "loss.json", "-o", folder / "both.onnx")
    sure, hopeless = np.float32([[30, 0, 0, 0]]), np.float32([[np.nan, 0, 0, 0]])
    feed = {
        "logits_small": np.r_[sure, hopeless, hopeless],
        "logits_large": np.r_[hopeless, sure, hopeless],
    }
    session = ort.InferenceSession(folder / "both.onnx")
    assert session.run(["answered_by"], feed)[0].tolist() == [0, 1, 2]
    assert np.isfinite(session.run(["probs"], feed)[0]).all()


@pytest.mark.parametrize("name", ["scores-loss", "scores-accuracy"])
def test_cascades_of_scores_of_earlier_builds_answer_alike_here_and_in_onnxruntime(name, tmp_path):
    expected = json.loads((FIXTURES / "expected-scores.json").read_text(encoding="utf-8"))[name]
    scores, cascade = (
        [np.array(one) for one in expected["scores"]],
        mc.load(FIXTURES / f"{name}.json"),
    )
    found, stages = cascade.decide(scores), cascade.gate_.stages
    assert found.answered_by.tolist() == expected["answered_by"]
    assert len(set(expected["answered_by"])) == 4 + (name == "scores-accuracy")
    assert cascade.certificate_.statement == expected["statement"]
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from metacal.export import onnx

    saved = onnx.save(cascade, tmp_path / "cascade.onnx", dtype="float64")
    names = json.loads(saved.metadata["metacal.answered_by"])
    session = runtime.InferenceSession(
        tmp_path / "cascade.onnx", providers=["CPUExecutionProvider"]
    )
    given = [*scores, np.zeros(len(scores[0]))][
        : len(stages)
    ]  # the last one answers whatever its score is
    inputs = dict(zip([one.name for one in session.get_inputs()], given, strict=True))
    answers = dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs)))
    assert [names[k] for k in answers["answered_by"]] == expected["answered_by"]
    assert answers["accept"].tolist() == found.accept.tolist()
