"""What the page about extending metacal shows, a promise, a calibrator, a score and a format from outside, run as it is
on the page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from metacal.certificates import quantities
from metacal.certificates import words as rules
from metacal.errors import SavingError
from metacal.io.artifact.audit import read_certificate
from metacal.io.formats import FORMATS
from metacal.maps import methods
from metacal.promises import kinds
from metacal.promises.verification import verify_decisions
from metacal.scores import registry as scores

PAGE = Path(__file__).parents[2] / "docs" / "development" / "extending.md"
MODULES = ("leak", "toy", "toy_dialect", "toy_format", "toy_score")
REGISTRIES = (
    FORMATS,
    methods.METHODS,
    scores.NAMED,
    kinds.PROMISES,
    quantities.QUANTITIES,
    rules.RULES,
)


def blocks(language):
    return re.findall(
        rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    """The page's files, each under the name in its first line."""
    folder = tmp_path_factory.mktemp("outside")
    for code in blocks("py"):
        path = folder / re.match(r"# (\S+\.py)\n", code)[1]
        path.parent.mkdir(exist_ok=True)
        path.write_text(code, encoding="utf-8")
    return folder


@pytest.fixture(scope="module", name="outside")
def _outside(folder):
    """The page's modules, imported; afterwards everything is as it was."""
    kinds.load_promise_classes()  # a rule is entered when its promise is imported, once
    import_module("metacal.cli.options")  # it lists the formats when it is imported
    before = [dict(registry) for registry in REGISTRIES]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield {name: __import__(name) for name in MODULES}
    for registry, rows in zip(REGISTRIES, before):
        registry.clear()
        registry.update(rows)
    for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
        del sys.modules[name]


@pytest.fixture(scope="module", name="data")
def _data():
    return mc.datasets.load("cifar10-resnet110")


@pytest.fixture(scope="module", name="gate")
def _gate(outside, data):
    """A gate with the toy calibrator and the toy score."""
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=mc.ToyScaling(), score="toy")
    return gate.fit(data.logits[:3000], data.labels[:3000])


@pytest.fixture(scope="module", name="shell")
def _shell(folder, data):
    """Run lines in a shell, `metacal` being the one that is tested, where the page's files are
    found.
    """
    (folder / "bin").mkdir()
    (folder / "bin" / "metacal").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m metacal "$@"\n', encoding="utf-8"
    )
    (folder / "bin" / "metacal").chmod(0o755)
    np.savez(folder / "val.npz", logits=data.logits[:3000], labels=data.labels[:3000])
    paths = [
        str(folder),
        str(Path(mc.__file__).parents[1]),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
    }

    def run(lines, **more):
        argv = ["sh", "-e", "-c", lines]
        return subprocess.run(
            argv, cwd=folder, env=environment | more, capture_output=True, text=True, timeout=300
        )

    return run


# ── the promise ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", name="leaky")
def _leaky(outside, data):
    return mc.MetaCal(outside["leak"].MaxLeak(0.3)).fit(data.logits[:3000], data.labels[:3000])


def test_a_promise_on_a_new_quantity_works_everywhere(outside, leaky, data):
    certificate = leaky.certificate_
    assert certificate.statement.startswith(
        "At most 30% of the wrong answers are let through, on average"
    )
    assert read_certificate(certificate.to_dict()) == certificate
    assert leaky.promise.contradiction(certificate) is None
    wrong = data.logits[5000:].argmax(axis=1) != data.labels[5000:]
    assert abs(float(leaky.accepts(data.logits[5000:])[wrong].mean()) - 0.3) < 0.1
    assert kinds.load_promise_classes()["MaxLeak"] is outside["leak"].MaxLeak is mc.MaxLeak
    assert "MaxLeak" in dir(mc)
    none = np.zeros(500, dtype=bool)
    found = verify_decisions(certificate, ~none, none)
    assert found.refuted
    assert "500 wrong answers let through, of 500" in found.text()
    assert mc.PromiseMonitor.of(certificate)[0].update(~none, none).alarm


