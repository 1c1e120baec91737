"""Presentation of results: HTML tables for notebooks, data frames, and text for terminals.

The HTML sets no colours, so it fits light and dark notebooks. It has captions and header cells for
screen readers, no script and no ids, and all text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import floor
from typing import IO, Any

from metacal.errors import needs_extra

_TEXT_STYLE = "text-align:left;vertical-align:top"
_NUMBER_STYLE = "text-align:right;font-variant-numeric:tabular-nums"
#: Tolerance for decimals that are not exact floats: 1e4 · 0.57 is 5699.999999999999.
_DECIMAL_TOLERANCE = 1e-6
#: Largest number of names in a list, and of characters of a value.
_MAX_NAMES = 8
_MAX_VALUE_LENGTH = 80
# Columns of the names and of the texts in the lines of a certificate.
_NAME_COLUMNS = slice(2, 14)
_TEXT_COLUMNS = slice(15, None)


def make_facts_html(statement: str, lines: Iterable[tuple[str, str]]) -> str:
    """Return HTML with a sentence and a table of (name, text) lines.

    Examples
    --------
    >>> print(make_facts_html("At most 5%.", [("gate", "accept if entropy <= 0.3")]).count("<tr>"))
    1
    """
    heading = f"<p><strong>{escape(statement)}</strong></p>"
    return f"<div>{heading}<table>{_table_body(lines, _TEXT_STYLE)}</table></div>"


def split_named_lines(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Split the lines of a text such as a certificate into (name, text).

    Examples
    --------
    >>> split_named_lines(["  rows         1,000, 889 accepted"])
    [('rows', '1,000, 889 accepted')]
    """
    return [(line[_NAME_COLUMNS].rstrip(), line[_TEXT_COLUMNS]) for line in lines]


def make_table_html(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return an HTML table whose first column has names, and whose other columns have numbers.

    Examples
    --------
    >>> "<b>" in make_table_html(["metric", "all rows"], [["<b>", "0.1"]], caption="1 row")
    False
    """
    header_cells = []
    for index, name in enumerate(header):
        style = _NUMBER_STYLE if index else _TEXT_STYLE
        header_cells.append(f'<th scope="col" style="{style}">{escape(name)}</th>')
    caption_html = ""
    if caption:
        caption_style = "caption-side:top;text-align:left"
        caption_html = f'<caption style="{caption_style}">{escape(caption)}</caption>'
    header = f"<thead><tr>{''.join(header_cells)}</tr></thead>"
    return f"<table>{caption_html}{header}{_table_body(rows, _NUMBER_STYLE)}</table>"


def _table_body(rows: Iterable[Sequence[str]], style: str) -> str:
    """Return the body of an HTML table; the first cell of each row is its name."""
    html_rows = []
    for name, *values in rows:
        header_cell = f'<th scope="row" style="{_TEXT_STYLE}">{escape(name)}</th>'
        cells = [f'<td style="{style}">{escape(value)}</td>' for value in values]
        html_rows.append(f"<tr>{header_cell}{''.join(cells)}</tr>")
    return f"<tbody>{''.join(html_rows)}</tbody>"


def align_columns(
    rows: Sequence[Sequence[str]], width_rows: Sequence[Sequence[str]] | None = None
) -> list[str]:
    """Return lines of text with aligned columns.

    Parameters
    ----------
    rows : sequence of sequences of str
        Cells of the table.

    width_rows : sequence of sequences of str, default=None
        Rows that determine the widths of the columns. None stands for all rows.

    Returns
    -------
    list of str

    Examples
    --------
    >>> align_columns([("a", "bcd"), ("ef", "g")])
    ['a   bcd', 'ef  g']
    """
    measured_rows = rows if width_rows is None else width_rows
    widths = [max(map(len, column)) for column in zip(*measured_rows)]
    lines = []
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths)]
        lines.append("  ".join(cells).rstrip())
    return lines


def make_paragraphs_html(*texts: str) -> str:
    """Return texts as HTML paragraphs."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def make_frame(
    records: Sequence[Mapping[str, Any]],
    index: Sequence[Any] | None = None,
    index_names: Sequence[str] = (),
) -> Any:
    """Return a `pandas.DataFrame` with one row per record.

    Parameters
    ----------
    records : sequence of mappings
        Rows.

    index : sequence, default=None
        Index. Tuples give an index with several levels.

    index_names : sequence of str
        Names of the levels.

    Returns
    -------
    pandas.DataFrame

    Examples
    --------
    >>> record = {"low": 0.1, "high": 0.2}
    >>> make_frame([record], index=["ece"], index_names=["metric"]).loc["ece", "high"].item()
    0.2
    """
    pandas = _import_pandas()
    frame_index = None if index is None else pandas.Index(index)
    data_frame = pandas.DataFrame(list(records), index=frame_index)
    data_frame.index.names = index_names or [None]
    return data_frame


