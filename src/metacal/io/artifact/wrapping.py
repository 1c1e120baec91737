"""Text of a saved file: format, version, checksum and signature around a document.

The *document* is the JSON object that describes a gate, see `metacal.io.artifact.document`. The
checksum detects damage and careless edits. The signature, which is optional, detects changes by
anyone who does not have the key.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from dataclasses import dataclass
from typing import Any

from metacal import __version__
from metacal.errors import ArtifactError, FileWriteError, ForeignFileError
from metacal.io.artifact.messages import describe_json, object_without_duplicates, summarize_error
from metacal.io.artifact.signature import Key, parse_signature, verify_signature
from metacal.io.disk import input_error_if_write_fails
from metacal.io.opening import N_MAGIC_BYTES, detect_file_kind, input_error_if_read_fails
from metacal.io.writing import open_atomic_path

#: Value of the entry "format" in every file.
FORMAT = "metacal"

#: Version of the file format.
VERSION = 3

_MEGABYTE = 1 << 20

#: Maximum size of a file in bytes, unless the caller raises it.
#: A full matrix for 2,000 classes has 43 MB. All other maps are far smaller.
#: Reading takes four times the size of the file.
MAX_BYTES = 45 * _MEGABYTE

# Maximum size of a file that is not plain ASCII, because Python may store four bytes per character.
# Only files of numbers, which are plain ASCII, may be larger.
_MAX_NON_ASCII_BYTES = 16 * _MEGABYTE

# Maximum number of commas and opening brackets in a file.
# JSON with many small values takes 50 times its size in memory.
_MAX_VALUES = 400_000

# Maximum length of the entry "metacal_version".
_MAX_VERSION_LENGTH = 100

# Entries that are computed from the others and therefore not part of the signed content.
_COMPUTED_ENTRIES = ("checksum", "signature")

# Entries of a file that describe the file and are not part of its document.
_WRAPPING_ENTRIES = ("format", "version", "metacal_version", *_COMPUTED_ENTRIES)


@dataclass(frozen=True)
class Wrapping:
    """Information in a file about the file itself.

    Attributes
    ----------
    format_version : int
        Version of the file format.

    metacal_version : str
        Version of metacal that wrote the file.

    checksum : str
        SHA-256 of the content.

    signature : str or None
        Algorithm of the signature. None if the file is not signed.

    verified : bool
        Whether the signature was verified with a key.
    """

    format_version: int
    metacal_version: str
    checksum: str
    signature: str | None = None
    verified: bool = False


def build_file_text(document: dict[str, Any], key: Key | None = None) -> str:
    """Build the text of a file: a document with its version, checksum and signature.

    Parameters
    ----------
    document : dict
        Document to store.

    key : Key or None, default=None
        Key to sign with.

    Returns
    -------
    str
    """
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "metacal_version": __version__,
        **document,
    }
    entries = {**content, "checksum": checksum(content)}
    if key is not None:
        signature = key.compute(canonical_json(content))
        entries["signature"] = {"algorithm": key.algorithm, "value": signature}
    return _format_json(entries) + "\n"


def parse_file(
    content: bytes, *, max_bytes: int | None = None, key: Key | None = None
) -> tuple[dict[str, Any], Wrapping]:
    """Parse a file and check its format, version, checksum and signature.

    Parameters
    ----------
    content : bytes
        Content of the file.

    max_bytes : int or None, default=None
        Largest size of the file. By default `MAX_BYTES`.

    key : Key or None, default=None
        Key to verify the signature with. If None, the signature is not verified.

    Returns
    -------
    document : dict

    wrapping : Wrapping

    Raises
    ------
    ArtifactError
        If a check fails.

    Examples
    --------
    >>> document, wrapping = parse_file(build_file_text({"kind": "MetaCal"}).encode())
    >>> document, wrapping.format_version, wrapping.signature
    ({'kind': 'MetaCal'}, 3, None)
    """
    entries = parse_bytes(content, max_bytes or MAX_BYTES)
    if not isinstance(entries, dict) or entries.get("format") != FORMAT:
        raise ForeignFileError(
            'the file is JSON but not a metacal file, because "format" is not "metacal".'
            " Pass a file that metacal saved."
        )
    format_version = _check_format_version(entries.get("version"))
    metacal_version = _check_metacal_version(entries.get("metacal_version"))
    try:
        signed_content = canonical_json(entries)
    except (RecursionError, ValueError):
        raise ArtifactError(
            "the file is nested too deeply, or holds a number that is out of range."
        ) from None
    stored_checksum = entries.get("checksum")
    if stored_checksum != _sha256(signed_content):
        raise ArtifactError(
            "the checksum does not match, because the file is damaged or was edited. Save it again."
        )
    signature = None
    if "signature" in entries:
        signature = parse_signature(entries["signature"])
    if key is not None:
        verify_signature(signature, signed_content, key)

    document = {name: value for name, value in entries.items() if name not in _WRAPPING_ENTRIES}
    wrapping = Wrapping(
        format_version=format_version,
        metacal_version=metacal_version,
        checksum=stored_checksum,
        signature=None if signature is None else signature.algorithm,
        verified=key is not None,
    )
    return document, wrapping


def _check_format_version(version: Any) -> int:
    """Return the format version. Raise ArtifactError if it is not supported."""
    if type(version) is not int or version < 1:
        raise ArtifactError(
            f"the format version must be a positive integer, but it is {describe_json(version)}."
        )
    if version < VERSION:
        raise ForeignFileError(
            "the file was written before the first release of metacal. Fit the gate again."
        )
    if version > VERSION:
        raise ForeignFileError(
            f"a newer version of metacal wrote the file (format {describe_json(version)}). Update"
            " metacal."
        )
    return version


def _check_metacal_version(version: Any) -> str:
    """Validate the version of metacal in a file, and return it."""
    if type(version) is not str or len(version) > _MAX_VERSION_LENGTH or not version.isprintable():
        raise ArtifactError(
            "metacal_version must be a string, but it is missing or has another type."
        )
    return version


def read_file(path: str | os.PathLike[str], max_bytes: int | None = None) -> bytes:
    """Read a file, up to about `max_bytes` bytes.

    Parameters
    ----------
    path : str or path
        File to read.

    max_bytes : int or None, default=None
        Largest allowed size. By default `MAX_BYTES`. If the file is larger, the result is larger
        too, so that the caller can reject it.

    Returns
    -------
    bytes
    """
    file_name = os.fspath(path)
    n_blocks = (max_bytes or MAX_BYTES) // _MEGABYTE + 2
    with input_error_if_read_fails(file_name), open(file_name, "rb") as file:
        # A single file.read(n) would allocate n bytes, however short the file is.
        blocks = iter(lambda: file.read(_MEGABYTE), b"")
        return b"".join(itertools.islice(blocks, n_blocks))


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write a file atomically, and compare the written bytes with the text.

    Parameters
    ----------
    text : str
        Text to write.

    path : str or path
        File to create or replace.

    Raises
    ------
    InputError
        If the file cannot be written, or does not read back.
    """
    content = text.encode("utf-8")
    with open_atomic_path(path) as temporary_path, input_error_if_write_fails(path):
        temporary_path.write_bytes(content)
        if temporary_path.is_file() and temporary_path.read_bytes() != content:
            raise FileWriteError(
                f"cannot write {os.fspath(path)}: the file on disk differs from the text that was"
                " written. Check the disk."
            )


