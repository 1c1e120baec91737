"""Pickles that hold arrays are read; pickles that want anything else are refused, and nothing of
theirs is run.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import os
import pickle
import pickletools

import numpy as np
import pytest

from benchmarks.experiments import array_pickle
from benchmarks.experiments.array_pickle import array_of, load_array_pickle
from metacal.errors import InputError


def read(data, **options):
    return load_array_pickle(io.BytesIO(data), **options)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0, dtype=np.float32).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array([[1], [2]], dtype=">i4"),
        np.array([True, False]),
        np.arange(6, dtype=np.uint8)[::2],
        np.zeros((0, 5), dtype=np.float16),
    ],
    ids=["float32", "fortran", "big-endian", "bool", "strided", "empty"],
)
def test_arrays_come_back(array, protocol):
    found = array_of(read(pickle.dumps((array, "text"), protocol))[0])
    assert found.dtype == array.dtype
    assert found.flags.writeable
    np.testing.assert_array_equal(found, array)


def test_the_layout_of_the_papers_files():
    parts = tuple(
        (np.random.default_rng(i).normal(size=(4, 3)), np.arange(4)[:, None]) for i in range(2)
    )
    found = read(pickle.dumps(parts, 2))
    for pair, expected in zip(found, parts):
        for value, array in zip(pair, expected):
            np.testing.assert_array_equal(array_of(value), array)


def test_what_python_2_wrote():
    """As in CIFAR's archives: byte strings as keys, an array whose bytes are a Python 2 string."""
    data = (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85"
        b"U\x01b\x87R(K\x01K\x02K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x04\x01\x02\xfe\xfftbU\x06labels]q\x04(K\x03K\x05eu."
    )
    found = read(data, encoding="bytes")
    np.testing.assert_array_equal(array_of(found[b"data"]), [[1, 2], [254, 255]])
    assert found[b"labels"] == [3, 5]


class Calls:
    """Pickles to a call of any function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "function",
    [
        os.system,
        eval,
        exec,
        print,
        getattr,
        np.load,
        np.frombuffer,
        pickle.loads,
        open,
        copyreg.add_extension,
    ],
)
def test_no_function_is_called(function, tmp_path):
    marker = tmp_path / "touched"
    with pytest.raises(
        InputError, match=r"the pickle holds the name .*only NumPy arrays of numbers"
    ):
        read(pickle.dumps(Calls(function, f"touch {marker}")))
    assert not marker.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, "a"], dtype=object),
        np.array(["text"]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.float64(3.0),
        np.random.default_rng(0),
        slice(1),
        {1}.__class__,
        ValueError("x"),
    ],
    ids=[
        "objects",
        "text",
        "record",
        "dates",
        "scalar",
        "generator",
        "slice",
        "class",
        "exception",
    ],
)
def test_only_arrays_of_numbers(value):
    with pytest.raises(InputError, match="the pickle holds"):
        read(pickle.dumps([value]))


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"
FLOATS = b"cnumpy\ndtype\n(X\x02\x00\x00\x00f8I00\nI01\ntR"


def state(shape, data, kind=FLOATS):
    return ARRAY + b"(K\x01" + shape + kind + b"I00\n" + b"C" + bytes([len(data)]) + data + b"tb."


@pytest.mark.parametrize(
    "data",
    [
        state(b"(J\xff\xff\xff\x7ft", b"\0" * 8),  # two thousand million numbers in eight bytes
        state(b"(K\x02t", b"\0" * 8),
        state(b"(J\xff\xff\xff\xfft", b"\0" * 8),  # a negative size
        state(b"(K\x01K\x01K\x01K\x01K\x01t", b"\0" * 8),
        state(b"]", b"\0" * 8),
        state(b"(K\x01t", b"\0" * 8, kind=b"X\x02\x00\x00\x00f8"),
        ARRAY + b"}X\x05\x00\x00\x00valueK\x01sb.",  # a dictionary as state
        ARRAY + b"(NN}X\x05\x00\x00\x00valueK\x01stb.",
        # a state for what a name stands for: nothing of ours may be changed
        b"cnumpy.core.multiarray\n_reconstruct\n}X\x08\x00\x00\x00__call__K\x01sb.",
        b"cnumpy.core.multiarray\n_reconstruct\nN}X\x08\x00\x00\x00__call__K\x01s\x86b.",
        b"cnumpy\nndarray\n}X\x0c\x00\x00\x00__setstate__K\x01sb.",
        b"cnumpy\nndarray\nN}X\x0c\x00\x00\x00__setstate__K\x01s\x86b.",
        b"cnumpy\ndtype\nN}X\x05\x00\x00\x00dtypeK\x01s\x86b.",
        b"cbuiltins\nbytes\n(J\xff\xff\xff\x7ftR.",  # two thousand million zeros
        b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x06\x00\x00\x00rot_13tR.",
        b"Pelsewhere\n.",  # a persistent reference
        b"\x80\x02\x82\x01.",  # the extension registry
        b"r\xff\xff\xff\x7f.",  # a memo of two thousand million
        b"(" * 200_000,
        b"\x80\x63.",
        b"",
        b"not a pickle",
    ],
)
def test_hostile_states(data):
    before = {
        name: dict(vars(item))
        for name, item in vars(array_pickle).items()
        if isinstance(item, type)
    }
    with pytest.raises(InputError, match="the pickle"):
        array_of(read(data))
    assert {
        name: dict(vars(item))
        for name, item in vars(array_pickle).items()
        if isinstance(item, type)
    } == before
    np.testing.assert_array_equal(array_of(read(pickle.dumps(np.arange(3)))), [0, 1, 2])


def test_cut_and_changed_files():
    """Every prefix and a thousand changed bytes: an array or an InputError, never anything else."""
    whole = pickle.dumps((np.arange(5.0), np.arange(5)), 2)
    for end in range(len(whole)):
        with pytest.raises(InputError):
            read(whole[:end])
    rng = np.random.default_rng(0)
    for _ in range(1000):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] = rng.integers(256)
        with contextlib.suppress(InputError):
            read(bytes(changed))


def test_our_hand_written_pickles_are_pickles():
    assert [op.name for op, _, _ in pickletools.genops(state(b"(K\x01t", b"\0" * 8))][-1] == "STOP"
    np.testing.assert_array_equal(array_of(read(state(b"(K\x01t", b"\0" * 8))), [0.0])
