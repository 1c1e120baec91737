"""Saving and loading of gates as versioned JSON files, without scikit-learn.

The *document* of a gate is a JSON object: the stages, each with its source and threshold, the
promise and the certificate. Its kind determines what `load` returns: a MetaCal, ScoreGate or
Cascade, or a calibrator if there is no promise.

A file contains data and never code, and is checked before an object is built from it. The checksum
detects damage and careless edits, but it is not a signature: anyone who can write the file can
change the promise. Store artifacts where you store models, or sign them with a key.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from typing import Any, NewType

from metacal.certificates.certificate import Certificate
from metacal.certificates.fingerprint import RowSketch
from metacal.errors import ArtifactError, ForeignFileError, SavingError
from metacal.gate import Gate, LogitsSource
from metacal.io.artifact.audit import check_promise
from metacal.io.artifact.encoding import call_constructor, decode, encode
from metacal.io.artifact.messages import check_keys, describe_json, prefix_errors_with, with_article
from metacal.io.artifact.probe import check_map
from metacal.io.artifact.registry import ALLOWED_NAME_LISTERS, get_field_types
from metacal.io.artifact.signature import Key, KeySource, read_key
from metacal.io.artifact.sources import check_n_jobs, find_source_method, list_calibrator_names
from metacal.io.artifact.stages import SavedStage, build_stages, convert_to_saved_stages
from metacal.io.artifact.wrapping import MAX_BYTES, Wrapping, build_file_text, parse_file, read_file
from metacal.maps.methods import find_method_by_public_name
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import Profile

Document = dict[str, Any]

#: Names of the kinds of documents with a promise, by `Gate.kind`.
NAME_BY_GATE_KIND = {"logits": "MetaCal", "scores": "ScoreGate", "cascade": "Cascade"}

#: Kind of a document: a value of `NAME_BY_GATE_KIND`, or the public name of a calibrator.
DocumentKind = NewType("DocumentKind", str)

_DATA_HASH_PATTERN = "sha256:[0-9a-f]{64}"

# Placeholder for the reject label of a gate that never rejects a class.
_NO_REJECT_LABEL = -1


@dataclass(frozen=True)
class SavedContent:
    """Gate and estimator parameters of a saved file.

    Attributes
    ----------
    gate : Gate
        Fitted gate.

    n_jobs : int or None
        Number of threads of the estimator.

    feature_names : tuple of str or None
        Column names that the estimator was fitted with.
    """

    gate: Gate
    n_jobs: int | None = None
    feature_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SavedGate:
    """Entries of the document that stores a gate.

    Attributes
    ----------
    kind : str
        Kind of the document.

    n_jobs, feature_names
        Parameters of the estimator, see `Content`.

    reject_label : str, int or None
        Label of rejected rows. None if no class is rejected.

    stages : tuple of SavedStage
        Stages of the gate.

    promise, certificate : Promise and Certificate, or None
        None if the gate is a calibrator without a promise.

    data_hash, sketch : str and RowSketch, or None
        Fingerprint of the calibration rows.

    profile : Profile or None
        Profile of the calibration rows, with which a monitor compares later rows.
    """

    kind: DocumentKind
    n_jobs: int | None
    feature_names: tuple[str, ...] | None
    reject_label: Any
    stages: tuple[SavedStage, ...]
    promise: Promise | None
    certificate: Certificate | None
    data_hash: str | None
    sketch: RowSketch | None
    profile: Profile | None


def _list_document_kinds() -> list[str]:
    """List all kinds of documents, including user-registered calibrators."""
    return [*NAME_BY_GATE_KIND.values(), *list_calibrator_names()]


ALLOWED_NAME_LISTERS[DocumentKind] = _list_document_kinds


def get_document_kind(gate: Gate) -> DocumentKind:
    """Return the kind of a gate's document, which determines what `load` returns."""
    if gate.certificate is not None:
        return DocumentKind(NAME_BY_GATE_KIND[gate.kind])
    return DocumentKind(find_source_method(gate.logits_source).public_name)


def encode_document(content: SavedContent) -> Document:
    """Convert the content of a file to a document.

    Parameters
    ----------
    content : SavedContent
        Gate and parameters of the estimator.

    Returns
    -------
    dict
        JSON object.

    Raises
    ------
    ArtifactError
        If the gate has a threshold but no certificate, or contains code.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.maps.temperature import TemperatureMap
    >>> document = encode_document(SavedContent(Gate.from_source(LogitsSource(TemperatureMap(0.5), np.arange(3)))))
    >>> document["kind"], document["stages"][0]["source"]["map"]
    ('TemperatureScaling', {'type': 'TemperatureMap', 'inverse_temperature': 0.5})
    """
    gate = content.gate
    has_promise = gate.certificate is not None
    # A calibrator is stored as a gate that accepts every row.
    accepts_all_rows = gate.is_logits_gate and gate.threshold == math.inf
    if not has_promise and not accepts_all_rows:
        raise SavingError(
            "This gate has a threshold without a certificate, so it cannot be saved. Fit the"
            " gate with a promise, for example MetaCal(MaxMiscoverage(0.05))."
        )
    reject_label = None
    if has_promise and gate.has_classes:
        reject_label = gate.reject_label
    saved_gate = SavedGate(
        kind=get_document_kind(gate),
        n_jobs=content.n_jobs,
        feature_names=content.feature_names,
        reject_label=reject_label,
        stages=convert_to_saved_stages(gate),
        promise=gate.promise if has_promise else None,
        certificate=gate.certificate,
        data_hash=gate.data_hash,
        sketch=gate.row_hash_sample,
        profile=gate.profile,
    )
    return {name: encode(entry, name) for name, entry in vars(saved_gate).items()}


