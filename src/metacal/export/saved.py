"""Saving and loading of fitted estimators and gates as JSON files.

The checksum detects damage and careless edits, but it is not a signature: anyone who can write the
file can change the promise. Store artifacts where you store models, or sign them with a key.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from metacal.io.artifact.document import SavedContent, build_verified_text, load_bytes, read_content
from metacal.io.artifact.signature import KeySource, read_key
from metacal.io.artifact.wrapping import checksum, write_text

if TYPE_CHECKING:
    from metacal.estimators.base import Calibrator
    from metacal.estimators.cascade import Cascade
    from metacal.estimators.metacal import MetaCal
    from metacal.estimators.scored import ScoreGate

__all__ = ["checksum", "dumps", "load", "loads", "save"]


def save(
    fitted: Any,
    path: str | os.PathLike[str],
    *,
    key: KeySource | None = None,
    max_bytes: int | None = None,
) -> None:
    """Save a fitted estimator or gate as a JSON file.

    Before the file is written, its text is loaded again and must result in an equal gate. The file
    is written atomically.

    Parameters
    ----------
    fitted : MetaCal, Cascade, ScoreGate, calibrator or Gate
        Fitted object.

    path : str or path
        File to create or replace.

    key : str, path or bytes, default=None
        Path of a key file, or the content of a key, to sign the file with: a shared secret of at
        least 32 bytes (HMAC-SHA256), or an Ed25519 private key in PEM format.

    max_bytes : int, default=None
        Largest size of the file. A file beyond the default of 45 MB must be loaded with the same
        `max_bytes`.

    Raises
    ------
    ArtifactError
        If the object cannot be saved, for example because its score is a function, its base
        calibrator is not one of metacal's own, or a label has more than 64 bits.

    See Also
    --------
    load : Load a saved gate as an estimator.
    load_gate : Load a saved gate as a frozen value.

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
) -> MetaCal | Calibrator[Any] | Cascade | ScoreGate:
    """Load a fitted estimator from a JSON file. No code in the file is ever executed.

    Parameters
    ----------
    path : str or path
        File written by `save`.

    key : str, path or bytes, default=None
        Key to verify the signature with. For Ed25519, the public key is sufficient. If None, the
        signature is not verified.

    max_bytes : int, default=None
        Largest size of the file, 45 MB by default. The limit bounds the memory that a file can
        take. A full matrix for more than 2,000 classes exceeds it.

    Returns
    -------
    MetaCal, Cascade, ScoreGate or calibrator

    Raises
    ------
    InputError
        If the file does not exist or cannot be read.

    ArtifactError
        If the file is damaged, inconsistent, too large, written by a newer version of metacal, or
        not signed with the key.

    See Also
    --------
    load_gate : Load a saved gate as a frozen value.
    save : Save a gate or a fitted estimator.

    Examples
    --------
    >>> load("cal.json")
    Traceback (most recent call last):
    metacal.errors.FileReadError: cal.json: the file does not exist. Check the name and the folder.
    """
    content, _ = read_content(path, key, max_bytes)
    return _build_estimator(content)


def dumps(fitted: Any, *, key: KeySource | None = None, max_bytes: int | None = None) -> str:
    """Return the text that `save` writes.

    Parameters
    ----------
    fitted, key, max_bytes
        As for `save`.

    Returns
    -------
    str

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
    return build_verified_text(_file_content(fitted), key=key, max_bytes=max_bytes)


def loads(
    raw: bytes, *, key: KeySource | None = None, max_bytes: int | None = None
) -> MetaCal | Calibrator[Any] | Cascade | ScoreGate:
    """Load a fitted estimator from the bytes of a JSON file.

    Parameters
    ----------
    raw : bytes
        Content of the file.

    key, max_bytes
        As for `load`.

    Returns
    -------
    MetaCal, Cascade, ScoreGate or calibrator

    Examples
    --------
    >>> loads(b'{"format": "metacal", "version": 4}')
    Traceback (most recent call last):
    metacal.errors.ForeignFileError: a newer version of metacal wrote the file ... Update metacal.
    """
    verification_key = None if key is None else read_key(key)
    content, _ = load_bytes(raw, verification_key, max_bytes)
    return _build_estimator(content)


def _file_content(fitted: Any) -> SavedContent:
    """Return the content of the file for a gate or a fitted estimator."""
    is_gate = hasattr(fitted, "stages")
    if is_gate:
        return SavedContent(fitted)
    # Saving a gate must not import scikit-learn.
    from metacal.export.estimator import file_content

    return file_content(fitted)


def _build_estimator(content: SavedContent) -> MetaCal | Calibrator[Any] | Cascade | ScoreGate:
    """Build the fitted estimator for the content of a file."""
    # Importing this package must not import scikit-learn.
    from metacal.export.estimator import build_estimator

    return build_estimator(content)
