"""Save and load fitted estimators as versioned JSON: data, never code, and audited before anything is built from it.

The checksum finds damage and careless edits; it is no signature. Whoever can write the file can change the promise, so
keep artifacts where you keep models.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from typing import Any

from metacal.errors import ArtifactError
from metacal.io.describing import Document
from metacal.io.document import document_of, estimator_from
from metacal.io.encoding import shown
from metacal.io.opening import kind_of, plain_read_errors
from metacal.io.wrapping import FORMAT, VERSION, checksum, text_of, write_text

#: Larger files are refused unread unless the caller raises the limit. Reading takes four times the file's size, so
#: this stays under 200 MB; a full matrix for 2,000 classes is 43 MB, everything else is far smaller.
MAX_BYTES = 45 * 2**20
#: One character beyond ASCII makes Python hold a string in four bytes per character; large files are all numbers.
_MAX_BYTES_OF_TEXT = 16 * 2**20
#: JSON of many tiny values takes 50 times its size in memory: more commas and brackets than this are refused unread.
_MAX_VALUES = 400_000


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted MetaCal or calibrator as JSON; `load` gives it back with bit-identical predictions.

    The file is written whole or not at all. What cannot be saved (a score that is a function, somebody else's estimator
    as base calibrator) raises ArtifactError before the file is touched.

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
    write_text(dumps(estimator), path)


def load(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> Any:
    """Read what `save` wrote: a fitted estimator, ready to predict.

    A file that is missing or not readable raises InputError; one that is damaged, was changed, or was written by a
    newer metacal raises ArtifactError. Nothing in the file is ever run. Files beyond 45 MB (a full matrix for more than
    2,000 classes) are refused unless `max_bytes` allows them, so that nobody else's file can take much memory.

    Examples
    --------
    >>> load("cal.json")
    Traceback (most recent call last):
    metacal.errors.InputError: cal.json: there is no such file; check the name and the folder.
    """
    name = os.fspath(path)
    with plain_read_errors(name), open(name, "rb") as file:
        # By the megabyte: file.read(n) takes n bytes of memory however short the file is.
        megabytes = iter(lambda: file.read(1 << 20), b"")
        raw = b"".join(itertools.islice(megabytes, ((max_bytes or MAX_BYTES) >> 20) + 2))
    try:
        return loads(raw, max_bytes=max_bytes)
    except ArtifactError as error:
        raise ArtifactError(f"{name}: {error}") from error.__cause__


def dumps(estimator: Any) -> str:
    """What `save` writes, as text.

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
    estimator_from(document)  # what is written can be read
    return text_of(document)


def loads(raw: bytes, *, max_bytes: int | None = None) -> Any:
    """Build the estimator from the bytes of a file.

    Examples
    --------
    >>> loads(b'{"format": "metacal", "version": 2}')
    Traceback (most recent call last):
    metacal.errors.ArtifactError: written by a newer metacal (format 2); update metacal.
    """
    document = _checked(parsed(raw, max_bytes or MAX_BYTES))
    try:
        return estimator_from(document)
    except (RecursionError, MemoryError) as error:
        raise ArtifactError("it is nested too deeply or too large.") from error


def header(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> dict[str, Any]:
    """What a file says about itself, without building anything: its format, its writer, its checksum."""
    with open(os.fspath(path), "rb") as file:
        data = parsed(file.read((max_bytes or MAX_BYTES) + 1), max_bytes or MAX_BYTES)
    _checked(data)
    return {
        "kind": data.get("kind"),
        "format_version": data["version"],
        "metacal_version": data["metacal_version"],
        "checksum": data["checksum"],
    }


def parsed(raw: bytes, max_bytes: int) -> Any:
    """The JSON of a file, or ArtifactError; no other exception, and no more memory than a few times its size."""
    wide = len(raw) > _MAX_BYTES_OF_TEXT and (b"\\" in raw or not raw.isascii())
    if len(raw) > max_bytes or (wide and max_bytes <= MAX_BYTES):
        limit = _MAX_BYTES_OF_TEXT if wide else max_bytes
        raise ArtifactError(
            f"it is larger than {limit / 2**20:.0f} MB{' and not plain ASCII' if wide else ''}; if you trust where it "
            "comes from, raise the limit: mc.load(path, max_bytes=...)."
        )
    if not raw.strip():
        raise ArtifactError("the file is empty; save it again.")
    kind = kind_of(raw[:8])
    if kind is not None:
        never = ", which can run any code when read, so it never is" if kind == "a pickle" else ""
        raise ArtifactError(f"this is {kind}, not a metacal file{never}; metacal.save writes JSON.")
    if sum(map(raw.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise ArtifactError("it holds too many values; no metacal file does.")
    try:
        return json.loads(
            raw.decode("utf-8-sig"),
            object_pairs_hook=_without_duplicates,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except ArtifactError:
        raise
    except UnicodeDecodeError:
        raise ArtifactError("this is not UTF-8 text, so no metacal file.") from None
    except RecursionError:
        raise ArtifactError("it is nested too deeply; no metacal file is.") from None
    except (ValueError, MemoryError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ArtifactError(f"this is not JSON, or it is damaged or cut short ({said}).") from None


def _checked(data: Any) -> Document:
    """Return the document without its wrapping, once format, version and checksum are right."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ArtifactError('this is JSON, but not a metacal file ("format" is not "metacal").')
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise ArtifactError(f"the format version must be a whole number from 1, not {shown(version)}.")
    if version > VERSION:
        raise ArtifactError(f"written by a newer metacal (format {version}); update metacal.")
    if type(data.get("metacal_version")) is not str:
        raise ArtifactError("metacal_version is missing or not text.")
    try:
        wanted = checksum(data)
    except (RecursionError, ValueError):
        raise ArtifactError("it is nested too deeply or holds a number out of range.") from None
    if data.get("checksum") != wanted:
        raise ArtifactError("the checksum does not match: the file is damaged or was edited; save it again.")
    wrapping = ("format", "version", "metacal_version", "checksum")
    return {name: value for name, value in data.items() if name not in wrapping}


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ArtifactError(f"the entry {shown(twice)} stands there twice.")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ArtifactError(f"the number {text[:40]} is out of range.")
    return value


def _no_constant(text: str) -> float:
    raise ArtifactError(f"{text} is not JSON.")
