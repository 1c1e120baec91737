"""A certifier that lasts: what begins it and every answer are records of a journal, written before
they count.

The pool itself is not in the journal: whoever goes on brings it again, and it must be the same.
What is certified, and which rows come next, follows from the records alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import ArtifactError, InputError
from metacal.gate.certifier import Certifier
from metacal.io.artifact.encoding import decode, encode
from metacal.io.artifact.messages import exact_keys
from metacal.io.artifact.signature import KeySource, read_key
from metacal.io.artifact.sources import Labels, describe_labels
from metacal.io.disk import DISK, Disk
from metacal.io.journal import Journal, Record, Seal
from metacal.promises.promise import Promise
from metacal.scores import NAMED

#: What the first record says of the draw.
OPTIONS = ("labels", "may_extend", "random_state", "higher_is", "score_name", "score", "input")
#: What the others have, unless they extend it.
_ANSWERS = ("rows", "right", "classes")


@contextlib.contextmanager
def open_certifier(
    path: str | os.PathLike[str],
    pool: ArrayLike,
    promise: Promise | None = None,
    *,
    key: KeySource | None = None,
    **options: Any,
) -> Iterator[Certifier]:
    """Begin a `Certifier` whose answers last, or go on with one: a journal at `path`, held alone
    while it is open.

    The first time `promise` and `options`, those of `Certifier`, begin it; later they need not be
    given, and must be the same where they are. Each `update` is on the disk before it counts. With
    `key` every record is signed.

    Examples
    --------
    >>> import tempfile
    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> path = os.path.join(tempfile.mkdtemp(), "labels.journal")
    >>> scores = np.random.default_rng(0).random(2000)
    >>> with open_certifier(path, scores, MinAccuracy(0.9), labels=200) as certifier:
    ...     rows = certifier.propose()
    ...     certifier = certifier.update(rows[:3], [True, True, True])
    >>> with open_certifier(path, scores) as certifier:
    ...     certifier.n_labels, set(rows[3:]) <= set(certifier.propose())
    (3, True)
    >>> with open_certifier(path, scores, labels=400):
    ...     pass
    Traceback (most recent call last):
    metacal.errors.InputError: ...labels.journal was begun with labels=200, not 400, which cannot change after ...
    """
    with open_journal(os.fspath(path), key=key) as journal:
        yield certifier_in(journal, pool, promise, **options)


def open_journal(path: str, *, key: KeySource | None = None, disk: Disk = DISK) -> Journal:
    """The journal, to be entered: sealed with a key's signature where one is given."""
    seal = Seal() if key is None else read_key(key)
    try:
        seal.make(b"")  # a public key cannot
    except InputError as error:
        raise InputError(f"cannot write {path}: {error}") from None
    return Journal(path, "label", seal=seal, disk=disk)


def certifier_in(
    journal: Journal,
    pool: ArrayLike,
    promise: Promise | None = None,
    *,
    classes: Any = None,
    sheet: dict[str, Any] | None = None,
    **options: Any,
) -> Certifier:
    """The certifier of a journal that is open; every answer that it takes is recorded there
    first.
    """
    if not journal.records:
        if promise is None:
            raise InputError(f"{journal.path} is not there yet: give a promise to begin with.")
        certifier = Certifier(promise, pool, classes=classes, **options)
        journal.append(_begin(certifier, sheet or {}))
    else:
        certifier = _begun(journal, pool)
        _check_same(journal.path, certifier, promise, options)
        for number, record in enumerate(journal.records[1:], start=3):
            _replay(certifier, record, f"{journal.path}:{number}")
    certifier.sheet = journal.records[0]["sheet"]
    certifier.record = journal.append
    return certifier


def _begin(certifier: Certifier, sheet: dict[str, Any]) -> Record:
    """The first record: all that decides which rows are drawn, and what they are tested for."""
    if certifier.rows is not None and not isinstance(certifier.score, str):
        raise ArtifactError(
            "the score is a function, which a journal cannot hold; use a named one:"
            f" {', '.join(NAMED)}."
        )
    return {
        "promise": encode(certifier.promise, "the promise"),
        **{name: getattr(certifier, name) for name in OPTIONS if name != "labels"},
        "labels": certifier.wanted,
        "classes": (
            None
            if certifier.rows is None
            else encode(describe_labels(certifier.classes_), "classes")
        ),
        "classes_given": certifier.classes is not None,
        "n_pool": certifier.n_pool,
        "pool": certifier.fingerprint,
        "sheet": sheet,
    }


def _begun(journal: Journal, pool: ArrayLike) -> Certifier:
    """The certifier that the first record describes, on its pool."""
    first, around = journal.records[0], ("classes", "classes_given", "n_pool", "pool", "sheet")
    exact_keys(first, ("promise", *OPTIONS, *around), f"{journal.path}:2")
    on_logits = first["classes"] is not None
    if on_logits != (np.ndim(pool) == 2):
        kind = "logits" if on_logits else "scores"
        raise InputError(f"{journal.path} was begun on a pool of {kind}; give the same {kind}.")
    classes = decode(Labels | None, first["classes"], "classes")
    try:
        certifier = Certifier(
            decode(Promise, first["promise"], "promise"),
            pool,
            classes=classes if decode(bool, first["classes_given"], "classes_given") else None,
            **{name: first[name] for name in OPTIONS},
        )
    except (InputError, TypeError) as error:
        raise InputError(f"{journal.path} does not go with this pool: {error}") from error
    if first["n_pool"] != certifier.n_pool or first["pool"] != certifier.fingerprint:
        raise InputError(
            f"{journal.path} was begun on a pool of {first['n_pool']:,} rows, and this one, of"
            f" {certifier.n_pool:,}, is another: give the same rows in the same order, or begin"
            " anew with another file."
        )
    return certifier


def _check_same(
    path: str, certifier: Certifier, promise: Promise | None, options: dict[str, Any]
) -> None:
    """Raise where something is asked for that is not what it was begun with."""
    held = {
        name: certifier.wanted if name == "labels" else getattr(certifier, name) for name in options
    }
    asked: dict[str, tuple[str, Any, Any]] = {"the promise": ("for ", certifier.promise, promise)}
    asked |= {name: (f"with {name}=", held[name], options[name]) for name in options}
    for name, (begun, now, value) in asked.items():
        if value is not None and value != now:
            raise InputError(
                f"{path} was begun {begun}{now!r}, not {value!r}, which cannot change after labels"
                f" are seen: leave {name} out, or begin anew with another file."
            )


def _replay(certifier: Certifier, record: Record, where: str) -> None:
    """Take a record once more."""
    try:
        if record.keys() == {"extend"}:
            certifier.extend()
            return
        exact_keys(record, _ANSWERS, where)
        rows, right, codes = (
            np.array(decode(tuple[int, ...], record[name], name), np.intp) for name in _ANSWERS
        )
        if not len(rows) == len(right) == len(codes) or not np.isin(right, (0, 1)).all():
            raise ArtifactError("rows, right and classes must be of one length, and right 1 or 0.")
        certifier.take(rows, right == 1, codes)
    except (InputError, ValueError) as error:
        raise ArtifactError(
            f"{where}: this record does not follow from those before it: {error}"
        ) from error
