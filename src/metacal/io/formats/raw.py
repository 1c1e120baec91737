"""Numbers that lie in a file as they do in memory, read by position and never mapped.

A memory map ends the process with SIGBUS when somebody shortens the file. A read that comes back
short is an error that can be told; and while the pages are cached it costs one copy into a buffer
that stays in the processor's cache, a few percent of what is then computed from it. Every read also
looks at the file's size and time of change, so that half old and half new numbers are told from a
sound table.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes
from metacal.io.opening import plain_read_errors
from metacal.io.request import Request
from metacal.rows.stored import ConvertedTable, StoredTable

#: What makes numbers of those that NumPy cannot hold or few can use, and their type.
Widen = tuple[Callable[[NDArray[Any]], NDArray[Any]], Any]

#: Rows that lie farther apart than this are read one by one.
_FAR_APART = 1 << 14


def bytes_of(room: NDArray[Any]) -> memoryview:
    """The bytes of a C-ordered array, to be written to."""
    return room.reshape(-1).view(np.uint8).data if room.nbytes else memoryview(b"")


class RawFile:
    """An open file. It stays readable when its name is gone; a pickle of it is opened again, and
    must be the same.

    Parameters
    ----------
    path : str
        What is opened.
    shown : str
        What messages call it.
    """

    def __init__(self, path: str, shown: str) -> None:
        self.path, self.shown = path, shown
        self._descriptor, self._turn = -1, threading.Lock()
        #: Bytes in it, and when it was written: what makes it the same file.
        self.size, self.written = self._now()

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._opened())
        return status.st_size, status.st_mtime_ns

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "shown": self.shown, "size": self.size, "written": self.written}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Opened when it is read: a description passes through processes that never see the file.
        self.__dict__.update(state, _descriptor=-1, _turn=threading.Lock())

    def _opened(self) -> int:
        if self._descriptor < 0:
            flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
            with self._turn, plain_read_errors(self.shown):
                if self._descriptor < 0:
                    self._descriptor = os.open(self.path, flags)
        return self._descriptor

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def check_unchanged(self) -> None:
        """Raise where the file is no longer the one that was opened."""
        if self._now() != (self.size, self.written):
            raise InputError(
                f"{self.shown}: the file changed while it was read; wait until it is written, and"
                " read it again."
            )

    def fill(self, room: NDArray[Any], offset: int) -> None:
        """Fill a C-ordered array with the bytes from `offset` on."""
        view, done = bytes_of(room), 0
        with plain_read_errors(self.shown):
            while done < len(view) and (got := self._read_into(view[done:], offset + done)):
                done += got
        self.check_unchanged()
        if done < len(view):
            raise InputError(
                f"{self.shown}: the file is damaged or cut short; copy or write it again."
            )

    def _read_into(self, view: memoryview, offset: int) -> int:
        descriptor = self._opened()
        if hasattr(os, "preadv"):
            return os.preadv(descriptor, [view], offset)
        with self._turn:  # Windows has no read by position
            os.lseek(descriptor, offset, os.SEEK_SET)
            some = os.read(descriptor, len(view))
        view[: len(some)] = some
        return len(some)

    def bytes(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset` on, and never more than there are."""
        count = max(0, min(count, self.size - offset))
        if hasattr(os, "pread"):  # one copy instead of two, and less to do for a few bytes
            with plain_read_errors(self.shown):
                found = os.pread(self._opened(), count, offset)
            if len(found) == count:
                self.check_unchanged()
                return found
        room = np.empty(count, dtype=np.uint8)
        self.fill(room, offset)
        return room.tobytes()


class Placed(NamedTuple):
    """Where an array lies in a file; `dtype` is as stored, in either byte order. `fortran`: column
    by column.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    fortran: bool = False

    @property
    def n_bytes(self) -> int:
        """Bytes of the numbers; Python's integers do not overflow."""
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self, fill: Callable[[NDArray[Any]], object]) -> NDArray[Any]:
        """The array in this machine's byte order, its bytes put there by `fill`; that they are
        there was checked.
        """
        array = np.empty(self.shape[::-1] if self.fortran else self.shape, self.dtype)
        fill(array)
        array = array.T if self.fortran else array
        return (
            array
            if self.dtype.isnative or self.dtype.hasobject
            else array.astype(self.dtype.newbyteorder("="))
        )


class RawTable(StoredTable):
    """A table in a file of numbers, row after row. Slices are native and C-ordered."""

    def __init__(self, file: RawFile, place: Placed) -> None:
        self.file, self.stored, self.offset = file, place.dtype, place.begin
        super().__init__((place.shape[0], place.shape[1]), self.stored.newbyteorder("="))
        self.row_bytes = self.shape[1] * self.stored.itemsize

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start … stop - 1, a fresh array."""
        rows = np.empty((max(0, stop - start), self.shape[1]), self.stored)
        self.file.fill(rows, self.offset + start * self.row_bytes)
        return rows if rows.dtype.isnative else rows.astype(self.dtype)

    def _chosen(self, rows: Codes) -> NDArray[Any]:
        spread = (int(rows.max()) - int(rows.min())) * self.row_bytes if len(rows) else 0
        if spread < _FAR_APART * len(rows) or rows.min() < 0 or rows.max() >= len(self):
            return super()._chosen(rows)
        found = np.empty((len(rows), self.shape[1]), self.stored)
        for k, row in enumerate(rows.tolist()):
            self.file.fill(found[k], self.offset + row * self.row_bytes)
        return found if found.dtype.isnative else found.astype(self.dtype)


def array_in(
    request: Request,
    file: RawFile,
    place: Placed,
    *,
    may_stay: bool = False,
    widen: Widen | None = None,
) -> Any:
    """The array of a file, `widen`ed; a large table stays there if it may, of what will be refused
    only the shape.

    A table whose columns follow each other comes whole, however large it is: a row is not in one
    place.
    """
    kind = place.dtype
    if (
        widen is None and kind.kind == "f" and kind.itemsize > 8
    ):  # the wider floats that some processors have
        widen = partial(np.asarray, dtype=np.float64), np.float64
    if kind.kind not in "fiubU" or len(place.shape) not in (1, 2):
        return np.broadcast_to(
            np.zeros((), kind if widen is None else widen[1]), place.shape
        )  # takes no memory
    if may_stay and len(place.shape) == 2 and kind.kind != "U" and not place.fortran:
        raw = RawTable(file, place)
        table = raw if widen is None else ConvertedTable(raw, *widen)
        if request.stays(table.nbytes, copied=True):
            return table
    array = place.whole(partial(file.fill, offset=place.begin))
    return array if widen is None else widen[0](array)
