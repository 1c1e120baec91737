r"""Docstrings here are plain text with backticks, written for a terminal; this makes
reStructuredText of them.

Outside backticks nothing is a mark but *one word* or a few between stars: what rST would read as a
substitution (|x|), a reference (name_) or the start of emphasis (a lone star) is escaped. `name`
stays, and becomes a link where there is such a name; `a > b` becomes code. Examples and literal
blocks are left alone.

>>> as_rst("|F̂1 - β| of `map_` and threshold_, K * K, *not* `a > b`")
'\\|F̂1 - β\\| of `map_` and threshold\\_, K \\* K, *not* ``a > b``'
"""

from __future__ import annotations

import re

_PART = re.compile(r"(``.+?``|`[^`]+`)")
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_EMPHASIS = re.compile(r"(?<![\w*\\])(\*\*?)(?=[^\s*])([^*]*[^\s*])\1(?![\w*])|(?<!\\)\*")
_EXAMPLE = re.compile(r"\s*(>>>|\.\.\. |\.\.\.$)")


def as_rst(line: str) -> str:
    """One line of prose."""
    parts = _PART.split(line)
    for k, part in enumerate(parts):
        if k % 2 == 0:
            part = re.sub(r"(?<!\\)\|", r"\\|", part)
            part = re.sub(r"(?<=\w)_(?![\w])", r"\\_", part)
            parts[k] = _EMPHASIS.sub(lambda found: found[0] if found[1] else r"\*", part)
            continue
        if not part.startswith("``") and not _NAME.fullmatch(part.strip("`")):
            part = f"`{part}`"
        before, after = parts[k - 1][-1:], parts[k + 1][:1]
        parts[k] = (r"\ " if before.isalnum() else "") + part + (r"\ " if after.isalnum() else "")
    return "".join(parts)


def lines_as_rst(lines: list[str]) -> None:
    """A whole docstring, in place: all but examples, what they print, and literal blocks."""
    example = False
    for k, line in enumerate(lines):
        example = bool(line.strip()) and (example or bool(_EXAMPLE.match(line)))
        if not example:
            lines[k] = as_rst(line)
