"""Mutations of saved files: a case is a number, and always the same bytes. `fuzz_artifacts` runs
them.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metacal.certificates.design import CertificationDesign
from metacal.certificates.stored_fields import get_stored_values

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "contracts" / "fixtures"

#: What stands at some place in some file, and what never should.
ODD = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        3,
        7,
        2**31,
        2**53,
        2**63 - 1,
        2**63,
        -(2**63),
        -(2**64),
        10**30,
        10**400,
    ),
    *(
        0.0,
        -0.0,
        0.5,
        1.0,
        5e-324,
        1e-320,
        1e-300,
        1e-45,
        1e-30,
        1e30,
        1e38,
        1e39,
        1e50,
        1e99,
        1e100,
        1e308,
        -1e308,
    ),
    *(0.9999999999999999, 1.0000000000000002, -1e30, -1e-300, 0.1, 1e-9, 1 - 1e-9),
    *(
        "",
        "inf",
        "-inf",
        "nan",
        "NaN",
        "\x00",
        "é" * 50,
        "\ud800",
        "\u202e",
        "\x1b[2J",
        "0",
        "1",
        "x" * 100_000,
    ),
    *(
        "entropy",
        "energy",
        "margin",
        "logits",
        "probabilities",
        "miscoverage",
        "linear",
        "step",
        "mean",
    ),
    *(
        "certified",
        "approximate",
        "in expectation",
        "none",
        "MetaCal",
        "Marks",
        "Table",
        "TemperatureMap",
        "SplineMap",
    ),
    *(
        "<f8",
        "|O",
        "object",
        "__import__('os').system('true')",
        "os.system",
        "hmac-sha256",
        "ed25519",
    ),
    *([], {}, [[]], [None], [0] * 50_000, [1e308] * 3, [[[[1.0]]]], ["a", 1, None, True]),
    *({"type": "Marks"}, {"type": "TemperatureMap", "inverse_temperature": 1e308}),
    *({"__reduce__": ["os.system", "true"]}, {"$ref": "file:///etc/passwd"}),
]
#: Numbers that an array of floats may hold.
NUMBERS = [
    0.0,
    -0.0,
    5e-324,
    1e-300,
    1e-30,
    1e-9,
    0.5,
    1.0,
    2.0,
    1e3,
    1e9,
    1e30,
    1e38,
    1e50,
    1e99,
    1e100,
    0.999,
    -1.0,
]

Document = dict[str, Any]


class Case(NamedTuple):
    """The bytes of a mutated file, what it was, and what was done to it."""

    fixture: str
    kinds: tuple[str, ...]
    raw: bytes


def texts() -> dict[str, str]:
    """The files that are mutated, by name: one of every kind."""
    folders = ("artifacts-v3/*.json", "artifact-v3-*.json", "cascade-v3/*.json", "scores-v3*.json")
    found = [path for names in folders for path in FIXTURES.glob(names)]
    return {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted(found)
        if "expected" not in path.stem
    }


def mutated(files: dict[str, str], number: int) -> Case:
    """Case `number`."""
    rng = random.Random(number)
    name = rng.choice(sorted(files))
    if rng.random() < 0.15:
        return Case(name, ("bytes",), broken_bytes(rng, files[name].encode()))
    document = json.loads(files[name])
    del document["checksum"]
    kinds = []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3, 8])):
        mutation = rng.choice(MUTATIONS)
        kinds.append(mutation.__name__)
        # An earlier mutation may have taken away what a later one looks for, or made it deeper than
        # Python copies.
        with contextlib.suppress(
            LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError
        ):
            mutation(rng, document)
    try:
        signed = forged_checksum(document)
    except (ValueError, RecursionError, TypeError):
        signed = "sha256:" + "0" * 64
    try:
        raw = json.dumps({**document, "checksum": signed}).encode("utf-8", "surrogatepass")
    except RecursionError:  # deeper than Python can write: the text is made by hand
        raw = b'{"format": "metacal", "stages": ' + b'{"source": ' * 5000
    if rng.random() < 0.03:
        kinds.append("doubled_key")
        raw = (
            raw[:1]
            + rng.choice([b'"kind": "MetaCal", ', b'"format": "metacal", ', b'"stages": {}, '])
            + raw[1:]
        )
    return Case(name, tuple(kinds), raw)


def forged_checksum(document: Document) -> str:
    """A forger can compute it too."""
    from metacal.io.artifact.wrapping import checksum

    return checksum(document)


# ── places ────────────────────────────────────────────────────────────────────────────────────────


def places(data: Any, path: tuple[Any, ...] = ()) -> Any:
    """The path of every value, up to 200 of one list."""
    items: Any = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in list(items)[:200]:
        yield (*path, key)
        if len(path) < 12:
            yield from places(value, (*path, key))


def at(data: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path."""
    for key in path:
        data = data[key]
    return data