def make_column_frame(columns_by_name: Mapping[str, Any]) -> Any:
    """Return a `pandas.DataFrame` of columns."""
    return _import_pandas().DataFrame(dict(columns_by_name))


def format_interval(low: float, high: float, digits: int = 4) -> str:
    """Return an interval as text, with ends rounded outwards.

    Examples
    --------
    >>> format_interval(0.91482, 0.99381), format_interval(0.57, 0.58), format_interval(0.0, 0.0)
    ('[0.9148, 0.9939]', '[0.5700, 0.5800]', '[0.0000, 0.0000]')
    """
    lower_end = _round_down(low, digits)
    # Subtracting from 0.0 avoids -0.
    upper_end = 0.0 - _round_down(-high, digits)
    return f"[{lower_end:.{digits}f}, {upper_end:.{digits}f}]"


def _round_down(value: float, digits: int) -> float:
    """Round down to decimals, but keep a value that is a decimal apart from float error."""
    units = value * 10.0**digits
    is_decimal = abs(units - round(units)) < _DECIMAL_TOLERANCE
    return (round(units) if is_decimal else floor(units)) / 10.0**digits


def _import_pandas() -> Any:
    """Import pandas; raise an error that names the extra if it is missing."""
    with needs_extra("to_frame()", "pandas"):
        import pandas
    return pandas


def format_names(names: Iterable[object]) -> str:
    """Return at most eight names as text."""
    all_names = list(names)
    text = ", ".join(shorten_repr(name) for name in all_names[:_MAX_NAMES]) or "nothing"
    if len(all_names) > _MAX_NAMES:
        text += f" and {len(all_names) - _MAX_NAMES} more"
    return text


def shorten_repr(value: object) -> str:
    """Return the representation of a value, shortened to 80 characters."""
    text = repr(value)
    if len(text) <= _MAX_VALUE_LENGTH:
        return text
    return text[: _MAX_VALUE_LENGTH - 3] + "..."


# ── text from files, made harmless for a terminal ─────────────────────────────────────────────────

# Names and notes come from the author of a file. An escape sequence in them could move the cursor,
# overwrite earlier output, set the title or simulate input. A right-to-left mark could reverse a
# line.

#: All characters but printable ASCII, tab and line feed.
_UNUSUAL_CHARACTER = re.compile(r"[^\n\t\x20-\x7e]")
#: Unicode categories that are escaped: controls, format characters (including bidirectional marks),
#: surrogates, separators of lines and paragraphs, private and unassigned characters.
_ESCAPED_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"))
#: Format characters that scripts and emoji need.
_JOINERS = "\u200c\u200d"


def escape_controls(text: str, *, keep_line_breaks: bool = True) -> str:
    r"""Escape every character that a terminal could interpret, as Python would.

    Parameters
    ----------
    text : str
        The text.

    keep_line_breaks : bool, default=True
        Whether to keep line feeds and tabs. False for a name, which must not look like a separate
        line.

    Returns
    -------
    str

    Examples
    --------
    >>> print(escape_controls("cat\x1b[2Jdog, Füchse"))
    cat\x1b[2Jdog, Füchse
    >>> print(escape_controls("a\nb", keep_line_breaks=False))
    a\nb
    """
    if not keep_line_breaks and ("\n" in text or "\t" in text):
        text = text.replace("\n", "\\n").replace("\t", "\\t")
    return _UNUSUAL_CHARACTER.sub(_escape_character, text)


def _escape_character(match: re.Match[str]) -> str:
    """Return the matched character, escaped unless it is printable or a joiner."""
    import unicodedata

    character = match.group()
    if character in _JOINERS or unicodedata.category(character) not in _ESCAPED_CATEGORIES:
        return character
    return character.encode("unicode_escape").decode("ascii")


def is_terminal(stream: object) -> bool:
    """Check whether a stream writes to a terminal; an object without `isatty` does not.

    Examples
    --------
    >>> import io
    >>> is_terminal(io.StringIO())
    False
    """
    return bool(getattr(stream, "isatty", bool)())


class EscapingStream:
    """Text stream to a terminal that escapes control characters.

    Parameters
    ----------
    stream : text stream
        Stream of the terminal.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text, with control characters escaped."""
        return self.stream.write(escape_controls(text))

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()
