"""Checks that a feature supports the promise of a gate."""

from __future__ import annotations

from metacal.errors import CascadeError
from metacal.gate.gate import Gate


def check_watchable(gate: Gate) -> None:
    """Raise InputError if a watch cannot monitor the promise of a gate.

    A paired difference compares two answers to each row, and a watch sees only one of them.
    """
    is_logits_cascade = gate.is_cascade and gate.has_classes
    if not is_logits_cascade or gate.certificate is None:
        return
    if gate.certificate.quantity.is_paired_difference:
        raise CascadeError(
            "A watch does not support MaxLoss over tables, because it sees only one of the two"
            " predictions for a row. Verify the promise on labelled rows (mc.verify, metacal"
            " verify), or fit the cascade on scores."
        )


def check_accuracy_is_measurable(gate: Gate) -> None:
    """Raise InputError if the accuracy of a gate cannot be measured.

    A cascade that was fitted on agreement has no correctness of its answers.
    """
    if gate.needs_agreement_flags:
        raise CascadeError(
            "Cannot measure the accuracy of this cascade, because it was fitted on agreement"
            " with the large model instead of correctness. To test the promise, use verify"
            " (metacal verify)."
        )
