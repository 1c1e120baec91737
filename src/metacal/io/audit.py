"""A certificate read from a file is checked before anybody relies on it: types, ranges, and that its numbers agree."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Any

from metacal.certificate import Certificate
from metacal.errors import ArtifactError
from metacal.io.encoding import annotations_of, decode, exact_keys, shown
from metacal.io.promises import CONSTRAINTS

#: Entries of `to_dict` that follow from the others; written for readers, recomputed when loaded.
_DERIVED: dict[str, Any] = {
    "statement": str,
    "coverage": float,
    "coverage_accuracy": float | None,
    "miscoverage": float,
}


_DISAGREE = "guarantee and delta disagree"

#: Curves whose cost grows with points times rows: a fit gives at most 200 points.
_MOST_POINTS = {"SplineMap": ("knots", 1000), "GaussianProcessMap": ("inducing", 1000)}


def check_cost(fitted: Any) -> None:
    """Raise when applying a map would take far more memory than its own size.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> check_cost(TemperatureMap(1.0))
    """
    field, most = _MOST_POINTS.get(type(fitted).__name__, (None, 0))
    if field is not None and len(getattr(fitted, field)) > most:
        raise ArtifactError(
            f"{type(fitted).__name__} has {len(getattr(fitted, field)):,} {field}; {most:,} is the most."
        )


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


def audited_certificate(data: Any) -> Certificate:
    """Return the certificate that `data`, from `Certificate.to_dict`, describes, or raise ArtifactError.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.constraints import MaxMiscoverage
    >>> data = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool)).to_dict()
    >>> audited_certificate(data).target
    0.05
    >>> audited_certificate({**data, "n_accepted": 101})
    Traceback (most recent call last):
    metacal.errors.ArtifactError: certificate: 101 of 100 rows cannot be accepted.
    """
    annotations = annotations_of(Certificate)
    names = [field.name for field in fields(Certificate)]
    if isinstance(data, dict) and "max_miscoverage" not in data:  # only there where both are promised
        names.remove("max_miscoverage")
    exact_keys(data, [*names, *_DERIVED], "certificate")
    values = {name: decode(annotations[name], data[name], f"certificate.{name}", {}) for name in names}
    _require("max_miscoverage" not in data or data["max_miscoverage"] is not None, "max_miscoverage must be a number")
    for name, annotation in _DERIVED.items():
        decode(annotation, data[name], f"certificate.{name}", {})
    certificate = Certificate.from_dict(values)
    _check_promise(certificate)
    _check_counts(certificate)
    _check_scores(certificate)
    again = certificate.to_dict()
    for name in ("coverage", "coverage_accuracy", "miscoverage"):
        _require(data[name] == again[name], f"{name} {shown(data[name])} does not follow from the counts")
    return certificate


def check_against_constraint(certificate: Certificate, kind: str, constraint: Any) -> None:
    """Raise unless the certificate is one that this constraint gives."""
    promise = CONSTRAINTS[kind]
    delta = getattr(constraint, "delta", None)
    guarantee = "none" if kind.startswith("paper.") else ("in expectation" if delta is None else "certified")
    # The same rule on cross-fitted rows: the constraint cannot tell.
    weaker = certificate.guarantee == "approximate" and guarantee != "none"
    given = (certificate.limits, certificate.delta, guarantee if weaker else certificate.guarantee)
    if hasattr(constraint, "limits"):
        limits = constraint.limits
    else:
        limits = ((promise.quantity, float(getattr(constraint, promise.target))),)
    if given != (limits, delta, guarantee):
        raise ArtifactError(f"the certificate does not belong to the constraint {constraint!r}; fit again.")


def _check_promise(certificate: Certificate) -> None:
    delta = certificate.delta
    for _, target in certificate.limits:
        _require(0.0 < target < 1.0, f"target {target} is not strictly between 0 and 1")
    both = certificate.max_miscoverage is not None
    _require(not both or certificate.quantity == "coverage accuracy", "two limits of the same quantity")
    _require(delta is None or 0.0 < delta < 1.0, f"delta {delta} is not strictly between 0 and 1")
    sure = certificate.delta is not None
    _require(certificate.guarantee == "approximate" or sure == (certificate.guarantee == "certified"), _DISAGREE)


def _check_counts(certificate: Certificate) -> None:
    n, right = certificate.n_rows, certificate.n_correct
    accepted, both = certificate.n_accepted, certificate.n_correct_accepted
    _require(n >= 1, f"n_rows must be at least 1, not {n}")
    _require(1 <= right <= n, f"{right} of {n} rows cannot be right")
    _require(0 <= accepted <= n, f"{accepted} of {n} rows cannot be accepted")
    _require(0 <= both <= min(accepted, right), f"{both} rows cannot be both accepted and right")
    _require(accepted - both <= n - right, f"{accepted - both} accepted rows cannot be wrong")


def _check_scores(certificate: Certificate) -> None:
    threshold, high, low = certificate.threshold, certificate.highest_accepted, certificate.lowest_rejected
    _require((high is None) == (certificate.n_accepted == 0), "highest_accepted and n_accepted disagree")
    _require((low is None) == (certificate.n_accepted == certificate.n_rows), "lowest_rejected and n_accepted disagree")
    between = (-math.inf if high is None else high) <= threshold and (low is None or threshold < low)
    _require(between, f"the threshold {threshold} does not separate accepted from rejected scores")


def _require(ok: bool, complaint: str) -> None:
    if not ok:
        raise ArtifactError(f"certificate: {complaint}.")
