"""ScoreSource: a score that is given for each row as the source of a stage, with the curve that
calibrates it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate, accepts
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.decision import Decision, DecisionOptions
from metacal.gate.thresholds import SingleThreshold, Thresholds
from metacal.kernels.grid import RELATIVE
from metacal.maps.confidence import ConfidenceCurve
from metacal.promises.promise import Promise
from metacal.rows.arrays import check_choice
from metacal.rows.score_columns import check_correctness, check_losses, check_scores

#: What a higher score says of a row.
HigherIs = Literal["surer", "doubtful"]
#: What is known of a row: whether it is right, or its loss between 0 and 1.
Truth = Literal["correct", "losses"]
#: Longer names of scores are cut: they stand in certificates.
_LONGEST_NAME = 80


@dataclass(frozen=True)
class ScoreSource:
    """A score that is given for each row: an LLM judge's mark, the log-probability of an answer, a
    similarity.

    There are no classes and no probabilities. What is known of a row is whether it is right, codes
    are 1 and 0, or its loss, and the code is 1 - loss: a row without any is right.

    Attributes
    ----------
    score : str
        The name of the score.
    higher_is : "surer" or "doubtful"
        What a higher score says: a confidence is surer, a loss or a perplexity doubtful.
    curve : ConfidenceCurve or None
        From doubt to the probability of being right.
    beside : tuple of (threshold, float or None, float or None)
        The calibration doubts on either side of each threshold: scores of fewer bits are told from
        it by them.
    truth : "correct" or "losses"
        What the rows were fitted with, and are judged by: whether each is right, or its loss.
    accepting_is_safe : bool
        Whether a row more that is accepted cannot break the promise.
    """

    score: str = "score"
    higher_is: HigherIs = "surer"
    curve: ConfidenceCurve | None = None
    beside: tuple[tuple[float, float | None, float | None], ...] = ()
    accepting_is_safe: bool = False
    truth: Truth = "correct"
    kind: ClassVar[str] = "scores"
    classes: ClassVar[NDArray[Any]] = np.empty(0, dtype=np.intp)
    n_classes: ClassVar[int] = 0
    classes_given: ClassVar[bool] = False
    code_of: ClassVar[dict[Any, int]] = {False: 0, True: 1}

    def __repr__(self) -> str:
        return f"{self.score}, higher is {self.higher_is}"

    @property
    def score_name(self) -> str:
        """What certificates call the doubt: the score's name, with a minus where a higher one is
        surer.
        """
        return f"-{self.score}" if self.higher_is == "surer" else self.score

    @property
    def sign(self) -> float:
        """What turns a score into a doubt, and back."""
        return -1.0 if self.higher_is == "surer" else 1.0

    def of(self, certificate: Certificate) -> ScoreSource:
        """The same with what its certificate says of scores beside the threshold, or that of each
        group.
        """
        own = (certificate,) if certificate.parts is None else certificate.parts.items
        beside = tuple((one.threshold, one.highest_accepted, one.lowest_rejected) for one in own)
        return replace(
            self, beside=beside, accepting_is_safe=certificate.quantity.accepting_is_safe
        )

    def read(self, score: Any, *, by_rows: bool = False) -> NDArray[np.floating[Any]]:
        """A caller's scores, one for each row; NaN where there is none."""
        return check_scores(score)

    rows = checked = read

    def codes(self, truth: Any, n_rows: int) -> Any:
        """1 for right, 0 for wrong; 1 - loss where losses are given."""
        codes = (
            check_correctness(truth).astype(np.intp)
            if self.truth == "correct"
            else 1.0 - check_losses(truth)
        )
        if len(codes) != n_rows:
            raise InputError(
                f"there are {n_rows} scores but {len(codes)} entries of {self.truth}; give one"
                " each."
            )
        return codes

    def code(self, truth: Any) -> float | None:
        """The code of one row's truth, as it stands in a stream; None where it is none."""
        if self.truth == "correct":
            return self.code_of.get(truth)
        number = (
            isinstance(truth, int | float) and not isinstance(truth, bool) and 0.0 <= truth <= 1.0
        )
        return 1.0 - float(truth) if number else None

    def doubts(self, score: NDArray[np.floating[Any]]) -> Float:
        """The score as promises see it: higher is less sure, on the grid; NaN where there is
        none.
        """
        return RELATIVE.rounded(self.turned(score))

    def turned(self, score: NDArray[np.floating[Any]]) -> Float:
        """Scores as doubts, not yet on the grid: a settled threshold decides them alike."""
        return (-score if self.higher_is == "surer" else score).astype(np.float64)

    def accepts(
        self, score: NDArray[np.floating[Any]], policy: Thresholds, groups: Codes | None
    ) -> Flags:
        """Whether each row is accepted; one without a score is not."""
        if isinstance(policy, SingleThreshold) or groups is None:
            return accepts(self.turned(score), self.threshold_for(score.dtype, policy.threshold))
        own = np.array(
            [
                self.threshold_for(score.dtype, value)
                for value in policy.threshold_table[:, 0].tolist()
            ]
        )
        return accepts(self.turned(score), own[groups])

    def decide(self, score: NDArray[np.floating[Any]], asked: DecisionOptions) -> Decision:
        """Decision and confidence of each row."""
        confidence = self.confidence(score) if asked.with_probabilities else None
        right = np.ones(len(score), dtype=np.intp)
        accept = self.accepts(score, asked.thresholds, asked.group_codes)
        return Decision(accept, score, self.doubts(score), right, confidence)

    def confidence(self, score: Any) -> Float | None:
        """The calibrated probability that each row is right, NaN without a score; None where there
        is no curve.
        """
        return None if self.curve is None else self.curve(self.doubts(self.read(score)))

    def threshold_for(self, dtype: Any, threshold: float) -> float:
        """The threshold for scores of a type: the certificate's, or one that float32 or float16 can
        tell from scores.

        Calibration scores often stand at the threshold, and many new ones with them: every mark of
        0.95, say. In float32 that is 0.949999988, on the wrong side. So where rounding to the
        narrower type would carry the calibration score on either side across, the threshold moves
        along with it, by less than half a unit in the last place of the type. Where both become one
        number, such rows are rejected, or accepted if the promise is about rejecting too many: the
        side that cannot break it.

        Examples
        --------
        >>> import metacal as mc
        >>> marks = np.repeat([0.9, 0.95, 0.4], 50)
        >>> gate = mc.ScoreGate(mc.MaxMiscoverage(0.6)).fit(marks, marks > 0.5).gate_
        >>> gate.condition, gate.accepts(np.float32([0.95, 0.9])), gate.accepts([0.95, 0.9])
        ('score >= 0.95', array([ True, False]), array([ True, False]))
        """
        kind = np.dtype(dtype)
        if kind not in (np.float32, np.float16) or not math.isfinite(threshold):
            return threshold
        near = [row for row in self.beside if row[0] == threshold]
        highs, lows = (
            [value for row in near if (value := row[side]) is not None] for side in (1, 2)
        )
        with np.errstate(
            over="ignore"
        ):  # groups that share a threshold share what is nearest to it
            high = float(np.asarray(max(highs)).astype(kind)) if highs else None
            low = float(np.asarray(min(lows)).astype(kind)) if lows else None
        if high is not None and high > threshold:
            return RELATIVE.just_below(high) if high == low and not self.accepting_is_safe else high
        if low is not None and low <= threshold:
            return low if high == low and self.accepting_is_safe else math.nextafter(low, -math.inf)
        return threshold


def plain_name(name: str) -> str:
    """A name that can stand in a certificate: one printable line, without the minus that marks a
    turned score.

    Examples
    --------
    >>> plain_name("--confidence"), plain_name(" ")
    ('confidence', 'score')
    """
    printable = "".join(sign if sign.isprintable() else "?" for sign in str(name))[:_LONGEST_NAME]
    return printable.strip().lstrip("-").strip() or "score"


def check_scored(promise: Any, higher_is: Any) -> None:
    """Raise unless these can make a gate."""
    if isinstance(promise, type) or not isinstance(promise, Promise):
        raise InputError(
            "promise must be one such as MaxMiscoverage(0.05) or MinAccuracy(0.9); got"
            f" {promise!r}."
        )
    if promise.sided:
        raise InputError(
            f"{type(promise).__name__} is about what rows of two classes are called, and takes rows"
            " with their labels: MetaCal(promise).fit(scores, labels), with one score per row or a"
            " column per class."
        )
    check_choice("higher_is", higher_is, "surer", "doubtful")
