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
            "MaxLoss over tables compares two answers to every row, and a watch sees the one that"
            " was given; verify it on labelled rows (mc.verify, metacal verify), or fit the cascade"
            " on scores."
        )


def check_measurable(gate: Gate) -> None:
    """Raise InputError if the accuracy of a gate cannot be measured.

    A cascade that was fitted on agreement has no correctness of its answers.
    """
    if gate.reads_agreement:
        raise CascadeError(
            "This cascade was fitted on agreement with the large model. Its rows do not say which"
            " answers are correct, so no accuracy can be measured. Use verify (metacal verify),"
            " which tests the promise."
        )
