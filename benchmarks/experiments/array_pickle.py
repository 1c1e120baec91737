"""Read a pickle that may hold NumPy arrays of numbers inside plain containers, and nothing else.

A pickle is a program: whoever wrote it decides what is called. Here the only names it may mention
are the ones that NumPy's own array pickles mention, and each of them leads to a stand-in of ours,
so nothing of NumPy, of Python or of any other module is ever called with arguments from the file.
The stand-ins check shape, type and size and build the array from its bytes.
"""

from __future__ import annotations

import math
import pickle
import re
from typing import IO, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError

_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")
_ORDERS = {"<": "<", ">": ">", "=": "=", "|": "|"}
_MOST_DIMENSIONS = 4


class PickledArray:
    """What stands for an array while the file is read: `value` is the array once its state has
    come.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        """The five fields of NumPy's array state: version, shape, type, order, bytes."""
        if not (isinstance(state, tuple) and len(state) == 5):
            _refuse("an array without shape, type and bytes")
        _, shape, kind, fortran, data = state
        self._build(shape, kind, "F" if fortran else "C", data)

    def _build(self, shape: Any, kind: Any, order: Literal["C", "F"], data: Any) -> None:
        whole = isinstance(shape, tuple) and len(shape) <= _MOST_DIMENSIONS
        if not whole or not all(type(size) is int and size >= 0 for size in shape):
            _refuse("an array of an impossible shape")
        if type(kind) is not _Type or not isinstance(data, bytes | bytearray):
            _refuse("an array of something other than numbers")
        dtype = kind.dtype()
        if math.prod(shape) * dtype.itemsize != len(data):
            _refuse("an array whose shape and bytes disagree")
        self.value = np.frombuffer(data, dtype).reshape(shape, order=order).copy(order)


class _Type:
    """What stands for a NumPy type: a code such as f4, and a byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any = "", align: Any = False, copy: Any = True) -> None:
        self.code = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) >= 2 else None
        order = order.decode("ascii", "replace") if isinstance(order, bytes) else order
        if order not in _ORDERS:
            _refuse("a type without a byte order")
        self.order = order

    def dtype(self) -> np.dtype[Any]:
        """The type, if it is one of numbers."""
        if not isinstance(self.code, str) or not _NUMBERS.fullmatch(self.code):
            _refuse(f"an array of {self.code!r}")
        return np.dtype(self.order + self.code)


class _Function:
    """A name that a pickle may call. It has no attributes that a pickle could set."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        _refuse("a state for a function")


class _Reconstruct(_Function):
    """Stands for NumPy's `_reconstruct`: an empty array, to be given its state."""

    __slots__ = ()

    def __call__(self, *ignored: Any) -> PickledArray:
        return PickledArray()


class _FromBuffer(_Function):
    """Stands for NumPy's `_frombuffer`, by which protocol 5 spells arrays."""

    __slots__ = ()

    def __call__(self, data: Any, kind: Any, shape: Any, order: Any) -> PickledArray:
        if order not in ("C", "F"):
            _refuse("an array in no order")
        array = PickledArray()
        array._build(shape, kind, order, data)
        return array


class _NoBytes(_Function):
    """Stands for `bytes` without arguments, by which old protocols spell no bytes at all."""

    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


class _Encode(_Function):
    """Stands for `codecs.encode`, by which old protocols spell bytes."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any = "latin1") -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            _refuse("an encoding other than latin1")
        return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Encode(),
    ("builtins", "bytes"): _NoBytes(),
    ("__builtin__", "bytes"): _NoBytes(),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Reconstruct() for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FromBuffer() for core in ("core", "_core")},
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            _refuse(f"the name {module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        _refuse("a reference to something outside")


def load_array_pickle(file: IO[bytes], *, encoding: str = "latin1") -> Any:
    """What the pickle holds, each array as a `PickledArray`; `InputError` for anything but numbers
    and containers.

    Parameters
    ----------
    file : binary file
        Opened by the caller, who also checks its hash where one is known.
    encoding : str
        How text of Python 2 is read; "bytes" leaves it as bytes.

    Examples
    --------
    >>> import io
    >>> pair = load_array_pickle(io.BytesIO(pickle.dumps((np.arange(3), [1, 2]))))
    >>> array_of(pair[0]), pair[1]
    (array([0, 1, 2]), [1, 2])
    >>> load_array_pickle(io.BytesIO(pickle.dumps(print)))
    Traceback (most recent call last):
    metacal.errors.InputError: the pickle holds the name builtins.print; ...
    """
    try:
        return _ArrayUnpickler(file, encoding=encoding).load()
    except InputError:
        raise
    except Exception as error:  # a damaged or hostile file may raise anything
        raise InputError(
            f"the pickle cannot be read ({type(error).__name__}); it is damaged or cut short."
        ) from error


def array_of(value: Any) -> NDArray[Any]:
    """The array of a `PickledArray`; `InputError` for anything else."""
    if type(value) is not PickledArray or value.value is None:
        raise InputError(f"the pickle holds {type(value).__name__} where an array is needed.")
    return value.value


def _refuse(what: str) -> NoReturn:
    raise InputError(
        f"the pickle holds {what}; only NumPy arrays of numbers in plain containers are read from"
        " pickles."
    )
