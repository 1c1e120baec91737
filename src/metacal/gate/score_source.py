"""Source of a stage whose scores are given: one number per row, without classes.

Examples of such scores are the grade of an LLM judge, the log-probability of a generated answer, or
a similarity. A higher score means more certain ("surer") or less certain ("doubtful"). An
*uncertainty score* is the score with the sign for which higher means less certain. Thresholds and
promises are stated for uncertainty scores.

The *truth* of a row is whether its answer is correct, or its loss between 0 and 1. It is encoded as
1 for correct and 0 for incorrect, or as 1 - loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate, accept_up_to_threshold
from metacal.certificates.stored_fields import OPTIONAL
from metacal.certificates.subgroups import SubgroupCertificate
from metacal.errors import ShapeError, UnsupportedPromiseError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.decision import Decision, DecisionOptions
from metacal.gate.file_layout import FileLayout
from metacal.gate.source import BaseSource
from metacal.gate.thresholds import SingleThreshold, Thresholds
from metacal.kernels.grid import RELATIVE_GRID
from metacal.maps.confidence import ConfidenceCurve
from metacal.promises.promise import Promise
from metacal.rows.arrays import check_choice
from metacal.rows.score_columns import (
    check_correctness,
    check_known_correctness,
    check_known_losses,
    check_losses,
    check_scores,
)

#: Meaning of a higher score: "surer" for a prediction that is more certain, "doubtful" for less.
HigherIs = Literal["surer", "doubtful"]
#: Kind of truth that callers pass for a row: its correctness, or its loss between 0 and 1.
Truth = Literal["correct", "losses"]
#: Maximum length of the name of a score. Longer names are truncated.
_MAX_NAME_LENGTH = 80
#: Name of a score whose given name is empty.
_DEFAULT_SCORE_NAME = "score"
#: Codes of incorrect and correct rows. They replace class codes, because scores have no classes.
_INCORRECT_CODE = 0
_CORRECT_CODE = 1
_CODE_BY_CORRECTNESS: dict[Any, int] = {False: _INCORRECT_CODE, True: _CORRECT_CODE}


class ThresholdNeighbours(NamedTuple):
    """Threshold with the nearest calibration score on either side.

    All are uncertainty scores. A neighbour is None if there is no calibration row on its side.
    """

    threshold: float
    highest_accepted: float | None
    lowest_rejected: float | None


@dataclass(frozen=True)
class ScoreSource(BaseSource[NDArray[np.floating[Any]]]):
    """Source that ranks rows by a score you pass, without classes or probabilities.

    Attributes
    ----------
    score : str
        Name of the score.
    higher_is : "surer" or "doubtful"
        Meaning of a higher score: "surer" for a confidence, "doubtful" for a loss or a perplexity.
    curve : ConfidenceCurve or None
        Curve from the uncertainty score to the probability of a correct answer.
    threshold_neighbours : tuple of ThresholdNeighbours
        Calibration scores next to each threshold, which `adapt_threshold_to_dtype` needs.
    limits_only_rejections : bool
        Whether the promise still holds if a further row is accepted.
    truth : "correct" or "losses"
        Kind of truth that the gate was fitted with and is evaluated by.
    file_layout : FileLayout or None
        Names of the columns of the calibration file, if it was read from one.
    """

    score: str = "score"
    higher_is: HigherIs = "surer"
    curve: ConfidenceCurve | None = None
    threshold_neighbours: tuple[ThresholdNeighbours, ...] = ()
    limits_only_rejections: bool = False
    truth: Truth = "correct"
    file_layout: FileLayout | None = field(default=None, compare=False, metadata=OPTIONAL)
    #: Name of the input tensor in exported ONNX graphs.
    input_name: ClassVar[str] = "scores"
    classes: ClassVar[NDArray[Any]] = np.empty(0, dtype=np.intp)
    n_classes: ClassVar[int] = 0
    classes_given: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"{self.score}, higher is {self.higher_is}"

    @property
    def score_name(self) -> str:
        """Name of the uncertainty score in certificates.

        It starts with a minus if the sign of the score is reversed.
        """
        return f"-{self.score}" if self.higher_is == "surer" else self.score

    @property
    def uncertainty_sign(self) -> float:
        """Factor, 1 or -1, that converts a score to an uncertainty score and back."""
        return -1.0 if self.higher_is == "surer" else 1.0

    def with_threshold_neighbours_of(self, certificate: Certificate) -> ScoreSource:
        """Return a copy that stores each threshold of a certificate and its neighbours."""
        # A certificate has either a single threshold, or one threshold for each subgroup.
        certificates_with_one_threshold: Sequence[Certificate | SubgroupCertificate] = (
            certificate,
        )
        if certificate.subgroups is not None:
            certificates_with_one_threshold = certificate.subgroups.items
        threshold_neighbours = tuple(
            ThresholdNeighbours(
                threshold=certificate_with_threshold.threshold,
                highest_accepted=certificate_with_threshold.highest_accepted,
                lowest_rejected=certificate_with_threshold.lowest_rejected,
            )
            for certificate_with_threshold in certificates_with_one_threshold
        )
        return replace(
            self,
            threshold_neighbours=threshold_neighbours,
            limits_only_rejections=certificate.quantity.limits_only_rejections,
        )

    def read(self, score: Any, *, convert_lazily: bool = False) -> NDArray[np.floating[Any]]:
        """Convert scores to a checked array, with NaN for rows without a score.

        `convert_lazily` has no effect. `LogitsSource.read` has the same parameter.
        """
        return check_scores(score)

    def to_rows(self, table: Any) -> NDArray[np.floating[Any]]:
        """Convert scores to a checked array. Unlike logits, scores need no container."""
        return self.read(table)

    def to_rows_from_checked(self, scores: Any) -> NDArray[np.floating[Any]]:
        """Return an array of scores that `read` has checked."""
        return self.read(scores)

    def select_rows(
        self, rows: NDArray[np.floating[Any]], row_indices: Codes
    ) -> NDArray[np.floating[Any]]:
        """Select the scores of rows by their indices."""
        return rows[row_indices]

    def encode_truth(self, truth: Any, n_rows: int) -> NDArray[Any]:
        """Encode the truth of all rows: 1 for correct, 0 for incorrect, or 1 - loss.

        Raises
        ------
        InputError
            If there is not one valid entry for each of the `n_rows` rows.
        """
        degrees_of_correctness: NDArray[Any]
        if self.truth == "correct":
            degrees_of_correctness = check_correctness(truth).astype(np.intp)
        else:
            degrees_of_correctness = 1.0 - check_losses(truth)
        self._check_number_of_entries(degrees_of_correctness, n_rows)
        return degrees_of_correctness

    def encode_known_truth(self, truth: Any, n_rows: int) -> tuple[NDArray[Any], Flags]:
        """Encode the truth of rows, and return for each row whether its truth is known.

        The codes of known entries are those of `encode_truth`. The others have no meaning.

        Raises
        ------
        InputError
            If there is not one entry for each of the `n_rows` rows, or a known one is invalid.
        """
        degrees_of_correctness: NDArray[Any]
        if self.truth == "correct":
            is_correct, is_known = check_known_correctness(truth)
            degrees_of_correctness = is_correct.astype(np.intp)
        else:
            losses, is_known = check_known_losses(truth)
            degrees_of_correctness = 1.0 - losses
        self._check_number_of_entries(degrees_of_correctness, n_rows)
        return degrees_of_correctness, is_known

    def _check_number_of_entries(self, degrees_of_correctness: NDArray[Any], n_rows: int) -> None:
        """Raise InputError if there is not one entry of the truth for each row."""
        if len(degrees_of_correctness) != n_rows:
            raise ShapeError(
                f"score and {self.truth} must have the same length, but got {n_rows} and"
                f" {len(degrees_of_correctness)} entries."
            )

    def encode_one_truth(self, truth: Any) -> float | None:
        """Encode the truth of a single row, or return None if the value is invalid."""
        if self.truth == "correct":
            return _CODE_BY_CORRECTNESS.get(truth)
        is_number = isinstance(truth, int | float) and not isinstance(truth, bool)
        if is_number and 0.0 <= truth <= 1.0:
            return 1.0 - float(truth)
        return None

    def uncertainty_scores(self, score: NDArray[np.floating[Any]]) -> Float:
        """Convert scores to uncertainty scores, rounded to the grid of thresholds."""
        return RELATIVE_GRID.round(self._compute_unrounded_uncertainties(score))

    def _compute_unrounded_uncertainties(self, score: NDArray[np.floating[Any]]) -> Float:
        """Convert scores to uncertainty scores without rounding.

        Thresholds lie between grid points, so that a score is on the same side of a threshold
        before and after rounding.
        """
        uncertainties = -score if self.higher_is == "surer" else score
        return uncertainties.astype(np.float64)

    def accepts(
        self,
        score: NDArray[np.floating[Any]],
        thresholds: Thresholds,
        group_codes: Codes | None,
    ) -> Flags:
        """Compare each score with its threshold. A row without a score is rejected."""
        uncertainties = self._compute_unrounded_uncertainties(score)
        if isinstance(thresholds, SingleThreshold) or group_codes is None:
            # The threshold is -inf if the caller passes no groups to thresholds of groups.
            threshold = self.adapt_threshold_to_dtype(score.dtype, thresholds.threshold)
            return accept_up_to_threshold(uncertainties, threshold)
        adapted_thresholds = np.array(
            [
                self.adapt_threshold_to_dtype(score.dtype, threshold)
                for threshold in thresholds.thresholds_with_unknown_last.tolist()
            ]
        )
        return accept_up_to_threshold(uncertainties, adapted_thresholds[group_codes])

    def decide(self, score: NDArray[np.floating[Any]], options: DecisionOptions) -> Decision:
        """Accept or reject each row, and compute its confidence if required."""
        confidence = None
        if options.with_probabilities:
            confidence = self.confidence(score)
        # For given scores, the prediction is that every row is correct.
        predicted_codes = np.full(len(score), _CORRECT_CODE, dtype=np.intp)
        return Decision(
            accept=self.accepts(score, options.thresholds, options.group_codes),
            score=score,
            uncertainty=self.uncertainty_scores(score),
            predicted_codes=predicted_codes,
            confidence=confidence,
        )

    def confidence(self, score: Any) -> Float | None:
        """Compute the calibrated probability that each row is correct.

        Returns
        -------
        ndarray of shape (n_rows,), or None
            NaN for a row without a score. None if no confidence curve was fitted.
        """
        if self.curve is None:
            return None
        return self.curve(self.uncertainty_scores(self.read(score)))

    def adapt_threshold_to_dtype(self, dtype: Any, threshold: float) -> float:
        """Adapt a threshold to scores stored as float32 or float16.

        Many scores are equal to a calibration score next to the threshold, for example all grades
        of 0.95. In float32 this grade is 0.949999988, on the wrong side of the threshold. If
        rounding to the narrower type moves a neighbouring calibration score across the threshold,
        the threshold moves along with it, by less than half a unit in the last place of the type.

        If both neighbours round to the same number, rows with this number are rejected. They are
        accepted if the promise limits only rejections.

        Parameters
        ----------
        dtype : dtype
            Type of the scores.
        threshold : float
            Largest accepted uncertainty of scores in double precision.

        Returns
        -------
        float
            Largest accepted uncertainty of scores of the given type.

        Examples
        --------
        >>> import metacal as mc
        >>> grades = np.repeat([0.9, 0.95, 0.4], 50)
        >>> gate = mc.ScoreGate(mc.MaxMiscoverage(0.6)).fit(grades, grades > 0.5).gate_
        >>> gate.condition, gate.accepts(np.float32([0.95, 0.9])), gate.accepts([0.95, 0.9])
        ('score >= 0.95', array([ True, False]), array([ True, False]))
        """
        is_narrow_type = np.dtype(dtype) in (np.float32, np.float16)
        if not is_narrow_type or not math.isfinite(threshold):
            return threshold
        accepted_neighbour, rejected_neighbour = self._round_neighbouring_uncertainties(
            threshold, np.dtype(dtype)
        )
        if accepted_neighbour is not None and accepted_neighbour == rejected_neighbour:
            shared_uncertainty = accepted_neighbour
            may_accept_both_neighbours = self.limits_only_rejections
            if may_accept_both_neighbours:
                return shared_uncertainty
            if shared_uncertainty > threshold:
                return RELATIVE_GRID.find_largest_threshold_rejecting(shared_uncertainty)
            return math.nextafter(shared_uncertainty, -math.inf)
        # Without a shared uncertainty, rounding moved at most one neighbour across the threshold.
        if accepted_neighbour is not None and accepted_neighbour > threshold:
            return accepted_neighbour
        if rejected_neighbour is not None and rejected_neighbour <= threshold:
            return math.nextafter(rejected_neighbour, -math.inf)
        return threshold

    def _round_neighbouring_uncertainties(
        self, threshold: float, dtype: np.dtype[Any]
    ) -> tuple[float | None, float | None]:
        """Round the calibration scores next to a threshold to a narrower float type.

        Several groups may have the same threshold. Then the scores of all of them count.

        Returns
        -------
        highest_accepted, lowest_rejected : float or None
            Rounded uncertainty scores. None if there is no calibration row on this side.
        """
        accepted_neighbours: list[float] = []
        rejected_neighbours: list[float] = []
        for neighbours in self.threshold_neighbours:
            if neighbours.threshold != threshold:
                continue
            if neighbours.highest_accepted is not None:
                accepted_neighbours.append(neighbours.highest_accepted)
            if neighbours.lowest_rejected is not None:
                rejected_neighbours.append(neighbours.lowest_rejected)
        highest_accepted = None
        lowest_rejected = None
        if accepted_neighbours:
            highest_accepted = _round_to_dtype(max(accepted_neighbours), dtype)
        if rejected_neighbours:
            lowest_rejected = _round_to_dtype(min(rejected_neighbours), dtype)
        return highest_accepted, lowest_rejected


def _round_to_dtype(value: float, dtype: np.dtype[Any]) -> float:
    """Round a number to a float type, to infinity if it is too large for the type."""
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(dtype))


def clean_score_name(name: str) -> str:
    """Make the name of a score printable, on one line, and without a leading minus.

    In certificates, a leading minus means that the sign of the score is reversed.

    Examples
    --------
    >>> clean_score_name("--confidence"), clean_score_name(" ")
    ('confidence', 'score')
    """
    printable_characters = [char if char.isprintable() else "?" for char in str(name)]
    printable_name = "".join(printable_characters[:_MAX_NAME_LENGTH])
    name_without_minus = printable_name.strip().lstrip("-").strip()
    return name_without_minus or _DEFAULT_SCORE_NAME


def check_score_gate_options(promise: Any, higher_is: Any) -> None:
    """Raise InputError if a promise or `higher_is` is invalid for a gate on scores."""
    if not isinstance(promise, Promise):
        raise UnsupportedPromiseError(
            "promise must be an object such as MaxMiscoverage(0.05) or MinAccuracy(0.9), but got"
            f" {promise!r}."
        )
    if promise.is_two_sided:
        raise UnsupportedPromiseError(
            f"A gate on scores does not support {type(promise).__name__}, because a promise about"
            " one of two classes requires the true class of each row. Use"
            " MetaCal(promise).fit(scores, labels), with one score per row or one column per"
            " class."
        )
    check_choice("higher_is", higher_is, "surer", "doubtful")
