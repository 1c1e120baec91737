"""Provoke one error of each kind as a user does, and write the messages into the error reference.

Each scenario is a command or a Python expression that fails. Most have a remedy: the next request,
as the message suggests it. The tests check that the remedy works.

`python tests/contracts/provoked_errors.py` writes the messages into `docs/errors.md`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shlex
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.errors import ERROR_REFERENCE_URL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
WRITER = "python tests/contracts/provoked_errors.py"
#: Number of characters of the longest line of an example.
_PAGE_WIDTH = 88
_PROMPT = ">>> "
_N_ROWS = 5000


@dataclass(frozen=True)
class Provoked:
    """A request that fails, and the next request.

    Attributes
    ----------
    kind : str
        Kind of the error.
    request : str
        Command, or a Python expression after the prompt `>>> `.
    remedy : str, default=""
        Next request, as the message suggests it. Empty if the remedy is not a single request.
    hidden_module : str, default=""
        Module that cannot be imported during the request.
    """

    kind: str
    request: str
    remedy: str = ""
    hidden_module: str = ""


#: One scenario for each kind, in the order of the page.
PROVOKED = (
    Provoked(
        "command-line-options",
        "metacal fit val.csv -o cal.json",
        "metacal fit val.csv --min-accuracy 0.97 -o cal.json",
    ),
    Provoked("invalid-parameter", ">>> mc.MinAccuracy(97)", ">>> mc.MinAccuracy(0.97)"),
    Provoked(
        "unsupported-combination",
        ">>> mc.metrics.ece(labels, proba)",
        ">>> mc.metrics.ece(proba, labels)",
    ),
    Provoked(
        "missing-extra",
        "metacal export cal.json -o gate.onnx",
        hidden_module="onnx",
    ),
    Provoked(
        "cannot-read-file",
        "metacal apply cal.json next.csv -o out.csv",
        "metacal apply cal.json new.csv -o out.csv",
    ),
    Provoked(
        "unreadable-content",
        "metacal fit val.pkl --min-accuracy 0.97 -o cal.json",
        ">>> np.savez('predictions.npz', logits=logits, labels=labels)",
    ),
    Provoked("no-rows", "metacal fit header.csv --min-accuracy 0.97 -o cal.json"),
    Provoked(
        "column-not-found",
        "metacal fit val.csv --label-key truth --min-accuracy 0.97 -o cal.json",
        "metacal fit val.csv --label-key label --min-accuracy 0.97 -o cal.json",
    ),
    Provoked(
        "invalid-numbers",
        "metacal fit gap.csv --min-accuracy 0.97 -o cal.json",
    ),
    Provoked(
        "wrong-shape",
        ">>> mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels[:4000])",
        ">>> mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels)",
    ),
    Provoked(
        "logits-or-probabilities",
        ">>> mc.MetaCal(mc.MinAccuracy(0.97), input='probabilities').fit(logits, labels)",
        ">>> mc.MetaCal(mc.MinAccuracy(0.97), input='logits').fit(logits, labels)",
    ),
    Provoked(
        "missing-labels",
        "metacal fit new.csv --min-accuracy 0.97 -o cal.json",
        "metacal fit new.csv --min-accuracy 0.97 -o cal.json --labels labels.txt",
    ),
    Provoked(
        "unknown-labels",
        ">>> mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels_from_1)",
        ">>> mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels_from_1 - 1)",
    ),
    Provoked("different-classes", "metacal apply cal.json three.npz -o out.csv"),
    Provoked(
        "positive-class",
        ">>> mc.MetaCal(mc.MinPrecision(0.9, positive='animal')).fit(two_logits, is_animal)",
        ">>> mc.MetaCal(mc.MinPrecision(0.9, positive=1)).fit(two_logits, is_animal)",
    ),
    Provoked(
        "groups",
        ">>> mc.MetaCal(mc.PerGroup(mc.MinAccuracy(0.9))).fit(logits, labels)",
        ">>> mc.MetaCal(mc.PerGroup(mc.MinAccuracy(0.9))).fit(logits, labels, groups=sites)",
    ),
    Provoked(
        "clusters-and-cases",
        ">>> mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct)",
        ">>> mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct, cases=documents)",
    ),
    Provoked(
        "too-few-rows",
        "metacal evaluate cal.json val.csv --rows 0:0.0001",
        "metacal evaluate cal.json val.csv --rows 0:0.5",
    ),
    Provoked(
        "only-one-outcome",
        ">>> mc.ScoreGate(mc.MinAccuracy(0.9)).fit(score, is_incorrect & correct)",
    ),
    Provoked(
        "infeasible-target",
        "metacal fit val.csv --min-accuracy 0.999 -o cal.json",
        "metacal fit val.csv --min-accuracy 0.9982 -o cal.json",
    ),
    Provoked(
        "missing-promise",
        ">>> mc.verify(temperature, logits, labels)",
        ">>> mc.verify(gate, logits, labels)",
    ),
    Provoked(
        "unsupported-promise",
        ">>> mc.ScoreGate(mc.PerClass(mc.MinAccuracy(0.9))).fit(score, correct)",
        ">>> mc.ScoreGate(mc.MinAccuracy(0.9)).fit(score, correct)",
    ),
    Provoked(
        "not-fitted",
        ">>> mc.evaluate(mc.MetaCal(mc.MinAccuracy(0.97)), logits, labels)",
        ">>> mc.evaluate(mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels), logits, labels)",
    ),
    Provoked(
        "cascade-inputs",
        "metacal cascade val.csv other.csv --max-loss 0.01 -o cascade.json",
    ),
    Provoked(
        "labelling",
        "metacal label new.csv --min-accuracy 0.97 -o sheet.csv",
        "metacal label new.csv --min-accuracy 0.97 -o other-sheet.csv",
    ),
    Provoked("monitoring", "metacal monitor cal.json broken.jsonl"),
    Provoked(
        "workers",
        "metacal fit val.csv --min-accuracy 0.97 --executor dask://127.0.0.1:1 -o cal.json",
        "metacal fit val.csv --min-accuracy 0.97 -o cal.json",
    ),
    Provoked(
        "cannot-write-file",
        "metacal fit val.csv --min-accuracy 0.97 -o gates/cal.json",
        ">>> os.mkdir('gates')",
    ),
    Provoked(
        "cannot-save",
        ">>> gate_on_function.save('gate.json')",
        ">>> gate.save('gate.json')",
    ),
    Provoked(
        "cannot-export",
        ">>> gate_on_function.export('gate.onnx', to='onnx')",
        ">>> gate.export('gate.onnx', to='onnx')",
    ),
    Provoked(
        "not-a-metacal-file",
        "metacal apply settings.json new.csv -o out.csv",
        "metacal apply cal.json new.csv -o out.csv",
    ),
    Provoked("damaged-file", "metacal show edited.json"),
    Provoked(
        "signature",
        "metacal show cal.json --key secret.key",
        "metacal show cal.json",
    ),
    Provoked(
        "strict-warnings",
        "metacal fit repeated.csv --min-accuracy 0.9 --strict -o cal.json",
        "metacal fit repeated.csv --min-accuracy 0.9 -o cal.json",
    ),
    Provoked("unexpected-error", "metacal show cal.json"),
)


@contextlib.contextmanager
def scenario_folder() -> Iterator[dict[str, Any]]:
    """Work in a folder with the files of the scenarios; yield the names of their Python rows."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        names = _make_rows()
        _write_files(names["logits"], names["labels"])
        yield names


