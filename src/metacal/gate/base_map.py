"""Fitting of the calibration map of a gate on logits, and its comparison with the plain softmax.

The *calibration map* turns logits into calibrated probabilities. It is fitted after certification,
on the rows that the promise allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.notes import Note, note_miscalibrated_by_class, note_not_compared
from metacal.errors import TooFewRowsError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate.calibration_table import CertifiedTable
from metacal.gate.shifted_rows import shift_second_class
from metacal.gate.softmax_comparison import SoftmaxComparison, compare_with_softmax
from metacal.kernels.buffers import thread_buffers
from metacal.maps.composed import make_softmax_map
from metacal.maps.heldout import is_fast_to_refit
from metacal.maps.map import FitMap, Map
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import Profile, build_profile
from metacal.rows import Rows
from metacal.rows.draws import make_generator
from metacal.rows.strips import copy_rows_to_buffer

# Seed of the random sample of rows whose confidences are summarized in a profile.
_PROFILE_SAMPLE_SEED = 0

# Maximum number of logits in the sample of rows whose confidences form a profile.
_MAX_PROFILE_LOGITS = 1 << 20
#: Maximum number of logits that are copied at once to compute confidences. The logits and their
#: probabilities then fit into the cache of a processor core.
_MAX_COPIED_LOGITS = 1 << 17


@dataclass(frozen=True, eq=False)
class FittedMap:
    """Fitted calibration map with notes on its quality.

    Attributes
    ----------
    map : Map
        Map from logits to calibrated probabilities.

    notes : tuple of Note
        Notes on how well the map calibrates.
    """

    map: Map
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, eq=False)
class MapTrainingRows:
    """Rows on which a calibration map is fitted.

    Attributes
    ----------
    rows : Rows
        Logits.

    labels : array of int of shape (n_rows,)
        Column of the true class of each row.

    weights : array of float of shape (n_rows,) or None
        Weight of each row.

    is_accepted : array of bool of shape (n_rows,)
        Whether the gate accepts each row.

    is_whole_table : bool
        Whether these are all calibration rows.
    """

    rows: Rows
    labels: Codes
    weights: Float | None
    is_accepted: Flags
    is_whole_table: bool

    def select(self, mask: Flags) -> MapTrainingRows:
        """Return the training rows for which a boolean mask is true."""
        selected_weights = None
        if self.weights is not None:
            selected_weights = self.weights[mask]
        return MapTrainingRows(
            rows=self.rows.select(mask),
            labels=self.labels[mask],
            weights=selected_weights,
            is_accepted=self.is_accepted[mask],
            is_whole_table=False,
        )


@dataclass(frozen=True, eq=False)
class CalibrationMapFitter:
    """Options for fitting the calibration map of a gate.

    Attributes
    ----------
    fit_map : callable
        Function that fits the map.

    fit_map_without_side_effects : callable
        Function that fits the map without side effects, for cross-fitting.

    class_names : array of shape (n_classes,)
        Names of the classes.

    weights : array of float of shape (n_rows,) or None
        Weight of each row.

    allow_softmax_fallback : bool
        Whether the softmax replaces a map with a larger log loss.
    """

    fit_map: FitMap
    fit_map_without_side_effects: FitMap
    class_names: Array
    weights: Float | None = None
    allow_softmax_fallback: bool = False

    def fit(self, table: CertifiedTable, labels: Codes, promise: Promise) -> FittedMap:
        """Fit the calibration map on the rows that the promise allows.

        Parameters
        ----------
        table : CertifiedTable
            Certified calibration rows.

        labels : array of int of shape (n_rows,)
            Column of the true class of each row, negative if the label is none of the classes.

        promise : Promise
            Promise that was certified.

        Returns
        -------
        FittedMap

        Raises
        ------
        InputError
            If no row is left to fit on.
        """
        training_rows = self._select_training_rows(table, labels, promise)
        calibration_map = self._get_background_map_or_fit(table, training_rows)
        # The checks below assume that the predicted class is the class of the largest logit.
        if not table.predicts_largest_logit:
            return FittedMap(calibration_map)
        # A promise of the paper prescribes its calibrator, so no other map may replace it.
        promise_prescribes_calibrator = promise.default_calibrator is not None
        if promise_prescribes_calibrator:
            chosen_map = FittedMap(calibration_map)
        else:
            chosen_map = self._choose_between_map_and_softmax(calibration_map, training_rows)
        prediction_notes = _list_notes_on_changed_predictions(chosen_map.map, table)
        return FittedMap(chosen_map.map, notes=(*chosen_map.notes, *prediction_notes))

    def _select_training_rows(
        self, table: CertifiedTable, labels: Codes, promise: Promise
    ) -> MapTrainingRows:
        """Select the calibration rows that the map may be fitted on."""
        all_rows = MapTrainingRows(
            rows=table.rows,
            labels=labels,
            weights=self.weights,
            is_accepted=table.columns.is_accepted,
            is_whole_table=True,
        )
        is_training_row = _find_training_rows(table, labels, promise)
        if not is_training_row.any():
            raise TooFewRowsError(
                "No row is left to fit the base calibrator on. Use more rows, or relax the promise."
            )
        if is_training_row.all():
            return all_rows
        return all_rows.select(is_training_row)

    def _get_background_map_or_fit(
        self, table: CertifiedTable, training_rows: MapTrainingRows
    ) -> Map:
        """Return the map that was fitted in the background, or fit it now."""
        background_map = table.background_map
        has_background_map = background_map is not None and background_map.is_fitted
        # The background map was fitted on the whole table, so it cannot replace a fit on fewer rows.
        if background_map is None or not has_background_map or not training_rows.is_whole_table:
            return self._fit_map(training_rows)
        return background_map.get_result()

    def _fit_map(self, training_rows: MapTrainingRows) -> Map:
        """Fit the map on its training rows."""
        return self.fit_map(training_rows.rows, training_rows.labels, training_rows.weights)

    def _choose_between_map_and_softmax(
        self, fitted_map: Map, training_rows: MapTrainingRows
    ) -> FittedMap:
        """Choose the map or the softmax by cross-validation on accepted rows.

        Return the softmax if the map has a larger log loss and `allow_softmax_fallback` is set.
        """
        n_classes = training_rows.rows.n_classes
        if not is_fast_to_refit(fitted_map, n_classes):
            return FittedMap(fitted_map, notes=(note_not_compared(),))
        comparison = compare_with_softmax(
            fitted_map,
            self.fit_map_without_side_effects,
            rows=training_rows.rows,
            labels=training_rows.labels,
            weights=training_rows.weights,
            is_accepted=training_rows.is_accepted,
            class_names=self.class_names,
        )
        if comparison is None:
            return FittedMap(fitted_map)
        map_increases_log_loss = comparison.log_loss.is_increased_by_map
        uses_softmax = self.allow_softmax_fallback and map_increases_log_loss
        comparison_notes = _build_comparison_notes(comparison, uses_softmax=uses_softmax)
        for note in comparison_notes:
            note.issue_warning()
        chosen_map = make_softmax_map(n_classes) if uses_softmax else fitted_map
        return FittedMap(chosen_map, notes=tuple(comparison_notes))


def _find_training_rows(table: CertifiedTable, labels: Codes, promise: Promise) -> Flags:
    """Find the rows on which the calibration map may be fitted.

    Returns
    -------
    array of bool of shape (n_rows,)
    """
    columns = table.columns
    is_available_for_map = columns.is_available_for_map
    # Labels on a device are a tensor, which cannot be combined with a NumPy mask.
    # Rows on a device are therefore not excluded, even if their label is not a class.
    labels_are_in_main_memory = not table.rows.is_on_device
    if labels_are_in_main_memory:
        label_is_a_class = labels >= 0
        is_available_for_map = is_available_for_map & label_is_a_class
    scores = columns.scores
    has_several_thresholds = table.certificate.subgroups is not None
    if has_several_thresholds:
        # With scores of -inf and +inf, any single threshold accepts the rows that were accepted.
        scores = np.where(columns.is_accepted, -np.inf, np.inf)
    return promise.select_map_training_rows(
        is_available_for_map,
        scores=scores,
        correct=columns.correct,
        certificate=table.certificate,
    )


def _list_notes_on_changed_predictions(
    calibration_map: Map, table: CertifiedTable
) -> tuple[Note, ...]:
    """Return a note on predictions that the map changes, if a promise needs them.

    A promise that limits only rejections does not depend on the accepted predictions.
    """
    map_preserves_predictions = calibration_map.preserves_accuracy
    promise_ignores_predictions = table.certificate.quantity.limits_only_rejections
    if map_preserves_predictions or promise_ignores_predictions:
        return ()
    from metacal.gate.learned_decision import build_note_on_changed_predictions

    prediction_note = build_note_on_changed_predictions(
        table.rows, calibration_map, is_accepted=table.columns.is_accepted
    )
    return (prediction_note,)


def _build_comparison_notes(comparison: SoftmaxComparison, *, uses_softmax: bool) -> list[Note]:
    """Build notes on a map that increases a metric or miscalibrates a class."""
    comparison_notes: list[Note] = []
    if comparison.map_increases_a_metric:
        comparison_notes.append(comparison.build_note(uses_softmax=uses_softmax))
    check_by_class = comparison.check_by_predicted_class
    if check_by_class is not None and check_by_class.fails:
        gap_arguments = check_by_class.get_note_arguments()
        comparison_notes.append(note_miscalibrated_by_class(**gap_arguments))
    return comparison_notes


def draw_profile_rows(table: CertifiedTable) -> Codes:
    """Draw a random sample of accepted rows for the monitoring profile.

    Returns
    -------
    array of int
        Indices of the drawn rows, in increasing order. They are empty for a table on a device,
        whose profile has no confidences.
    """
    empty_indices = np.empty(0, dtype=np.intp)
    if table.rows.is_on_device:
        return empty_indices
    is_accepted = table.columns.is_accepted
    if table.selected_rows is not None:
        is_selected = table.selected_rows.to_mask(len(table.rows))
        is_accepted = is_accepted & is_selected
    max_sampled_rows = max(1, _MAX_PROFILE_LOGITS // table.rows.n_classes)
    accepted_row_indices = np.flatnonzero(is_accepted)
    return _draw_at_most(accepted_row_indices, max_sampled_rows)


def build_monitoring_profile(
    calibration_map: Map, table: CertifiedTable, profile_row_indices: Codes
) -> Profile:
    """Build the profile of calibration rows, which monitors compare with new rows.

    Parameters
    ----------
    calibration_map : Map
        Map of the gate.

    table : CertifiedTable
        Certified calibration rows. The profile has the scores of all rows that count.

    profile_row_indices : array of int
        Rows whose confidence is counted, from `draw_profile_rows`.

    Returns
    -------
    Profile
    """
    ranking = table.columns.ranking
    if len(profile_row_indices) == 0:
        # Without sampled rows, the profile contains scores but no confidences.
        return build_profile(ranking)
    profile_rows = table.rows.take(profile_row_indices)
    offset_by_row = np.broadcast_to(table.decision_offset, len(table.rows))
    compute_confidences = _ConfidenceOfPrediction(calibration_map)
    confidences = profile_rows.compute_column(
        compute_confidences, offset_by_row[profile_row_indices]
    )
    is_correct = table.columns.correct[profile_row_indices]
    return build_profile(ranking, confidence=confidences, correct=is_correct)


def _draw_at_most(row_indices: Codes, max_rows: int) -> Codes:
    """Return the row indices, or a random sample of `max_rows` if there are more."""
    if len(row_indices) <= max_rows:
        return row_indices
    generator = make_generator(_PROFILE_SAMPLE_SEED)
    random_order = generator.permutation(len(row_indices))
    return np.sort(row_indices[random_order[:max_rows]])


@dataclass(frozen=True)
class _ConfidenceOfPrediction:
    """Function that computes the calibrated probability of each predicted class.

    The predicted class has the largest logit after the second of two classes is shifted by the
    decision offset.

    Attributes
    ----------
    calibration_map : Map
        Map of the gate.
    """

    calibration_map: Map

    @property
    def takes_whole_blocks(self) -> bool:
        """Whether the function accepts blocks of any size."""
        return kernels.uses_c_kernels and self.calibration_map.allows_any_block_size

    def __call__(
        self, block: NDArray[Any], decision_offsets: NDArray[np.float64], rows: Codes | None = None
    ) -> NDArray[Any]:
        """Compute the confidence of each row of a block, or of its selected rows."""
        if not decision_offsets.any():
            confidences = self.calibration_map.try_computing_confidences(block, rows)
            if confidences is not None:
                return confidences
        if rows is None:
            return self._compute_confidences(block, decision_offsets)
        confidence_pieces = []
        n_piece_rows = max(1, _MAX_COPIED_LOGITS // block.shape[1])
        for start in range(0, len(rows), n_piece_rows):
            piece_slice = slice(start, start + n_piece_rows)
            logits = copy_rows_to_buffer(block, rows[piece_slice])
            confidence_pieces.append(
                self._compute_confidences(logits, decision_offsets[piece_slice])
            )
        return np.concatenate(confidence_pieces)

    def _compute_confidences(
        self, logits: NDArray[Any], decision_offsets: NDArray[np.float64]
    ) -> NDArray[Any]:
        """Compute the calibrated probability of the predicted class of each row.

        Parameters
        ----------
        logits : array of shape (n_rows, n_classes)

        decision_offsets : array of float of shape (n_rows,)
            Log-odds above which the second of two classes is predicted in each row.
        """
        probability_dtype = np.float64 if logits.dtype == np.float64 else np.float32
        # A reused buffer is faster, because allocating it would take longer than the arithmetic.
        probabilities = thread_buffers.get_array("probabilities", logits.shape, probability_dtype)
        self.calibration_map.write_clipped_probabilities(logits, probabilities)
        decision_logits = logits
        if decision_offsets.any():
            decision_logits = shift_second_class(logits, decision_offsets)
        predicted_codes = kernels.predict_classes(decision_logits)
        row_numbers = np.arange(len(logits))
        return probabilities[row_numbers, predicted_codes]
