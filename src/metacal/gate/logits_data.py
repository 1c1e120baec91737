"""Calibration data of one classifier: a table of logits with labels.

Rows that *count* are those that a certificate is computed from. They are all rows, unless clusters
or importance weights select some of them (`metacal.certification.row_selection`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.certificates.fingerprint import fingerprint_rows
from metacal.certificates.notes import (
    Note,
    note_not_calibrated,
    note_suspicious_input,
    note_weights_not_certified,
)
from metacal.certificates.row_checks import check_repeated_rows, find_notes_on_errors_and_ties
from metacal.certification.row_selection import RowSelection
from metacal.errors import MissingLabelsError, UnsupportedPromiseError
from metacal.formulas import Codes, Float
from metacal.gate.background_map import MIN_ROWS_FOR_THREAD, plan_background_map
from metacal.gate.base_map import (
    CalibrationMapFitter,
    build_monitoring_profile,
    draw_profile_rows,
)
from metacal.gate.calibration_data import FittedSources
from metacal.gate.calibration_table import CalibrationTable, CertifiedTable
from metacal.gate.certify_table import certify_table, find_subgroups_by_class_or_group
from metacal.gate.logits_source import LogitsSource
from metacal.gate.long_rows import check_sample_of_long_table, explains_repeated_rows
from metacal.gate.ranking_score import check_score
from metacal.gate.source import Recipe
from metacal.maps.heldout import prefetch_out_of_fold_sample
from metacal.maps.map import FitMap, Map
from metacal.maps.methods import METHODS
from metacal.maps.temperature import TemperatureMap
from metacal.promises.positive_class import check_positive_class
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import build_profile
from metacal.rows import Rows
from metacal.rows.arrays import check_choice
from metacal.rows.executors import start_in_thread_or_defer
from metacal.rows.labels import check_reject_label
from metacal.rows.plausibility import Suspicion, warn_if_implausible
from metacal.scores import Score
from metacal.scores.registry import AUTO_SCORE

#: Decision rule: predict the class of the largest logit or, for two classes, the more likely one.
DecisionRule = Literal["largest", "calibrated"]


@dataclass(frozen=True, eq=False)
class LogitsData:
    """Logits and labels of calibration rows, with the options of their gate.

    Attributes
    ----------
    rows : Rows
        Logits.

    labels : array of int of shape (n_rows,) or None
        Column of the true class of each row. A negative number is a label that is none of the
        classes: the prediction counts as incorrect, and no map is fitted on the row. None for a
        promise that needs no labels; the probabilities are then the softmax of the logits.

    score : str or callable
        Ranking score, or "auto" for the best of several that share delta.

    fit_map : callable
        Function that fits the calibration map on rows, labels and weights.

    fit_map_without_side_effects : callable or None
        Function that fits the map without side effects, for cross-fitting. None stands for
        `fit_map`.

    allow_softmax_fallback : bool
        Whether the softmax replaces a map that has a larger log loss on accepted rows.

    class_names : array of shape (n_classes,) or None
        Names of the columns. None numbers them from 0.

    has_class_names : bool
        Whether the caller named the classes.

    input : {"logits", "probabilities"}
        Content of the tables that callers pass to the gate.

    decision : {"largest", "calibrated"}
        How a class is predicted. "calibrated" is for two classes (`gate.learned_decision`).

    reject_label : int, str or None
        Label of rejected rows. None chooses one that is not a class.

    weights : array of float of shape (n_rows,) or None
        Weight of each row for the calibration map. The certificate ignores it.

    selection : RowSelection or None
        Rows that count for the certificate. None if all rows count.

    groups : array-like of shape (n_rows,) or None
        Group of each row, for a promise per group.

    notes : sequence of Note
        Further notes for the certificate.

    skipped_checks : tuple of str
        Kinds of the notes on the rows, such as "few_errors", that the caller has checked itself.

    Examples
    --------
    >>> from metacal.gate.calibrate import calibrate
    >>> from metacal.maps.temperature import fit_temperature
    >>> from metacal.promises import MaxMiscoverage, MaxReview
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=400)
    >>> rows = Rows(rng.normal(size=(400, 3)) + 3.0 * np.eye(3)[labels])
    >>> gate = calibrate(
    ...     LogitsData(rows, labels, "entropy", fit_temperature), MaxMiscoverage(0.1)
    ... )
    >>> gate.threshold == gate.certificate.threshold, gate.certificate.n_rows
    (True, 400)
    >>> gate = calibrate(LogitsData(rows, None, "entropy", fit_temperature), MaxReview(0.2))
    >>> gate.certificate.n_rows, gate.source.map.temperature
    (400, 1.0)
    """

    rows: Rows
    labels: Codes | None
    score: str | Score
    fit_map: FitMap
    fit_map_without_side_effects: FitMap | None = None
    allow_softmax_fallback: bool = False
    class_names: NDArray[Any] | None = None
    has_class_names: bool = False
    input: str = "logits"
    decision: DecisionRule = "largest"
    reject_label: Any = None
    weights: Float | None = None
    selection: RowSelection | None = None
    groups: ArrayLike | None = None
    notes: Sequence[Note] = ()
    skipped_checks: tuple[str, ...] = ()

    def certify(self, promise: Promise) -> CertifiedTable:
        """Certify a promise on the rows, and add notes on the data to the certificate."""
        self._check_options(promise)
        input_suspicion = warn_if_implausible(self.rows.table, self.input)
        self._prefetch_sample_for_map()
        # A thread computes the fingerprint, if possible, while other code runs.
        certified_table = _start_fingerprint(self._certify_table(promise))
        data_notes = _collect_data_notes(
            certified_table, input_suspicion, kinds_to_skip=self.skipped_checks
        )
        if self.weights is not None:
            data_notes.append(note_weights_not_certified())
        certificate = certified_table.certificate.with_notes(*self.notes, *data_notes)
        return replace(certified_table, certificate=certificate)

    def _check_options(self, promise: Promise) -> None:
        """Raise InputError if the promise or the reject label does not suit the data."""
        if self.labels is None:
            _check_usable_without_labels(promise, self.score)
        check_reject_label(self.reject_label, self._classes)
        if len(self._classes) == 2:
            check_positive_class(promise, self._classes.tolist())

    def _prefetch_sample_for_map(self) -> None:
        """Start to draw the sample of rows on which calibration maps are compared.

        Without labels no map is fitted, and for few rows a thread is not worth its start.
        """
        fits_map = self.labels is not None
        if fits_map and len(self.rows) >= MIN_ROWS_FOR_THREAD:
            prefetch_out_of_fold_sample(self.rows)

    def fit_sources(self, certified_data: CertifiedTable, promise: Promise) -> FittedSources:
        """Fit the calibration map on the rows that the promise allows.

        Without labels, the map is the softmax.
        """
        if self.labels is None:
            return self._build_softmax_sources(certified_data)
        fitter = CalibrationMapFitter(
            fit_map=self.fit_map,
            fit_map_without_side_effects=self.fit_map_without_side_effects or self.fit_map,
            class_names=self._classes,
            weights=self.weights,
            allow_softmax_fallback=self.allow_softmax_fallback,
        )
        # Another thread draws the rows of the profile, if possible, while the map is fitted.
        is_too_short_for_thread = len(self.rows) < MIN_ROWS_FOR_THREAD
        executor = None if is_too_short_for_thread else certified_data.rows.executor
        wait_for_profile_rows = start_in_thread_or_defer(
            executor, draw_profile_rows, certified_data
        )
        fitted_map = fitter.fit(certified_data, self.labels, promise)
        profile = build_monitoring_profile(
            fitted_map.map, certified_data, profile_row_indices=wait_for_profile_rows()
        )
        return FittedSources(
            sources=(self._build_source(fitted_map.map, certified_data),),
            notes=fitted_map.notes,
            profile=profile,
            reject_label=check_reject_label(self.reject_label, self._classes),
        )

    def _build_softmax_sources(self, certified_data: CertifiedTable) -> FittedSources:
        """Build the source of a gate without labels, whose probabilities are the softmax."""
        # The softmax is the map of a temperature scaling whose temperature is 1.
        softmax_map = TemperatureMap(1.0)
        temperature_scaling = Recipe(METHODS["temperature"].public_name)
        source = self._build_source(softmax_map, certified_data, recipe=temperature_scaling)
        return FittedSources(
            sources=(source,),
            notes=(note_not_calibrated(),),
            profile=build_profile(certified_data.columns.ranking),
            reject_label=check_reject_label(self.reject_label, self._classes),
        )

    @property
    def _classes(self) -> NDArray[Any]:
        """Class of each column, or the column number if the classes have no names."""
        if self.class_names is None:
            return np.arange(self.rows.n_classes)
        return self.class_names

    def _certify_table(self, promise: Promise) -> CertifiedTable:
        """Certify a promise with the decision rule of the gate."""
        if self.decision == "calibrated" and self.labels is not None:
            return self._certify_learned_decision(self.labels, promise)
        background_map = plan_background_map(
            self.rows, promise, self.fit_map, labels=self.labels, weights=self.weights
        )
        table = CalibrationTable(
            rows=self.rows,
            labels=self.labels,
            class_names=self._classes,
            subgroups=find_subgroups_by_class_or_group(
                promise, self.rows, self._classes, self.groups
            ),
            selection=self.selection,
        )
        return certify_table(table, promise, self.score, background_map=background_map)

    def _certify_learned_decision(self, labels: Codes, promise: Promise) -> CertifiedTable:
        """Learn a decision offset from pilot rows, and certify the remaining rows."""
        from metacal.gate.learned_decision import learn_decision

        validated_rows = self.rows.as_validated()
        learned_decision = learn_decision(validated_rows, labels, self.selection)
        shifted_rows = learned_decision.shifted_rows
        shifted_table = CalibrationTable(
            rows=shifted_rows,
            labels=labels,
            class_names=self._classes,
            subgroups=find_subgroups_by_class_or_group(
                promise, shifted_rows, self._classes, self.groups
            ),
            selection=learned_decision.rows_to_certify,
        )
        certified_shifted_table = certify_table(shifted_table, promise, self.score)
        decision_offset = learned_decision.decision_offset
        certificate = replace(certified_shifted_table.certificate, decision_at=decision_offset)
        # The calibration map is fitted on the original logits, without the decision offset.
        return replace(
            certified_shifted_table,
            rows=validated_rows,
            certificate=certificate,
            decision_offset=decision_offset,
        )

    def _build_source(
        self, calibration_map: Map, table: CertifiedTable, recipe: Recipe | None = None
    ) -> LogitsSource:
        """Build the source of the gate from its calibration map and its ranking score."""
        return LogitsSource(
            map=calibration_map,
            classes=self._classes,
            score=table.score,
            input=self.input,
            recipe=recipe,
            classes_given=self.has_class_names,
            decision_at=table.certificate.decision_at,
        )


def check_logits_gate_options(
    promise: Any, score: str | Score, input: str, decision: str = "largest"
) -> None:
    """Raise InputError if a promise, a score and a decision rule cannot be combined.

    Parameters
    ----------
    promise : object
        Value that the caller passed as the promise.

    score : str or callable
        Ranking score.

    input : {"logits", "probabilities"}
        Content of the table.

    decision : str, default="largest"
        How a class is predicted, "largest" or "calibrated".
    """
    check_choice("decision", decision, "largest", "calibrated")
    is_promise = isinstance(promise, Promise)
    if is_promise and promise.is_two_sided and decision == "calibrated":
        raise UnsupportedPromiseError(
            f"decision='calibrated' does not support {type(promise).__name__}, because this"
            " promise chooses its own decisions. Leave out decision."
        )
    if not is_promise:
        raise UnsupportedPromiseError(
            "promise must be an object such as MaxMiscoverage(0.05) or MinAccuracy(0.97), but"
            f" got {promise!r}."
        )
    if score != AUTO_SCORE:
        check_score(score, input)
    elif promise.delta is None:
        raise UnsupportedPromiseError(
            "score='auto' requires a promise with a delta, which the scores share, but got"
            f" {promise!r}. Pass a delta, or name a score."
        )


def _check_usable_without_labels(promise: Promise, score: str | Score) -> None:
    """Raise InputError if a promise or a score cannot be used without labels."""
    if promise.needs_labels:
        raise MissingLabelsError(
            f"{type(promise).__name__} requires the correctness of each prediction. Pass the true"
            " labels."
        )
    if score == AUTO_SCORE:
        raise MissingLabelsError(
            "score='auto' requires labelled rows to choose the score. Pass labels, or name a"
            " score such as 'entropy'."
        )


def _start_fingerprint(table: CertifiedTable) -> CertifiedTable:
    """Start the computation of the fingerprint of a table in another thread."""
    is_already_started = table.wait_for_fingerprint is not None
    is_too_short_for_thread = len(table.rows) < MIN_ROWS_FOR_THREAD
    if is_already_started or is_too_short_for_thread:
        return table
    # While a device computes, the processor is free even if the caller has no pool of threads.
    processor_is_free = table.rows.is_on_device
    wait_for_fingerprint = start_in_thread_or_defer(
        table.rows.executor,
        fingerprint_rows,
        table.columns.scores,
        table.columns.correct,
        may_use_helper_thread=processor_is_free,
    )
    return replace(table, wait_for_fingerprint=wait_for_fingerprint)


def _collect_data_notes(
    table: CertifiedTable, input_suspicion: Suspicion | None, *, kinds_to_skip: tuple[str, ...]
) -> list[Note]:
    """Collect notes on the input and the rows, and warn about the rows."""
    data_notes: list[Note] = []
    if input_suspicion is not None:
        data_notes.append(
            note_suspicious_input(looks=input_suspicion.kind, lowest=input_suspicion.lowest)
        )
    if table.has_row_scores:
        row_notes = _collect_row_notes(table, input_suspicion)
    else:
        row_notes = check_sample_of_long_table(
            table.rows, table.score, table.certificate, input_suspicion
        )
    data_notes.extend(note.issue_warning() for note in row_notes if note.kind not in kinds_to_skip)
    return data_notes


def _collect_row_notes(table: CertifiedTable, input_suspicion: Suspicion | None) -> list[Note]:
    """Collect notes on a small number of errors, on equal scores and on repeated rows."""
    ranking = table.columns.ranking
    input_explains_ties = input_suspicion is not None
    row_notes = find_notes_on_errors_and_ties(ranking, checks_ties=not input_explains_ties)
    selected_rows = table.selected_rows
    # The rows of a cluster are often equal, so no warning is needed if there are clusters.
    clusters_explain_repeated_rows = (
        selected_rows is not None and selected_rows.clusters is not None
    )
    if explains_repeated_rows(input_suspicion) or clusters_explain_repeated_rows:
        return row_notes
    rows = table.rows
    scores = table.columns.scores
    if selected_rows is not None:
        is_selected = selected_rows.to_mask(len(scores))
        rows = rows.select(is_selected)
        scores = scores[is_selected]
    n_distinct_scores = ranking.n_tie_blocks
    return [*row_notes, *check_repeated_rows(rows, scores, n_distinct_scores)]
