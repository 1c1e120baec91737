"""Is the promise still kept? An e-process on live, labelled traffic, valid at any stopping time.

A certificate speaks about rows from the same source as the calibration rows. When the world drifts nobody is told, so
labelled traffic has to be watched; and whoever looks every day must not be fooled by looking often. An e-process may be
looked at after every row: under a kept promise it ever reaches 1/δ with probability at most δ (Ville's inequality).

Ville 1939; Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS-B 2024; Ramdas,
Grünwald, Vovk & Shafer, "Game-theoretic statistics and safe anytime-valid inference", Statistical Science 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.promises.certificate import Certificate, at_most
from metacal.promises.parts import Name
from metacal.promises.quantity import Quantity, quantity
from metacal.rows.validate import fraction

#: The first guess of the rate is this many times the limit, held with the weight of 1/limit rows.
_FIRST_GUESS = 2.0


@dataclass
class PromiseMonitor:
    """Evidence against a promise, updated row by row.

    Which rows count, and what an event is, depends on the promise:

    - coverage accuracy >= β: the accepted rows; an event is a wrong one; the limit on its rate is 1 - β;
    - miscoverage <= α: the rows that were predicted right; an event is a rejected one; the limit is α.

    With x = 1 for an event and q the predictable plug-in rate (of the events seen *before*, never below the limit),
    the evidence is the likelihood ratio Π (q/limit)^x · ((1-q)/(1-limit))^(1-x). Each factor has expectation at most
    one while the rate is at most the limit, so P(evidence ever >= 1/δ) <= δ: look as often as you like.

    Labels must not be chosen by the outcome: label all rows, or a random sample (of the accepted ones, for the first).

    Parameters
    ----------
    quantity : "coverage accuracy" or "miscoverage"
        Which promise.
    limit : float
        The largest rate of events that it allows: 1 - β or α.
    delta : float
        The chance of ever raising an alarm while the promise is kept.
    rows, events : int
        Rows that counted so far, and events among them.
    log_evidence, log_peak : float
        The logarithm of the evidence now, and of the highest it ever was.
    parts : tuple of str or int, optional
        The class or group that is watched, several where they are pooled; empty: all rows.

    Notes
    -----
    All state is in the fields: `dataclasses.asdict(monitor)` is JSON, `PromiseMonitor(**saved)` goes on from there.

    Examples
    --------
    >>> monitor = PromiseMonitor("coverage accuracy", limit=0.03)
    >>> monitor.update(accepted=[True] * 200, correct=[True] * 196 + [False] * 4).alarm
    False
    >>> monitor.update(accepted=[True] * 200, correct=[True, True, True, False, True] * 40).alarm
    True
    """

    quantity: str
    limit: float
    delta: float = 0.05
    rows: int = 0
    events: int = 0
    log_evidence: float = 0.0
    log_peak: float = 0.0
    parts: tuple[Name, ...] = ()

    def __post_init__(self) -> None:
        self.parts = tuple(self.parts)
        self.quantity = quantity(self.quantity)
        fraction("limit", self.limit)
        fraction("delta", self.delta)

    @classmethod
    def of(cls, certificate: Certificate, delta: float = 0.05) -> tuple[Self, ...]:
        """A monitor for each promise of a certificate: one, or two at delta/2 where both are promised at once.

        Where each class or group has its own promise there is one for each that accepts rows, at delta over their
        number; give all of them all rows, with the class or group of each as `parts`.

        Examples
        --------
        >>> import metacal as mc
        >>> data = mc.datasets.load("cifar10-resnet110")
        >>> cal = mc.MetaCal(mc.MinCoverageAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
        >>> [(monitor.quantity, round(monitor.limit, 6)) for monitor in PromiseMonitor.of(cal.certificate_)]
        [('coverage accuracy', 0.03)]
        """
        if certificate.parts is not None:
            ((promised, target),) = certificate.limits
            named = [part.names for part in certificate.parts.items if part.status == "certified"]
            named += [part.names for part in certificate.parts.items if part.accepts_everything]
            limit, share = promised.limit_on_bad(target), delta / max(1, len(named))
            return tuple(cls(promised, limit, share, parts=names) for names in named)
        share = delta / len(certificate.limits)
        return tuple(cls(promised, promised.limit_on_bad(target), share) for promised, target in certificate.limits)

    @property
    def promised(self) -> Quantity:
        """What is watched, as an object that can be asked."""
        return quantity(self.quantity)

    @property
    def evidence(self) -> float:
        """How many times likelier the traffic is under a broken promise: 1 says nothing, 1/delta is an alarm."""
        return math.exp(min(self.log_evidence, 700.0))

    @property
    def alarm(self) -> bool:
        """Whether the evidence has ever reached 1/delta. It stays: start a new monitor after you have acted."""
        return self.log_peak >= -math.log(self.delta)

    def update(self, accepted: ArrayLike, correct: ArrayLike, parts: ArrayLike | None = None) -> Self:
        """Take in labelled rows in the order they came: whether each was accepted, whether its prediction was right.

        A monitor of one class or group needs `parts`, those of the rows, and counts its own alone.
        """
        kept, right = _flags(accepted, "accepted"), _flags(correct, "correct")
        if kept.shape != right.shape:
            raise InputError(
                f"accepted and correct must have one entry per row each; got {len(kept)} and {len(right)}."
            )
        if self.parts:
            if parts is None or len(names := np.atleast_1d(np.asarray(parts))) != len(kept):
                raise InputError(f"this monitor watches {_listed(self.parts)}; give the class or group of each row.")
            own = np.isin(names.astype(str), np.array(self.parts).astype(str))
            kept, right = kept[own], right[own]
        happened = self.promised.events(kept, right)
        if not len(happened):
            return self
        before = self.events + np.cumsum(happened) - happened
        seen = self.rows + np.arange(len(happened))
        rate = np.maximum((before + _FIRST_GUESS) / (seen + 1.0 / self.limit), self.limit)
        rate = np.minimum(
            rate, 0.5 * (1.0 + self.limit)
        )  # below one: a rate of one would call a right answer impossible
        gain = np.where(happened, np.log(rate / self.limit), np.log1p(-rate) - math.log1p(-self.limit))
        path = self.log_evidence + np.cumsum(gain)
        self.rows += len(happened)
        self.events += int(happened.sum())
        self.log_evidence = float(path[-1])
        self.log_peak = max(self.log_peak, float(path.max()))
        return self

    def __str__(self) -> str:
        verdict = f"ALARM, at a false-alarm rate of {at_most(self.delta)}" if self.alarm else "no alarm"
        which = f"{_listed(self.parts)}: " if self.parts else ""
        return (
            f"{which}{self.events:,} of {self.rows:,} {self.promised.bad_among}, limit {at_most(self.limit)}: "
            f"evidence {self.evidence:.3g}, {verdict}."
        )


def _listed(names: tuple[Name, ...]) -> str:
    return ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")


def _flags(values: ArrayLike, name: str) -> NDArray[np.bool_]:
    array = np.atleast_1d(np.asarray(values))
    if array.dtype != np.bool_ or array.ndim != 1:
        if array.size:
            raise InputError(f"{name} must be one boolean per row, got an array of {array.dtype}.")
        array = array.astype(np.bool_).ravel()
    return array
