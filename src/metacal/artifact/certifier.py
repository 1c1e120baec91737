"""A pool that is being labelled as a document, and back: what was asked, with which probability, what was answered.

The pool itself is not in the file: whoever goes on brings it again, and it must be the same. Every round is laid out
once more from the answers before it and must come out as it was written down (`Labelling.resume`), so that neither an
answer nor a probability can be changed afterwards without being noticed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.artifact.audit import check_data_hash
from metacal.artifact.classes import classes_from, describe_classes
from metacal.artifact.encoding import decode, encode, exact_keys, shown
from metacal.artifact.promises import describe_constraint, read_constraint
from metacal.artifact.signature import KeySource, read_key
from metacal.artifact.wrapping import read_file, unwrapped
from metacal.errors import ArtifactError, InputError
from metacal.gate.scored import HIGHER_IS
from metacal.promises.fingerprint import data_hash
from metacal.promises.labelling import Round
from metacal.promises.wagers import Design
from metacal.scores import NAMED

if TYPE_CHECKING:  # loaded where a pool is labelled, not where a gate is read
    from metacal.gate.certifier import Certifier

#: The kind of such a file.
CERTIFIER = "Certifier"
#: What its document has.
CERTIFIER_KEYS = ("kind", "parameters", "pool_classes", "constraint", "n_pool", "data_hash", "rounds", "answers")
#: What was asked for.
CERTIFIER_PARAMETERS: dict[str, Any] = {
    "coverage": float | None,
    "batch": int,
    "pilot": int,
    "random_state": int,
    "higher_is": str,
    "score_name": str,
    "score": str | None,
    "input": str,
}
ROUND: dict[str, Any] = {
    "begin": int,
    "target": int,
    "proves": bool,
    "probability": NDArray[np.float64],
    "guess": NDArray[np.float64],
    "stakes": NDArray[np.float64],
}
#: By row of the pool: the numbers, whether each prediction is right, and the column of the true class or -1.
ANSWERS: dict[str, Any] = {"rows": NDArray[np.int64], "right": NDArray[np.int64], "classes": NDArray[np.int64]}
_MOST_ROUNDS = 100_000


def describe_certifier(certifier: Certifier) -> dict[str, Any]:
    """The document of a pool that is being labelled.

    Examples
    --------
    >>> from metacal.promises.accuracy import MinCoverageAccuracy
    >>> scores = np.random.default_rng(0).random(2000)
    >>> from metacal.gate.certifier import Certifier
    >>> certifier = Certifier(MinCoverageAccuracy(0.9), scores, coverage=0.5)
    >>> asked = certifier.propose()
    >>> document = describe_certifier(certifier.update(asked[:20], np.ones(20, dtype=bool)))
    >>> again = certifier_from(document, scores)
    >>> again.n_labels, bool((again.propose() == asked[20:]).all())
    (20, True)
    """
    own = certifier.labelling
    if certifier.rows is not None and not isinstance(certifier.score, str):
        raise ArtifactError(f"the score is a function, which a file cannot hold; use a named one: {', '.join(NAMED)}.")
    log = certifier.log
    answers = {
        "rows": np.array([one.row for one in log], dtype=np.int64),
        "right": np.array([one.right for one in log], dtype=np.int64),
        "classes": np.array([certifier.codes.get(one.row, -1) for one in log], dtype=np.int64),
    }
    parameters = {
        "coverage": own.goal,
        "batch": own.batch,
        "pilot": own.pilot,
        "random_state": own.seed,
        "higher_is": certifier.higher_is,
        "score_name": certifier.score_name,
        "score": None if certifier.rows is None else certifier.score,
        "input": certifier.input,
    }
    rounds = [
        {
            "begin": one.begin,
            "target": one.target,
            "proves": one.proves,
            "probability": encode(one.design.probability, "probability", {}),
            "guess": encode(one.design.guess, "guess", {}),
            "stakes": encode(one.stakes, "stakes", {}),
        }
        for one in own.rounds
    ]
    given = certifier.classes is not None
    return {
        "kind": CERTIFIER,
        "parameters": {name: encode(value, name, {}) for name, value in parameters.items()},
        "pool_classes": None if certifier.rows is None else describe_classes(certifier.classes_, given=given),
        "constraint": describe_constraint(certifier.constraint),
        "n_pool": certifier.n_pool,
        "data_hash": _hash(certifier),
        "rounds": rounds,
        "answers": {name: encode(value, f"answers.{name}", {}) for name, value in answers.items()},
    }


def certifier_from(document: dict[str, Any], scores: ArrayLike) -> Certifier:
    """The certifier that a document describes, on its pool; ArtifactError where the two do not go together."""
    if document.get("kind") != CERTIFIER:
        raise ArtifactError(
            f"it holds {shown(document.get('kind'))}, not a pool that is being labelled; mc.load reads it."
        )
    exact_keys(document, CERTIFIER_KEYS, "the file")
    certifier = _begun(document, scores)
    hashed = check_data_hash(document["data_hash"])
    if document["n_pool"] != certifier.n_pool or hashed != _hash(certifier):
        raise ArtifactError(
            f"it was begun on a pool of {shown(document['n_pool'])} rows, and this one, of {certifier.n_pool:,}, is "
            "another: give the same rows in the same order, or begin again with another file."
        )
    rows, right, codes = _answers(document["answers"], certifier)
    try:
        certifier.resume([_round(data, k) for k, data in enumerate(_rounds(document["rounds"]))], rows, right, codes)
    except InputError as error:
        raise ArtifactError(f"it contradicts itself: {error}") from error
    return certifier


def load_certifier(
    path: str | os.PathLike[str], scores: ArrayLike, *, key: KeySource | None = None, max_bytes: int | None = None
) -> Certifier:
    """Go on with a pool that was being labelled: what `save(certifier, path)` wrote, and the same pool again.

    Proposals, evidence and decision are those of a certifier that was never closed.

    Examples
    --------
    >>> load_certifier("labels.json", [0.1, 0.2])
    Traceback (most recent call last):
    metacal.errors.InputError: labels.json: there is no such file; check the name and the folder.
    """
    verifying = None if key is None else read_key(key)
    raw = read_file(path, max_bytes)
    try:
        return certifier_from(unwrapped(raw, max_bytes=max_bytes, key=verifying)[0], scores)
    except ArtifactError as error:
        raise ArtifactError(f"{os.fspath(path)}: {error}") from error.__cause__


def _hash(certifier: Certifier) -> str:
    doubts = certifier.labelling.doubts
    return data_hash(doubts, np.zeros(len(doubts), dtype=bool))


def _begun(document: dict[str, Any], scores: ArrayLike) -> Certifier:
    from metacal.gate.certifier import Certifier

    data = document["parameters"]
    exact_keys(data, list(CERTIFIER_PARAMETERS), "parameters")
    values = {name: decode(kind, data[name], f"parameters.{name}", {}) for name, kind in CERTIFIER_PARAMETERS.items()}
    if values["higher_is"] not in HIGHER_IS or values["input"] not in ("logits", "probabilities"):
        raise ArtifactError("parameters: higher_is or input is none that there is.")
    if not 0 <= values["random_state"] < 2**64:
        raise ArtifactError("parameters.random_state must be a whole number from 0.")
    on_logits = values["score"] is not None
    if on_logits != (np.ndim(scores) == 2) or on_logits != (document["pool_classes"] is not None):
        kind = "logits" if on_logits else "scores"
        raise ArtifactError(f"it was begun on a pool of {kind}; give the same {kind}.")
    if on_logits and values["score"] not in NAMED:
        raise ArtifactError(f"parameters.score must be one of {', '.join(NAMED)}.")
    values["score"] = values["score"] or "entropy"
    if on_logits:
        classes, given = classes_from(document["pool_classes"])
        values["classes"] = classes if given else None
    constraint = read_constraint(document["constraint"])
    try:
        return Certifier(constraint, scores, **values)
    except InputError as error:
        raise ArtifactError(f"it does not go with this pool: {error}") from error


def _rounds(data: Any) -> list[Any]:
    if not isinstance(data, list) or len(data) > _MOST_ROUNDS:
        raise ArtifactError(f"rounds must be a list, of at most {_MOST_ROUNDS:,}.")
    return data


def _round(data: Any, number: int) -> Round:
    where = f"rounds[{number}]"
    exact_keys(data, list(ROUND), where)
    values = {name: decode(kind, data[name], f"{where}.{name}", {}) for name, kind in ROUND.items()}
    design = Design(values["probability"], values["guess"])
    asked = np.empty(0, dtype=np.intp)
    return Round(values["begin"], values["begin"], values["target"], design, values["stakes"], asked, values["proves"])


def _answers(data: Any, certifier: Certifier) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    exact_keys(data, list(ANSWERS), "answers")
    rows, right, codes = (decode(kind, data[name], f"answers.{name}", {}) for name, kind in ANSWERS.items())
    if not rows.ndim == right.ndim == codes.ndim == 1 or not len(rows) == len(right) == len(codes):
        raise ArtifactError("answers: rows, right and classes must be of one length.")
    if len(np.unique(rows)) != len(rows) or ((rows < 0) | (rows >= certifier.n_pool)).any():
        raise ArtifactError("answers.rows must be rows of the pool, each once.")
    if not np.isin(right, (0, 1)).all():
        raise ArtifactError("answers.right must be 1 or 0.")
    n_classes = 0 if certifier.rows is None else certifier.rows.n_classes
    if ((codes < -1) | (codes >= n_classes)).any():
        raise ArtifactError("answers.classes must be columns, or -1.")
    told = codes >= 0
    if certifier.rows is not None and ((codes[told] == certifier.predicted[rows[told]]) != right[told]).any():
        raise ArtifactError("answers.classes and answers.right disagree.")
    return rows, right == 1, codes
