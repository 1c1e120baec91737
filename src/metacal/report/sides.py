"""Two classes in the report: what is called by either of them at every log-odds, and calibration
near the decision.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.formulas import Array
from metacal.maps.monotone import log_odds
from metacal.metrics.intervals import clopper_pearson
from metacal.metrics.ranking import auroc
from metacal.promises.rules.bands import operating_bands
from metacal.report.operating import Series, grid, series_of, thresholds_between

if TYPE_CHECKING:
    from metacal.formulas import Codes, Flags, Float
    from metacal.gate import Gate
    from metacal.rows import Rows

#: Thresholds looked at, about; rows next to one that say whether probabilities are right there: a
#: share, at least some.
_POINTS, _NEAR, _FEWEST = 200, 20, 50


def sides_of(
    gate: Gate, rows: Rows, codes: Codes, names: Array, delta: float, level: float
) -> dict[str, Any]:
    """Rows above the log-odds `threshold` called positive, rows at or below negative, for about 200
    of them.

    `called` is P(above), `recall` and `false_positive_rate` are P(above | positive) and P(above |
    negative), the ROC curve; `precision` and `npv` P(positive | above) and P(negative | not above).
    All bands hold at every threshold at once, together with probability 1 - delta. `lower` and
    `upper` say which are a gate's own, None where a side is closed or there is none; `near` looks
    at rows next to those, or to the decision. `names`: the negative class first.
    """
    positive, s = codes == 1, rows.collect(log_odds)
    ordered, own = np.sort(s), _thresholds(gate)
    below = {side: int(np.searchsorted(ordered, at, side="right")) for side, at in own.items()}
    counts = np.unique(
        np.concatenate([grid(ordered, _POINTS, below.get(side, 0)) for side in (0, 1)])
    )
    at = thresholds_between(ordered, counts)
    negatives = operating_bands(s, ~positive, delta / 2.0, at)
    positives = operating_bands(
        -s, positive, delta / 2.0, np.nextafter(-at, -np.inf)
    )  # -s <= -t would be s >= t
    place = {side: int(np.searchsorted(counts, rank)) for side, rank in below.items() if rank}
    missed = series_of(positives.miscoverage)
    return {
        "names": [str(name) for name in names],
        "n_rows": len(s),
        "n_positive": int(positive.sum()),
        "threshold": at,
        "called": 1.0 - counts / len(s),
        "recall": Series(1.0 - missed.estimate, 1.0 - missed.high, 1.0 - missed.low),
        "false_positive_rate": series_of(negatives.miscoverage),
        "precision": series_of(positives.accuracy),
        "npv": series_of(negatives.accuracy),
        "auroc": auroc(-s, positive),
        "lower": place.get(0),
        "upper": place.get(1),
        "near": _near(
            rows.collect(partial(_second, gate)),
            s,
            positive,
            own or {1: gate.source.decision_at},
            level,
        ),
        "delta": delta,
    }


def _thresholds(gate: Gate) -> dict[int, float]:
    """The log-odds at which a gate with two sides begins to call rows by each class."""
    certificate = gate.certificate
    if certificate is None or certificate.parts is None or not certificate.parts.of_all:
        return {}  # none, or each group has its own
    margins = [
        0.0 if part.accepts_everything else -part.threshold for part in certificate.parts.items
    ]
    at = certificate.decision_at
    return {
        code: at + (margin if code else -margin)
        for code, margin in enumerate(margins)
        if np.isfinite(margin)
    }


def _second(gate: Gate, block: Array) -> Float:
    return np.asarray(gate.source.map(block)[:, 1], dtype=np.float64)


def _near(
    p: Float, s: Float, positive: Flags, thresholds: dict[int, float], level: float
) -> list[dict[str, float]]:
    """Rows just below (side 0) and above (1) each threshold: their mean P(positive), and how many
    are.
    """
    wanted, order = max(_FEWEST, len(s) // _NEAR), np.argsort(s, kind="stable")
    found = []
    for at in sorted(set(thresholds.values())):
        rank = int(np.searchsorted(s[order], at, side="right"))
        for side, own in enumerate(
            (order[max(0, rank - wanted) : rank], order[rank : rank + wanted])
        ):
            if len(own):
                share = clopper_pearson(int(positive[own].sum()), len(own), level)
                stated = {
                    "at": at,
                    "side": side,
                    "n_rows": len(own),
                    "stated": float(p[own].mean()),
                }
                found.append(
                    {**stated, "share": share.estimate, "low": share.low, "high": share.high}
                )
    return found
