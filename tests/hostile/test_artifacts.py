"""Mutations of valid files of every kind: ArtifactError or an estimator that works, and nothing else ever happens.

A mutation is a number: `mutated(texts, n)` always gives the same bytes. METACAL_MUTATIONS=10000 tries more of them.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import os
import random
import resource
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from metacal.errors import ArtifactError, InputError
from metacal.io import artifact
from metacal.meta import MetaCal

FOLDER = Path(__file__).parents[1] / "contracts" / "fixtures" / "artifacts-v1"
TEXTS = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.json")) if path.stem != "expected"
}
COUNT = int(os.environ.get("METACAL_MUTATIONS", "1500"))
CHUNKS = 6
ROWS = np.random.default_rng(3).normal(size=(40, 3)) * 3

#: What stands at some place in some file, and what never should.
ODD = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, -1e308),
    *("", "inf", "-inf", "nan", "NaN", "\x00", "é" * 50, "\ud800", "x" * 100_000),
    *("entropy", "energy", "margin", "logits", "probabilities", "miscoverage"),
    *("certified", "approximate", "in expectation", "none", "MetaCal", "MetaMap", "TemperatureMap", "SplineMap"),
    *("<f8", "|O", "object", "__import__('os').system('true')", "os.system"),
    *([], {}, [[]], [None], [0] * 50_000, [1e308] * 3),
    *({"type": "MetaMap"}, {"type": "TemperatureMap", "inverse_temperature": 1e308}),
    *({"__reduce__": ["os.system", "true"]}, {"$ref": "file:///etc/passwd"}),
]


def mutated(texts: dict[str, str], number: int) -> bytes:
    """The bytes of mutation `number`."""
    rng = random.Random(number)
    name = rng.choice(sorted(texts))
    if rng.random() < 0.3:
        return broken_bytes(rng, texts[name].encode())
    document = json.loads(texts[name])
    del document["checksum"]
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        rng.choice([replace, replace, nudge, remove, add, swap, shape, poison, deepen, longer])(rng, document)
    if rng.random() < 0.1:
        document["version"] = rng.choice([0, 2, 3, -1, 1.0, "1", 2**70, None, True])
    try:
        signed = artifact.checksum(document)  # a forger can compute it too
    except (ValueError, RecursionError):
        signed = "sha256:" + "0" * 64
    try:
        raw = json.dumps({**document, "checksum": signed}).encode("utf-8", "surrogatepass")
    except RecursionError:  # deeper than Python can write: the text is made by hand
        return b'{"format": "metacal", "map": ' + b'{"base": ' * 5000
    return doubled_key(rng, raw) if rng.random() < 0.05 else raw


def places(data, path=()):
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(items)[:200]:
        yield (*path, key)
        if len(path) < 12:
            yield from places(value, (*path, key))


def at(data, path):
    for key in path:
        data = data[key]
    return data


def somewhere(rng, document, wanted=object):
    """A parent and a key, at random; of a value of the wanted type if there is one."""
    found = [path for path in places(document) if isinstance(at(document, path), wanted)] or list(places(document))
    path = rng.choice(found)
    return at(document, path[:-1]), path[-1]


def odd(rng):
    return copy.deepcopy(rng.choice(ODD))


def replace(rng, document):
    parent, key = somewhere(rng, document)
    parent[key] = odd(rng)


def nudge(rng, document):
    parent, key = somewhere(rng, document, (int, float))
    if isinstance(parent[key], int | float) and abs(parent[key]) < 1e300:
        parent[key] = rng.choice(
            [parent[key] + 1, parent[key] - 1, -parent[key], parent[key] * 1e9, parent[key] + 1e-9]
        )


def remove(rng, document):
    parent, key = somewhere(rng, document)
    del parent[key]


def add(rng, document):
    parent, _ = somewhere(rng, document)
    if isinstance(parent, dict):
        parent[rng.choice(["extra", "__class__", "type", "data_hash", "max_miscoverage", "score"])] = odd(rng)
    else:
        parent.insert(rng.randrange(len(parent) + 1), odd(rng))


def swap(rng, document):
    parent, key = somewhere(rng, document)
    other, name = somewhere(rng, document)
    with contextlib.suppress(RecursionError):  # deepened before
        parent[key] = copy.deepcopy(other[name])


def arrays(document):
    return [at(document, path) for path in places(document) if is_array(at(document, path))]


def is_array(value):
    return isinstance(value, dict) and {"dtype", "shape"} <= set(value)


def shape(rng, document):
    for array in arrays(document)[:1]:
        array["shape"] = rng.choice(
            [[10**12, 10**12], [2**62], [0], [-1], [], [1] * 40, [3, 3], "3", [3.0], [True, 3], [None]]
        )


def poison(rng, document):
    """NaN, infinities, denormals and huge numbers inside an array; or another dtype, or damaged base64."""
    found = arrays(document)
    if not found:
        return
    array = rng.choice(found)
    values = [
        rng.choice([np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 0.0, -1.0, 1.5])
        for _ in range(rng.choice([1, 3, 4, 9, 500]))
    ]
    array.pop("values", None)
    array["base64"] = base64.b64encode(np.array(values).tobytes()).decode()
    array["dtype"] = rng.choice(["<f8", "<f8", "<f8", "<f2", "<i8", "|b1", "<c16", "<U1", "|O", "|V8"])
    array["shape"] = rng.choice([[len(values)], [len(values), 1], array.get("shape", [])])
    if rng.random() < 0.2:
        array["base64"] = array["base64"][:-3] + rng.choice(["", "!", "===", "\u0000"])


def deepen(rng, document):
    parent, key = somewhere(rng, document)
    value = parent[key]
    for _ in range(rng.choice([5, 50, 900])):
        value = {"type": "MetaMap", "base": value} if rng.random() < 0.5 else [value]
    parent[key] = value


def longer(rng, document):
    """More classes, more names: sizes that no longer agree, or all agree and are large."""
    size = rng.choice([1, 2, 4, 1000, 20_000])
    document["classes"] = {"dtype": "int64", "values": list(range(size)), "given": False}
    document["n_features"] = size
    if rng.random() < 0.5 and "certificate" in document:
        document["certificate"] = rng.choice([document["certificate"], {}, None])


def doubled_key(rng, raw):
    return raw[:1] + rng.choice([b'"kind": "MetaCal", ', b'"format": "metacal", ', b'"map": {}, ']) + raw[1:]


def broken_bytes(rng, raw):
    """Cut, spliced, not UTF-8, compressed, nested, padded."""
    way = rng.randrange(8)
    if way == 0:
        return raw[: rng.randrange(len(raw))]
    if way == 1:
        return raw[rng.randrange(len(raw)) :]
    if way == 2:
        return rng.choice([b"\xff\xfe", b"\x80\x04", b"PK\x03\x04", b"\x1f\x8b\x08", b"\xef\xbb\xbf", b"\x00"]) + raw
    if way == 3:
        where = rng.randrange(len(raw))
        return raw[:where] + rng.choice([b"\xc3", b"\xed\xa0\x80", b"\x00", b"\\ud800", b"\\u0000"]) + raw[where:]
    if way == 4:
        return rng.choice([b"[", b'{"a":', b'[{"a":', b"[[],"]) * rng.choice([10, 2000, 200_000])
    if way == 5:
        number = rng.choice(
            [b"9" * 5000, b"1e999", b"-1e999", b"0." + b"0" * 9999 + b"1", b"NaN", b"Infinity", b"1E+400"]
        )
        return raw.replace(b'"version": 1', b'"version": ' + number, 1)
    if way == 6:
        many = rng.choice([b"0,", b"[],", b"{},", b'{"a":0},', b'"",', b"1.5,"])
        return (
            b'{"format": "metacal", "version": 1, "x": ['
            + many * rng.choice([1000, 399_000 // many.count(b","), 10**6])
            + b"0]}"
        )
    spot = rng.randrange(len(raw))
    return raw[:spot] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 20))) + raw[spot + rng.randrange(30) :]


# ── what may happen ──────────────────────────────────────────────────────────────────────────────────────────────────

#: Events of the interpreter that reading data never needs: running, importing, unpickling, opening, connecting.
FORBIDDEN = (
    "exec",
    "compile",
    "import",
    "pickle.find_class",
    "marshal.",
    "os.",
    "subprocess.",
    "socket.",
    "ctypes.",
    "open",
)
WATCH = threading.local()


def watch(event, details):
    if getattr(WATCH, "on", False) and event.startswith(FORBIDDEN):
        WATCH.on = False
        raise AssertionError(f"reading a file led to {event} {details[:2]}")


sys.addaudithook(watch)


def outcome(raw: bytes) -> str:
    """Load and use; "refused" or "works", anything else raises."""
    WATCH.on = True
    try:
        estimator = artifact.loads(raw)
    except ArtifactError as error:
        return "refused" if "\n" not in str(error) else "says too much"
    finally:
        WATCH.on = False
    check_usable(estimator)
    return "works"


def check_usable(estimator):
    rows = ROWS if estimator.n_features_in_ == 3 else np.zeros((2, estimator.n_features_in_))
    table = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True) if estimator.input == "probabilities" else rows
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            probabilities = estimator.predict_proba(table)
            labels = estimator.predict(table)
        except InputError:  # a clean refusal to go on
            return
    assert probabilities.shape == table.shape
    assert (probabilities >= 0).all()
    assert (probabilities <= 1 + 1e-6).all()
    assert len(labels) == len(table)
    if isinstance(estimator, MetaCal):
        assert str(estimator.certificate_)
    artifact.loads(artifact.dumps(estimator).encode())


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported():
    _ = "é".encode("unicode_escape")  # Python loads this codec, which messages use, at its first use
    for text in TEXTS.values():
        check_usable(artifact.loads(text.encode()))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_mutations_are_refused_or_work(chunk):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"refused": 0, "works": 0}
    for number in range(chunk, COUNT, CHUNKS):
        try:
            found[outcome(mutated(TEXTS, number))] += 1
        except BaseException as error:
            raise AssertionError(f"mutation {number}: {type(error).__name__}: {error}") from error
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 * 1024, f"{grown / 1024:.0f} MB"
    assert found["refused"] > 10 * found["works"] > 0  # the mutations bite, and not all of them do


def test_the_untouched_files_work():
    for text in TEXTS.values():
        assert outcome(text.encode()) == "works"


def test_the_watch_would_see_it():
    WATCH.on = True
    with pytest.raises(AssertionError, match=r"led to (exec|compile)"):
        eval("1 + 1")
