"""A document as the text of a file: format, version, checksum. `artifact` checks them on the way back."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from metacal import __version__
from metacal.io.writing import atomic_path, plain_write_errors

FORMAT = "metacal"
VERSION = 1


def text_of(document: dict[str, Any]) -> str:
    """What the file holds.

    Examples
    --------
    >>> print(text_of({"kind": "MetaCal"}).splitlines()[1])
      "format": "metacal",
    """
    whole = {"format": FORMAT, "version": VERSION, "metacal_version": __version__, **document}
    return _pretty({**whole, "checksum": checksum(whole)}) + "\n"


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write the file whole or not at all."""
    with (
        atomic_path(path) as part,
        plain_write_errors(path),
        part.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.write(text)


def checksum(document: dict[str, Any]) -> str:
    """SHA-256 over the canonical JSON (sorted keys, no spaces, ASCII) of everything but the checksum itself.

    Examples
    --------
    >>> checksum({"a": 1, "checksum": "?"}) == checksum({"a": 1})
    True
    """
    rest = {name: value for name, value in document.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def _pretty(value: Any, indent: str = "") -> str:
    """JSON with an entry per line, but lists on one line."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    deeper = indent + "  "
    lines = (f"{deeper}{json.dumps(name)}: {_pretty(item, deeper)}" for name, item in value.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
