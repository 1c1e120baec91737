"""The methods box: what each number means, and what computed it."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal import __version__
from metacal.promises.words import at_least, percent

if TYPE_CHECKING:
    from metacal.report.measured import Settings

_OF_CONFIDENCE = {
    "ECE": "expected calibration error: mean over rows of |share of right rows - mean confidence| of their bin, "
    "{n_bins} bins of equal width (or of equal counts) on the calibrated confidence",
    "class-wise ECE": "",
}
#: What terms mean where rows are not those of one table of logits; a term without a text is not used there.
_OWN = {
    "scores": {
        "score": "{score}, as it was given, {higher}; rows without one are left out here, and are always rejected",
        "right": "as the rows themselves say",
        **_OF_CONFIDENCE,
    },
    "cascade": {
        "score": "{score} of the answer, calibrated, whichever model gives it, {higher}; the thresholds of the models, "
        "on scores of their own, are in the certificate",
        "right": "the largest logit of the model that answers is the true class (lowest column on an exact tie)",
        **_OF_CONFIDENCE,
    },
}


@dataclass(frozen=True)
class Methods:
    """How the numbers came about: definitions as (term, text), and the versions of what computed them."""

    definitions: tuple[tuple[str, str], ...]
    versions: dict[str, str]


def methods(settings: Settings, score: str, kind: str = "logits") -> Methods:
    """Definitions in plain words, with the settings filled in, for a gate on logits, on scores, or a cascade."""
    sure, level = at_least(1.0 - settings.delta), percent(settings.level)
    bootstrap = (
        f"bootstrap of the rows with {settings.n_resamples:,} resamples (seed {settings.seed})"
        if settings.n_resamples
        else "not computed for a table of this size"
    )
    definitions = (
        ("score", f"{score} of the uncalibrated row, higher = less sure; a row is accepted iff its score <= threshold"),
        ("coverage", "share of all rows that is accepted"),
        (
            "accuracy of accepted",
            "coverage accuracy, P(right | accept): share of right answers among the accepted rows",
        ),
        ("miscoverage", "P(reject | right): share of the right answers that is rejected"),
        ("review per 1,000", "rejected rows per 1,000, for somebody to look at"),
        ("right", "the largest logit is the true class (lowest column on an exact tie)"),
        (
            "bands of the curves",
            f"hold for all thresholds and all three curves at once with {sure} confidence, so a point may be picked "
            "after looking: equal local levels on the order statistics (Bates et al. 2021). Rows are taken as "
            "independent draws from one source; nothing else is assumed",
        ),
        (
            "certified frontier",
            f"pairs of accuracy and miscoverage that hold together at one threshold, all pairs at once with {sure} "
            "confidence (half of the error probability each)",
        ),
        (
            "ECE",
            "expected calibration error: mean over rows of |accuracy - mean confidence| of their bin, "
            f"{settings.n_bins} bins of equal width (or of equal counts) on the top probability; "
            "a tie among m classes counts 1/m",
        ),
        ("class-wise ECE", "the same for each class's own probability, averaged over classes"),
        ("limits of reliability bins", f"Clopper-Pearson, all bins of a diagram at once with {level} confidence"),
        (
            "two confidences",
            "that of a promise is about the rows of the fit: so many of all fits keep it; that of an interval is about "
            "these rows: so many of such intervals contain what they estimate",
        ),
        ("intervals", f"{level}; shares exact (Clopper-Pearson), other metrics {bootstrap}"),
    )
    filled: dict[str, Any] = {"score": score.removeprefix("-"), "n_bins": settings.n_bins}
    filled["higher"] = "higher = surer" if score.startswith("-") else "higher = less sure"
    own = {term: text.format(**filled) for term, text in _OWN.get(kind, {}).items()}
    used = tuple((term, own.get(term, text)) for term, text in definitions if own.get(term, text))
    versions = {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}  # without importing them
    return Methods(used, {"metacal": __version__, **versions, "python": platform.python_version()})


def arrays_sha256(tables: Sequence[Any], labels: Any) -> str:
    """SHA-256 of tables, or columns, and the labels of their rows: shape, type and bytes, read in blocks.

    Examples
    --------
    >>> arrays_sha256([np.zeros((2, 3))], np.array([0, 1]))[:16]
    'ce253c0b0af57f08'
    """
    digest = hashlib.sha256()
    for table in tables:
        digest.update(f"{tuple(table.shape)} {table.dtype}".encode())
        step = max(1, (1 << 20) // max(1, math.prod(table.shape[1:])))
        for start in range(0, len(table), step):
            digest.update(np.ascontiguousarray(table[start : start + step]).reshape(-1).view(np.uint8).data)
    column = np.asarray(labels)
    digest.update(np.asarray(column.tolist() if column.dtype == object else column).tobytes())
    return digest.hexdigest()