def test_the_promise_is_saved_loaded_and_exported(leaky, data, tmp_path):
    mc.save(leaky, tmp_path / "leak.json")
    again = mc.load(tmp_path / "leak.json")
    assert again.certificate_ == leaky.certificate_
    assert again.promise == leaky.promise
    assert mc.load_gate(tmp_path / "leak.json").certificate == leaky.certificate_
    alike(leaky, data.logits[5000:6000])


# ── the calibrator ────────────────────────────────────────────────────────────────────────────────


def alike(cal, table):
    """ONNX and torch give the same probabilities and the same decisions as Python."""
    expected, accept = cal.predict_proba(table), cal.accepts(table)
    assert 0 < accept.mean() < 1
    runtime = pytest.importorskip("onnxruntime")
    from metacal.export.onnx import to_onnx

    session = runtime.InferenceSession(to_onnx(cal).SerializeToString())
    probabilities, decisions = session.run(["probs", "accept"], {"logits": table})
    np.testing.assert_array_equal(decisions, accept)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-5, atol=1e-7)
    torch = pytest.importorskip("torch")
    from metacal.export.torch import to_module

    probabilities, _, decisions = to_module(cal)(torch.from_numpy(table))
    np.testing.assert_array_equal(decisions.numpy(), accept)
    np.testing.assert_allclose(probabilities.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_the_calibrator_is_public_and_does_what_it_says(outside, data):
    assert mc.ToyScaling is mc.estimators.ToyScaling is sys.modules["toy.estimator"].ToyScaling
    assert "ToyScaling" in dir(mc)
    cal = mc.ToyScaling().fit(data.logits[:5000], data.labels[:5000])
    found = cal.predict_proba(data.logits[:5000])
    accuracy = (data.logits[:5000].argmax(axis=1) == data.labels[:5000]).mean()
    assert found.max(axis=1).mean() == pytest.approx(accuracy, abs=1e-6)
    assert (cal.predict(data.logits) == data.logits.argmax(axis=1)).all()
    masked = cal.predict_proba(np.array([[1.0, 0.0, -np.inf, *[0.0] * 7]]))
    assert masked[0, 2] == 0.0
    assert masked.sum() == pytest.approx(1.0)


def test_the_calibrator_is_compared(outside, data):
    found = mc.compare(
        data.logits[:1000], data.labels[:1000], ["temperature", "toy"], n_splits=2, n_repeats=1
    )
    assert "toy" in str(found)
    assert "toy" in json.dumps(found.to_dict())
    everything = mc.estimators.CALIBRATORS
    assert everything["toy"] is mc.ToyScaling


def test_the_calibrator_is_saved_loaded_and_exported(outside, data, tmp_path):
    table = data.logits[5000:6000]
    alone = mc.ToyScaling().fit(data.logits[:3000], data.labels[:3000])
    mc.save(alone, tmp_path / "alone.json")
    again = mc.load(tmp_path / "alone.json")
    assert type(again) is mc.ToyScaling
    assert again.map_ == alone.map_
    np.testing.assert_array_equal(again.predict_proba(table), alone.predict_proba(table))
    alike(
        mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=mc.ToyScaling()).fit(
            data.logits[:3000], data.labels[:3000]
        ),
        table,
    )


def test_a_map_of_another_class_than_the_row_names_is_not_saved(outside, data, tmp_path):
    cal = mc.ToyScaling().fit(data.logits[:1000], data.labels[:1000])
    cal.map_ = mc.TemperatureScaling().fit(data.logits[:1000], data.labels[:1000]).map_
    with pytest.raises(SavingError, match=r"TemperatureMap.*'toy' names ToyMap"):
        mc.save(cal, tmp_path / "cal.json")


# ── the score ─────────────────────────────────────────────────────────────────────────────────────


