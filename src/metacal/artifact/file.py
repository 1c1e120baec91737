"""Save and load fitted estimators as versioned JSON: data, never code, and audited before anything is built from it.

The checksum finds damage and careless edits; it is no signature. Whoever can write the file can change the promise, so
keep artifacts where you keep models, or sign them with a key.
"""

from __future__ import annotations

import os
from typing import Any

from metacal.artifact.document import document_of, estimator_from
from metacal.artifact.saving import text_that_loads
from metacal.artifact.signature import Key, KeySource, read_key
from metacal.artifact.wrapping import Wrapping, checksum, read_file, unwrapped, write_text
from metacal.errors import ArtifactError
from metacal.estimators.auto import chosen

__all__ = ["checksum", "dumps", "load", "load_with_wrapping", "loads", "save"]


def save(
    estimator: Any, path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None
) -> None:
    """Write a fitted MetaCal or calibrator as JSON; `load` gives it back with bit-identical predictions.

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
    write_text(dumps(estimator, key=key, max_bytes=max_bytes), path)


def load(path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None) -> Any:
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
    return load_with_wrapping(path, key=key, max_bytes=max_bytes)[0]


def load_with_wrapping(
    path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None
) -> tuple[Any, Wrapping]:
    """The estimator, and what the file says about itself: its format, its writer, its checksum, its signature."""
    verifying = None if key is None else read_key(key)
    raw = read_file(path, max_bytes)
    try:
        return _loaded(raw, verifying, max_bytes)
    except ArtifactError as error:
        raise ArtifactError(f"{os.fspath(path)}: {error}") from error.__cause__


def dumps(estimator: Any, *, key: KeySource | None = None, max_bytes: int | None = None) -> str:
    """What `save` writes, as text, once it has been read back.

    Examples
    --------
    >>> import metacal as mc
    >>> cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])
    >>> print(dumps(cal)[:70])
    {
      "format": "metacal",
      "version": 1,
      "metacal_version": ...
    """
    document = document_of(estimator)
    fitted = chosen(estimator).map_
    return text_that_loads(document, fitted, lambda again: estimator_from(again).map_, key=key, max_bytes=max_bytes)


def loads(raw: bytes, *, key: KeySource | None = None, max_bytes: int | None = None) -> Any:
    """Build the estimator from the bytes of a file.

    Examples
    --------
    >>> loads(b'{"format": "metacal", "version": 2}')
    Traceback (most recent call last):
    metacal.errors.ArtifactError: written by a newer metacal (format 2); update metacal.
    """
    return _loaded(raw, None if key is None else read_key(key), max_bytes)[0]


def _loaded(raw: bytes, key: Key | None, max_bytes: int | None) -> tuple[Any, Wrapping]:
    document, wrapping = unwrapped(raw, max_bytes=max_bytes, key=key)
    try:
        return estimator_from(document), wrapping
    except (RecursionError, MemoryError) as error:
        raise ArtifactError("it is nested too deeply or too large.") from error
