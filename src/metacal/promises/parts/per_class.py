"""PerClass: a promise for every predicted class, each with a threshold of its own."""

from __future__ import annotations

from dataclasses import dataclass

from metacal.promises.parts.part import By
from metacal.promises.parts.per import Parted


@dataclass
class PerClass(Parted):
    """`promise` for every predicted class, each with a threshold of its own.

    One threshold for all classes keeps the accuracy of what is accepted on average over them: some class nearly always
    stands below it. Here the rows of each predicted class are certified by themselves. Among the right rows the
    predicted class is the true one, so a limit on the miscoverage holds for every true class.

    A class whose rows cannot carry an accuracy is always rejected, and the certificate says which, why, and how many
    rows it would take; one with too few right rows to reject any under a limit on the miscoverage accepts every row.

    Parameters
    ----------
    promise : MinAccuracy or MaxMiscoverage
        What is promised of each class.
    shares : "together" or "each"
        "together": all promises hold at once with probability 1 - delta. "each": each does by itself, so that the
        expected share of broken classes is at most delta; it takes far fewer rows.
    fallback : None or "pooled"
        "pooled": classes with too few rows share one threshold, certified for all of them taken together and for none
        by itself. `metacal.promises.parts.per` has the proofs.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> rng = np.random.default_rng(0)
    >>> scores, codes = rng.random(3000), rng.integers(3, size=3000)
    >>> correct = rng.random(3000) > scores * np.array([0.05, 0.3, 2.0])[codes]
    >>> found = PerClass(MinAccuracy(0.95)).certify_parts(scores, correct, codes, ["cat", "dog", "cow"])
    >>> print(found.statement)
    For every predicted class, what is accepted is right at least 95% of the time,
    with 90% confidence for all classes together.
    >>> [(part.name, part.status) for part in found.parts.items]
    [('cat', 'accepts everything'), ('dog', 'certified'), ('cow', 'always rejected')]
    """

    @property
    def by(self) -> By:
        """The class with the largest logit."""
        return "class"
