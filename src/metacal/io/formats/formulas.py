"""Text that a spreadsheet would take for a formula, written so that it does not, and read back.

A class called `=HYPERLINK(...)` in a csv becomes a formula when somebody opens the file. A text cell that begins with
one of `=+-@`, with their full-width forms, or with a tab or a line break gets an apostrophe in front, as spreadsheets
themselves write it (https://owasp.org/www-community/attacks/CSV_Injection). Numbers stay numbers. Reading takes one
apostrophe away where such a character follows it; a text that looks escaped already gets one more, so that every text
comes back as it was.
"""

from __future__ import annotations

_BEGINS = "=+-@\t\r\n＝＋－＠"


def _looks_like_one(text: str) -> bool:
    return text.lstrip("'")[:1] in _BEGINS and text.strip("'") != ""


def escaped(text: str) -> str:
    """Return the text as a cell that no spreadsheet runs.

    Examples
    --------
    >>> escaped("=1+1"), escaped("-0.5"), escaped("cat"), escaped("'=1+1")
    ("'=1+1", '-0.5', 'cat', "''=1+1")
    """
    if not _looks_like_one(text) or (text[:1] in "+-" and _is_number(text)):
        return text
    return f"'{text}"


def unescaped(text: str) -> str:
    """Return the text that `escaped` was given.

    Examples
    --------
    >>> unescaped("'=1+1"), unescaped("''=1+1"), unescaped("'tis"), unescaped("-0.5")
    ('=1+1', "'=1+1", "'tis", '-0.5')
    """
    return text[1:] if text.startswith("'") and _looks_like_one(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text.strip() == text
