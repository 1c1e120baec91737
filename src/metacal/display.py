"""Results as HTML for notebooks, data frames, and text for terminals.

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
#: Maximal number of names that `format_names` lists.
_MAX_NAMES = 8
#: Maximal number of characters of a value in a message.
_MAX_VALUE_LENGTH = 80
#: Characters of the name in each line of a printed certificate.
_NAME_COLUMNS = slice(2, 14)
#: Characters of the text after the name in each line of a printed certificate.
_TEXT_COLUMNS = slice(15, None)


def make_facts_html(statement: str, lines: Iterable[tuple[str, str]]) -> str:
    """Return HTML with a statement and a table of (name, text) pairs.

    Examples
    --------
    >>> print(make_facts_html("At most 5%.", [("gate", "accept if entropy <= 0.3")]).count("<tr>"))
    1
    """
    statement_html = f"<p><strong>{escape(statement)}</strong></p>"
    body_html = _make_table_body_html(lines, _TEXT_STYLE)
    return f"<div>{statement_html}<table>{body_html}</table></div>"


def split_named_lines(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Split each line of a printed certificate into its name and its text.

    Examples
    --------
    >>> split_named_lines(["  rows         1,000, 889 accepted"])
    [('rows', '1,000, 889 accepted')]
    """
    return [(line[_NAME_COLUMNS].rstrip(), line[_TEXT_COLUMNS]) for line in lines]


def make_table_html(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return an HTML table with a column of names and columns of numbers.

    Examples
    --------
    >>> "<b>" in make_table_html(["metric", "all rows"], [["<b>", "0.1"]], caption="1 row")
    False
    """
    header_cells = []
    for column, name in enumerate(header):
        style = _TEXT_STYLE if column == 0 else _NUMBER_STYLE
        header_cells.append(f'<th scope="col" style="{style}">{escape(name)}</th>')
    caption_html = ""
    if caption:
        caption_style = "caption-side:top;text-align:left"
        caption_html = f'<caption style="{caption_style}">{escape(caption)}</caption>'
    header_html = f"<thead><tr>{''.join(header_cells)}</tr></thead>"
    body_html = _make_table_body_html(rows, _NUMBER_STYLE)
    return f"<table>{caption_html}{header_html}{body_html}</table>"


def _make_table_body_html(rows: Iterable[Sequence[str]], value_style: str) -> str:
    """Return the body of an HTML table whose first column has the names of the rows."""
    html_rows = []
    for name, *values in rows:
        header_cell = f'<th scope="row" style="{_TEXT_STYLE}">{escape(name)}</th>'
        cells = [f'<td style="{value_style}">{escape(value)}</td>' for value in values]
        html_rows.append(f"<tr>{header_cell}{''.join(cells)}</tr>")
    return f"<tbody>{''.join(html_rows)}</tbody>"


def align_columns(
    rows: Sequence[Sequence[str]], width_rows: Sequence[Sequence[str]] | None = None
) -> list[str]:
    """Format the rows of a table as lines of text with aligned columns.

    Parameters
    ----------
    rows : sequence of sequences of str
        Cells of the table.

    width_rows : sequence of sequences of str, default=None
        Rows that determine the widths of the columns. The default is all rows.

    Returns
    -------
    list of str

    Examples
    --------
    >>> align_columns([("a", "bcd"), ("ef", "g")])
    ['a   bcd', 'ef  g']
    """
    if width_rows is None:
        width_rows = rows
    widths = [max(map(len, column)) for column in zip(*width_rows)]
    lines = []
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths)]
        lines.append("  ".join(cells).rstrip())
    return lines


def make_paragraphs_html(*texts: str) -> str:
    """Return an HTML paragraph for each text."""
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
        Values of each row, keyed by column.

    index : sequence, default=None
        Label of each row. Tuples give an index with several levels.

    index_names : sequence of str
        Name of each level of the index.

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
    """Return a `pandas.DataFrame` with the given columns."""
    return _import_pandas().DataFrame(dict(columns_by_name))


def format_interval(low: float, high: float, digits: int = 4) -> str:
    """Format an interval, with its ends rounded outwards.

    Examples
    --------
    >>> format_interval(0.91482, 0.99381), format_interval(0.57, 0.58), format_interval(0.0, 0.0)
    ('[0.9148, 0.9939]', '[0.5700, 0.5800]', '[0.0000, 0.0000]')
    """
    lower_end = _round_down(low, digits)
    # Subtracting from 0.0 instead of negating avoids a negative zero.
    upper_end = 0.0 - _round_down(-high, digits)
    return f"[{lower_end:.{digits}f}, {upper_end:.{digits}f}]"


def _round_down(value: float, digits: int) -> float:
    """Round a value down to a number of decimal digits, up to floating-point error."""
    scale = 10.0**digits
    scaled_value = value * scale
    nearest_integer = round(scaled_value)
    if abs(scaled_value - nearest_integer) < _DECIMAL_TOLERANCE:
        return nearest_integer / scale
    return floor(scaled_value) / scale


def _import_pandas() -> Any:
    """Import pandas, or raise MissingExtraError if it is not installed."""
    with needs_extra("to_frame()", "pandas"):
        import pandas
    return pandas


def format_names(names: Iterable[object]) -> str:
    """Format names as a list that shows at most eight of them."""
    all_names = list(names)
    shown_names = [shorten_repr(name) for name in all_names[:_MAX_NAMES]]
    names_text = ", ".join(shown_names) or "nothing"
    n_more_names = len(all_names) - len(shown_names)
    if n_more_names > 0:
        names_text += f" and {n_more_names} more"
    return names_text


def shorten_repr(value: object) -> str:
    """Return the representation of a value, shortened to 80 characters."""
    text = repr(value)
    if len(text) <= _MAX_VALUE_LENGTH:
        return text
    return text[: _MAX_VALUE_LENGTH - 3] + "..."


#: Any character except printable ASCII, tab and line feed.
_UNUSUAL_CHARACTER = re.compile(r"[^\n\t\x20-\x7e]")
#: Unicode categories of characters that can change how a terminal shows other text.
_ESCAPED_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"))
#: Zero-width joiner characters, which several scripts and emoji need.
_JOINERS = "\u200c\u200d"


def escape_controls(text: str, *, keep_line_breaks: bool = True) -> str:
    r"""Escape the characters that a terminal could interpret as commands.

    Names and notes come from the author of a file. An escape sequence in them could move the
    cursor, overwrite earlier output, set the title or simulate input. A right-to-left mark could
    reverse a line. Escaped are controls, format characters, surrogates, separators of lines and
    paragraphs, and private and unassigned characters.

    Parameters
    ----------
    text : str
        Text from a file.

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
    """Escape the matched character, unless it is printable or a zero-width joiner."""
    import unicodedata

    character = match.group()
    if character in _JOINERS or unicodedata.category(character) not in _ESCAPED_CATEGORIES:
        return character
    return character.encode("unicode_escape").decode("ascii")


def is_terminal(stream: object) -> bool:
    """Check whether a stream writes to a terminal.

    An object without a method `isatty` does not.

    Examples
    --------
    >>> import io
    >>> is_terminal(io.StringIO())
    False
    """
    isatty = getattr(stream, "isatty", None)
    if isatty is None:
        return False
    return bool(isatty())


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
        """Write a text with its control characters escaped."""
        return self.stream.write(escape_controls(text))

    def flush(self) -> None:
        """Flush the underlying stream."""
        self.stream.flush()
