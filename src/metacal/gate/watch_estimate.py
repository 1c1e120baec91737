"""Estimate of the selective accuracy of watched rows from their confidence, without labels."""

from __future__ import annotations

from metacal.certificates.accuracy_estimate import (
    AcceptedSums,
    AccuracyEstimate,
    infer_accuracy_from_sums,
)
from metacal.gate.gate import Gate
from metacal.gate.traffic import ConfidenceSums, Counts


def estimate_selective_accuracy(
    gate: Gate, counts: Counts, confidence_sums: ConfidenceSums
) -> AccuracyEstimate | None:
    """Estimate the selective accuracy that the confidence of accepted rows implies.

    Returns None if the gate was certified without labels.
    """
    certificate = gate.certificate
    if certificate is None or not certificate.has_labels:
        return None
    accepted_sums = AcceptedSums(
        n_rows=counts.rows,
        n_accepted=counts.accepted,
        confidence_sum=confidence_sums.confidence,
        variance_sum=confidence_sums.variance,
    )
    return infer_accuracy_from_sums(certificate, gate.profile, accepted_sums)
