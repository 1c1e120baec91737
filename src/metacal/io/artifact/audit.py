"""A certificate read from a file is checked before anybody relies on it: types, ranges, and that its numbers agree."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Any, Literal

from metacal.errors import ArtifactError
from metacal.io.artifact.encoding import annotations_of, decode, encode, exact_keys, shown
from metacal.io.artifact.parts import audited_parts, check_whole
from metacal.kernels.grid import Grid
from metacal.maps.map import parts_of
from metacal.promises.certificate import COUNTED_BY_LABELS, NAMES, OPTIONAL, Certificate, Traffic
from metacal.promises.circumstances import Circumstances
from metacal.promises.notes import NOTES, Note
from metacal.promises.parts.part import Part, StageCount, Stages
from metacal.promises.quantity import QUANTITIES
from metacal.scores import named as scores

#: Entries of `to_dict` that follow from the others; written for readers, recomputed when loaded.
_DERIVED: dict[str, Any] = {
    "coverage": float,
    "coverage_accuracy": float | None,
    "miscoverage": float | None,
    "loss": float,  # of a cascade
}


_DISAGREE = "guarantee and delta disagree"

#: Relative rounding of scores; a threshold may stand so far beside the score that it was made from.
SLACK = 2.0**-29
#: More rows than anybody has; below it every count is exact in a float.
_MOST_ROWS = 2**53
#: Below this, shares of delta vanish.
_LEAST_DELTA = 1e-200
#: Of the name of a stage.
_LONGEST_NAME = 80
#: Notes are remarks for people, of a few lines.
MOST_NOTES, _LONGEST_NOTE = 50, 2000

#: Curves whose cost grows with points times rows: a fit gives at most 200 points.
_MOST_POINTS = {"SplineMap": ("knots", 1000), "GaussianProcessMap": ("inducing", 1000)}
#: Points times classes: what one row costs.
_MOST_PRODUCTS = 2_000_000


def check_cost(fitted: Any, n_classes: int) -> None:
    """Raise when applying a map would take far more time or memory than its own size.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> check_cost(TemperatureMap(1.0), 10)
    """
    for part in parts_of(fitted):
        check_cost(part, n_classes)
    field, most = _MOST_POINTS.get(type(fitted).__name__, (None, 0))
    if field is None:
        return
    points = len(getattr(fitted, field))
    if points > most:
        raise ArtifactError(f"{type(fitted).__name__} has {points:,} {field}; {most:,} is the most.")
    if points * n_classes > _MOST_PRODUCTS:
        raise ArtifactError(f"{type(fitted).__name__} has {points:,} {field} for {n_classes:,} classes: too many.")


def check_data_hash(data: Any) -> str:
    """Return the fingerprint of the calibration rows, or raise ArtifactError.

    Examples
    --------
    >>> check_data_hash("md5:0")
    Traceback (most recent call last):
    metacal.errors.ArtifactError: data_hash must be "sha256:" and 64 hexadecimal digits, not "md5:0".
    """
    if type(data) is str and re.fullmatch("sha256:[0-9a-f]{64}", data):
        return data
    raise ArtifactError(f'data_hash must be "sha256:" and 64 hexadecimal digits, not {shown(data)}.')


def audited_certificate(data: Any, promise: Any) -> Certificate:
    """Return the certificate that `data`, from `Certificate.to_dict`, describes, or raise ArtifactError.

    Its numbers must agree with each other, and be such that `promise` gives them: every promise
    recomputes what it certifies from the counts (`promise.contradiction`).

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> promise = MaxMiscoverage(0.05)
    >>> data = promise.certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool)).to_dict()
    >>> audited_certificate(data, promise).target
    0.05
    >>> audited_certificate({**data, "n_accepted": 101}, promise)
    Traceback (most recent call last):
    metacal.errors.ArtifactError: certificate: 101 of 100 rows cannot be accepted.
    """
    annotations = certificate_annotations()
    there = data if isinstance(data, dict) else {}
    names = [name for name in NAMES if name in there or name not in OPTIONAL]  # some only where they say something
    derived = {name: kind for name, kind in _DERIVED.items() if name != "loss" or "stages" in there}
    exact_keys(data, [*names, "traffic", *derived], "certificate")
    plain = [name for name in names if name not in ("parts", "stages", "notes", "circumstances")]
    values = {name: decode(annotations[name], data[name], f"certificate.{name}", {}) for name in plain}
    values["notes"] = [note.to_dict() for note in read_notes(data["notes"])]
    values["traffic"] = _record(Traffic, data["traffic"], "certificate.traffic")
    if "circumstances" in data:
        values["circumstances"] = _record(Circumstances, data["circumstances"], "certificate.circumstances")
        _require(Circumstances(**values["circumstances"]) != OPTIONAL["circumstances"], "circumstances say nothing")
    for name, silent in OPTIONAL.items():
        _require(name not in data or data[name] is not silent, f"{name} must not be {shown(silent)}")
    for name in COUNTED_BY_LABELS:
        _require((data[name] is None) == ("labelled" in data), f"{name} and labelled disagree")
    for name, annotation in derived.items():
        decode(annotation, data[name], f"certificate.{name}", {})
    if "parts" in data:
        values["parts"] = audited_parts(data["parts"]).to_dict()
    if "stages" in data:
        values["stages"] = _stages(data["stages"])
    certificate = Certificate.from_dict(values)
    population = certificate.traffic.population
    _require(values["traffic"]["population"] == population, f"the traffic is that of the {population}")
    _check_promise(certificate)
    _check_counts(certificate)
    if certificate.stages is not None:
        alone = (certificate.highest_accepted, certificate.lowest_rejected, certificate.parts) == (None, None, None)
        _require(alone, "the stages of a cascade have neither parts nor scores beside a threshold")
    elif certificate.parts is None:
        _check_scores(certificate)
    check_whole(certificate)
    _check_folds(certificate)
    again = certificate.to_dict()
    for name in derived:
        _require(_same(data[name], again[name]), f"{name} {shown(data[name])} does not follow from the counts")
    contradiction = promise.contradiction(certificate)
    _require(contradiction is None, str(contradiction))
    return certificate


def describe_certificate(certificate: Certificate) -> dict[str, Any]:
    """The facts of a certificate as a file has them, or ArtifactError where one cannot be saved."""
    return {name: _plain(fact, f"certificate.{name}") for name, fact in certificate.to_dict().items()}


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {name: _plain(entry, f"{where}.{name}") for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry, f"{where}[{k}]") for k, entry in enumerate(value)]
    return encode(value, where, {})


def _record(cls: type, data: Any, where: str) -> dict[str, Any]:
    """The checked entries of a small record."""
    names = [field.name for field in fields(cls)]
    exact_keys(data, names, where)
    return {name: decode(annotations_of(cls)[name], data[name], f"{where}.{name}", {}) for name in names}


def _stages(data: Any) -> dict[str, Any]:
    """The checked entries of the stages of a cascade."""
    where = "certificate.stages"
    names = [field.name for field in fields(Stages)]
    exact_keys(data, names, where)
    kinds = annotations_of(Stages)
    plain = {name: decode(kinds[name], data[name], f"{where}.{name}", {}) for name in names if name != "items"}
    _require(isinstance(data["items"], list), "the items of its stages must be a list")
    items = [_record(StageCount, item, f"{where}.items[{k}]") for k, item in enumerate(data["items"])]
    for item in items:
        plain_text = item["name"].isprintable() and len(item["name"]) <= _LONGEST_NAME
        _require(plain_text, "the name of a stage must be one line of plain text")
    return {**plain, "items": items}


def certificate_annotations() -> dict[str, Any]:
    """What each entry of a certificate is in a file: a quantity is there by its name."""
    counts = dict.fromkeys(COUNTED_BY_LABELS, int | None)
    return {**annotations_of(Certificate), "quantity": Literal[tuple(QUANTITIES)], **counts}


def _same(one: Any, other: Any) -> bool:
    """Whether two quotients of counts are equal, up to how a JSON writer of another language prints them."""
    if one is None or other is None:
        return one is other
    if isinstance(one, str) or isinstance(other, str):  # "inf": no quotient of counts
        return False
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)


def check_reach(certificate: Certificate, n_classes: int, score: str, threshold: float) -> None:
    """Raise where a threshold or calibration scores are values that a score cannot take for so many classes."""
    low, high = scores.reach(score, n_classes)
    beside = ("highest_accepted", "lowest_rejected")
    values = [("threshold", threshold), *((name, getattr(certificate, name)) for name in beside)]
    for part in () if certificate.parts is None else certificate.parts.items:
        values += [(name, getattr(part, name)) for name in ("threshold", *beside)]
    for name, value in values:
        if value is None or low - _slack(low) <= value <= high + _slack(high):
            continue
        _require(
            name == "threshold" and math.isinf(value),
            f"{name} {value:g} is out of reach: {score} of {n_classes} classes {_span(low, high)}",
        )


def check_settled(certificate: Certificate, grid: Grid, threshold: float) -> None:
    """Raise where a threshold lies on a score: which side such a row falls would be left to rounding."""
    parts: tuple[Part, ...] = () if certificate.parts is None else certificate.parts.items
    for own in (threshold, *(part.threshold for part in parts)):
        _require(grid.settled(own) == own, f"the threshold {own!r} does not lie between two scores")


def _near(value: float) -> float:
    """How far beside a score a threshold may stand; relative, for sure rows have an entropy of 1e-12."""
    return SLACK * abs(value) if math.isfinite(value) else 0.0


def _slack(value: float) -> float:
    """How far beyond the ends of its range a score may lie by rounding, or a threshold beside it."""
    return SLACK * max(1.0, abs(value)) if math.isfinite(value) else 0.0


def _span(low: float, high: float) -> str:
    return f"is at most {high:g}" if math.isinf(low) else f"lies between {low:g} and {high:g}"


def _check_promise(certificate: Certificate) -> None:
    delta = certificate.delta
    for promised, target in certificate.limits:
        good = 0.0 < target < math.inf if promised.mean else 0.0 < target < 1.0
        _require(good, f"target {target} is not {'a positive number' if promised.mean else 'strictly between 0 and 1'}")
    costed, cost = any(promised.mean for promised, _ in certificate.limits), certificate.mean_cost
    _require(costed == (cost is not None), "mean_cost belongs to promises about costs, and to all of them")
    _require(cost is None or 0.0 <= cost < math.inf, f"mean_cost {cost} is no cost")
    limited = [quantity for quantity, _ in certificate.limits]
    _require(len(set(limited)) == len(limited), "two limits of the same quantity")
    _require(delta is None or 0.0 < delta < 1.0, f"delta {delta} is not strictly between 0 and 1")
    _require(delta is None or delta >= _LEAST_DELTA, f"delta {delta} is smaller than anybody asks for")
    sure = certificate.delta is not None
    _require(certificate.guarantee == "approximate" or sure == (certificate.guarantee == "certified"), _DISAGREE)


def _check_counts(certificate: Certificate) -> None:
    n, right = certificate.n_rows, certificate.n_correct
    accepted, both = certificate.n_accepted, certificate.n_correct_accepted
    _require(n >= 1, f"n_rows must be at least 1, not {n}")
    _require(n <= _MOST_ROWS, f"n_rows {n} is more than anybody has")
    needed = any(promised.needs_labels for promised, _ in certificate.limits)
    some_will_do = certificate.stages is not None and certificate.quantity.paired
    _require(certificate.labelled or some_will_do or not needed, "what is promised cannot be certified without labels")
    _require(not certificate.labelled or 1 <= right <= n, f"{right} of {n} rows cannot be right")
    _require(0 <= accepted <= n, f"{accepted} of {n} rows cannot be accepted")
    seen = certificate.traffic
    _require(0 <= seen.n_accepted <= seen.n_rows <= _MOST_ROWS and seen.n_rows >= 1, "such traffic cannot be")
    if not certificate.labelled:
        return
    _require(0 <= both <= min(accepted, right), f"{both} rows cannot be both accepted and right")
    _require(accepted - both <= n - right, f"{accepted - both} accepted rows cannot be wrong")


def _check_scores(certificate: Certificate) -> None:
    threshold, high, low = certificate.threshold, certificate.highest_accepted, certificate.lowest_rejected
    _require((high is None) == (certificate.n_accepted == 0), "highest_accepted and n_accepted disagree")
    _require((low is None) == (certificate.n_accepted == certificate.n_rows), "lowest_rejected and n_accepted disagree")
    between = (high is None or high <= threshold + _near(threshold)) and (low is None or threshold < low + _near(low))
    _require(between, f"the threshold {threshold} does not separate accepted from rejected scores")


def read_notes(data: Any) -> tuple[Note, ...]:
    """The notes that a file holds, each of a known kind with the facts of that kind; ArtifactError otherwise.

    Examples
    --------
    >>> print(*read_notes([{"kind": "pool_without_score", "missing": 3, "rows": 1200}]))
    3 of 1,200 rows of the pool have no score: such rows are always rejected.
    >>> read_notes([{"kind": "pool_without_score", "missing": "many", "rows": 1200}])
    Traceback (most recent call last):
    metacal.errors.ArtifactError: notes[0].missing must be a whole number, not "many".
    """
    if not isinstance(data, list):
        raise ArtifactError(f"notes must be a list, not {shown(data)}.")
    _require(len(data) <= MOST_NOTES, f"{len(data):,} notes are too many")
    return tuple(_note(one, f"notes[{k}]") for k, one in enumerate(data))


def _note(data: Any, where: str) -> Note:
    kind = data.get("kind") if isinstance(data, dict) else None
    if type(kind) is not str or kind not in NOTES:
        raise ArtifactError(f"{where}: there is no note of the kind {shown(kind)}.")
    kinds = {name: fact for name, fact in annotations_of(NOTES[kind]).items() if name != "return"}
    exact_keys(data, ["kind", *kinds], where)
    note = Note(kind, tuple((name, decode(fact, data[name], f"{where}.{name}", {})) for name, fact in kinds.items()))
    _check_facts(dict(note.facts), where)
    said = str(note)
    plain = said.isprintable() and len(said) <= _LONGEST_NOTE
    _require(plain, f"{where} must be one line of plain text, of at most {_LONGEST_NOTE:,} characters")
    return note


def _check_facts(facts: dict[str, Any], where: str) -> None:
    """Raise where a note counts more rows than it is about, or counts below nothing."""
    counts = {name: fact for name, fact in facts.items() if type(fact) is int and name != "random_state"}
    most = counts.get("rows", _MOST_ROWS)
    for name, count in counts.items():
        limit = _MOST_ROWS if name in ("needed", "extended") else most
        _require(0 <= count <= limit, f"{where}.{name} {count} cannot be")


def _check_folds(certificate: Certificate) -> None:
    """Raise where a note speaks of other folds than the certificate."""
    for note in certificate.notes:
        same = note.kind != "cross_fitted" or dict(note.facts)["folds"] == certificate.circumstances.folds
        _require(same, "its notes speak of other folds")


def _require(ok: bool, complaint: str) -> None:
    if not ok:
        raise ArtifactError(f"certificate: {complaint}.")
