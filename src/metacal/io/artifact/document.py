"""A gate as a document, a dict of plain values, and as a file of versioned JSON, and back, without
scikit-learn.

Every gate is one tree: its stages, each with its source and threshold, and the promise and
certificate over all of them. The kind says what `load` makes of it: MetaCal, ScoreGate, Cascade or,
where nothing is promised, the calibrator that its recipe names. A file is data, never code, and
audited before anything is built from it. Its checksum finds damage and careless edits; it is no
signature. Whoever can write the file can change the promise, so keep artifacts where you keep
models, or sign them with a key.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from typing import Any, NewType

import numpy as np

from metacal.errors import ArtifactError
from metacal.gate import Gate, Marks, Stage, Table
from metacal.gate.gate import Source
from metacal.gate.marks import plain_name
from metacal.io.artifact.audit import (
    check_classes,
    check_cost,
    check_promise,
    check_reach,
    check_settled,
)
from metacal.io.artifact.encoding import CHOICES, built, decode, encode, entries
from metacal.io.artifact.messages import article, exact_keys, naming, shown
from metacal.io.artifact.probe import check_map
from metacal.io.artifact.signature import Key, KeySource, read_key
from metacal.io.artifact.sources import RANKERS, calibrator_kinds, check_jobs, method_of
from metacal.io.artifact.wrapping import MAX_BYTES, Wrapping, read_file, text_of, unwrapped
from metacal.kernels.grid import RELATIVE
from metacal.maps.methods import method_named
from metacal.promises.certificate import Certificate
from metacal.promises.fingerprint import RowSketch
from metacal.promises.parts.thresholds import One, Policy, policy_of
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import Profile
from metacal.scores import NAMED, grid_of, name_of, needs_logits

Document = dict[str, Any]

#: The kinds of files with a promise: of one table of logits, of scores, of several tables.
KINDS = {"logits": "MetaCal", "scores": "ScoreGate", "cascade": "Cascade"}
#: What a file is of: one of these, or a calibrator.
Kind = NewType("Kind", str)
CHOICES[Kind] = lambda: [*KINDS.values(), *calibrator_kinds()]
#: A fit gives at most 129 corners.
_MOST_CORNERS = 1000
#: Models of a cascade, at most.
MOST_STAGES = 16


@dataclass(frozen=True)
class Content:
    """What a file holds: a gate and, of the estimator around it, the threads and the names of the
    columns.
    """

    gate: Gate
    n_jobs: int | None = None
    feature_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SavedStage:
    """A stage of a gate as it stands in a file."""

    name: str
    threshold: float
    source: Source


@dataclass(frozen=True)
class Saved:
    """A gate as it stands in a file, entry by entry."""

    kind: Kind
    n_jobs: int | None
    feature_names: tuple[str, ...] | None
    reject_label: Any
    stages: tuple[SavedStage, ...]
    promise: Promise | None
    certificate: Certificate | None
    data_hash: str | None
    sketch: RowSketch | None
    profile: Profile | None


def kind_of(gate: Gate) -> str:
    """What `load` makes of it: one of KINDS, or the calibrator that fitted the map of a gate
    without a promise.
    """
    return KINDS[gate.kind] if gate.certificate is not None else method_of(gate.source).public_name


# ── saving ────────────────────────────────────────────────────────────────────────────────────────


def document_of(content: Content) -> Document:
    """Describe what is to be saved, or raise ArtifactError with what to do instead.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> document = document_of(Content(Gate.of(Table(TemperatureMap(0.5), np.arange(3)))))
    >>> document["kind"], document["stages"][0]["source"]["map"]
    ('TemperatureScaling', {'type': 'TemperatureMap', 'inverse_temperature': 0.5})
    """
    gate = content.gate
    promised = gate.certificate is not None
    if not promised and (gate.threshold != math.inf or gate.kind != "logits"):
        raise ArtifactError(
            "this gate has a threshold without a certificate, and a threshold is only saved with"
            " its promise; fit it with one, say MetaCal(MaxMiscoverage(0.05))."
        )
    saved = Saved(
        Kind(kind_of(gate)),
        content.n_jobs,
        content.feature_names,
        gate.reject_label if promised and gate.n_classes else None,
        tuple(
            SavedStage(stage.name, stage.policy.threshold, _as_saved(stage.source))
            for stage in gate.stages
        ),
        gate.promise if promised else None,
        gate.certificate,
        gate.data_hash,
        gate.sketch,
        gate.profile,
    )
    return {name: encode(entry, name) for name, entry in vars(saved).items()}


def _as_saved(source: Source) -> Source:
    """A source as a file has it; raise where its map or its score is code."""
    if not isinstance(source, Table):
        return source
    method_of(source)
    score, name = source.score, name_of(source.score)
    # Names always come from a user, numbers may not.
    source = replace(source, classes_given=source.classes_given or source.classes.dtype.kind == "U")
    if isinstance(score, str):
        return source
    if type(score) is not RANKERS.get(name):
        raise ArtifactError(
            f"the score is a function ({name}), which a file cannot hold; use a named score: "
            f"{', '.join(NAMED)}, or a trained {' or '.join(RANKERS)}."
        )
    if not score.n_classes_:
        raise ArtifactError(
            f"the score is a {name} that has not been trained; train it, fit again, then save."
        )
    return source


# ── loading ───────────────────────────────────────────────────────────────────────────────────────


def content_of(document: Document) -> Content:
    """What a document describes, or ArtifactError: every field is checked, alone and against the
    others.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> gate = Gate.of(Table(TemperatureMap(0.5), np.arange(3)))
    >>> content_of(document_of(Content(gate))).gate == gate
    True
    """
    kind, kinds = document.get("kind"), entries(Saved)
    if type(kind) is not str or (kind not in KINDS.values() and method_named(kind) is None):
        raise ArtifactError(
            f"unknown kind {shown(kind)}; this metacal knows {', '.join(CHOICES[Kind]())}."
        )
    exact_keys(document, list(kinds), "the file")
    saved = Saved(
        **{name: decode(annotation, document[name], name) for name, annotation in kinds.items()}
    )
    certificate, promise, profile = saved.certificate, saved.promise, saved.profile
    if (certificate is None) != (promise is None):
        raise ArtifactError("a promise belongs to a certificate, and a certificate to a promise.")
    _check_fingerprint(saved)
    if certificate is not None:
        check_promise(certificate, promise)  # type: ignore[arg-type]
        if profile is not None and profile.n_rows < certificate.n_rows:
            raise ArtifactError("the profile has fewer rows than the certificate.")
    held: dict[str, Any] = {"certificate": certificate, "promise": promise, "profile": profile}
    held |= {"data_hash": saved.data_hash, "sketch": saved.sketch}
    gate: Gate = built(Gate, {"stages": _stages(saved.stages, certificate), **held}, "stages")
    gate = replace(gate, reject_label=_reject_label(saved.reject_label, gate))
    if kind != kind_of(gate):
        raise ArtifactError(
            f"this is no {kind}: its stages and its promise are those of {article(kind_of(gate))}."
        )
    if saved.feature_names is not None and len(saved.feature_names) != gate.n_classes:
        raise ArtifactError(f"feature_names must be null or a list of {gate.n_classes} names.")
    for number, stage in enumerate(gate.stages):
        if isinstance(stage.source, Table):
            check_map(stage.source.map, gate.n_classes)
            if certificate is not None:
                check_map(gate.stage(number), gate.n_classes)
    return Content(gate, check_jobs(saved.n_jobs), saved.feature_names)


def _check_fingerprint(saved: Saved) -> None:
    """Raise ArtifactError unless what the file says of its calibration rows can be."""
    if saved.certificate is None and (saved.data_hash, saved.sketch, saved.profile) != (
        None,
        None,
        None,
    ):
        raise ArtifactError(
            "a fingerprint or a profile of calibration rows belongs to a certificate."
        )
    if (saved.data_hash is None) != (saved.sketch is None):
        raise ArtifactError(
            "data_hash and sketch describe the same calibration rows; a file has both or neither."
        )
    if saved.data_hash is not None and not re.fullmatch("sha256:[0-9a-f]{64}", saved.data_hash):
        raise ArtifactError(
            f'data_hash must be "sha256:" and 64 hexadecimal digits, not {shown(saved.data_hash)}.'
        )


def _reject_label(label: Any, gate: Gate) -> Any:
    """The reject label, of the type of the classes and none of them; none where there are none, or
    all is accepted.
    """
    if gate.certificate is None or not gate.n_classes:
        if label is not None:
            raise ArtifactError(
                f"reject_label must be null where no class is rejected, not {shown(label)}."
            )
        return -1
    if (
        not isinstance(label, str if gate.classes.dtype.kind == "U" else int)
        or label in gate.classes.tolist()
    ):
        raise ArtifactError(
            f"reject_label must be of the type of the classes and none of them, not {shown(label)}."
        )
    return label


def _stages(saved: tuple[SavedStage, ...], certificate: Certificate | None) -> tuple[Stage, ...]:
    """The stages, each as the certificate says."""
    cascade = None if certificate is None else certificate.stages
    counted: tuple[Any, ...] = (certificate,) if cascade is None else cascade.items
    if len(saved) != len(counted) or len(saved) > MOST_STAGES:
        raise ArtifactError(f"stages must be a list of {len(counted)}, as the certificate says.")
    stages = []
    for number, (stage, said) in enumerate(zip(saved, counted, strict=True)):
        where, source = f"stages[{number}]", stage.source
        name, threshold = getattr(said, "name", ""), math.inf if said is None else said.threshold
        if stage.name != name:
            raise ArtifactError(
                f"{where}.name must be {name!r}, as in the certificate, not {shown(stage.name)}."
            )
        if said is not None and source.score_name != said.score:
            raise ArtifactError(
                f"{where}: the score is not the same in the source and the certificate."
            )
        if stage.threshold != threshold:
            raise ArtifactError(f"{where}: the threshold and the certificate's differ.")
        policy: Policy = One(threshold)
        grid, classes = RELATIVE, np.empty(0)
        if isinstance(source, Table):
            _check_table(source, certificate, threshold, where)
            grid, classes = grid_of(source.score), source.classes
        else:
            source = _marks(source, certificate, where)
        if certificate is not None:
            check_settled(certificate, grid, threshold)
            check_classes(certificate, classes)
            policy = policy if cascade is not None else policy_of(certificate, classes)
        stages.append(Stage(source, policy, name))
    return tuple(stages)


def _check_table(
    source: Table, certificate: Certificate | None, threshold: float, where: str
) -> None:
    """Raise unless the map of a stage on logits, its score, its classes and the certificate go
    together.
    """
    n, trained = source.n_classes, getattr(source.score, "n_classes_", source.n_classes)
    method_of(source)
    check_cost(source.map, n)
    if trained != n:
        raise ArtifactError(f"{where}.source: n_classes is {trained}, but there are {n} classes.")
    if needs_logits(source.score) and source.input == "probabilities":
        raise ArtifactError(
            f"the score {name_of(source.score)} is the same for every row of probabilities."
        )
    moved = source.decision_at
    if (n != 2 and moved) or moved != (0.0 if certificate is None else certificate.decision_at):
        raise ArtifactError(
            f"{where}.source: decision_at {moved} is not that of the certificate of two classes."
        )
    if certificate is not None:
        check_reach(certificate, n, source.score_name, threshold)


def _marks(source: Marks, certificate: Certificate | None, where: str) -> Marks:
    """The source of a stage on given scores, with what the certificate says of it."""
    if plain_name(source.score) != source.score:
        raise ArtifactError(
            f"{where}.source.score must be one line of plain text, not {shown(source.score)}."
        )
    corners = 0 if source.curve is None else len(source.curve.knots)
    if corners > _MOST_CORNERS:
        raise ArtifactError(
            f"{where}.source.curve has {corners:,} corners; {_MOST_CORNERS:,} is the most."
        )
    if certificate is None:
        raise ArtifactError(f"{where}.source: scores that are given belong to a certificate.")
    if source.truth == "losses" and not certificate.quantity.mean:
        raise ArtifactError(f"{where}.source.truth: losses belong to a promise about them.")
    return source if certificate.stages is not None else source.of(certificate)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def load_gate(
    path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None
) -> Gate:
    """Read what `save` wrote as the gate itself, a frozen value, without scikit-learn.

    Checked and refused as by `load`. A file of a calibrator gives a gate that promises nothing and
    accepts every row.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import metacal as mc
    >>> from metacal.gate import Table
    >>> from metacal.maps.temperature import TemperatureMap
    >>> path = os.path.join(tempfile.mkdtemp(), "cal.json")
    >>> mc.save(mc.Gate.of(Table(TemperatureMap(0.5), np.arange(2))), path)
    >>> load_gate(path)(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """
    return read_content(path, key, max_bytes)[0].gate


def read_content(
    path: str | os.PathLike[str], key: KeySource | None = None, max_bytes: int | None = None
) -> tuple[Content, Wrapping]:
    """All that a file holds, and what it says about itself: its format, writer, checksum and
    signature.
    """
    verifying = None if key is None else read_key(key)
    raw = read_file(path, max_bytes)
    with naming(os.fspath(path)):
        return loaded(raw, verifying, max_bytes)


def text_that_loads(
    content: Content, *, key: KeySource | None = None, max_bytes: int | None = None
) -> str:
    """The text of a file, signed if there is a key, that loads to a gate which does what this one
    does.

    Raises ArtifactError, with what to do, where there is no such file.
    """
    signing = None if key is None else read_key(key)
    document = document_of(content)
    text = text_of(document, signing)
    raw = text.encode()
    if len(raw) > (max_bytes or MAX_BYTES):
        raise ArtifactError(
            f"the file would have {len(raw) / 2**20:.0f} MB, more than load takes by default"
            f" ({MAX_BYTES / 2**20:.0f} MB); save and load it with max_bytes={len(raw)} if it must"
            " be so large."
        )
    try:
        again = loaded(raw, signing, max_bytes)[0]
    except ArtifactError as error:
        raise ArtifactError(f"this cannot be saved, for it could not be loaded: {error}") from error
    if document_of(again) != document:
        raise ArtifactError(
            "this cannot be saved: what is read back is another gate; please report it."
        )
    return text


def loaded(
    raw: bytes, key: Key | None = None, max_bytes: int | None = None
) -> tuple[Content, Wrapping]:
    """What the bytes of a file hold, and what they say about themselves."""
    document, wrapping = unwrapped(raw, max_bytes=max_bytes, key=key)
    try:
        return content_of(document), wrapping
    except (RecursionError, MemoryError) as error:
        raise ArtifactError("it is nested too deeply or too large.") from error
