"""What in a certificate cannot be true: its rule, limits and counts recomputed from one another.

Whoever reads a certificate from a file asks the promise that it belongs to: `promise.contradiction(certificate)`
is a sentence, or None. A new promise brings its own, made of the pieces here. They need the counts alone, not the rows:
an umbrella order statistic is certified by how many right rows it keeps, a binomial test by how many accepted rows are
wrong, whatever sequence of tests led there.
"""

from __future__ import annotations

from collections.abc import Sequence

from metacal.promises.certificate import Certificate, Guarantee
from metacal.promises.parts.part import Part
from metacal.promises.quantity import Limits
from metacal.promises.rules import bounds

#: A tail probability is recomputed by another SciPy than the one that compared it with delta.
SLACK = 1.0 + 1e-9


def other_promise(
    certificate: Certificate,
    promise: object,
    *,
    limits: Limits,
    delta: float | None,
    guarantee: Guarantee,
    rules: Sequence[str],
) -> str | None:
    """What the certificate says otherwise than the promise would; None when it is one of its own.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> from metacal.promises.rules.miscoverage import MaxMiscoverage
    >>> promise = MaxMiscoverage(0.05)
    >>> certificate = promise.certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
    >>> promise.contradiction(certificate)
    >>> promise.contradiction(replace(certificate, rule="paper-algorithm-1"))
    'the rule is none that this promise uses'
    """
    # The paper's split shows the certificate a part of the rows; any other rule sees them all.
    split, around = guarantee == "none", certificate.circumstances
    wrong = around.impossible(max(certificate.n_rows, around.folds) if split else certificate.n_rows, delta)
    if wrong is not None:
        return wrong
    said = (certificate.limits, certificate.delta, certificate.guarantee)
    if said != (limits, delta, around.guarantee(guarantee)):
        return f"it does not belong to the promise {promise!r}; fit again"
    if certificate.rule not in rules:
        return "the rule is none that this promise uses"
    return _other_traffic(certificate, split)


def _other_traffic(certificate: Certificate, split: bool) -> str | None:
    """What describes the traffic but cannot: the rows that certify do or, after a split, all of which they are part."""
    counts, traffic = certificate.traffic_counts, certificate.traffic
    if counts is None:
        return None
    rejected = traffic.n_rows - traffic.n_accepted
    among = certificate.n_accepted <= traffic.n_accepted and certificate.n_rows - certificate.n_accepted <= rejected
    if split and among and certificate.n_rows < traffic.n_rows:
        return None
    return f"{traffic.n_accepted:,} of {traffic.n_rows:,} rows accepted is not the traffic that its rows describe"


def impossible_labels(certificate: Certificate, *, some_will_do: bool) -> str | None:
    """What cannot be where labels were asked for; None where all agrees, or every row came with its label.

    Every accepted row has a label. Of the rejected ones some have, if `some_will_do`, and right rows are counted among
    those with a label.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> plain = MinAccuracy(0.8).certify(np.arange(100.0), np.arange(100) < 70)
    >>> plain.n_accepted, plain.n_correct
    (81, 70)
    >>> impossible_labels(replace(plain, labels=85), some_will_do=True)
    >>> impossible_labels(replace(plain, labels=80), some_will_do=True)
    '81 rows are accepted, but only 80 have a label'
    >>> impossible_labels(replace(plain, labels=85), some_will_do=False)
    '85 of 100 rows have a label, and this promise takes all'
    """
    labels, n = certificate.labels, certificate.n_rows
    if labels is None:
        return None
    accepted, right = certificate.n_accepted, certificate.n_correct
    if not 1 <= labels <= n:
        return f"{labels:,} of {n:,} rows cannot have a label"
    if labels < n and not some_will_do:
        return f"{labels:,} of {n:,} rows have a label, and this promise takes all"
    if labels < accepted:
        return f"{accepted:,} rows are accepted, but only {labels:,} have a label"
    if not 0 <= right - certificate.n_correct_accepted <= labels - accepted:
        return f"{right:,} of {labels:,} rows with a label cannot be right"
    return None


def impossible_stages(certificate: Certificate) -> str | None:
    """What cannot be in the counts of a cascade, alone or beside those of the certificate; None where all agrees."""
    stages = certificate.stages
    if stages is None:
        return None
    first, wrong = stages.items[0], stages.n_wrong
    if (certificate.threshold, certificate.score) != (first.threshold, first.score):
        return "the first model's threshold or score is not the certificate's"
    right = None if wrong is None else stages.n_answered - wrong
    own = certificate.n_correct_accepted if certificate.labelled else None
    if certificate.n_accepted != stages.n_answered or right != own:
        return "the models answer other rows than are accepted"
    return stages.impossible(certificate.n_rows)


def too_few_right_kept(certificate: Certificate | Part, alpha: float, delta: float | None) -> str | None:
    """Whether the right rows that were accepted are too few to certify a miscoverage of at most alpha.

    With k of n right rows at or below the threshold, it takes P(Bin(n, 1-alpha) >= k) <= delta, or in expectation
    (n+1-k)/(n+1) <= alpha. Where everything is accepted no right row is rejected, and nothing is to be certified.
    """
    n, kept = certificate.n_correct, certificate.n_correct_accepted
    if certificate.accepts_everything:
        return None
    if delta is None:
        enough = kept >= bounds.expected_miscoverage_rank(n, alpha)
    else:
        enough = kept > 0 and bounds.miscoverage_violation(n, kept, alpha) <= SLACK * delta
    if enough:
        return None
    return f"{kept:,} of {n:,} right rows accepted do not certify a miscoverage of at most {alpha:g}{_surely(delta)}"


def too_many_wrong_accepted(certificate: Certificate | Part, beta: float, delta: float | None) -> str | None:
    """Whether the accepted rows hold too many wrong ones to certify an accuracy of at least beta.

    With e of m accepted rows wrong, it takes P(Bin(m, 1-beta) <= e) <= delta, or in expectation e+1 <= (1-beta)(m+1).
    Every rule that tests ranks exactly, at shares of delta that sum to delta, ends at such a rank.
    """
    accepted, right = certificate.n_accepted, certificate.n_correct_accepted
    wrong = accepted - right
    if delta is None:
        enough = wrong + 1 <= (1 - bounds.exact(beta)) * (accepted + 1)
    else:
        enough = accepted > 0 and bool(bounds.binomial_p_value(wrong, accepted, 1.0 - beta) <= SLACK * delta)
    if enough:
        return None
    return (
        f"{wrong:,} wrong of {accepted:,} accepted rows do not certify an accuracy of at least {beta:g}{_surely(delta)}"
    )


def _surely(delta: float | None) -> str:
    return " in expectation" if delta is None else f" (delta {delta:g})"
