"""One file per format, reading and writing side by side, and the one table of them.

A reader is a function from `Request` to `Columns`; it finds what is asked for and `rows.validate`
judges the values. A writer takes named columns block by block: `write(columns)` as often as needed,
then `close()`. Both are named, not imported, so that a file of one kind costs the import of no
other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from metacal.lazy import found

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metacal.io.columns import Columns
    from metacal.io.request import Request


class Writer(Protocol):
    """A file that is being written.

    It is made of a path (of text also an open stream), the class names or None, the number of rows,
    and whether to compress. Columns are 1-D arrays, or 2-D ones with a column per class; every
    block has the same names and types.
    """

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Add rows."""

    def close(self) -> None:
        """Finish the file; it is whole from then on."""


class Format(NamedTuple):
    """How one kind of file is read and written, and what it begins with: () for text, None for all
    but a pickle.
    """

    read: Callable[[Request], Columns]
    write: Callable[..., Writer] | None
    begins: tuple[bytes, ...] | None


def _at(place: str) -> Callable[..., Any]:
    """What stands at "module:name" of this package, imported when it is called."""
    return lambda *given: found(f"{__name__}.{place}")(*given)


_ZIP, _NPY, _PARQUET = (b"PK\x03\x04", b"PK\x05\x06"), (b"\x93NUMPY",), (b"PAR1",)
#: An Arrow stream begins with a continuation mark; streams written before Arrow 0.15 are not read.
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")
_ARROW_FILE = Format(_at("feather:read"), _at("feather:ArrowWriter"), _ARROW)
_JSON_LINES = Format(_at("jsonl:read"), _at("jsonl:JsonLinesWriter"), ())
_PARQUET_FILE = Format(_at("parquet:read"), _at("parquet:ParquetWriter"), _PARQUET)
_TORCH = Format(_at("tensors:read_torch"), None, _ZIP[:1])

#: By the ending of a name: a new kind of file is one more entry.
FORMATS: dict[str, Format] = {
    ".npz": Format(_at("numpy:read_npz"), _at("numpy:NpzWriter"), _ZIP),
    ".npy": Format(_at("numpy:read_npy"), None, _NPY),
    ".csv": Format(_at("delimited:read"), _at("delimited:DelimitedWriter"), ()),
    ".tsv": Format(_at("delimited:read_tabs"), _at("delimited:TabsWriter"), ()),
    ".jsonl": _JSON_LINES,
    ".ndjson": _JSON_LINES,
    ".parquet": _PARQUET_FILE,
    ".pq": _PARQUET_FILE._replace(write=None),
    ".arrow": _ARROW_FILE,
    ".arrows": _ARROW_FILE._replace(write=None),
    ".feather": _ARROW_FILE,
    ".safetensors": Format(_at("tensors:read_safetensors"), None, None),
    ".pt": _TORCH,
    ".pth": _TORCH,
}


def endings(*, written: bool = False, text: bool = False) -> tuple[str, ...]:
    """The endings of files that can be read; of those that can be written, or are text."""
    return tuple(
        ending
        for ending, kind in sorted(FORMATS.items())
        if (kind.write is not None or not written) and (kind.begins == () or not text)
    )
