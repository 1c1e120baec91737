"""Save and load gates as versioned JSON: data, never code, and audited before anything is built from it.

The checksum finds damage and careless edits; it is no signature. Whoever can write the file can change the promise, so
keep artifacts where you keep models, or sign them with a key.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from metacal.errors import ArtifactError
from metacal.gate import Gate
from metacal.io.artifact.document import Content, content_of, document_of
from metacal.io.artifact.probe import same_answers
from metacal.io.artifact.signature import Key, KeySource, read_key
from metacal.io.artifact.wrapping import MAX_BYTES, Wrapping, checksum, read_file, text_of, unwrapped, write_text

if TYPE_CHECKING:
    from metacal.estimators.base import Calibrator
    from metacal.estimators.cascade import Cascade
    from metacal.estimators.metacal import MetaCal
    from metacal.estimators.scored import ScoreGate

__all__ = ["checksum", "dumps", "load", "load_gate", "load_with_wrapping", "loads", "save"]


def save(
    fitted: Any, path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None
) -> None:
    """Write a fitted MetaCal, Cascade, ScoreGate, calibrator or gate as JSON; `load` gives it back, bit for bit.

    What is to be written is read back first, as `load` would, and must decide and predict the same; then the file is
    written whole or not at all. What cannot be saved (a score that is a function, somebody else's estimator as base
    calibrator, a label beyond 64 bits) raises ArtifactError before the file is touched.

    With `key`, the path of a key file or its bytes, the file is signed, and `load` can be told to take no other: a
    shared secret of at least 32 bytes (HMAC-SHA256), or an Ed25519 private key in PEM. `max_bytes` allows files that
    `load` takes with the same `max_bytes` only.

    Examples
    --------
    >>> import tempfile
    >>> import metacal as mc
    >>> cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])
    >>> path = os.path.join(tempfile.mkdtemp(), "cal.json")
    >>> save(cal, path)
    >>> load(path).temperature_ == cal.temperature_
    True
    """
    write_text(dumps(fitted, key=key, max_bytes=max_bytes), path)


def load(
    path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None
) -> MetaCal | Calibrator | Cascade | ScoreGate:
    """Read what `save` wrote: a fitted estimator, ready to predict.

    A file that is missing or not readable raises InputError; one that is damaged, contradicts itself, or was written by
    a newer metacal raises ArtifactError. With `key` (a key file or its bytes; of an Ed25519 pair the public key will
    do) so does one that is not signed with that key. Nothing in the file is ever run. Files beyond 45 MB (a full matrix
    for more than 2,000 classes) are refused unless `max_bytes` allows them, so that nobody else's file can take much
    memory.

    Examples
    --------
    >>> load("cal.json")
    Traceback (most recent call last):
    metacal.errors.InputError: cal.json: there is no such file; check the name and the folder.
    """
    return _estimator(_read(path, key, max_bytes)[0])


def load_gate(path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None) -> Gate:
    """Read what `save` wrote as the gate itself, a frozen value, without scikit-learn.

    Checked and refused as by `load`. A file of a calibrator gives a gate that promises nothing and accepts every row.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from metacal.gate import Table
    >>> from metacal.maps.temperature import TemperatureMap
    >>> path = os.path.join(tempfile.mkdtemp(), "cal.json")
    >>> save(Gate.of(Table(TemperatureMap(0.5), np.arange(2))), path)
    >>> load_gate(path)(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """
    return _read(path, key, max_bytes)[0].gate


def load_with_wrapping(
    path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None
) -> tuple[Gate, Wrapping]:
    """The gate, and what the file says about itself: its format, its writer, its checksum, its signature."""
    content, wrapping = _read(path, key, max_bytes)
    return content.gate, wrapping


def _read(path: str | os.PathLike[str], key: KeySource | None, max_bytes: int | None) -> tuple[Content, Wrapping]:
    verifying = None if key is None else read_key(key)
    raw = read_file(path, max_bytes)
    try:
        return _loaded(raw, verifying, max_bytes)
    except ArtifactError as error:
        raise ArtifactError(f"{os.fspath(path)}: {error}") from error.__cause__


def dumps(fitted: Any, *, key: KeySource | None = None, max_bytes: int | None = None) -> str:
    """What `save` writes, as text, once it has been read back.

    Examples
    --------
    >>> import metacal as mc
    >>> cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])
    >>> print(dumps(cal)[:70])
    {
      "format": "metacal",
      "version": 3,
      "metacal_version": ...
    """
    return text_that_loads(_content(fitted), key=key, max_bytes=max_bytes)


def text_that_loads(content: Content, *, key: KeySource | None = None, max_bytes: int | None = None) -> str:
    """The text of a file, signed if there is a key, that loads to a gate which does what this one does.

    Raises ArtifactError, with what to do, where there is no such file.
    """
    signing = None if key is None else read_key(key)
    text = text_of(document_of(content), signing)
    raw = text.encode()
    if len(raw) > (max_bytes or MAX_BYTES):
        raise ArtifactError(
            f"the file would have {len(raw) / 2**20:.0f} MB, more than load takes by default "
            f"({MAX_BYTES / 2**20:.0f} MB); save and load it with max_bytes={len(raw)} if it must be so large."
        )
    try:
        again = _loaded(raw, signing, max_bytes)[0].gate
    except ArtifactError as error:
        raise ArtifactError(f"this cannot be saved, for it could not be loaded: {error}") from error
    if not same_answers(content.gate, again):
        raise ArtifactError("this cannot be saved: what is read back predicts otherwise; please report it.")
    return text


def loads(
    raw: bytes, *, key: KeySource | None = None, max_bytes: int | None = None
) -> MetaCal | Calibrator | Cascade | ScoreGate:
    """Build the estimator from the bytes of a file.

    Examples
    --------
    >>> loads(b'{"format": "metacal", "version": 4}')
    Traceback (most recent call last):
    metacal.errors.ArtifactError: written by a newer metacal (format 4); update metacal.
    """
    return _estimator(_loaded(raw, None if key is None else read_key(key), max_bytes)[0])


def _loaded(raw: bytes, key: Key | None, max_bytes: int | None) -> tuple[Content, Wrapping]:
    document, wrapping = unwrapped(raw, max_bytes=max_bytes, key=key)
    try:
        return content_of(document), wrapping
    except (RecursionError, MemoryError) as error:
        raise ArtifactError("it is nested too deeply or too large.") from error


def _content(estimator: Any) -> Content:
    if hasattr(estimator, "stages"):
        return Content(estimator)
    from metacal.io.artifact import estimator as around  # scikit-learn comes with it

    return around.content_of(estimator)


def _estimator(content: Content) -> MetaCal | Calibrator | Cascade | ScoreGate:
    from metacal.io.artifact import estimator as around  # scikit-learn comes with it

    return around.estimator_of(content)
