"""A certificate read from a file is checked before anybody relies on it: types, ranges, and that
its numbers agree.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, NewType, NotRequired

from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError
from metacal.io.artifact.encoding import (
    CHOICES,
    ENTRIES,
    FORMS,
    Form,
    annotations_of,
    built,
    decode,
    decode_entries,
    encode,
    entries,
)
from metacal.io.artifact.messages import brief, exact_keys, shown
from metacal.kernels.grid import Grid
from metacal.maps.map import parts_of
from metacal.promises.certificate import COUNTED_BY_LABELS, NAMES, Certificate
from metacal.promises.circumstances import Circumstances
from metacal.promises.counts import Counts, Traffic
from metacal.promises.notes import NOTES, Note
from metacal.promises.parts.part import Name, Part, Parts, StageCount, Stages, Status
from metacal.promises.parts.per import PerClass, PerGroup
from metacal.promises.promise import ByPart, Promise
from metacal.promises.quantity import QUANTITIES
from metacal.scores import named as scores

#: Relative rounding of scores; a threshold may stand so far beside the score that it was made from.
SLACK = 2.0**-29
#: More rows than anybody has; below it every count is exact in a float.
_MOST_ROWS = 2**53
#: Below this, shares of delta vanish.
_LEAST_DELTA = 1e-200
#: Notes are remarks for people, of a few lines.
MOST_NOTES, _LONGEST_NOTE = 50, 2000
#: Of the name of a class or group, and of a model of a cascade.
_LONGEST_NAME, _LONGEST_MODEL = 2000, 80

#: Curves whose cost grows with points times rows: a fit gives at most 200 points.
_MOST_POINTS = {"SplineMap": ("knots", 1000), "GaussianProcessMap": ("inducing", 1000)}
#: Points times classes: what one row costs.
_MOST_PRODUCTS = 2_000_000

QuantityName = NewType("QuantityName", str)
CHOICES[QuantityName] = lambda: QUANTITIES
# What follows from other entries is written for readers, and compared when it is read.
for _per in (PerClass, PerGroup):
    ENTRIES[_per] = {**entries(_per), "promise": ByPart}
ENTRIES[Part] = {
    **entries(Part),
    "names": tuple[Name | bool, ...],
    "called": NotRequired[Name | bool],
    "quantity": QuantityName | None,
    "status": Status,
}
ENTRIES[Certificate] = {
    **{name: annotations_of(Certificate)[name] for name in NAMES},
    **dict.fromkeys(COUNTED_BY_LABELS, int | None),
    "quantity": QuantityName,
    "traffic": Traffic,
    "coverage": float,
    "coverage_accuracy": float | None,
    "miscoverage": float | None,
    "loss": NotRequired[float],
    "disagreement": NotRequired[float],
}
# Evaluated now: nothing is because of what stands in a file.
for _shown in (Stages, StageCount, Parts, Circumstances, Traffic):
    entries(_shown)
for _note in NOTES.values():
    annotations_of(_note)


def check_cost(fitted: Any, n_classes: int) -> None:
    """Raise when applying a map would take far more time or memory than its own size.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> check_cost(TemperatureMap(1.0), 10)
    """
    for part in parts_of(fitted):
        check_cost(part, n_classes)
    field, most = _MOST_POINTS.get(type(fitted).__name__, ("", 0))
    points = len(getattr(fitted, field, ()))
    if points > most:
        raise ArtifactError(
            f"{type(fitted).__name__} has {points:,} {field}; {most:,} is the most."
        )
    if points * n_classes > _MOST_PRODUCTS:
        raise ArtifactError(
            f"{type(fitted).__name__} has {points:,} {field} for {n_classes:,} classes: too many."
        )


# ── certificates ──────────────────────────────────────────────────────────────────────────────────


def read_certificate(data: Any, where: str = "certificate") -> Certificate:
    """Return the certificate that `data`, from `Certificate.to_dict`, describes, or raise
    ArtifactError.

    Its numbers must agree with each other: what would be written of it again is what is there.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> data = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool)).to_dict()
    >>> read_certificate(data).target
    0.05
    >>> read_certificate({**data, "n_accepted": 101})
    Traceback (most recent call last):
    metacal.errors.ArtifactError: certificate: 101 of 100 rows cannot be accepted.
    """
    certificate = certificate_of(data, where)
    _check_numbers(certificate)
    _require(len(certificate.notes) <= MOST_NOTES, f"{len(certificate.notes):,} notes are too many")
    for note in certificate.notes:
        same = (
            note.kind != "cross_fitted"
            or dict(note.facts)["folds"] == certificate.circumstances.folds
        )
        _require(same, "its notes speak of other folds")
    difference = _difference(data, encode(certificate.to_dict(), "certificate"))
    _require(difference is None, str(difference))
    return certificate


def certificate_of(data: Any, where: str = "certificate") -> Certificate:
    """The certificate with these entries, each of its type; whether they agree with each other is
    not looked at.
    """
    said = decode_entries(Certificate, data, where)
    values = {name: said[name] for name in NAMES if name in said}
    values |= {name: values[name] or 0 for name in COUNTED_BY_LABELS}
    counts = {each.name: getattr(said["traffic"], each.name) for each in fields(Counts)}
    alike = (counts["n_rows"], counts["n_accepted"]) == (said["n_rows"], said["n_accepted"])
    values["other_traffic"] = None if alike else Traffic(**counts)
    certificate: Certificate = built(Certificate, values, where)
    return certificate


def check_promise(certificate: Certificate, promise: Promise) -> None:
    """Raise unless the certificate is such that the promise gives it: every promise recomputes it
    from the counts.
    """
    _require(
        promise.delta is None or promise.delta >= _LEAST_DELTA,
        f"delta {promise.delta} is too small",
    )
    try:
        contradiction = promise.contradiction(certificate)
    except InputError as error:  # the level of a part that no promise can have
        contradiction = brief(error)
    _require(contradiction is None, str(contradiction))


def _difference(data: Any, again: Any, where: str = "") -> str | None:
    """The first entry that is otherwise than the rest says; None where all agrees.

    Quotients of counts are equal up to how a JSON writer of another language prints them.
    """
    if isinstance(again, dict | list):
        if isinstance(again, dict) and data.keys() != again.keys():
            return (
                f"{min(data.keys() ^ again.keys())} must be there with what it belongs to, and only"
                " then"
            )
        keys = again if isinstance(again, dict) else range(len(again))
        below = (_difference(data[key], again[key], f"{where}.{key}".strip(".")) for key in keys)
        return next((found for found in below if found is not None), None)
    numbers = type(data) in (int, float) and type(again) in (int, float)
    if data == again or (numbers and math.isclose(data, again, rel_tol=1e-12, abs_tol=1e-12)):
        return None
    return f"{where} {shown(data)} does not follow from the counts"


def _check_numbers(certificate: Certificate) -> None:
    """Raise where counts, costs or scores contradict each other."""
    n, seen = certificate.n_rows, certificate.traffic
    _require(n >= 1, f"n_rows must be at least 1, not {n}")
    _require(n <= _MOST_ROWS, f"n_rows {n} is more than anybody has")
    needed = any(promised.needs_labels for promised, _ in certificate.limits)
    promised = certificate.quantity
    some_will_do = certificate.stages is not None and (promised.paired or promised.of_agreement)
    _require(
        certificate.labelled or some_will_do or not needed,
        "what is promised cannot be certified without labels",
    )
    costed, cost = any(promised.mean for promised, _ in certificate.limits), certificate.mean_cost
    _require(
        costed == (cost is not None),
        "mean_cost belongs to promises about costs, and to all of them",
    )
    _require(cost is None or 0.0 <= cost < math.inf, f"mean_cost {cost} is no cost")
    some_right = not certificate.labelled or costed or certificate.n_correct >= 1
    _require(some_right, f"0 of {n} rows cannot be right")
    _check_counts(certificate, "certificate")
    _require(1 <= seen.n_rows <= _MOST_ROWS, "such traffic cannot be")
    _check_counts(seen, "traffic")
    if certificate.stages is None and certificate.parts is None:
        _check_scores(certificate, SLACK, "certificate")
        return
    beside = (certificate.highest_accepted, certificate.lowest_rejected)
    _require(beside == (None, None), "scores beside the threshold belong to its parts or stages")
    if certificate.stages is not None:
        _require(certificate.parts is None, "the stages of a cascade have no parts")
        plain = all(_is_plain(stage.name, _LONGEST_MODEL) for stage in certificate.stages.items)
        _require(plain, "the name of a stage must be one line of plain text")
        return
    _check_parts(certificate)


def _check_counts(one: Certificate | Part | Counts, where: str) -> None:
    n, right, accepted, both = one.n_rows, one.n_correct, one.n_accepted, one.n_correct_accepted
    _require(0 <= right <= n, f"{right} of {n} rows cannot be right", where)
    _require(0 <= accepted <= n, f"{accepted} of {n} rows cannot be accepted", where)
    if not getattr(one, "labelled", True):
        return
    _require(
        0 <= both <= min(accepted, right), f"{both} rows cannot be both accepted and right", where
    )
    _require(
        accepted - both <= n - right, f"{accepted - both} accepted rows cannot be wrong", where
    )


def _check_scores(one: Certificate | Part, slack: float, where: str) -> None:
    """Raise unless the threshold separates; the slack is relative, for sure rows have an entropy of
    1e-12.
    """
    threshold, high, low = one.threshold, one.highest_accepted, one.lowest_rejected
    _require(
        (high is None) == (one.n_accepted == 0), "highest_accepted and n_accepted disagree", where
    )
    _require(
        (low is None) == (one.n_accepted == one.n_rows),
        "lowest_rejected and n_accepted disagree",
        where,
    )
    below = high is None or high <= threshold + _near(threshold, slack)
    above = low is None or threshold < low + _near(low, slack)
    _require(
        below and above,
        f"the threshold {threshold} does not separate accepted from rejected scores",
        where,
    )


def _near(value: float, slack: float, least: float = 0.0) -> float:
    """How far beside a score rounding may put a threshold, or beyond the end of its range the score
    itself.
    """
    return slack * max(least, abs(value)) if math.isfinite(value) else 0.0


def _check_parts(certificate: Certificate) -> None:
    """Raise unless each part can be, and all together are the whole."""
    parts, where = certificate.parts, "certificate.parts"
    assert parts is not None
    _require(len(parts.items) > 0, f"items must be a list with an entry per {parts.by}", where)
    names, cells = parts.names, [cell for part in parts.items for cell in part.cells]
    _require(len(set(cells)) == len(cells), "two parts bear the same name", where)
    for family in parts.families:
        one = {(part.names, part.at) for part in family if part.called is not None}
        _require(
            len(one) == (parts.by == "group" and parts.sides),
            "the two sides of a group are not of one",
            where,
        )
    _require(
        len({isinstance(name, str) for name in names}) == 1,
        "names must be all text or all numbers",
        where,
    )
    _require(
        all(_is_plain(name, _LONGEST_NAME) for name in names),
        "a name must be one line of plain text",
        where,
    )
    for k, part in enumerate(parts.items):
        at = f"{where}.items[{k}]"
        _require(len(part.names) >= 1, "it has no name", at)
        _check_counts(part, at)
        _check_scores(part, 0.0, at)
        _require(
            part.delta is None or 0.0 < part.delta < 1.0,
            f"delta {part.delta} is not between 0 and 1",
            at,
        )
        _require(part.best is None or 0.0 <= part.best <= 1.0, f"best {part.best} is no share", at)
        _require(
            part.rows_needed is None or part.rows_needed >= 1, "rows_needed must be at least 1", at
        )
    _require(
        certificate.threshold == -math.inf, "the threshold of a certificate with parts must be -inf"
    )
    for name in ("n_rows", "n_correct", "n_accepted", "n_correct_accepted"):
        total, whole = sum(getattr(part, name) for part in parts.items), getattr(certificate, name)
        # A pool is certified on three of four rows.
        _require(
            total <= whole if parts.pooled else total == whole,
            f"{name} is not the sum of its parts",
        )


def _is_plain(name: Any, longest: int) -> bool:
    return not isinstance(name, str) or (name.isprintable() and len(name) <= longest)


# ── certificates beside the source of their scores ────────────────────────────────────────────────


def check_classes(certificate: Certificate, classes: NDArray[Any]) -> None:
    """Raise unless parts by class are those of the file."""
    parts = certificate.parts
    if parts is not None and parts.by == "class":
        names = {name for part in parts.items for name in part.names}
        _require(names == set(classes.tolist()), "its parts are not the classes of the file")


def check_reach(certificate: Certificate, n_classes: int, score: str, threshold: float) -> None:
    """Raise where a threshold or calibration scores are values that a score cannot take for so many
    classes.
    """
    low, high = (
        scores.NAMED[score].reach(n_classes) if score in scores.NAMED else (-math.inf, math.inf)
    )
    beside = ("highest_accepted", "lowest_rejected")
    values = [("threshold", threshold), *((name, getattr(certificate, name)) for name in beside)]
    for part in () if certificate.parts is None else certificate.parts.items:
        values += [(name, getattr(part, name)) for name in ("threshold", *beside)]
    for name, value in values:
        if value is None or low - _near(low, SLACK, 1.0) <= value <= high + _near(high, SLACK, 1.0):
            continue
        span = f"is at most {high:g}" if math.isinf(low) else f"lies between {low:g} and {high:g}"
        _require(
            name == "threshold" and math.isinf(value),
            f"{name} {value:g} is out of reach: {score} of {n_classes} classes {span}",
        )


def check_settled(certificate: Certificate, grid: Grid, threshold: float) -> None:
    """Raise where a threshold lies on a score: which side such a row falls would be left to
    rounding.
    """
    parts: tuple[Part, ...] = () if certificate.parts is None else certificate.parts.items
    for own in (threshold, *(part.threshold for part in parts)):
        _require(grid.settled(own) == own, f"the threshold {own!r} does not lie between two scores")


# ── notes ─────────────────────────────────────────────────────────────────────────────────────────


def facts_of(kind: str) -> dict[str, Any]:
    """The facts that a kind of note has, and their types."""
    return {name: fact for name, fact in annotations_of(NOTES[kind]).items() if name != "return"}


def _read_note(data: Any, where: str) -> Note:
    """A note of a known kind with the facts of that kind."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if type(kind) is not str or kind not in NOTES:
        raise ArtifactError(f"{where}: there is no note of the kind {shown(kind)}.")
    kinds = facts_of(kind)
    exact_keys(data, ["kind", *kinds], where)
    note = Note(
        kind,
        tuple((name, decode(fact, data[name], f"{where}.{name}")) for name, fact in kinds.items()),
    )
    # It counts no more rows than it is about, and none below nothing.
    counts = {name: fact for name, fact in note.facts if type(fact) is int}
    for name, count in counts.items():
        limit = _MOST_ROWS if name in ("needed", "extended") else counts.get("rows", _MOST_ROWS)
        if not 0 <= count <= limit:
            raise ArtifactError(f"{where}.{name} {count} cannot be.")
    said = str(note)
    if not said.isprintable() or len(said) > _LONGEST_NOTE:
        raise ArtifactError(
            f"{where} must be one line of plain text, of at most {_LONGEST_NOTE:,} characters."
        )
    return note


def _require(ok: bool, complaint: str, where: str = "certificate") -> None:
    if not ok:
        raise ArtifactError(f"{where}: {complaint}.")


# Their shapes are objects that say themselves what else they hold.
FORMS[Note] = Form(dict, lambda note, where: note.to_dict(), _read_note)
FORMS[Certificate] = Form(dict, lambda certificate, where: certificate.to_dict(), read_certificate)
