"""Files made to hurt: sound files of every kind, and seeded ways to spoil them. The same seed gives
the same bytes.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

N, K = 40, 3
_RNG = np.random.default_rng(7)
LABELS = _RNG.integers(0, K, N)
TABLE = _RNG.normal(size=(N, K)) + 2 * np.eye(K)[LABELS]

#: Numbers at which lengths, offsets and counts break.
EDGES = [
    0,
    1,
    2,
    7,
    8,
    0x7F,
    0xFF,
    0x7FFF,
    0xFFFF,
    1 << 20,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
]
ODD_TEXTS = [
    "", " ", "\x00", "nan", "NaN", "-inf", "Infinity", "1e999", "-1e999", "1e-999", "9" * 400, "0x10", "1_000", "١٢", "½",
    "\ufeff", "\u202e", "\x1b[31m", "é", "𝟙", "'=1", "=1+1", '"', '""', "a,b", "[1,2,3]", "[", "None", "null", "true",
    "-0", "+1", "1.", ".5", "1e5", "0.1 0.2", "\u2028", "\r", "x" * 3000, "1,5", "e", "-", "#", "%s", "{}", "../x",
]  # fmt: skip


# ── sound files ───────────────────────────────────────────────────────────────────────────────────


def npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=True)
    return file.getvalue()


def npz(arrays: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in arrays.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return file.getvalue()


def records() -> np.ndarray:
    rows = np.empty(
        N, dtype=[("id", "<U5"), ("logits", "<f4", (K,)), ("label", "i1"), ("note", "<f8")]
    )
    rows["id"], rows["logits"], rows["label"], rows["note"] = (
        [f"r{k}" for k in range(N)],
        TABLE,
        LABELS,
        0.5,
    )
    return rows


def text(delimiter: str = ",", *, lists: bool = False, names: bool = False) -> str:
    labels = [("cat", "dog", "fox")[k] for k in LABELS] if names else list(map(str, LABELS))
    if lists:
        quote = '"' if delimiter == "," else ""
        body = [
            f"{quote}[{', '.join(f'{x:.3f}' for x in row)}]{quote}{delimiter}{y}"
            for row, y in zip(TABLE, labels)
        ]
        return "\n".join([f"logits{delimiter}label", *body]) + "\n"
    header = ["id", *(("cat", "dog", "fox") if names else ("0", "1", "2")), "label"]
    body = [
        delimiter.join([f"r{k}", *(f"{x:.4f}" for x in row), y])
        for k, (row, y) in enumerate(zip(TABLE, labels))
    ]
    return "\n".join([delimiter.join(header), *body]) + "\n"


def arrow_table(random_: random.Random | None = None) -> Any:
    import pyarrow as pa

    pick = random_.choice if random_ is not None else (lambda options: options[0])
    flat = pa.array(
        TABLE.ravel(),
        pick([pa.float64(), pa.float32(), pa.float16() if random_ is None else pa.float64()]),
    )
    offsets = pa.array(np.arange(0, N * K + 1, K), pa.int32())
    table: Any = pick(
        [
            lambda: {"logits": pa.FixedSizeListArray.from_arrays(flat, K)},
            lambda: {"logits": pa.ListArray.from_arrays(offsets, flat)},
            lambda: {
                f"logits_{name}": pa.array(TABLE[:, k])
                for k, name in enumerate(("cat", "dog", "fox"))
            },
        ]
    )()
    names = [("cat", "dog", "fox")[label] for label in LABELS]
    labels: Any = pick(
        [
            lambda: pa.array(LABELS),
            lambda: pa.array(names).dictionary_encode(),
            lambda: pa.array(names, pa.large_string()),
            lambda: pa.array(names, pa.string_view()),
            lambda: pa.array(LABELS).dictionary_encode(),
        ]
    )()
    whole = pa.table({**table, "label": labels, "id": pa.array([f"row {k}" for k in range(N)])})
    return whole.replace_schema_metadata({b"metacal.classes": b'["cat", "dog", "fox"]'})


def arrow(table: Any, *, stream: bool = False, codec: str | None = None) -> bytes:
    import pyarrow as pa

    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    opened = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opened(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=17)
    return sink.getvalue()


def parquet(table: Any, random_: random.Random | None = None) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if random_ is not None:
        views = [k for k, field in enumerate(table.schema) if pa.types.is_string_view(field.type)]
        for k in views:
            table = table.set_column(k, table.schema.names[k], table.column(k).cast(pa.string()))
    sink = io.BytesIO()
    pick = random_.choice if random_ is not None else (lambda options: options[0])
    pq.write_table(
        table,
        sink,
        compression=pick(["none", "snappy", "zstd", "gzip"]),
        row_group_size=pick([N, 13]),
        use_dictionary=pick([True, False]),
        data_page_version=pick(["1.0", "2.0"]),
    )
    return sink.getvalue()


def safetensors(header: dict[str, Any] | None = None, kind: str = "F32") -> bytes:
    numbers = {
        "F32": TABLE.astype("<f4"),
        "F64": TABLE.astype("<f8"),
        "F16": TABLE.astype("<f2"),
        "BF16": (TABLE.astype("<f4").view("<u4") >> 16).astype("<u2"),
    }[kind].tobytes()
    labels = LABELS.astype("<i8").tobytes()
    if header is None:
        header = {
            "logits": {"dtype": kind, "shape": [N, K], "data_offsets": [0, len(numbers)]},
            "labels": {
                "dtype": "I64",
                "shape": [N],
                "data_offsets": [len(numbers), len(numbers) + len(labels)],
            },
        }
    words = json.dumps(header).encode()
    return struct.pack("<Q", len(words)) + words + numbers + labels


def torch_file(value: Any = None) -> bytes:
    import torch

    file = io.BytesIO()
    if value is None:
        value = {"logits": torch.tensor(TABLE, dtype=torch.float32), "labels": torch.tensor(LABELS)}
    torch.save(value, file)
    return file.getvalue()


@cache
def sound(kind: str) -> tuple[bytes, ...]:
    """Sound files of one kind, in several ways."""
    if kind == ".npy":
        single, double = TABLE.astype("<f4"), TABLE.astype(">f8")
        return (
            npy(single),
            npy(double),
            npy(np.asfortranarray(TABLE)),
            npy(records()),
            npy(single, (2, 0)),
        )
    if kind == ".npz":
        arrays = {
            "logits.npy": npy(TABLE),
            "labels.npy": npy(LABELS),
            "id.npy": npy(np.arange(N)),
            "x.npy": npy(LABELS),
        }
        named = arrays | {"classes.npy": npy(np.array(["cat", "dog", "fox"]))}
        return npz(arrays), npz(arrays, zipfile.ZIP_DEFLATED), npz(named)
    if kind in (".csv", ".tsv"):
        delimiter = "," if kind == ".csv" else "\t"
        return tuple(
            text(delimiter, **how).encode()
            for how in ({}, {"names": True}, {"lists": True}, {"lists": True, "names": True})
        )
    if kind == ".safetensors":
        return tuple(safetensors(kind=dtype) for dtype in ("F32", "F64", "F16", "BF16"))
    if kind == ".pt":
        return (torch_file(), torch_file(_tensor()))
    dice = random.Random(kind)
    tables = [arrow_table(), *(arrow_table(dice) for _ in range(6))]
    if kind == ".parquet":
        return tuple(parquet(table, dice) for table in tables)
    stream, codecs = kind == ".arrows", (None, "lz4", "zstd")
    return tuple(arrow(table, stream=stream, codec=codecs[k % 3]) for k, table in enumerate(tables))


def _tensor() -> Any:
    import torch

    return torch.tensor(TABLE)


# ── ways to spoil any file ────────────────────────────────────────────────────────────────────────


def _flip(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice([1, 1, 2, 8, 40])):
        place = dice.randrange(len(data))
        data[place] ^= 1 << dice.randrange(8)


def _flip_near_the_ends(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice([1, 2, 6])):
        reach = min(len(data), dice.choice([16, 128, 600]))
        place = dice.randrange(reach)
        data[place if dice.random() < 0.5 else len(data) - 1 - place] = dice.randrange(256)


def _cut(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(1, len(data)) :]


def _cut_in_front(data: bytearray, dice: random.Random) -> None:
    del data[: dice.randrange(1, len(data))]


def _splice(data: bytearray, dice: random.Random) -> None:
    length = dice.randrange(1, min(200, len(data)))
    start, to = dice.randrange(len(data) - length + 1), dice.randrange(len(data))
    data[to : to + dice.choice([0, length])] = data[start : start + length]


def _drop(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(data))
    del data[start : start + dice.choice([1, 2, 8, 64])]


def _blank(data: bytearray, dice: random.Random) -> None:
    start, length = dice.randrange(len(data)), dice.choice([1, 4, 8, 64])
    stop = min(len(data), start + length)
    data[start:stop] = bytes([dice.choice([0, 0xFF, 0x80, 0x7F])]) * (stop - start)


def _set_a_number(data: bytearray, dice: random.Random) -> None:
    width = dice.choice([1, 2, 4, 8])
    if len(data) < width:
        return
    place = dice.randrange(0, len(data) - width + 1)
    if dice.random() < 0.7:
        place -= place % width
    number = dice.choice(EDGES) % (1 << 8 * width)
    data[place : place + width] = number.to_bytes(width, dice.choice(["little", "little", "big"]))


def _grow(data: bytearray, dice: random.Random) -> None:
    data += bytes(dice.randrange(256) for _ in range(dice.choice([1, 8, 100])))


ANY: list[Callable[[bytearray, random.Random], None]] = [
    _flip, _flip_near_the_ends, _flip_near_the_ends, _cut, _cut_in_front, _splice, _drop, _blank, _set_a_number,
    _set_a_number, _grow,
]  # fmt: skip


# ── ways to spoil one kind ────────────────────────────────────────────────────────────────────────

DTYPES = [
    "<f4", ">f8", "<f2", "<f16", "<c8", "<i8", ">i2", "<u8", "|b1", "|S3", "<U3", "|O", "<M8[ns]", "|V8", "f", "", "<f3",
    "<U0", "|S0", "<U999999999", "i1,f4", "[('a','<f4')]", "<f8)", "object", "<i99999999999999999999", "float64", "?",
]  # fmt: skip
SHAPES = [
    "()", "(0,)", "(40,)", "(0, 3)", "(40, 0)", "(40, 1)", "(40, 3)", "(3, 40)", "(120, 1)", "(1, 120)", "(2, 20, 3)",
    "(-1, 3)", "(-40, -3)", "(10**12, 3)", "(1000000000000, 3)", "(9223372036854775807, 2)", "(18446744073709551616,)",
    "(True, 3)", "(40.0, 3)", "[40, 3]", "None", "40", "('40', 3)", "(40, 3,)" + " " * 20000, "(" * 300 + "1" + ")" * 300,
    "(" + "1, " * 70 + ")", "(40, 3", "(4" + "0" * 5000 + ", 3)", "{}", "(40, 3) if 1 else 2", "__import__('os')",
]  # fmt: skip


def _npy_text(dice: random.Random) -> bytes:
    """An .npy whose header says something odd."""
    descr = dice.choice(
        ["'<f8'"] * 3 + [repr(kind) for kind in DTYPES] + [repr(records().dtype.descr)]
    )
    shape = dice.choice(["(40, 3)"] * 3 + SHAPES)
    fortran = dice.choice(["False", "False", "True", "1", "None", "'no'"])
    words = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    if dice.random() < 0.1:
        words = dice.choice(
            [
                "",
                "{}",
                "[]",
                "{'descr': '<f8'}",
                words * 2,
                words[:-3],
                words.replace("'", '"'),
                "\x00" * 9,
            ]
        )
    header = words.encode("utf-8").ljust(dice.choice([118, 54, 0])) + b"\n"
    version = dice.choice([1, 1, 2, 3, 0, 9])
    length = len(header) if dice.random() < 0.9 else dice.choice(EDGES)
    size = (
        struct.pack("<H", length % (1 << 16))
        if version == 1
        else struct.pack("<I", length % (1 << 32))
    )
    body = dice.choice(
        [TABLE.tobytes(), b"", TABLE.tobytes()[:100], records().tobytes(), b"\xff" * 960]
    )
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + body


def _npz_members(dice: random.Random) -> bytes:
    """An archive with odd members."""
    arrays = {"logits.npy": npy(TABLE), "labels.npy": npy(LABELS)}
    for _ in range(dice.choice([1, 1, 2, 4])):
        name = dice.choice([
            "logits.npy", "labels.npy", "classes.npy", "id.npy", "y.npy", "label.npy", "", ".npy", "logits", "../logits.npy",
            "/etc/x.npy", "a\x00.npy", "é.npy", "\x1b[31m.npy", "logits.npy/", "x" * 60000, "probs.npy", "__MACOSX/._x",
        ])  # fmt: skip
        content = dice.choice([
            lambda: _npy_text(dice), lambda: b"", lambda: npy(LABELS.astype(float)), lambda: b"PK\x03\x04",
            lambda: npy(np.array(["cat", "dog", "fox"])), lambda: npy(np.array([[0, 1, 2]])), lambda: npy(TABLE.astype("c16")),
            lambda: npy(np.array([0, 1, 2], dtype="M8[s]")), lambda: npy(np.array([0.5, 1.5, None], dtype=object)),
            lambda: npy(np.eye(K)[LABELS]), lambda: npy(np.float64(3)), lambda: npy(TABLE * np.nan),
            lambda: npy(LABELS.astype("u8") + (1 << 63)), lambda: npy(np.array([b"a", b"\xff", b"c"])),
            lambda: npy(TABLE.astype(np.longdouble)), lambda: npy(TABLE > 0), lambda: npy(np.full((N, K), "x")),
        ])()  # fmt: skip
        arrays[name] = content
    if dice.random() < 0.2:
        del arrays[dice.choice(["logits.npy", "labels.npy"])]
    data = bytearray(
        npz(
            arrays,
            dice.choice(
                [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
            ),
        )
    )
    if dice.random() < 0.3:  # what the directory says of a member: sizes, sums, flags, methods
        places = [
            k
            for k in range(len(data) - 4)
            if data[k : k + 4] in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06")
        ]
        place = dice.choice(places) + dice.randrange(4, 30)
        width = dice.choice([1, 2, 4])
        data[place : place + width] = (dice.choice(EDGES) % (1 << 8 * width)).to_bytes(
            width, "little"
        )
    return bytes(data)


def _cells(data: bytes, dice: random.Random, delimiter: str) -> bytes:
    """A table of text with odd cells, lines, columns or marks."""
    lines = [line.split(delimiter) for line in data.decode().splitlines()]
    for _ in range(dice.choice([1, 1, 2, 5])):
        row, column = dice.randrange(len(lines)), dice.randrange(max(1, len(lines[0])))
        change = dice.randrange(10)
        if change < 4 and column < len(lines[row]):
            lines[row][column] = dice.choice(ODD_TEXTS)
        elif change == 4:  # a header
            lines[0] = [
                dice.choice([name, name, *ODD_TEXTS, "label", "labels", "y", "id", "logits"])
                for name in lines[0]
            ]
        elif change == 5:  # a column twice, or gone
            again = dice.random() < 0.5
            lines = [
                [*line[:column], *(line[column : column + 1] * (2 * again)), *line[column + 1 :]]
                for line in lines
            ]
        elif change == 6:
            lines.insert(row, [] if dice.random() < 0.5 else ["1"] * dice.randrange(9))
        elif change == 7:
            lines[row] = lines[row] * dice.choice([0, 2, 50])
        elif change == 8:
            lines = lines[: dice.randrange(4)] or [[]]
        else:
            word = dice.choice(ODD_TEXTS)
            lines = [lines[0], *([*line[:column], word, *line[column + 1 :]] for line in lines[1:])]
        if not lines or not lines[0]:
            break
    ends = [dice.choice(["\n", "\r\n", "\r", "\n\n"]) for _ in range(2)]
    words = "".join(delimiter.join(line) + dice.choice(ends) for line in lines)
    how = dice.choice(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "latin-1", "utf-32"])
    return words.encode(how, errors="replace")


ODD_JSON: list[Any] = [
    None, True, -1, 0, 3.5, 1 << 70, float("nan"), "F32", "", [], [1 << 62, 1 << 62], [-1, 3], [40, 3], {}, [[40, 3]], "40",
    [40.0, 3], [0, 480], [480, 0], [0, 1 << 64], ["0", "480"], [0], [0, 1, 2], [1] * 70, "BF16", "F8_E4M3", "F4", "BOOL",
    "U64", "C64", "\x1b[2J",
]  # fmt: skip


def _safetensors_header(dice: random.Random) -> bytes:
    data = dice.choice(sound(".safetensors"))
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    for _ in range(dice.choice([1, 1, 2])):
        entry = header.get(dice.choice(["logits", "labels"]), {})
        change = dice.randrange(6)
        if change < 3 and isinstance(entry, dict):
            entry[dice.choice(["dtype", "shape", "data_offsets"])] = dice.choice(ODD_JSON)
        elif change == 3:
            header[dice.choice(["logits", "labels", "id", "x", "__metadata__", ""])] = dice.choice(
                ODD_JSON
            )
        elif change == 4 and header:
            del header[dice.choice(list(header))]
        elif isinstance(entry, dict) and entry:
            del entry[dice.choice(list(entry))]
    words = json.dumps(header).encode()
    if dice.random() < 0.15:
        words = dice.choice(
            [
                b"[" * 100_000,
                b"null",
                b"[]",
                b"3",
                b'{"logits":',
                b"\xff" * 40,
                words[:-1],
                words + b"\x00" * 7,
                b'"x"',
            ]
        )
    length = len(words) if dice.random() < 0.85 else dice.choice(EDGES)
    return struct.pack("<Q", length) + words + data[8 + size :]


def _odd_tensors(dice: random.Random) -> bytes:
    import torch

    good = torch.tensor(TABLE, dtype=torch.float32)
    value: Any = dice.choice([
        lambda: {"logits": torch.zeros(1).as_strided((10**9, 10), (0, 0)), "labels": torch.tensor(LABELS)},
        lambda: {"logits": good.to_sparse(), "labels": torch.tensor(LABELS)},
        lambda: {"logits": torch.sparse_coo_tensor(torch.zeros((2, 1), dtype=torch.long), torch.ones(1), (10**9, 1000))},
        lambda: {"logits": good.to(torch.complex64)}, lambda: {"logits": good.to(torch.bfloat16), "y": torch.tensor(LABELS)},
        lambda: {"logits": torch.quantize_per_tensor(good, 0.1, 0, torch.qint8)}, lambda: {"logits": good.to("meta")},
        lambda: {"logits": good.T, "labels": torch.tensor(LABELS)}, lambda: {"logits": good[0]}, lambda: {"logits": None},
        lambda: {"logits": good, "labels": [1, "a", None]}, lambda: {"logits": good, "classes": [["a"], "b", 3]},
        lambda: {"logits": good, "classes": {"a": 1}}, lambda: {3: good}, lambda: [good, good], lambda: good.half(),
        lambda: {"logits": good, "labels": torch.tensor(LABELS), "classes": ["cat", "dog", "fox"]},
        lambda: {"logits": good, "labels": torch.nn.functional.one_hot(torch.tensor(LABELS))}, lambda: "text", lambda: 3,
        lambda: {"logits": good, "labels": torch.tensor(LABELS).float() + 0.5}, lambda: {"logits": good.requires_grad_()},
        lambda: {"logits": good.to(torch.float8_e4m3fn)}, lambda: {"logits": good.conj() * 1j}, dict,
    ])()  # fmt: skip
    data = torch_file(value)
    if dice.random() < 0.4:  # the archive anew, one member of it spoiled or packed
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = dice.choice(list(members))
        spoiled = bytearray(members[name] + b"\x00\x00")
        dice.choice(ANY)(spoiled, dice)
        members[name] = bytes(spoiled)
        data = npz(members, dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    return data


def _odd_columns(dice: random.Random) -> Any:
    """A sound Arrow table of odd columns."""
    import pyarrow as pa

    columns = dict(zip(arrow_table(dice).schema.names, arrow_table(random.Random(1)).columns))
    text_ = [f"t{k % 3}" for k in range(N)]
    for _ in range(dice.choice([1, 1, 2])):
        name = dice.choice(["logits", "label", "id", "logits_cat", "x", "y", "\x1b[31m", "", "é"])
        columns[name] = dice.choice([
            lambda: pa.nulls(N), lambda: pa.array([None, *TABLE[1:, 0]]), lambda: pa.array([[1.0], *([[1.0, 2.0]] * (N - 1))]),
            lambda: pa.array([[None, 1.0, 2.0]] * N), lambda: pa.array([None] + [[1.0, 2.0]] * (N - 1)),
            lambda: pa.array([{"a": 1}] * N), lambda: pa.array(text_).dictionary_encode(), lambda: pa.array([b"\xff"] * N),
            lambda: pa.array([0] * N, pa.timestamp("ns")), lambda: pa.array([1] * N, pa.decimal128(5)), lambda: pa.array([True] * N),
            lambda: pa.array(TABLE[:, 0].astype("f2")), lambda: pa.array([[[1.0]]] * N), lambda: pa.array([[]] * N, pa.list_(pa.float32())),
            lambda: pa.array(LABELS.astype("u8") + (1 << 63)), lambda: pa.array(["x" * 5000, *text_[1:]]),
            lambda: pa.array([[1.0, 2.0, 3.0]] * N, pa.list_view(pa.float64())), lambda: pa.array([[1, 2, 3]] * N, pa.large_list(pa.int8())),
            lambda: pa.DictionaryArray.from_arrays(pa.array([0, 1] * (N // 2)), pa.array(["a", None])),
            lambda: pa.array([float("nan")] * N), lambda: pa.array([[float("inf")] * K] * N), lambda: pa.array([[True] * K] * N),
            lambda: pa.array([0.5] * N), lambda: pa.array([1] * N, pa.date32()), lambda: pa.array([["a", "b"]] * N),
            lambda: pa.RunEndEncodedArray.from_arrays([N], [1.5]), lambda: pa.array([[1.0] * K] * N, pa.list_(pa.float64(), K)).slice(0),
        ])()  # fmt: skip
    if dice.random() < 0.15:
        columns = {name: column[:0] for name, column in columns.items()}
    table = pa.table(columns)
    metadata = dice.choice(
        [
            None,
            b"[]",
            b"[1,",
            b'["a","b","c"]',
            b'[["a"],1]',
            b"[" * 5000,
            b'{"a":1}',
            b"[null,true,1e999]",
            b"\xff",
        ]
    )
    return (
        table if metadata is None else table.replace_schema_metadata({b"metacal.classes": metadata})
    )


def _odd_arrow(kind: str, dice: random.Random) -> bytes:
    table = _odd_columns(dice)
    try:
        if kind == ".parquet":
            return parquet(table, dice)
        return arrow(table, stream=kind == ".arrows", codec=dice.choice([None, "lz4", "zstd"]))
    except Exception:
        return sound(kind)[0]


KINDS = (
    ".npy",
    ".npz",
    ".csv",
    ".tsv",
    ".parquet",
    ".arrow",
    ".arrows",
    ".feather",
    ".safetensors",
    ".pt",
)


def case(seed: int) -> tuple[str, bytes]:
    """The suffix and the bytes of a case; every kind in turn. -1 is a sound one."""
    if seed < 0:
        return ".npz", sound(".npz")[0]
    dice = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    data = dice.choice(sound(kind))
    if dice.random() < 0.5:
        if kind == ".npy":
            data = _npy_text(dice)
        elif kind == ".npz":
            data = _npz_members(dice)
        elif kind in (".csv", ".tsv"):
            data = _cells(data, dice, "," if kind == ".csv" else "\t")
        elif kind == ".safetensors":
            data = _safetensors_header(dice)
        elif kind == ".pt":
            data = _odd_tensors(dice)
        else:
            data = _odd_arrow(kind, dice)
        if dice.random() < 0.7:
            return kind, data
    spoiled = bytearray(data or b"\x00")
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        if len(spoiled) > 1:
            dice.choice(ANY)(spoiled, dice)
    return kind, bytes(spoiled)
