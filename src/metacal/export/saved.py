"""Save and load what was fitted: estimators and gates as JSON files.

The checksum finds damage and careless edits; it is no signature. Whoever can write the file can
change the promise, so keep artifacts where you keep models, or sign them with a key.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from metacal.io.artifact.document import Content, loaded, read_content, text_that_loads
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
    """Write a fitted MetaCal, Cascade, ScoreGate, calibrator or gate as JSON; `load` gives it back,
    bit for bit.

    What is to be written is read back first, as `load` would, and must decide and predict the same;
    then the file is written whole or not at all. What cannot be saved (a score that is a function,
    somebody else's estimator as base calibrator, a label beyond 64 bits) raises ArtifactError
    before the file is touched.

    With `key`, the path of a key file or its bytes, the file is signed, and `load` can be told to
    take no other: a shared secret of at least 32 bytes (HMAC-SHA256), or an Ed25519 private key in
    PEM. `max_bytes` allows files that `load` takes with the same `max_bytes` only.

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
    """Read what `save` wrote: a fitted estimator, ready to predict.

    A file that is missing or not readable raises InputError; one that is damaged, contradicts
    itself, or was written by a newer metacal raises ArtifactError. With `key` (a key file or its
    bytes; of an Ed25519 pair the public key will do) so does one that is not signed with that key.
    Nothing in the file is ever run. Files beyond 45 MB (a full matrix for more than 2,000 classes)
    are refused unless `max_bytes` allows them, so that nobody else's file can take much memory.

    Examples
    --------
    >>> load("cal.json")
    Traceback (most recent call last):
    metacal.errors.InputError: cal.json: there is no such file; check the name and the folder.
    """
    return _estimator(read_content(path, key, max_bytes)[0])


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


def loads(
    raw: bytes, *, key: KeySource | None = None, max_bytes: int | None = None
) -> MetaCal | Calibrator[Any] | Cascade | ScoreGate:
    """Build the estimator from the bytes of a file.

    Examples
    --------
    >>> loads(b'{"format": "metacal", "version": 4}')
    Traceback (most recent call last):
    metacal.errors.ArtifactError: written by a newer metacal (format 4); update metacal.
    """
    return _estimator(loaded(raw, None if key is None else read_key(key), max_bytes)[0])


def _content(estimator: Any) -> Content:
    if hasattr(estimator, "stages"):
        return Content(estimator)
    from metacal.export import estimator as around  # scikit-learn comes with it

    return around.content_of(estimator)


def _estimator(content: Content) -> MetaCal | Calibrator[Any] | Cascade | ScoreGate:
    from metacal.export import estimator as around  # scikit-learn comes with it

    return around.estimator_of(content)
