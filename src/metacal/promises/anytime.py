"""How a certificate says that its labels were asked for one by one, and what in such a certificate cannot be."""

from __future__ import annotations

from metacal.promises.certificate import Certificate
from metacal.promises.words import register_rule

ANYTIME = register_rule(
    "anytime-bets",
    "a bet on each threshold, over rows asked about with known probability; valid at any stopping time "
    "(Ville 1939; Waudby-Smith & Ramdas 2024)",
    "new rows come from the same source as the pool, a random sample of it which the classifier was not trained on",
    "every row that was asked about was answered, whatever the answer is",
)


def impossible_labels(certificate: Certificate) -> str | None:
    """What in the counts of such a certificate cannot be; None where all agrees, or the rule is another one.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> plain = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
    >>> impossible_labels(replace(plain, labels=10))
    'labels are counted where rows of a pool were asked about, by no other rule'
    >>> impossible_labels(replace(plain, rule=ANYTIME, labels=101))
    '101 of 100 rows cannot be labelled'
    """
    asked = certificate.rule == ANYTIME
    if asked != (certificate.labels is not None):
        return "labels are counted where rows of a pool were asked about, by no other rule"
    if certificate.labels is not None and not 1 <= certificate.labels <= certificate.n_rows:
        return f"{certificate.labels:,} of {certificate.n_rows:,} rows cannot be labelled"
    return None
