"""Text that comes from files made harmless for a terminal.

Names and notes come from whoever made the file. Written as they are, an escape sequence among them could move the
cursor, rewrite what stands above, set the title or answer as if typed; a right-to-left mark could turn a line around.
"""

from __future__ import annotations

import re
from typing import IO

#: All but printable ASCII, tab and line feed is looked at more closely.
_ODD = re.compile(r"[^\n\t\x20-\x7e]")
#: Unicode's controls, format characters (bidirectional marks among them), halves of pairs, separators of lines and
#: paragraphs, private and unassigned ones. The two joiners that scripts and emoji need stay.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"))
_JOINERS = "\u200c\u200d"


def visible(text: str, *, lines: bool = True) -> str:
    r"""Return the text with every character that a terminal could obey written out, as Python would.

    Parameters
    ----------
    text : str
    lines : bool
        Whether line feeds and tabs stay; False for a name, which should not look like a line of its own.

    Examples
    --------
    >>> print(visible("cat\x1b[2Jdog, Füchse"))
    cat\x1b[2Jdog, Füchse
    >>> print(visible("a\nb", lines=False))
    a\nb
    """
    if not lines and ("\n" in text or "\t" in text):
        text = text.replace("\n", "\\n").replace("\t", "\\t")
    return _ODD.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    import unicodedata

    character = match.group()
    if unicodedata.category(character) not in _UNSEEN or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def on_a_terminal(stream: object) -> bool:
    """Whether what is written to this stream is shown as it comes; what stands in for a stream may not know.

    Examples
    --------
    >>> import io
    >>> on_a_terminal(io.StringIO())
    False
    """
    return bool(getattr(stream, "isatty", bool)())


class VisibleText:
    """A text stream to a terminal through which nothing passes that it could obey."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text, made visible."""
        # A csv ends its lines itself; the writer here ends them with a line feed.
        return self.stream.write(visible(text))

    def flush(self) -> None:
        """Flush what lies below."""
        self.stream.flush()