def somewhere(rng: random.Random, document: Document, wanted: Any = object) -> tuple[Any, Any]:
    """A parent and a key, at random; of a value of the wanted type if there is one."""
    every = list(places(document))
    path = rng.choice([path for path in every if isinstance(at(document, path), wanted)] or every)
    return at(document, path[:-1]), path[-1]


def arrays(document: Document) -> list[Any]:
    """Every array of the document, as it is encoded."""
    found = (at(document, path) for path in places(document))
    return [
        value for value in found if isinstance(value, dict) and {"dtype", "shape"} <= set(value)
    ]


# ── mutations ─────────────────────────────────────────────────────────────────────────────────────


def replaced(rng: random.Random, document: Document) -> None:
    """Something odd anywhere."""
    parent, key = somewhere(rng, document)
    parent[key] = copy.deepcopy(rng.choice(ODD))


def odd_number(rng: random.Random, document: Document) -> None:
    """An odd number in place of a number."""
    parent, key = somewhere(rng, document, (int, float))
    parent[key] = rng.choice([value for value in ODD if type(value) in (int, float)])


def nudged(rng: random.Random, document: Document) -> None:
    """A number a little or a lot larger or smaller."""
    parent, key = somewhere(rng, document, (int, float))
    value = parent[key]
    ways = [
        value + 1,
        value - 1,
        -value,
        value * 1e9,
        value * 1e-9,
        value + 1e-9,
        value * (1 + 1e-15),
        1 - value,
    ]
    parent[key] = rng.choice(ways)


def removed(rng: random.Random, document: Document) -> None:
    """An entry less."""
    parent, key = somewhere(rng, document)
    del parent[key]


def added(rng: random.Random, document: Document) -> None:
    """An entry more."""
    parent, _ = somewhere(rng, document)
    value = copy.deepcopy(rng.choice(ODD))
    if isinstance(parent, dict):
        parent[
            rng.choice(
                ["extra", "__class__", "type", "data_hash", "max_miscoverage", "score", "signature"]
            )
        ] = value
    else:
        parent.insert(rng.randrange(len(parent) + 1), value)


def renamed(rng: random.Random, document: Document) -> None:
    """An entry under a name that looks like its own."""
    parent, key = somewhere(rng, document)
    name = rng.choice(
        [str(key).upper(), f"{key} ", f"{key}\u200b", f"_{key}", str(key)[:-1], "type", "\ud800"]
    )
    parent[name] = parent.pop(key)


def swapped(rng: random.Random, document: Document) -> None:
    """Two values in each other's place."""
    (parent, key), (other, name) = somewhere(rng, document), somewhere(rng, document)
    parent[key], other[name] = copy.deepcopy(other[name]), copy.deepcopy(parent[key])


def retyped(rng: random.Random, document: Document) -> None:
    """The same value as another JSON type."""
    parent, key = somewhere(rng, document)
    value = parent[key]
    parent[key] = rng.choice(
        [str(value), [value], {"value": value}, bool(value), [value, value], json.dumps(value)]
    )


