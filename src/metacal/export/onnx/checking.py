"""No model file leaves here unchecked: onnx.checker, then onnxruntime on a probe batch, compared
with Python.

Both run in a child process with limits on memory and time, because the model may be anybody's: what
crashes, hangs or eats memory does so there, and becomes an ArtifactError here.
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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError, option
from metacal.export.fitted import SUM_TOLERANCE
from metacal.export.onnx.probe import GUARD
from metacal.formulas import Array, Flags
from metacal.gate import Gate

if TYPE_CHECKING:
    from metacal.export.onnx.gate import Attached

#: What a child may use beside some copies of the model itself.
_MEMORY_BYTES = 192 * 2**20
_COPIES = 6
_SECONDS, _BYTES_PER_SECOND = 60, 10 * 2**20
#: Output -> what it is of a decision, and how far it may be from Python's; a confidence is a few
#: products in double.
_TOLERANCE = {"probs": ("probabilities", 1e-5), "confidence": ("confidence", 1e-9)}


@dataclass(frozen=True)
class Checked:
    """How far a check came, and what onnxruntime read back from the file."""

    #: Whether the whole model ran; a model whose inputs cannot be made up is only loaded.
    ran: bool
    metadata: dict[str, str]
    answers: dict[str, Array]
    #: Why it did not run.
    why_not: str = ""
    #: What made-up whole numbers were.
    made_up: int = 1


def probe_rows(gate: Gate, dtype: str) -> tuple[list[Array], Flags]:
    """What each stage is given to be tried on, and of which rows (n × stages) Python would not
    refuse it.

    Of a cascade each row of one stage comes with several of the next.
    """
    rows, usable = zip(
        *(_PROBES[stage.source.kind](stage.source, dtype) for stage in gate.stages), strict=True
    )
    shifts, n = (0,) if len(rows) == 1 else (0, 3, 7), max(map(len, rows))
    places = [
        np.concatenate([(np.arange(n) + k * shift) % len(own) for shift in shifts])
        for k, own in enumerate(rows)
    ]
    given, flags = (
        [own[at] for own, at in zip(each, places, strict=True)] for each in (rows, usable)
    )
    return given, np.stack(flags, axis=1)


def probe_batch(source: Any, dtype: str) -> tuple[Array, Flags]:
    """Ordinary rows of several scales, a tie, a masked class, all but one masked; NaN, +inf and all
    masked last.

    Examples
    --------
    >>> from metacal.gate import Table
    >>> from metacal.maps.temperature import TemperatureMap
    >>> batch, usable = probe_batch(Table(TemperatureMap(1.0), np.arange(3)), "float32")
    >>> batch.shape, bool(np.isnan(batch[-3:]).any()), int(usable.sum())
    ((23, 3), True, 20)
    """
    rng = np.random.default_rng(0)
    width = source.n_classes
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
    usable = np.arange(len(table)) < len(table) - len(hopeless)
    if source.input == "probabilities":
        powers = np.exp(table[usable] - table[usable].max(axis=1, keepdims=True))
        table[usable] = powers / powers.sum(axis=1, keepdims=True)
        table[-1] = 0.9
    return table.astype(dtype), usable


def _probe_scores(source: Any, dtype: str) -> tuple[Array, Flags]:
    """Scores around the threshold and all along the curve, far beyond it, and what is no number."""
    corners = [] if source.curve is None else source.curve.knots.tolist()
    near = (doubt for _, *beside in source.beside for doubt in beside if doubt is not None)
    doubts = [*near, *corners]
    scores = [
        *(source.sign * doubt for doubt in doubts),
        0.0,
        1.0,
        -1.0,
        3e4,
        -3e4,
        np.nan,
        np.inf,
        -np.inf,
    ]
    return np.array(scores).astype(dtype), np.ones(len(scores), dtype=bool)


#: Kind of source -> rows to try it on, and which of them Python would not refuse.
_PROBES = {"logits": probe_batch, "scores": _probe_scores}


def check_alone(path: Path, alone: Attached, dtype: str, n_bytes: int) -> Checked:
    """Check a stand-alone gate, run rows through it and compare with Python."""
    gate, groups = alone.gate, None
    given, usable = probe_rows(gate, dtype)
    feed = dict(zip(alone.given, given, strict=True))
    if gate.thresholds is not None and alone.group is not None:  # numbers of none at either end
        groups = np.resize(np.arange(-1, len(gate.thresholds.names) + 1), len(usable)).astype(
            np.int64
        )
        feed[alone.group] = groups
    checked = run_child(path, feed, n_bytes)
    if not checked.ran:
        raise ArtifactError("onnxruntime could not run the exported graph.")
    compare(gate, given, checked.answers, usable, groups)
    return checked


def check_behind(
    path: Path, served: Attached, n_bytes: int, inputs: dict[str, Array] | None = None
) -> Checked:
    """Check a model with its gate; where it runs, on made-up inputs or these, compare what it says
    with Python.
    """
    gate, (logits,), groups = served.gate, served.given, None
    try:
        checked = run_child(path, inputs, n_bytes)
    except ArtifactError as error:
        if GUARD not in str(error):
            raise
        raise _other_width(str(error), logits, gate.n_classes) from None
    if not checked.ran or logits not in checked.answers:
        return checked
    table = checked.answers[logits]
    finite = np.isfinite(table).all(axis=1)
    if not finite.any():
        return replace(
            checked, ran=False, why_not=f"{logits!r} is not finite in any row of its answer"
        )
    _check_kind(table[finite], gate.source.input, logits)
    if served.group is not None:
        given = checked.made_up if inputs is None else inputs[served.group]
        groups = np.broadcast_to(np.asarray(given, dtype=np.int64), len(table))[finite]
    answers = {
        name: checked.answers[own][finite]
        for name, own in served.outputs.items()
        if own in checked.answers
    }
    compare(gate, [table[finite]], answers, np.ones((int(finite.sum()), 1), dtype=bool), groups)
    return checked


def _other_width(said: str, logits: str, n_classes: int) -> InputError:
    """What the node that counts the columns has refused."""
    shape = re.search(r"[Ii]nput shape: ?\{(\d+), ?(\d+)\}", said)
    came = f"comes out with {shape[2]} columns" if shape else f"does not have {n_classes} columns"
    return InputError(
        f"{logits!r} {came}, whatever the model says, but the calibration has {n_classes} classes;"
        " attach the one that was fitted on this model's logits."
    )


def _check_kind(table: Array, kind: str, logits: str) -> None:
    """Raise if the answers are probabilities where logits were calibrated, or the other way round.

    Logits between 0 and 1 that sum to one in every row do not come about by chance.
    """
    wide = table.astype(np.float64)
    off = np.abs(wide.sum(axis=1) - 1.0)
    sums_to_one = bool((off <= SUM_TOLERANCE[str(table.dtype)]).all() and (wide >= 0.0).all())
    if kind == "logits" and sums_to_one and wide.max() > wide.min():
        raise InputError(
            f"{logits!r} holds probabilities: every row of the model's answer sums to one. The"
            f" calibration is for logits: name them with {option('logits')}, or say"
            f" {option('input', 'probabilities')}."
        )
    if kind == "probabilities" and not sums_to_one:
        raise InputError(
            f"{logits!r} does not hold probabilities: a row of the model's answer sums to"
            f" {wide.sum(axis=1)[0]:.4g}. Fit on its logits, and attach that calibration."
        )


def compare(
    gate: Gate,
    given: list[Array],
    answers: dict[str, Array],
    usable: Flags,
    groups: NDArray[np.int64] | None = None,
) -> None:
    """Raise unless the answers are Python's, and what no stage could read, or of a group unknown,
    is rejected.
    """
    names = None
    if groups is not None and gate.thresholds is not None:
        usable = usable & ((groups >= 0) & (groups < len(gate.thresholds.names)))[:, None]
        names = np.array(gate.thresholds.names)[groups[usable.all(axis=1)]]
    rows, hopeless = usable.all(axis=1), ~usable.any(axis=1)
    if not rows.any():
        return
    decision = gate.decide(*(table[rows] for table in given), rejected="uniform", groups=names)
    exact, close = {"accept": decision.accept, "answered_by": decision.by}, vars(decision)
    others = [
        (answers[name][rows] != wanted).any() for name, wanted in exact.items() if name in answers
    ]
    if any(others) or ("accept" in answers and answers["accept"][hopeless].any()):
        raise ArtifactError("the exported gate decides otherwise than Python; please report this.")
    for name, (column, tolerance) in _TOLERANCE.items():
        if name in answers and not np.allclose(
            answers[name][rows], close[column], 0.0, tolerance, equal_nan=True
        ):
            off = np.nanmax(np.abs(answers[name][rows] - close[column]))
            raise ArtifactError(f"exported {column} is off by {off:.2g}; please report this.")


def run_child(path: Path, inputs: dict[str, Array] | None, n_bytes: int) -> Checked:
    """Check, load and run a model file in a child process, or raise with what it said."""
    seconds = _SECONDS + n_bytes // _BYTES_PER_SECOND
    with tempfile.TemporaryDirectory(prefix="metacal-") as scratch:
        if inputs is not None:
            np.savez(os.path.join(scratch, "inputs.npz"), **inputs)  # type: ignore[arg-type]
        _start(
            seconds, os.fspath(path), scratch, str(_MEMORY_BYTES + _COPIES * n_bytes), str(seconds)
        )
        reply = json.loads(Path(scratch, "reply.json").read_text(encoding="utf-8"))
        if "error" in reply:
            raise _refused(reply)
        # By number: the names of outputs may be none here.
        with np.load(os.path.join(scratch, "answers.npz"), allow_pickle=False) as arrays:
            answers = dict(zip(reply["answers"], arrays.values()))
    why_not = _plain_words(reply["why_not"])
    return Checked(reply["stage"] == "ran", reply["metadata"], answers, why_not, reply["made_up"])


def _start(seconds: int, *arguments: str) -> None:
    """Run `probe.py` with these arguments, or raise with how it ended."""
    script = os.path.join(os.path.dirname(__file__), "probe.py")
    try:
        done = subprocess.run(
            [sys.executable, "-P", script, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ArtifactError(
            f"onnxruntime did not get done with this model in {2 * seconds} s."
        ) from None
    if done.returncode < 0:
        raise ArtifactError(
            "onnxruntime crashed on this model, or ran out of memory or time (signal"
            f" {-done.returncode}); export the model again."
        )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ArtifactError(
            f"the model could not be checked ({said[-1][:300] if said else 'no reason given'})."
        )


def _refused(reply: dict[str, Any]) -> ArtifactError:
    """What the checker or onnxruntime said, without the places in its own source, and what to
    do.
    """
    stage, advice = reply["stage"], "export the model again"
    if stage == "load":
        advice = "try an older operator set or IR version, or update onnxruntime"
    what = "onnx.checker refuses" if stage == "check" else f"onnxruntime does not {stage}"
    return ArtifactError(f"{what} the model ({_plain_words(reply['error'])}); {advice}.")


def _plain_words(said: str) -> str:
    """An error of onnxruntime without its codes and the places in its source."""
    said = re.sub(r"\S*onnxruntime_src/\S+ [^()]*\([^()]*\) (const )?", "", said)
    said = re.sub(
        r"\S*\.part\S*", "it", re.sub(r"\[ONNXRuntimeError\][ :]*\d+[ :]*\w+[ :]*", "", said)
    )
    return said[:300].strip(" .")
