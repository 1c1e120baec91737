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
    from metacal.report.measured import Codes, Column, Flags
    from metacal.rows import Rows

#: Thresholds looked at, about; rows next to one that say whether probabilities are right there: a share, at least some.
_POINTS, _NEAR, _FEWEST = 200, 20, 50


@dataclass(frozen=True)
class Near:
    """Rows just below (side 0) or above (1) a threshold: their mean P(positive), and how many are, with an interval."""

    at: float
    side: int
    n_rows: int
    stated: float
    share: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Sides:
    """Rows above the log-odds t called positive, rows at or below negative, for about 200 t; negative is named first.

    `called` is P(above), `recall` and `false_positive_rate` are P(above | positive) and P(above | negative), the ROC
    curve; `precision` and `npv` P(positive | above) and P(negative | not above). All bands hold at every t at once,
    together with probability 1 - delta. `lower` and `upper` say where a gate with two sides has its own thresholds,
    None where a side is closed; `near` looks around those, or around the decision.
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
    """Both sides of rows of two classes; None where one of them has no row."""
    positive = np.asarray(codes) == 1
    n, n_positive = len(positive), int(positive.sum())
    if not 0 < n_positive < n:
        return None
    s = rows.collect(log_odds)
    ordered, own = np.sort(s), _thresholds(gate)
    below = {side: int(np.searchsorted(ordered, at, side="right")) for side, at in own.items()}
    counts = np.unique(np.concatenate([grid(ordered, _POINTS, below.get(side, 0)) for side in (0, 1)]))
    at = thresholds_between(ordered, counts)
    negatives = operating_bands(s, ~positive, delta / 2.0, at)
    positives = operating_bands(-s, positive, delta / 2.0, np.nextafter(-at, -np.inf))  # -s <= -t would be s >= t
    found, missed, alarms, right = positives.accuracy, positives.miscoverage, negatives.miscoverage, negatives.accuracy
    place = {side: int(np.searchsorted(counts, rank)) for side, rank in below.items() if rank}
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
        lower=place.get(0),
        upper=place.get(1),
        near=_near(rows.collect(partial(_second, gate)), s, positive, own or {1: gate.source.decision_at}, level),
        delta=delta,
    )


def _thresholds(gate: Gate) -> dict[int, float]:
    """The log-odds at which a gate with two sides begins to call rows by each class."""
    certificate = gate.certificate
    if certificate is None or certificate.parts is None or gate.promise is None or not gate.promise.sided:
        return {}
    margins = [0.0 if part.accepts_everything else -part.threshold for part in certificate.parts.items]
    at = certificate.decision_at
    return {code: at + (margin if code else -margin) for code, margin in enumerate(margins) if np.isfinite(margin)}


def _second(gate: Gate, block: NDArray[Any]) -> Column:
    return np.asarray(gate.source.map(block)[:, 1], dtype=np.float64)


def _near(p: Column, s: Column, positive: Flags, thresholds: dict[int, float], level: float) -> tuple[Near, ...]:
    wanted, order = max(_FEWEST, len(s) // _NEAR), np.argsort(s, kind="stable")
    found = []
    for at in sorted(set(thresholds.values())):
        rank = int(np.searchsorted(s[order], at, side="right"))
        for side, own in enumerate((order[max(0, rank - wanted) : rank], order[rank : rank + wanted])):
            if len(own):
                share = clopper_pearson(int(positive[own].sum()), len(own), level)
                stated = float(p[own].mean())
                found.append(Near(float(at), side, len(own), stated, share.estimate, share.low, share.high))
    return tuple(found)
