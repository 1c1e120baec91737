"""Gates in files of versioned JSON: data, never code, and audited before anything is built from it.

The checksum finds damage and careless edits; it is no signature. Whoever can write the file can change the promise, so
keep artifacts where you keep models, or sign them with a key.
"""

from __future__ import annotations

import os

from metacal.errors import ArtifactError
from metacal.gate import Gate
from metacal.io.artifact.document import Content, content_of, document_of
from metacal.io.artifact.probe import same_answers
from metacal.io.artifact.signature import Key, KeySource, read_key
from metacal.io.artifact.wrapping import MAX_BYTES, Wrapping, read_file, text_of, unwrapped


def load_gate(path: str | os.PathLike[str], *, key: KeySource | None = None, max_bytes: int | None = None) -> Gate:
    """Read what `save` wrote as the gate itself, a frozen value, without scikit-learn.

    Checked and refused as by `load`. A file of a calibrator gives a gate that promises nothing and accepts every row.

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
    """All that a file holds, and what it says about itself: its format, writer, checksum and signature."""
    verifying = None if key is None else read_key(key)
    raw = read_file(path, max_bytes)
    try:
        return loaded(raw, verifying, max_bytes)
    except ArtifactError as error:
        raise ArtifactError(f"{os.fspath(path)}: {error}") from error.__cause__


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
        again = loaded(raw, signing, max_bytes)[0].gate
    except ArtifactError as error:
        raise ArtifactError(f"this cannot be saved, for it could not be loaded: {error}") from error
    if not same_answers(content.gate, again):
        raise ArtifactError("this cannot be saved: what is read back predicts otherwise; please report it.")
    return text


def loaded(raw: bytes, key: Key | None = None, max_bytes: int | None = None) -> tuple[Content, Wrapping]:
    """What the bytes of a file hold, and what they say about themselves."""
    document, wrapping = unwrapped(raw, max_bytes=max_bytes, key=key)
    try:
        return content_of(document), wrapping
    except (RecursionError, MemoryError) as error:
        raise ArtifactError("it is nested too deeply or too large.") from error
