"""evaluate of a cascade, and its page: who answers how much, how right each is, whether the promise is kept.

The curve says what the loss (or the accuracy) on these rows would be if the small model answered more or less. Its
points are estimates, each from the same rows: to move the threshold, certify it on rows of their own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from metacal.gate import CascadeGate
from metacal.gate.cascade import paired
from metacal.metrics.intervals import clopper_pearson
from metacal.promises.rules.cascade import Candidate, MaxLoss, Paired, counts
from metacal.promises.rules.cascade_verification import CascadeVerification, verify_cascade
from metacal.rows import Rows
from metacal.rows.labels import codes_where_known

#: Points of the curve.
_POINTS = 101


@dataclass(frozen=True)
class Part:
    """One who answers: how many rows, which share of all with its interval, how often right with its interval.

    `right` and `accuracy` are None for people, and where labels are missing.
    """

    name: str
    n: int
    share: tuple[float, float, float]
    right: int | None
    accuracy: tuple[float, float, float] | None

    def __str__(self) -> str:
        share, accuracy = (
            None if three is None else "{:.4f} [{:.4f}, {:.4f}]".format(*three) for three in (self.share, self.accuracy)
        )
        return f"answers {share} of all rows" + ("" if accuracy is None else f", right {accuracy} of them")


@dataclass(frozen=True)
class CascadeEvaluation:
    """Who answers how much, how right each is, and what these rows say of the promise; prints itself."""

    verification: CascadeVerification
    parts: tuple[Part, ...]
    curve: tuple[tuple[float, float], ...]
    level: float
    fitted_here: bool
    file: str | None = None
    large_file: str | None = None
    artifact: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "file": self.file,
            "large": self.large_file,
            "artifact": self.artifact,
            "n_rows": self.verification.n_rows,
            "fitted_here": self.fitted_here,
            "verification": self.verification.to_dict(),
            "certificate": self.verification.certificate.to_dict(words=True),
            "level": self.level,
            "parts": [asdict(part) for part in self.parts],
            "curve": [list(point) for point in self.curve],
        }

    def __str__(self) -> str:
        brackets = f"  (in brackets: {100 * self.level:g}% intervals)"
        source = "" if self.file is None else f" of {self.file} through {self.artifact}"
        return "\n".join(
            [self.verification.text(source), *(f"  {part.name:<12} {part}" for part in self.parts), brackets]
        )

    __repr__ = __str__


def evaluate_cascade(
    gate: CascadeGate, one: Rows, other: Rows, labels: Any, *, level: float = 0.95, **source: str | None
) -> CascadeEvaluation:
    """Measure a cascade on labelled rows of both models; MaxLoss needs labels only where the two disagree.

    Examples
    --------
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(5, size=3000)
    >>> small, large = (rng.normal(size=(3000, 5)) + gap * np.eye(5)[y] for gap in (3.0, 4.0))
    >>> cascade = mc.Cascade(promise=mc.MaxLoss(0.02)).fit(small[:2000], y[:2000], large=large[:2000])
    >>> found = evaluate_cascade(cascade.gate_, Rows(small[2000:]), Rows(large[2000:]), y[2000:])
    >>> [part.name for part in found.parts], found.verification.refuted
    (['small', 'large'], False)
    """
    codes = codes_where_known(labels, len(one), gate.classes)
    rows = paired(one, other, codes, (gate.small.score, gate.large.score))
    verification = verify_cascade(gate.certificate, rows)
    whole, seen = bool(rows.known.all()), verification.seen
    parts = [
        _part("small", seen.small, len(rows), seen.small - seen.wrong_small if whole else None, level),
        _part("large", seen.large, len(rows), seen.large - seen.wrong_large if whole else None, level),
    ]
    if gate.certificate.people:
        parts.append(_part("person", seen.person, len(rows), None, level))
    curve = _curve(gate, rows) if whole or isinstance(gate.certificate.promise, MaxLoss) else ()
    return CascadeEvaluation(verification, tuple(parts), curve, level, gate.fitted_on(one, other), **source)


def _part(name: str, n: int, of: int, right: int | None, level: float) -> Part:
    share = clopper_pearson(n, of, level)
    accuracy = None
    if right is not None and n:
        found = clopper_pearson(right, n, level)
        accuracy = (found.estimate, found.low, found.high)
    return Part(name, n, (share.estimate, share.low, share.high), right, accuracy)


def _curve(gate: CascadeGate, rows: Paired) -> tuple[tuple[float, float], ...]:
    """(share that the small model answers, loss or accuracy) at thresholds along its score."""
    points = []
    if not (rows.known | rows.agree).all():
        return ()
    relative = isinstance(gate.certificate.promise, MaxLoss)
    for threshold in [-np.inf, *np.quantile(rows.small_score, np.linspace(0.0, 1.0, _POINTS), method="lower")]:
        seen = counts(rows, Candidate(float(threshold), gate.certificate.large_threshold))
        if relative:
            points.append((seen.small / len(rows), (seen.worse - seen.better) / len(rows)))
        elif seen.answered:
            points.append((seen.small / len(rows), 1.0 - seen.wrong / seen.answered))
    return tuple(points)