def reshaped(rng: random.Random, document: Document) -> None:
    """A shape that lies."""
    array = rng.choice(arrays(document))
    array["shape"] = rng.choice(
        [
            [10**12, 10**12],
            [2**62],
            [0],
            [-1],
            [],
            [1] * 40,
            [3, 3],
            "3",
            [3.0],
            [True, 3],
            [None],
            [0, 3],
            [3, 0],
        ]
    )


def poisoned(rng: random.Random, document: Document) -> None:
    """NaN, infinities, denormals and huge numbers inside an array; or another dtype, or damaged
    base64.
    """
    array = rng.choice(arrays(document))
    values = [
        rng.choice([np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 0.0, -1.0, 1.5])
        for _ in range(rng.choice([1, 3, 4, 9, 500]))
    ]
    array.pop("values", None)
    array["base64"] = base64.b64encode(np.array(values).tobytes()).decode()
    array["dtype"] = rng.choice(
        ["<f8", "<f8", "<f8", "<f2", "<i8", "|b1", "<c16", "<U1", "|O", "|V8", ">f8"]
    )
    array["shape"] = rng.choice([[len(values)], [len(values), 1], array.get("shape", [])])
    if rng.random() < 0.3:
        array["base64"] = array["base64"][:-3] + rng.choice(["", "!", "===", "\u0000", "é", "\n"])


def renumbered(rng: random.Random, document: Document) -> None:
    """An array of the right shape and dtype with other numbers in it, some or all."""
    array = rng.choice(arrays(document))
    size = math.prod(array["shape"])
    if array["dtype"] not in ("<f8", "<i8"):
        return
    if "values" in array:
        values = list(array["values"])
    else:
        values = np.frombuffer(base64.b64decode(array["base64"]), array["dtype"]).tolist()
    whole = array["dtype"] == "<i8"
    for k in (
        range(size)
        if rng.random() < 0.3
        else [rng.randrange(size) for _ in range(rng.choice([1, 2]))]
    ):
        values[k] = (
            rng.choice([0, 1, 2, 3, 9, -1, 2**62])
            if whole
            else rng.choice(NUMBERS) * rng.choice([1, 1, -1])
        )
    if rng.random() < 0.2:
        values = values[::-1] if rng.random() < 0.5 else sorted(values)
    array.pop("base64", None)
    array["values"] = values


def resized(rng: random.Random, document: Document) -> None:
    """Every array of some length made longer or shorter, consistently."""
    old = rng.choice([n for array in arrays(document) for n in array["shape"]])
    new = rng.choice([0, 1, 2, old + 1, 1001, 5000])
    for array in arrays(document):
        if array["shape"] == [old]:
            rises = np.linspace(0.0, 1.0, max(new, 1))[:new]
            array.pop("base64", None)
            array["shape"] = [new]
            array["values"] = rises.tolist() if array["dtype"] == "<f8" else list(range(new))


def deepened(rng: random.Random, document: Document) -> None:
    """A value inside many others."""
    parent, key = somewhere(rng, document)
    value = parent[key]
    for _ in range(rng.choice([5, 50, 900])):
        value = {"type": "ComposedMap", "first": value} if rng.random() < 0.5 else [value]
    parent[key] = value


def other_classes(rng: random.Random, document: Document) -> None:
    """More classes, other names: sizes that no longer agree, or all agree and are large."""
    size = rng.choice([1, 2, 3, 4, 1000, 20_000])
    dtype, values = rng.choice(
        [
            ("int64", list(range(size))),
            ("uint64", [2**64 - 1 - k for k in range(size)]),
            ("int8", [k % 256 - 128 for k in range(size)]),
            ("bool", [k % 2 == 1 for k in range(size)]),
            ("str", [f"c{k}" for k in range(size)]),
            ("str", ["\x1b[31m", "\x00", "e\u0301", "\u00e9", "a\x00", "a"][: max(size, 2)]),
            ("str", ["x" * 5_000_000, *map(str, range(size - 1))]),
        ]
    )
    for stage in document["stages"]:
        stage["source"]["classes"] = {"dtype": dtype, "values": values, "given": rng.random() < 0.5}
    if document["reject_label"] is not None:
        document["reject_label"] = rng.choice(["rejected", -1, 2**63 - 1, -(2**63), 300, True])


