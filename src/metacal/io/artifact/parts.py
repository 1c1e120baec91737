"""The parts of a certificate, one for each class or group, read from a file: each checked alone and with the whole."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.io.artifact.encoding import annotations_of, decode, exact_keys, shown
from metacal.promises.certificate import Certificate
from metacal.promises.parts.part import By, Name, Part, Parts, Shares

#: What a file says of each part; "status" follows from the threshold.
PART: dict[str, Any] = {**annotations_of(Part), "names": tuple[Name | bool, ...]}
#: What it says of all of them, besides.
HEAD: dict[str, Any] = {"by": By, "shares": Shares}
_LONGEST_NAME = 2000


def audited_parts(data: Any) -> Parts:
    """Return the parts that `data`, from `Parts.to_dict`, describes, or raise ArtifactError."""
    where = "certificate.parts"
    exact_keys(data, [*HEAD, "items"], where)
    head = {name: decode(kind, data[name], f"{where}.{name}", {}) for name, kind in HEAD.items()}
    if not isinstance(data["items"], list) or not data["items"]:
        raise ArtifactError(f"{where}.items must be a list with an entry per {head['by']}.")
    items = tuple(_part(item, f"{where}.items[{k}]") for k, item in enumerate(data["items"]))
    names = [name for part in items for name in part.names]
    if len(set(names)) != len(names):
        raise ArtifactError(f"{where}: two parts bear the same name.")
    kinds = {isinstance(name, str) for name in names}
    if len(kinds) > 1:
        raise ArtifactError(f"{where}: names must be all text or all numbers.")
    return Parts(head["by"], head["shares"], items)


def _part(data: Any, where: str) -> Part:
    names = [field.name for field in fields(Part)]
    exact_keys(data, [*names, "status"], where)
    part = Part(**{name: decode(PART[name], data[name], f"{where}.{name}", {}) for name in names})
    _require(data["status"] == part.status, where, f"status {shown(data['status'])} is not what the threshold says")
    _require(len(part.names) >= 1, where, "it has no name")
    for name in part.names:
        plain = not isinstance(name, str) or (name.isprintable() and len(name) <= _LONGEST_NAME)
        _require(plain, where, "a name must be one line of plain text")
    n, right, accepted, both = part.n_rows, part.n_correct, part.n_accepted, part.n_correct_accepted
    _require(0 <= both <= min(accepted, right) <= max(accepted, right) <= n, where, "its counts cannot be")
    _require(accepted - both <= n - right, where, f"{accepted - both} accepted rows cannot be wrong")
    high, low, limit = part.highest_accepted, part.lowest_rejected, part.threshold
    _require((high is None) == (accepted == 0), where, "highest_accepted and n_accepted disagree")
    _require((low is None) == (accepted == n), where, "lowest_rejected and n_accepted disagree")
    between = (high is None or high <= limit) and (low is None or limit < low)
    _require(between, where, f"the threshold {limit} does not separate accepted from rejected scores")
    _require(part.delta is None or 0.0 < part.delta < 1.0, where, f"delta {part.delta} is not between 0 and 1")
    _require(part.best is None or 0.0 <= part.best <= 1.0, where, f"best {part.best} is no share")
    _require(part.rows_needed is None or part.rows_needed >= 1, where, "rows_needed must be at least 1")
    return part


def check_whole(certificate: Certificate) -> None:
    """Raise unless the counts of the parts are those of the certificate, and no threshold is for all rows."""
    parts = certificate.parts
    if parts is None:
        return
    where = "certificate"
    alone = certificate.threshold == -math.inf
    _require(alone, where, "the threshold of a certificate with parts must be -inf")
    _require(
        certificate.highest_accepted is None and certificate.lowest_rejected is None,
        where,
        "scores beside the threshold belong to its parts",
    )
    for name in ("n_rows", "n_correct", "n_accepted", "n_correct_accepted"):
        total, whole = sum(getattr(part, name) for part in parts.items), getattr(certificate, name)
        # A pool is certified on three of four rows.
        _require(total <= whole if parts.pooled else total == whole, where, f"{name} is not the sum of its parts")


def check_classes(certificate: Certificate, classes: NDArray[Any]) -> None:
    """Raise unless parts by class are those of the file."""
    parts = certificate.parts
    if parts is None or parts.by != "class":
        return
    names = {name for part in parts.items for name in part.names}
    if names != set(classes.tolist()):
        raise ArtifactError("certificate: its parts are not the classes of the file.")


def _require(ok: bool, where: str, complaint: str) -> None:
    if not ok:
        raise ArtifactError(f"{where}: {complaint}.")