def test_the_score_ranks_and_is_saved_and_exported(gate, data, tmp_path):
    table = data.logits[5000:6000]
    np.testing.assert_array_equal(gate.ranking_scores(table), scores.NAMED["toy"](table))
    np.testing.assert_allclose(gate.ranking_scores(table), -table.max(axis=1), rtol=1e-7)
    mc.save(gate, tmp_path / "cal.json")
    again, plain = mc.load(tmp_path / "cal.json"), mc.load_gate(tmp_path / "cal.json")
    assert again.score == "toy"
    np.testing.assert_array_equal(again.predict_proba(table), gate.predict_proba(table))
    np.testing.assert_array_equal(again.accepts(table), gate.accepts(table))
    np.testing.assert_array_equal(plain.decide(mc.Rows(table)).accept, gate.accepts(table))
    alike(gate, table)


# ── the file format ───────────────────────────────────────────────────────────────────────────────


def test_the_format_is_read_and_written_everywhere(outside, data, tmp_path):
    columns = {"logits": data.logits[:50], "label": data.labels[:50]}
    for name in ("a.bars", "b.bars"):
        mc.io.write_table(tmp_path / name, columns)
    assert (tmp_path / "a.bars").read_text().startswith("logits_0|logits_1|")
    found = mc.read_predictions(tmp_path)
    np.testing.assert_array_equal(
        found.table.astype(np.float32), np.concatenate([data.logits[:50]] * 2)
    )
    np.testing.assert_array_equal(found.labels, np.concatenate([data.labels[:50]] * 2))
    assert mc.io.read_scores(
        tmp_path / "a.bars", score_key="logits_0", correct_key=None
    ).score.shape == (50,)
    gate = mc.TemperatureScaling().fit(data.logits[:1000], data.labels[:1000])
    assert mc.apply(gate, tmp_path, f"{tmp_path}/out/").n_files == 2
    assert (tmp_path / "out" / "a.bars").read_text().startswith("label|prediction|")


# ── the command line ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_page_s_commands_run(shell, folder, gate, leaky, data):
    mc.save(leaky, folder / "leak.json")
    (lines,) = [block for block in blocks("bash") if "METACAL_PLUGINS" in block]
    done = shell(lines)
    assert done.returncode == 0, done.stderr
    assert "calibrator   ToyScaling" in done.stdout
    shown = shell("metacal show cal.json", METACAL_PLUGINS="toy,toy_score")
    assert re.search(r"numbers      share 0\.[0-9]+", shown.stdout)  # `fit` leaves them to `show`
    assert "accept if toy <=" in done.stdout
    assert "At most 30% of the wrong answers are let through" in done.stdout
    saved = mc.load(folder / "cal.json")
    assert type(saved.calibrator_) is mc.ToyScaling
    np.testing.assert_array_equal(saved.accepts(data.logits), gate.accepts(data.logits))
    session = pytest.importorskip("onnxruntime").InferenceSession(folder / "gate.onnx")
    decisions = session.run(["accept"], {"logits": data.logits[:3000]})[0]
    np.testing.assert_array_equal(decisions, gate.accepts(data.logits[:3000]))


@pytest.mark.slow
def test_help_and_completion_know_what_plugins_add(shell):
    for words in ("fit --help", "compare --help"):
        assert "toy" in shell(f"metacal {words}", METACAL_PLUGINS="toy,toy_score").stdout
        assert "toy" not in shell(f"metacal {words}").stdout
    asked = {
        "_METACAL_COMPLETE": "bash_complete",
        "COMP_WORDS": "metacal fit --calibrator toy",
        "COMP_CWORD": "3",
    }
    start = "python -c \"from metacal.cli import main; main(prog_name='metacal')\"".replace(
        "python", sys.executable
    )
    assert shell(start, METACAL_PLUGINS="toy, nowhere", **asked).stdout.strip() == "plain,toy"


