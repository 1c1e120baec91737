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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError
from metacal.export.onnx.metadata import GROUP
from metacal.export.onnx.probe import GUARD
from metacal.gate import Gate
from metacal.rows import Rows, validate

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
    #: Why it did not run.
    why_not: str = ""


def probe_batch(fitted: Gate, dtype: str) -> NDArray[Any]:
    """Ordinary rows of several scales, a tie, a masked class, all but one masked; NaN, +inf and all masked last.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> batch = probe_batch(Gate(TemperatureMap(1.0), np.arange(3)), "float32")
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


def check_gate(path: Path, fitted: Gate, dtype: str, n_bytes: int) -> Checked:
    """Check a stand-alone gate, run the probe batch through it and compare with Python."""
    batch = probe_batch(fitted, dtype)
    groups = _probe_groups(fitted, len(batch))
    checked = run_child(path, {"logits": batch} if groups is None else {"logits": batch, GROUP: groups}, n_bytes)
    if not checked.ran:
        raise ArtifactError("onnxruntime could not run the exported graph.")
    compare(fitted, batch, checked.answers, hopeless=3, groups=groups)
    return checked


def _probe_groups(fitted: Gate, n_rows: int) -> NDArray[np.int64] | None:
    """Numbers of groups for made-up rows, and of none at either end, where the gate asks for some."""
    if not fitted.by_group or fitted.thresholds is None:
        return None
    return np.resize(np.arange(-1, len(fitted.thresholds.names) + 1), n_rows).astype(np.int64)


def check_grafted(
    path: Path,
    fitted: Gate,
    logits: str,
    names: dict[str, str],
    n_bytes: int,
    inputs: dict[str, NDArray[Any]] | None = None,
    group: str | None = None,
) -> Checked:
    """Check a model with its gate; where it runs, on made-up inputs or these, compare what it says with Python."""
    try:
        checked = run_child(path, inputs, n_bytes)
    except ArtifactError as error:
        if GUARD not in str(error):
            raise
        raise _other_width(str(error), logits, fitted.n_classes) from None
    missing = [name for name in names.values() if name not in checked.outputs]
    if missing:
        raise ArtifactError(f"onnxruntime does not see the outputs {missing}; the model is damaged.")
    if not checked.ran or logits not in checked.answers:
        return checked
    table = checked.answers[logits]
    answers = {name: checked.answers[public] for name, public in names.items() if public in checked.answers}
    finite = np.isfinite(table).all(axis=1)
    if not finite.any():
        return replace(checked, ran=False, why_not=f"{logits!r} is not finite in any row of its answer")
    _check_kind(table[finite], fitted.input, logits)
    answers = {name: values[finite] for name, values in answers.items()}
    groups = None
    if group is not None:
        # Made-up whole numbers are all one, or all zero; which of the two the model took it does not say.
        given = None if inputs is None else inputs.get(group)
        choices = [np.full(len(table), number) for number in (1, 0)] if given is None else [given.astype(np.int64)]
        groups = next((own[finite] for own in choices if _decides(fitted, table[finite], answers, own[finite])), None)
        groups = choices[0][finite] if groups is None else groups
    compare(fitted, table[finite], answers, hopeless=0, groups=groups)
    return checked


def _decides(fitted: Gate, table: NDArray[Any], answers: dict[str, NDArray[Any]], groups: NDArray[np.int64]) -> bool:
    logits = validate.logits_from(table, fitted.input)
    return bool((answers["accept"] == _accepted(fitted, logits, groups)).all())


def _accepted(fitted: Gate, logits: NDArray[Any], groups: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """What Python accepts; groups by their numbers, of which those that are no group's are the last, -1."""
    if groups is None or fitted.thresholds is None:
        return fitted.accepts(Rows(logits))
    known = (groups >= 0) & (groups < len(fitted.thresholds.names))
    return fitted.thresholds.accepts(fitted.scores(Rows(logits)), np.where(known, groups, -1))


def _other_width(said: str, logits: str, n_classes: int) -> InputError:
    """What the node that counts the columns has refused."""
    shape = re.search(r"[Ii]nput shape: ?\{(\d+), ?(\d+)\}", said)
    came = f"comes out with {shape[2]} columns" if shape else f"does not have {n_classes} columns"
    return InputError(
        f"{logits!r} {came}, whatever the model says, but the calibration has {n_classes} classes; attach the one that "
        "was fitted on this model's logits."
    )


def _check_kind(table: NDArray[Any], kind: str, logits: str) -> None:
    """Raise if the answers are probabilities where logits were calibrated, or the other way round.

    Logits between 0 and 1 that sum to one in every row do not come about by chance.
    """
    wide = table.astype(np.float64)
    tolerance = 5e-3 if table.dtype == np.float16 else 1e-4
    sums_to_one = bool((np.abs(wide.sum(axis=1) - 1.0) <= tolerance).all() and (wide >= 0.0).all())
    if kind == "logits" and sums_to_one and wide.max() > wide.min():
        raise InputError(
            f"{logits!r} holds probabilities: every row of the model's answer sums to one. The calibration is for "
            "logits: name them with logits=... (--logits NAME), or say input='probabilities' (--input probabilities)."
        )
    if kind == "probabilities" and not sums_to_one:
        raise InputError(
            f"{logits!r} does not hold probabilities: a row of the model's answer sums to {wide.sum(axis=1)[0]:.4g}. "
            "Fit on its logits, and attach that calibration."
        )


def compare(
    fitted: Gate,
    table: NDArray[Any],
    answers: dict[str, NDArray[Any]],
    hopeless: int,
    groups: NDArray[np.int64] | None = None,
) -> None:
    """Raise unless the answers are Python's, and the last `hopeless` rows are turned away."""
    if not len(table):
        return
    usable = table[: len(table) - hopeless]
    logits = validate.logits_from(usable, fitted.input)
    expected = np.array(fitted.map(logits), dtype=np.float64)
    if fitted.certificate is not None:
        accept = _accepted(fitted, logits, None if groups is None else groups[: len(usable)])
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
    why_not = _plain_words(reply["why_not"])
    return Checked(reply["stage"] == "ran", reply["outputs"], reply["metadata"], answers, why_not)


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
    return ArtifactError(f"{what} ({_plain_words(reply['error'])}); {advice}.")


def _plain_words(said: str) -> str:
    """An error of onnxruntime without its codes and the places in its source."""
    said = re.sub(r"\S*onnxruntime_src/\S+ [^()]*\([^()]*\) (const )?", "", said)
    said = re.sub(r"\S*\.part\S*", "it", re.sub(r"\[ONNXRuntimeError\][ :]*\d+[ :]*\w+[ :]*", "", said))
    return said[:300].strip(" .")
