"""ScoredGate: accept or reject by a score that is given, under a promise; no logits, no classes, no probabilities.

Every promise is about two columns, a ranking score and whether the row is right. A judge's mark, the log-probability of
an answer, the similarity of a passage are such scores: they need nothing that a classifier has. What `Gate` is to
logits this value is to them: certificate, threshold and, for people, a calibrated confidence.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal import shown
from metacal.errors import InputError, MetacalWarning
from metacal.kernels.grid import RELATIVE
from metacal.maps.confidence import ConfidenceCurve, fit_confidence
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.fingerprint import data_hash
from metacal.promises.notes import Note, rows_without_score, upside_down
from metacal.promises.parts.per import Per
from metacal.promises.parts.units import Counted, counted_rows, unit_codes
from metacal.promises.parts.weights import Importance
from metacal.promises.promise import Promise
from metacal.promises.remarks import remarks_on_scores
from metacal.promises.rules.costs import Costed, Losses
from metacal.promises.sample import Ranking
from metacal.promises.sequential.profile import Profile, profile_of
from metacal.rows.arrays import plain_array
from metacal.rows.score_columns import score_and_correct, score_column

Float = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: What a higher score says of a row.
HigherIs = Literal["surer", "doubtful"]
HIGHER_IS: tuple[HigherIs, ...] = ("surer", "doubtful")

#: Longer names are cut: they stand in certificates.
_LONGEST_NAME = 80
#: A ranking that is worse than chance by so many standard errors is probably upside down.
_UPSIDE_DOWN = 4.0
_COMPARED = ("score", "higher_is", "threshold", "certificate", "curve", "data_hash", "profile")


@dataclass(frozen=True, eq=False)
class ScoredDecision:
    """What a gate says of each row by its score.

    Attributes
    ----------
    accept : boolean array
    score : array
        As it was given; NaN where there is none.
    confidence : array or None
        The calibrated probability of being right, which the promise does not cover; NaN where there is no score, None
        where the gate has no curve.
    """

    accept: Flags
    score: NDArray[np.floating[Any]]
    confidence: Float | None

    def __len__(self) -> int:
        return len(self.accept)

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each row: accept, score and, where the gate has a curve, confidence."""
        return shown.columns({name: column for name, column in vars(self).items() if column is not None})


