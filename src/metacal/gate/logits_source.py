"""Source of a stage that reads logits or probabilities of classes.

A source calibrates the probabilities of a stage with a *map*, and ranks rows by a *ranking score*
such as the entropy, where higher means less certain. The code of a class is the index of its
column. The prediction of a row is the column of its largest logit.

With two classes, the prediction may depend on a *decision offset*: the second class is predicted if
its log-odds exceed the offset. We then subtract the offset from the second column before scoring.
The shifted table is called *decision logits*. Probabilities are computed from the logits without
this shift.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.certificates.stored_fields import OPTIONAL
from metacal.errors import ClassMismatchError, InputError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.decision import Decision, DecisionOptions
from metacal.gate.device_rows import accept_rows_on_device, decide_rows_in_one_pass
from metacal.gate.file_layout import FileLayout
from metacal.gate.shifted_rows import shift_second_class, shift_second_logit
from metacal.gate.source import BaseSource, Recipe
from metacal.gate.thresholds import (
    SingleThreshold,
    Thresholds,
    get_decision_offsets,
    get_thresholds_of_rows,
)
from metacal.maps.map import Map
from metacal.maps.methods import find_map_method
from metacal.rows import Rows
from metacal.rows.validate import (
    encode_labels,
    get_probability_buffer,
    has_one_score_per_row,
    read_logits,
    scores_to_two_columns,
    to_numpy,
)
from metacal.scores import (
    Score,
    compute_score_and_predictions,
    get_rounding_grid,
    get_score_name,
    resolve_score,
    score_rows,
)


@dataclass(frozen=True, eq=False)
class LogitsSource(BaseSource[Rows]):
    """Source with a map to calibrated probabilities and a ranking score of logits.

    Attributes
    ----------
    map : Map
        Map from logits to calibrated probabilities.
    classes : ndarray of shape (n_classes,)
        Labels in column order.
    score : str or callable
        Ranking score, by its name if it has one.
    input : "logits" or "probabilities"
        Content of the tables that callers pass.
    recipe : Recipe or None
        Estimator that fitted the map.
    classes_given : bool
        Whether the classes have names. If not, they are the column indices.
    decision_at : float
        Decision offset for two classes, 0 if the class with the larger logit is predicted.
    file_layout : FileLayout or None
        Names of the columns of the calibration file, if it was read from one.
    """

    map: Map
    classes: NDArray[Any]
    score: str | Score = "entropy"
    input: str = "logits"
    recipe: Recipe | None = None
    classes_given: bool = False
    decision_at: float = field(default=0.0, metadata=OPTIONAL)
    file_layout: FileLayout | None = field(default=None, metadata=OPTIONAL)
    #: Name of the input tensor in exported ONNX graphs.
    input_name: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        read_only_classes = np.array(self.classes)
        read_only_classes.flags.writeable = False
        object.__setattr__(self, "classes", read_only_classes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogitsSource):
            return NotImplemented
        return (
            self.map == other.map
            and self.score == other.score
            and self.input == other.input
            and self.decision_at == other.decision_at
            and np.array_equal(self.classes, other.classes)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self.map).__name__}, {self.n_classes} classes"

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @cached_property
    def _column_by_label(self) -> dict[Any, int]:
        """Column index of each label."""
        return {label: column for column, label in enumerate(self.classes.tolist())}

    @property
    def has_decision_offset(self) -> bool:
        """Whether the predicted class may differ from the one with the largest logit."""
        return self.decision_at != 0.0

    @property
    def score_name(self) -> str:
        """Name of the ranking score in certificates."""
        return get_score_name(self.score)

    @property
    def registered_score(self) -> str:
        """Name of the ranking score. Raises InputError if the score is a function."""
        if not isinstance(self.score, str):
            raise InputError(
                f"The score {self.score_name} is a function without a registered name. Use a"
                " named score."
            )
        return self.score

    @property
    def calibrator_name(self) -> str:
        """Public name of the estimator that fitted the map, or the map's class if unknown."""
        if self.recipe is not None:
            return self.recipe.estimator
        method = find_map_method(type(self.map))
        if method is None:
            return type(self.map).__name__
        return method.public_name

    @property
    def allows_any_block_size(self) -> bool:
        """Whether the results are bitwise equal for any split of the rows into blocks."""
        score_kernel = resolve_score(self.score).compute_unrounded
        return self.map.allows_any_block_size and getattr(score_kernel, "takes_whole_blocks", False)

    def read(self, table: Any, *, convert_lazily: bool = False) -> Any:
        """Convert a table to checked logits with one column per class.

        Parameters
        ----------
        table : array-like of shape (n_rows, n_classes)
            Logits or probabilities, as `input` states. Two classes may have one score per row.
        convert_lazily : bool, default=False
            Whether to convert rows only when they are read, without a second table in memory.

        Raises
        ------
        InputError
            If the number of columns differs from the number of classes, or a value is invalid.
        """
        if self.n_classes == 2 and has_one_score_per_row(table):
            table = scores_to_two_columns(table, self.input)
        logits = read_logits(table, self.input, convert_lazily=convert_lazily)
        if logits.shape[1] != self.n_classes:
            raise ClassMismatchError(
                f"This gate was fitted on {self.n_classes} classes, but the table has"
                f" {logits.shape[1]} columns. Pass predictions of the same classifier."
            )
        return logits

    def to_rows(self, table: Any) -> Rows:
        """Read and check a table, and wrap it in `Rows`. `Rows` are returned unchanged."""
        if isinstance(table, Rows):
            return table
        return Rows(self.read(table))

    def to_rows_from_checked(self, logits: Any) -> Rows:
        """Wrap logits that `read` has checked in `Rows`, without checking them again."""
        return Rows(logits)

    def select_rows(self, rows: Rows, row_indices: Codes) -> Rows:
        """Select rows by their indices, in the order of the table."""
        if rows.is_on_device:
            # The rows are copied to a new table, because maps on a device write whole tables.
            return Rows(rows.table[row_indices])
        is_selected = np.zeros(len(rows), dtype=bool)
        is_selected[row_indices] = True
        return rows.select(is_selected)

    def encode_one_truth(self, label: Any) -> int | None:
        """Return the column of a label, or None if it is not one of the classes."""
        return self._column_by_label.get(label)

    def encode_truth(self, truth: Any, n_rows: int) -> Codes:
        """Return the column of the true label of each row."""
        return encode_labels(truth, n_rows, self.classes)

    def uncertainty_scores(self, rows: Rows) -> Float:
        """Compute the ranking score of each row. Higher is less certain."""
        return score_rows(shift_second_logit(rows, self.decision_at), self.score)

    def _get_decision_offset(
        self, thresholds: Thresholds, group_codes: Codes | None
    ) -> float | Float:
        """Return the decision offset of all rows, or an array if it depends on the group."""
        if thresholds.has_two_thresholds_per_group and group_codes is not None:
            return get_decision_offsets(thresholds, group_codes)
        return self.decision_at

    def compute_decision_logits(
        self, block: NDArray[Any], thresholds: Thresholds, group_codes: Codes | None
    ) -> NDArray[Any]:
        """Shift a block of logits so that the largest one is the predicted class."""
        decision_offset = self._get_decision_offset(thresholds, group_codes)
        if thresholds.has_two_thresholds_per_group or decision_offset:
            return shift_second_class(block, decision_offset)
        return block

    def accepts(self, rows: Rows, thresholds: Thresholds, group_codes: Codes | None) -> Flags:
        """Return a mask of the rows whose score is at most their threshold.

        Parameters
        ----------
        rows : Rows
            Checked logits.
        thresholds : SingleThreshold or SubgroupThresholds
            Largest score of an accepted row.
        group_codes : ndarray of int, shape (n_rows,), or None
            Code of the group of each row, if the thresholds depend on the group.
        """
        decision_rows = shift_second_logit(rows, self._get_decision_offset(thresholds, group_codes))
        is_accepted = accept_rows_on_device(decision_rows, self.score, thresholds)
        if is_accepted is not None:
            return is_accepted
        predicted_codes = None
        if thresholds.depend_on_predicted_class:
            predicted_codes = decision_rows.compute_column(kernels.predict_classes)
        scores = score_rows(decision_rows, self.score)
        row_thresholds = get_thresholds_of_rows(
            thresholds, group_codes=group_codes, predicted_codes=predicted_codes
        )
        return accept_up_to_threshold(scores, row_thresholds)

    def decide(self, rows: Rows, options: DecisionOptions) -> Decision:
        """Compute the decision on each row in one pass over the table."""
        if rows.is_on_device:
            return self._decide_on_device(rows, options)
        n_rows = len(rows)
        probability_dtype = np.float64 if rows.table.dtype == np.float64 else np.float32
        unrounded_scores = np.empty(n_rows)
        predicted_codes = np.empty(n_rows, dtype=np.intp)
        answer_codes = np.empty(n_rows, dtype=np.intp)
        # The columns are in the order in which `_decide_block` expects its parameters.
        columns_to_fill: list[NDArray[Any]] = [unrounded_scores, predicted_codes, answer_codes]
        probabilities = None
        confidence = None
        if options.with_probabilities:
            probabilities = np.empty((n_rows, rows.n_classes), dtype=probability_dtype)
            confidence = np.empty(n_rows, dtype=probability_dtype)
            columns_to_fill += [probabilities, confidence]
        columns_to_read = [] if options.group_codes is None else [options.group_codes]
        fill_columns_of_block = partial(self._decide_block, options, probability_dtype)
        rows.fill_columns(
            fill_columns_of_block,
            *columns_to_fill,
            *columns_to_read,
            allows_any_block_size=self.allows_any_block_size,
        )
        return self._build_decision(
            options,
            unrounded_scores=unrounded_scores,
            predicted_codes=predicted_codes,
            answer_codes=answer_codes,
            probabilities=probabilities,
            confidence=confidence,
        )

    def accept_by_unrounded_scores(
        self,
        thresholds: Thresholds,
        unrounded_scores: Float,
        decision_logits: NDArray[Any],
        group_codes: Codes | None,
    ) -> Flags:
        """Accept the rows of a block by their scores before rounding.

        Thresholds are moved between the grid points to which scores are rounded. Rounding never
        moves a score across such a threshold, so the rows are those accepted by rounded scores.
        """
        rounding_grid = get_rounding_grid(self.score)
        unrounded_thresholds = thresholds.for_unrounded_scores(rounding_grid)
        if isinstance(unrounded_thresholds, SingleThreshold):
            return accept_up_to_threshold(unrounded_scores, unrounded_thresholds.threshold)
        predicted_codes = None
        if thresholds.depend_on_predicted_class:
            predicted_codes = kernels.predict_classes(decision_logits)
        row_thresholds = get_thresholds_of_rows(
            unrounded_thresholds, group_codes=group_codes, predicted_codes=predicted_codes
        )
        return accept_up_to_threshold(unrounded_scores, row_thresholds)

    def _decide_block(
        self,
        options: DecisionOptions,
        probability_dtype: Any,
        block: NDArray[Any],
        unrounded_scores: Float,
        predicted_codes: Codes,
        answer_codes: Codes,
        *optional_columns: Any,
    ) -> None:
        """Compute the columns of a decision for one block of rows.

        Parameters
        ----------
        options : DecisionOptions
            Thresholds, and the columns to compute.
        probability_dtype : dtype
            Type of the probabilities.
        block : ndarray of shape (n_rows, n_classes)
            Checked logits.
        unrounded_scores, predicted_codes, answer_codes : ndarray of shape (n_rows,)
            Output arrays.
        *optional_columns : ndarray
            Output arrays for probabilities and confidence, if the options ask for them, and then
            the group codes of the block, if the options have group codes.
        """
        output_columns, group_codes = _separate_group_codes(options, optional_columns)
        decision_logits = self.compute_decision_logits(block, options.thresholds, group_codes)
        score_kernel = resolve_score(self.score).compute_unrounded
        unrounded_scores[...] = compute_score_and_predictions(
            score_kernel, decision_logits, predicted_codes
        )
        answer_codes[...] = predicted_codes
        needs_probabilities = options.with_probabilities or options.is_calibrator
        if not needs_probabilities:
            return

        uniform_probability = 1.0 / block.shape[1]
        if options.with_probabilities:
            probabilities, confidence = output_columns
        else:
            probabilities = np.empty(block.shape, dtype=probability_dtype)
        self.map.write_clipped_probabilities(block, probabilities)
        # A score is NaN if the logits of the row are invalid. Each class then has probability 1/K.
        probabilities[np.isnan(unrounded_scores)] = uniform_probability
        if options.is_calibrator:
            answer_codes[...] = kernels.predict_classes(probabilities)
        if not options.with_probabilities:
            return
        row_index = np.arange(len(block))
        confidence[...] = probabilities[row_index, answer_codes]
        if options.rejected_are_uniform:
            is_accepted = self.accept_by_unrounded_scores(
                options.thresholds,
                unrounded_scores=unrounded_scores,
                decision_logits=decision_logits,
                group_codes=group_codes,
            )
            probabilities[~is_accepted] = uniform_probability

    def _decide_on_device(self, rows: Rows, options: DecisionOptions) -> Decision:
        """Compute the decision on a table in GPU memory. Probabilities stay on the GPU."""
        decision = self._decide_in_one_pass(rows, options)
        if decision is not None:
            return decision
        decision_offset = self._get_decision_offset(options.thresholds, options.group_codes)
        decision_rows = shift_second_logit(rows, decision_offset)
        scores = score_rows(decision_rows, self.score)
        predicted_codes = decision_rows.compute_column(kernels.predict_classes)
        needs_probabilities = options.with_probabilities or options.is_calibrator
        if not needs_probabilities:
            return self._build_decision(
                options,
                unrounded_scores=scores,
                predicted_codes=predicted_codes,
                answer_codes=predicted_codes,
            )

        device_kernels = kernels.device_kernels()
        uniform_probability = 1.0 / rows.n_classes
        probabilities: Any = self.map(rows.table, rows=rows)
        has_no_score = np.isnan(scores)
        if has_no_score.any():
            device_kernels.fill_rows(probabilities, has_no_score, uniform_probability)
        answer_codes = predicted_codes
        if options.is_calibrator:
            answer_codes = Rows(probabilities).compute_column(kernels.predict_classes)
        if not options.with_probabilities:
            return self._build_decision(
                options,
                unrounded_scores=scores,
                predicted_codes=predicted_codes,
                answer_codes=answer_codes,
            )

        confidence = device_kernels.take_entries(probabilities, columns=answer_codes)
        decision = self._build_decision(
            options,
            unrounded_scores=scores,
            predicted_codes=predicted_codes,
            answer_codes=answer_codes,
            probabilities=probabilities,
            confidence=confidence,
        )
        if options.rejected_are_uniform and not decision.accept.all():
            device_kernels.fill_rows(probabilities, ~decision.accept, uniform_probability)
        return decision

    def _decide_in_one_pass(self, rows: Rows, options: DecisionOptions) -> Decision | None:
        """Decide on a table in GPU memory in one pass, or return None if impossible."""
        if not options.with_probabilities or self.has_decision_offset:
            return None
        probabilities = get_probability_buffer(rows.table)
        columns_on_device = decide_rows_in_one_pass(
            rows,
            self.map,
            self.score,
            options.thresholds,
            probabilities_out=probabilities,
            rejected_are_uniform=options.rejected_are_uniform,
        )
        if columns_on_device is None:
            return None
        predicted_codes = to_numpy(columns_on_device.predictions)
        # A map that can be computed in one pass never changes the most probable class.
        # A gate that only calibrates therefore answers with the predicted class, too.
        return self._build_decision(
            options,
            unrounded_scores=to_numpy(columns_on_device.scores),
            predicted_codes=predicted_codes,
            answer_codes=predicted_codes,
            probabilities=probabilities,
            confidence=to_numpy(columns_on_device.confidence),
        )

    def _build_decision(
        self,
        options: DecisionOptions,
        *,
        unrounded_scores: Float,
        predicted_codes: Codes,
        answer_codes: Codes,
        probabilities: Any = None,
        confidence: Any = None,
    ) -> Decision:
        """Round the scores, compare them with the thresholds, and collect the columns.

        Parameters
        ----------
        options : DecisionOptions
            Thresholds and group codes.
        unrounded_scores : ndarray of shape (n_rows,)
            Ranking score of each row.
        predicted_codes : ndarray of int, shape (n_rows,)
            Column of the largest decision logit of each row.
        answer_codes : ndarray of int, shape (n_rows,)
            Column of the class to return for each row.
        probabilities, confidence : array or None
            Calibrated probabilities, and the probability of the answer.
        """
        uncertainties = kernels.round_to_grid(unrounded_scores, get_rounding_grid(self.score))
        row_thresholds = get_thresholds_of_rows(
            options.thresholds, group_codes=options.group_codes, predicted_codes=predicted_codes
        )
        return Decision(
            accept=accept_up_to_threshold(uncertainties, row_thresholds),
            # For a score computed from logits, a higher value always means less certainty.
            score=uncertainties,
            uncertainty=uncertainties,
            predicted_codes=predicted_codes,
            confidence=confidence,
            answer=self.classes[answer_codes],
            probabilities=probabilities,
        )


def _separate_group_codes(
    options: DecisionOptions, optional_columns: tuple[Any, ...]
) -> tuple[list[Any], Codes | None]:
    """Separate the output columns of a block from its group codes."""
    if options.group_codes is None:
        return list(optional_columns), None
    *output_columns, group_codes = optional_columns
    return output_columns, group_codes
