"""Conversion of text cells to values, and escaping of spreadsheet formulas.

A spreadsheet executes a text cell that begins with `=`, such as `=HYPERLINK(...)`, as a formula
(https://owasp.org/www-community/attacks/CSV_Injection). The writers therefore put an apostrophe in
front of a text that begins with one of `=+-@`, with their full-width forms, or with a tab or a line
break. Numbers are not escaped. The readers remove one apostrophe in front of such a character. A
text that already looks escaped gets a second apostrophe, so that every text is read back unchanged.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import FileContentError
from metacal.formulas import Float
from metacal.io.opening import build_uneven_row_error, check_text_array_size
from metacal.rows.labels import is_integer_text

# First characters of a text that a spreadsheet may execute.
_FORMULA_CHARACTERS = "=+-@\t\r\n＝＋－＠"

#: Delimiters of text in columns, and their names.
DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}

# Pattern of a number such as 1,234, whose comma may separate thousands or decimals.
# The group before the comma cannot begin with 0, because 0,123 has no thousands.
_GROUPED_NUMBER = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")

# Number of characters of a cell that an error message quotes.
_MAX_QUOTED = 40


def escape_formula(text: str) -> str:
    """Escape a text so that no spreadsheet executes it as a formula.

    Examples
    --------
    >>> [escape_formula(text) for text in ("=1+1", "-0.5", "cat", "'=1+1")]
    ["'=1+1", '-0.5', 'cat', "''=1+1"]
    """
    if not _looks_like_formula(text) or _is_signed_number(text):
        return text
    return f"'{text}"


def unescape_formula(text: str) -> str:
    """Undo `escape_formula`, and return the original text.

    Examples
    --------
    >>> [unescape_formula(text) for text in ("'=1+1", "''=1+1", "'tis", "-0.5")]
    ['=1+1', "'=1+1", "'tis", '-0.5']
    """
    if text.startswith("'") and _looks_like_formula(text):
        return text[1:]
    return text


def _looks_like_formula(text: str) -> bool:
    """Check whether a text, without leading apostrophes, begins like a formula."""
    return text.lstrip("'")[:1] in _FORMULA_CHARACTERS and text.strip("'") != ""


def _is_signed_number(text: str) -> bool:
    """Check whether a text is a number with a sign, without surrounding spaces."""
    return text[:1] in "+-" and is_number(text) and text.strip() == text


def is_number(text: str) -> bool:
    """Check whether a text is a number without underscores."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def parse_number_or_text(cell: str) -> float | str | None:
    """Convert a cell to a number if possible. Return None for an empty cell."""
    text = cell.strip()
    if is_number(text):
        return float(text)
    if not text:
        return None
    return text


def parse_localized_number(text: str) -> float | None:
    """Convert a number with a decimal comma, thousands separators or a percent sign.

    Return None if the text is not such a number, or if its comma may mean either.

    Examples
    --------
    >>> [parse_localized_number(text) for text in ("0,85", "1.234,5", "85%", "7")]
    [0.85, 1234.5, 0.85, 7.0]
    >>> parse_localized_number("1,234") is None
    True
    """
    numbers = parse_localized_numbers([text])
    return None if numbers is None else float(numbers[0])


def parse_localized_numbers(cells: Sequence[str] | NDArray[Any]) -> Float | None:
    """Convert a column of numbers as spreadsheets write them.

    Parameters
    ----------
    cells : sequence of str
        Cells of a column: numbers with a decimal comma or point, with thousands separators, or all
        of them with a percent sign.

    Returns
    -------
    array of shape (n_cells,) or None
        NaN for an empty cell. None if a cell is not such a number, or if nobody can tell whether
        the comma separates decimals or thousands.

    Examples
    --------
    >>> parse_localized_numbers(["0,123", "1,000", ""])
    array([0.123, 1.   ,   nan])
    >>> parse_localized_numbers(["1,234.50", "7.25"]), parse_localized_numbers(["25 %", "100 %"])
    (array([1234.5 ,    7.25]), array([0.25, 1.  ]))
    """
    texts = [str(cell).strip() for cell in cells]
    filled_texts = [text for text in texts if text]
    is_percent = bool(filled_texts) and all(text.endswith("%") for text in filled_texts)
    if is_percent:
        texts = [text.removesuffix("%").strip() for text in texts]
    decimal_mark = _find_decimal_mark(texts)
    if decimal_mark is None:
        return None
    numbers = np.full(len(texts), np.nan)
    for index, text in enumerate(texts):
        if not text:
            continue
        if decimal_mark == ",":
            text = text.replace(".", "").replace(",", ".")
        else:
            text = text.replace(",", "")
        if not is_number(text):
            return None
        numbers[index] = float(text)
    return numbers / 100.0 if is_percent else numbers


def _find_decimal_mark(texts: Sequence[str]) -> str | None:
    """Return the decimal mark of numbers, or None if it is ambiguous."""
    texts_with_comma = [text for text in texts if "," in text]
    if not texts_with_comma:
        return "."
    for text in texts_with_comma:
        if "." in text:
            is_comma_last = text.rfind(",") > text.rfind(".")
            return "," if is_comma_last else "."
        if _GROUPED_NUMBER.fullmatch(text) is None:
            return ","
    return None


