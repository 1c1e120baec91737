"""How what is found shows itself: a table in a notebook, a frame for whoever goes on computing with
it, plain text.

The HTML sets no colour, so that it is as light or dark as the notebook around it; it has captions
and header cells that a screen reader announces, no script and no id, and every text in it is
escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import floor
from typing import IO, Any

from metacal.errors import needs_extra

_LEFT = "text-align:left;vertical-align:top"
#: What a float's last bits add to a decimal: 1e4 · 0.57 is 5699.999999999999.
_NOISE = 1e-6
_NUMBER = "text-align:right;font-variant-numeric:tabular-nums"


def facts(statement: str, lines: Iterable[tuple[str, str]]) -> str:
    """A sentence, and what it rests on: a (name, text) a line.

    Examples
    --------
    >>> print(facts("At most 5%.", [("gate", "accept if entropy <= 0.3")]).count("<tr>"))
    1
    """
    return f"<div><p><strong>{escape(statement)}</strong></p><table>{_body(lines, _LEFT)}</table></div>"


def named(lines: Iterable[str]) -> list[tuple[str, str]]:
    """The lines of a text for people, as certificates have them: each its name and what it says.

    Examples
    --------
    >>> named(["  rows         1,000, 889 accepted"])
    [('rows', '1,000, 889 accepted')]
    """
    return [(line[2:14].rstrip(), line[15:]) for line in lines]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table whose first column names the rows; the other columns are numbers.

    Examples
    --------
    >>> "<b>" in table(["metric", "all rows"], [["<b>", "0.1"]], caption="1 row")
    False
    """
    columns = "".join(
        f'<th scope="col" style="{_NUMBER if k else _LEFT}">{escape(name)}</th>'
        for k, name in enumerate(head)
    )
    said = (
        f'<caption style="caption-side:top;text-align:left">{escape(caption)}</caption>'
        if caption
        else ""
    )
    return f"<table>{said}<thead><tr>{columns}</tr></thead>{_body(rows, _NUMBER)}</table>"


def _body(rows: Iterable[Sequence[str]], style: str) -> str:
    """The rows of a table, each of whose first cell names it."""
    cells = (
        f'<th scope="row" style="{_LEFT}">{escape(first)}</th>'
        + "".join(f'<td style="{style}">{escape(cell)}</td>' for cell in rest)
        for first, *rest in rows
    )
    return f"<tbody>{''.join(f'<tr>{row}</tr>' for row in cells)}</tbody>"


def aligned(
    rows: Sequence[Sequence[str]], widest: Sequence[Sequence[str]] | None = None
) -> list[str]:
    """Lines of text with columns of equal width, that of the longest cell, of some of the rows
    where these are given.

    Examples
    --------
    >>> aligned([("a", "bcd"), ("ef", "g")])
    ['a   bcd', 'ef  g']
    """
    widths = [max(map(len, column)) for column in zip(*(rows if widest is None else widest))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows
    ]


def notes(*texts: str) -> str:
    """Sentences below a table."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def frame(
    records: Sequence[Mapping[str, Any]],
    index: Sequence[Any] | None = None,
    names: Sequence[str] = (),
) -> Any:
    """A `pandas.DataFrame` with a row for each record; an index of tuples has a level for each of
    the names.

    Examples
    --------
    >>> frame([{"low": 0.1, "high": 0.2}], index=["ece"], names=["metric"]).loc["ece", "high"].item()
    0.2
    """
    pandas = _pandas()
    found = pandas.DataFrame(list(records), index=None if index is None else pandas.Index(index))
    found.index.names = names or [None]
    return found


def columns(named: Mapping[str, Any]) -> Any:
    """A `pandas.DataFrame` of columns that are there already."""
    return _pandas().DataFrame(dict(named))


def outward(low: float, high: float, digits: int = 4) -> str:
    """An interval in words, its ends rounded outward: what is said never claims more than what was
    computed.

    Examples
    --------
    >>> outward(0.91482, 0.99381), outward(0.57, 0.58), outward(0.0, 0.0)
    ('[0.9148, 0.9939]', '[0.5700, 0.5800]', '[0.0000, 0.0000]')
    """
    # 0 - x: never -0.
    return f"[{_down(low, digits):.{digits}f}, {0.0 - _down(-high, digits):.{digits}f}]"


def _down(value: float, digits: int) -> float:
    units = value * 10.0**digits
    return (round(units) if abs(units - round(units)) < _NOISE else floor(units)) / 10.0**digits


def _pandas() -> Any:
    with needs_extra("to_frame()", "pandas"):
        import pandas
    return pandas


def listed(names: Iterable[object]) -> str:
    """Show at most eight names."""
    shown = list(names)
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return (", ".join(map(cut, shown[:8])) or "nothing") + more


def cut(value: object) -> str:
    """A value in at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# ── text that comes from files, made harmless for a terminal ──────────────────────────────────────

# Names and notes come from whoever made the file. Written as they are, an escape sequence among
# them could move the cursor, rewrite what stands above, set the title or answer as if typed; a
# right-to-left mark could turn a line around.

#: All but printable ASCII, tab and line feed is looked at more closely.
_ODD = re.compile(r"[^\n\t\x20-\x7e]")
#: Unicode's controls, format characters (bidirectional marks among them), halves of pairs,
#: separators of lines and paragraphs, private and unassigned ones. The two joiners that scripts and
#: emoji need stay.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"))
_JOINERS = "\u200c\u200d"


def visible(text: str, *, lines: bool = True) -> str:
    r"""Return the text with every character that a terminal could obey written out, as Python
    would.

    Parameters
    ----------
    text : str
    lines : bool
        Whether line feeds and tabs stay; False for a name, which should not look like a line of its
        own.

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
    """Whether what is written to this stream is shown as it comes; what stands in for a stream may
    not know.

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