def _make_rows() -> dict[str, Any]:
    """Return the objects that the Python expressions of the scenarios use, keyed by name."""
    data = mc.datasets.load("cifar10-resnet110")
    logits, labels = data.logits[:_N_ROWS], data.labels[:_N_ROWS]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    proba = exponentials / exponentials.sum(axis=1, keepdims=True)
    correct = logits.argmax(axis=1) == labels
    is_animal = np.isin(labels, [2, 3, 4, 5, 6, 7]).astype(int)
    vehicle_logit = logits[:, [0, 1, 8, 9]].max(axis=1)
    animal_logit = logits[:, [2, 3, 4, 5, 6, 7]].max(axis=1)

    def difference(block: np.ndarray) -> np.ndarray:
        sorted_logits = np.sort(block, axis=1)
        return sorted_logits[:, -2] - sorted_logits[:, -1]

    promise = mc.MinAccuracy(0.97)
    return {
        "mc": mc,
        "np": np,
        "os": os,
        "logits": logits,
        "labels": labels,
        "labels_from_1": labels + 1,
        "proba": proba,
        "score": proba.max(axis=1),
        "correct": correct,
        "is_incorrect": ~correct,
        "sites": np.arange(_N_ROWS) % 2,
        "documents": np.arange(_N_ROWS) // 2,
        "two_logits": np.column_stack([vehicle_logit, animal_logit]),
        "is_animal": is_animal,
        "gate": mc.MetaCal(promise).fit(logits, labels),
        "gate_on_function": mc.MetaCal(promise, score=difference).fit(logits, labels),
        "temperature": mc.TemperatureScaling().fit(logits, labels),
    }