def other_maps(rng: random.Random, document: Document) -> None:
    """The map of another file, under this file's name."""
    other = rng.choice(json.loads(rng.choice(list(texts().values())))["stages"])["source"]
    name = rng.choice(["map", "curve"]) if other["type"] == "Marks" else "map"
    rng.choice(document["stages"])["source"][name] = other.get(name, other.get("curve"))


def recounted(rng: random.Random, document: Document) -> None:
    """Counts that agree with each other, however they came about, and everything that follows from
    them.
    """
    certificate = document["certificate"]
    n = rng.choice([1, 2, 24, 240, 500, 501, 10**6, 2**40, 2**53, 2**53 + 1, 2**62])
    right = rng.choice([1, n, max(1, n - 1), max(1, int(0.9 * n)), rng.randrange(1, n + 1)])
    kept = rng.choice([0, 1, right, rng.randrange(right + 1), max(0, right - 1)])
    wrong = rng.choice([0, n - right, rng.randrange(n - right + 1)])
    counts = {
        "n_rows": n,
        "n_correct": right,
        "n_accepted": kept + wrong,
        "n_correct_accepted": kept,
    }
    certificate.update(counts)
    if kept + wrong == n:
        certificate["lowest_rejected"] = None
        certificate["threshold"] = document["stages"][0]["threshold"] = rng.choice(
            ["inf", certificate["threshold"]]
        )
    if kept + wrong == 0:
        certificate["highest_accepted"] = None
    restated(document)


def retargeted(rng: random.Random, document: Document) -> None:
    """Another target or delta, in promise and certificate, and what follows to match."""
    certificate, promise = document["certificate"], document["promise"]
    name = rng.choice(
        [name for name in ("alpha", "beta", "delta") if promise.get(name) is not None]
    )
    value = rng.choice([5e-324, 1e-12, 1e-3, 0.01, 0.5, 0.9, 0.97, 0.999999, 0.9999999999999999])
    promise[name] = value
    if name == "delta":
        certificate["delta"] = value
    elif name == "alpha" and "max_miscoverage" in certificate:
        certificate["max_miscoverage"] = value
    else:
        certificate["target"] = value
    restated(document)


def moved(rng: random.Random, document: Document) -> None:
    """Another threshold, with scores on either side of it to match."""
    certificate = document["certificate"]
    value = rng.choice(
        [-1e9, -1.0, -1e-12, 0.0, 1e-300, 0.1, 0.5, 0.66, 0.7, 1.0, 1.0986, 1.1, 1e9, "inf", "-inf"]
    )
    certificate["threshold"] = document["stages"][0]["threshold"] = value
    if not isinstance(value, str) or rng.random() < 0.5:
        certificate["highest_accepted"] = value
        certificate["lowest_rejected"] = rng.choice(
            [None, "inf", value if isinstance(value, str) else value + 0.01]
        )


def reworded(rng: random.Random, document: Document) -> None:
    """Another rule, design, notes or traffic."""
    certificate = document["certificate"]
    number = rng.choice([-1, 0, 1, 2, 5, 240, 10**9, 10**20, 0.5, 1e308])
    around = get_stored_values(CertificationDesign())
    around[rng.choice(sorted(around))] = rng.choice([number, True, None, "given", "estimated"])
    notes = [
        *(
            [],
            ["guaranteed by law"],
            [{"kind": "trust_me"}],
            [{"kind": "remark", "text": "note"}] * 100,
        ),
        *([{"kind": "remark", "text": text}] for text in ("\x1b[2J\x1b[H", "n" * 5000, "fine")),
        [{"kind": "few_errors", "errors": number, "rows": 240}],
        [
            {
                "kind": "suspicion",
                "looks": rng.choice(["floor", "alike", "odd"]),
                "lowest": rng.choice([None, number]),
            }
        ],
        [
            {
                "kind": "score_chosen",
                "score": "entropy",
                "shares": rng.choice([[], [["margin", number]], [[]], number]),
            }
        ],
    ]
    rules = [
        "trust me",
        "",
        "umbrella",
        "fallback-sequence",
        "cascade-binomial",
        "paper-algorithm-1",
        "anytime-bets",
    ]
    traffic = {
        "n_rows": number,
        "n_accepted": certificate["n_accepted"],
        "population": rng.choice(["source", "target"]),
    }
    name, choices = rng.choice(
        [
            ("rule", rules),
            ("notes", notes),
            ("circumstances", [around]),
            ("traffic", [traffic]),
            ("score", ["trust me"]),
            ("statement", ["What is accepted is right."]),
        ]
    )
    certificate[name] = rng.choice(choices)


