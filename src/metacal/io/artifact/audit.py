"""Certificates and notes in a file, with the checks that they must pass.

A certificate from a file is checked before anyone relies on it: the types and ranges of its
entries, and whether its numbers agree with each other and with the promise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, NewType, NotRequired

from metacal.certificates.cascade_stages import StageCount, Stages
from metacal.certificates.certificate import ATTRIBUTE_BY_STORED_KEY, Certificate
from metacal.certificates.counts import COUNTS_THAT_NEED_LABELS, Counts, ScoreValueCount, Traffic
from metacal.certificates.design import CertificationDesign
from metacal.certificates.notes import NOTE_TEXTS, Note
from metacal.certificates.quantities import QUANTITIES
from metacal.certificates.subgroups import Name, Status, SubgroupCertificate, SubgroupCertificates
from metacal.errors import ArtifactError, InputError
from metacal.io.artifact.certificate_checks import MAX_ROWS, check_certificate_numbers, require
from metacal.io.artifact.encoding import call_constructor, decode, decode_entries, encode
from metacal.io.artifact.messages import check_keys, describe_json, summarize_error
from metacal.io.artifact.registry import (
    ALLOWED_NAME_LISTERS,
    FIELD_TYPES,
    STORED_FORM_OF_TYPE,
    StoredForm,
    get_field_types,
    type_hints,
)
from metacal.promises.per_subgroup import PerClass, PerGroup
from metacal.promises.promise import Promise, SubgroupPromise

# Smallest allowed delta. Fractions of a smaller delta could underflow to zero.
_MIN_DELTA = 1e-200

#: Maximum number of notes in a certificate.
MAX_NOTES = 50

# Maximum number of characters in a note.
_MAX_NOTE_LENGTH = 2000

# Counts in a note that may exceed its number of rows, because they are of other rows.
_COUNTS_OF_OTHER_ROWS = ("needed", "extended")

# Relative and absolute tolerance, because JSON writers of other languages print fewer digits.
_NUMBER_TOLERANCE = 1e-12

#: Name of a quantity that a promise limits.
QuantityName = NewType("QuantityName", str)
ALLOWED_NAME_LISTERS[QuantityName] = lambda: QUANTITIES

# Derived entries are written for human readers and compared with the rest when a file is read.
for _promise_class in (PerClass, PerGroup):
    FIELD_TYPES[_promise_class] = {**get_field_types(_promise_class), "promise": SubgroupPromise}
FIELD_TYPES[SubgroupCertificate] = {
    **get_field_types(SubgroupCertificate),
    "names": tuple[Name, ...],
    "called": NotRequired[Name],
    "quantity": QuantityName | None,
    "status": Status,
}
FIELD_TYPES[Certificate] = {
    **{key: type_hints(Certificate)[name] for key, name in ATTRIBUTE_BY_STORED_KEY.items()},
    **dict.fromkeys(COUNTS_THAT_NEED_LABELS, int | None),
    "quantity": QuantityName,
    "traffic": Traffic,
    "marks": tuple[tuple[float, int, int], ...],
    "coverage": float,
    "selective_accuracy": float | None,
    "miscoverage": float | None,
    "loss": NotRequired[float],
    "disagreement": NotRequired[float],
}

# Annotations are evaluated and cached now, so that none is evaluated while a file is read.
for _stored_class in (Stages, StageCount, SubgroupCertificates, CertificationDesign, Traffic):
    get_field_types(_stored_class)
for _note_function in NOTE_TEXTS.values():
    type_hints(_note_function)


def read_certificate(data: Any, location: str = "certificate") -> Certificate:
    """Convert a JSON object to a certificate, and check that its numbers agree.

    Parameters
    ----------
    data : JSON value
        Object from `Certificate.to_dict`.

    location : str, default="certificate"
        Position of the object in the file, used in error messages.

    Returns
    -------
    Certificate

    Raises
    ------
    ArtifactError
        If the object is not a certificate, or its numbers are inconsistent.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> scores, correct = np.linspace(0, 1, 100), np.ones(100, dtype=bool)
    >>> data = MaxMiscoverage(0.05).certify(scores, correct).to_dict()
    >>> read_certificate(data).target
    0.05
    >>> read_certificate({**data, "n_accepted": 101})
    Traceback (most recent call last):
    metacal.errors.ArtifactError: certificate: 101 of 100 rows cannot be accepted.
    """
    certificate = decode_certificate(data, location)
    check_certificate_numbers(certificate)
    _check_notes(certificate.notes, certificate.design.n_folds)
    # A derived entry must equal the value that would be written for this certificate.
    recomputed_data = encode(certificate.to_dict(), "certificate")
    difference = _find_difference(data, recomputed_data)
    require(difference is None, str(difference))
    return certificate


def _check_notes(notes: Sequence[Note], n_folds: int | None) -> None:
    """Raise ArtifactError if there are too many notes, or one has other folds."""
    require(len(notes) <= MAX_NOTES, f"{len(notes):,} notes are too many")
    for note in notes:
        if note.kind == "cross_fitted":
            n_noted_folds = dict(note.facts)["folds"]
            require(n_noted_folds == n_folds, "its notes speak of other folds")


def decode_certificate(data: Any, location: str = "certificate") -> Certificate:
    """Convert a JSON object to a certificate without checking that its numbers agree.

    Parameters
    ----------
    data : JSON value
        Object from `Certificate.to_dict`.

    location : str, default="certificate"
        Position of the object in the file, used in error messages.

    Returns
    -------
    Certificate

    Raises
    ------
    ArtifactError
        If an entry is missing or has another type.
    """
    entries = decode_entries(Certificate, data, location)
    field_values = {
        field_name: entries[key]
        for key, field_name in ATTRIBUTE_BY_STORED_KEY.items()
        if key in entries
    }
    field_values["score_value_counts"] = tuple(
        ScoreValueCount(score=score, n_rows=n_rows, n_wrong=n_wrong)
        for score, n_rows, n_wrong in field_values.get("score_value_counts", ())
    )
    # A certificate that was made without labels stores null for the counts that need labels.
    for count_name in COUNTS_THAT_NEED_LABELS:
        if field_values[count_name] is None:
            field_values[count_name] = 0
    field_values["all_rows_traffic"] = _find_traffic_beyond_tested_rows(
        entries["traffic"], n_tested_rows=entries["n_rows"], n_accepted_rows=entries["n_accepted"]
    )
    certificate: Certificate = call_constructor(Certificate, field_values, location)
    return certificate


def _find_traffic_beyond_tested_rows(
    traffic: Traffic, *, n_tested_rows: int, n_accepted_rows: int
) -> Traffic | None:
    """Return the counts of all rows, or None if they equal those of tested rows.

    A file always contains the counts of all rows, whereas a certificate has them only if some
    rows were not tested.
    """
    counts_tested_rows = traffic.n_rows == n_tested_rows and traffic.n_accepted == n_accepted_rows
    if counts_tested_rows:
        return None
    counts = {field.name: getattr(traffic, field.name) for field in fields(Counts)}
    return Traffic(**counts)


def check_promise(certificate: Certificate, promise: Promise) -> None:
    """Raise ArtifactError if a certificate contradicts its promise.

    Parameters
    ----------
    certificate : Certificate
        Certificate to check.

    promise : Promise
        Promise that the certificate is about.

    Raises
    ------
    ArtifactError
        If the recomputed certificate differs.
    """
    delta = promise.delta
    require(delta is None or delta >= _MIN_DELTA, f"delta {delta} is too small")
    try:
        contradiction = promise.contradiction(certificate)
    except InputError as error:
        # The check tests each subgroup again at the delta in the file, which may be out of range.
        contradiction = summarize_error(error)
    require(contradiction is None, str(contradiction))


def _find_difference(stored: Any, recomputed: Any, location: str = "") -> str | None:
    """Describe the first difference between two JSON values, or return None.

    Parameters
    ----------
    stored : JSON value
        Value in the file.

    recomputed : JSON value
        Value that would be written again. It has the same structure, up to keys of objects.

    location : str, default=""
        Position of the value in the certificate.

    Returns
    -------
    str or None
        None if the values are equal, up to rounding of numbers.
    """
    keys: Iterable[str | int]
    if isinstance(recomputed, dict):
        differing_keys = stored.keys() ^ recomputed.keys()
        if differing_keys:
            return f"{min(differing_keys)} must be there with what it belongs to, and only then"
        keys = recomputed
    elif isinstance(recomputed, list):
        keys = range(len(recomputed))
    elif _is_equal(stored, recomputed):
        return None
    else:
        return f"{location} {describe_json(stored)} does not follow from the counts"

    for key in keys:
        entry_location = f"{location}.{key}".strip(".")
        difference = _find_difference(stored[key], recomputed[key], entry_location)
        if difference is not None:
            return difference
    return None


def _is_equal(stored: Any, recomputed: Any) -> bool:
    """Check whether two JSON scalars are equal, up to rounding of numbers."""
    if stored == recomputed:
        return True
    if type(stored) not in (int, float) or type(recomputed) not in (int, float):
        return False
    return math.isclose(stored, recomputed, rel_tol=_NUMBER_TOLERANCE, abs_tol=_NUMBER_TOLERANCE)


def note_fact_types(kind: str) -> dict[str, Any]:
    """Return the types of the facts in a kind of note, keyed by fact name."""
    annotations = type_hints(NOTE_TEXTS[kind])
    return {name: fact_type for name, fact_type in annotations.items() if name != "return"}


def _note_to_stored(note: Note, location: str) -> dict[str, Any]:
    """Convert a note to a JSON object."""
    return note.to_dict()


def _note_from_stored(data: Any, location: str) -> Note:
    """Convert a JSON object to a note, and check its facts.

    Parameters
    ----------
    data : dict
        Object with the kind of the note and its facts.

    location : str
        Position of the object in the file, used in error messages.

    Returns
    -------
    Note

    Raises
    ------
    ArtifactError
        If the kind is unknown, or a fact is missing or invalid.
    """
    note_kind = None
    if isinstance(data, dict):
        note_kind = data.get("kind")
    if type(note_kind) is not str or note_kind not in NOTE_TEXTS:
        raise ArtifactError(f"{location} has the unknown kind of note {describe_json(note_kind)}.")
    fact_types = note_fact_types(note_kind)
    check_keys(data, ["kind", *fact_types], location)
    facts = []
    for name, fact_type in fact_types.items():
        facts.append((name, decode(fact_type, data[name], f"{location}.{name}")))
    note = Note(note_kind, tuple(facts))
    _check_note_counts(note, location)
    note_text = str(note)
    if not note_text.isprintable() or len(note_text) > _MAX_NOTE_LENGTH:
        raise ArtifactError(
            f"{location} must be one line of plain text with at most {_MAX_NOTE_LENGTH:,}"
            " characters."
        )
    return note


def _check_note_counts(note: Note, location: str) -> None:
    """Raise ArtifactError if a count is negative or exceeds the number of rows."""
    counts = {name: fact for name, fact in note.facts if type(fact) is int}
    n_rows = counts.get("rows", MAX_ROWS)
    for name, count in counts.items():
        max_count = MAX_ROWS if name in _COUNTS_OF_OTHER_ROWS else n_rows
        if not 0 <= count <= max_count:
            raise ArtifactError(
                f"{location}.{name} is {count}, which contradicts the other counts."
            )


def _certificate_to_stored(certificate: Certificate, location: str) -> dict[str, Any]:
    """Convert a certificate to a JSON object."""
    return certificate.to_dict()


STORED_FORM_OF_TYPE[Note] = StoredForm(
    stored_type=dict, to_stored=_note_to_stored, from_stored=_note_from_stored
)
STORED_FORM_OF_TYPE[Certificate] = StoredForm(
    stored_type=dict, to_stored=_certificate_to_stored, from_stored=read_certificate
)