def _write_files(logits: np.ndarray, labels: np.ndarray) -> None:
    """Write the files of the scenarios into the working folder."""
    classes = [f"class_{index}" for index in range(logits.shape[1])]
    header = [*classes, "label"]
    rows = np.column_stack([logits, labels])
    _write_csv("val.csv", header, rows)
    _write_csv("new.csv", classes, logits)
    _write_csv("other.csv", header, rows[:-100])
    _write_csv("repeated.csv", header, rows[np.arange(_N_ROWS) % (_N_ROWS // 2)])
    _write_csv("header.csv", header, rows[:0])
    gap_lines = Path("val.csv").read_text(encoding="utf-8").splitlines()
    gap_lines[7] = "," + gap_lines[7].partition(",")[2]
    Path("gap.csv").write_text("\n".join(gap_lines), encoding="utf-8")
    Path("labels.txt").write_text("\n".join(map(str, labels)), encoding="utf-8")
    np.savez("three.npz", logits=logits[:, :3])
    Path("val.pkl").write_bytes(pickle.dumps(rows))
    Path("sheet.csv").write_text("row,label\n", encoding="utf-8")
    Path("broken.jsonl").write_text("hello\n", encoding="utf-8")
    Path("settings.json").write_text(json.dumps({"seed": 1}), encoding="utf-8")
    Path("secret.key").write_text("0123456789abcdef" * 4 + "89abcd", encoding="utf-8")
    Path("secret.key").chmod(0o600)
    assert run("metacal fit val.csv --min-accuracy 0.97 -o cal.json", {}) is None
    gate_text = Path("cal.json").read_text(encoding="utf-8")
    Path("edited.json").write_text(gate_text.replace("0.97", "0.96", 1), encoding="utf-8")


def _write_csv(path: str, header: list[str], rows: np.ndarray) -> None:
    np.savetxt(path, rows, fmt="%.6g", delimiter=",", header=",".join(header), comments="")


def provoke(scenario: Provoked, names: dict[str, Any]) -> str | None:
    """Run the request of a scenario. Return the error as a user sees it, or None without one."""
    with contextlib.ExitStack() as stack:
        if scenario.hidden_module:
            hidden_modules = {scenario.hidden_module: None}
            stack.enter_context(mock.patch.dict(sys.modules, hidden_modules))
        if scenario.kind == "unexpected-error":
            broken = RuntimeError("the decoder returned no rows")
            stack.enter_context(
                mock.patch("metacal.cli.show.gate_file_as_json", side_effect=broken)
            )
        return run(scenario.request, names)


def run(request: str, names: dict[str, Any]) -> str | None:
    """Run a command or a Python expression. Return the error as a user sees it, or None."""
    if request.startswith(_PROMPT):
        return _run_python(request.removeprefix(_PROMPT), names)
    arguments = shlex.split(request)[1:]
    result = CliRunner().invoke(main, arguments, prog_name="metacal")
    if result.exit_code == 0:
        return None
    lines = result.output.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("Error: "))
    return "\n".join(lines[first:])


def _run_python(expression: str, names: dict[str, Any]) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eval(expression, dict(names))
    except mc.MetacalError as error:
        return "\n".join([f"{type(error).__name__}: {error}", *error.__notes__])
    return None


def find_kind(shown_error: str) -> str:
    """Return the kind of an error: the anchor of its link."""
    return re.findall(rf"^See {re.escape(ERROR_REFERENCE_URL)}#(\S+)$", shown_error, re.M)[-1]


def render_example(scenario: Provoked, shown_error: str) -> str:
    """Render a request and its error as the page shows them, without the link to the page."""
    message = "\n".join(line for line in shown_error.splitlines() if not line.startswith("See "))
    prompt = "" if scenario.request.startswith(_PROMPT) else "$ "
    paragraphs = [prompt + scenario.request, *message.splitlines()]
    lines = [
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(
            paragraph, _PAGE_WIDTH, break_long_words=False, break_on_hyphens=False
        )
    ]
    return "```text\n" + "\n".join(lines) + "\n```"


def find_sections(page_text: str) -> dict[str, str]:
    """Return the text of each section of the page, keyed by the anchor of its heading."""
    pieces = re.split(r"^### (.+)$", page_text, flags=re.M)
    return {
        title.lower().replace(" ", "-"): text
        for title, text in zip(pieces[1::2], pieces[2::2], strict=True)
    }


def write_page() -> None:
    """Replace the example of each section of the page."""
    page_text = PAGE.read_text(encoding="utf-8")
    with scenario_folder() as names:
        for scenario in PROVOKED:
            shown_error = provoke(scenario, names)
            assert shown_error is not None, f"{scenario.request} does not fail"
            example = render_example(scenario, shown_error)
            section = find_sections(page_text)[scenario.kind]
            new_section = re.sub(
                r"^```text\n.*?^```$",
                lambda _, text=example: text,
                section,
                count=1,
                flags=re.M | re.S,
            )
            page_text = page_text.replace(section, new_section)
    PAGE.write_text(page_text, encoding="utf-8")


if __name__ == "__main__":
    write_page()