def pretend_signature(rng: random.Random, document: Document) -> None:
    """A signature that nobody made."""
    digits = rng.choice(["0" * 64, "0" * 128, "f" * 64, "zz", "", "A" * 64, "é" * 64])
    algorithm = rng.choice(["hmac-sha256", "ed25519", "none", "HMAC-SHA256", None, 1])
    document["signature"] = rng.choice(
        [{"algorithm": algorithm, "value": digits}, digits, None, [], {}]
    )


def other_version(rng: random.Random, document: Document) -> None:
    """A format that is not there yet, or never was."""
    document["version"] = rng.choice([0, 1, 2, 4, -1, 1.0, "1", 2**70, None, True])


def restated(document: Document) -> None:
    """What follows from the counts and the limits, as metacal would write it."""
    from metacal.io.artifact.audit import decode_certificate

    own = document["certificate"]
    own["traffic"] = {
        "n_rows": own["n_rows"],
        "n_accepted": own["n_accepted"],
        "population": "source",
    }
    again = decode_certificate(own).to_dict()
    own.update({name: again[name] for name in ("coverage", "selective_accuracy", "miscoverage")})


MUTATIONS = [
    *(
        replaced,
        replaced,
        odd_number,
        nudged,
        nudged,
        removed,
        added,
        renamed,
        swapped,
        retyped,
        reshaped,
        poisoned,
    ),
    *(
        renumbered,
        renumbered,
        renumbered,
        resized,
        deepened,
        other_classes,
        other_maps,
        recounted,
        recounted,
    ),
    *(retargeted, moved, reworded, pretend_signature, other_version),
]


def broken_bytes(rng: random.Random, raw: bytes) -> bytes:
    """Cut, spliced, not UTF-8, compressed, nested, padded."""
    way = rng.randrange(8)
    if way == 0:
        return raw[: rng.randrange(len(raw))]
    if way == 1:
        return raw[rng.randrange(len(raw)) :]
    if way == 2:
        return (
            rng.choice(
                [b"\xff\xfe", b"\x80\x04", b"PK\x03\x04", b"\x1f\x8b\x08", b"\xef\xbb\xbf", b"\x00"]
            )
            + raw
        )
    if way == 3:
        where = rng.randrange(len(raw))
        return (
            raw[:where]
            + rng.choice([b"\xc3", b"\xed\xa0\x80", b"\x00", b"\\ud800", b"\\u0000"])
            + raw[where:]
        )
    if way == 4:
        return rng.choice([b"[", b'{"a":', b'[{"a":', b"[[],"]) * rng.choice([10, 2000, 200_000])
    if way == 5:
        number = rng.choice(
            [
                b"9" * 5000,
                b"1e999",
                b"-1e999",
                b"0." + b"0" * 9999 + b"1",
                b"NaN",
                b"Infinity",
                b"1E+400",
            ]
        )
        return raw.replace(b'"version": 3', b'"version": ' + number, 1)
    if way == 6:
        many = rng.choice([b"0,", b"[],", b"{},", b'{"a":0},', b'"",', b"1.5,"])
        times = rng.choice([1000, 399_000 // many.count(b","), 10**6])
        return b'{"format": "metacal", "version": 3, "x": [' + many * times + b"0]}"
    spot = rng.randrange(len(raw))
    return (
        raw[:spot]
        + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 20)))
        + raw[spot + rng.randrange(30) :]
    )