def parse_numbers_or_texts(cells: Sequence[str] | NDArray[Any]) -> list[Any]:
    """Convert a column of cells to numbers, or to texts if one cell is not a number.

    Parameters
    ----------
    cells : sequence of str
        Cells of a column.

    Returns
    -------
    list
        Integers, floats and None for empty cells; or all cells as texts if one is neither empty
        nor a number, or has leading zeros, such as 007.
    """
    texts = [unescape_formula(cell.strip()) for cell in cells]
    if any(_has_leading_zeros(text) for text in texts):
        return texts
    values: list[Any] = []
    for text in texts:
        value = int(text) if is_integer_text(text) else parse_number_or_text(text)
        if isinstance(value, str):
            return texts
        values.append(value)
    return values


def _has_leading_zeros(text: str) -> bool:
    """Check whether a text consists of digits and begins with a superfluous zero."""
    return text[:1] == "0" and text.isdigit() and text != "0"


def parse_labels(path: str, name: str, cells: Sequence[str] | NDArray[Any]) -> NDArray[Any]:
    """Convert the cells of a label or id column to an array.

    Parameters
    ----------
    path : str
        File name used in error messages.

    name : str
        Column name used in error messages.

    cells : sequence of str
        Cells of the column.

    Returns
    -------
    array of shape (n_rows,)
        Integers if all cells are written as integers, floats if all end in ".0", texts otherwise.
        An integer with leading zeros, such as 007, counts as text.
    """
    cell_texts = [unescape_formula(cell.strip()) for cell in cells]
    file_size = os.path.getsize(path) if os.path.exists(path) else 0
    check_text_array_size(path, f"texts in column {name!r}", cell_texts, file_size)
    texts = np.array(cell_texts, dtype=np.str_)
    with contextlib.suppress(ValueError, OverflowError):
        integers = texts.astype(np.int64)
        # Texts such as 007 or +7 differ from the integer that they denote, so they stay texts.
        has_plain_integers = np.array_equal(integers.astype(np.str_), texts)
        if has_plain_integers:
            return integers
    has_integers_saved_as_floats = np.char.endswith(texts, ".0").all() and all(
        map(is_number, texts)
    )
    if has_integers_saved_as_floats:
        return texts.astype(np.float64)
    return texts


def detect_delimiter(header_line: str, default_delimiter: str = ",") -> str:
    """Return the default delimiter if the header has it, else the most frequent one.

    Examples
    --------
    >>> detect_delimiter("cat;dog;label"), detect_delimiter("cat,dog;s,label")
    (';', ',')
    """
    if default_delimiter in header_line:
        return default_delimiter
    return max((default_delimiter, *DELIMITER_NAMES), key=header_line.count)


def split_line(line: str, delimiter: str) -> list[str]:
    """Split one line into cells. Raise csv.Error if the line is malformed.

    Examples
    --------
    >>> split_line("a, b ,'=1", ",")
    ['a', 'b', '=1']
    """
    (cells,) = csv.reader([line], delimiter=delimiter, strict=True)
    return [unescape_formula(cell.strip()) for cell in cells]


def parse_number_lists(
    path: str, name: str, cells: Sequence[str] | NDArray[Any]
) -> NDArray[np.float64]:
    """Parse cells that each hold a list of numbers, all of the same length.

    Parameters
    ----------
    path : str
        File name used in error messages.

    name : str
        Column name used in error messages.

    cells : sequence of str
        Cells such as "[0.1, 2.3]", or "[0.1 2.3]" as NumPy prints them.

    Returns
    -------
    array of shape (n_rows, n_numbers)

    Raises
    ------
    InputError
        If an entry is not a number or the lists differ in length.

    Examples
    --------
    >>> parse_number_lists("a.csv", "logits", ["[0.5, 2]", "[1 -inf]"])
    array([[ 0.5,  2. ], [ 1. , -inf]])
    """
    list_texts = []
    for cell in cells:
        entries_text = cell.strip().strip("[]()").replace(",", " ")
        list_texts.append(" ".join(entries_text.splitlines()))

    with contextlib.suppress(ValueError, UserWarning), warnings.catch_warnings(action="error"):
        numbers = np.loadtxt(list_texts, comments=None, ndmin=2)
        # loadtxt skips empty lists.
        if len(numbers) == len(list_texts):
            return numbers

    _raise_for_invalid_list(path, name, list_texts)
    raise FileContentError(
        f"{path}: the column {name!r} cannot be read as lists of numbers. Write one column per"
        " class."
    )


def _raise_for_invalid_list(path: str, name: str, list_texts: Sequence[str]) -> None:
    """Raise InputError for the first list with an invalid number or another length."""
    first_length = len(list_texts[0].split())
    for row, list_text in enumerate(list_texts):
        entry_texts = list_text.split()
        for entry in entry_texts:
            if not is_number(entry):
                hint = ""
                if "..." in entry:
                    hint = (
                        " (NumPy shortens long arrays when it prints them: write one column per"
                        " class)"
                    )
                raise FileContentError(
                    f"{path}: row {row} of the column {name!r} must hold only numbers, but it"
                    f" holds {entry[:_MAX_QUOTED]!r}{hint}."
                )
        if len(entry_texts) != first_length:
            raise build_uneven_row_error(
                f"{path}: row {row} of the column {name!r}", len(entry_texts), first_length
            )