@dataclass(frozen=True, eq=False)
class ScoredGate:
    """Accept iff the score is sure enough; a row without a score is never accepted.

    Attributes
    ----------
    certificate : Certificate
        What is promised. Its score is a doubt, higher = less sure: "-NAME" where a higher score is surer.
    threshold : float
        Accept iff doubt <= threshold; +inf accepts every row that has a score.
    score : str
        The name of the score.
    higher_is : "surer" or "doubtful"
        What a higher score says: a confidence is surer, a loss or a perplexity doubtful.
    promise : Promise or None
        What was asked for.
    curve : ConfidenceCurve or None
        From doubt to the probability of being right.
    data_hash : str or None
        A fingerprint of the calibration rows.
    profile : Profile or None
        What is kept of the calibration rows, for monitors.

    Examples
    --------
    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> rng = np.random.default_rng(0)
    >>> mark = rng.random(2000)
    >>> gate = fit_scored(mark, rng.random(2000) > (1 - mark) ** 2, MinAccuracy(0.9), score_name="mark")
    >>> print(gate.condition)
    mark >= 0.4...
    >>> gate.decide([0.95, 0.2, None]).accept
    array([ True, False, False])
    """

    certificate: Certificate
    threshold: float
    score: str = "score"
    higher_is: HigherIs = "surer"
    promise: Promise | None = None
    curve: ConfidenceCurve | None = None
    data_hash: str | None = None
    profile: Profile | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScoredGate):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _COMPARED)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ScoredGate(accept if {self.condition}: {self.certificate.statement})"

    def _repr_html_(self) -> str:
        return self.certificate._repr_html_()

    def losses(self, correct: NDArray[np.bool_]) -> Losses | None:
        """What each row costs, right or wrong; None where no cost is promised."""
        return self.promise.losses_of(correct) if isinstance(self.promise, Costed) else None

    @property
    def condition(self) -> str:
        """What an accepted row fulfils, in words."""
        return "there is a score" if self.threshold == math.inf else self.certificate.condition

    def doubt(self, score: Any) -> Float:
        """The score as promises see it: higher is less sure, on the grid; NaN where there is none."""
        return doubt_of(score_column(score), self.higher_is)

    def threshold_for(self, dtype: Any) -> float:
        """The threshold for scores of a type: the certificate's, or one that float32 or float16 can tell from scores.

        Calibration scores often stand at the threshold, and many new ones with them: every mark of 0.95, say. In
        float32 that is 0.949999988, on the wrong side. So where rounding to the narrower type would carry the
        calibration score on either side across, the threshold moves along with it, by less than half a unit in the
        last place of the type. Where both become one number, such rows are rejected, or accepted if the promise is
        about rejecting too many: the side that cannot break it.

        Examples
        --------
        >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
        >>> marks = np.repeat([0.9, 0.95, 0.4], 50)
        >>> with warnings.catch_warnings(action="ignore"):
        ...     gate = fit_scored(marks, marks > 0.5, MaxMiscoverage(0.6))
        >>> gate.condition, gate.accepts(np.float32([0.95, 0.9])), gate.accepts([0.95, 0.9])
        ('score >= 0.95', array([ True, False]), array([ True, False]))
        """
        kind = np.dtype(dtype)
        if kind not in (np.float32, np.float16) or not math.isfinite(self.threshold):
            return self.threshold
        beside = (self.certificate.highest_accepted, self.certificate.lowest_rejected)
        with np.errstate(over="ignore"):
            high, low = (None if value is None else float(np.asarray(value).astype(kind)) for value in beside)
        if high is not None and high > self.threshold:
            tied = high == low and not self.certificate.quantity.accepting_is_safe
            return RELATIVE.just_below(high) if tied else high
        if low is not None and low <= self.threshold:
            tied = high == low and self.certificate.quantity.accepting_is_safe
            return low if tied else math.nextafter(low, -math.inf)
        return self.threshold

    def accepts(self, score: Any) -> Flags:
        """Whether each row is accepted."""
        given = score_column(score)
        return accepts(turned(given, self.higher_is), self.threshold_for(given.dtype))

    def decide(self, score: Any) -> ScoredDecision:
        """Decision and confidence of each row."""
        given = score_column(score)
        doubt = doubt_of(given, self.higher_is)
        return ScoredDecision(self.accepts(given), given, None if self.curve is None else self.curve(doubt))

    def fitted_on(self, doubt: Float, correct: Flags) -> bool:
        """Whether these are the very rows that the gate was fitted on, by the fingerprint it has recorded."""
        there = ~np.isnan(doubt)
        return self.data_hash is not None and self.data_hash == data_hash(doubt[there], correct[there])


def fit_scored(
    score: Any,
    correct: Any,
    promise: Promise,
    *,
    score_name: str = "score",
    higher_is: HigherIs = "surer",
    units: Any = None,
    importance: Any = None,
    groups: Any = None,
    random_state: int = 0,
) -> ScoredGate:
    """Certify a threshold on a given score, and fit the curve from score to confidence.

    The promise is about rows that have a score: given that they have one, they are independent draws from one source as
    much as all rows are. Rows without are left out, counted in a note, and never accepted later.

    Of rows that belong together (`units`: answers to one question, pages of one book) one is counted, drawn by
    `random_state`; under known shift (`importance`) as many as the weights ask for: `metacal.promises.parts.units`.
    """
    check_scored(promise, higher_is)
    if groups is not None:
        raise InputError("a gate on scores has one threshold for all rows; fit a ScoreGate on the rows of each group.")
    given, right = score_and_correct(score, correct)
    there = ~np.isnan(given)
    if not there.any():
        raise InputError(f"no row has a score (n_samples={len(given)}); give numbers.")
    doubt, right = doubt_of(given[there], higher_is), right[there]
    if not right.any():
        raise InputError(
            f"no row is right (n_samples={len(right)}): nothing can be promised. Check what the column of right and "
            "wrong says: 1, true or yes is right."
        )
    there_units = None if units is None else unit_codes(units, len(given))[there]
    counted = counted_rows(len(right), there_units, _weights_there(importance, there), random_state)
    seen = slice(None) if counted is None else counted.rows
    ranking = Ranking.of(doubt[seen], right[seen])
    notes = _remarks(ranking, doubt[seen], right[seen], higher_is, missing=int((~there).sum()), of=len(there))
    for note in notes:  # first: where nothing can be certified they may say why
        warnings.warn(str(note), MetacalWarning, stacklevel=3)
    certificate, for_curve = _certified(promise, doubt, right, counted)
    name = plain_name(score_name)
    certificate = replace(
        certificate,
        score=doubt_name(name, higher_is),
        threshold=RELATIVE.settled(certificate.threshold),
        notes=(*certificate.notes, *notes),
    )
    curve, own = fit_confidence(doubt[for_curve], right[for_curve]), doubt[seen]
    kept = accepts(own, certificate.threshold)
    return ScoredGate(
        certificate,
        certificate.threshold,
        score=name,
        higher_is=higher_is,
        promise=promise,
        curve=curve,
        data_hash=data_hash(doubt, right),
        profile=profile_of(ranking, None if curve is None else curve(own[kept]), right[seen][kept]),
    )


