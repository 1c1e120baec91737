"""Registry of the supported file formats.

Each format has one module with its readers and, if metacal can write the format, its writer.

- A *reader* is a function that takes a `Request` and returns `Columns`. It locates the requested
  columns; `metacal.rows.validate` checks their values later.
- A *reader of first rows* takes a `Request` and a number of rows and returns `FirstRows`, from which
  `metacal start` guesses the meaning of the columns.
- A *writer* receives the rows in blocks of named columns, see `Writer`.

Readers and writers are registered by module and name and imported on first use, so that reading
one format does not import the libraries of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from metacal.lazy import import_object

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metacal.io.columns import Columns
    from metacal.io.formats.first_rows import FirstRows
    from metacal.io.request import Request


class Writer(Protocol):
    """File that is written block by block.

    A writer is constructed from a path (or an open stream, for text formats), the class names or
    None, the number of rows, and whether to compress.
    It may have a method `close_incomplete_file`, which is called instead of `close` after an error.
    """

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Append a block of rows.

        Parameters
        ----------
        columns : dict of str to array of shape (n_rows,) or (n_rows, n_classes)
            Columns by name. Every block has the same names and dtypes.
        """

    def close(self) -> None:
        """Write the remaining data and close the file."""


@dataclass(frozen=True)
class Format:
    """Reader, writer and magic bytes of a file format.

    Parameters
    ----------
    read : callable
        Reader: a function from `Request` to `Columns`.

    create_writer : callable or None
        Constructor of a `Writer`. None if metacal cannot write the format.

    magic_bytes : tuple of bytes or None
        Magic bytes: a valid file begins with one of them. An empty tuple denotes a text format,
        which has no magic bytes. With None, any content except a pickle is accepted.

    contains_json : bool, default=False
        Whether files of the format consist of JSON objects. A text file of another format that begins
        with a JSON object is read as JSON lines, whatever its name.

    read_first_rows : callable or None, default=None
        Function from a `Request` and the maximum number of rows to `FirstRows`. With None, the first
        rows are those of the columns with the default names.

    contents : str, default="columns"
        What a file contains, in words. It is shown if `read_first_rows` is None.
    """

    read: Callable[[Request], Columns]
    create_writer: Callable[..., Writer] | None
    magic_bytes: tuple[bytes, ...] | None
    contains_json: bool = False
    read_first_rows: Callable[[Request, int], FirstRows] | None = None
    contents: str = "columns"

    @property
    def is_text(self) -> bool:
        """Whether the format is a text format."""
        return self.magic_bytes == ()


def _lazy(location: str) -> Callable[..., Any]:
    """Return a function that imports "module:name" of this package when it is called."""
    return lambda *args: import_object(f"{__name__}.{location}")(*args)


_ZIP_MAGIC = b"PK\x03\x04"
_EMPTY_ZIP_MAGIC = b"PK\x05\x06"
_NPY_MAGIC = b"\x93NUMPY"
_PARQUET_MAGIC = b"PAR1"
_ARROW_FILE_MAGIC = b"ARROW1"
# Streams written before Arrow 0.15 do not begin with this marker and are not supported.
_ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"

_NPZ = Format(
    read=_lazy("numpy:read_npz"),
    create_writer=_lazy("numpy:NpzWriter"),
    magic_bytes=(_ZIP_MAGIC, _EMPTY_ZIP_MAGIC),
    read_first_rows=_lazy("numpy:read_first_rows_of_npz"),
)
_NPY = Format(
    read=_lazy("numpy:read_npy"),
    create_writer=None,
    magic_bytes=(_NPY_MAGIC,),
    read_first_rows=_lazy("numpy:read_first_rows_of_npy"),
)
_CSV = Format(
    read=_lazy("delimited:read"),
    create_writer=_lazy("text_writer:DelimitedWriter"),
    magic_bytes=(),
    read_first_rows=_lazy("delimited:read_first_rows"),
)
_TSV = Format(
    read=_lazy("delimited:read_tsv"),
    create_writer=_lazy("text_writer:TsvWriter"),
    magic_bytes=(),
    read_first_rows=_lazy("delimited:read_first_rows_of_tsv"),
)
_JSON_LINES = Format(
    read=_lazy("jsonl:read"),
    create_writer=_lazy("jsonl_writer:JsonLinesWriter"),
    magic_bytes=(),
    contains_json=True,
    read_first_rows=_lazy("jsonl:read_first_rows"),
)
_PARQUET = Format(
    read=_lazy("parquet:read"),
    create_writer=_lazy("parquet:ParquetWriter"),
    magic_bytes=(_PARQUET_MAGIC,),
    read_first_rows=_lazy("parquet:read_first_rows"),
)
_ARROW = Format(
    read=_lazy("feather:read"),
    create_writer=_lazy("feather:ArrowWriter"),
    magic_bytes=(_ARROW_FILE_MAGIC, _ARROW_STREAM_MAGIC),
    read_first_rows=_lazy("feather:read_first_rows"),
)
_SAFETENSORS = Format(
    read=_lazy("tensors:read_safetensors"), create_writer=None, magic_bytes=None, contents="tensors"
)
_TORCH = Format(
    read=_lazy("tensors:read_torch"),
    create_writer=None,
    magic_bytes=(_ZIP_MAGIC,),
    contents="tensors",
)

#: Formats by file name extension.
FORMATS: dict[str, Format] = {
    ".npz": _NPZ,
    ".npy": _NPY,
    ".csv": _CSV,
    ".tsv": _TSV,
    ".jsonl": _JSON_LINES,
    ".ndjson": _JSON_LINES,
    ".parquet": _PARQUET,
    ".pq": replace(_PARQUET, create_writer=None),
    ".arrow": _ARROW,
    ".arrows": replace(_ARROW, create_writer=None),
    ".feather": _ARROW,
    ".safetensors": _SAFETENSORS,
    ".pt": _TORCH,
    ".pth": _TORCH,
}


def list_extensions(*, writable: bool = False, text: bool = False) -> tuple[str, ...]:
    """Return the file name extensions of the supported formats.

    Parameters
    ----------
    writable : bool, default=False
        Return only formats that metacal can write.

    text : bool, default=False
        Return only text formats.

    Returns
    -------
    tuple of str
        Extensions with their leading dot, sorted.
    """
    extensions = []
    for extension, file_format in sorted(FORMATS.items()):
        if writable and file_format.create_writer is None:
            continue
        if text and not file_format.is_text:
            continue
        extensions.append(extension)
    return tuple(extensions)


def find_extension_by_magic_bytes(first_bytes: bytes) -> str | None:
    """Return the first registered extension whose magic bytes begin a file, or None.

    Examples
    --------
    >>> find_extension_by_magic_bytes(b"PAR1..."), find_extension_by_magic_bytes(b"cat,dog")
    ('.parquet', None)
    """
    for extension, file_format in FORMATS.items():
        if file_format.magic_bytes and first_bytes.startswith(file_format.magic_bytes):
            return extension
    return None
