"""No model file leaves here unchecked: onnx.checker, then onnxruntime on a probe batch, compared with Python.

Both run in a child process with limits on memory and time, because the model may be anybody's: what crashes, hangs or
eats memory does so there, and becomes an ArtifactError here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import scores, validate
from metacal.certificate import accepts
from metacal.errors import ArtifactError, InputError
from metacal.export.fitted import Fitted
from metacal.rows import Rows

#: What a child may use beside some copies of the model itself.
_MEMORY_BYTES = 192 * 2**20
_COPIES = 6
_SECONDS, _BYTES_PER_SECOND = 60, 10 * 2**20
#: How far probabilities may be from Python's.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Checked:
    """How far a check came, and what onnxruntime read back from the file."""

    #: Whether the whole model ran; a model whose inputs cannot be made up is only loaded.
    ran: bool
    outputs: dict[str, str]
    metadata: dict[str, str]
    answers: dict[str, NDArray[Any]]


def probe_batch(fitted: Fitted, dtype: str) -> NDArray[Any]:
    """Ordinary rows of several scales, a tie, a masked class, all but one masked; NaN, +inf and all masked last.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> batch = probe_batch(Fitted(TemperatureMap(1.0), 3, "logits"), "float32")
    >>> batch.shape, bool(np.isnan(batch[-3:]).any())
    ((23, 3), True)
    """
    rng = np.random.default_rng(0)
    width = fitted.n_classes
    plain = np.concatenate([scale * rng.normal(size=(5, width)) for scale in (0.1, 1.0, 5.0)])
    special = np.tile(np.linspace(-1.0, 1.0, width), (5, 1))
    special[0, :2] = 3.0  # a tie for the first place
    special[1] = 0.0
    special[2, 0] = -np.inf
    special[3, 1:] = -np.inf
    special[4, -1] = 60.0  # as sure as can be
    hopeless = np.zeros((3, width))
    hopeless[0, 0], hopeless[1, 0], hopeless[2] = np.nan, np.inf, -np.inf
    table = np.concatenate([plain, special, hopeless])
    if fitted.input == "probabilities":
        usable = table[:-3]
        powers = np.exp(usable - usable.max(axis=1, keepdims=True))
        table[:-3] = powers / powers.sum(axis=1, keepdims=True)
        table[-1] = 0.9
    return table.astype(dtype)


def check_gate(path: Path, fitted: Fitted, dtype: str, n_bytes: int) -> Checked:
    """Check a stand-alone gate, run the probe batch through it and compare with Python."""
    batch = probe_batch(fitted, dtype)
    checked = run_child(path, {"logits": batch}, n_bytes)
    if not checked.ran:
        raise ArtifactError("onnxruntime could not run the exported graph.")
    compare(fitted, batch, checked.answers, hopeless=3)
    return checked


def check_grafted(path: Path, fitted: Fitted, logits: str, names: dict[str, str], n_bytes: int) -> Checked:
    """Check a model with its gate; where it runs on made-up inputs, compare the gate's answers with Python's."""
    checked = run_child(path, None, n_bytes)
    missing = [name for name in names.values() if name not in checked.outputs]
    if missing:
        raise ArtifactError(f"onnxruntime does not see the outputs {missing}; the model is damaged.")
    if checked.ran and logits in checked.answers:
        table = checked.answers[logits]
        if table.ndim != 2 or table.shape[1] != fitted.n_classes:
            raise InputError(
                f"{logits!r} comes out with shape {table.shape}; the calibration is for {fitted.n_classes} classes, "
                "one column each."
            )
        answers = {name: checked.answers[public] for name, public in names.items() if public in checked.answers}
        finite = np.isfinite(table).all(axis=1)
        compare(fitted, table[finite], {name: values[finite] for name, values in answers.items()}, hopeless=0)
    return checked


def compare(fitted: Fitted, table: NDArray[Any], answers: dict[str, NDArray[Any]], hopeless: int) -> None:
    """Raise unless the answers are Python's, and the last `hopeless` rows are turned away."""
    if not len(table):
        return
    usable = table[: len(table) - hopeless]
    logits = validate.logits_from(usable, fitted.input)
    expected = np.array(fitted.map(logits), dtype=np.float64)
    if fitted.score is not None and fitted.certificate is not None:
        accept = accepts(scores.score_rows(Rows(logits), fitted.score), fitted.threshold)
        got = answers["accept"]
        if (got[: len(usable)] != accept).any() or got[len(usable) :].any():
            raise ArtifactError("the exported gate decides otherwise than Python; please report this.")
        expected[~got[: len(usable)]] = 1.0 / fitted.n_classes
    away = np.abs(answers["probs"][: len(usable)] - expected)
    if not (away <= _TOLERANCE).all():
        raise ArtifactError(f"exported probabilities are off by {float(np.nanmax(away)):.2g}; please report this.")