def decode_document(document: Document) -> SavedContent:
    """Convert a document to the content of a file, and check all its entries.

    Parameters
    ----------
    document : dict
        JSON object from `encode_document`.

    Returns
    -------
    SavedContent

    Raises
    ------
    ArtifactError
        If an entry is invalid, or entries do not agree with each other.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.maps.temperature import TemperatureMap
    >>> gate = Gate.from_source(LogitsSource(TemperatureMap(0.5), np.arange(3)))
    >>> decode_document(encode_document(SavedContent(gate))).gate == gate
    True
    """
    saved_gate = _decode_entries(document)
    _check_promise_entries(saved_gate)
    gate = _build_gate(saved_gate)
    gate_kind = get_document_kind(gate)
    if saved_gate.kind != gate_kind:
        raise ForeignFileError(
            f"the file claims to hold {saved_gate.kind}, but its stages and promise are those of"
            f" {with_article(gate_kind)}."
        )
    feature_names = saved_gate.feature_names
    if feature_names is not None and len(feature_names) != gate.n_classes:
        raise ArtifactError(f"feature_names must be null or a list of {gate.n_classes} names.")
    _check_maps(gate)
    n_jobs = check_n_jobs(saved_gate.n_jobs)
    return SavedContent(gate=gate, n_jobs=n_jobs, feature_names=feature_names)


def _decode_entries(document: Document) -> SavedGate:
    """Convert the entries of a document to their types."""
    document_kind = document.get("kind")
    is_known_kind = type(document_kind) is str and (
        document_kind in NAME_BY_GATE_KIND.values()
        or find_method_by_public_name(document_kind) is not None
    )
    if not is_known_kind:
        known_kinds = ", ".join(_list_document_kinds())
        raise ForeignFileError(
            f"the file has the unknown kind {describe_json(document_kind)}. This version of metacal"
            f" supports {known_kinds}. Update metacal."
        )
    entry_types = get_field_types(SavedGate)
    check_keys(document, list(entry_types), "the file")
    decoded_entries = {}
    for name, entry_type in entry_types.items():
        decoded_entries[name] = decode(entry_type, document[name], name)
    return SavedGate(**decoded_entries)


def _check_promise_entries(saved_gate: SavedGate) -> None:
    """Raise ArtifactError unless promise, certificate and calibration rows agree."""
    certificate = saved_gate.certificate
    promise = saved_gate.promise
    if (certificate is None) != (promise is None):
        raise ArtifactError(
            "a file must have both a promise and a certificate, or neither of them."
        )
    _check_fingerprint(saved_gate)
    if certificate is None or promise is None:
        return
    check_promise(certificate, promise)
    if saved_gate.profile is not None and saved_gate.profile.n_rows < certificate.n_rows:
        raise ArtifactError("the profile must not have fewer rows than the certificate.")


def _check_fingerprint(saved_gate: SavedGate) -> None:
    """Raise ArtifactError unless the fingerprint of the calibration rows is valid."""
    data_hash = saved_gate.data_hash
    row_entries = (data_hash, saved_gate.sketch, saved_gate.profile)
    has_row_entries = any(entry is not None for entry in row_entries)
    if saved_gate.certificate is None and has_row_entries:
        raise ArtifactError(
            "a file with a fingerprint or a profile of the calibration rows must also have a"
            " certificate."
        )
    if (data_hash is None) != (saved_gate.sketch is None):
        raise ArtifactError(
            "a file must have both data_hash and sketch, or neither of them, because both"
            " describe the same calibration rows."
        )
    if data_hash is not None and not re.fullmatch(_DATA_HASH_PATTERN, data_hash):
        raise ArtifactError(
            'data_hash must be "sha256:" followed by 64 hexadecimal digits, but it is'
            f" {describe_json(data_hash)}."
        )


def _build_gate(saved_gate: SavedGate) -> Gate:
    """Build a gate from the decoded entries of a document."""
    arguments: dict[str, Any] = {
        "stages": build_stages(saved_gate.stages, saved_gate.certificate),
        "certificate": saved_gate.certificate,
        "promise": saved_gate.promise,
        "profile": saved_gate.profile,
        "data_hash": saved_gate.data_hash,
        "row_hash_sample": saved_gate.sketch,
    }
    gate: Gate = call_constructor(Gate, arguments, "stages")
    reject_label = _check_and_complete_reject_label(saved_gate.reject_label, gate)
    return replace(gate, reject_label=reject_label)