def canonical_json(document: dict[str, Any]) -> bytes:
    """Return the canonical JSON of all entries except the checksum and the signature.

    Canonical JSON has sorted keys, no spaces, and only ASCII characters.
    """
    entries = {name: value for name, value in document.items() if name not in _COMPUTED_ENTRIES}
    text = json.dumps(
        entries, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def checksum(document: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON."""
    return _sha256(canonical_json(document))


def _sha256(content: bytes) -> str:
    """Return the SHA-256 checksum of some bytes, with the prefix "sha256:"."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def parse_bytes(content: bytes, max_bytes: int) -> Any:
    """Parse the JSON of a file with bounded memory.

    Parameters
    ----------
    content : bytes
        Content of the file.

    max_bytes : int
        Largest size of the file.

    Returns
    -------
    JSON value

    Raises
    ------
    ArtifactError
        If the file is too large or is not valid JSON. No other exception is raised.
    """
    _check_size(content, max_bytes)
    if not content.strip():
        raise ArtifactError("the file is empty. Save it again.")
    file_kind = detect_file_kind(content[:N_MAGIC_BYTES])
    if file_kind is not None:
        reason = ""
        if file_kind == "a pickle":
            reason = ", and metacal does not read such files because they can run any code"
        raise ForeignFileError(
            f"the file is {file_kind}, not a metacal file{reason}. Pass a file that metacal.save"
            " wrote."
        )
    n_values = content.count(b",") + content.count(b"[") + content.count(b"{")
    if n_values > _MAX_VALUES:
        raise ArtifactError("the file holds more values than a metacal file can have.")
    return _parse_json(content)


def _check_size(content: bytes, max_bytes: int) -> None:
    """Raise ArtifactError if a file is too large."""
    n_bytes = len(content)
    is_large = n_bytes > _MAX_NON_ASCII_BYTES
    is_large_non_ascii = is_large and not _is_plain_ascii(content)
    exceeded_limit = max_bytes
    remark = ""
    if is_large_non_ascii:
        exceeded_limit = _MAX_NON_ASCII_BYTES
        remark = " and not plain ASCII"
    # A caller who raises the limit also accepts large files that are not plain ASCII.
    has_raised_limit = max_bytes > MAX_BYTES
    if n_bytes > max_bytes or (is_large_non_ascii and not has_raised_limit):
        raise ForeignFileError(
            f"the file is larger than {exceeded_limit / _MEGABYTE:.0f} MB{remark}. If you"
            " trust its source, raise the limit: mc.load(path, max_bytes=...)."
        )


def _is_plain_ascii(content: bytes) -> bool:
    """Check whether JSON text has only ASCII characters, also after unescaping."""
    return b"\\" not in content and content.isascii()


def _parse_json(content: bytes) -> Any:
    """Parse strict JSON, and convert all errors to ArtifactError."""
    try:
        return json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=object_without_duplicates,
            parse_float=_parse_finite_float,
            parse_constant=_reject_constant,
        )
    except ArtifactError:
        raise
    except KeyError as error:
        raise ArtifactError(
            f"the entry {describe_json(error.args[0])} occurs twice in an object."
        ) from None
    except UnicodeDecodeError:
        raise ForeignFileError(
            "the file is not UTF-8 text, so it is not a metacal file. Pass a file that"
            " metacal saved."
        ) from None
    except RecursionError:
        raise ArtifactError("the file is nested more deeply than a metacal file can be.") from None
    except (ValueError, MemoryError) as error:
        raise ForeignFileError(
            f"the file is not JSON, or it is damaged or incomplete ({summarize_error(error)}). Pass"
            " a file that metacal saved."
        ) from None


def _parse_finite_float(text: str) -> float:
    """Parse a float. Raise ArtifactError if it is too large."""
    number = float(text)
    if not math.isfinite(number):
        raise ArtifactError(f"the number {text[:40]} is out of range.")
    return number


def _reject_constant(text: str) -> float:
    """Raise ArtifactError for NaN and Infinity, which are not JSON."""
    raise ArtifactError(f"{text} is not valid JSON.")


def _format_json(value: Any, indent: str = "") -> str:
    """Format JSON with one entry per line.

    A list is on one line, unless it contains objects with nested objects.
    """
    inner_indent = indent + "  "
    if isinstance(value, dict) and value:
        lines = []
        for name, entry in value.items():
            entry_text = _format_json(entry, inner_indent)
            lines.append(f"{inner_indent}{json.dumps(name)}: {entry_text}")
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(map(_has_nested_object, value)):
        lines = [f"{inner_indent}{_format_json(item, inner_indent)}" for item in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def _has_nested_object(value: Any) -> bool:
    """Check whether a JSON value is an object that contains another object."""
    return isinstance(value, dict) and any(type(entry) is dict for entry in value.values())
