"""Decision of a gate on each row, and the options of a decision.

A gate accepts or rejects the prediction of each row. A *cascade* has several *stages*, each with a
model of its own. The first stage that accepts a row answers it, and rows that no stage accepts go
to review.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal import display
from metacal.formulas import Codes, Flags, Float

if TYPE_CHECKING:
    from metacal.gate.thresholds import Thresholds


#: Probabilities of rejected rows: calibrated, or 1/K for each of K classes ("uniform").
Rejected = Literal["calibrated", "uniform"]

#: Columns that each stage of a cascade overwrites in the rows that it decides.
_COLUMNS_SET_BY_LAST_STAGE = (
    "accept",
    "predicted_codes",
    "confidence",
    "answer",
    "label",
    "probabilities",
)


class DecisionOptions(NamedTuple):
    """Options for the decision of one stage.

    Attributes
    ----------
    thresholds : SingleThreshold or SubgroupThresholds
        Largest uncertainty score of an accepted row.
    group_codes : ndarray of int, shape (n_rows,), or None
        Code of the group of each row, if the thresholds depend on the group.
    rejected : "calibrated" or "uniform"
        Probabilities of rejected rows.
    with_probabilities : bool
        Whether to compute probabilities and confidence.
    is_calibrator : bool
        Whether the gate only calibrates. It then promises nothing, and its answer is the most
        probable class, which may not have the largest logit.
    """

    thresholds: Thresholds
    group_codes: Codes | None = None
    rejected: Rejected = "calibrated"
    with_probabilities: bool = True
    is_calibrator: bool = False

    @property
    def rejected_are_uniform(self) -> bool:
        """Whether rejected rows get the same probability for each class."""
        return self.rejected == "uniform"


@dataclass(frozen=True, eq=False)
class Decision:
    """Decision of a gate on each row, with predictions and probabilities.

    Attributes
    ----------
    accept : ndarray of bool, shape (n,)
        Whether the row is accepted. For a cascade: whether any stage accepts it.
    score : ndarray of shape (n,)
        Score of each row at the first stage. For logits it is the ranking score, and higher is less
        certain. A score that you pass is returned unchanged, NaN if a row has none.
    uncertainty : ndarray of shape (n,)
        Uncertainty score of each row at the first stage, which thresholds are compared with. Higher
        is less certain, also if a higher `score` is more certain.
    predicted_codes : ndarray of int, shape (n,)
        Code of the prediction: the column of the largest logit. The prediction is correct if the
        true label has the same code. For given scores, the code is always 1, for "correct".
    confidence : ndarray of shape (n,), or None
        Calibrated probability that the answer is correct, also for rejected rows.
    answer : ndarray of shape (n,), or None
        Class with the largest logit, also for rejected rows. The promise is about this class. If
        the gate is only a calibrator, it is the most probable class. None if there are no classes.
    label : ndarray of shape (n,), or None
        Answer of accepted rows, and the gate's `reject_label` for rejected rows.
    probabilities : ndarray of shape (n, K), or None
        Calibrated probabilities. Rejected rows have 1/K in each class if you ask for
        `rejected="uniform"`.
    by : ndarray of int, shape (n,), or None
        For a cascade: index of the stage that answers the row, or the number of stages if none
        does.
    later_scores : ndarray of shape (n, n_stages - 1), or None
        For a cascade: uncertainty score of each row at each later stage, NaN if an earlier stage
        answers the row.
    stage_names : tuple of str
        Names of the stages.
    reviewer_name : str
        Name of the reviewer, who answers rows that no stage accepts.

    Examples
    --------
    >>> import metacal as mc
    >>> (logits, labels), (new_logits, _) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels)
    >>> gate.decide(new_logits)
    Decision(10,000 rows, 8,891 accepted)
    """

    accept: Flags
    score: NDArray[np.floating[Any]]
    uncertainty: Float
    predicted_codes: Codes
    confidence: NDArray[Any] | None = None
    answer: NDArray[Any] | None = None
    label: NDArray[Any] | None = None
    probabilities: NDArray[Any] | None = None
    by: Codes | None = None
    later_scores: Float | None = None
    stage_names: tuple[str, ...] = ()
    reviewer_name: str = "person"

    def __len__(self) -> int:
        return len(self.accept)

    def __repr__(self) -> str:
        return f"Decision({len(self):,} rows, {int(self.accept.sum()):,} accepted)"

    @property
    def is_accepted_by_first_stage(self) -> Flags:
        """Whether the first stage, or the only stage, accepts each row."""
        if self.by is None:
            return self.accept
        return self.by == 0

    @property
    def answered_by(self) -> NDArray[np.str_] | None:
        """Name of the stage or reviewer that answers each row of a cascade."""
        if self.by is None:
            return None
        answerer_names = np.array([*self.stage_names, self.reviewer_name])
        return answerer_names[self.by]

    @property
    def columns(self) -> dict[str, Any]:
        """Columns of the decision as a table, by name. Columns that are None are left out.

        The columns are label, answer, confidence, answered_by, accept, score, and the scores of
        later stages. Without classes, the decision comes first.
        """
        column_names = ["accept", "score", "confidence", "answered_by"]
        if self.answer is not None:
            column_names = ["label", "answer", "confidence", "answered_by", "accept", "score"]
        columns = {column_name: getattr(self, column_name) for column_name in column_names}
        if self.later_scores is not None:
            later_stages = self.stage_names[1:]
            for stage_name, stage_scores in zip(later_stages, self.later_scores.T, strict=True):
                columns[f"{stage_name}_score"] = stage_scores
        return {
            column_name: column for column_name, column in columns.items() if column is not None
        }

    def to_frame(self) -> Any:
        """Return the columns as a `pandas.DataFrame`, without probabilities."""
        return display.make_column_frame(self.columns)

    def without_rows(self) -> Decision:
        """Return an empty decision with the same columns and types."""
        empty_arrays: dict[str, Any] = {
            name: value[:0] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **empty_arrays)


@dataclass(frozen=True)
class LaterStageDecision:
    """Decision of a later stage of a cascade on the rows that earlier stages reject.

    Attributes
    ----------
    row_indices : ndarray of int
        Indices of these rows among all rows of the cascade.
    decision : Decision
        Decision of the stage on these rows.
    """

    row_indices: Codes
    decision: Decision


def merge_stage_decisions(
    first_decision: Decision,
    later_decisions: list[LaterStageDecision],
    stage_names: tuple[str, ...],
) -> Decision:
    """Combine the decisions of the stages of a cascade into one decision on all rows.

    Parameters
    ----------
    first_decision : Decision
        Decision of the first stage, on all rows.
    later_decisions : list of LaterStageDecision
        Decisions of the second and further stages, in order. Stages that no row reached are absent.
    stage_names : tuple of str
        Names of all stages.

    Returns
    -------
    Decision
        Each row has the columns of the last stage that decided on it.
    """
    n_rows = len(first_decision)
    n_stages = len(stage_names)
    merged_columns = {
        column_name: getattr(first_decision, column_name)
        for column_name in _COLUMNS_SET_BY_LAST_STAGE
    }
    # Rows that no stage accepts are answered by the reviewer, who comes after the last stage.
    reviewer_index = n_stages
    answering_stages = np.where(first_decision.accept, 0, reviewer_index)
    later_uncertainties = np.full((n_rows, n_stages - 1), np.nan)
    for stage_index, stage in enumerate(later_decisions, start=1):
        decided_rows = stage.row_indices
        for column_name, merged_column in merged_columns.items():
            stage_column = getattr(stage.decision, column_name)
            if merged_column is not None and stage_column is not None:
                merged_columns[column_name] = _overwrite_rows(
                    merged_column, decided_rows, new_values=stage_column
                )
        accepted_rows = decided_rows[stage.decision.accept]
        answering_stages[accepted_rows] = stage_index
        later_uncertainties[decided_rows, stage_index - 1] = stage.decision.uncertainty
    return replace(
        first_decision,
        **merged_columns,
        by=answering_stages,
        later_scores=later_uncertainties,
        stage_names=stage_names,
    )


def _overwrite_rows(
    column: NDArray[Any], row_indices: Codes, new_values: NDArray[Any]
) -> NDArray[Any]:
    """Return a copy of a column in which some rows have new values."""
    common_dtype = np.result_type(column.dtype, new_values.dtype)
    merged_column = column.astype(common_dtype)
    merged_column[row_indices] = new_values
    return merged_column
