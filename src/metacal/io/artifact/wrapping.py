"""A document as the text of a file, and back: format, version, checksum, signature.

The checksum finds damage and careless edits; a signature, which is optional, finds whoever has not
the key.
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
from metacal.errors import ArtifactError, InputError
from metacal.io.artifact.messages import brief, shown, without_duplicates
from metacal.io.artifact.signature import Key, checked_signature, verify
from metacal.io.disk import plain_write_errors
from metacal.io.opening import kind_of, plain_read_errors
from metacal.io.writing import atomic_path

FORMAT = "metacal"
VERSION = 3

#: Larger files are refused unread unless the caller raises the limit. Reading takes four times the
#: file's size, so this stays under 200 MB; a full matrix for 2,000 classes is 43 MB, everything
#: else is far smaller.
MAX_BYTES = 45 * 2**20
#: One character beyond ASCII makes Python hold a string in four bytes per character; large files
#: are all numbers.
_MAX_BYTES_OF_TEXT = 16 * 2**20
#: JSON of many tiny values takes 50 times its size in memory: more commas and brackets than this
#: are refused unread.
_MAX_VALUES = 400_000
#: Longer than any version is.
_MAX_VERSION = 100

#: What the signature does not cover, being made from the rest.
_MADE_FROM_THE_REST = ("checksum", "signature")


@dataclass(frozen=True)
class Wrapping:
    """What a file says about itself; `signature` names the algorithm, `verified` whether a key has
    checked it.
    """

    format_version: int
    metacal_version: str
    checksum: str
    signature: str | None = None
    verified: bool = False


def text_of(document: dict[str, Any], key: Key | None = None) -> str:
    """What the file holds, signed if there is a key."""
    whole = {"format": FORMAT, "version": VERSION, "metacal_version": __version__, **document}
    signature = (
        {}
        if key is None
        else {"signature": {"algorithm": key.algorithm, "value": key.make(canonical(whole))}}
    )
    return _pretty({**whole, "checksum": checksum(whole), **signature}) + "\n"


def unwrapped(
    raw: bytes, *, max_bytes: int | None = None, key: Key | None = None
) -> tuple[dict[str, Any], Wrapping]:
    """The document in the bytes of a file, once format, version, checksum and, with a key,
    signature are right.

    Examples
    --------
    >>> document, wrapping = unwrapped(text_of({"kind": "MetaCal"}).encode())
    >>> document, wrapping.format_version, wrapping.signature
    ({'kind': 'MetaCal'}, 3, None)
    """
    data = parsed(raw, max_bytes or MAX_BYTES)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ArtifactError('this is JSON, but not a metacal file ("format" is not "metacal").')
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise ArtifactError(
            f"the format version must be a whole number from 1, not {shown(version)}."
        )
    if version < VERSION:
        raise ArtifactError("it was written by a metacal before the first release; fit it again.")
    if version > VERSION:
        raise ArtifactError(
            f"written by a newer metacal (format {shown(version)}); update metacal."
        )
    writer = data.get("metacal_version")
    if type(writer) is not str or len(writer) > _MAX_VERSION or not writer.isprintable():
        raise ArtifactError("metacal_version is missing or not text.")
    try:
        content = canonical(data)
    except (RecursionError, ValueError):
        raise ArtifactError("it is nested too deeply or holds a number out of range.") from None
    sum_found = data.get("checksum")
    if sum_found != _sum_of(content):
        raise ArtifactError(
            "the checksum does not match: the file is damaged or was edited; save it again."
        )
    signature = checked_signature(data["signature"]) if "signature" in data else None
    if key is not None:
        verify(signature, content, key)
    wrapping = ("format", "version", "metacal_version", *_MADE_FROM_THE_REST)
    document = {name: value for name, value in data.items() if name not in wrapping}
    algorithm = None if signature is None else signature[0]
    return document, Wrapping(version, writer, sum_found, algorithm, verified=key is not None)


def read_file(path: str | os.PathLike[str], max_bytes: int | None = None) -> bytes:
    """The bytes of a file, no more than can be needed to see that it is too large."""
    name = os.fspath(path)
    with plain_read_errors(name), open(name, "rb") as file:
        # By the megabyte: file.read(n) takes n bytes of memory however short the file is.
        megabytes = iter(lambda: file.read(1 << 20), b"")
        return b"".join(itertools.islice(megabytes, ((max_bytes or MAX_BYTES) >> 20) + 2))


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write the file whole or not at all; what lies on the disk is read once more before it takes
    its place.
    """
    content = text.encode("utf-8")
    with atomic_path(path) as part, plain_write_errors(path):
        part.write_bytes(content)
        if part.is_file() and part.read_bytes() != content:
            raise InputError(
                f"cannot write {os.fspath(path)}: what was written does not read back; check the"
                " disk."
            )


def canonical(document: dict[str, Any]) -> bytes:
    """The canonical JSON (sorted keys, no spaces, ASCII) of all but checksum and signature: what
    both are made from.
    """
    rest = {name: value for name, value in document.items() if name not in _MADE_FROM_THE_REST}
    text = json.dumps(
        rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def checksum(document: dict[str, Any]) -> str:
    """SHA-256 over the canonical JSON of everything but the checksum itself and the signature."""
    return _sum_of(canonical(document))


def _sum_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def parsed(raw: bytes, max_bytes: int) -> Any:
    """The JSON of a file, or ArtifactError; no other exception, and no more memory than a few times
    its size.
    """
    wide = len(raw) > _MAX_BYTES_OF_TEXT and (b"\\" in raw or not raw.isascii())
    if len(raw) > max_bytes or (wide and max_bytes <= MAX_BYTES):
        limit = _MAX_BYTES_OF_TEXT if wide else max_bytes
        raise ArtifactError(
            f"it is larger than {limit / 2**20:.0f} MB{' and not plain ASCII' if wide else ''}; if"
            " you trust where it comes from, raise the limit: mc.load(path, max_bytes=...)."
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
            object_pairs_hook=without_duplicates,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except ArtifactError:
        raise
    except KeyError as error:
        raise ArtifactError(f"the entry {shown(error.args[0])} stands there twice.") from None
    except UnicodeDecodeError:
        raise ArtifactError("this is not UTF-8 text, so no metacal file.") from None
    except RecursionError:
        raise ArtifactError("it is nested too deeply; no metacal file is.") from None
    except (ValueError, MemoryError) as error:
        raise ArtifactError(
            f"this is not JSON, or it is damaged or cut short ({brief(error)})."
        ) from None


def _pretty(value: Any, indent: str = "") -> str:
    """JSON with an entry per line, but lists on one line, unless they hold objects inside
    objects.
    """
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        lines = [
            f"{deeper}{json.dumps(name)}: {_pretty(item, deeper)}" for name, item in value.items()
        ]
    elif isinstance(value, list) and any(
        dict in map(type, item.values()) for item in value if isinstance(item, dict)
    ):
        lines = [f"{deeper}{_pretty(item, deeper)}" for item in value]
    else:
        return json.dumps(value, allow_nan=False)
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(lines) + f"\n{indent}{last}"


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ArtifactError(f"the number {text[:40]} is out of range.")
    return value


def _no_constant(text: str) -> float:
    raise ArtifactError(f"{text} is not JSON.")
