"""The stamp of a result: a first key `made`, with the command and the fingerprint of its code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.experiments.results_file import write_whole

_STAMP = re.compile(r'\{\s*"made": \{.*?\}\s*\},?\n? ?', re.DOTALL)


def stamp_of(path: Path) -> dict[str, Any] | None:
    """What is stamped on a result; None where nothing is."""
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return found.get("made") if isinstance(found, dict) else None


def stamp(path: Path, command: str, fingerprints: Mapping[str, str], same_as: str = "") -> None:
    """Stamp a result, or stamp it anew; the rest of the file stays as it is, letter by letter.

    `same_as` is the commit that it was measured with, where that and the present code were
    compared.
    """
    text = path.read_text(encoding="utf-8")
    body = (
        _STAMP.sub("", text, count=1)
        if text.startswith("{") and '"made"' in text[:40]
        else text[1:].lstrip()
    )
    compared = {"same as": same_as} if same_as else {}
    made = json.dumps({"by": command, **compared, "code": dict(fingerprints)})
    write_whole(path, f'{{\n "made": {made},\n {body}')
    json.loads(path.read_text(encoding="utf-8"))
