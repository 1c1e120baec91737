"""Two classes in the report: what is called by either of them at every log-odds, and calibration near the decision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.maps.monotone import log_odds
from metacal.metrics.intervals import clopper_pearson
from metacal.metrics.ranking import auroc
from metacal.promises.rules.bands import operating_bands
from metacal.report.operating import Series, grid, thresholds_between

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.report.measured import Codes, Column
    from metacal.rows import Rows

#: Thresholds looked at, about.
_POINTS = 200
#: Rows on either side of a threshold that say whether the probabilities are right there: a twentieth, at least so many.
_NEAR, _FEWEST = 20, 50


@dataclass(frozen=True)
class Near:
    """Rows with log-odds next to a threshold: their mean probability of the second class, and how many are of it."""

    at: float
    side: int
    n_rows: int
    stated: float
    share: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Sides:
    """Both sides at about 200 log-odds t: rows above are called positive, rows at or below are called negative.

    All bands hold at every t at once, together with probability 1 - delta.

    Attributes
    ----------
    names : tuple of str
        Of the negative class and of the positive one.
    n_rows, n_positive : int
    threshold, called : arrays
        t, rising, and the share of rows above.
    recall, false_positive_rate : Series
        P(above | positive) and P(above | negative): the ROC curve.
    precision, npv : Series
        P(positive | above) and P(negative | not above).
    auroc : float
        The share of pairs of a positive and a negative row that are in order, ties counting half.
    lower, upper : int or None
        Where a gate with two sides has its own thresholds; None where that side is closed or there is none.
    near : tuple of Near
        Around those thresholds, or around even odds.
    delta : float
    """

    names: tuple[str, str]
    n_rows: int
    n_positive: int
    threshold: Column
    called: Column
    recall: Series
    false_positive_rate: Series
    precision: Series
    npv: Series
    auroc: float
    lower: int | None
    upper: int | None
    near: tuple[Near, ...]
    delta: float


def sides_of(gate: Gate, rows: Rows, codes: Codes, names: NDArray[Any], *, delta: float, level: float) -> Sides | None:
    """Of two classes with rows of each: both sides; None otherwise."""
    positive = np.asarray(codes) == 1
    n, n_positive = len(positive), int(positive.sum())
    if rows.n_classes != 2 or not 0 < n_positive < n:
        return None
    s = rows.collect(log_odds)
    ordered = np.sort(s)
    own = _thresholds(gate)
    below = {side: int(np.searchsorted(ordered, at, side="right")) for side, at in own.items()}
    counts = np.unique(
        np.concatenate([grid(ordered, _POINTS, below.get(0, 0)), grid(ordered, _POINTS, below.get(1, 0))])
    )
    at = thresholds_between(ordered, counts)
    called_negative = operating_bands(s, ~positive, delta / 2.0, at)
    called_positive = operating_bands(-s, positive, delta / 2.0, np.nextafter(-at, -np.inf))
    found, missed, alarms = called_positive.accuracy, called_positive.miscoverage, called_negative.miscoverage
    right = called_negative.accuracy
    order = {side: int(np.searchsorted(counts, rank)) for side, rank in below.items() if 0 < rank <= n}
    return Sides(
        names=(str(names[0]), str(names[1])),
        n_rows=n,
        n_positive=n_positive,
        threshold=at,
        called=1.0 - counts / n,
        recall=Series(1.0 - missed.estimate, 1.0 - missed.upper, 1.0 - missed.lower),
        false_positive_rate=Series(alarms.estimate, alarms.lower, alarms.upper),
        precision=Series(found.estimate, found.lower, found.upper),
        npv=Series(right.estimate, right.lower, right.upper),
        auroc=auroc(-s, positive),
        lower=order.get(0),
        upper=order.get(1),
        near=_near(rows.collect(partial(_second, gate)), s, positive, own or {1: gate.source.decision_at}, level),
        delta=delta,
    )


def _thresholds(gate: Gate) -> dict[int, float]:
    """The log-odds at which a gate with two sides begins to call rows by each class."""
    certificate = gate.certificate
    if certificate is None or certificate.parts is None or gate.promise is None or not gate.promise.sided:
        return {}
    at, items = certificate.decision_at, certificate.parts.items
    margins = {code: 0.0 if part.accepts_everything else -part.threshold for code, part in enumerate(items)}
    return {code: at + (margin if code else -margin) for code, margin in margins.items() if np.isfinite(margin)}


def _second(gate: Gate, block: NDArray[Any]) -> Column:
    return np.asarray(gate.source.map(block)[:, 1], dtype=np.float64)


def _near(
    p: Column, s: Column, positive: NDArray[np.bool_], thresholds: dict[int, float], level: float
) -> tuple[Near, ...]:
    """The rows next to each threshold, on its lower and on its upper side."""
    wanted, order = max(_FEWEST, len(s) // _NEAR), np.argsort(s, kind="stable")
    found = []
    for at in dict.fromkeys(thresholds[side] for side in sorted(thresholds)):
        rank = int(np.searchsorted(s[order], at, side="right"))
        for side, own in enumerate((order[max(0, rank - wanted) : rank], order[rank : rank + wanted])):
            if len(own):
                right = int(positive[own].sum())
                share = clopper_pearson(right, len(own), level)
                stated = float(p[own].mean())
                found.append(Near(float(at), side, len(own), stated, share.estimate, share.low, share.high))
    return tuple(found)
