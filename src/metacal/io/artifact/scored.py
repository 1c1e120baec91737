"""A gate on given scores as a document, and back: no classes, no map of logits; certificate and audit as for others."""

from __future__ import annotations

from typing import Any

from metacal.errors import ArtifactError
from metacal.gate import ScoredGate
from metacal.gate.scored import HIGHER_IS, doubt_name, plain_name
from metacal.io.artifact.audit import audited_certificate, check_data_hash, describe_certificate
from metacal.io.artifact.encoding import decode, decode_map, encode, encode_map, exact_keys, shown
from metacal.io.artifact.profile import decode_profile, encode_profile
from metacal.io.artifact.promises import describe_promise, read_promise
from metacal.kernels.grid import RELATIVE
from metacal.maps.confidence import ConfidenceCurve

#: The kind of such a file.
SCORED = "ScoreGate"
#: What its document has.
SCORED_KEYS = ("kind", "parameters", "promise", "certificate", "data_hash", "curve", "threshold")
SCORED_PARAMETERS: dict[str, Any] = {"higher_is": str, "score_name": str}
#: A fit gives at most 129 corners.
_MOST_CORNERS = 1000

_CURVES = {"ConfidenceCurve": ConfidenceCurve}


def describe_scored(gate: ScoredGate) -> dict[str, Any]:
    """The document of a gate on given scores.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.gate import fit_scored
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> gate = fit_scored(np.arange(100.0), np.arange(100) % 10 > 0, MaxMiscoverage(0.1))
    >>> document = describe_scored(gate)
    >>> document["kind"], scored_from(document) == gate
    ('ScoreGate', True)
    """
    document = {
        "kind": SCORED,
        "parameters": {"higher_is": gate.higher_is, "score_name": encode(gate.score, "score_name", {})},
        "promise": describe_promise(gate.promise),
        "certificate": describe_certificate(gate.certificate),
        "data_hash": gate.data_hash,
        "curve": None if gate.curve is None else encode_map(gate.curve, "the curve", _CURVES),
        "threshold": encode(gate.threshold, "threshold", {}),
    }
    return document if gate.profile is None else {**document, "profile": encode_profile(gate.profile)}


def scored_from(document: dict[str, Any]) -> ScoredGate:
    """The gate that a document describes, or ArtifactError: every field is checked, alone and against the others."""
    exact_keys(document, [*SCORED_KEYS, *(["profile"] if "profile" in document else [])], "the file")
    values = _parameters(document["parameters"])
    promise = read_promise(document["promise"])
    certificate = audited_certificate(document["certificate"], promise)
    if certificate.score != doubt_name(values["score_name"], values["higher_is"]):
        raise ArtifactError("the score is not the same in the certificate and the parameters.")
    threshold = decode(float, document["threshold"], "threshold", {})
    if threshold != certificate.threshold:
        raise ArtifactError("the threshold and the certificate's differ.")
    if threshold != RELATIVE.settled(threshold):
        raise ArtifactError(f"the threshold {threshold!r} does not lie between two scores.")
    hashed = document["data_hash"]
    return ScoredGate(
        certificate,
        threshold,
        score=values["score_name"],
        higher_is=values["higher_is"],
        promise=promise,
        curve=_curve(document["curve"]),
        data_hash=None if hashed is None else check_data_hash(hashed),
        profile=decode_profile(document["profile"], certificate) if "profile" in document else None,
    )


def _parameters(data: Any) -> dict[str, Any]:
    exact_keys(data, list(SCORED_PARAMETERS), "parameters")
    values = {name: decode(kind, data[name], f"parameters.{name}", {}) for name, kind in SCORED_PARAMETERS.items()}
    if values["higher_is"] not in HIGHER_IS:
        raise ArtifactError(f'parameters.higher_is must be "surer" or "doubtful", not {shown(values["higher_is"])}.')
    if plain_name(values["score_name"]) != values["score_name"]:
        raise ArtifactError("parameters.score_name must be one line of plain text, of at most 80 characters.")
    return values


def _curve(data: Any) -> ConfidenceCurve | None:
    if data is None:
        return None
    curve: ConfidenceCurve = decode_map(data, "curve", _CURVES)
    if len(curve.knots) > _MOST_CORNERS:
        raise ArtifactError(f"the curve has {len(curve.knots):,} corners; {_MOST_CORNERS:,} is the most.")
    return curve