def _weights_there(importance: Any, there: Flags) -> Any:
    """The weights of the rows that have a score."""
    if importance is None:
        return None
    given = importance if isinstance(importance, Importance) else Importance(importance)
    weights = plain_array(given.weights, "importance")
    if weights.shape != there.shape:
        raise InputError(f"importance must have shape ({len(there)},), a weight for each row; got {weights.shape}.")
    return replace(given, weights=weights[there])


def _certified(promise: Promise, doubt: Float, right: Flags, counted: Counted | None) -> tuple[Certificate, Flags]:
    """The certificate, and the rows that are left for the curve."""
    if counted is not None:
        doubt, right = doubt[counted.rows], right[counted.rows]
    for_threshold, for_curve = promise.split(right)
    certificate = promise.certify(doubt[for_threshold], right[for_threshold]).with_traffic(doubt)
    return (certificate, for_curve) if counted is None else (counted.told(certificate), counted.spread(for_curve))


def check_scored(promise: Any, higher_is: Any) -> None:
    """Raise unless these can make a gate."""
    if isinstance(promise, type) or not isinstance(promise, Promise):
        raise InputError(f"promise must be one such as MaxMiscoverage(0.05) or MinAccuracy(0.9); got {promise!r}.")
    if isinstance(promise, Per):
        raise InputError(
            f"{type(promise).__name__} has a threshold for each predicted class or group, and a gate on scores has "
            "one for all rows; give the promise itself, or fit a ScoreGate for each."
        )
    if higher_is not in HIGHER_IS:
        raise InputError(f"higher_is must be 'surer' or 'doubtful', got {higher_is!r}.")


def plain_name(name: str) -> str:
    """A name that can stand in a certificate: one printable line, without the minus that marks a turned score.

    Examples
    --------
    >>> plain_name("--confidence"), plain_name(" ")
    ('confidence', 'score')
    """
    printable = "".join(sign if sign.isprintable() else "?" for sign in str(name))[:_LONGEST_NAME]
    return printable.strip().lstrip("-").strip() or "score"


def doubt_name(name: str, higher_is: HigherIs) -> str:
    """What a certificate calls the score: with a minus where it is turned.

    Examples
    --------
    >>> doubt_name("mark", "surer"), doubt_name("loss", "doubtful")
    ('-mark', 'loss')
    """
    return f"-{name}" if higher_is == "surer" else name


def turned(given: NDArray[np.floating[Any]], higher_is: HigherIs) -> Float:
    """Scores as doubts, higher = less sure, not yet on the grid: a settled threshold decides them alike."""
    return (-given if higher_is == "surer" else given).astype(np.float64)


def doubt_of(given: NDArray[np.floating[Any]], higher_is: HigherIs) -> Float:
    """Scores as promises see them: higher is less sure, on the grid; NaN stays."""
    return RELATIVE.rounded(turned(given, higher_is))


def _remarks(ranking: Ranking, doubt: Float, right: Flags, higher_is: HigherIs, *, missing: int, of: int) -> list[Note]:
    found = remarks_on_scores(ranking, "given scores")
    if missing:
        found.append(rows_without_score(missing=missing, rows=of))
    if _standard_errors_below_chance(doubt, right) > _UPSIDE_DOWN:
        found.append(upside_down(higher_is="doubtful" if higher_is == "surer" else "surer"))
    return found


def _standard_errors_below_chance(doubt: Float, right: Flags) -> float:
    """How far the chance that a wrong row has the higher doubt lies below one half, in standard errors."""
    n_right, n_wrong = int(right.sum()), int((~right).sum())
    if not n_wrong:
        return 0.0
    distinct, place, count = np.unique(doubt, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - 0.5 * (count - 1)
    u = float(rank[place.ravel()][~right].sum()) - 0.5 * n_wrong * (n_wrong + 1)
    share, error = u / (n_right * n_wrong), math.sqrt((n_right + n_wrong + 1) / (12.0 * n_right * n_wrong))
    return (0.5 - share) / error if len(distinct) > 1 else 0.0
