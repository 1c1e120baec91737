"""Certification result of a cascade, whose models answer the rows that earlier models reject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metacal.certificates.certificate import Certificate
from metacal.certificates.fingerprint import Fingerprint, fingerprint_rows
from metacal.formulas import Flags, Float


@dataclass(frozen=True, eq=False)
class CertifiedCascade:
    """Certification result of a cascade of models.

    Attributes
    ----------
    certificate : Certificate
        Certificate with the threshold of each stage.

    first_model_scores : array of float of shape (n_rows,)
        Uncertainty of the first model for each labelled row.

    is_first_model_correct_or_agrees : array of bool of shape (n_rows,)
        Whether the first model agrees with the last model, or is correct.
    """

    certificate: Certificate
    first_model_scores: Float
    is_first_model_correct_or_agrees: Flags

    def get_fingerprint(self) -> Fingerprint:
        """Compute the fingerprint of the rows from the scores of the first model."""
        return fingerprint_rows(self.first_model_scores, self.is_first_model_correct_or_agrees)


def name_stage_scores(certificate: Certificate, score_names: Sequence[str]) -> Certificate:
    """Add the name of the ranking score of each stage to a certificate."""
    stages = certificate.stages
    assert stages is not None
    named_stages = tuple(
        replace(stage, score=score_name)
        for stage, score_name in zip(stages.models, score_names, strict=True)
    )
    first_stage = named_stages[0]
    return replace(
        certificate,
        score=first_stage.score,
        stages=replace(stages, models=named_stages),
    )
