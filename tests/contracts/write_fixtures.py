"""Write the gate files below `fixtures` again: python tests/contracts/write_fixtures.py.

A file whose layout has changed is loaded and saved again. A calibrator, promise or score that is
registered and has no file gets one, fitted on drawn rows, with what it predicts in `expected.json`.
The predictions of existing files are never written again: a file must go on predicting what it
predicted. `--check` writes nothing and lists what would be written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import metacal as mc
from contracts import composition
from metacal.export import saved
from metacal.maps.methods import get_all_methods
from metacal.promises.kinds import load_promise_classes
from metacal.scores import NAMED

FIXTURES = Path(__file__).parent / "fixtures"
KINDS = FIXTURES / "artifacts-v3"
EXPECTED = KINDS / "expected.json"
#: Prints when a fixture is missing or has another layout.
REWRITE = "if the change is meant, run: python tests/contracts/write_fixtures.py"
#: Entries that differ between versions of metacal. A certificate's texts may be improved.
INCIDENTAL = ("metacal_version", "checksum", "certificate")
#: Fitted inside a cascade, which has files of its own.
OF_CASCADES = {"MaxLoss"}
#: Gates about cases, with what they accept in `expected.json`, and their promises.
CASES = FIXTURES / "cases-v3"
CASE_PROMISES = {
    "MaxCaseErrors": mc.MaxCaseErrors(0.2),
    "MinCaseRecall": mc.MinCaseRecall(0.8),
    "MaxErrorsPerCase": mc.MaxErrorsPerCase(0.4, largest=3),
}
N_ROWS, N_SHOWN = 400, 7


def layout(text: str | bytes) -> dict[str, Any]:
    """Read a gate file without what differs between versions."""
    return {name: value for name, value in json.loads(text).items() if name not in INCIDENTAL}


def is_gate_file(path: Path) -> bool:
    """Whether a fixture is a gate file; others hold predictions."""
    return "expected" not in path.stem


def saved_again() -> dict[Path, str]:
    """Return the new text of each gate file whose layout has changed."""
    found = {}
    for path in filter(is_gate_file, sorted(FIXTURES.rglob("*.json"))):
        text = saved.dumps(mc.load(path))
        if layout(text) != layout(path.read_text(encoding="utf-8")):
            found[path] = text if isinstance(text, str) else text.decode()
    return found


def drawn_rows(n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits and labels."""
    random = np.random.default_rng(7)
    labels = random.integers(n_classes, size=N_ROWS)
    logits = random.normal(size=(N_ROWS, n_classes)) + 2.5 * np.eye(n_classes)[labels]
    return logits.round(3), labels


def missing_estimators() -> dict[str, Any]:
    """Return an estimator for each registered kind without a file, by the name of the file."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in KINDS.glob("*.json")]
    gates = [data for data in files if data.get("kind") == "MetaCal"]
    promises = {data["promise"]["type"] for data in gates} | OF_CASCADES
    scores = {str(data["stages"][0]["source"]["score"]) for data in gates}
    found: dict[str, Any] = {}
    for name, row in get_all_methods().items():
        if not (KINDS / f"{name}.json").exists():
            found[name] = row.estimator_class()()
    for name in load_promise_classes().keys() - promises - CASE_PROMISES.keys():
        promise = composition.PROMISES[name]()
        found[f"gate-{file_name(name)}"] = mc.MetaCal(promise, calibrator="temperature")
    for name in NAMED.keys() - scores:
        gate = mc.MetaCal(mc.MinAccuracy(0.85), score=name, calibrator="temperature")
        found[f"gate-{file_name(name)}"] = gate
    return found


def file_name(name: str) -> str:
    """Write a name with hyphens: MaxRisk -> max-risk."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[._]", "-", name).lower()


def expectation(estimator: Any, rows: np.ndarray) -> dict[str, Any]:
    """Return what a fitted estimator predicts for some rows, as `expected.json` has it."""
    is_gate = isinstance(estimator, mc.MetaCal)
    paper_map = {"rejected": "uniform"} if is_gate else {}
    return {
        "rows": rows.tolist(),
        "probs": estimator.predict_proba(rows, **paper_map).tolist(),
        "prediction": estimator.predict(rows).tolist(),
        "accept": estimator.accepts(rows).tolist() if is_gate else None,
        "score": estimator.decide(rows).score.tolist() if is_gate else None,
    }


def drawn_items() -> dict[str, Any]:
    """Draw the items of 200 cases with two types."""
    random = np.random.default_rng(7)
    score = random.random(N_ROWS).round(3)
    return {
        "score": score,
        "correct": random.random(N_ROWS) < 0.2 + 0.8 * score,
        "cases": np.repeat(np.arange(N_ROWS // 2), 2),
        "groups": np.tile(["date", "total"], N_ROWS // 2),
    }


def missing_case_gates() -> list[str]:
    """Return the promises about cases without a file."""
    return [name for name in CASE_PROMISES if not (CASES / f"{file_name(name)}.json").exists()]


def write_missing_case_gates() -> None:
    """Fit, save and record the gates about cases without a file."""
    CASES.mkdir(exist_ok=True)
    path = CASES / "expected.json"
    expected = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    items = drawn_items()
    for name in missing_case_gates():
        with warnings.catch_warnings(action="ignore"):
            gate = mc.ScoreGate(CASE_PROMISES[name]).fit(**items)
        mc.save(gate, CASES / f"{file_name(name)}.json")
        accept = gate.accepts(items["score"], groups=items["groups"])
        expected[file_name(name)] = np.flatnonzero(accept).tolist()
    lines = [f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in expected.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_missing() -> None:
    """Fit, save and record the kinds without a file."""
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    for name, estimator in missing_estimators().items():
        promise = type(getattr(estimator, "promise", None)).__name__
        example = composition.EXAMPLES.get(promise)
        has_two_classes = example is not None and example.has_two_classes
        logits, labels = drawn_rows(2 if has_two_classes else 3)
        with warnings.catch_warnings(action="ignore"):
            fitted = estimator.fit(logits, labels)
        mc.save(fitted, KINDS / f"{name}.json")
        expected[name] = expectation(fitted, logits[:N_SHOWN])
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items()]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Write the files, or list them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args()
    changed, missing = saved_again(), missing_estimators()
    missing_cases = missing_case_gates()
    for path in changed:
        print(f"{path.relative_to(FIXTURES)}: other layout")
    for name in [*missing, *missing_cases]:
        print(f"{name}: no file yet")
    if asked.check:
        return 1 if changed or missing or missing_cases else 0
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
    if missing:
        write_missing()
    if missing_cases:
        write_missing_case_gates()
    return 0


if __name__ == "__main__":
    sys.exit(main())
