"""Certifier whose labels are recorded in a journal.

The first record of the journal contains the promise and the settings of the certifier. Every later
record contains the labels of some rows, or an extension of the sample. The *pool*, which is the set
of unlabelled rows, is not in the journal: whoever continues passes the same pool again. The records
determine what is certified and which rows are labelled next.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal import scores
from metacal.errors import ArtifactError, FileWriteError, InputError, LabellingError, SavingError
from metacal.gate.certifier import Certifier
from metacal.io.artifact.encoding import decode, encode
from metacal.io.artifact.labels import Labels, encode_labels
from metacal.io.artifact.messages import check_keys
from metacal.io.artifact.signature import KeySource, read_key
from metacal.io.disk import DISK, Disk
from metacal.io.journal import Journal
from metacal.io.journal_lines import Record, Seal
from metacal.promises.promise import Promise

# Parameters of the certifier in the first record, and the attributes that hold their values.
_ATTRIBUTE_OF_PARAMETER = {
    "may_extend": "may_extend",
    "random_state": "random_state",
    "higher_is": "higher_is",
    "score_name": "score_name",
    "score": "score",
    "input": "input",
    "labels": "n_requested",
}

# Entries of the first record that describe the pool of rows.
_POOL_ENTRIES = ("classes", "classes_given", "n_pool", "pool", "sheet")

# Entries of a record with labels.
_LABEL_ENTRIES = ("rows", "right", "classes")

# Number of the first line with labels. Line 1 is the header of the journal, line 2 the settings.
_FIRST_LABEL_LINE = 3


@contextlib.contextmanager
def open_certifier(
    path: str | os.PathLike[str],
    pool: ArrayLike,
    promise: Promise | None = None,
    *,
    key: KeySource | None = None,
    **options: Any,
) -> Iterator[Certifier]:
    """Open a `Certifier` whose labels are recorded in a journal.

    The journal is locked until the certifier is closed. Each `update` is written to disk before it
    takes effect.

    Parameters
    ----------
    path : str or path
        Journal to create or continue.

    pool : array of shape (n,) or (n, K)
        Scores or logits of the unlabelled rows, as for `Certifier`.

    promise : Promise, default=None
        Promise to certify. Required for a new journal. For an existing one it may be left out,
        and must otherwise be the same.

    key : str, path or bytes, default=None
        Key to sign the records with.

    **options
        Other parameters of `Certifier`. The same rule applies as for `promise`.

    Yields
    ------
    Certifier

    Raises
    ------
    InputError
        If pool, promise or options differ from those of the journal.

    ArtifactError
        If the journal is damaged.

    See Also
    --------
    Certifier : Certify a promise while labels arrive.

    Examples
    --------
    >>> import tempfile
    >>> from metacal.promises.accuracy import MinAccuracy
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
    metacal.errors.LabellingError: ...labels.journal was started with labels=200, but got 400. This ...
    """
    with open_journal(os.fspath(path), key=key) as journal:
        yield certifier_from_journal(journal, pool, promise, **options)


def open_journal(path: str, *, key: KeySource | None = None, disk: Disk = DISK) -> Journal:
    """Create the journal of a certifier, to be used as a context manager.

    Parameters
    ----------
    path : str
        File of the journal.

    key : str, path, bytes or None, default=None
        Key to sign the records with.

    disk : Disk, default=DISK
        File operations.

    Returns
    -------
    Journal

    Raises
    ------
    InputError
        If the key is a public key, which cannot sign.
    """
    seal = Seal() if key is None else read_key(key)
    try:
        seal.compute(b"")
    except InputError as error:
        raise FileWriteError(f"cannot write {path}: {error}") from None
    return Journal(path, "label", seal=seal, disk=disk)


def certifier_from_journal(
    journal: Journal,
    pool: ArrayLike,
    promise: Promise | None = None,
    *,
    classes: Any = None,
    sheet_settings: dict[str, Any] | None = None,
    **options: Any,
) -> Certifier:
    """Create a certifier that records labels in a journal, or restore it from one.

    Parameters
    ----------
    journal : Journal
        Open journal. The certifier records every label there before it takes effect.

    pool : array of shape (n,) or (n, K)
        Scores or logits of the unlabelled rows.

    promise : Promise or None, default=None
        Promise to certify. Required for a new journal.

    classes : sequence or None, default=None
        Class labels in column order, for a new journal.

    sheet_settings : dict or None, default=None
        Settings of the sheet (a table of rows that people label), stored in a new journal.

    **options
        Other parameters of `Certifier`.

    Returns
    -------
    Certifier
    """
    if not journal.records:
        if promise is None:
            raise LabellingError(
                f"{journal.path} does not exist yet. Pass a promise to create the journal."
            )
        certifier = Certifier(promise, pool, classes=classes, **options)
        journal.append(_build_settings_record(certifier, sheet_settings or {}))
    else:
        certifier = _restore_certifier(journal, pool)
        _check_unchanged(journal.path, certifier, promise, options)
        for line_number, record in enumerate(journal.records[1:], start=_FIRST_LABEL_LINE):
            _replay_record(certifier, record, f"{journal.path}:{line_number}")
    certifier.sheet_settings = journal.records[0]["sheet"]
    # From now on, the certifier appends every new label to the journal.
    certifier.record = journal.append
    return certifier


def _build_settings_record(certifier: Certifier, sheet_settings: dict[str, Any]) -> Record:
    """Build the first record, which determines the sample and its test."""
    predictions = certifier.unlabelled_pool.predictions
    if predictions is not None and not isinstance(certifier.score, str):
        raise SavingError(
            "The score is a Python function, so a journal cannot store it. Use a named score:"
            f" {', '.join(scores.NAMED)}."
        )
    record: Record = {"promise": encode(certifier.promise, "the promise")}
    for parameter, attribute in _ATTRIBUTE_OF_PARAMETER.items():
        record[parameter] = getattr(certifier, attribute)
    record["classes"] = None
    if predictions is not None:
        record["classes"] = encode(encode_labels(predictions.classes), "classes")
    record["classes_given"] = certifier.classes is not None
    record["n_pool"] = certifier.n_pool
    record["pool"] = certifier.unlabelled_pool.fingerprint
    record["sheet"] = sheet_settings
    return record


def _restore_certifier(journal: Journal, pool: ArrayLike) -> Certifier:
    """Build the certifier that the first record describes, without labels.

    Raise InputError if the pool is not the one that the journal was created with.
    """
    settings = journal.records[0]
    check_keys(settings, ("promise", *_ATTRIBUTE_OF_PARAMETER, *_POOL_ENTRIES), f"{journal.path}:2")
    journal_has_logits = settings["classes"] is not None
    pool_has_logits = np.ndim(pool) == 2
    if journal_has_logits != pool_has_logits:
        pool_kind = "logits" if journal_has_logits else "scores"
        raise LabellingError(
            f"{journal.path} was started with a pool of {pool_kind}. Pass the same {pool_kind}."
        )
    classes = decode(Labels | None, settings["classes"], "classes")
    try:
        has_given_classes = decode(bool, settings["classes_given"], "classes_given")
        if not has_given_classes:
            classes = None
        promise = decode(Promise, settings["promise"], "promise")
        parameters = {parameter: settings[parameter] for parameter in _ATTRIBUTE_OF_PARAMETER}
        certifier = Certifier(promise, pool, classes=classes, **parameters)
    except (InputError, TypeError) as error:
        raise LabellingError(f"{journal.path} does not belong to this pool: {error}") from error
    has_same_size = settings["n_pool"] == certifier.n_pool
    has_same_rows = settings["pool"] == certifier.unlabelled_pool.fingerprint
    if not has_same_size or not has_same_rows:
        raise LabellingError(
            f"{journal.path} was started with a pool of {settings['n_pool']:,} rows, but this"
            f" pool has {certifier.n_pool:,} rows. Pass the same rows in the same order, or"
            " start again with another file."
        )
    return certifier


def _check_unchanged(
    path: str, certifier: Certifier, promise: Promise | None, options: dict[str, Any]
) -> None:
    """Check that the given promise and options match the journal.

    Parameters
    ----------
    path : str
        File of the journal, used in the error message.

    certifier : Certifier
        Restored certifier.

    promise : Promise or None
        Promise that the caller passed.

    options : dict
        Parameters of `Certifier` that the caller passed.

    Raises
    ------
    InputError
        If one of them differs.
    """
    if promise is not None and promise != certifier.promise:
        raise _build_changed_setting_error(
            path, "the promise", f"for {certifier.promise!r}", repr(promise)
        )
    for name, value in options.items():
        stored_value = getattr(certifier, _ATTRIBUTE_OF_PARAMETER.get(name, name))
        if value is not None and value != stored_value:
            raise _build_changed_setting_error(
                path, name, f"with {name}={stored_value!r}", repr(value)
            )


def _build_changed_setting_error(
    path: str, name: str, original_setting: str, new_value: str
) -> InputError:
    """Build the error about a setting that differs from the one in the journal."""
    return LabellingError(
        f"{path} was started {original_setting}, but got {new_value}. This setting cannot change"
        f" after labels are known. Leave out {name}, or start again with another file."
    )


def _replay_record(certifier: Certifier, record: Record, location: str) -> None:
    """Update a certifier with the labels or the extension of a record.

    Raise ArtifactError if the record is not valid.
    """
    try:
        if record.keys() == {"extend"}:
            certifier.extend()
            return
        check_keys(record, _LABEL_ENTRIES, location)
        row_indices = _decode_integers(record, "rows")
        correctness = _decode_integers(record, "right")
        class_codes = _decode_integers(record, "classes")
        has_equal_lengths = len(row_indices) == len(correctness) == len(class_codes)
        if not has_equal_lengths or not np.isin(correctness, (0, 1)).all():
            raise ArtifactError(
                "rows, right and classes must have the same length, and right must hold only 0"
                " and 1."
            )
        certifier.add_answers(row_indices, correctness == 1, class_codes)
    except (InputError, ValueError) as error:
        raise ArtifactError(
            f"the record at {location} contradicts the records before it: {error}"
        ) from error


def _decode_integers(record: Record, name: str) -> NDArray[np.intp]:
    """Convert an entry of a record, which must be a list of integers, to an array."""
    return np.array(decode(tuple[int, ...], record[name], name), np.intp)
