"""Certifier: a sequence of labels for rows drawn from an unlabelled pool, which ends in a gate.

The *pool* is a set of rows without labels. Some of its rows are *drawn* at random before the first
label arrives. An *answer* states for a drawn row whether its prediction is correct, or its true
label. Answers are tested in one or two *phases*: on the rows that were drawn first and, after an
extension, on all rows that are drawn then. Each phase has a fraction of delta.

`metacal.certification.arriving` proves which labels certify which threshold.
`metacal.io.artifact.certifier` records the answers in a journal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.certificate import Certificate, accept_up_to_threshold
from metacal.certificates.design import CertificationDesign
from metacal.certificates.notes import Note, note_declared_extension, note_pool_without_score
from metacal.certification.arriving import (
    DELTA_FRACTIONS_WITH_EXTENSION,
    LabellingProgress,
    PartialLabels,
    assess_progress,
    choose_sample_sizes,
    get_procedure_for_partial_labels,
)
from metacal.certification.pilot import choose_pilot_rows_of_pool
from metacal.certification.plans import PilotRows
from metacal.errors import InfeasibleTargetError, LabellingError
from metacal.formulas import Codes, Flags
from metacal.gate.certify_selected_rows import name_score_and_make_thresholds_robust
from metacal.gate.gate import Gate
from metacal.gate.gate_from_labels import build_gate_from_labels, check_promise_for_labelling
from metacal.gate.labelling_phases import AssessedPhase, Phase
from metacal.gate.score_source import HigherIs, ScoreSource, clean_score_name
from metacal.gate.unlabelled_pool import PoolAnswers, UnlabelledPool
from metacal.promises.promise import Promise
from metacal.rows.draws import check_random_state
from metacal.scores import Score, get_rounding_grid, get_score_name
from metacal.spelling import choose_spelling

#: By default, `propose` divides the drawn rows into this many batches.
_N_DEFAULT_BATCHES = 40
#: By default, a batch has at least this many rows.
_MIN_DEFAULT_BATCH_SIZE = 5


@dataclass(eq=False, repr=False)
class Certifier:
    """Sequential certification of a promise by labels that arrive one by one.

    `labels` rows of the pool are drawn at random before the first label. For a promise about
    accuracy with a `delta`, labelling ends as soon as further labels cannot change the threshold,
    which is that of `fit` on all drawn rows. Any other promise needs the labels of all drawn rows.
    The promise is about the distribution that the pool is a random sample of. It holds with
    probability 1 - `delta` whenever you stop.

    Parameters
    ----------
    promise : Promise
        Promise to certify.
    pool : array-like of shape (n_rows,) or (n_rows, n_classes)
        One score per row, as for `ScoreGate`, or logits, as for `MetaCal`. Rows without a score are
        never drawn.
    labels : int or None, default=None
        Number of rows to draw, which is the largest number of labels that you need. The default is
        40 / (1 - beta) for an accuracy and 40 / alpha for a miscoverage, but at most the size of
        the pool. It cannot change later. If the pool consists of scores, a few rows, at most the
        square root of their number, stay unlabelled as pilot rows in case scores are equal.
    may_extend : bool, default=False
        Whether `extend` may draw further rows once, up to four times as many. It costs a fifth of
        delta from the start.
    random_state : int or None, default=None
        Seed of the draw. By default, the seed is derived from the pool. The certificate records a
        seed that you pass.
    higher_is : "surer" or "doubtful", default="surer"
        Meaning of a higher score, if the pool consists of scores.
    score_name : str, default="score"
        Name of the score, if the pool consists of scores.
    score, input, classes
        Parameters of `MetaCal`, if the pool consists of logits.
    record : callable or None, default=None
        Function that is called with each answer or extension, as a dict, before it takes effect.
        `update` raises the exceptions of this function.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar100-resnet110")
    >>> certifier = mc.Certifier(mc.MinAccuracy(0.9), data.logits, labels=1000)
    >>> while not certifier.finished:
    ...     rows = certifier.propose()
    ...     certifier = certifier.update(rows, labels=data.labels[rows])  # an annotator's work
    >>> print(certifier)
    575 of 1,000 labels certify a coverage of 53%, and more would change nothing: Accepted predictions are correct at ...
    """

    promise: Promise
    pool: InitVar[ArrayLike]
    _: KW_ONLY
    labels: InitVar[int | None] = None
    may_extend: bool = False
    random_state: int | None = None
    higher_is: HigherIs = "surer"
    score_name: str = "score"
    score: str | Score = "entropy"
    input: str = "logits"
    classes: Sequence[Any] | None = None
    record: Callable[[dict[str, Any]], None] | None = None

    def __post_init__(self, pool: ArrayLike, labels: int | None) -> None:
        self.may_extend = bool(self.may_extend)
        check_promise_for_labelling(self.promise, self.higher_is, self.may_extend)
        self.score_name = clean_score_name(self.score_name)
        #: Settings of the tables that annotators fill in, such as the columns that they show.
        self.sheet_settings: dict[str, Any] = {}
        self.unlabelled_pool = self._read_pool(pool)
        self._pool_notes = self.unlabelled_pool.warn_about_rows()
        self.random_state = check_random_state(self.random_state)
        self._rows_in_draw_order = self.unlabelled_pool.draw_all_rows(self.random_state)
        n_drawable_rows = len(self._rows_in_draw_order)
        # A row without a score is never drawn, so its draw position is larger than all others.
        self._draw_position_of_row = np.full(self.n_pool, self.n_pool, dtype=np.intp)
        self._draw_position_of_row[self._rows_in_draw_order] = np.arange(n_drawable_rows)
        self._n_rows_by_phase = choose_sample_sizes(
            self.promise, labels, n_available=n_drawable_rows, may_extend=self.may_extend
        )
        #: Number of rows that the caller asked to draw. Pilot rows may lower the number drawn.
        self.n_requested = self._n_rows_by_phase[0]
        self.is_extended = False
        self.answers = PoolAnswers(self.n_pool)
        self._assessed_phases: list[AssessedPhase] = []
        self._n_labels_when_assessed: int | None = None
        self._was_extended_when_assessed = False
        self.pilot = PilotRows(scores=np.empty(0))
        uses_pilot_rows = self.promise.procedure().build_pilot_policy() is not None
        if not self.reads_logits and uses_pilot_rows:
            self._withhold_pilot_rows()

    @property
    def n_pool(self) -> int:
        """Number of rows of the pool."""
        return len(self.unlabelled_pool)

    @property
    def reads_logits(self) -> bool:
        """Whether the pool consists of logits instead of scores."""
        return self.unlabelled_pool.predictions is not None

    @property
    def _score_source(self) -> ScoreSource:
        """Source of a gate on the scores of the pool."""
        return ScoreSource(self.score_name, self.higher_is)

    def _read_pool(self, pool: ArrayLike) -> UnlabelledPool:
        """Read a pool of scores or logits."""
        if np.ndim(pool) == 1:
            return UnlabelledPool.from_scores(pool, self._score_source)
        return UnlabelledPool.from_logits(pool, self.score, self.input, self.classes)

    def _withhold_pilot_rows(self) -> None:
        """Choose pilot rows, first among rows that are never drawn, then among drawn rows."""
        n_rows_of_last_phase = self._n_rows_by_phase[-1]
        scores_in_draw_order = self.unlabelled_pool.uncertainty_scores[self._rows_in_draw_order]
        self.pilot = choose_pilot_rows_of_pool(scores_in_draw_order, n_rows_of_last_phase)
        n_rows_without_pilots = n_rows_of_last_phase - self.pilot.n_withheld
        self._n_rows_by_phase = tuple(
            min(n_rows, n_rows_without_pilots) for n_rows in self._n_rows_by_phase
        )

    @property
    def n_drawn(self) -> int:
        """Number of rows drawn so far. At most this many labels are needed."""
        current_phase = 1 if self.is_extended else 0
        return self._n_rows_by_phase[current_phase]

    @property
    def drawn_rows(self) -> Codes:
        """Indices of the rows drawn so far."""
        return self._rows_in_draw_order[: self.n_drawn]

    @property
    def batch_size(self) -> int:
        """Number of rows that `propose` returns by default."""
        return max(_MIN_DEFAULT_BATCH_SIZE, self.n_drawn // _N_DEFAULT_BATCHES)

    def propose(self, n: int | None = None) -> Codes:
        """Return the indices of the next rows of the pool to label, in random order.

        The same rows are returned again until you pass their answers to `update`.

        Parameters
        ----------
        n : int or None, default=None
            Largest number of rows to return. By default a fortieth of the drawn rows, at least 5.

        Returns
        -------
        ndarray of int
            Empty if further labels cannot change the result.
        """
        batch_size = self.batch_size if n is None else n
        for phase, progress in reversed(self._assess_phases()):
            if self._can_raise_threshold(progress):
                useful_rows = self._find_useful_rows(phase, progress)
                has_answer = self.answers.has_answer[useful_rows]
                batch: Codes = useful_rows[~has_answer][:batch_size]
                # The random order of the draw hides from annotators which rows are certain.
                draw_order_of_batch = np.argsort(self._draw_position_of_row[batch])
                return batch[draw_order_of_batch]
        return np.empty(0, dtype=np.intp)

    def _find_useful_rows(self, phase: Phase, progress: LabellingProgress) -> Codes:
        """Return the rows of a phase whose labels may change the result."""
        rows_of_phase = self._rows_in_draw_order[: phase.n_rows]
        needs_every_label = get_procedure_for_partial_labels(self.promise) is None
        if needs_every_label:
            return rows_of_phase
        scores = self.unlabelled_pool.uncertainty_scores[rows_of_phase]
        order_by_uncertainty = np.argsort(scores, kind="stable")
        return rows_of_phase[order_by_uncertainty[: progress.n_rows_whose_labels_matter]]

    def update(
        self, rows: ArrayLike, right: ArrayLike | None = None, *, labels: ArrayLike | None = None
    ) -> Self:
        """Record whether predictions are correct or, for logits, their true labels.

        You may pass any number of drawn rows, in any order, and repeat an answer. If one answer is
        invalid, none is recorded.

        Parameters
        ----------
        rows : array-like of int, shape (n_rows,)
            Indices of rows that `propose` returned.
        right : array-like of bool, shape (n_rows,), or None
            Whether the prediction of each row is correct.
        labels : array-like of shape (n_rows,), or None
            True label of each row. Pass either `right` or `labels`.

        Raises
        ------
        InputError
            If an answer is invalid, contradicts an earlier one, or is about a row not drawn.
        """
        answers = self.unlabelled_pool.encode_answers(rows, right=right, labels=labels)
        self.add_answers(answers.row_indices, answers.is_correct, answers.true_codes)
        return self

    def add_answers(self, row_indices: Codes, is_correct: Flags, true_codes: Codes) -> None:
        """Check encoded answers, and store the new ones.

        Parameters
        ----------
        row_indices : ndarray of int, shape (n_rows,)
            Indices of drawn rows.
        is_correct : ndarray of bool, shape (n_rows,)
            Whether the prediction of each row is correct.
        true_codes : ndarray of int, shape (n_rows,)
            Column of the true class of each row, -1 if it is not known.
        """
        self.check_answers(row_indices, is_correct)
        positions_of_new_answers = self.answers.find_new(row_indices)
        if len(positions_of_new_answers) == 0:
            return
        new_rows = row_indices[positions_of_new_answers]
        new_is_correct = is_correct[positions_of_new_answers]
        new_codes = true_codes[positions_of_new_answers]
        self._record_event(
            {
                "rows": new_rows.tolist(),
                "right": new_is_correct.astype(int).tolist(),
                "classes": new_codes.tolist(),
            }
        )
        self.answers.store(new_rows, is_correct=new_is_correct, true_codes=new_codes)

    def check_answers(self, row_indices: Codes, is_correct: Flags) -> None:
        """Raise InputError if a row was not drawn or an answer contradicts another one."""
        is_in_pool = (row_indices >= 0) & (row_indices < self.n_pool)
        draw_positions = self._draw_position_of_row[row_indices[is_in_pool]]
        is_drawn = np.zeros(len(row_indices), dtype=bool)
        is_drawn[is_in_pool] = draw_positions < self.n_drawn
        if not is_drawn.all():
            rows_not_drawn = row_indices[~is_drawn]
            raise LabellingError(
                f"Row {rows_not_drawn[0]} was not drawn for labelling, so its answer cannot be"
                " counted. Remove the answer."
            )
        self.answers.check_consistent(row_indices, is_correct)

    def extend(self) -> Self:
        """Draw the additional rows of an extension. Existing answers remain valid.

        Raise InputError if the extension was not declared by `may_extend=True`.
        """
        if not self.may_extend:
            raise LabellingError(
                f"The {self._n_rows_by_phase[0]:,} rows were drawn without a declared extension. If"
                " more rows were drawn after labels are known, the promise would fail more often"
                " than delta allows. Start again with"
                f" {choose_spelling('may_extend=True', '--may-extend')}."
            )
        if not self.is_extended:
            _, n_rows_after_extension = self._n_rows_by_phase
            self._record_event({"extend": n_rows_after_extension})
            self.is_extended = True
        return self

    def _record_event(self, event: dict[str, Any]) -> None:
        """Call `record` with an answer or an extension before it takes effect."""
        if self.record is not None:
            self.record(event)

    @property
    def n_labels(self) -> int:
        """Number of rows with an answer."""
        return int(np.count_nonzero(self.answers.has_answer))

    @property
    def finished(self) -> bool:
        """Whether the result is final, so that further labels cannot change it."""
        return not any(self._can_raise_threshold(progress) for _, progress in self._assess_phases())

    @property
    def threshold(self) -> float | None:
        """Certified threshold of the uncertainty score, None if nothing is certified yet."""
        thresholds = [progress.threshold for _, progress in self._assess_phases()]
        return _find_largest_or_none(thresholds)

    @property
    def coverage(self) -> float | None:
        """Fraction of the drawn rows that are accepted, None if nothing is certified yet."""
        return self._compute_coverage(self.threshold)

    @property
    def within_reach(self) -> float | None:
        """Coverage if all remaining predictions are correct, None if none is possible."""
        thresholds = [progress.reachable_threshold for _, progress in self._assess_phases()]
        return self._compute_coverage(_find_largest_or_none(thresholds))

    def _compute_coverage(self, threshold: float | None) -> float | None:
        """Return the fraction of drawn rows up to a threshold, or None if it is None."""
        if threshold is None:
            return None
        drawn_scores = self.unlabelled_pool.uncertainty_scores[self.drawn_rows]
        return float(accept_up_to_threshold(drawn_scores, threshold).mean())

    def _list_started_phases(self) -> list[Phase]:
        """Return the first phase and, after an extension, also the second phase."""
        delta_fractions = DELTA_FRACTIONS_WITH_EXTENSION if self.may_extend else (1.0,)
        phases = [
            Phase(promise=self.promise.with_delta_fraction(fraction), n_rows=n_rows)
            for fraction, n_rows in zip(delta_fractions, self._n_rows_by_phase, strict=True)
        ]
        n_started_phases = 2 if self.is_extended else 1
        return phases[:n_started_phases]

    def _get_labels_of_phase(self, phase: Phase) -> PartialLabels:
        """Return the scores and the known labels of the rows of a phase."""
        rows_of_phase = self._rows_in_draw_order[: phase.n_rows]
        return PartialLabels(
            scores=self.unlabelled_pool.uncertainty_scores[rows_of_phase],
            states=self.answers.label_states[rows_of_phase],
            pilot_rows=self.pilot,
        )

    def _assess_phases(self) -> list[AssessedPhase]:
        """Compute the progress of each started phase, or return the cached progress."""
        n_labels = self.n_labels
        is_cache_valid = (
            self._n_labels_when_assessed == n_labels
            and self._was_extended_when_assessed == self.is_extended
        )
        if not is_cache_valid:
            self._assessed_phases = []
            for phase in self._list_started_phases():
                progress = assess_progress(phase.promise, self._get_labels_of_phase(phase))
                self._assessed_phases.append(AssessedPhase(phase, progress))
            self._n_labels_when_assessed = n_labels
            self._was_extended_when_assessed = self.is_extended
        return self._assessed_phases

    def _can_raise_threshold(self, progress: LabellingProgress) -> bool:
        """Check whether further labels may certify a higher threshold for a phase."""
        if progress.reachable_threshold is None:
            return False
        current_threshold = self.threshold
        return current_threshold is None or progress.reachable_threshold > current_threshold

    def __str__(self) -> str:
        label_count = f"{self.n_labels:,} of {self.n_drawn:,} labels"
        coverage = self.coverage
        reachable_coverage = self.within_reach
        if coverage is None:
            outlook_text = "nothing can be certified"
            if reachable_coverage is not None:
                outlook_text = f"a coverage of {reachable_coverage:.0%} is within reach"
            uncertified_text = "nothing" if self.finished else "nothing yet"
            return f"{label_count} certify {uncertified_text}; {outlook_text}."
        if self.finished:
            return (
                f"{label_count} certify a coverage of {coverage:.0%}, and more would change"
                f" nothing: {self.certificate.statement}"
            )
        return (
            f"{label_count} certify a coverage of {coverage:.0%} by now; {reachable_coverage:.0%}"
            " is within reach."
        )

    @property
    def certificate(self) -> Certificate:
        """Certificate from the known labels. Raises an error if they certify nothing."""
        certificate = replace(
            self._certify_best_phase().with_notes(*self._list_notes()),
            delta=self.promise.delta,
            design=self._describe_design(),
        )
        if not self.reads_logits:
            return replace(certificate, score=self._score_source.score_name)
        # Scores computed from logits may have a coarser rounding grid than certified thresholds.
        return name_score_and_make_thresholds_robust(
            certificate,
            grid=get_rounding_grid(self.score),
            score_name=get_score_name(self.score),
        )

    def _describe_design(self) -> CertificationDesign:
        """Describe the use of pilot rows and the seed of the draw, for the certificate."""
        return CertificationDesign(
            tests_score_values=self.pilot.requires_score_value_tests,
            n_pilot_rows=self.pilot.n_withheld,
            random_state=self.random_state,
        )

    def _certify_best_phase(self) -> Certificate:
        """Certify the promise on the rows of the phase with the highest threshold."""
        best_phase, _ = max(self._assess_phases(), key=_get_threshold_or_minus_infinity)
        try:
            return best_phase.promise.certify(self._get_labels_of_phase(best_phase))
        except InfeasibleTargetError as error:
            if self.finished:
                raise
            raise InfeasibleTargetError(
                f"Cannot certify the promise yet: {self.n_labels:,} of {self.n_drawn:,} drawn rows"
                " are labelled. Label more rows.",
                target=error.target,
                rows_needed=error.rows_needed,
            ) from None

    def _list_notes(self) -> tuple[Note, ...]:
        """Return the notes on the pool and on a declared extension, for the certificate."""
        notes = [*self._pool_notes]
        n_rows_without_score = self.n_pool - len(self._rows_in_draw_order)
        if n_rows_without_score > 0:
            notes.append(note_pool_without_score(missing=n_rows_without_score, rows=self.n_pool))
        if self.may_extend:
            n_initial_rows, n_rows_with_extension = self._n_rows_by_phase
            extension_note = note_declared_extension(
                rows=n_initial_rows,
                extended=n_rows_with_extension,
                shares=DELTA_FRACTIONS_WITH_EXTENSION,
            )
            notes.append(extension_note)
        return tuple(notes)

    def gate(self) -> Gate:
        """Return the gate that is certified by the labels known so far.

        For a pool of logits, its map is a temperature fitted on the true labels, or the softmax if
        there are too few. All rows that the gate accepts are among the labelled ones. For a pool of
        scores, its confidence is a curve fitted on the answers.
        """
        return build_gate_from_labels(self)


def _get_threshold_or_minus_infinity(assessed_phase: AssessedPhase) -> float:
    """Return the certified threshold of a phase, -inf if it certifies nothing yet."""
    threshold = assessed_phase.progress.threshold
    return -math.inf if threshold is None else threshold


def _find_largest_or_none(optional_values: Iterable[float | None]) -> float | None:
    """Return the maximum of the values that are not None, or None if all are None."""
    known_values = [value for value in optional_values if value is not None]
    return max(known_values, default=None)