def _check_and_complete_reject_label(reject_label: Any, gate: Gate) -> Any:
    """Check the reject label in a file, and return the label that the gate uses.

    Raise ArtifactError unless the label has the type of the classes and is none of them. If no
    class is rejected, it must be None.
    """
    rejects_classes = gate.certificate is not None and gate.has_classes
    if not rejects_classes:
        if reject_label is not None:
            raise ArtifactError(
                "reject_label must be null if the gate has no reject class, but it is"
                f" {describe_json(reject_label)}."
            )
        return _NO_REJECT_LABEL
    label_type = str if gate.classes.dtype.kind == "U" else int
    if not isinstance(reject_label, label_type) or reject_label in gate.classes.tolist():
        raise ArtifactError(
            "reject_label must have the same type as the classes and differ from all of them,"
            f" but it is {describe_json(reject_label)}."
        )
    return reject_label


def _check_maps(gate: Gate) -> None:
    """Raise ArtifactError unless all maps and gated maps return probabilities."""
    for index, stage in enumerate(gate.stages):
        if not isinstance(stage.source, LogitsSource):
            continue
        check_map(stage.source.map, gate.n_classes)
        if gate.certificate is not None:
            check_map(gate.stage(index), gate.n_classes)


def load_gate(
    path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None
) -> Gate:
    """Load a saved gate without importing scikit-learn.

    The file is checked as by `load`. The file of a calibrator results in a gate without a promise
    that accepts every row.

    Parameters
    ----------
    path : str or path
        File written by `save`.

    key : str, path or bytes, default=None
        Key to verify the signature with. If None, the signature is not verified.

    max_bytes : int, default=None
        Largest size of the file.

    Returns
    -------
    Gate
        Immutable gate.

    Raises
    ------
    ArtifactError
        If the file is not valid.

    See Also
    --------
    load : Load a saved gate as an estimator.
    save : Save a gate or a fitted estimator.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import metacal as mc
    >>> from metacal.gate import LogitsSource
    >>> from metacal.maps.temperature import TemperatureMap
    >>> path = os.path.join(tempfile.mkdtemp(), "cal.json")
    >>> mc.save(mc.Gate.from_source(LogitsSource(TemperatureMap(0.5), np.arange(2))), path)
    >>> load_gate(path)(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """
    content, _ = read_content(path, key, max_bytes)
    return content.gate


def read_content(
    path: str | os.PathLike[str], key: KeySource | None = None, max_bytes: int | None = None
) -> tuple[SavedContent, Wrapping]:
    """Read and check a file.

    Parameters
    ----------
    path : str or path
        File to read.

    key : str, path, bytes or None, default=None
        Key to verify the signature with.

    max_bytes : int or None, default=None
        Largest size of the file.

    Returns
    -------
    content : SavedContent

    wrapping : Wrapping
        Format version, checksum and signature.

    Raises
    ------
    ArtifactError
        If the file is not valid. The message begins with its name.
    """
    verification_key = None if key is None else read_key(key)
    file_bytes = read_file(path, max_bytes)
    with prefix_errors_with(os.fspath(path)):
        return load_bytes(file_bytes, verification_key, max_bytes)


def build_verified_text(
    content: SavedContent, *, key: KeySource | None = None, max_bytes: int | None = None
) -> str:
    """Return the text of a file, after checking that it loads to an equal gate.

    Parameters
    ----------
    content : SavedContent
        Gate and parameters of the estimator.

    key : str, path, bytes or None, default=None
        Key to sign with.

    max_bytes : int or None, default=None
        Largest size of the file.

    Returns
    -------
    str

    Raises
    ------
    ArtifactError
        If the content cannot be saved, or could not be loaded again.
    """
    signing_key = None if key is None else read_key(key)
    document = encode_document(content)
    file_text = build_file_text(document, signing_key)
    text_bytes = file_text.encode()
    n_bytes = len(text_bytes)
    if n_bytes > (max_bytes or MAX_BYTES):
        raise SavingError(
            f"the file would have {n_bytes / 2**20:.0f} MB, but load accepts"
            f" {MAX_BYTES / 2**20:.0f} MB by default. If the gate must be so large, save and"
            f" load it with max_bytes={n_bytes}."
        )
    try:
        loaded_content, _ = load_bytes(text_bytes, signing_key, max_bytes)
    except ArtifactError as error:
        raise SavingError(
            f"this gate cannot be saved, because the saved file cannot be loaded: {error}"
        ) from error
    if encode_document(loaded_content) != document:
        raise SavingError(
            "this gate cannot be saved, because the loaded gate would differ from it. This is a"
            " bug in metacal. Please report it."
        )
    return file_text


def load_bytes(
    file_bytes: bytes, key: Key | None = None, max_bytes: int | None = None
) -> tuple[SavedContent, Wrapping]:
    """Parse and check the bytes of a file; see `read_content`."""
    document, wrapping = parse_file(file_bytes, max_bytes=max_bytes, key=key)
    try:
        return decode_document(document), wrapping
    except (RecursionError, MemoryError) as error:
        raise ArtifactError(
            "the file is too large or nested too deeply. Check that metacal wrote it."
        ) from error