def run_child(path: Path, inputs: dict[str, NDArray[Any]] | None, n_bytes: int) -> Checked:
    """Check, load and run a model file in a child process, or raise with what it said."""
    seconds = _SECONDS + n_bytes // _BYTES_PER_SECOND
    with tempfile.TemporaryDirectory(prefix="metacal-") as scratch:
        files = {name: os.path.join(scratch, name) for name in ("request.json", "reply.json", "answers.npz", "in.npz")}
        if inputs is not None:
            np.savez(files["in.npz"], **inputs)  # type: ignore[arg-type]
        request = {
            "model": os.fspath(path),
            "inputs": None if inputs is None else files["in.npz"],
            "answers": files["answers.npz"],
            "reply": files["reply.json"],
            "memory_bytes": _MEMORY_BYTES + _COPIES * n_bytes,
            "seconds": seconds,
        }
        Path(files["request.json"]).write_text(json.dumps(request), encoding="utf-8")
        _start(files["request.json"], seconds)
        reply = json.loads(Path(files["reply.json"]).read_text(encoding="utf-8"))
        if "error" in reply:
            raise _refused(reply)
        answers: dict[str, NDArray[Any]] = {}
        tensors = [name for name, kind in reply["outputs"].items() if kind.startswith("tensor(")]
        if reply["stage"] == "ran":
            with np.load(files["answers.npz"], allow_pickle=False) as arrays:
                answers = {name: arrays[f"output_{i}"] for i, name in enumerate(tensors)}
    return Checked(reply["stage"] == "ran", reply["outputs"], reply["metadata"], answers)


def _start(request: str, seconds: int) -> None:
    script = os.path.join(os.path.dirname(__file__), "probe.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", script, request],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ArtifactError(f"onnxruntime did not get done with this model in {2 * seconds} s.") from None
    if done.returncode < 0:
        raise ArtifactError(
            f"onnxruntime crashed on this model, or ran out of memory or time (signal {-done.returncode}); "
            "export the model again."
        )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ArtifactError(f"the model could not be checked ({said[-1][:300] if said else 'no reason given'}).")


def _refused(reply: dict[str, Any]) -> ArtifactError:
    """What the checker or onnxruntime said, without the places in its own source, and what to do."""
    what, advice = {
        "check": ("onnx.checker refuses the model", "export the model again"),
        "load": (
            "onnxruntime does not load the model",
            "try an older operator set or IR version, or update onnxruntime",
        ),
        "run": ("onnxruntime does not run the model", "export the model again"),
    }[reply["stage"]]
    said = re.sub(r"\S*onnxruntime_src/\S+ .*?\) (?=[A-Z(])", "", reply["error"])
    said = re.sub(r"\S*\.part\S*", "it", re.sub(r"\[ONNXRuntimeError\][ :]*\d+[ :]*\w+[ :]*", "", said))
    return ArtifactError(f"{what} ({said[:300].strip(' .')}); {advice}.")
