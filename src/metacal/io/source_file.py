"""Preparation of a source for its reader: format detection and copies.

Readers open a regular file of a known format. Other sources are copied first: standard input and
pipes, which can be read only once, compressed text, and JSON arrays, which become one object per
line.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from metacal.errors import FileContentError
from metacal.io.formats import (
    FORMATS,
    Format,
    find_extension_by_magic_bytes,
    list_extensions,
)
from metacal.io.opening import (
    SAVE_AS_NPZ_ADVICE,
    check_first_bytes,
    check_unpacked_size,
    input_error_if_decoding_fails,
    input_error_if_read_fails,
)
from metacal.io.remote import get_suffix
from metacal.io.request import Request

_PICKLE_SUFFIXES = (".pkl", ".pickle", ".p", ".joblib")
#: Suffixes of text files, whose format is detected from their content.
_TEXT_SUFFIXES = (*list_extensions(text=True), ".txt", ".json", ".dat", ".data", "")
_GZIP_MAGIC = b"\x1f\x8b"
#: Bytes that may precede text: a byte order mark and white space.
_TEXT_PADDING = b"\xef\xbb\xbf \r\n\t"
#: Byte order marks of UTF-16, in which spreadsheets save "Unicode text".
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: First line that names the delimiter for a spreadsheet, such as sep=;.
_SEPARATOR_LINE = re.compile(r'"?sep=.?"?\s*', re.IGNORECASE)
#: Number of bytes at the beginning of a file from which its format is detected.
_N_DETECTION_BYTES = 1024
_COPY_BLOCK_BYTES = 1 << 20

#: Function that writes the content of a requested file to a new path.
_CopyFunction = Callable[[Request, str], None]


@dataclass(frozen=True)
class SourceFile:
    """Input file with its detected format, ready to be read.

    Attributes
    ----------
    request : Request
        Request whose `path_to_open` is a regular, uncompressed file.

    suffix : str
        Key of the format in `FORMATS`.

    is_compressed : bool
        Whether the original file is compressed.
    """

    request: Request
    suffix: str
    is_compressed: bool


@contextlib.contextmanager
def open_source(request: Request) -> Iterator[SourceFile]:
    """Prepare a file for its reader. Temporary copies exist until the context ends.

    The first bytes of a file determine its format, or its name if the bytes are not conclusive.
    Within the context, exceptions of the decoder of a binary format become an InputError.

    Parameters
    ----------
    request : Request
        Request with the path of the file.

    Yields
    ------
    SourceFile

    Raises
    ------
    InputError
        If the file cannot be read, is a pickle, or has an unknown format.
    """
    path = request.path
    suffix = _get_suffix_of_name(request)
    if suffix in _PICKLE_SUFFIXES:
        raise FileContentError(
            f"{path}: metacal does not read pickles, because they can run any code;"
            f" {SAVE_AS_NPZ_ADVICE}."
        )
    with contextlib.ExitStack() as stack:
        if _can_be_read_only_once(request):
            request = _replace_by_copy(request, stack, _copy_stream, copy_suffix=suffix or ".csv")
        if suffix == ".gz":
            check_first_bytes(request.path_to_open, None, name_in_messages=path)

        first_bytes = _read_first_bytes(request.path_to_open)
        is_text_or_gzip = suffix == ".gz" or suffix in _TEXT_SUFFIXES
        is_compressed = first_bytes.startswith(_GZIP_MAGIC) and is_text_or_gzip
        if is_compressed:
            if suffix == ".gz":
                suffix = get_suffix(path.removesuffix(".gz"))
            request = _replace_by_copy(request, stack, _copy_decompressed)
            first_bytes = _read_first_bytes(request.path_to_open)

        if suffix in _TEXT_SUFFIXES and _is_spreadsheet_text(first_bytes):
            request = _replace_by_copy(request, stack, _copy_as_plain_text)
            first_bytes = _read_first_bytes(request.path_to_open)

        format_suffix = suffix
        if request.format is None:
            format_suffix = detect_suffix(suffix, first_bytes)
        _check_known_format(path, suffix, format_suffix)
        magic_bytes = FORMATS[format_suffix].magic_bytes
        check_first_bytes(request.path_to_open, magic_bytes, name_in_messages=path)
        if format_suffix == ".jsonl" and _is_json_array_of_objects(first_bytes):
            request = _replace_by_copy(request, stack, _copy_as_json_lines)
        if not FORMATS[format_suffix].is_text:
            stack.enter_context(input_error_if_decoding_fails(path))
        yield SourceFile(request=request, suffix=format_suffix, is_compressed=is_compressed)


def _check_known_format(path: str, name_suffix: str, format_suffix: str) -> None:
    """Raise InputError if no reader has the detected format."""
    if format_suffix not in FORMATS:
        known_suffixes = ", ".join(sorted(FORMATS))
        raise FileContentError(
            f"{path}: metacal does not read {name_suffix or 'nameless'!r} files, only"
            f" {known_suffixes}; {SAVE_AS_NPZ_ADVICE}."
        )


def detect_suffix(name_suffix: str, first_bytes: bytes) -> str:
    """Return the suffix of the format that the first bytes of a file indicate.

    Parameters
    ----------
    name_suffix : str
        Suffix of the file name, used if the bytes are not conclusive.

    first_bytes : bytes
        Beginning of the file.

    Returns
    -------
    str
        May be a suffix that metacal cannot read.

    Examples
    --------
    >>> detect_suffix(".csv", b"PAR1"), detect_suffix("", b'{"score": 1}')
    ('.parquet', '.jsonl')
    >>> detect_suffix(".txt", b"cat,dog")
    '.csv'
    """
    named_format = FORMATS.get(name_suffix)
    magic_bytes_of_name = None
    if named_format is not None:
        magic_bytes_of_name = named_format.magic_bytes
    if magic_bytes_of_name and first_bytes.startswith(magic_bytes_of_name):
        return name_suffix

    is_text_name = name_suffix in _TEXT_SUFFIXES or (
        named_format is not None and named_format.is_text
    )
    # A binary format without known magic bytes accepts any content.
    lacks_magic_bytes_of_name = bool(magic_bytes_of_name)
    if is_text_name or lacks_magic_bytes_of_name:
        detected_suffix = find_extension_by_magic_bytes(first_bytes)
        if detected_suffix is not None:
            return detected_suffix
    if not is_text_name:
        return name_suffix
    return _detect_text_suffix(name_suffix, named_format, first_bytes)


def _detect_text_suffix(name_suffix: str, named_format: Format | None, first_bytes: bytes) -> str:
    """Return the suffix of the text format that the first bytes of a file indicate."""
    is_json_object = first_bytes.lstrip(_TEXT_PADDING).startswith(b"{")
    if is_json_object and named_format is not None and named_format.contains_json:
        return name_suffix
    if is_json_object or _is_json_array_of_objects(first_bytes):
        return ".jsonl"
    if named_format is not None:
        return name_suffix
    return ".csv"


def _get_suffix_of_name(request: Request) -> str:
    """Return the suffix that the requested format or the name of the file indicates."""
    if request.format is not None:
        return f".{request.format.lower().lstrip('.')}"
    if request.path == "-":
        return ""
    return get_suffix(request.path)


def _can_be_read_only_once(request: Request) -> bool:
    """Check whether a source is standard input, a named pipe or another stream."""
    if request.copy_path is not None:
        return False
    if request.path == "-":
        return True
    return os.path.exists(request.path) and not os.path.isfile(request.path)


def _is_json_array_of_objects(first_bytes: bytes) -> bool:
    """Check whether text begins with a JSON array whose first element is an object."""
    text = first_bytes.lstrip(_TEXT_PADDING)
    if not text.startswith(b"["):
        return False
    return text[1:].lstrip(_TEXT_PADDING).startswith(b"{")


def _read_first_bytes(path: str) -> bytes:
    """Read the beginning of a file, or nothing if it cannot be opened.

    A later check reports the reason.
    """
    try:
        with open(path, "rb") as file:
            return file.read(_N_DETECTION_BYTES)
    except OSError:
        return b""


def _replace_by_copy(
    request: Request,
    stack: contextlib.ExitStack,
    copy_function: _CopyFunction,
    *,
    copy_suffix: str = ".csv",
) -> Request:
    """Copy the source to a temporary file and return a request for the copy.

    Parameters
    ----------
    request : Request
        Request for the original file.

    stack : contextlib.ExitStack
        Deletes the copy when it is closed.

    copy_function : callable
        Writes the content of the request to a path.

    copy_suffix : str, default=".csv"
        Suffix of the temporary file.

    Returns
    -------
    Request
    """
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="metacal-"))
    copy_path = os.path.join(directory, f"copy{copy_suffix}")
    copy_function(request, copy_path)
    return replace(request, copy_path=copy_path, copy_is_permanent=False)


def _copy_decompressed(request: Request, copy_path: str) -> None:
    """Decompress gzip text to `copy_path`, up to the limit of the decompressed size."""
    compressed_size = os.path.getsize(request.path_to_open)
    unpacked_size = 0
    with (
        open(copy_path, "wb") as copy_file,
        input_error_if_read_fails(request.path),
        input_error_if_decoding_fails(request.path),
        gzip.open(request.path_to_open) as compressed_file,
    ):
        while block := compressed_file.read(_COPY_BLOCK_BYTES):
            unpacked_size += len(block)
            check_unpacked_size(request.path, unpacked_size, compressed_size)
            copy_file.write(block)


def _copy_as_json_lines(request: Request, copy_path: str) -> None:
    """Write each element of a JSON array to `copy_path`, one per line."""
    with (
        input_error_if_decoding_fails(request.path),
        open(request.path_to_open, encoding="utf-8-sig") as file,
    ):
        objects = json.load(file)
    with open(copy_path, "w", encoding="utf-8") as copy_file:
        copy_file.writelines(json.dumps(item) + "\n" for item in objects)


def _is_spreadsheet_text(first_bytes: bytes) -> bool:
    """Check whether text is UTF-16, or begins with a line such as sep=;."""
    if first_bytes.startswith(codecs.BOM_UTF32_LE):
        return False
    if first_bytes.startswith(_UTF16_MARKS):
        return True
    first_line = first_bytes.lstrip(_TEXT_PADDING).partition(b"\n")[0]
    return _SEPARATOR_LINE.fullmatch(first_line.decode("latin-1")) is not None


def _copy_as_plain_text(request: Request, copy_path: str) -> None:
    """Copy the text of a spreadsheet as UTF-8, without a line such as sep=;."""
    first_bytes = _read_first_bytes(request.path_to_open)
    is_utf16 = first_bytes.startswith(_UTF16_MARKS)
    encoding = "utf-16" if is_utf16 else "utf-8-sig"
    with (
        input_error_if_decoding_fails(request.path),
        open(request.path_to_open, encoding=encoding, newline="") as file,
        open(copy_path, "w", encoding="utf-8", newline="") as copy_file,
    ):
        first_line = file.readline()
        if _SEPARATOR_LINE.fullmatch(first_line) is None:
            copy_file.write(first_line)
        shutil.copyfileobj(file, copy_file)


def _copy_stream(request: Request, copy_path: str) -> None:
    """Write the content of standard input or of a pipe to `copy_path`."""
    with open(copy_path, "wb") as copy_file:
        if request.path == "-":
            shutil.copyfileobj(_standard_input_bytes(), copy_file)
        else:
            with open(request.path, "rb") as pipe:
                shutil.copyfileobj(pipe, copy_file)


def _standard_input_bytes() -> Any:
    """Return standard input as a binary stream, also if a text stream replaces it."""
    binary_stream = getattr(sys.stdin, "buffer", None)
    if binary_stream:
        return binary_stream
    return io.BytesIO(sys.stdin.read().encode())