def test_choices_are_asked_for_when_a_line_is_read(outside):
    """Also where the command was imported before the row was there."""
    from metacal.cli import cascade, fit

    choices = {
        option.name: option.type for command in (fit, cascade) for option in command.command.params
    }
    assert "toy" in choices["calibrator"].choices
    assert "toy" in choices["score"].choices
    assert choices["calibrator"].convert("toy", None, None) == "toy"


def test_a_plugin_that_is_only_rows_loads_nothing_heavy(shell):
    code = (
        "import sys, toy; print([m for m in ('numpy', 'scipy', 'sklearn', 'torch', 'onnx') if m in"
        " sys.modules])"
    )
    assert shell(f'"{sys.executable}" -c "{code}"').stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("plugins", "said"),
    [
        (
            "toy,nowhere",
            "'nowhere', which METACAL_PLUGINS names: ModuleNotFoundError: No module named 'nowhere'.",
        ),
        (
            "toy,twice",
            (
                "'twice', which METACAL_PLUGINS names: InputError: A method named"
                " 'temperature' is already registered."
            ),
        ),
        (".toy", "'.toy', which METACAL_PLUGINS names: TypeError"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_wrong_usage(shell, folder, plugins, said):
    twice = "from metacal.maps.methods import METHODS, register\nregister(METHODS['temperature'])\n"
    (folder / "twice.py").write_text(twice, encoding="utf-8")
    done = shell("metacal fit val.npz --max-miscoverage 0.1", METACAL_PLUGINS=plugins)
    assert done.returncode == 2
    assert f"Cannot import the module {said}" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert shell("metacal --help", METACAL_PLUGINS=plugins).returncode == 0


@pytest.mark.slow
def test_a_file_from_outside_needs_its_modules(shell, folder, gate):
    mc.save(gate, folder / "needs.json")
    done = shell("metacal apply needs.json val.npz -o -")
    assert done.returncode == 2
    assert re.search('ToyMap|ToyScaling|"toy"', done.stderr)


@pytest.mark.usefixtures("outside")
def test_a_dialect_of_json_lines_is_read_by_its_own_reader(tmp_path):
    lines = [{"outputs": [2.0, -1.0], "target": 0}, {"outputs": [0.5, 0.75], "target": 1}]
    path = tmp_path / "rows.jl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    predictions = mc.read_predictions(path)
    assert np.array_equal(predictions.table, [[2.0, -1.0], [0.5, 0.75]])
    assert np.array_equal(predictions.labels, [0, 1])


@pytest.fixture(name="dialect_folder")
def _dialect_folder(tmp_path, data):
    """Files of the dialect: rows to fit a gate, and rows without labels to apply it to."""
    logits, labels = data.logits[:1000].round(3).tolist(), data.labels[:1000].tolist()
    fit_lines = [
        {"outputs": row, "target": label} for row, label in zip(logits, labels, strict=True)
    ]
    files = {"val.jl": fit_lines, "new.jl": [{"outputs": row} for row in logits[:20]]}
    for name, lines in files.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("outside")
def test_a_gate_is_applied_to_rows_of_the_dialect_without_labels(dialect_folder):
    predictions = mc.read_predictions(dialect_folder / "val.jl")
    gate = mc.MetaCal(mc.MinAccuracy(0.9)).fit(predictions.table, predictions.labels)
    assert mc.apply(gate, dialect_folder / "new.jl", dialect_folder / "out.csv").n_rows == 20


def test_the_command_line_reads_the_dialect(shell, dialect_folder):
    done = shell(
        f"cd {dialect_folder}; metacal fit val.jl --min-accuracy 0.9 -o g.json;"
        " metacal apply g.json new.jl -o out.csv; metacal start val.jl --yes",
        METACAL_PLUGINS="toy_dialect",
    )
    assert done.returncode == 0, done.stderr
    assert "table: outputs" in done.stdout + done.stderr
    assert "labels: target" in done.stdout + done.stderr
