"""Class names in the metadata of an Arrow schema.

Parquet and Arrow files have no place for class names, so metacal stores them as JSON in the
schema's metadata. Neither format has a checksum of its metadata, so metacal stores a checksum of
the class names as well.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from metacal.errors import FileContentError
from metacal.io.request import ClassNames
from metacal.rows.labels import as_class_names

# Metadata key of the class names: a JSON list in column order.
_CLASSES_KEY = b"metacal.classes"

# Metadata key of the CRC-32 checksum of the JSON list of class names.
_CHECKSUM_KEY = b"metacal.classes.crc32"


def build_classes_metadata(class_names: Sequence[str | int]) -> dict[bytes, bytes]:
    """Return the schema metadata that store class names and their checksum.

    Examples
    --------
    >>> build_classes_metadata(["cat", "dog"])
    {b'metacal.classes': b'["cat", "dog"]', b'metacal.classes.crc32': b'2c9e6562'}
    """
    classes_json = json.dumps(list(class_names)).encode()
    return {_CLASSES_KEY: classes_json, _CHECKSUM_KEY: _compute_checksum(classes_json)}


def read_class_names(schema: Any, path: str) -> ClassNames | None:
    """Return the class names stored in the metadata of a schema.

    Parameters
    ----------
    schema : pyarrow.Schema
        Schema of a file or record batch.

    path : str
        File name used in the error message.

    Returns
    -------
    tuple of str or int, or None
        None if the metadata contain no class names.

    Raises
    ------
    InputError
        If the class names do not match the stored checksum.
    """
    metadata = schema.metadata or {}
    classes_json = metadata.get(_CLASSES_KEY, b"null")
    stored_checksum = metadata.get(_CHECKSUM_KEY)
    if stored_checksum is not None and stored_checksum != _compute_checksum(classes_json):
        raise FileContentError(
            f"{path}: the file is damaged, because the class names in its metadata do not match"
            " their checksum. Copy the file again, or write it again."
        )
    try:
        names = json.loads(classes_json)
        if not isinstance(names, list) or not names:
            return None
        return as_class_names(names)
    except (ValueError, RecursionError):
        return None


def _compute_checksum(content: bytes) -> bytes:
    """Return the CRC-32 of some bytes as eight hexadecimal digits."""
    return b"%08x" % zlib.crc32(content)
